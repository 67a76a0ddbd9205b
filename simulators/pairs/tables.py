"""The tables that a query reads and writes, found in its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from foliot.store.queries import load
from foliot.store.schema import migrations

_MADE = re.compile(r"(CREATE|DROP|ALTER) TABLE (?:IF (?:NOT )?EXISTS )?([a-z_]+)(?: RENAME TO ([a-z_]+))?")
_WRITTEN = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+([a-z_]+)\b")
_READ = re.compile(r"(?:\b(?:FROM|JOIN)|,)\s+([a-z_]+)\b(?=\s+AS\b|\s|$|\)|;)")
_LOCKED = re.compile(r"/\*(?:for_update|for_share|skip_locked)\*/")


class Footprint(NamedTuple):
    """`written` are also the tables whose rows are locked by a read."""

    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    @property
    def tables(self) -> frozenset[str]:
        return self.read | self.written

    def meets(self, other: Footprint) -> bool:
        """Whether one of the two writes what the other reads or writes."""
        return bool(self.written & other.tables) or bool(other.written & self.tables)


@cache
def all_tables() -> frozenset[str]:
    """Every table of the schema."""
    made: set[str] = set()
    for step in migrations("postgres"):
        for what, name, renamed in _MADE.findall(step.script):
            if what == "CREATE":
                made.add(name)
            elif what == "DROP":
                made.discard(name)
            elif renamed:
                made = (made - {name}) | {renamed}
    return frozenset(made)


@cache
def footprint(query: str) -> Footprint:
    """Returns the tables that the query of this name touches, or of these names: several can be one statement."""
    first, *more = query.split(" ")
    return together(query.split(" ")) if more else footprint_of(load()[first])


def footprint_of(text: str) -> Footprint:
    """Returns the tables that a query touches, by its text as it stands in queries/*.sql."""
    written = frozenset(_WRITTEN.findall(text)) & all_tables()
    read = frozenset(_READ.findall(text)) & all_tables()
    if _LOCKED.search(text):
        written |= read
    return Footprint(read, written)


def together(queries: Iterable[str]) -> Footprint:
    """Returns the tables that several queries touch."""
    found = [footprint(query) for query in queries]
    return Footprint(
        frozenset(table for each in found for table in each.read),
        frozenset(table for each in found for table in each.written),
    )


EVERYTHING: Final = Footprint(all_tables(), all_tables())
