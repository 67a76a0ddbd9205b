"""Following the feed of changes: every change once, in the order of the commits, from any process.

Revisions are handed out under a lock that is held until the commit, so whoever sees revision n can read all before it,
and the feed has exactly one row for each revision that was not compacted. A watch is therefore only a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from foliot.errors import Gone
from foliot.store.base import Change, Database, Filter
from foliot.store.documents import decode
from foliot.store.selectors import matches
from foliot.store.transaction import Row

# Revisions looked at in one query, and the longest wait without looking (a lost hint must not delay a change for ever).
WINDOW = 500
LONGEST_WAIT = 1.0


async def follow(database: Database, filter: Filter, after: int) -> AsyncIterator[Change]:
    """Every change behind `after` that concerns what the filter lets through. Raises `Gone`.

    With label or field clauses, a resource that begins to match is told as created and one that no longer does as
    deleted, as in kubectl. When what it was before has been compacted, a change that does not match is told as deleted.
    """
    while True:
        bounds = (await database.read("feed_bounds"))[0]
        _check_position(after, bounds)
        if bounds["revision"] == after:
            await database.wait_for_change(timeout=LONGEST_WAIT)
            continue
        upto = min(bounds["revision"], after + WINDOW)
        found = await _read(database, filter, after, upto)
        if len(found) < upto - after:  # other kinds, or a compaction that came between the two reads
            _check_position(after, (await database.read("feed_bounds"))[0])
        for row in found:
            if (change := await _through(database, filter, row)) is not None:
                yield change
        after = upto
        await asyncio.sleep(0)  # a long stretch that the filter leaves out must not hold up other tasks


def _check_position(after: int, bounds: Row) -> None:
    if not bounds["compacted"] <= after <= bounds["revision"]:
        kept = f"the changes kept are {bounds['compacted'] + 1} to {bounds['revision']}"
        raise Gone(
            f"the changes behind revision {after} are not kept: {kept}",
            hint="list again and go on from the revision of the list",
        )


async def _read(database: Database, filter: Filter, after: int, upto: int) -> list[Row]:
    if filter.kind is None:
        return await database.read("change_list", after=after, upto=upto)
    return await database.read("change_list_kind", kind=filter.kind, after=after, upto=upto)


async def _through(database: Database, filter: Filter, row: Row) -> Change | None:
    """The change as somebody sees it who looks through the filter."""
    if filter.namespace is not None and row["namespace"] != filter.namespace:
        return None
    document = decode(row["document"])
    now = matches(document, filter)
    action: Literal["created", "updated", "deleted"] = row["action"]
    if action != "updated" or not (filter.labels or filter.fields):
        return Change(row["revision"], action, document) if now else None
    earlier = await database.read("change_get", revision=row["previous"])
    before = matches(decode(earlier[0]["document"]), filter) if earlier else None
    if now:
        return Change(row["revision"], "created" if before is False else "updated", document)
    return None if before is False else Change(row["revision"], "deleted", document)
