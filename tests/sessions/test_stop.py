"""Stopping a turn: when it returns, everything that the tools of the turn had started is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.driver.runs import Runs, user_message
from foliot.errors import NotFound, Unavailable
from foliot.kernel.identity import Identity
from foliot.runtime import turns
from foliot.settings.settings import load_settings
from tests.conformance.sandbox import marked, until_marked
from tests.sessions.kit import place, quiet

ANN = Identity("ann")
# Each copy ignores what it is asked, leaves its parent and forks again, until it may not any more.
BOMB = """
import os, signal, sys, time
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], sys.argv[2]])
    except OSError:
        time.sleep(0.01)
"""


def mark() -> str:
    return f"3600.{time.time_ns() % 10**9:09d}"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(settings=load_settings({"home": str(tmp_path / "home")}, {})) as opened:
        yield opened


async def stopped(runtime: Runtime, agent: Agent, sign: str, *, most: int = 1) -> None:
    """Stops a turn of the agent once so many processes with this sign are there, and checks that none is left."""
    runtime.inside.know(agent)
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    said = await sessions.say(session.id, "Go", identity=ANN)
    assert said.problem == ""
    await until_marked(sign, most=most)
    assert await sessions.stop(session.id, identity=ANN)
    assert marked(sign) == []
    done = await quiet(runtime, session.id)
    assert (await runtime.inside.runs.journal.get(done.head)).phase == "cancelled"
    assert not await sessions.stop(session.id, identity=ANN)


@pytest.mark.fence
async def test_a_fork_bomb_in_the_fence_is_gone_when_stop_returns(runtime: Runtime) -> None:
    sign = mark()
    command = f'cat > bomb.py <<\'END\'\n{BOMB}\nEND\nexec python3 -c "$(cat bomb.py)" "$(cat bomb.py)" {sign}'
    model = ScriptedModel([{"call": {"bash": {"command": command}}}, {"say": "done"}])
    await stopped(runtime, Agent("helper", model=model, tools=["bash"]), sign, most=30)


@pytest.mark.fence
async def test_a_job_in_the_background_is_gone_when_stop_returns(runtime: Runtime) -> None:
    sign = mark()
    job = {"command": f"sleep {sign} & setsid sleep {sign} & sleep {sign}", "background": True}
    model = ScriptedModel([{"call": {"bash": job}}, {"call": {"bash": {"command": "sleep 3600"}}}, {"say": "done"}])
    await stopped(runtime, Agent("helper", model=model, tools=["bash"]), sign)


async def test_processes_of_a_function_are_gone_when_stop_returns(runtime: Runtime) -> None:
    sign = mark()

    @tool(effect="once")
    def deaf() -> str:
        """Starts programs that ignore what they are asked, and waits for them for ever."""
        subprocess.run(["sh", "-c", f'trap "" TERM INT HUP; setsid sleep {sign} & sleep {sign}; sleep {sign}'])
        return "never"

    model = ScriptedModel([{"call": {"deaf": {}}}, {"say": "done"}])
    await stopped(runtime, Agent("helper", model=model, tools=[deaf]), sign)


async def test_a_turn_has_not_ended_before_its_tools_have(runtime: Runtime) -> None:
    """Other processes see the end in the store: it must not stand there while a tool still puts things away."""
    at_work, phases = asyncio.Event(), list[str]()
    sessions = runtime.inside.sessions

    @tool(effect="read")
    async def tidy() -> str:
        """Takes a while to put things away when it is told to stop."""
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0.01)
            turn = (await sessions.get(session.id, identity=ANN)).turn
            phases.append((await runtime.inside.runs.journal.get(turn)).phase if turn else "over")
        return "never"

    runtime.inside.know(Agent("helper", model=ScriptedModel([{"call": {"tidy": {}}}]), tools=[tidy]))
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "Go", identity=ANN)
    async with asyncio.timeout(120):
        await at_work.wait()
    assert await sessions.stop(session.id, identity=ANN)
    assert phases == ["running"]


async def test_a_turn_of_another_process_is_stopped_from_here(tmp_path: Path) -> None:
    sign, store = mark(), str(tmp_path / "foliot.db")
    program = f"""
import asyncio, subprocess
from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.driver.runs import Runs, user_message
from foliot.errors import NotFound, Unavailable
from foliot.kernel.identity import Identity
from foliot.runtime import turns

@tool(effect="once")
async def deaf() -> str:
    "Waits."
    process = await asyncio.create_subprocess_exec("sleep", "{sign[:3]}" + "{sign[3:]}")
    await process.wait()
    return "never"

async def main():
    async with Runtime({store!r}) as runtime:
        model = ScriptedModel([{{"call": {{"deaf": {{}}}}}}, {{"say": "x"}}])
        runtime.inside.know(Agent("helper", model=model, tools=[deaf]))
        await runtime.inside.sessions.say("talk", "Go", identity=Identity("ann"))
        await asyncio.Event().wait()

asyncio.run(main())
"""
    async with Runtime(store) as runtime:
        runtime.inside.know(Agent("helper", model=ScriptedModel([{"say": "x"}])))
        sessions = runtime.inside.sessions
        await sessions.create(place(), identity=ANN, id="talk")
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        try:
            await until_marked(sign)
            async with asyncio.timeout(120):
                assert await sessions.stop("talk", identity=ANN)
            assert marked(sign) == []
        finally:
            other.kill()
            await other.wait()


# --- whoever drove it is gone, or does not let go ---------------------------------------------------------------------

DIES = """
import asyncio, os, sys
from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.identity import Identity
from foliot.store.sessions.base import Place

@tool(effect=sys.argv[2])
async def work() -> str:
    "Works until its process dies."
    os._exit(9)

async def main():
    async with Runtime(sys.argv[1]) as rt:
        model = ScriptedModel([{"call": {"work": {}}}, {"say": "done"}])
        rt.inside.know(Agent("helper", model=model, tools=[work]))
        sessions = rt.inside.sessions
        await sessions.create(Place("default", "helper", "ann", "web"), identity=Identity("ann"), id="talk")
        await sessions.say("talk", "go", identity=Identity("ann"))
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def store_of_dead_turn(tmp_path: Path, effect: str) -> str:
    store = str(tmp_path / "foliot.db")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DIES, store, effect)
    assert await process.wait() == 9
    return store


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
@pytest.mark.parametrize("by", ["stop", "cancel"])
async def test_a_turn_whose_process_died_is_stopped_where_nobody_knows_its_agent(
    tmp_path: Path, effect: str, by: str
) -> None:
    async with Runtime(await store_of_dead_turn(tmp_path, effect)) as rt:
        sessions = rt.inside.sessions
        run_id = (await sessions.get("talk", identity=ANN)).turn
        if by == "stop":
            assert await sessions.stop("talk", identity=ANN)
        else:
            await rt.inside.cancel(run_id, by="ann")

        info, state = await rt.inside.runs.load(run_id)
        assert info.phase == "cancelled"
        assert [message.role for message in state.transcript] == ["user", "assistant", "tool"]
        assert not (await sessions.get("talk", identity=ANN)).turn


async def test_a_run_that_nobody_told_to_end_does_not_go_on_without_its_tools(tmp_path: Path) -> None:
    async with Runtime(await store_of_dead_turn(tmp_path, "once")) as rt:
        run_id = (await rt.inside.sessions.get("talk", identity=ANN)).turn
        with pytest.raises(NotFound, match="helper"):
            await rt.inside.resume(run_id)
        assert (await rt.inside.runs.journal.get(run_id)).phase == "running"


async def test_a_turn_that_another_process_does_not_end_is_not_waited_for_without_a_bound(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runtime.inside.runs
    done = await runtime.inside.run(Agent("helper", model=ScriptedModel([{"say": "hello"}])), "hello")
    _, state = await runs.load(done.run_id)
    held = Runs(journal=runs.journal, models=runtime.inside.models, tools=runs.tools, worker="elsewhere:1:x")
    driver = await held.start(state.spec, (user_message("go"),))
    monkeypatch.setattr(turns, "LONGEST_END", 0.0)
    monkeypatch.setattr(runs, "lease_seconds", 0.0)

    with pytest.raises(Unavailable, match="was told to end, and has not"):
        await turns.SessionTurns(runtime.inside).cancel(driver.state.run_id, by="ann", reason="")


async def test_a_stop_that_is_not_waited_for_is_stored_and_ends_the_turn(tmp_path: Path) -> None:
    async with Runtime(await store_of_dead_turn(tmp_path, "once")) as rt:
        sessions = rt.inside.sessions
        assert await sessions.stop("talk", identity=ANN, wait=False)
        done = await quiet(rt, "talk")
        assert (await rt.inside.runs.journal.get(done.head)).phase == "cancelled"
