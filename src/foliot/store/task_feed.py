"""The order in which changes of tasks were told: what a watch of tasks goes on from.

Written by:  whoever watches tasks, when it finds that one stands differently than it was told last.
Read by:     watches of tasks, in any process.
Invariant:   a number is used once, and numbers are handed out under a lock that is held until the commit, so whoever
             sees number n can read all before it. A row is changed only by somebody who knew what it said.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, many, one, rows, run

# Rows of tasks that ended long ago are dropped so many at a time.
DROPPED_AT = 1000


class Told(Struct, frozen=True):
    """How a task stood under this number. `document` is its outline as JSON; the last one when it is `gone`."""

    task: int
    number: int
    first: int
    live: bool
    gone: bool
    document: str


class Difference(Struct, frozen=True):
    """A task that stands differently. `known` is the number of what was told of it, 0 when nothing was."""

    task: int
    known: int
    live: bool
    gone: bool
    document: str


async def told_behind(database: Database, after: int, limit: int) -> list[Told]:
    """Reads the events behind a number, in order: only the last one of each task."""
    return [_told(row) for row in await database.read("task_feed_behind", after=after, count=limit)]


async def told_of(database: Database, tasks: Sequence[int]) -> dict[int, Told]:
    """Reads the last event of each of these tasks."""
    found = await database.read("task_feed_told", keys=keys_array(tasks))
    return {row["task"]: _told(row) for row in found}


def tell(differences: Sequence[Difference]) -> Tx[list[Told]]:
    """Give each of them the next number, but for those that somebody else has told of meanwhile."""
    lock = yield from one("task_feed_lock")
    assert lock is not None  # its migration made the row
    number: int = lock["told"]
    found = yield from rows("task_feed_told", keys=keys_array([each.task for each in differences]))
    known = {row["task"]: row for row in found}
    told: list[Told] = []
    for each in differences:
        before = known.get(each.task)
        if each.known != (before["number"] if before else 0):
            continue
        number += 1
        first = before["first"] if before else number
        told.append(Told(each.task, number, first, each.live, each.gone, each.document))
    if told:
        yield from many("task_feed_put", [_row(each) for each in told])
        yield from run("task_feed_set", name="task_told", value=number)
    return told


def drop(floor: int) -> Tx[int]:
    """Forget what was told of tasks that have ended, up to this key, once it is worth it; how many."""
    yield from one("task_feed_lock")
    old = yield from one("task_feed_old", floor=floor)
    if old is None or old["rows"] < DROPPED_AT:
        return 0
    bounds = yield from one("task_feed_bounds")
    assert bounds is not None  # its migration made the rows
    yield from run("task_feed_set", name="task_dropped", value=max(bounds["dropped"], old["number"]))
    return (yield from run("task_feed_drop", floor=floor))


def keys_array(keys: Sequence[int]) -> str:
    """Keys as a query takes many of them."""
    return msgspec.json.encode([str(key) for key in keys]).decode()


def _told(row: Row) -> Told:
    return msgspec.convert(row, Told, strict=False)


def _row(told: Told) -> dict[str, object]:
    return {**msgspec.structs.asdict(told), "live": int(told.live), "gone": int(told.gone)}
