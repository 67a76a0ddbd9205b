"""Many sessions in one process: idle ones cost nothing but their rows, and a thousand may be at work at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.identity import Identity
from foliot.store.sessions.base import Session
from tests.sessions.kit import Gate, place, quiet

ANN = Identity("ann")
IDLE = 10_000
TALKED = 100
LIVE = 1_000


def counted() -> tuple[int, int]:
    """Returns how many tasks and descriptors this process has."""
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))


async def test_idle_sessions_cost_no_task_and_no_descriptor(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime:
        runtime.inside.know(Agent("helper", model=ScriptedModel({"turns": [{"say": "Yes."}], "loop": True})))
        sessions = runtime.inside.sessions
        first = await sessions.create(place(), identity=ANN)
        await sessions.say(first.id, "Hello", identity=ANN)
        await quiet(runtime, first.id)
        await sessions.keeper.sweep(patience=0.0)
        tasks, descriptors = counted()
        made: list[Session] = []
        for begin in range(0, IDLE, 500):
            places = [place(channel=f"c{number}") for number in range(begin, begin + 500)]
            made += await asyncio.gather(*(sessions.create(each, identity=ANN) for each in places))
        for session in made[:TALKED]:
            await sessions.say(session.id, "Hello", identity=ANN)
        for session in made[:TALKED]:
            await quiet(runtime, session.id)
        await sessions.keeper.sweep(patience=0.0)
        assert len(made) == IDLE
        after = counted()
        assert (after[0] <= tasks, after[1] <= descriptors) == (True, True), f"{(tasks, descriptors)} became {after}"


async def test_a_thousand_sessions_have_a_turn_at_work_at_once(tmp_path: Path) -> None:
    gate, at_work = Gate(), 0

    @tool(effect="read")
    async def work() -> str:
        """Works until the gate opens."""
        nonlocal at_work
        at_work += 1
        return await gate.passed()

    script: dict[str, Any] = {"turns": [{"call": {"work": {}}}, {"say": "Worked."}], "count": "input"}
    async with Runtime(tmp_path / "foliot.db") as runtime:
        runtime.inside.know(Agent("helper", model=ScriptedModel(script), tools=[work]))
        sessions = runtime.inside.sessions
        made = await asyncio.gather(
            *(sessions.create(place(channel=f"c{number}"), identity=ANN) for number in range(LIVE))
        )
        said = await asyncio.gather(*(sessions.say(session.id, "Go", identity=ANN) for session in made))
        assert {each.problem for each in said} == {""}
        async with asyncio.timeout(300):
            while at_work < LIVE:
                await asyncio.sleep(0.01)
            gate.open()
            for session in made:
                await quiet(runtime, session.id)
        heads = [(await sessions.store.get(session.id)).head for session in made]
        infos = await runtime.inside.runs.journal.many(heads)
        assert [info.phase for info in infos] == ["succeeded"] * LIVE
