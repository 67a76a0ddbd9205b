"""Forgetting runs, and the content that nobody needs any more.

What to forget is looked for outside of a transaction, a portion at a time, because much may be old and kept. The
transaction locks what was found and looks again: a task that is requeued meanwhile keeps its runs, and content or a pin
that a transaction refers to at this moment is locked by it, so that it is passed over.

Used by:    `SqlJournal.purge` and `forget`; tasks take their runs with them (`purge_runs`).
Invariant:  a run goes with everything that only it has; content and pins go after the last of their owners.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from foliot.errors import Conflict, NotFound
from foliot.store.base import Database
from foliot.store.journal.base import TERMINAL
from foliot.store.journal.leases import lock_runs
from foliot.store.portions import Ended, Portions
from foliot.store.transaction import Row, Tx, many, one, rows, run

# Content and pins are looked at, and forgotten in one transaction, so many pieces at a time.
BLOBS_AT_ONCE = 1000
PINS_AT_ONCE = 500


async def purge(database: Database, *, ended_before: float, limit: int | None, portions: Portions | None = None) -> int:
    """Forgets runs that ended before a time, as many as `limit` says; returns how many.

    When there are no more of them, content that nobody refers to goes too.
    """
    gone, behind, portions = 0, Ended(), portions or Portions()
    while limit is None or gone < limit:
        # Looked for outside the transaction: there may be many that are old and kept.
        wanted = portions.size if limit is None else min(portions.size, limit - gone)
        found = await database.read("purge_find", before=ended_before, since=behind.at, after=behind.key, count=wanted)
        if not found:
            await purge_content(database, before=ended_before)
            break
        behind = Ended(found[-1]["updated_at"], found[-1]["key"])
        portions.begin()
        if loose := [row for row in found if not row["kept"]]:
            done = await database.write(purge_found, loose, ended_before)
            gone += done
            await portions.end(done)
    return gone


async def purge_content(database: Database, *, before: float) -> None:
    """Forgets content that nobody refers to and that was not used since a time."""
    await _purge_unused_pins(database)
    since, after = 0.0, ""
    while True:
        # Looked for outside the transaction: there may be much that is old and in use.
        found = await database.read("purge_blobs", before=before, since=since, after=after, count=BLOBS_AT_ONCE)
        if found:
            await database.write(_purge_content, [row["digest"] for row in found], before)
            since, after = found[-1]["created_at"], found[-1]["digest"]
        if len(found) < BLOBS_AT_ONCE:
            return


async def _purge_unused_pins(database: Database) -> None:
    after = 0
    while True:
        # Outside the transaction, as content: requests with instructions of their own make a pin each.
        found = await database.read("purge_pins", after=after, count=PINS_AT_ONCE)
        if unused := [row["key"] for row in found if not row["used"]]:
            await database.write(_purge_pins, unused)
        if len(found) < PINS_AT_ONCE:
            return
        after = found[-1]["key"]


# --- transactions ----------------------------------------------------------------------------------------------------


def forget_run(run_id: str) -> Tx[None]:
    """Forgets one run and its events. Raises as `Journal.forget`."""
    if (there := (yield from one("run_get", id=run_id))) is not None:
        yield from _lock_tasks([there])
        yield from lock_runs([there["key"]])
    row = yield from one("forget_find", id=run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    if row["phase"] not in TERMINAL:
        raise Conflict(f"run {run_id} has not ended ({row['phase']})", hint="cancel it first")
    if row["held"]:
        raise Conflict(f"run {run_id} is part of a task that goes on", hint="cancel the task first")
    if (later := (yield from one("conversation_follows", id=run_id))) is not None:
        raise Conflict(f"run {later['id']} continues the conversation of run {run_id}", hint="delete that one first")
    if (turn := (yield from one("session_of_run", run_id=run_id))) is not None:
        raise Conflict(f"run {run_id} is a turn of session {turn['id']}", hint="delete the session first")
    yield from _delete([row])


def purge_runs(found: Sequence[Row], before: float) -> Tx[int]:
    """Forgets those of these runs that ended before a time and that nothing keeps; returns how many.

    Part of a larger transaction, which has locked their tasks.
    """
    yield from lock_runs([row["key"] for row in found])
    ended = yield from rows("purge_ready", keys=_array([str(row["key"]) for row in found]), before=before)
    if ended:
        yield from _delete(ended)
    return len(ended)


def purge_found(found: Sequence[Row], before: float) -> Tx[int]:
    """Forgets those of these runs that ended before a time and that nothing keeps; returns how many."""
    yield from _lock_tasks(found)
    return (yield from purge_runs(found, before))


def _purge_pins(keys: Sequence[int]) -> Tx[int]:
    """Forgets those of these pins that no run has any more; returns how many."""
    unused = yield from rows("purge_pins_hold", keys=_array([str(key) for key in keys]))
    yield from many("purge_pin", [{"key": row["key"]} for row in unused])
    return len(unused)


def _purge_content(digests: Sequence[str], before: float) -> Tx[int]:
    unused = yield from rows("purge_hold", digests=_array(digests))
    held = _array([row["digest"] for row in unused])
    return (yield from run("purge_held", digests=held, before=before)) if unused else 0


def _lock_tasks(found: Sequence[Row]) -> Tx[None]:
    yield from rows("purge_tasks", run_ids=_array([row["id"] for row in found]))


def _delete(ended: Sequence[Row]) -> Tx[None]:
    keys, ids = _array([str(row["key"]) for row in ended]), _array([row["id"] for row in ended])
    for name in ("purge_events", "purge_uses", "purge_inbox", "purge_runs"):
        yield from run(name, keys=keys)
    for name in ("purge_signals", "purge_doubts"):
        yield from run(name, ids=ids)


def _array(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()
