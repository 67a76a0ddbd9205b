"""A cancel and what it is for: the run and all that runs below it, in one transaction.

Whoever cancels locks the run, then all that it has started, and marks each: from the commit on nothing is appended to
any of them before the cancel is heard (`run_advance`), so nothing begins there, whichever process drives it. A start is
recorded before it acts; this is what makes the answer to a cancel final. A run that is being started at the same moment
meets the cancel at the row of its parent, which its creation locks too.

Used by:    database.py and work/tasks/advance.py, for every signal that is a cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from foliot.kernel.run.codec import NAMES, encode
from foliot.kernel.run.events import CancelRequested
from foliot.store.journal.base import TERMINAL, Entry, Lease, Signal
from foliot.store.journal.leases import lock_runs
from foliot.store.transaction import Row, Tx, many, rows, run

CANCEL: Final = NAMES[CancelRequested]
_ENDS_WITH_PARENT: Final = encode(CancelRequested("parent", "the run that started it has ended"))


def ends_with_parent(run_id: str, at: float) -> Signal:
    """The signal that ends a run because its parent has ended. It always has the same id, so it is heard once."""
    return Signal(f"{run_id}/parent", run_id, at, CANCEL, _ENDS_WITH_PARENT)


def lock_with_those_below(keys: Sequence[int]) -> Tx[tuple[list[Row], list[Row]]]:
    """Locks runs and those that they have started, on all levels; returns the rows of both that have not ended.

    Nothing is started below them after that, until the transaction ends: what begins locks the row of its parent.
    """
    top = yield from lock_runs(keys)
    known = {row["key"] for row in top}
    below: list[Row] = []
    # A run that is started while this waits for its parent is found by the next look. Its key may be below one that is
    # locked by now, and nobody waits for it: it is new, and whoever locks several of this family locks its head first.
    while fresh := [key for key in (yield from _keys_below(sorted(known))) if key not in known]:
        below += yield from lock_runs(fresh)
        known.update(fresh)
    return _live(top), _live(below)


def _keys_below(keys: Sequence[int]) -> Tx[list[int]]:
    return [row["key"] for row in (yield from rows("run_below", keys=_array(keys)))]


def _live(found: Iterable[Row]) -> list[Row]:
    return [row for row in found if row["phase"] not in TERMINAL]


def cancel_locked(told: Sequence[Row], below: Sequence[Row], at: float) -> Tx[None]:
    """Tells the runs below those that are `told` to end, and has all of them begin nothing before they hear it."""
    stops = [ends_with_parent(row["id"], at) for row in below]
    yield from many("signal_add", [msgspec.structs.asdict(each) for each in stops])
    if keys := sorted(row["key"] for row in (*told, *below)):
        yield from run("run_cancel", keys=_array(keys))


def hear(lease: Lease, entries: Sequence[Entry]) -> Tx[None]:
    """Notes that who holds a run has heard that it is to end, if these entries say so."""
    if any(entry.type == CANCEL for entry in entries):
        yield from _heard(lease)


def hears_all(lease: Lease, taken: Sequence[str]) -> Tx[bool]:
    """Whether every cancel that waits for a run is taken by an append; if so, that is noted."""
    waiting = yield from rows("signal_list", run_ids=msgspec.json.encode([lease.run_id]).decode())
    if any(row["type"] == CANCEL and row["id"] not in taken for row in waiting):
        return False
    yield from _heard(lease)
    return True


def _heard(lease: Lease) -> Tx[None]:
    yield from run("run_cancel_heard", key=lease.key, epoch=lease.epoch, worker=lease.worker)


def _array(keys: Sequence[int]) -> str:
    return msgspec.json.encode(list(keys)).decode()
