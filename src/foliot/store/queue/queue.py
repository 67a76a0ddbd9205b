"""The queue of runs that belong to tasks: who may be taken when.

Everything here is part of a larger transaction: a run is queued in the one that creates it, and leaves the queue in the
one that ends it. `due_at` alone says when a worker may take a run, whatever the reason (see
migrations/0001_schema.sql).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.store.base import Database, Row
from foliot.store.queue.placement import unread_by, without
from foliot.store.transaction import Tx, many, one, run

MOST_URGENT = 999
# So many characters of a line say how urgent it is, and so many also of which namespace.
URGENCY, SPACE = 3, 11
# What waits unheard is woken so many at a time.
WOKEN_AT_ONCE = 100
# So many times a run keeps its place when its holder dies. One that kills each worker must not come first for ever.
KEEPS_PLACE = 3


class QueueItem(Struct, frozen=True):
    """A run as the queue sees it. `requirements` is JSON: what a worker must have to take it.

    `priority` is from 0 to 999, higher is sooner. `max_running` is how many runs of this agent may be at work at the
    same time, by its definition; 0 for any number.
    """

    run: int
    run_id: str
    task: int
    namespace: str
    agent: str
    lane: str
    class_key: str
    priority: int
    due_at: float
    requirements: str = "{}"
    max_running: int = 0

    @property
    def line(self) -> str:
        """The line it stands in: behind items that are as urgent and in every other way like it.

        Urgent lines sort first, and those of a namespace beside one another.
        """
        return _line(self.priority, self.namespace, self.agent, self.lane, self.class_key, self.requirements)


@lru_cache(maxsize=4096)
def _line(priority: int, namespace: str, *alike: str) -> str:
    urgency = MOST_URGENT - min(max(priority, 0), MOST_URGENT)
    return f"{urgency:03}{_digest(namespace, 4)}{_digest(chr(0).join(alike), 8)}"


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def enqueue(items: Sequence[QueueItem]) -> Tx[None]:
    yield from many(
        "queue_add",
        [
            (
                item.run,
                item.run_id,
                item.task,
                item.namespace,
                item.agent,
                item.lane,
                item.class_key,
                item.priority,
                item.line,
                item.due_at,
                item.max_running,
                item.requirements,
            )
            for item in items
        ],
    )


def hold(key: int, until: float) -> Tx[bool]:
    """Marks a run as held that was taken by its name. False when it is no run of a task."""
    return bool((yield from run("queue_hold", run=key, until=until)))


def let_go(key: int, due_at: float | None) -> Tx[None]:
    """Releases the run; it is due again at `due_at`, or when it is signalled."""
    yield from run("queue_let_go", run=key, due_at=due_at)


def hand_back(key: int) -> Tx[None]:
    """Frees a run that could go on at once: it has the place in its line that it had."""
    yield from run("queue_hand_back", run=key)


def take_back(key: int, due_at: float) -> Tx[None]:
    """Frees a run whose holder is gone. It keeps its place in its line, a few times; then it is due since `due_at`."""
    yield from run("queue_take_back", run=key, due_at=due_at, most=KEEPS_PLACE)


def leave_to_others(key: int, identity: str, lacks: str = "") -> Tx[None]:
    """Put a run where this process does not look, for others: one that it cannot read, or `lacks` something for."""
    row = yield from one("queue_place", run=key)
    if row is None:
        return
    needed = row["requirements"]
    requirements = without(needed, identity, lacks) if lacks else unread_by(needed, identity)
    line = _line(row["priority"], row["namespace"], row["agent"], row["lane"], row["class"], requirements)
    yield from run("queue_move", run=key, requirements=requirements, line=line)


def remove(key: int) -> Tx[None]:
    """The run has ended."""
    yield from run("queue_remove", run=key)


def wake(run_id: str, now: float) -> Tx[bool]:
    """Makes a signalled run that nobody holds due now. False when there was nothing to wake."""
    return bool((yield from run("queue_wake", run_id=run_id, now=now)))


async def wake_unheard(db: Database, now: float) -> int:
    """Make due whatever waits although it was told something; how many runs. Nothing should wait so."""
    found = await db.read("queue_unheard", now=now, count=WOKEN_AT_ONCE)
    for row in found:
        await db.write(wake, row["run_id"], now)
    return len(found)


def prolong(keys: Sequence[int], until: float) -> Tx[None]:
    """Extends the claims on these runs: their holder is alive, and others may not look at them before `until`."""
    yield from run("queue_prolong", runs=msgspec.json.encode(list(keys)).decode(), until=until)


# --- unattended ------------------------------------------------------------------------------------------------------

# Runs that could go on, and that nobody drives.
#
# A run of a task is in the queue, and one that a run delegated to is its parent's to go on with. All others depend on
# the process that began them: a server, `foliot run`. When that is gone, they are found here.

PAGE: Final = 500


class Unattended(Struct, frozen=True):
    """`last_seq` is the number of its last event. `dead`: the process that drove it has certainly died."""

    run_id: str
    phase: str
    last_seq: int
    dead: bool = False
    key: int = 0


async def unattended(
    db: Database,
    *,
    now: float,
    is_gone: Callable[[str | None], bool],
    namespaces: Sequence[str] = (),
    after: int = 0,
) -> list[Unattended]:
    """Lists unattended runs, oldest first. `is_gone` says whether a worker has certainly died.

    Those of some `namespaces`, or of all; only those behind the key `after`. A run that waits is among them when its
    time has come, or when somebody has told it something.
    """
    found: list[Unattended] = []
    where = msgspec.json.encode(list(namespaces)).decode()
    while rows := await db.read("run_unattended", after=after, namespaces=where, count=PAGE):
        found += (
            Unattended(
                row["id"],
                row["phase"],
                row["last_seq"],
                row["phase"] == "running" and is_gone(row["worker"]),
                row["key"],
            )
            for row in rows
            if _is_due(row, now, is_gone)
        )
        after = rows[-1]["key"]
        if len(rows) < PAGE:  # another look would go through all that is live once more, to find nothing
            break
    return found


def _is_due(row: Row, now: float, is_gone: Callable[[str | None], bool]) -> bool:
    match row["phase"]:
        case "pending":
            return True
        case "running":
            over = row["lease_until"] is not None and row["lease_until"] < now
            return over or is_gone(row["worker"])
        case _:
            return row["signals"] > 0 or _is_over(row["summary"], now)


def _is_over(summary: str, now: float) -> bool:
    waiting: dict[str, Any] = msgspec.json.decode(summary, type=dict[str, Any]).get("waiting") or {}
    until = waiting.get("until")
    return isinstance(until, int | float) and until <= now
