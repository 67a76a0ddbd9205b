"""Forgetting the beginning of the audit log without breaking its chain.

What is cut is recorded in the log itself: a record that says how far, and the hash of the last record that is gone. The
chain goes on from that hash, and the record stands in the chain like any other, so a log that was cut by anybody else
shows it. The cut is decided in one transaction and carried out in small ones after it; records before the cut that a
crash has left behind count as gone, and the next pruning removes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from foliot.errors import Conflict
from foliot.store.audit.chain import PRUNED, Head
from foliot.store.audit.log import SqlAuditLog, append_records
from foliot.store.base import Database
from foliot.store.transaction import Tx, one, run

AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of pruning: `records` were deleted, up to the one that `last` names."""

    records: int
    last: Head


async def prune_audit(database: Database, *, before: float, by: str, now: float) -> Pruned | None:
    """Forget records that were written before a time (seconds since 1970); None when there are none.

    Raises `Conflict` when the chain does not hold: what would show that is not thrown away.
    """
    log = SqlAuditLog(database)
    broken = (await log.verify()).broken
    if broken is not None:
        raise Conflict(
            f"the audit log is broken at record {broken.seq} ({broken.fault}), so nothing is cut off: {broken.message}",
            hint="find out what happened, and keep a copy of the store",
        )
    cut = await database.write(_cut, before, by, now)
    await _forget(database, (await log.base()).seq)
    return cut


def _cut(before: float, by: str, now: float) -> Tx[Pruned | None]:
    """Decide how far, and write that down."""
    head = yield from one("audit_turn")
    base = yield from one("audit_base")
    assert head is not None, "the chain was found to hold"
    start: int = base["seq"] if base is not None else 0
    kept = yield from one("audit_first_since", after=start, since=before)
    last: int = kept["seq"] - 1 if kept is not None else head["seq"]
    # Records of earlier cuts alone are not worth another one.
    if (yield from one("audit_other_than", moment=PRUNED, after=start, last=last)) is None:
        return None
    end = yield from one("audit_get", seq=last)
    assert end is not None, "the chain was found to hold"
    cut = Pruned(last - start, Head(last, end["hash"]))
    yield from append_records([_entry(cut, start, by, now)])
    yield from run("audit_rebase", seq=last, hash=end["hash"])
    return cut


def _entry(cut: Pruned, start: int, by: str, now: float) -> dict[str, Any]:
    nobody = dict.fromkeys(("namespace", "agent", "tool", "run_id", "call_id"), "")
    return {
        **nobody,
        "at": now,
        "moment": PRUNED,
        "outcome": PRUNED,
        "decision": {"asks": [], "by": by},
        "pruned": {"from": start + 1, "to": cut.last.seq, "hash": cut.last.hash, "records": cut.records},
    }


async def _forget(database: Database, last: int) -> None:
    """Deletes records in small transactions: others write to the same store meanwhile."""
    while found := await database.read("audit_read", after=0, count=1):
        first: int = found[0]["seq"]
        if first > last:
            return
        await database.write(_delete, min(last, first + AT_ONCE - 1))


def _delete(last: int) -> Tx[None]:
    yield from run("audit_forget", last=last)
