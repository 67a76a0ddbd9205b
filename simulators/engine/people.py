"""Simulated people: one who answers questions, and others who interfere at any moment."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from foliot.engine.driver.journal import signal
from foliot.errors import FoliotError
from foliot.kernel.messages import Message, Text, ToolResult
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import (
    CancelRequested,
    Event,
    InputReceived,
    QuestionAnswered,
    QuestionAsked,
    RunWaiting,
    UnknownDecided,
)
from foliot.store.journal.base import Signal
from foliot.store.journal.cancelling import CANCEL
from simulators.engine.history import Cancelled, brief
from simulators.engine.process import Process
from simulators.engine.world import World, at_once


class People:
    def __init__(self, world: World, processes: list[Process]) -> None:
        self._world = world
        self._processes = processes
        self.silent = world.maybe(world.profile.silent_person)
        self._answered: set[tuple[str, int, str]] = set()
        self._said = 0

    async def answer(self) -> None:
        """Look now and then who waits for a person; go and see what happened; say so."""
        world = self._world
        while not self.silent:
            await asyncio.sleep(2.0)
            for run_id in world.specs:
                waiting, seq = self._waits(run_id)
                for call_id in waiting.calls if waiting is not None else ():
                    if (run_id, seq, call_id) not in self._answered and world.maybe(0.7):
                        self._answered.add((run_id, seq, call_id))
                        self._send(run_id, self._decision(run_id, call_id))

    async def meddle(self) -> None:
        """Cancel, interrupt, say things, decide what nobody asked; some of it twice, some of it unreadable."""
        world, chance = self._world, self._world.chance
        for number in range(chance.randint(0, world.profile.signals) if world.profile.signals else 0):
            await asyncio.sleep(chance.choice((0.0, 0.05, 0.3, 1.0, 4.0)))
            run_id = chance.choice(list(world.specs))
            roll = chance.random()
            if roll < 0.15:
                self._send(run_id, CancelRequested("ann", "enough"))
            elif roll < 0.8:
                mode = chance.choice(("steer", "followup", "interrupt", "queue", "collect"))
                said = InputReceived(f"i{number}", Message("user", (Text("and this?"),)), mode, "ann")
                self._send(run_id, replace(said, said_at=world.now, debounce=0.5) if mode == "collect" else said)
            elif roll < 0.85:
                self._send(run_id, QuestionAnswered(chance.choice(("c1", "c0_0")), chance.choice(("yes", "?")), "bob"))
            elif roll < 0.9:
                self._send(run_id, UnknownDecided("c1", chance.choice(("happened", "run", "fail")), "bob"))
            else:
                self._deliver(
                    Signal(self._new_id(), run_id, world.now, "input.received", b'{"type":"input.received","id":7}')
                )

    def _waits(self, run_id: str) -> tuple[RunWaiting | None, int]:
        """Returns what the run waits for a person for, and since which event."""
        journal = self._world.journal
        entries = at_once(journal.read(run_id))
        if not entries or at_once(journal.get(run_id)).phase != "waiting":
            return None, 0
        for entry in reversed(entries):
            if entry.type == "run.waiting":
                event = decode(entry.data)
                if isinstance(event, RunWaiting) and event.owner == "person":
                    return event, entry.seq
                break
        return None, 0

    def _decision(self, run_id: str, call_id: str) -> Event:
        chance = self._world.chance
        if self._is_asked(run_id, call_id):
            return QuestionAnswered(call_id, chance.choice(("yes", "no")), "ann")
        if self._world.acts[f"{run_id}/{call_id}"]:
            result = ToolResult(call_id, "", (Text("seen"),)) if chance.random() < 0.5 else None
            return UnknownDecided(call_id, "happened", "ann", result=result)
        return UnknownDecided(call_id, "fail" if chance.random() < 0.1 else "run", "ann")

    def _is_asked(self, run_id: str, call_id: str) -> bool:
        entries = at_once(self._world.journal.read(run_id))
        asked = (decode(entry.data) for entry in entries if entry.type == "question.asked")
        return any(isinstance(event, QuestionAsked) and event.call_id == call_id for event in asked)

    def _send(self, run_id: str, event: Event) -> None:
        self._world.note("people", run_id, f"says     {brief(event)}")
        self._deliver(signal(run_id, event, self._world.now, signal_id=self._new_id()))

    def _deliver(self, message: Signal) -> None:
        """Delivers a signal: the driver hears of it at once in the same process, or else by looking."""
        chance = self._world.chance
        for _ in range(2 if chance.random() < 0.2 else 1):
            try:
                at_once(self._world.journal.signal(message))
                if message.type == CANCEL:
                    self._world.history.items.append(Cancelled(self._world.loop.time(), "people", message.run_id))
            except FoliotError as error:
                self._world.note("people", message.run_id, f"is told  {error.code}")
                return
        near = chance.random() < 0.5
        for process in self._processes:
            if near and not process.dead and process.backlog is None and process.runs is not None:
                driver = process.runs.local(message.run_id)
                if driver is not None:
                    driver.deliver(message)

    def _new_id(self) -> str:
        self._said += 1
        return f"s{self._said}"
