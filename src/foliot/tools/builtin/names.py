"""The second names of built-in tools. Whoever refuses a tool refuses it by all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER_NAMES: Final[Mapping[str, str]] = {
    "read_file": "read",
    "write_file": "write",
    "edit_file": "edit",
    "submit": "submit_work",
    "ask": "ask_user",
    "spawn": "spawn_agent",
}


def names_of(request: str) -> frozenset[str]:
    """Returns all names of the tool that is meant by a name, or by `name@version`."""
    name = request.partition("@")[0]
    first = OTHER_NAMES.get(name, name)
    return frozenset({first, name, *(other for other, meant in OTHER_NAMES.items() if meant == first)})
