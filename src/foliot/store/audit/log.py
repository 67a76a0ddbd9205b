"""The audit log in a database: appended to, read, and checked; never changed, only forgotten from its beginning.

Written by:  engine/audit/log.py, for every decision about a tool call and every result.
Read by:     `foliot audit`.
Invariant:   records have no gaps and each holds the hash of the one before (see chain.py). Those up to the base
             were forgotten, and a record says so (see `prune_audit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.store.audit.chain import COLUMNS, PRUNED, Break, ChainHead, Check, Entry, Link, linked
from foliot.store.base import Database
from foliot.store.transaction import Guarded, Planned, Tx, many, one, run

PAGE: Final = 1000
# So many rows are made at a time: the texts of a long batch need not all be in memory while it is written.
PORTION: Final = 25
_columns: Final = itemgetter(*COLUMNS)
_members: Final = attrgetter(*COLUMNS)
NEWEST: Final = 2**62


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which records; what is empty does not matter. Times are in seconds since 1970, `until` excluded.

    The fields are the parameters of every list of records, over HTTP too, where `called` is the name of one if it is
    another.
    """

    namespace: str = ""
    agent: str = ""
    tool: str = ""
    run_id: str = field(default="", metadata={"called": "run"})
    call_id: str = field(default="", metadata={"called": "call"})
    moment: str = ""
    outcome: str = ""
    since: float = 0.0
    until: float = math.inf


class AuditRecord(Struct, frozen=True, gc=False):
    """One record as it is stored. `body` holds its number and the hash before it too."""

    seq: int
    hash: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a check. `head` is the last record that was checked, `first` the number of the first one kept.

    `missing` are finished calls, each as `RUN/CALL`, that the journals tell of and the log does not.
    """

    records: int
    head: ChainHead
    broken: Break | None
    first: int = 1
    missing: tuple[str, ...] = ()


class SqlAuditLog:
    """The audit log, on either database; any number of processes may write to one log."""

    def __init__(self, database: Database) -> None:
        self._db = database
        # Where this process has left the log; and whether it was still there the next time: nobody else writes to it.
        self._end: ChainHead | None = None
        self._alone = False

    async def append(self, entries: Sequence[Entry], *, told: bool = True) -> list[AuditRecord]:
        """Write all of them behind the newest record, or none; return when they are durable.

        Each has the members of `COLUMNS`. The records are handed back when somebody wants to be `told`, otherwise
        none. Raises `InvalidInput` when the log has lost its head: see `verify`.
        """
        end, alone = self._end, self._alone
        self._end, self._alone = None, False
        if end is not None and alone and entries and not told and self._db.version() is None:
            # Over a network, five round trips are one for who knows where the log ends. If it has gone on elsewhere,
            # nothing of this attempt is stored, and its end is asked for.
            added = _rows(entries, end)
            appended = await self._db.write(_APPEND_BEHIND, end, added, entries)
            if appended is None:
                self._end, self._alone = _end_of(added), True
                return []
        else:
            appended = await self._db.write(_append, entries, told)
        self._end, self._alone = appended.end, appended.found == end
        return appended.records

    async def get(self, seq: int) -> AuditRecord:
        """Raises `NotFound`."""
        found = await self._db.read("audit_get", seq=seq)
        if not found:
            gone = (await self.base()).seq
            hint = f"records up to {gone} were pruned" if 0 < seq <= gone else "`foliot audit list` shows them"
            raise NotFound(f"there is no audit record {seq}", hint=hint)
        return _record(found[0])

    async def find(self, filter: AuditFilter, *, limit: int = 50, before: int | None = None) -> list[AuditRecord]:
        """Newest first. `before` is the number of the last record of the page before."""
        given: dict[str, Any] = {each.name: getattr(filter, each.name) for each in fields(filter)}
        given["until"] = min(filter.until, 1e18)
        given |= {"before": NEWEST if before is None else before, "count": limit}
        if filter.run_id:
            return [_record(row) for row in await self._db.read("audit_find_run", **given)]
        del given["run_id"]
        if not filter.tool:
            del given["tool"]
        if not filter.namespace:
            del given["namespace"]
        query = f"audit_find{'_tool' if filter.tool else ''}{'' if filter.namespace else '_everywhere'}"
        return [_record(row) for row in await self._db.read(query, **given)]

    async def head(self) -> ChainHead | None:
        found = await self._db.read("audit_head")
        return ChainHead(found[0]["seq"], found[0]["hash"]) if found else None

    async def base(self) -> ChainHead:
        """The last record that was forgotten; number 0 when none was."""
        found = await self._db.read("audit_base")
        return ChainHead(found[0]["seq"], found[0]["hash"]) if found else ChainHead()

    async def verify(self, anchor: ChainHead | None = None) -> Verified:
        """Walk the whole chain, a page at a time. Records that are added meanwhile are not looked at."""
        while True:
            base = await self.base()
            verified = await self._verify(anchor, base)
            # What was pruned under way is missing in a log that is whole.
            if verified.broken is None or await self.base() == base:
                return verified

    async def verify_end(self, most: int) -> Verified:
        """Verifies only the newest `most` records of the log, or all of a shorter one."""
        head, base = await self.head(), await self.base()
        if head is None or head.seq - base.seq <= most:
            return await self.verify()
        before = await self.get(head.seq - most)
        check = Check(base=ChainHead(before.seq, before.hash))
        while check.found is None and check.head.seq < head.seq:
            links = [link for link in await self._page(check.head.seq) if link.seq <= head.seq]
            if not links:
                check.found = Break(check.head.seq + 1, "truncated", f"record {check.head.seq + 1} is missing")
            check.follow(links)
        if check.found is None and check.head != head:
            check.found = Break(head.seq, "head", f"the stored head does not name record {head.seq} as it is")
        return Verified(check.head.seq - before.seq, check.head, check.found, before.seq + 1)

    async def _verify(self, anchor: ChainHead | None, base: ChainHead) -> Verified:
        # First the head: what is written after it was read is beyond what is checked.
        head = await self.head()
        check = Check(anchor, base)
        last = None if head is None else head.seq
        records = 0
        after = base.seq
        while check.found is None:
            links = [link for link in await self._page(after) if last is None or link.seq <= last]
            if not links:
                break
            check.follow(links)
            records += len(links)
            after = links[-1].seq
        # In this order: whoever has written meanwhile has moved the head with its records.
        if check.found is None and last is not None and await self._page(last) and await self.head() == head:
            check.found = Break(last + 1, "head", f"there are records behind {last}, which the stored head names last")
        return Verified(records, check.head, check.end(head), base.seq + 1)

    async def _page(self, after: int) -> list[Link]:
        found = await self._db.read("audit_read", after=after, count=PAGE)
        return [Link(row["seq"], row["data"], row["hash"], {name: row[name] for name in COLUMNS}) for row in found]


def append_records(entries: Sequence[Entry], told: bool = False) -> Tx[list[AuditRecord]]:
    """Appends records inside a transaction, with the promises of `SqlAuditLog.append`."""
    return (yield from _append(entries, told)).records


class _Appended(NamedTuple):
    """The head that was found, where it is after the append, and the records if somebody wants to be told."""

    found: ChainHead
    end: ChainHead
    records: list[AuditRecord]


def _append(entries: Sequence[Entry], told: bool) -> Tx[_Appended]:
    row = yield from one("audit_turn")
    if row is None:
        raise InvalidInput("the audit log has lost its head", hint="`foliot audit verify` says more")
    found = end = ChainHead(row["seq"], row["hash"])
    records: list[AuditRecord] = []
    for start in range(0, len(entries), PORTION):
        added = _rows(entries[start : start + PORTION], end)
        yield from many("audit_add", added)
        end = _end_of(added)
        if told:
            records += [AuditRecord(seq, digest, msgspec.json.decode(data)) for seq, *_, data, digest in added]
    if entries:
        yield from run("audit_advance", seq=end.seq, hash=end.hash)
    return _Appended(found, end, records)


def _rows(entries: Sequence[Entry], head: ChainHead) -> list[tuple[Any, ...]]:
    """The rows of records behind `head`."""
    return [
        (seq, *(_columns(entry) if isinstance(entry, dict) else _members(entry)), data, digest)
        for seq, digest, data, entry in linked(entries, head)
    ]


def _end_of(added: Sequence[tuple[Any, ...]]) -> ChainHead:
    return ChainHead(added[-1][0], added[-1][-1])


def _append_anew(_end: ChainHead, _added: Sequence[tuple[Any, ...]], entries: Sequence[Entry]) -> Tx[_Appended]:
    return (yield from _append(entries, told=False))


def _plan_append(known: ChainHead, added: Sequence[tuple[Any, ...]], _entries: Sequence[Entry]) -> Planned:
    end = _end_of(added)
    return Planned((end.seq, end.hash, "head", known.seq, known.hash), added)


_APPEND_BEHIND = Guarded(_append_anew, guard="audit_advance_from", add="audit_add", plan=_plan_append)


def _record(row: Mapping[str, Any]) -> AuditRecord:
    return AuditRecord(row["seq"], row["hash"], msgspec.json.decode(row["data"]))


# --- pruning ---------------------------------------------------------------------------------------------------------

# Forgetting the beginning of the audit log without breaking its chain.
#
# What is cut is recorded in the log itself: a record that says how far, and the hash of the last record that is gone.
# The chain goes on from that hash, and the record stands in the chain like any other, so a log that was cut by anybody
# else shows it. The cut is decided in one transaction and carried out in small ones after it; records before the cut
# that a crash has left behind count as gone, and the next pruning removes them.

AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of pruning: `records` were deleted, up to the one that `last` names."""

    records: int
    last: ChainHead


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
    cut = Pruned(last - start, ChainHead(last, end["hash"]))
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
