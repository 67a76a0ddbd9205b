"""Texts with holes: `Report of {{ slot_date }}`.

A hole is a name, never code, and what fills it is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_HOLE: Final = re.compile(r"\{\{\s*([^{}]{1,200}?)\s*\}\}")

SLOT_NAMES: Final = (
    "slot",
    "slot_local",
    "slot_date",
    "slot_time",
    "slot_unix",
    "schedule",
    "namespace",
    "trigger",
)
"""What a schedule knows of one of its times."""

EVENT_NAMES: Final = ("event_id", "received_at", "source", "webhook", "namespace")
"""What a webhook knows of a delivery, besides its headers (`header.NAME`) and its body (`$.path`)."""


def names_in(text: str) -> list[str]:
    """The names of the holes, in order."""
    return _HOLE.findall(text)


def fill(text: str, value_of: Callable[[str], str]) -> str:
    """The text with every hole filled, in one pass: a value that looks like a hole stays as it is."""
    return _HOLE.sub(lambda hole: value_of(hole[1]), text)
