"""Driving a run while somebody watches, without a process around it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.cli.local import LocalClient
from foliot.cli.show.run import Opening, PlainView
from foliot.cli.watch.run import Watch, WatchOptions
from foliot.engine.live.hub import Recorded
from foliot.kernel.identity import NOBODY
from foliot.kernel.run.events import ToolStarted


class Interrupting(PlainView):
    """A person who presses Ctrl-C `times` times when the first tool is under way."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.notes: list[str] = []

    def show(self, item) -> None:
        super().show(item)
        if isinstance(item, Recorded) and isinstance(item.event, ToolStarted):
            self.press()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.press()

    def press(self) -> None:
        if self.times:
            self.times -= 1
            os.kill(os.getpid(), signal.SIGINT)


def holder(gate: asyncio.Event) -> Agent:
    @tool(effect="read")
    async def hold() -> str:
        await gate.wait()
        return "held"

    return Agent("holder", model=ScriptedModel([{"call": "hold"}, {"say": "done"}]), tools=[hold])


@pytest.mark.parametrize("presses", [1, 2])
async def test_ctrl_c_cancels_and_a_second_one_does_not_wait_for_the_end(presses) -> None:
    gate = asyncio.Event()
    agent = holder(gate)
    async with Runtime("memory:") as runtime:
        view, client = Interrupting(presses), LocalClient(runtime, caller=NOBODY)

        async with asyncio.timeout(60):
            watched = await Watch(client, view, Opening("r1", "holder"), WatchOptions()).to_the_end(
                lambda: client.runs.drive("r1", runtime.inside.run(agent, "go", run_id="r1", check=False))
            )

        assert watched.interrupted
        assert view.notes == ["Cancelling: nothing new begins. Ctrl-C again leaves without waiting for the end."]
        if presses == 1:
            assert watched.result is not None
            assert watched.result.phase == "cancelled"
            return
        assert watched.result is None
        gate.set()
        assert (await runtime.resume("r1", check=False)).phase == "cancelled"


async def test_ctrl_c_while_the_run_waits_for_a_timer_ends_it() -> None:
    """Nobody drives it while it sleeps, so whoever cancels it has to end it, and to wake the sleeper."""
    agent = Agent("patient", model=ScriptedModel([{"fail": "overloaded", "times": 99, "retry_after": 3600}]))

    class Impatient(Interrupting):
        def show(self, item) -> None:
            PlainView.show(self, item)
            if isinstance(item, Recorded) and type(item.event).__name__ == "RunWaiting":
                self.press()

        def note(self, text: str) -> None:
            self.notes.append(text)

    async with Runtime("memory:") as runtime:
        client = LocalClient(runtime, caller=NOBODY)
        async with asyncio.timeout(60):
            watched = await Watch(client, Impatient(1), Opening("r1", "patient"), WatchOptions()).to_the_end(
                lambda: client.runs.drive("r1", runtime.inside.run(agent, "go", run_id="r1", check=False))
            )

    assert watched.result is not None
    assert watched.result.phase == "cancelled"
