"""The processes of a workshop: workers that live and die, and clients that hand in tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foliot.engine.driver.ids import id_from
from foliot.engine.driver.runs import Runs
from foliot.errors import FoliotError
from foliot.kernel.run.spec import RunSpec
from foliot.store.journal.database import SqlJournal
from foliot.store.queue.placement import Offer
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import Bundles
from foliot.work.tasks.service import TaskService
from foliot.work.worker.performer import TaskPerformer
from foliot.work.worker.worker import LookPace, Worker
from simulators.engine.process import Mortal
from simulators.engine.world import World
from simulators.workshop.cast import TOOLS, Thinkers, Troupe
from simulators.workshop.database import Truth, Wire
from simulators.workshop.profiles import ShopProfile
from simulators.workshop.transport import Broker, UnsureTransport

CUT_LOOK_EVERY = 2.0


class Colleague(Mortal):
    """A process on the shared database: its own wire, its own clock, its own end of the transport."""

    def __init__(self, world: World, name: str, truth: Truth, broker: Broker, profile: ShopProfile) -> None:
        super().__init__(world, name)
        self.profile = profile
        self.skew = world.chance.choice((0.0, 0.5, 1.0, -1.0)) * profile.skew
        self.wire = Wire(self, truth)
        self.journal = SqlJournal(self.wire, clock=self.clock)
        self.bundles = Bundles(self.journal)
        self.transport = UnsureTransport(self, broker)
        self.tasks = TaskService(
            self.wire, self.bundles, Troupe(), self.transport, clock=self.clock, new_id=self._new_id
        )

    def _new_id(self, now: float) -> str:
        return id_from(now, self.world.chance.getrandbits(50))

    def clock(self) -> float:
        """The time by this machine's clock."""
        return self.world.now + self.skew

    def lease_clock(self) -> float:
        """The database's time, as the store gives it to every process."""
        return self.world.now

    async def disturb(self) -> None:
        """Now and then the wire is cut, and the clock set."""
        world, profile = self.world, self.profile
        while True:
            await asyncio.sleep(CUT_LOOK_EVERY)
            if not world.faulty:
                self.skew = 0.0 if world.maybe(0.5) else self.skew
                continue
            if world.maybe(profile.cut):
                seconds = profile.lease_seconds * world.chance.choice((0.5, 1.5, 4.0))
                world.note(self.name, "", f"CUT OFF  for {seconds:g} s")
                self.wire.cut_until = world.loop.time() + seconds
            if profile.skew and world.maybe(0.1):
                self.skew = world.chance.uniform(-1, 1) * profile.skew
                world.note(self.name, "", f"CLOCK    is off by {self.skew:.1f} s")


class Desk(Colleague):
    """The process of the people. Nothing befalls it."""

    async def occasion(self, where: str, run_id: str = "") -> None:
        """Does nothing: no fault befalls a desk."""

    def occasion_without_waiting(self, where: str, run_id: str = "") -> bool:
        return False


class WorkerProcess(Colleague):
    """One life of one worker."""

    def work(self, *, certain: bool) -> Worker:
        """`certain`: it can know whether another process has died, as on the same machine."""
        world = self.world
        runs = Runs(
            journal=self.journal,
            models=Thinkers(self, fails=self.profile.busy_model),
            tools=Pipeline(),
            clock=self.clock,
            lease_clock=self.lease_clock,
            worker=self.name,
            lease_seconds=self.profile.lease_seconds,
            is_gone=self.is_gone if certain else _in_doubt,
        )
        parts = PipelineParts(clock=self.clock, chance=world.chance.random)

        async def toolbox(spec: RunSpec) -> Pipeline:
            return Pipeline(TOOLS, parts)

        performer = TaskPerformer(self.wire, runs, self.bundles, self.transport, toolbox=toolbox, clock=self.clock)
        self.runs = runs
        return Worker(
            self.wire,
            self.transport,
            performer,
            Offer(self.name, self.name, capacity=world.chance.choice((1, 2, 4))),
            timers=self.tasks.timers,
            clock=self.clock,
            lease_clock=self.lease_clock,
            wall=self.clock,
            lease_seconds=self.profile.lease_seconds,
            grace=world.chance.choice((0.0, 1.0, 5.0)),
            heartbeat=self.profile.lease_seconds,
            pace=LookPace(world.chance.random),
            is_gone=self.is_gone if certain else _in_doubt,
        )

    async def serve(self, *, certain: bool) -> None:
        disturbing = asyncio.create_task(self.disturb())
        try:
            await self.work(certain=certain).run()
        finally:
            disturbing.cancel()
            await self.runs.close()


class Client(Colleague):
    """Hands in tasks, each under its key, until it was told of every one that it was accepted."""

    async def hand_in(self, commands: Sequence[Command]) -> None:
        disturbing = asyncio.create_task(self.disturb())
        try:
            left = list(commands)
            while left:
                await asyncio.sleep(self.world.soon())
                left = [command for command in left if not await self._accepted(command)]
        finally:
            disturbing.cancel()

    async def _accepted(self, command: Command) -> bool:
        try:
            await self.tasks.accept(command)
        except FoliotError as error:
            self.world.note(self.name, "", f"is told  {error.code} of {command.idempotency_key}")
            return False
        return True


def _in_doubt(worker: str | None) -> bool:
    return worker is None
