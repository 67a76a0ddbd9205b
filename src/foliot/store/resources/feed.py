"""Following the feed of changes: every change once, in the order of the commits, from any process.

Revisions are handed out under a lock that is held until the commit, so whoever sees revision n can read all before it,
and the feed has exactly one row for each revision that was not compacted. A watch is therefore only a number.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Literal, TypeAlias

from foliot.errors import Gone
from foliot.store.base import Change, ChangedSince, Database, Document, Filter
from foliot.store.resources.documents import decode
from foliot.store.resources.selectors import matches
from foliot.store.transaction import Row

# Revisions looked at in one query, and the longest wait without looking (a lost hint must not delay a change for ever).
WINDOW = 500
LONGEST_WAIT = 1.0
Action: TypeAlias = Literal["created", "updated", "deleted"]


async def follow(database: Database, filter: Filter, after: int) -> AsyncIterator[Change]:
    """Every change behind `after` that concerns what the filter lets through. Raises `Gone`.

    With label or field clauses, a resource that begins to match is told as created and one that no longer does as
    deleted, as in kubectl. When what it was before has been compacted, a change that does not match is told as deleted.
    """
    while True:
        seen = database.change_mark()
        upto, found = await window(database, filter.kind, after)
        if upto == after:
            await database.wait_for_change(seen, timeout=LONGEST_WAIT)
            continue
        for row in found:
            if (action := await Looked(database, row).through(filter)) is not None:
                yield Change(row["revision"], action, _read(row))
        after = upto
        await asyncio.sleep(0)  # a long stretch that the filter leaves out must not hold up other tasks


async def window(database: Database, kind: str | None, after: int) -> tuple[int, list[Row]]:
    """The next changes behind `after`, of one kind or of all, and the revision up to which these are all there are.

    At most so many that one query bears them; nothing new gives `after` itself. Raises `Gone`.
    """
    bounds = (await database.read("feed_bounds"))[0]
    _check_position(after, bounds)
    if bounds["revision"] == after:
        return after, []
    upto = min(bounds["revision"], after + WINDOW)
    if kind is None:
        found = await database.read("change_list", after=after, upto=upto)
    else:
        found = await database.read("change_list_kind", kind=kind, after=after, upto=upto)
    if len(found) < upto - after:  # other kinds, or a compaction that came between the two reads
        _check_position(after, (await database.read("feed_bounds"))[0])
    return upto, found


async def changed(database: Database, kinds: Sequence[str], after: int) -> ChangedSince | None:
    """The changes of some kinds behind `after`, up to the newest; None when it is not certain that these are all.

    They are counted after they were read: a change that is missing was compacted, or is of a life of the store that a
    restore has ended.
    """
    upto: int = (await database.read("feed_bounds"))[0]["revision"]
    if not 0 <= upto - after <= WINDOW:
        return None
    found = await database.read("change_list_kinds", kinds=json.dumps([*kinds]), after=after, upto=upto)
    (counted,) = await database.read("change_count", after=after, upto=upto)
    if counted["changes"] != upto - after:
        return None
    return ChangedSince(upto, [Change(row["revision"], row["action"], _read(row)) for row in found])


def _check_position(after: int, bounds: Row) -> None:
    if not bounds["compacted"] <= after <= bounds["revision"]:
        kept = f"the changes kept are {bounds['compacted'] + 1} to {bounds['revision']}"
        raise Gone(
            f"the changes behind revision {after} are not kept: {kept}",
            hint="list again and go on from the revision of the list",
        )


def _read(row: Row) -> Document:
    return decode(row["document"])


class Looked:
    """One row of the feed, held against filters. What it takes to do so is read once, however many there are."""

    def __init__(self, database: Database, row: Row) -> None:
        self._database = database
        self._row = row
        self._document: Document | None = None
        self._before: Document | None = None
        self._knows_before = False

    @property
    def document(self) -> Document:
        if self._document is None:
            self._document = _read(self._row)
        return self._document

    async def through(self, filter: Filter) -> Action | None:
        """Returns the action that the change is for a reader with this filter; None when it does not concern them."""
        row = self._row
        if filter.namespace is not None and row["namespace"] != filter.namespace:
            return None
        now = matches(self.document, filter)
        action: Action = row["action"]
        if action != "updated" or not (filter.labels or filter.fields):
            return action if now else None
        before = None if (earlier := await self._earlier()) is None else matches(earlier, filter)
        if now:
            return "created" if before is False else "updated"
        return None if before is False else "deleted"

    async def _earlier(self) -> Document | None:
        if not self._knows_before:
            found = await self._database.read("change_get", revision=self._row["previous"])
            self._before = _read(found[0]) if found else None
            self._knows_before = True
        return self._before
