"""Work that clients have asked for and stay to hear about: runs of agents in this process, tasks of systems by workers.

The client may leave at any moment. What it asked for does not end with the connection: it goes on, or is cancelled
when that was agreed on. A run that this process lets go when it stops is taken up again from its journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol

from foliot.engine.live.hub import Recorded
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound
from foliot.kernel.graph import events as t
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import Media, Message, Usage
from foliot.kernel.run import events as e
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.inside import Adjust
from foliot.runtime.results import RunResult
from foliot.runtime.runtime import Runtime
from foliot.server.audit import ActRecord
from foliot.server.runs.targets import WorkTarget
from foliot.server.streams.pieces import Asked, Ended, Piece, Rested, Teller, Worked, Wrote, usage_of
from foliot.store.journal.base import RunTaken
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command
from foliot.work.views.events import RunHappening, TaskHappening

VIA_LABEL: Final = "foliot.dev/via"
CALLER_LABEL: Final = "foliot.dev/caller"
REQUEST_LABEL: Final = "foliot.dev/request"
LOOK_EVERY: Final = 1.0


@dataclass(frozen=True, slots=True)
class ClientTurn:
    """One thing that a client says to a target. With the id of a run that exists, that run is gone on with.

    `after` is the run whose conversation goes on; else `history` is what was said before. `act` is the record of it,
    stored with a run or task that is new.
    """

    target: WorkTarget
    input: tuple[Message, ...]
    id: str
    history: tuple[Message, ...] = ()
    after: str = ""
    instructions: str = ""
    adjust: Adjust | None = None
    structured: bool = False
    by: str = ""
    identity: Identity = NOBODY
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    idempotency_key: str = ""
    act: ActRecord | None = None


class StartedTurn(Protocol):
    @property
    def id(self) -> str:
        """The id of the run, or the name of the task."""
        ...

    def pieces(self) -> AsyncIterator[Piece]:
        """Everything from the beginning; the last one is `Ended` or `Rested`. Raises `FoliotError`."""
        ...

    async def cancel(self, reason: str) -> None:
        """Ask it to end. One that has ended stays as it is."""
        ...


async def engage(runtime: Runtime, drives: BackgroundRuns, turn: ClientTurn) -> StartedTurn:
    """Begin, or go on with, what the turn asks for; durable on return. Raises `FoliotError` when it cannot begin."""
    if turn.target.kind == "system":
        return await TaskEngagement.begin(runtime, turn)
    return await RunEngagement.begin(runtime, drives, turn)


class RunEngagement:
    """One run of an agent."""

    def __init__(
        self, runtime: Runtime, drives: BackgroundRuns, run_id: str, *, structured: bool, by: str = "", after: int = 0
    ) -> None:
        """Pieces of the first `after` events were told to somebody before, and are left out."""
        self.id = run_id
        self._after = after
        self._runtime = runtime
        self._drives = drives
        self._structured = structured
        self._by = by
        self._watch = contextlib.ExitStack()
        self._reader = self._watch.enter_context(runtime.inside.watch(run_id))
        self._live = aiter(self._reader)

    @classmethod
    async def begin(cls, runtime: Runtime, drives: BackgroundRuns, turn: ClientTurn) -> RunEngagement:
        engagement = cls(runtime, drives, turn.id, structured=turn.structured, by=turn.by)
        target = turn.target

        async def drive() -> RunResult:
            try:
                return await runtime.inside.run(
                    f"{target.namespace}/{target.name}",
                    turn.input,
                    run_id=turn.id,
                    labels=turn.labels,
                    identity=turn.identity,
                    history=turn.history,
                    after=turn.after,
                    adjust=turn.adjust,
                    stream=True,
                    check=False,
                    in_transaction=turn.act.record if turn.act is not None else None,
                )
            except RunTaken:
                raise
            except Conflict:  # it was asked for before, and somebody has it
                return await _go_on(runtime, turn.id)

        await engagement._start(drive())
        return engagement

    @classmethod
    async def again(
        cls, runtime: Runtime, drives: BackgroundRuns, run_id: str, *, structured: bool, by: str = "", after: int = 0
    ) -> RunEngagement:
        """Go on with a run that waited, or just follow it. Raises `NotFound`."""
        engagement = cls(runtime, drives, run_id, structured=structured, by=by, after=after)
        await engagement._start(_go_on(runtime, run_id))
        return engagement

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields the pieces of the run, from the journal and live; see `StartedTurn`."""
        teller = Teller(self.id, structured=self._structured, after=self._after)
        try:
            # Whoever saw the first record misses nothing; others begin with what the journal has.
            if not isinstance(self._first, Recorded) or self._first.seq != 1:
                for piece in await self._recorded(teller):
                    yield piece
            else:
                teller.tell(self._first)  # that it was created, which is no piece
            async for item in self._live:
                for piece in teller.tell(item):
                    yield piece
            await self._task
            for piece in await self._recorded(teller):
                yield piece
        finally:
            self._watch.close()
        if teller.ended is None:
            yield teller.rest()

    async def cancel(self, reason: str) -> None:
        """Cancels the run; see `StartedTurn`."""
        with contextlib.suppress(Conflict, NotFound):
            await self._runtime.inside.cancel(self.id, by=self._by, reason=reason)

    async def _start(self, drive: Coroutine[Any, Any, RunResult]) -> None:
        """Return when the run is stored, so that whoever asked can be told its id."""
        self._task = self._drives.keep(self.id, drive)
        self._task.add_done_callback(lambda _: self._reader.close())
        try:
            self._first = await anext(self._live, None)  # or nothing comes
            if self._task.done() and not await _exists(self._runtime, self.id):
                await self._task  # raises why there is no run
        except BaseException:
            self._watch.close()
            raise

    async def _recorded(self, teller: Teller) -> list[Piece]:
        """Returns the pieces in the journal that were not sent yet: earlier ones, or those of another process."""
        return recorded(teller, await self._runtime.inside.runs.facts(self.id), self._after)


def recorded(teller: Teller, facts: Sequence[tuple[float, e.Event]], after: int = 0) -> list[Piece]:
    """The pieces of a journal behind its first `after` events, as far as they were not told yet."""
    told: list[Piece] = []
    for seq, (at, event) in enumerate(facts, 1):
        pieces = teller.tell(Recorded(teller.run_id, seq, at, event))
        told += pieces if seq > after else ()
    return told


async def _exists(runtime: Runtime, run_id: str) -> bool:
    return bool(await runtime.inside.runs.journal.read(run_id, limit=1))


async def _go_on(runtime: Runtime, run_id: str) -> RunResult:
    """Take the run up, or wait for whoever has it."""
    while True:
        next_change = runtime.inside.next_change()
        try:
            return await runtime.inside.resume(run_id, stream=True, check=False)
        except Conflict:  # held, or ended or let go this very moment
            await next_change()


class TaskEngagement:
    """One task of a system. Workers do its runs, wherever they are."""

    def __init__(
        self, runtime: Runtime, namespace: str, name: str, *, by: str = "", answered: frozenset[str] = frozenset()
    ) -> None:
        """`answered` are the ids of what was asked and has its answer, whether or not a worker has heard of it yet."""
        self._answered = answered
        self.namespace = namespace
        self.id = name
        self._tasking = runtime.inside.tasking
        self._by = by

    @classmethod
    async def begin(cls, runtime: Runtime, turn: ClientTurn) -> TaskEngagement:
        target = turn.target
        accepted = await runtime.inside.tasking.tasks.accept(
            Command(
                "system",
                target.name,
                target.namespace,
                name=turn.id,
                message=_as_text(turn),
                idempotency_key=turn.idempotency_key,
                labels=dict(turn.labels),
                extra_system_prompt=turn.instructions,
                spawned_by=turn.labels.get(VIA_LABEL, ""),
                by=turn.by,
                identity=turn.identity,
            ),
            in_transaction=turn.act.record_for if turn.act is not None else None,
        )
        return cls(runtime, target.namespace, accepted.task.name, by=turn.by)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields the pieces of the task's runs as they happen; see `StartedTurn`."""
        tellers: dict[str, Teller] = {}
        end: t.TaskEvent | None = None
        cursor: str | None = None
        stories = self._tasking.stories
        while True:
            seen = self._tasking.database.change_mark()
            info = await self._tasking.tasks.get(self.namespace, self.id)
            batch = await stories.happenings(self.namespace, self.id, cursor=cursor)
            cursor = batch.cursor
            for happening in batch.events:
                if isinstance(happening, TaskHappening):
                    end = happening.fact
                    continue
                for piece in _worked(tellers, happening):
                    yield piece
            usage = usage_of(teller.usage for teller in tellers.values())
            if info.phase in ENDED:
                for piece in _end(info.phase, end, usage):
                    yield piece
                return
            asked: list[Asked] = [
                each for teller in tellers.values() for each in teller.asked.values() if each.id not in self._answered
            ]
            if info.phase == "waiting" and asked:
                yield Rested(tuple(asked), "", usage)
                return
            await self._tasking.database.wait_for_change(seen, timeout=LOOK_EVERY)

    async def cancel(self, reason: str) -> None:
        """Cancels the task; see `StartedTurn`."""
        with contextlib.suppress(Conflict, NotFound):
            await self._tasking.tasks.cancel(self.namespace, self.id, by=self._by, reason=reason)


def _worked(tellers: dict[str, Teller], happening: RunHappening) -> list[Piece]:
    """Returns the pieces of a run among several: its start and its end, not its text."""
    run_id, agent = happening.run_id, happening.agent
    teller = tellers.setdefault(run_id, Teller(run_id))
    first = teller.seq == 0
    told = teller.tell(Recorded(run_id, happening.seq, happening.at, happening.fact))
    pieces: list[Piece] = []
    if first or isinstance(happening.fact, e.RunResumed):
        pieces.append(Worked(agent, run_id, "running"))
    pieces += (Worked(agent, run_id, piece.phase) for piece in told if isinstance(piece, Ended))
    return pieces


def _end(phase: str, last: t.TaskEvent | None, usage: Usage) -> list[Piece]:
    """`last` is the last fact of the task: how it ended."""
    match last:
        case t.TaskSucceeded(output=output):
            return [Wrote(1, output), Ended("succeeded", output, None, usage)]
        case t.TaskCancelled(reason=reason):
            return [Ended("cancelled", "", None, usage, error=reason or "cancelled", reason="cancelled")]
        case t.TaskFailed(code, reason, message):
            return [Ended("failed", "", None, usage, error=message, reason=reason, code=code)]
        case t.TaskDeadLettered(reason, message):
            return [Ended("failed", "", None, usage, error=message, reason=reason)]
        case _:
            return [Ended("failed", "", None, usage, error=f"the task was {phase}", reason=phase)]


def _as_text(turn: ClientTurn) -> str:
    """Renders the input of a system's first agents: one text, with the conversation before it."""
    messages = (*turn.history, *turn.input)
    if any(isinstance(part, Media) for message in messages for part in message.parts):
        raise InvalidInput("a system takes text only", hint="send images and files to an agent")
    said = "\n\n".join(message.text for message in turn.input)
    before = "\n\n".join(f"{message.role}: {message.text}" for message in turn.history if message.text)
    return f"The conversation so far:\n\n{before}\n\nNow:\n\n{said}" if before else said


def derived_id(*names: str) -> str:
    """An id that is the same for the same names, and says nothing of them."""
    return sha256("\x00".join(names).encode()).hexdigest()[:26]


def failure_of(ended: Ended) -> FoliotError | None:
    """The error that a failed end is, for protocols that report it as one."""
    if ended.phase == "succeeded":
        return None
    return FoliotError(ended.error or f"the run was {ended.phase}", reason=ended.reason or ended.phase)
