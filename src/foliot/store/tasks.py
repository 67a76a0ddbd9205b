"""Tasks as rows: what transactions about tasks are made of, and how tasks are read.

Written by:  the work room, in the transaction that accepts a task, ends one of its runs, or was asked to by a person.
Read by:     lists, `foliot task`, the worker that takes one of its runs.
Invariant:   `revision` is the number of the task's newest event, so events have no gaps. A change begins with
             `lock`, and is stored only if the revision is still the one that was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from foliot.errors import Conflict
from foliot.store.base import Database
from foliot.store.journal.packing import MOST, packed, unpacked
from foliot.store.journal.purge import purge_runs
from foliot.store.key_pages import keys_array
from foliot.store.portions import Ended, Portions
from foliot.store.transaction import Row, Tx, many, one, rows, run

ENDED: frozenset[str] = frozenset({"succeeded", "failed", "cancelled", "dead_lettered"})


class NewTask(Struct, frozen=True):
    """A task about to be stored; `command` is JSON, `graph` the encoded fold of its first events."""

    uid: str
    namespace: str
    name: str
    target_kind: str
    target: str
    idempotency_key: str | None
    digest: str
    priority: int
    lane: str
    spawned_by: str
    parent: str
    labels: dict[str, str]
    command: str
    plan: str
    graph: bytes
    summary: dict[str, Any]
    timer_at: float | None
    now: float


class TaskChange(NamedTuple):
    """The change of a task by one transaction. `facts` are (type, encoded event) in order."""

    phase: str
    attempt: int
    graph: bytes
    summary: dict[str, Any]
    timer_at: float | None
    started_at: float | None
    ended_at: float | None
    facts: Sequence[tuple[str, bytes]]


def add_task(task: NewTask, facts: Sequence[tuple[str, bytes]]) -> Tx[int | None]:
    """Store it with its first events; its key, or None when its name or its idempotency key is taken."""
    row = yield from one(
        "task_add",
        uid=task.uid,
        namespace=task.namespace,
        name=task.name,
        target_kind=task.target_kind,
        target=task.target,
        idempotency_key=task.idempotency_key,
        digest=task.digest,
        phase="queued",
        revision=len(facts),
        priority=task.priority,
        lane=task.lane,
        spawned_by=task.spawned_by,
        parent=task.parent,
        labels=encode_labels(task.labels),
        command=task.command,
        plan=task.plan,
        graph=task.graph,
        summary=_json(task.summary),
        timer_at=task.timer_at,
        now=task.now,
    )
    if row is None:
        return None
    yield from _add_facts(row["key"], 0, facts, task.now)
    return row["key"]


def end_task(key: int, phase: str, now: float) -> Tx[None]:
    """End a task that was just added, with the facts that say so."""
    yield from run("task_end_new", key=key, phase=phase, now=now)


def lock(key: int) -> Tx[Row]:
    """The task as it is, and nobody else changes it before this transaction ends. Raises `Conflict` when it is gone."""
    return present((yield from turn(key)))


def turn(key: int) -> Tx[Row | None]:
    """Locks the task like `lock`; returns None when the task is gone."""
    return (yield from one("task_lock", key=key))


def present(row: Row | None) -> Row:
    if row is None:
        raise Conflict("the task has been deleted")
    return row


def change(row: Row, change: TaskChange, now: float) -> Tx[None]:
    """Store what became of a locked task. Raises `Conflict` when somebody changed it without the lock."""
    changed = yield from run(
        "task_change",
        key=row["key"],
        expected=row["revision"],
        revision=row["revision"] + len(change.facts),
        phase=change.phase,
        attempt=change.attempt,
        graph=change.graph,
        summary=_json(change.summary),
        timer_at=change.timer_at,
        started_at=change.started_at,
        ended_at=change.ended_at,
        now=now,
    )
    if not changed:
        raise Conflict(f"task {row['name']} was changed meanwhile")
    yield from _add_facts(row["key"], row["revision"], change.facts, now)


def forget(keys: Sequence[int]) -> Tx[None]:
    """Delete tasks with everything that is known of them but their runs."""
    for query in ("task_delete_events", "task_delete_runs", "task_delete_memory", "task_delete"):
        yield from run(query, keys=keys_array(keys))


class PurgedTasks(NamedTuple):
    """How many tasks were forgotten, and how many of their runs."""

    tasks: int = 0
    runs: int = 0


async def purge(
    database: Database, before: float, limit: int | None = None, *, portions: Portions | None = None
) -> PurgedTasks:
    """Forget tasks that ended before a time, at most so many, in small transactions: others write meanwhile.

    Their runs go with them; those that ended later, or that something else keeps, stay until their own time has come.
    """
    tasks = runs = 0
    behind, portions = Ended(), portions or Portions()
    while limit is None or tasks < limit:
        wanted = portions.size if limit is None else min(portions.size, limit - tasks)
        found = await database.read("task_purge_find", before=before, since=behind.at, after=behind.key, count=wanted)
        if not found:
            break
        behind = Ended(found[-1]["ended_at"], found[-1]["key"])
        portions.begin()
        gone = await database.write(purge_ended, [row["key"] for row in found], before)
        await portions.end(gone.tasks)
        tasks, runs = tasks + gone.tasks, runs + gone.runs
    return PurgedTasks(tasks, runs)


def purge_ended(keys: Sequence[int], before: float) -> Tx[PurgedTasks]:
    """Forget those of these tasks that are still over since before a time, and that nobody changes now."""
    locked = yield from rows("task_purge_lock", keys=keys_array(keys), before=before)
    if not locked:
        return PurgedTasks()
    found = yield from rows("task_purge_runs", keys=keys_array([row["key"] for row in locked]))
    runs = (yield from purge_runs(found, before)) if found else 0
    yield from forget([row["key"] for row in locked])
    return PurgedTasks(len(locked), runs)


def _add_facts(key: int, after: int, facts: Sequence[tuple[str, bytes]], now: float) -> Tx[None]:
    yield from many(
        "task_event_add",
        [(key, seq, now, kind, _stored(kind, data)) for seq, (kind, data) in enumerate(facts, after + 1)],
    )


def _stored(kind: str, data: bytes) -> bytes:
    return packed(kind, data) if len(data) <= MOST else data


def fact_of(row: Row) -> bytes:
    """Returns an event of a task as it was recorded, from its row."""
    return unpacked(row["type"], row["data"])


def encode_labels(labels: dict[str, str]) -> str:
    """Encodes labels as `{"a":"b","c":"d"}` with sorted keys, so that a label can be found in the text (see
    `label_text`).
    """
    return msgspec.json.encode(dict(sorted(labels.items()))).decode()


def label_text(name: str, value: str) -> str:
    """How this label stands in the stored text of a task that has it."""
    return msgspec.json.encode({name: value}).decode()[1:-1]


def label_hint(name: str, value: str) -> str:
    """How this label stands in the index of labels, which has the beginnings of them only (see 0001_schema.sql)."""
    return f"{name}={value}"[:200]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- task feed -------------------------------------------------------------------------------------------------------

# The order in which changes of tasks were told: what a watch of tasks goes on from.
#
# Written by:  whoever watches tasks, when it finds that one stands differently than it was told last.
# Read by:     watches of tasks, in any process.
# Invariant:   a number is used once, and numbers are handed out under a lock that is held until the commit, so whoever
#              sees number n can read all before it. A row is changed only by somebody who knew what it said.

# Rows of tasks that ended long ago are dropped so many at a time.
DROPPED_AT = 1000


class TaskFeedRow(Struct, frozen=True):
    """How a task stood under this number. `document` is its outline as JSON; the last one when it is `gone`."""

    task: int
    number: int
    first: int
    live: bool
    gone: bool
    document: str


class TaskDifference(Struct, frozen=True):
    """A task that stands differently. `known` is the number of what was told of it, 0 when nothing was."""

    task: int
    known: int
    live: bool
    gone: bool
    document: str


async def told_behind(database: Database, after: int, limit: int) -> list[TaskFeedRow]:
    """Reads the events behind a number, in order: only the last one of each task."""
    return [_told(row) for row in await database.read("task_feed_behind", after=after, count=limit)]


async def told_live(database: Database, upto: int, limit: int) -> list[TaskFeedRow]:
    """Reads the last event of tasks that had not ended, up to a number: the newest ones, oldest first."""
    found = await database.read("task_feed_live_told", upto=upto, count=limit)
    return [_told(row) for row in reversed(found)]


async def told_of(database: Database, tasks: Sequence[int]) -> dict[int, TaskFeedRow]:
    """Reads the last event of each of these tasks."""
    found = await database.read("task_feed_told", keys=keys_array(tasks))
    return {row["task"]: _told(row) for row in found}


def tell(differences: Sequence[TaskDifference]) -> Tx[list[TaskFeedRow]]:
    """Give each of them the next number, but for those that somebody else has told of meanwhile."""
    lock = yield from one("task_feed_lock")
    assert lock is not None  # its migration made the row
    number: int = lock["told"]
    found = yield from rows("task_feed_told", keys=keys_array([each.task for each in differences]))
    known = {row["task"]: row for row in found}
    told: list[TaskFeedRow] = []
    for each in differences:
        before = known.get(each.task)
        if each.known != (before["number"] if before else 0):
            continue
        number += 1
        first = before["first"] if before else number
        told.append(TaskFeedRow(each.task, number, first, each.live, each.gone, each.document))
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


def _told(row: Row) -> TaskFeedRow:
    return msgspec.convert(row, TaskFeedRow, strict=False)


def _row(told: TaskFeedRow) -> dict[str, object]:
    return {**msgspec.structs.asdict(told), "live": int(told.live), "gone": int(told.gone)}
