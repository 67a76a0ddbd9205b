"""The caretakers of a workshop: they cancel, talk, settle calls that were cut off, and requeue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from foliot.engine.driver.journal import signal
from foliot.errors import FoliotError
from foliot.kernel.messages import Message, Text, ToolResult
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import InputReceived, RunWaiting, UnknownDecided
from foliot.store.key_pages import NEWEST, keys_array
from foliot.store.transaction import Row
from simulators.workshop.database import Truth
from simulators.workshop.process import Colleague

_ANY_TASK: Final = {"lane": "", "after_time": 0.0, "before_time": 1e15, "archived": 1}


class Caretaker:
    """`ordered` are the tasks that somebody asked to cancel; `rerun` are calls that somebody said to run again."""

    def __init__(self, desk: Colleague, truth: Truth) -> None:
        self._desk = desk
        self._truth = truth
        self._said = 0
        self._talked = 0
        self.ordered: set[str] = set()
        self.rerun: set[str] = set()

    async def look_after(self) -> None:
        world = self._desk.world
        while True:
            await asyncio.sleep(2.0)
            for row in reversed(self._all("task_keys_everywhere", "task_feed_tasks", **_ANY_TASK)):
                if row["phase"] == "dead_lettered" and world.maybe(0.7):
                    await self._try(self._desk.tasks.requeue(row["namespace"], row["name"], by="ann"))
            for row in self._all("run_keys_everywhere", "run_rows", private="", own=""):
                if row["phase"] == "waiting":
                    await self._try(self._answer(row["id"]))

    async def meddle(self, names: list[str]) -> None:
        """Cancel some of the tasks, at any moment."""
        desk, chance = self._desk, self._desk.world.chance
        for _ in range(chance.randint(0, desk.profile.cancels) if desk.profile.cancels else 0):
            await asyncio.sleep(chance.choice((0.0, 0.3, 1.0, 4.0)))
            name = chance.choice(names)
            self.ordered.add(name)  # it may be stored even when the answer is lost
            await self._try(desk.tasks.cancel("default", name, by="bob", reason="enough"))

    def interrupt(self, run_id: str) -> None:
        """A run is about to rest: somebody may say something to it in this very moment."""
        world = self._desk.world
        if self._talked < self._desk.profile.talks and world.maybe(0.5):
            self._talked += 1
            world.start(self._say(run_id, self._talked))

    async def _say(self, run_id: str, number: int) -> None:
        world = self._desk.world
        await asyncio.sleep(world.soon() / 20)
        said = InputReceived(f"i{number}", Message("user", (Text("by the way"),)), by="cid")
        await self._try(self._desk.journal.signal(signal(run_id, said, world.now, signal_id=f"t{number}")))

    async def _answer(self, run_id: str) -> None:
        world = self._desk.world
        entries = await self._desk.journal.read(run_id)
        waiting = next((decode(entry.data) for entry in reversed(entries) if entry.type == "run.waiting"), None)
        if not isinstance(waiting, RunWaiting) or waiting.reason != "unknown_effect" or world.maybe(0.3):
            return
        for call_id in waiting.calls:
            key = f"{run_id}/{call_id}"
            if world.acts[key]:
                fact = UnknownDecided(call_id, "happened", "ann", result=ToolResult(call_id, "", (Text("seen"),)))
            else:
                fact = UnknownDecided(call_id, "run", "ann")
                self.rerun.add(key)
            self._said += 1
            told = signal(run_id, fact, world.now, signal_id=f"s{self._said}")
            await self._try(self._desk.journal.signal(told))

    def _all(self, keys: str, rows: str, **params: object) -> list[Row]:
        found = self._truth.read(keys, {"before": NEWEST, "count": 100, **params})
        return self._truth.read(rows, {"keys": keys_array([row["key"] for row in found])})

    async def _try(self, asking: Awaitable[object]) -> None:
        try:
            await asking
        except FoliotError as error:
            self._desk.world.note(self._desk.name, "", f"is told  {error.code}")
