"""The right to write a journal: the lease of its run, and the fence that every append passes.

A lease is a worker and an epoch in the row of the run. Taking a run makes a new epoch, so whoever held it before is
fenced out: the first statement of an append names the epoch that it was given and the event that it follows, and
changes nothing when either is old.

Used by:    database.py for every write of a holder; whoever locks runs to act on their phase (`lock_runs`).
Invariant:  epochs and journals only grow. A store in which they have not was set back (`StoreSetBack`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from foliot.errors import Conflict, NotFound
from foliot.store.journal.base import (
    TERMINAL,
    CancelPending,
    Entry,
    JournalConflict,
    Lease,
    LeaseLost,
    Phase,
    Renewal,
    RunHeld,
    StoreSetBack,
)
from foliot.store.queue import queue
from foliot.store.transaction import Row, Tx, one, rows, run

# What the row of a run says of a cancel that its holder has not heard.
UNHEARD: Final = 1


def lock_runs(keys: Sequence[int]) -> Tx[list[Row]]:
    """Locks these runs and returns their rows, in the order of their keys; others wait until the transaction ends."""
    return (yield from rows("run_lock", keys=msgspec.json.encode(list(keys)).decode()))


def claim(run_id: str, worker: str, now: float, until: float, dead: int | None) -> Tx[tuple[int, int, bool, bool]]:
    """Takes a run; returns its key, the new epoch, and whether it is queued and was `Lease.released`.

    Raises as `Journal.claim`.
    """
    row = yield from one("run_claim", id=run_id, worker=worker, now=now, until=until, dead=-1 if dead is None else dead)
    if row is not None:
        return row["key"], row["epoch"], (yield from queue.hold(row["key"], until)), row["left_seq"] > 0
    there = yield from one("run_get", id=run_id)
    if there is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    if there["phase"] in TERMINAL:
        raise Conflict(f"run {run_id} has ended ({there['phase']})")
    raise RunHeld(f"run {run_id} is held by {there['worker']}", hint="it is at work; wait, or cancel it")


def renew(leases: Sequence[Lease], until: float) -> Tx[Renewal]:
    """Prolongs many leases in a few statements. One that is lost or cannot be had costs none of the others."""
    found = yield from rows("run_renewable", keys=_keys(leases))
    free = {row["key"]: row for row in found}
    held = [lease for lease in leases if _holds(lease, free.get(lease.key))]
    if held:
        yield from run("run_renew", keys=_keys(held), until=until)
    if queued := [lease.key for lease in held if lease.queued]:
        yield from queue.prolong(queued, until)
    if len(held) == len(leases):
        return Renewal()
    missed = [lease for lease in leases if lease.key not in free]
    there = free
    if missed:
        there = free | {row["key"]: row for row in (yield from rows("run_fences", keys=_keys(missed)))}
    lost = [lease for lease in leases if not _holds(lease, there.get(lease.key))]
    for lease in lost:
        _check_not_set_back(lease, there.get(lease.key), 0)
    names = {lease.run_id for lease in lost}
    return Renewal(names, {lease.run_id for lease in missed if lease.run_id not in names})


def pass_fence(
    lease: Lease,
    entries: Sequence[Entry],
    phase: Phase | None,
    summary: dict[str, Any] | None,
    hears: Callable[[], Tx[bool]] | None = None,
) -> Tx[None]:
    """Moves the run on, if this writer still holds it and knows its last event. Raises `LeaseLost`, `JournalConflict`.

    Any `phase` but "running" also gives the lease back. Without one the run must have heard what cancels it, or do so
    by this (`hears`). Raises `CancelPending`.
    """
    if entries:
        after, last, at = entries[0].seq - 1, entries[-1].seq, entries[-1].at
    else:
        # A write of this holder may be under way that nobody waits for any more: the last event is known after it.
        yield from lock_runs([lease.key])
        row = yield from one("run_fence", key=lease.key)
        if row is None or not _holds(lease, row):
            return (yield from _refuse(lease, 0))
        after, at = row["last_seq"], row["updated_at"]
        last = after
    if phase is None:
        moved = {"key": lease.key, "epoch": lease.epoch, "worker": lease.worker, "after": after, "last": last}
        changed = yield from run("run_advance", **moved)
        if not changed and (yield from _is_cancelled(lease, after)):
            if hears is None or not (yield from hears()):
                raise CancelPending(f"run {lease.run_id} is cancelled, and has not heard it")
            changed = yield from run("run_advance", **moved)
    else:
        fields: dict[str, Any] = {"key": lease.key, "epoch": lease.epoch, "worker": lease.worker}
        fields |= {"after": after, "last": last, "at": at}
        fields["summary"] = None if summary is None else msgspec.json.encode(summary).decode()
        if phase == "running":
            changed = yield from run("run_hold", **fields)
        else:
            changed = yield from run("run_release", phase=phase, **fields)
    if not changed:
        yield from _refuse(lease, after)
    if last - after != len(entries):
        raise JournalConflict(f"the events for run {lease.run_id} are not numbered one by one")


def _is_cancelled(lease: Lease, after: int) -> Tx[bool]:
    """Whether nothing else keeps a holder from going on but that it has not heard that the run is to end."""
    yield from lock_runs([lease.key])
    row = yield from one("run_fence", key=lease.key)
    return row is not None and _holds(lease, row) and row["last_seq"] == after and row["cancelling"] == UNHEARD


def _refuse(lease: Lease, after: int) -> Tx[None]:
    row = yield from one("run_fence", key=lease.key)
    _check_not_set_back(lease, row, after)
    if row is None or not _holds(lease, row):
        raise LeaseLost(f"run {lease.run_id} is no longer held by {lease.worker}")
    raise JournalConflict(f"the last event of run {lease.run_id} is {row['last_seq']}, not {after}")


def _keys(leases: Sequence[Lease]) -> str:
    return msgspec.json.encode([lease.key for lease in leases]).decode()


def _holds(lease: Lease, row: Row | None) -> bool:
    """Whether the run is held as the lease says. SQLite gives the key of a deleted run to another one."""
    return row is not None and (row["id"], row["epoch"], row["worker"]) == (lease.run_id, lease.epoch, lease.worker)


def _check_not_set_back(lease: Lease, row: Row | None, after: int) -> None:
    """Epochs and journals only grow. Raises `StoreSetBack`.

    A run that is not there says nothing: others may have taken it over, ended and deleted it.
    """
    if row is None or row["id"] != lease.run_id:
        return
    if row["epoch"] < lease.epoch:
        raise StoreSetBack(f"run {lease.run_id} is at epoch {row['epoch']}, and {lease.worker} was given {lease.epoch}")
    if (row["epoch"], row["worker"]) == (lease.epoch, lease.worker) and row["last_seq"] < after:
        raise StoreSetBack(f"run {lease.run_id} has {row['last_seq']} events, and {lease.worker} has stored {after}")
