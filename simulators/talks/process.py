"""A process that speaks to sessions and answers them, with the real service, engine and store, until it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from foliot.engine.driver.driver import Driver
from foliot.engine.driver.ids import id_from
from foliot.engine.driver.journal import signal
from foliot.engine.driver.runs import Runs
from foliot.errors import Conflict, FoliotError
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, Usage
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import CancelRequested
from foliot.kernel.run.spec import Repairs, RunSpec
from foliot.models.base import ModelOverloaded, OnDelta
from foliot.sessions.base import NewTurn, TurnOptions
from foliot.sessions.service import SessionService
from foliot.store.journal.base import TERMINAL
from foliot.store.journal.database import SqlJournal
from foliot.store.sessions.base import Place
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from simulators.engine.process import Mortal
from simulators.engine.profiles import Profile
from simulators.engine.world import World
from simulators.workshop.cast import RULES, TOOLS
from simulators.workshop.database import Truth, Wire

LOOK_EVERY: Final = 1.0
SESSION: Final = "talk"
SPEC: Final = RunSpec(
    agent="helper",
    model="simulated",
    tools=RULES[:2],  # nothing that asks a person when it may have acted
    limits=Limits(max_steps=8),
    repairs=Repairs(model=50, model_backoff=0.2, model_max_backoff=1.0),
)


class Answerer:
    """The `Models` of one process: an answer calls a tool first, if the words say so, and then names its question."""

    def __init__(self, process: Mortal) -> None:
        self._process = process

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        process, world = self._process, self._process.world
        await process.occasion("before an answer")
        await asyncio.sleep(world.soon())
        if world.faulty and world.maybe(0.05):
            raise ModelOverloaded("the model is busy", retry_after=0.5)
        await process.occasion("after an answer")
        last = request.messages[-1]
        asked = next(message.text for message in reversed(request.messages) if message.role == "user")
        if last.role == "user" and "work" in asked:
            call = ToolCall(f"c-{len(request.messages)}", "save", '{"what": "x"}')
            return ModelResponse(Message("assistant", (call,)), Usage(10, 5), "tool_calls")
        return ModelResponse(Message("assistant", (Text(f"Answer to {asked}"),)), Usage(10, 5), "end")


class TalkProcess(Mortal):
    """One life of one process. It is its own `TurnRuns`."""

    def __init__(self, world: World, name: str, truth: Truth, profile: Profile) -> None:
        super().__init__(world, name)
        self.wire = Wire(self, truth)
        self.journal = SqlJournal(self.wire, clock=self.clock)
        certain = world.maybe(0.5)
        self.runs = Runs(
            journal=self.journal,
            models=Answerer(self),
            tools=Pipeline(TOOLS, PipelineParts(clock=self.clock, chance=world.chance.random)),
            clock=self.clock,
            worker=name,
            lease_seconds=profile.lease_seconds,
            is_gone=self.is_gone if certain else lambda worker: worker is None,
        )
        self.sessions = SessionService(self.wire, self.journal, self, clock=self.clock, new_id=self._new_id)
        self.runs.turn_settlement = self.sessions.keeper.settlement
        self._driving: dict[str, asyncio.Task[Any]] = {}

    def clock(self) -> float:
        """The time by the store."""
        return self.world.now

    def _new_id(self, now: float) -> str:
        return id_from(now, self.world.chance.getrandbits(50))

    async def serve(self) -> None:
        """Looks after what others left, until it is stopped."""
        try:
            while True:
                try:
                    await self.sessions.keeper.sweep(patience=self.world.chance.choice((0.0, 2.0)))
                    if turn := (await self.sessions.store.get(SESSION)).turn:
                        await self.wake(turn)
                except FoliotError as error:
                    self.world.note(self.name, "", f"looks later: {error.code}")
                await asyncio.sleep(LOOK_EVERY)
        finally:
            await self.sessions.close()
            for task in self._driving.values():
                task.cancel()
            await asyncio.gather(*self._driving.values(), return_exceptions=True)
            await self.runs.close()

    # --- the runs of turns, as the runtime drives them

    async def begin(self, turn: NewTurn) -> None:
        stored: asyncio.Future[None] = self.world.loop.create_future()

        async def drive() -> None:
            try:
                driver = await self.runs.start(
                    SPEC,
                    turn.input,
                    run_id=turn.run_id,
                    after=turn.after,
                    session=turn.session.id,
                    turn=turn.number,
                    inputs=turn.inputs,
                    identity=turn.identity,
                    in_transaction=turn.in_transaction,
                )
            except BaseException as error:
                if not stored.done():
                    stored.set_exception(error if isinstance(error, Exception) else Conflict("stopped"))
                return
            if not stored.done():
                stored.set_result(None)
            await self.runs.drive(driver)

        self._keep(turn.run_id, drive())
        await stored

    async def wake(self, run_id: str) -> None:
        """Lets a run hear what is stored for it; see `TurnRuns`."""
        try:
            driver = self.runs.local(run_id)
            if driver is not None and not driver.is_over:
                for each in await self.journal.signals([run_id]):
                    driver.deliver(each)
                return
            info = await self.journal.get(run_id)
            waits = info.phase == "waiting" and not await self.journal.signals([run_id])
            until = info.summary.get("waiting", {}).get("until")
            if info.phase in TERMINAL or (info.phase == "running" and not self.runs.is_left_alone(info)):
                return
            if not (waits and (until is None or until > self.clock())) and run_id not in self._driving:
                self._keep(run_id, self._resume(run_id))
        except FoliotError as error:
            self.world.note(self.name, run_id, f"cannot wake it: {error.code}")

    async def _resume(self, run_id: str) -> None:
        driver: Driver = await self.runs.take(run_id)
        await self.runs.drive(driver)

    async def cancel(self, run_id: str, *, by: str, reason: str, wait: bool = True) -> None:
        """Cancels a run; see `TurnRuns`. It does not wait: nobody here relies on it."""
        message = signal(run_id, CancelRequested(by, reason), self.clock(), signal_id=self._new_id(self.clock()))
        try:
            await self.journal.signal(message)
        except Conflict:
            return
        await self.wake(run_id)

    def agent_object(self, place: Place) -> None:
        """Returns None: the agent is declared, if anything of it is."""

    async def check(self, namespace: str, agent: str, model: str) -> None:
        """Raises nothing: there is one agent."""

    async def check_active(self, place: Place) -> None:
        """Raises nothing: the agent takes work."""

    async def check_turn(self, place: Place, options: TurnOptions, files: Sequence[str]) -> None:
        """Raises nothing: no turn has options."""

    async def check_compaction(self, place: Place, head: str) -> None:
        """Raises nothing: nobody compacts."""

    def _keep(self, run_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._driving[run_id] = task

        def done(ended: asyncio.Task[Any]) -> None:
            self._driving.pop(run_id, None)
            if ended.cancelled() or self.world.over:
                return
            error = ended.exception()
            if isinstance(error, FoliotError):
                self.world.note(self.name, run_id, f"gave up  {error.code}")
            elif error is not None:
                self.world.history.problems.append(f"{run_id}: {self.name} raised {error!r}")

        task.add_done_callback(done)
