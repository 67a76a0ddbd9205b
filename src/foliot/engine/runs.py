"""Starting and taking up runs: everything between a frozen definition and a driver at work."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from foliot.engine.base import Clock, Models, Silence, Watcher
from foliot.engine.driver import Driver
from foliot.engine.ids import new_run_id
from foliot.engine.keeper import Keeper
from foliot.engine.worker import identity, is_gone
from foliot.errors import Conflict, FoliotError
from foliot.kernel.codec import decode, encode, type_of
from foliot.kernel.events import Event, Fork, RunClaimed, RunCreated
from foliot.kernel.loop import apply, fold
from foliot.kernel.messages import Message, Text
from foliot.kernel.spec import RunSpec, decode_spec, digest, encode_spec
from foliot.kernel.state import State
from foliot.store.runs import Entry, Held, Journal, Lease, LeaseLost, NewRun, RunInfo
from foliot.tools.base import Toolbox

_messages = msgspec.json.Decoder(tuple[Message, ...])


class Runs:
    """The runs of one process. Safe for any number of concurrent ones; each is driven by one `Driver`."""

    def __init__(
        self,
        *,
        journal: Journal,
        models: Models,
        tools: Toolbox,
        watcher: Watcher | None = None,
        clock: Clock = time.time,
        worker: str | None = None,
        lease_seconds: float = 30.0,
        is_gone: Callable[[str | None], bool] = is_gone,
    ) -> None:
        """`is_gone` says whether a worker has certainly died, so that its runs can be taken before its leases end."""
        self.journal = journal
        self.tools = tools
        self.worker = worker or identity()
        self._models = models
        self._watcher = watcher or Silence()
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._is_gone = is_gone
        self._keeper = Keeper(journal, clock=clock, lease_seconds=lease_seconds)

    async def start(
        self,
        spec: RunSpec,
        input: Sequence[Message],
        *,
        run_id: str | None = None,
        history: Sequence[Message] = (),
        definitions: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        fork: Fork | None = None,
        tools: Toolbox | None = None,
        stream: bool = False,
    ) -> Driver:
        """Store a new run, held by this process. Raises `Conflict` when `run_id` is taken."""
        now = self._clock()
        run_id = run_id or new_run_id(now)
        frozen = encode_spec(spec)
        content = {digest(frozen): frozen}
        before = None
        if history:
            told = msgspec.json.encode(tuple(history))
            before = digest(told)
            content[before] = told
        state = State(spec, run_id, history)
        created = RunCreated(
            agent=spec.agent,
            spec=digest(frozen),
            input=tuple(input),
            namespace=spec.namespace,
            definitions=dict(definitions or {}),
            history=before,
            fork=fork,
        )
        facts: tuple[Event, ...] = (created, RunClaimed(1, self.worker, 1))
        lease = await self.journal.create(
            NewRun(
                id=run_id,
                namespace=spec.namespace,
                agent=spec.agent,
                spec=created.spec,
                created_at=now,
                parent=fork.run_id if fork else None,
                parent_seq=fork.seq if fork else None,
                labels=dict(labels or {}),
                content=content,
            ),
            _entries(state, facts, now),
            worker=self.worker,
            lease_until=now + self._lease_seconds,
        )
        assert lease is not None, "a run created with a worker is held by it"
        for seq, event in enumerate(facts, 1):
            self._watcher.recorded(run_id, seq, now, event)
        return self._driver(lease, state, tools, stream, claim=False)

    async def take(self, run_id: str, *, tools: Toolbox | None = None, stream: bool = False) -> Driver:
        """Take up a run that waits, or whose holder died.

        Raises `NotFound`; `Held`; `Conflict` when it has ended, which is a `LeaseLost` if it happened just now.
        """
        now = self._clock()
        until = now + self._lease_seconds
        try:
            lease = await self.journal.claim(run_id, worker=self.worker, now=now, until=until)
        except Held:
            info = await self.journal.get(run_id)
            if not self._is_gone(info.worker):
                raise
            # The holder was killed on this machine: waiting for its lease to run out would help nobody. By its epoch, so
            # that of several who find it dead one replaces it, and the others do not replace that one.
            lease = await self.journal.claim(run_id, worker=self.worker, now=now, until=until, dead=info.epoch)
        _, state = await self.load(run_id)
        if state.ended is not None:
            # This process slept past its new lease before it read on, and someone else has finished the run.
            raise LeaseLost(f"run {run_id} has been ended by another process")
        driver = self._driver(lease, state, tools, stream, claim=True)
        for signal in await self.journal.signals([run_id]):
            driver.deliver(signal)
        return driver

    async def drive(self, driver: Driver) -> State:
        """Drive to the end or the next wait, with the lease kept alive meanwhile. Raises `LeaseLost`."""
        with self._keeper.keep(driver):
            try:
                return await driver.drive()
            except asyncio.CancelledError:
                # This process will not go on with it: let another one do so at once.
                with contextlib.suppress(FoliotError):
                    await asyncio.shield(self.journal.append(driver.lease, [], phase="pending"))
                raise

    async def load(self, run_id: str, *, upto: int | None = None) -> tuple[RunInfo, State]:
        """The run and the fold of its journal (of the first `upto` events). Raises `NotFound`."""
        info = await self.journal.get(run_id)
        facts = await self.facts(run_id, limit=upto)
        if not facts or not isinstance(created := facts[0][1], RunCreated):
            raise Conflict(f"the journal of run {run_id} does not begin with its creation")
        spec = decode_spec(await self.journal.get_blob(info.spec))
        return info, fold(spec, run_id, facts, await self.history(created))

    async def facts(self, run_id: str, *, limit: int | None = None) -> list[tuple[float, Event]]:
        return [(entry.at, decode(entry.data)) for entry in await self.journal.read(run_id, limit=limit)]

    async def history(self, created: RunCreated) -> tuple[Message, ...]:
        """What was said before the run, in full."""
        return _messages.decode(await self.journal.get_blob(created.history)) if created.history else ()

    def local(self, run_id: str) -> Driver | None:
        """The driver of a run that this process is driving now."""
        return self._keeper.driver(run_id)

    async def close(self) -> None:
        await self._keeper.close()

    def _driver(self, lease: Lease, state: State, tools: Toolbox | None, stream: bool, *, claim: bool) -> Driver:
        return Driver(
            lease,
            state,
            journal=self.journal,
            models=self._models,
            tools=tools or self.tools,
            watcher=self._watcher,
            clock=self._clock,
            stream=stream,
            claim=claim,
            lease_seconds=self._lease_seconds,
        )


def user_message(text: str) -> Message:
    return Message("user", (Text(text),))


def _entries(state: State, facts: Iterable[Event], at: float) -> list[Entry]:
    entries: list[Entry] = []
    for event in facts:
        apply(state, event, at)
        entries.append(Entry(state.seq, at, type_of(event), encode(event)))
    return entries
