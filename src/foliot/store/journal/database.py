"""Run journals in a database. One append is one small transaction; concurrent ones share a commit.

Beside it: who may write (leases.py), how events lie in the store (stored_events.py), what they refer to
(store/content.py), and how runs are forgotten (purge.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from foliot.common.threads import unhurried
from foliot.errors import Conflict, NotFound
from foliot.kernel.inbox import CANCELLED, RUN_ENDED
from foliot.kernel.run.codec import NAMES
from foliot.kernel.run.events import InputReceived
from foliot.kernel.run.spec import digest as content_digest
from foliot.store.base import Database
from foliot.store.content import keep_alive, keep_content, keep_definitions, keep_for_run, put_anew
from foliot.store.journal.base import (
    ALL_PHASES,
    CONVERSATION_LABEL,
    NAMED,
    TERMINAL,
    USER_LABEL,
    Entry,
    Lease,
    LockingBody,
    NewRun,
    ParentCancelled,
    Phase,
    Renewal,
    RunFilter,
    RunInfo,
    Signal,
    SignalsPending,
    TransactionBody,
    is_second,
)
from foliot.store.journal.cancelling import CANCEL, cancel_locked, hear, hears_all, lock_with_those_below
from foliot.store.journal.chain import JournalChanged, changed_journal
from foliot.store.journal.leases import claim, lock_runs, pass_fence, renew
from foliot.store.journal.packing import packed, pin_of
from foliot.store.journal.purge import forget_run, purge, purge_content
from foliot.store.journal.stored_events import (
    LARGE,
    Repeat,
    StoredEvents,
    entry_of,
    joined,
    names_in,
    repeat_of,
    stored_events,
)
from foliot.store.key_pages import NEWEST, KeySource, key_source, keys_array, matching_keys
from foliot.store.portions import Portions
from foliot.store.queue import queue
from foliot.store.transaction import Guarded, Planned, Row, Tx, many, one, rows, run

# A long journal is read so many events at a time, a few milliseconds of work.
EVENTS_AT_ONCE: Final = 500
INPUT: Final = NAMES[InputReceived]


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
        key, epoch, queued, released = await self._db.write(claim, run_id, worker, now, until, dead)
        return Lease(run_id, key, epoch, worker, until, queued, released)

    async def renew(self, leases: Sequence[Lease], *, until: float) -> Renewal:
        return await self._db.write(renew, leases, until)

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
        return Entry(row["seq"], row["at"], row["type"], data, row["link"])

    async def _whole(self, row: Row, run_id: str, before: Sequence[Entry]) -> bytes:
        content: dict[str, bytes] = {}
        for name in names_in(row["blob"]):
            repeat = repeat_of(name)
            content[name] = await (self.get_blob(name) if repeat is None else self._repeated(repeat, run_id, before))
        data = entry_of(row).data
        return await unhurried(sum(map(len, content.values())), joined, data, row["blob"], content)

    async def _repeated(self, repeat: Repeat, run_id: str, before: Sequence[Entry]) -> bytes:
        """Returns a text of an earlier event of the run, which may be among those that were read `before`."""
        if before and before[0].seq <= repeat.seq <= before[-1].seq:
            earlier = before[repeat.seq - before[0].seq]
        elif found := await self.read(run_id, after=repeat.seq - 1, limit=1):
            (earlier,) = found
        else:
            raise changed_journal(run_id, repeat.seq)
        return repeat.text_in(earlier.data)

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
        last = await self._key(before) if isinstance(before, str) else before
        wanted = RunFilter(namespace, agent, phases, private_to)
        return await self.of_keys(await self.keys(wanted, limit=limit, before=last))

    async def keys(self, wanted: RunFilter, *, limit: int, before: int | None = None) -> list[int]:
        user = wanted.private_to
        narrow = {
            "private": "" if user is None else f'"{CONVERSATION_LABEL}":',
            "own": "" if user is None else msgspec.json.encode({USER_LABEL: user}).decode()[1:-1],
        }
        namespace, agent, phases = wanted.namespace, wanted.agent, set(wanted.phases or ALL_PHASES)
        walks = _walks(namespace, agent, phases, narrow)
        match = {"namespace": namespace or "", "agent": agent or "", "phases": _array(sorted(phases))}
        matching = KeySource("run_keys_matching", match) if len(walks) > 1 else None
        last = NEWEST if before is None else before
        return await matching_keys(self._db, walks, matching, before=last, count=min(limit, NEWEST))

    async def of_keys(self, keys: Sequence[int]) -> list[RunInfo]:
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
        return await self._with_asked(
            await self._db.read("run_asking", namespaces=_array(namespaces), after=after, count=limit)
        )

    async def asking_below(self, run_id: str) -> list[tuple[RunInfo, list[Entry]]]:
        return await self._with_asked(await self._db.read("run_asking_below", id=run_id))

    async def waiting_below(self, root: str) -> list[RunInfo]:
        return [_info(row) for row in await self._db.read("run_waiting_below", root=root)]

    async def _with_asked(self, found: Sequence[Row]) -> list[tuple[RunInfo, list[Entry]]]:
        asking: dict[int, tuple[RunInfo, list[Entry]]] = {row["key"]: (_info(row), []) for row in found}
        if asking:
            for row in await self._db.read("event_asked", keys=_array([str(key) for key in asking])):
                asking[row["run"]][1].append(await self._entry(row))
        return [*asking.values()]

    async def signal(
        self, signal: Signal, *, after: int | None = None, in_transaction: TransactionBody | None = None
    ) -> None:
        await self._db.write(_signal, signal, after, in_transaction)

    async def signals(self, run_ids: Sequence[str]) -> list[Signal]:
        if not run_ids:
            return []
        found = await self._db.read("signal_list", run_ids=msgspec.json.encode(list(run_ids)).decode())
        return [Signal(row["id"], row["run_id"], row["at"], row["type"], row["data"]) for row in found]

    async def put_blob(self, data: bytes, *, run_id: str = "") -> str:
        (name,) = await self.put_blobs([data], run_id=run_id)
        return name

    async def put_blobs(self, contents: Sequence[bytes], *, run_id: str = "") -> Sequence[str]:
        named = await unhurried(sum(map(len, contents)), _named, contents)
        if named:
            await self._db.write(put_anew, dict(named), self._clock(), run_id)
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
        return await purge(self._db, ended_before=ended_before, limit=limit, portions=portions)

    async def purge_content(self, *, before: float) -> None:
        """Forgets content that nobody refers to and that was not used since a time."""
        await purge_content(self._db, before=before)

    async def forget(self, run_id: str) -> None:
        await self._db.write(forget_run, run_id)


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
    (key,) = yield from create_runs([(new, first)], new.created_at, worker=worker, lease_until=lease_until)
    if in_transaction is not None:
        yield from in_transaction()
    return key


class _Draft(NamedTuple):
    """A run that is about to be stored. `told` is the content that it brings along, but for its spec."""

    new: NewRun
    conversation: str | None
    pin: bytes
    told: Mapping[str, bytes]
    events: StoredEvents


def create_runs(
    runs: Sequence[tuple[NewRun, Sequence[Entry]]],
    at: float,
    *,
    worker: str | None = None,
    lease_until: float | None = None,
    definitions: Mapping[str, bytes] = {},
) -> Tx[list[int]]:
    """Stores new runs, each with its first events, as part of a transaction; returns their keys.

    All at once, because content is added in one order (see store/content.py), however many runs there are: that is why
    `definitions` that something else of the transaction is pinned to are kept here too. Raises `Conflict`, `NotFound`.
    """
    drafts: list[_Draft] = []
    for new, first in runs:
        above, conversation = (yield from _above(new)), None
        if new.after is not None:
            conversation = yield from _joined(new.after, new, above)
        elif above:
            _check_above((yield from lock_runs(above)), above)
        pin = pin_of(first[0].data) if first else b""
        told = {name: data for name, data in new.content.items() if name != new.spec}
        drafts.append(_Draft(new, conversation, pin, told, stored_events(first, pin)))
    content: dict[str, bytes] = {}
    for draft in drafts:
        content |= {**draft.told, **draft.events.content}
    yield from keep_content(content, at)
    pins = yield from _pinned(drafts, definitions, at)
    keys: list[int] = []
    for draft, pin_key in zip(drafts, pins, strict=True):
        keys.append((yield from _create_run(draft, pin_key, worker, lease_until)))
    return keys


def _create_run(draft: _Draft, pin: int, worker: str | None, lease_until: float | None) -> Tx[int]:
    new, events = draft.new, draft.events
    row = yield from one(
        "run_create",
        id=new.id,
        namespace=new.namespace,
        agent=new.agent,
        phase="running" if worker else "pending",
        pin=pin,
        epoch=1 if worker else 0,
        last=len(events.rows),
        worker=worker,
        lease_until=lease_until,
        created_at=new.created_at,
        parent=new.parent,
        parent_seq=new.parent_seq,
        labels=msgspec.json.encode(new.labels).decode(),
        root=new.root,
        conversation=draft.conversation,
    )
    if row is None:
        raise Conflict(f"there is already a run {new.id!r}")
    key: int = row["key"]
    used = {*draft.told, *events.content}
    for data in draft.told.values():  # what was said before the run may name results that were kept whole
        used |= {each.decode() for each in NAMED.findall(data)}
    yield from many("blob_use", [{"digest": name, "run": key} for name in sorted(used)])
    yield from many("event_add", [(key, *event) for event in events.rows])
    return key


def _pinned(drafts: Sequence[_Draft], definitions: Mapping[str, bytes], at: float) -> Tx[list[int]]:
    """Returns the key of what each run is pinned to, which owns its spec; stored by the first run that says it."""
    names = [content_digest(b"%b %b" % (draft.new.spec.encode(), draft.pin)) for draft in drafts]
    wanted = dict(sorted(zip(names, drafts, strict=True), key=itemgetter(0)))
    keys: dict[str, int] = {}
    needed = dict(definitions)
    for name, draft in wanted.items():
        if (row := (yield from one("run_pin_find", digest=name))) is not None:
            keys[name] = row["key"]
        spec = draft.new.spec
        if row is not None and row["stored"]:
            continue
        if (data := draft.new.content.get(spec)) is not None:
            needed[spec] = data
        else:
            yield from keep_alive(spec)
    yield from keep_definitions(needed, at)
    while missing := [name for name in wanted if name not in keys]:
        added = [{"digest": name, "spec": wanted[name].new.spec, "data": wanted[name].pin} for name in missing]
        yield from many("run_pin_add", added)
        for name in missing:
            if (row := (yield from one("run_pin_find", digest=name))) is not None:
                keys[name] = row["key"]
    return [keys[name] for name in names]


def _joined(run_id: str, new: NewRun, beside: Sequence[int]) -> Tx[str]:
    """Returns the conversation of the run that a new one continues. Raises `NotFound`.

    Its first turn is locked, because whoever forgets conversations begins there; and the runs `beside` with it.
    """
    ends = yield from one("conversation_ends", id=run_id, namespace=new.namespace)
    keys: set[int] = set() if ends is None else {ends["first_key"], ends["key"]}
    found = yield from lock_runs(sorted({*keys, *beside}))
    if ends is None or not keys <= {row["key"] for row in found}:
        raise NotFound(f"there is no run {run_id!r} to continue", hint="`foliot runs` lists them")
    _check_above(found, beside)
    yield from run("conversation_join", key=ends["key"])
    return ends["first_id"]


def _above(new: NewRun) -> Tx[tuple[int, ...]]:
    """Returns the key of the run that starts a new one, if it is there. A fork is started by nobody."""
    if new.parent is None or new.parent_seq is not None:
        return ()
    row = yield from one("run_key", id=new.parent)
    return () if row is None else (row["key"],)


def _check_above(found: Sequence[Row], above: Sequence[int]) -> None:
    """Raises `ParentCancelled` when a run `above`, which is locked by now, was told to end."""
    for row in found:
        if row["key"] in above and row["cancelling"] is not None:
            raise ParentCancelled(f"run {row['id']} was cancelled: nothing is started below it")


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
    if taken:
        yield from hear(lease, entries)
    yield from pass_fence(lease, entries, phase, summary, partial(hears_all, lease, taken))
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
    elif due is None and phase == "pending":
        yield from queue.hand_back(lease.key)
    else:
        yield from queue.let_go(lease.key, due)
    if in_transaction is not None:
        yield from in_transaction()


def _add_events(key: int, entries: Sequence[Entry]) -> Tx[None]:
    events = stored_events(entries)
    if events.content:
        yield from keep_for_run(key, events.content, entries[-1].at)
    yield from many("event_add", [(key, *event) for event in events.rows])


def _advance(lease: Lease, entries: Sequence[Entry]) -> Tx[None]:
    """The append of almost every step: nothing but facts."""
    yield from pass_fence(lease, entries, None, None)
    yield from _add_events(lease.key, entries)


def _plan_advance(lease: Lease, entries: Sequence[Entry]) -> Planned | None:
    key, after, last = lease.key, entries[0].seq - 1, entries[-1].seq
    if last - after != len(entries):
        return None
    added: list[tuple[Any, ...]] = []
    for entry in entries:
        data = entry.data
        if len(data) > LARGE:
            return None
        added.append((key, entry.seq, entry.at, entry.type, packed(entry.type, data), None, entry.link))
    return Planned((last, key, lease.epoch, lease.worker, after), added)


_ADVANCE = Guarded(_advance, guard="run_advance", add="event_add", plan=_plan_advance)


def _walks(
    namespace: str | None, agent: str | None, phases: set[Phase], narrow: Mapping[str, Any]
) -> list[list[KeySource]]:
    """Returns the queries that find runs by each of the filters alone."""
    where = narrow if namespace is None else {**narrow, "namespace": namespace}
    walks: list[list[KeySource]] = []
    if agent:
        walks.append([key_source("run_keys_of_agent", {**where, "agent": agent})])
    if phases < set(ALL_PHASES):
        walks.append([key_source("run_keys_in_phases", {**where, "phases": _array(sorted(phases))})])
    if namespace is None:
        # Of what is frequent, enough is soon met among the newest runs of all namespaces.
        return [[KeySource("run_keys_everywhere", narrow)], *walks]
    return walks or [[KeySource("run_keys", where)]]


def _signal(signal: Signal, after: int | None, in_transaction: TransactionBody | None) -> Tx[None]:
    """Leave a signal. A run that is being let go right now is waited for: either it sees the signal, or it is woken."""
    if isinstance(in_transaction, LockingBody):
        yield from in_transaction.locks()
    new = yield from add_signal(signal)
    if after is not None and is_second(signal, (yield from _decisions_since(signal, after, waits=not new))):
        if new:
            yield from run("signal_remove", run_id=signal.run_id, id=signal.id)
        return
    if in_transaction is not None and new:
        yield from in_transaction()


def _decisions_since(signal: Signal, after: int, *, waits: bool) -> Tx[list[bytes]]:
    """Returns what a run has recorded since of the type of a signal, and with `waits` the one of its id that is there.

    The run is locked: what waits is recorded before or after this.
    """
    found: list[bytes] = []
    while read := (yield from rows("event_read", id=signal.run_id, after=after, count=EVENTS_AT_ONCE)):
        for row in read:
            if row["type"] == signal.type:
                found.append((yield from _whole_event(signal.run_id, row)))
        after = read[-1]["seq"]
    if waits:
        listed = yield from rows("signal_list", run_ids=_array([signal.run_id]))
        found += [row["data"] for row in listed if row["id"] == signal.id]
    return found


def _whole_event(run_id: str, row: Row) -> Tx[bytes]:
    """Returns the event of a row with the texts that stand apart from it."""
    if not row["blob"]:
        return entry_of(row).data
    content: dict[str, bytes] = {}
    for name in names_in(row["blob"]):
        if (repeat := repeat_of(name)) is None:
            found = yield from one("blob_get", digest=name)
            content[name] = b"" if found is None else found["data"]
        else:
            earlier = yield from one("event_read", id=run_id, after=repeat.seq - 1, count=1)
            content[name] = b"" if earlier is None else repeat.text_in((yield from _whole_event(run_id, earlier)))
    return joined(entry_of(row).data, row["blob"], content)


def add_signal(signal: Signal) -> Tx[bool]:
    """Leaves a signal, as part of a larger transaction; False when there was one of this id. Raises as `signal`."""
    there = yield from one("run_get", id=signal.run_id)
    found = (yield from lock_runs([there["key"]])) if there is not None else []
    if not found:
        raise NotFound(f"there is no run {signal.run_id!r}", hint="`foliot runs` lists them")
    phase = found[0]["phase"]
    if phase in TERMINAL:
        raise Conflict(f"run {signal.run_id} has ended ({phase})")
    below: list[Row] = []
    if signal.type == CANCEL:
        _, below = yield from lock_with_those_below([found[0]["key"]])  # before anything is changed: it may be refused
    new = yield from run("signal_add", **msgspec.structs.asdict(signal))
    if signal.type == CANCEL:
        yield from cancel_locked(found, below, signal.at)
    if phase in ("waiting", "pending"):
        yield from queue.wake(signal.run_id, signal.at)
    return bool(new)


def _named(contents: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(content_digest(data), data) for data in contents]


def _array(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def _info(row: Row) -> RunInfo:
    fields = dict(row)
    fields["labels"] = msgspec.json.decode(fields["labels"])
    fields["summary"] = msgspec.json.decode(fields["summary"])
    return RunInfo(**fields)
