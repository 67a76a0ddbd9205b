"""A simulated process: a worker that takes up runs with the real engine, until something befalls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from foliot.engine.driver.runs import Runs, user_message
from foliot.errors import FoliotError
from simulators.engine.virtual_loop import context_of
from simulators.engine.world import World, at_once

LOOK_EVERY = 1.0


class Mortal:
    """One life of one process. `dead`: none of its callbacks runs any more. `backlog`: it is paused."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.backlog: list[asyncio.Handle] | None = None
        self._main: asyncio.Task[None] | None = None
        self._when_gone: Callable[[], None] = lambda: None

    def live(self, work: Coroutine[Any, Any, None], when_gone: Callable[[], None]) -> None:
        """Begin to work. `when_gone` is called, from outside, when this life is over."""
        self._when_gone = when_gone
        self.world.alive.add(self.name)
        self._main = self.world.loop.create_task(work, context=context_of(self))
        self._main.add_done_callback(lambda _: self._gone("has stopped"), context=self.world.outside)

    # --- what can befall it

    async def occasion(self, where: str, run_id: str = "") -> None:
        """A point at which it may die, fall asleep or be told to stop."""
        if self.occasion_without_waiting(where, run_id):
            await asyncio.sleep(0)  # dead: for ever; paused: until it wakes up

    def occasion_without_waiting(self, where: str, run_id: str = "") -> bool:
        if self.dead or self.backlog is not None:
            return False
        match self.world.fate():
            case "crash":
                self.world.note(self.name, run_id, f"CRASH    {where}")
                self._gone("")
            case "pause":
                seconds = self.world.profile.lease_seconds * self.world.chance.choice((0.2, 0.9, 1.5, 4.0))
                self.world.note(self.name, run_id, f"PAUSE    {where}, for {seconds:g} s")
                self.backlog = []
                self.world.later(seconds, self._wake)
            case "stop":
                self.world.note(self.name, run_id, f"STOP     {where}")
                if self._main is not None:
                    self._main.cancel()
            case None:
                return False
        return True

    def _wake(self) -> None:
        if not self.dead:
            self.world.note(self.name, "", "awake again")
            self.world.loop.wake(self)

    def _gone(self, text: str) -> None:
        if self.dead or self.world.over:
            return
        if text:
            self.world.note(self.name, "", text)
        self.dead = True
        self.world.alive.discard(self.name)
        self._when_gone()

    def is_gone(self, worker: str | None) -> bool:
        return worker is None or worker not in self.world.alive


class Process(Mortal):
    """One life of one worker that looks for runs by itself."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.runs: Runs | None = None
        self._driving: dict[str, asyncio.Task[None]] = {}

    def launch(self, runs: Runs, when_gone: Callable[[Process], None]) -> None:
        """Begin to work. `when_gone` is called, from outside, when this life is over."""
        self.runs = runs
        self.live(self._serve(runs), lambda: when_gone(self))

    async def _serve(self, runs: Runs) -> None:
        try:
            while True:
                for run_id in self.world.specs:
                    if run_id not in self._driving and self._due(run_id):
                        self._driving[run_id] = asyncio.create_task(self._attempt(runs, run_id))
                await asyncio.sleep(LOOK_EVERY)
        finally:
            driving = list(self._driving.values())
            for task in driving:
                task.cancel()
            await asyncio.gather(*driving, return_exceptions=True)
            await runs.close()

    def _due(self, run_id: str) -> bool:
        """Whether there is something to do that nobody does; what a queue would say."""
        journal, now = self.world.journal, self.world.now
        if not at_once(journal.read(run_id, limit=1)):
            return True
        row = at_once(journal.get(run_id))
        match row.phase:
            case "pending":
                return True
            case "waiting":
                until = row.summary.get("waiting", {}).get("until")
                return bool(at_once(journal.signals([run_id]))) or (until is not None and until <= now)
            case "running":
                return row.lease_until is None or row.lease_until < now or self.is_gone(row.worker)
            case _:
                return False

    async def _attempt(self, runs: Runs, run_id: str) -> None:
        world = self.world
        try:
            if at_once(world.journal.read(run_id, limit=1)):
                driver = await runs.take(run_id)
            else:
                driver = await runs.start(world.specs[run_id], (user_message("go"),), run_id=run_id)
            await runs.drive(driver)
        except FoliotError as error:
            world.note(self.name, run_id, f"gave up  {error.code}")
        except Exception as error:
            if not world.over:
                world.history.problems.append(f"{run_id}: {self.name} raised {error!r}")
        finally:
            self._driving.pop(run_id, None)
