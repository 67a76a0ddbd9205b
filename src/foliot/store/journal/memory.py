"""A journal in memory: for the simulator, for tests, and for runs that need not outlive the process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from foliot.errors import Conflict, NotFound
from foliot.kernel.run.codec import NAMES
from foliot.kernel.run.events import InputReceived
from foliot.store.journal.base import (
    ASKING,
    CONVERSATION_LABEL,
    NAMED,
    TERMINAL,
    USER_LABEL,
    CancelPending,
    Entry,
    JournalConflict,
    Lease,
    LeaseLost,
    NewRun,
    ParentCancelled,
    Phase,
    Renewal,
    RunFilter,
    RunHeld,
    RunInfo,
    Signal,
    SignalsPending,
    TransactionBody,
    is_second,
)
from foliot.store.journal.cancelling import CANCEL, ends_with_parent


@dataclass
class _Run:
    info: RunInfo
    entries: list[Entry] = field(default_factory=list[Entry])
    signals: dict[str, Signal] = field(default_factory=dict[str, Signal])
    content: set[str] = field(default_factory=set[str])
    conversation: str = ""
    root: str | None = None
    cancelling: int = 0  # 1 until who drives it has heard that it is to end, then 2
    left_seq: int = 0  # as the column of this name


INPUT: Final = NAMES[InputReceived]


class MemoryJournal:
    """A `Journal` that does each thing in one step: nothing can come in between.

    `takes_turns` gives everyone else a turn of the event loop after each append, as a journal on a disk does: without
    it, a run whose model and tools never wait would hold the loop from beginning to end.
    """

    def __init__(self, *, takes_turns: bool = False) -> None:
        self._takes_turns = takes_turns
        self._runs: dict[str, _Run] = {}
        self._blobs: dict[str, bytes] = {}

    async def create(
        self,
        run: NewRun,
        first: Sequence[Entry],
        *,
        worker: str | None = None,
        lease_until: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Lease | None:
        assert in_transaction is None, "what is recorded needs a database"
        if run.id in self._runs:
            raise Conflict(f"there is already a run {run.id!r}")
        above = self._runs.get(run.parent or "") if run.parent_seq is None else None
        if above is not None and above.cancelling:
            raise ParentCancelled(f"run {run.parent} was cancelled: nothing is started below it")
        conversation = self._joined(run.after, run.namespace) if run.after is not None else ""
        info = RunInfo(
            id=run.id,
            key=len(self._runs) + 1,
            namespace=run.namespace,
            agent=run.agent,
            phase="running" if worker else "pending",
            spec=run.spec,
            epoch=1 if worker else 0,
            worker=worker,
            lease_until=lease_until,
            created_at=run.created_at,
            updated_at=run.created_at,
            parent=run.parent,
            parent_seq=run.parent_seq,
            labels=run.labels,
            summary={},
        )
        told = b" ".join(data for name, data in run.content.items() if name != run.spec)
        named = {found.decode() for found in NAMED.findall(told)}
        content = {*run.content, *named}
        self._runs[run.id] = _Run(info, list(first), content=content, conversation=conversation, root=run.root)
        self._blobs.update(run.content)
        return _lease(self._runs[run.id]) if worker else None

    async def claim(self, run_id: str, *, worker: str, now: float, until: float, dead: int | None = None) -> Lease:
        run = self._get(run_id)
        info = run.info
        if info.phase in TERMINAL:
            raise Conflict(f"run {run_id} has ended ({info.phase})")
        if info.lease_until is not None and info.lease_until >= now and info.epoch != dead:
            raise RunHeld(f"run {run_id} is held by {info.worker}")
        last = len(run.entries)
        if abs(run.left_seq) != last:
            run.left_seq = last if info.worker is None else -last
        run.info = msgspec.structs.replace(
            info, phase="running", epoch=info.epoch + 1, worker=worker, lease_until=until, updated_at=now
        )
        return _lease(run)

    async def renew(self, leases: Sequence[Lease], *, until: float) -> Renewal:
        lost: set[str] = set()
        for lease in leases:
            run = self._runs.get(lease.run_id)
            if run is None or (run.info.epoch, run.info.worker) != (lease.epoch, lease.worker):
                lost.add(lease.run_id)
            else:
                run.info = msgspec.structs.replace(run.info, lease_until=max(until, run.info.lease_until or 0.0))
        return Renewal(lost)

    async def append(
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
    ) -> None:
        assert in_transaction is None, "tasks need a database"
        run = self._get(lease.run_id)
        if (run.info.epoch, run.info.worker) != (lease.epoch, lease.worker):
            raise LeaseLost(f"run {lease.run_id} is no longer held by {lease.worker}")
        expected = len(run.entries) + 1
        if [entry.seq for entry in entries] != list(range(expected, expected + len(entries))):
            raise JournalConflict(f"run {lease.run_id} is at seq {expected - 1}")
        heard = any(entry.type == CANCEL for entry in entries)
        if phase is None and run.cancelling == 1 and not heard:
            if any(each.type == CANCEL and key not in taken for key, each in run.signals.items()):
                raise CancelPending(f"run {lease.run_id} is cancelled, and has not heard it")
            heard = True
        if phase == "waiting" and set(run.signals) - set(taken):
            raise SignalsPending(f"run {lease.run_id} has signals to take")
        if phase == "succeeded" and any(each.type == INPUT for key, each in run.signals.items() if key not in taken):
            raise SignalsPending(f"run {lease.run_id} was told something before it could end")
        run.entries.extend(entries)
        if heard:
            run.cancelling = 2
        for signal_id in taken:
            run.signals.pop(signal_id, None)
        if phase is not None:
            held = phase == "running"
            if phase in TERMINAL:
                run.signals.clear()
            run.info = msgspec.structs.replace(
                run.info,
                phase=phase,
                epoch=run.info.epoch if held else run.info.epoch + 1,
                worker=run.info.worker if held else None,
                lease_until=run.info.lease_until if held else None,
                updated_at=entries[-1].at if entries else run.info.updated_at,
                summary=run.info.summary if summary is None else summary,
            )
        if self._takes_turns:
            await asyncio.sleep(0)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        run = self._runs.get(run_id)
        if run is None:
            return []
        return run.entries[after : None if limit is None else after + limit]

    async def turns(self, run_id: str, *, first: str = "") -> dict[str, list[Entry]]:
        head = self._runs.get(run_id)
        if head is None or not head.conversation:
            return {}
        since = self._runs[first].info.key if first in self._runs else 0
        return {
            turn_id: list(turn.entries)
            for turn_id, turn in self._runs.items()
            if turn.conversation == head.conversation and since <= turn.info.key < head.info.key
        }

    async def get(self, run_id: str) -> RunInfo:
        return self._get(run_id).info

    async def find(self, prefix: str) -> RunInfo:
        found = [run.info for run_id, run in self._runs.items() if run_id.startswith(prefix)]
        if not found:
            raise NotFound(f"there is no run {prefix!r}")
        if len(found) > 1:
            raise Conflict(f"{len(found)} runs start with {prefix!r}")
        return found[0]

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
        infos = [run.info for run in reversed(self._runs.values())]
        last = before if isinstance(before, int) else next((info.key for info in infos if info.id == before), 0)
        chosen = [
            info
            for info in infos
            if (namespace is None or info.namespace == namespace)
            and (agent is None or info.agent == agent)
            and (not phases or info.phase in phases)
            and (before is None or info.key < last)
            and (
                private_to is None or CONVERSATION_LABEL not in info.labels or info.labels.get(USER_LABEL) == private_to
            )
        ]
        return chosen[:limit]

    async def keys(self, wanted: RunFilter, *, limit: int, before: int | None = None) -> list[int]:
        return [info.key for info in await self.list(**wanted._asdict(), limit=limit, before=before)]

    async def of_keys(self, keys: Sequence[int]) -> list[RunInfo]:
        return [run.info for run in reversed(self._runs.values()) if run.info.key in set(keys)]

    async def alike(self, prefix: str, *, namespaces: Sequence[str] = (), limit: int) -> list[RunInfo]:
        chosen = [run.info for _, run in sorted(self._runs.items()) if run.info.id.startswith(prefix)]
        return [info for info in chosen if not namespaces or info.namespace in namespaces][:limit]

    async def many(self, run_ids: Sequence[str]) -> list[RunInfo]:
        return [run.info for run in self._runs.values() if run.info.id in set(run_ids)]

    async def delegated(self, root: str) -> int:
        return sum(run.root == root and run.info.parent is not None for run in self._runs.values())

    async def last_turn(self, run_id: str) -> str:
        turns = [run for run in self._runs.values() if run.conversation == run_id and run.info.parent is not None]
        return max(turns, key=lambda run: run.info.key).info.id if turns else run_id

    async def asking(
        self, *, namespaces: Sequence[str] = (), after: int = 0, limit: int
    ) -> list[tuple[RunInfo, list[Entry]]]:
        chosen = [
            run
            for run in self._runs.values()
            if run.info.key > after and (not namespaces or run.info.namespace in namespaces)
        ]
        return _asking(chosen, "waiting")[:limit]

    async def asking_below(self, run_id: str) -> list[tuple[RunInfo, list[Entry]]]:
        below = {run_id}
        for run in self._runs.values():  # a run is stored before those that it starts
            if run.info.is_child and run.info.parent in below:
                below.add(run.info.id)
        return _asking([run for run in self._runs.values() if run.info.id in below], "waiting", "running")

    async def waiting_below(self, root: str) -> list[RunInfo]:
        return [run.info for run in self._runs.values() if run.root == root and run.info.phase == "waiting"]

    async def signal(
        self, signal: Signal, *, after: int | None = None, in_transaction: TransactionBody | None = None
    ) -> None:
        assert in_transaction is None, "what is recorded needs a database"
        run = self._get(signal.run_id)
        if run.info.phase in TERMINAL:
            raise Conflict(f"run {signal.run_id} has ended ({run.info.phase})")
        if after is not None:
            since = [entry.data for entry in run.entries[after:] if entry.type == signal.type]
            waits = [run.signals[signal.id].data] if signal.id in run.signals else []
            if is_second(signal, [*since, *waits]):
                return
        run.signals.setdefault(signal.id, signal)
        if signal.type == CANCEL:
            self._cancel(run, signal.at)

    def _cancel(self, run: _Run, at: float) -> None:
        """Has a run begin nothing before it hears that it is to end, nor any that it has started."""
        if run.info.phase not in TERMINAL:
            run.cancelling = run.cancelling or 1
        for child in self._runs.values():
            if child.info.is_child and child.info.parent == run.info.id:
                if child.info.phase not in TERMINAL:
                    stop = ends_with_parent(child.info.id, at)
                    child.signals.setdefault(stop.id, stop)
                self._cancel(child, at)

    async def signals(self, run_ids: Sequence[str]) -> list[Signal]:
        return [signal for run_id in run_ids if run_id in self._runs for signal in self._runs[run_id].signals.values()]

    async def put_blob(self, data: bytes, *, run_id: str = "") -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if run_id in self._runs:
            self._runs[run_id].content.add(digest)
        self._blobs[digest] = data
        return digest

    async def put_blobs(self, contents: Sequence[bytes], *, run_id: str = "") -> Sequence[str]:
        return [await self.put_blob(data, run_id=run_id) for data in contents]

    async def get_blob(self, digest: str, *, run_id: str = "") -> bytes:
        if run_id and not any(digest in run.content for run in self._turns_with(run_id)):
            raise NotFound(f"run {run_id} has no content {digest}")
        try:
            return self._blobs[digest]
        except KeyError:
            raise NotFound(f"there is no stored content {digest}") from None

    def _turns_with(self, run_id: str) -> list[_Run]:
        """Returns a run and the other turns of its conversation."""
        asked = self._runs.get(run_id)
        if asked is None or not asked.conversation:
            return [] if asked is None else [asked]
        return [run for run in self._runs.values() if run.conversation == asked.conversation]

    async def purge(self, *, ended_before: float, limit: int = 1000) -> int:
        alive = {
            run.conversation
            for run in self._runs.values()
            if run.conversation and (run.info.phase not in TERMINAL or run.info.updated_at >= ended_before)
        }
        ended = [
            run_id
            for run_id, run in self._runs.items()
            if run.info.phase in TERMINAL and run.info.updated_at < ended_before and run.conversation not in alive
        ][:limit]
        for run_id in ended:
            del self._runs[run_id]
        kept = {digest for run in self._runs.values() for digest in run.content}
        self._blobs = {digest: data for digest, data in self._blobs.items() if digest in kept}
        return len(ended)

    def _joined(self, run_id: str, namespace: str) -> str:
        known = self._runs.get(run_id)
        if known is None or known.info.namespace != namespace:
            raise NotFound(f"there is no run {run_id!r} to continue", hint="`foliot runs` lists them")
        known.conversation = known.conversation or run_id
        return known.conversation

    async def forget(self, run_id: str) -> None:
        run = self._get(run_id)
        if run.info.phase not in TERMINAL:
            raise Conflict(f"run {run_id} has not ended ({run.info.phase})", hint="cancel it first")
        for later in self._runs.values():
            if run.conversation and later.conversation == run.conversation and later.info.key > run.info.key:
                raise Conflict(
                    f"run {later.info.id} continues the conversation of run {run_id}", hint="delete that one first"
                )
        del self._runs[run_id]

    def _get(self, run_id: str) -> _Run:
        try:
            return self._runs[run_id]
        except KeyError:
            raise NotFound(f"there is no run {run_id!r}") from None


def _asking(runs: Sequence[_Run], *phases: Phase) -> list[tuple[RunInfo, list[Entry]]]:
    return [
        (run.info, [each for each in run.entries if each.type in ASKING])
        for run in runs
        if run.info.phase in phases and run.info.summary.get("waiting", {}).get("reason") in ("input", "approval")
    ]


def _lease(run: _Run) -> Lease:
    info = run.info
    return Lease(info.id, info.key, info.epoch, info.worker or "", info.lease_until or 0.0, released=run.left_seq > 0)
