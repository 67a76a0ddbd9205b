"""Run journals in a database. One append is one small transaction; concurrent ones share a commit."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from foliot.common.threads import unhurried
from foliot.errors import Conflict, NotFound
from foliot.kernel.inbox import CANCELLED, RUN_ENDED
from foliot.kernel.json_texts import longest_text, texts_in
from foliot.kernel.run.codec import NAMES
from foliot.kernel.run.events import InputReceived
from foliot.kernel.run.spec import digest
from foliot.kernel.run.spec import digest as content_digest
from foliot.store.base import Database
from foliot.store.journal import database as large
from foliot.store.journal.base import (
    ALL_PHASES,
    CONVERSATION_LABEL,
    NAMED,
    TERMINAL,
    USER_LABEL,
    Entry,
    JournalConflict,
    Lease,
    LeaseLost,
    LockingBody,
    NewRun,
    Phase,
    Renewal,
    RunHeld,
    RunInfo,
    Signal,
    SignalsPending,
    StoreSetBack,
    TransactionBody,
)
from foliot.store.journal.chain import JournalChanged, changed_journal
from foliot.store.journal.packing import packed, pin_of, unpacked
from foliot.store.key_pages import NEWEST, KeySource, keys_array, matching_keys
from foliot.store.portions import Ended, Portions
from foliot.store.queue import queue
from foliot.store.transaction import Guarded, Planned, Row, Tx, many, one, rows, run

# --- large -----------------------------------------------------------------------------------------------------------

# Large events: their long texts stand apart, each under its digest, so that equal ones are stored once.
#
# Ten runs that read the same document have ten events with ten times and call ids in them, and one document. So it is
# the texts that are named by their content, not the events. The bytes of an event come back as they were: they are cut
# at the quotes around its texts and put together again, and never read as JSON.
#
# The note beside such an event says where its texts belong: `12@sha256:… 99@sha256:…`, offsets into what is left. What
# is left stands apart too when it is large; then its digest comes first, without an offset.
#
# The end of a run repeats its last answer. The text stands in the answer alone, and the note `12@#4:100:430` says that
# it is in the event 4 of the run, 430 bytes from its byte 100 on.

# A larger event is stored in pieces, so that the tables stay small.
LARGE: Final = 32 * 1024
# The texts in it that are worth a place of their own.
LONG: Final = 4 * 1024


# A text that another event has is worth a note from this length on, in bytes.
REPEATED: Final = 64


class Parted(NamedTuple):
    """`data` stays with the event, `note` is written beside it, and `content` is stored by digest."""

    data: bytes
    note: str
    content: Mapping[str, bytes]


def parted(event: bytes) -> Parted:
    """A large event in pieces."""
    content: dict[str, bytes] = {}
    places: list[str] = []
    left: list[bytes] = []
    kept = end = 0
    for begin, stop in texts_in(event):
        if stop - begin < LONG:
            continue
        piece = event[begin:stop]
        name = digest(piece)
        content[name] = piece
        left.append(event[end:begin])
        kept += begin - end
        places.append(f"{kept}@{name}")
        end = stop
    rest = b"".join((*left, event[end:]))
    if len(rest) <= LARGE:
        return Parted(rest, " ".join(places), content)
    name = digest(rest)
    return Parted(b"", " ".join((name, *places)), {**content, name: rest})


def without_repeat(event: bytes, earlier: Entry) -> tuple[bytes, str] | None:
    """The event without its longest text, and the note on where an earlier one has that; None when it has not."""
    begin, stop = longest_text(event)
    if stop - begin < REPEATED or (at := earlier.data.find(event[begin:stop])) < 0:
        return None
    return event[:begin] + event[stop:], f"{begin}@#{earlier.seq}:{at}:{stop - begin}"


def names_in(note: str) -> Sequence[str]:
    """The digests of everything that stands apart."""
    return [place.rpartition("@")[2] for place in note.split()]


def joined(data: bytes, note: str, content: Mapping[str, bytes]) -> bytes:
    """The event as it was."""
    pieces: list[bytes] = []
    at = 0
    for place in note.split():
        offset, apart, name = place.rpartition("@")
        if not apart:
            data = content[name]
            continue
        until = int(offset)
        pieces += (data[at:until], content[name])
        at = until
    return b"".join((*pieces, data[at:]))


# --- journal ---------------------------------------------------------------------------------------------------------

# A long journal is read so many events at a time, a few milliseconds of work.
EVENTS_AT_ONCE: Final = 500
INPUT: Final = NAMES[InputReceived]
# Content and pins are looked at, and forgotten in one transaction, so many pieces at a time.
BLOBS_AT_ONCE = 1000
PINS_AT_ONCE = 500


class SqlJournal:
    """A `Journal` on either database."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._db = database
        self._clock = clock

    async def create(
        self,
        run: NewRun,
        first: Sequence[Entry],
        *,
        worker: str | None = None,
        lease_until: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Lease | None:
        key = await self._db.write(_create, run, first, worker, lease_until, in_transaction)
        return None if worker is None else Lease(run.id, key, 1, worker, lease_until or 0.0)

    async def claim(self, run_id: str, *, worker: str, now: float, until: float, dead: int | None = None) -> Lease:
        key, epoch, queued = await self._db.write(_claim, run_id, worker, now, until, dead)
        return Lease(run_id, key, epoch, worker, until, queued)

    async def renew(self, leases: Sequence[Lease], *, until: float) -> Renewal:
        return await self._db.write(_renew, leases, until)

    def append(
        self,
        lease: Lease,
        entries: Sequence[Entry],
        *,
        phase: Phase | None = None,
        summary: dict[str, Any] | None = None,
        taken: Sequence[str] = (),
        answered: Sequence[str] = (),
        due: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Awaitable[None]:
        if phase is None and entries and not taken and not answered and in_transaction is None:
            return self._db.write(_ADVANCE, lease, entries)
        if lease.queued and phase is not None and phase != "running":
            return self._db.write(_let_go, lease, entries, phase, summary, taken, answered, due, in_transaction)
        return self._db.write(_append, lease, entries, phase, summary, taken, answered, in_transaction)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        if limit is not None:
            return await self._entries(run_id, await self._db.read("event_read", id=run_id, after=after, count=limit))
        entries: list[Entry] = []
        last = after
        while found := await self._db.read("event_read", id=run_id, after=after, count=EVENTS_AT_ONCE):
            await self._entries(run_id, found, entries)
            after, last = found[-1]["seq"], found[-1]["last_seq"]
            if len(found) < EVENTS_AT_ONCE:
                break
            await asyncio.sleep(0)  # others have their turn: a journal may be long
        if after != last:  # the end was cut off: the run's row says how long it is
            raise changed_journal(run_id, after + 1)
        return entries

    async def turns(self, run_id: str, *, first: str = "") -> dict[str, list[Entry]]:
        rows: dict[str, list[Row]] = {}
        for row in await self._db.read("conversation_read", id=run_id, first=first):
            rows.setdefault(row["id"], []).append(row)
        for turn, found in rows.items():
            if found[-1]["seq"] != found[-1]["last_seq"]:
                raise changed_journal(turn, found[-1]["seq"] + 1)
        return {turn: await self._entries(turn, found) for turn, found in rows.items()}

    async def _entries(self, run_id: str, found: Sequence[Row], entries: list[Entry] | None = None) -> list[Entry]:
        """The events of one run, in their order and as they were; added to those that were read before."""
        entries = [] if entries is None else entries
        for row in found:
            entries.append(await self._entry(row, run_id, entries))
        return entries

    async def _entry(self, row: Row, run_id: str = "", before: Sequence[Entry] = ()) -> Entry:
        if not row["blob"]:
            return entry_of(row)
        data = await self._whole(row, run_id, before)
        return Entry(row["seq"], row["at"], row["type"], data, row["link"] or b"")

    async def _repeated(self, name: str, run_id: str, before: Sequence[Entry]) -> bytes:
        """A text that an earlier event of the run has, which may be among those that were read `before`."""
        seq, begin, length = map(int, name[1:].split(":"))
        if before and before[0].seq <= seq <= before[-1].seq:
            earlier = before[seq - before[0].seq]
        elif found := await self.read(run_id, after=seq - 1, limit=1):
            (earlier,) = found
        else:
            raise changed_journal(run_id, seq)
        return earlier.data[begin : begin + length]

    async def _whole(self, row: Row, run_id: str, before: Sequence[Entry]) -> bytes:
        content = {
            name: await (self._repeated(name, run_id, before) if name.startswith("#") else self.get_blob(name))
            for name in large.names_in(row["blob"])
        }
        data = entry_of(row).data
        return await unhurried(sum(map(len, content.values())), large.joined, data, row["blob"], content)

    async def get(self, run_id: str) -> RunInfo:
        found = await self._db.read("run_get", id=run_id)
        if not found:
            raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
        return _info(found[0])

    async def find(self, prefix: str) -> RunInfo:
        found = await self._db.read("run_find", low=prefix, high=prefix + "\U0010ffff")
        if not found:
            raise NotFound(f"there is no run {prefix!r}", hint="`foliot runs` lists them")
        if len(found) > 1 and found[0]["id"] != prefix:
            raise Conflict(f"several runs start with {prefix!r}", hint="give more of the id")
        return await self.get(found[0]["id"])

    async def list(
        self,
        *,
        namespace: str | None = None,
        agent: str | None = None,
        phases: Sequence[Phase] = (),
        limit: int = 50,
        before: str | int | None = None,
        private_to: str | None = None,
    ) -> list[RunInfo]:
        last = NEWEST if before is None else before if isinstance(before, int) else await self._key(before)
        narrow = {
            "private": "" if private_to is None else f'"{CONVERSATION_LABEL}":',
            "own": "" if private_to is None else msgspec.json.encode({USER_LABEL: private_to}).decode()[1:-1],
        }
        wanted = set(phases or ALL_PHASES)
        walks = _walks(namespace, agent, wanted, narrow)
        match = {"namespace": namespace or "", "agent": agent or "", "phases": _array(sorted(wanted))}
        matching = KeySource("run_keys_matching", match) if len(walks) > 1 else None
        keys = await matching_keys(self._db, walks, matching, before=last, count=min(limit, NEWEST))
        return [_info(row) for row in await self._db.read("run_rows", keys=keys_array(keys))] if keys else []

    async def _key(self, run_id: str) -> int:
        """Returns the key of a run; of one that does not exist, a key that nothing is before."""
        found = await self._db.read("run_key", id=run_id)
        return found[0]["key"] if found else 0

    async def alike(self, prefix: str, *, namespaces: Sequence[str] = (), limit: int) -> list[RunInfo]:
        low, high = prefix, prefix + "\U0010ffff"
        found = await self._db.read("run_alike", low=low, high=high, namespaces=_array(namespaces), count=limit)
        return [_info(row) for row in found]

    async def many(self, run_ids: Sequence[str]) -> list[RunInfo]:
        return [_info(row) for row in await self._db.read("run_many", ids=_array(run_ids))]

    async def delegated(self, root: str) -> int:
        return int((await self._db.read("run_delegated", root=root))[0]["runs"])

    async def last_turn(self, run_id: str) -> str:
        found = await self._db.read("conversation_last", id=run_id)
        return str(found[0]["id"]) if found else run_id

    async def asking(
        self, *, namespaces: Sequence[str] = (), after: int = 0, limit: int
    ) -> list[tuple[RunInfo, list[Entry]]]:
        found = await self._db.read("run_asking", namespaces=_array(namespaces), after=after, count=limit)
        asking: dict[int, tuple[RunInfo, list[Entry]]] = {row["key"]: (_info(row), []) for row in found}
        if asking:
            for row in await self._db.read("event_asked", keys=_array([str(key) for key in asking])):
                asking[row["run"]][1].append(await self._entry(row))
        return [*asking.values()]

    async def signal(self, signal: Signal, *, in_transaction: TransactionBody | None = None) -> None:
        await self._db.write(_signal, signal, in_transaction)

    async def signals(self, run_ids: Sequence[str]) -> list[Signal]:
        if not run_ids:
            return []
        found = await self._db.read("signal_list", run_ids=msgspec.json.encode(list(run_ids)).decode())
        return [Signal(row["id"], row["run_id"], row["at"], row["type"], row["data"]) for row in found]

    async def put_blob(self, data: bytes, *, run_id: str = "") -> str:
        digest = content_digest(data)
        await self._db.write(_put_blob, digest, data, self._clock(), run_id)
        return digest

    async def put_blobs(self, contents: Sequence[bytes], *, run_id: str = "") -> Sequence[str]:
        named = await unhurried(sum(map(len, contents)), _named, contents)
        if named:
            # Always in the same order: of two that store the same at once, neither waits for the other in turn.
            await self._db.write(_put_blobs, dict(sorted(named)), self._clock(), run_id)
        return [name for name, _ in named]

    async def get_blob(self, digest: str, *, run_id: str = "") -> bytes:
        if run_id:
            found = await self._db.read("blob_of_run", digest=digest, id=run_id)
            if not found:
                raise NotFound(f"run {run_id} has no content {digest}")
        else:
            found = await self._db.read("blob_get", digest=digest)
        if not found:
            raise NotFound(f"there is no stored content {digest}")
        data: bytes = found[0]["data"]
        if await unhurried(len(data), content_digest, data) != digest:
            raise JournalChanged(
                f"stored content {digest} was changed in the store: it is not what was recorded under this digest",
                hint="restore the store from a backup",
                digest=digest,
            )
        return data

    async def purge(self, *, ended_before: float, limit: int | None = 1000, portions: Portions | None = None) -> int:
        gone, behind, portions = 0, Ended(), portions or Portions()
        while limit is None or gone < limit:
            # Looked for outside the transaction: there may be many that are old and kept.
            wanted = portions.size if limit is None else min(portions.size, limit - gone)
            found = await self._db.read(
                "purge_find", before=ended_before, since=behind.at, after=behind.key, count=wanted
            )
            if not found:
                await self.purge_content(before=ended_before)
                break
            behind = Ended(found[-1]["updated_at"], found[-1]["key"])
            portions.begin()
            if loose := [row for row in found if not row["kept"]]:
                done = await self._db.write(_purge, loose, ended_before)
                gone += done
                await portions.end(done)
        return gone

    async def purge_content(self, *, before: float) -> None:
        """Forget content that nobody refers to and that was not used since a time."""
        await self._purge_pins()
        since, after = 0.0, ""
        while True:
            # Looked for outside the transaction: there may be much that is old and in use.
            found = await self._db.read("purge_blobs", before=before, since=since, after=after, count=BLOBS_AT_ONCE)
            if found:
                await self._db.write(_purge_content, [row["digest"] for row in found], before)
                since, after = found[-1]["created_at"], found[-1]["digest"]
            if len(found) < BLOBS_AT_ONCE:
                return

    async def _purge_pins(self) -> None:
        after = 0
        while True:
            # Outside the transaction, as content: requests with instructions of their own make a pin each.
            found = await self._db.read("purge_pins", after=after, count=PINS_AT_ONCE)
            if unused := [row["key"] for row in found if not row["used"]]:
                await self._db.write(_purge_pins, unused)
            if len(found) < PINS_AT_ONCE:
                return
            after = found[-1]["key"]

    async def forget(self, run_id: str) -> None:
        await self._db.write(_forget, run_id)


def entry_of(row: Row) -> Entry:
    """Returns the event of a row, of which no text stands apart. `pin` is that of the run, for its first event.

    SQLite keeps whatever is put into a column. A value of another type than was stored is one that somebody changed,
    which the chain says: here it only must not be taken for a fault of this program.
    """
    data, pin, at, link = row["data"], row.get("pin") or b"", row["at"], row["link"] or b""
    if not (data.__class__ is pin.__class__ is link.__class__ is bytes and at.__class__ is float):
        data, pin, link = _bytes(data), _bytes(pin), _bytes(link)
        at = float(at) if isinstance(at, int | float) else math.nan
    return Entry(row["seq"], at, row["type"], unpacked(row["type"], data, pin), link)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


# --- transactions ------------------------------------------------------------------------------------------------


def _create(
    new: NewRun,
    first: Sequence[Entry],
    worker: str | None,
    lease_until: float | None,
    in_transaction: TransactionBody | None,
) -> Tx[int]:
    if isinstance(in_transaction, LockingBody):
        yield from in_transaction.locks()
    key = yield from create_run(new, first, worker, lease_until)
    if in_transaction is not None:
        yield from in_transaction()
    return key


def create_run(
    new: NewRun, first: Sequence[Entry], worker: str | None = None, lease_until: float | None = None
) -> Tx[int]:
    """Store a new run with its first events; its key. Part of a larger transaction where a task makes the run."""
    epoch = 1 if worker else 0
    conversation = None if new.after is None else (yield from _joined(new.after, new.namespace))
    pin = pin_of(first[0].data) if first else b""
    row = yield from one(
        "run_create",
        id=new.id,
        namespace=new.namespace,
        agent=new.agent,
        phase="running" if worker else "pending",
        pin=(yield from _pinned(new, pin)),
        epoch=epoch,
        last=len(first),
        worker=worker,
        lease_until=lease_until,
        created_at=new.created_at,
        parent=new.parent,
        parent_seq=new.parent_seq,
        labels=msgspec.json.encode(new.labels).decode(),
        root=new.root,
        conversation=conversation,
    )
    if row is None:
        raise Conflict(f"there is already a run {new.id!r}")
    key: int = row["key"]
    if content := {name: data for name, data in new.content.items() if name != new.spec}:
        yield from _keep(key, content, new.created_at)
        for data in content.values():  # what was said before the run may name results that were kept whole
            names = sorted(set(NAMED.findall(data)))
            yield from many("blob_use", [{"digest": each.decode(), "run": key} for each in names])
    yield from _add_events(key, first, pin)
    return key


def _pinned(new: NewRun, pin: bytes) -> Tx[int]:
    """Returns the key of what the run is pinned to, which owns its spec; stored by the first run that says it."""
    name = content_digest(b"%b %b" % (new.spec.encode(), pin))
    while (row := (yield from one("run_pin_find", digest=name))) is None:
        yield from _put_spec(new)
        yield from run("run_pin_add", digest=name, spec=new.spec, data=pin)
    if not row["stored"]:
        yield from _put_spec(new)
    return row["key"]


def _put_spec(new: NewRun) -> Tx[None]:
    """Store the spec of a run, if it brings it along, and keep it until there is a pin that owns it."""
    data = new.content.get(new.spec)
    while not (yield from keep_alive(new.spec)) and data is not None:
        yield from many("blob_put", [{"digest": new.spec, "data": data, "at": new.created_at}])


def _joined(run_id: str, namespace: str) -> Tx[str]:
    """Returns the conversation of a run that another one continues. Raises `NotFound`.

    Its first turn is locked, because whoever forgets conversations begins there.
    """
    ends = yield from one("conversation_ends", id=run_id, namespace=namespace)
    keys = () if ends is None else {ends["first_key"], ends["key"]}
    if ends is None or len((yield from lock_runs(sorted(keys)))) < len(keys):
        raise NotFound(f"there is no run {run_id!r} to continue", hint="`foliot runs` lists them")
    yield from run("conversation_join", key=ends["key"])
    return ends["first_id"]


def _keep(key: int, content: Mapping[str, bytes], at: float) -> Tx[None]:
    """Store content that a run refers to, and that it does."""
    yield from many("blob_put", [{"digest": digest, "data": content[digest], "at": at} for digest in sorted(content)])
    for name in sorted(content):
        while not (yield from run("blob_use", digest=name, run=key)) and not (yield from keep_alive(name)):
            # It was there, and has been purged since.
            yield from many("blob_put", [{"digest": name, "data": content[name], "at": at}])


def keep_alive(digest: str) -> Tx[bool]:
    """Keep content from being purged until the transaction ends, which is to say who owns it. False if it is gone."""
    return (yield from one("blob_hold", digest=digest)) is not None


def _claim(run_id: str, worker: str, now: float, until: float, dead: int | None) -> Tx[tuple[int, int, bool]]:
    row = yield from one("run_claim", id=run_id, worker=worker, now=now, until=until, dead=-1 if dead is None else dead)
    if row is not None:
        return row["key"], row["epoch"], (yield from queue.hold(row["key"], until))
    there = yield from one("run_get", id=run_id)
    if there is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    if there["phase"] in TERMINAL:
        raise Conflict(f"run {run_id} has ended ({there['phase']})")
    raise RunHeld(f"run {run_id} is held by {there['worker']}", hint="it is at work; wait, or cancel it")


def _renew(leases: Sequence[Lease], until: float) -> Tx[Renewal]:
    """A few statements, however many leases there are. One that is lost or cannot be had costs none of the others."""
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


def _append(
    lease: Lease,
    entries: Sequence[Entry],
    phase: Phase | None,
    summary: dict[str, Any] | None,
    taken: Sequence[str],
    answered: Sequence[str] = (),
    in_transaction: TransactionBody | None = None,
) -> Tx[None]:
    if isinstance(in_transaction, LockingBody):
        yield from in_transaction.locks()
    yield from _pass_fence(lease, entries, phase, summary)
    yield from _add_events(lease.key, entries)
    if taken:
        yield from many("signal_remove", [{"run_id": lease.run_id, "id": signal_id} for signal_id in taken])
    if answered:
        given = [{"run_id": lease.run_id, "owner": lease.key, "id": each} for each in answered]
        yield from many("inbox_answered", given)
    if phase == "waiting" and (yield from one("signal_any", run_id=lease.run_id)):
        raise SignalsPending(f"run {lease.run_id} has signals to take")
    if phase in TERMINAL:
        left = yield from rows("signals_left", id=lease.run_id)
        unheard = [row["id"] for row in left if row["type"] == INPUT]
        if unheard and phase == "succeeded":
            raise SignalsPending(f"run {lease.run_id} was told something before it could end")
        reason = CANCELLED if phase == "cancelled" else RUN_ENDED
        yield from many("inbox_unheard", [{"owner": lease.key, "id": each, "reason": reason} for each in unheard])
    if in_transaction is not None:
        yield from in_transaction()


def _let_go(
    lease: Lease,
    entries: Sequence[Entry],
    phase: Phase,
    summary: dict[str, Any] | None,
    taken: Sequence[str],
    answered: Sequence[str],
    due: float | None,
    in_transaction: TransactionBody | None,
) -> Tx[None]:
    """An append after which a run of a task is held by nobody: the queue and the task hear of it in the same breath."""
    if isinstance(in_transaction, LockingBody):
        yield from in_transaction.locks()
    yield from _append(lease, entries, phase, summary, taken, answered)
    if phase in TERMINAL:
        yield from queue.remove(lease.key)
    else:
        if due is None and phase == "pending":
            due = 0.0
        yield from queue.let_go(lease.key, due)
    if in_transaction is not None:
        yield from in_transaction()


def _pass_fence(
    lease: Lease, entries: Sequence[Entry], phase: Phase | None, summary: dict[str, Any] | None
) -> Tx[None]:
    """Move the run on, if this writer still holds it and knows its last event."""
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
        changed = yield from run(
            "run_advance", key=lease.key, epoch=lease.epoch, worker=lease.worker, after=after, last=last
        )
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


def _refuse(lease: Lease, after: int) -> Tx[None]:
    row = yield from one("run_fence", key=lease.key)
    _check_not_set_back(lease, row, after)
    if row is None or not _holds(lease, row):
        raise LeaseLost(f"run {lease.run_id} is no longer held by {lease.worker}")
    raise JournalConflict(f"the last event of run {lease.run_id} is {row['last_seq']}, not {after}")


def _advance(lease: Lease, entries: Sequence[Entry]) -> Tx[None]:
    """The append of almost every step: nothing but facts."""
    yield from _pass_fence(lease, entries, None, None)
    yield from _add_events(lease.key, entries)


def _plan_advance(lease: Lease, entries: Sequence[Entry]) -> Planned | None:
    key, after, last = lease.key, entries[0].seq - 1, entries[-1].seq
    if last - after != len(entries):
        return None
    added: list[tuple[Any, ...]] = []
    for entry in entries:
        data = entry.data
        if len(data) > large.LARGE:
            return None
        added.append((key, entry.seq, entry.at, entry.type, packed(entry.type, data), None, entry.link))
    return Planned((last, key, lease.epoch, lease.worker, after), added)


_ADVANCE = Guarded(_advance, guard="run_advance", add="event_add", plan=_plan_advance)


def _walks(
    namespace: str | None, agent: str | None, phases: set[Phase], narrow: Mapping[str, Any]
) -> list[list[KeySource]]:
    """Returns the queries that find runs by each of the filters alone."""
    where = narrow if namespace is None else {**narrow, "namespace": namespace}
    by_agent, in_phases = (
        ("run_keys_of_agent_everywhere", "run_keys_in_phases_everywhere")
        if namespace is None
        else ("run_keys_of_agent", "run_keys_in_phases")
    )
    walks: list[list[KeySource]] = []
    if agent:
        walks.append([KeySource(by_agent, {**where, "agent": agent})])
    if phases < set(ALL_PHASES):
        walks.append([KeySource(in_phases, {**where, "phases": _array(sorted(phases))})])
    if namespace is None:
        # Of what is frequent, enough is soon met among the newest runs of all namespaces.
        return [[KeySource("run_keys_everywhere", narrow)], *walks]
    return walks or [[KeySource("run_keys", where)]]


# The end of a run, and what it repeats.
_END: Final = "run.succeeded"
_ANSWER: Final = "model.responded"


def _add_events(key: int, entries: Sequence[Entry], pin: bytes = b"") -> Tx[None]:
    """Add events of a run; the first one of all is stored without its pin."""
    added: list[tuple[Any, ...]] = []
    answer: Entry | None = None
    for entry in entries:
        data, note = entry.data, None
        if len(data) > large.LARGE:
            data, note, content = large.parted(data)
            yield from _keep(key, content, entry.at)
        elif entry.type == _END and answer is not None and (left := large.without_repeat(data, answer)) is not None:
            data, note = left
        elif entry.type == _ANSWER:
            answer = entry
        data = packed(entry.type, data, pin if entry.seq == 1 else b"")
        added.append((key, entry.seq, entry.at, entry.type, data, note, entry.link))
    yield from many("event_add", added)


def _signal(signal: Signal, in_transaction: TransactionBody | None) -> Tx[None]:
    """Leave a signal. A run that is being let go right now is waited for: either it sees the signal, or it is woken."""
    if isinstance(in_transaction, LockingBody):
        yield from in_transaction.locks()
    new = yield from add_signal(signal)
    if in_transaction is not None and new:
        yield from in_transaction()


def add_signal(signal: Signal) -> Tx[bool]:
    """Leaves a signal, as part of a larger transaction; False when there was one of this id. Raises as `signal`."""
    there = yield from one("run_get", id=signal.run_id)
    found = (yield from lock_runs([there["key"]])) if there is not None else []
    if not found:
        raise NotFound(f"there is no run {signal.run_id!r}", hint="`foliot runs` lists them")
    phase = found[0]["phase"]
    if phase in TERMINAL:
        raise Conflict(f"run {signal.run_id} has ended ({phase})")
    new = yield from run("signal_add", **msgspec.structs.asdict(signal))
    if phase in ("waiting", "pending"):
        yield from queue.wake(signal.run_id, signal.at)
    return bool(new)


def lock_runs(keys: Sequence[int]) -> Tx[list[Row]]:
    """Locks these runs and returns their rows, in the order of their keys; others wait until the transaction ends."""
    return (yield from rows("run_lock", keys=msgspec.json.encode(list(keys)).decode()))


def _put_blob(digest: str, data: bytes, at: float, run_id: str) -> Tx[None]:
    owner = (yield from one("run_get", id=run_id)) if run_id else None
    yield from run("blob_put_anew", digest=digest, data=data, at=at)
    if owner is not None:
        yield from run("blob_use", digest=digest, run=owner["key"])


def _named(contents: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(content_digest(data), data) for data in contents]


def _put_blobs(contents: Mapping[str, bytes], at: float, run_id: str) -> Tx[None]:
    owner = (yield from one("run_get", id=run_id)) if run_id else None
    yield from many("blob_put_anew", [{"digest": name, "data": data, "at": at} for name, data in contents.items()])
    if owner is not None:
        yield from many("blob_use", [{"digest": name, "run": owner["key"]} for name in contents])


def _purge(found: Sequence[Row], before: float) -> Tx[int]:
    yield from _lock_tasks(found)
    return (yield from purge_runs(found, before))


def purge_runs(found: Sequence[Row], before: float) -> Tx[int]:
    """Forget those of these runs that ended before a time and that nothing keeps; how many. Tasks are locked by now."""
    yield from lock_runs([row["key"] for row in found])
    ended = yield from rows("purge_ready", keys=_array([str(row["key"]) for row in found]), before=before)
    if ended:
        yield from _delete(ended)
    return len(ended)


def _purge_pins(keys: Sequence[int]) -> Tx[int]:
    """Forget those of these pins that no run has any more; how many."""
    unused = yield from rows("purge_pins_hold", keys=_array([str(key) for key in keys]))
    yield from many("purge_pin", [{"key": row["key"]} for row in unused])
    return len(unused)


def _purge_content(digests: Sequence[str], before: float) -> Tx[int]:
    unused = yield from rows("purge_hold", digests=msgspec.json.encode(list(digests)).decode())
    held = _array([row["digest"] for row in unused])
    return (yield from run("purge_held", digests=held, before=before)) if unused else 0


def _lock_tasks(found: Sequence[Row]) -> Tx[None]:
    yield from rows("purge_tasks", run_ids=_array([row["id"] for row in found]))


def _forget(run_id: str) -> Tx[None]:
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


def _delete(ended: Sequence[Row]) -> Tx[None]:
    keys, ids = _array([str(row["key"]) for row in ended]), _array([row["id"] for row in ended])
    for name in ("purge_events", "purge_uses", "purge_inbox", "purge_runs"):
        yield from run(name, keys=keys)
    for name in ("purge_signals", "purge_doubts"):
        yield from run(name, ids=ids)


def _array(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def _info(row: Row) -> RunInfo:
    fields = dict(row)
    fields["labels"] = msgspec.json.decode(fields["labels"])
    fields["summary"] = msgspec.json.decode(fields["summary"])
    return RunInfo(**fields)
