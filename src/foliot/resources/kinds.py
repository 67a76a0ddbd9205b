"""The fifteen kinds by name, without loading their models.

`foliot get` must start fast, so this table holds all that listing, completing and naming need; the pydantic model of a
kind is imported by `model()` when something is to be validated.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from foliot.errors import UsageError

if TYPE_CHECKING:
    from foliot.resources.base import Resource


@dataclass(frozen=True, slots=True)
class Kind:
    """`columns` are (heading, path into the document) pairs of the table that `get` prints; `wide` adds to them."""

    name: str
    plural: str
    module: str
    words: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    wide: tuple[tuple[str, str], ...] = ()

    def model(self) -> type[Resource]:
        """The pydantic model of this kind."""
        return getattr(import_module(f"foliot.resources.{self.module}"), self.name)
