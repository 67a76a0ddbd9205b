"""Starting and waking runs: the same on a runtime and on a server, and nothing is held, shown or said twice by it."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from foliot import Agent, Client, RunInfo, RunInput, RunResult, Runtime, ScriptedModel, parse_manifests, tool
from foliot.engine.live.hub import Recorded
from foliot.errors import FoliotError, InvalidInput, NotFound, UsageError
from foliot.kernel.run.codec import type_of
from foliot.runtime.groups.groups import Conveniences
from foliot.store.journal.base import RunTaken
from foliot.testing.served import served

MANIFESTS = """
{kind: Agent, metadata: {name: a}, spec: {model_ref: m}}
---
{kind: ModelEndpoint, metadata: {name: m}, spec: {provider: scripted, default_model: m, script: [{say: default says}]}}
---
{kind: Agent, metadata: {name: a, namespace: team}, spec: {model_ref: m}}
---
kind: ModelEndpoint
metadata: {name: m, namespace: team}
spec: {provider: scripted, default_model: m, script: [{say: team says}]}
---
{kind: Agent, metadata: {name: other}, spec: {model_ref: m}}
---
{kind: Agent, metadata: {name: gated}, spec: {model_ref: gm, tools: [gate]}}
---
kind: ModelEndpoint
metadata: {name: gm}
spec: {provider: scripted, default_model: m, script: [{call: {gate: {}}}, {say: through}]}
---
{kind: Agent, metadata: {name: shaky}, spec: {model_ref: sm, tools: [gate]}}
---
kind: ModelEndpoint
metadata: {name: sm}
spec:
  provider: scripted
  default_model: m
  script: [{fail: overloaded, times: 1, retry_after: 1, call: {gate: {}}}, {say: through}]
"""
WITHIN = 60.0


class Gate:
    """A tool that returns when the gate is opened."""

    def __init__(self) -> None:
        self.opened, self.reached = asyncio.Event(), asyncio.Event()

        @tool(effect="read")
        async def gate() -> str:
            """Wait for the gate."""
            self.reached.set()
            await self.opened.wait()
            return "open"

        self.tool = gate


@contextlib.asynccontextmanager
async def reached(way: str, home: Path, gate: Gate) -> AsyncGenerator[Conveniences]:
    if way == "runtime":
        async with Runtime(home / "foliot.db", tools=[gate.tool]) as runtime:
            await runtime.resources.apply(parse_manifests(MANIFESTS))
            yield runtime
    else:
        async with served(home, tools=[gate.tool]) as url, Client(url, home=home) as client:
            await client.resources.apply(parse_manifests(MANIFESTS))
            yield client


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["runtime", "client"])
async def foliot(request, tmp_path: Path, gate: Gate) -> AsyncIterator[Conveniences]:
    async with asyncio.timeout(WITHIN), reached(request.param, tmp_path, gate) as there:
        yield there


# --- ids ------------------------------------------------------------------------------------------------------------

OTHERS = {
    "namespace": {"agent": "a", "input": "same", "namespace": "team"},
    "agent": {"agent": "other", "input": "same"},
    "input": {"agent": "a", "input": "else"},
}


@pytest.mark.parametrize("verb", ["run", "start", "stream"])
@pytest.mark.parametrize("differs", OTHERS)
async def test_the_id_of_other_work_is_refused_and_nothing_of_it_is_shown(
    differs: str, verb: str, foliot: Conveniences
) -> None:
    mine = await foliot.run("a", "same", run_id="order-17")
    asked = dict(OTHERS[differs])
    agent, input = asked.pop("agent"), asked.pop("input")
    shown: list[object] = []

    async def ask() -> None:
        if verb == "stream":
            async for item in foliot.stream(agent, input, run_id="order-17", **asked):
                shown.append(item)
        else:
            await (foliot.run if verb == "run" else foliot.runs.start)(agent, input, run_id="order-17", **asked)

    with pytest.raises(RunTaken) as refused:
        await ask()
    assert shown == []
    assert mine.output not in str(refused.value)
    again = await foliot.run("a", "same", run_id="order-17")
    assert (again.run_id, again.output) == (mine.run_id, "default says")


async def test_the_answer_of_one_user_is_not_given_to_another(tmp_path: Path, gate: Gate) -> None:
    async with reached("runtime", tmp_path, gate) as runtime:
        await runtime.run("a", "same", run_id="r1", user="ann")
        for user in ("eve", ""):
            with pytest.raises(RunTaken) as refused:
                await runtime.run("a", "same", run_id="r1", user=user)
            assert "ann" not in str(refused.value)
        assert (await runtime.run("a", "same", run_id="r1", user="ann")).output == "default says"


async def test_of_two_that_start_one_id_at_once_only_the_owner_sees_the_run(tmp_path: Path, gate: Gate) -> None:
    async with reached("runtime", tmp_path, gate) as runtime:

        async def streamed(namespace: str) -> list[object]:
            return [each async for each in runtime.stream("a", "same", namespace=namespace, run_id="both")]

        found = await asyncio.gather(streamed("default"), streamed("team"), return_exceptions=True)
        refused = [each for each in found if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [RunTaken]
        same = await asyncio.gather(*(runtime.run("a", "x", run_id="same") for _ in range(5)))
        assert [each.output for each in same] == ["default says"] * 5


async def test_a_run_of_before_can_be_asked_for_when_its_agent_is_gone(foliot: Conveniences) -> None:
    await foliot.run("other", "same", run_id="r1")
    await foliot.resources.delete("Agent", "other")
    assert (await foliot.run("other", "same", run_id="r1")).output == "default says"


async def test_an_agent_object_is_not_run_in_another_namespace_than_its_own(tmp_path: Path) -> None:
    agent = Agent("x", model=ScriptedModel([{"say": "hi"}]))
    async with Runtime(tmp_path / "foliot.db") as runtime:
        for run in (runtime.run, runtime.runs.start):
            with pytest.raises(InvalidInput, match="belongs to namespace 'default'"):
                await run(agent, "go", namespace="team")


# --- leaving ---------------------------------------------------------------------------------------------------------


async def test_who_leaves_a_stream_at_any_item_leaves_no_lease_behind(tmp_path: Path, gate: Gate) -> None:
    gate.opened.set()
    async with reached("runtime", tmp_path, gate) as runtime:
        assert isinstance(runtime, Runtime)
        whole = [each async for each in runtime.stream("gated", "go", run_id="whole")]
        for count in range(1, len(whole) + 1):
            run_id = f"r{count}"
            async with contextlib.aclosing(runtime.stream("gated", "go", run_id=run_id)) as stream:
                for _ in range(count):
                    await anext(stream)
            await _is_free(runtime, run_id)
            assert (await runtime.resume(run_id)).output == "through"


async def test_who_is_cancelled_at_any_moment_of_a_stream_leaves_no_lease_behind(tmp_path: Path, gate: Gate) -> None:
    gate.opened.set()
    async with reached("runtime", tmp_path, gate) as runtime:
        assert isinstance(runtime, Runtime)

        async def consume(run_id: str) -> None:
            async with contextlib.aclosing(runtime.stream("gated", "go", run_id=run_id)) as stream:
                async for _ in stream:
                    pass

        for turns in range(40):
            task = asyncio.create_task(consume(f"r{turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await _is_free(runtime, f"r{turns}")


async def _is_free(runtime: Runtime, run_id: str) -> None:
    with contextlib.suppress(NotFound):  # left before it was stored
        info = await runtime.inside.runs.journal.get(run_id)
        assert info.worker is None, f"{run_id} is held by {info.worker} ({info.phase})"
        assert not runtime.inside.runs.has(run_id)


async def test_a_run_that_cannot_be_taken_up_is_not_held(tmp_path: Path, gate: Gate, monkeypatch) -> None:
    async with reached("runtime", tmp_path, gate) as runtime:
        assert isinstance(runtime, Runtime)
        async with contextlib.aclosing(runtime.stream("gated", "go", run_id="r1")) as stream:
            await anext(stream)

        async def fails(state: object) -> object:
            raise FoliotError("its children cannot be found")

        monkeypatch.setattr(runtime.inside.runs, "taken_up", fails)
        with pytest.raises(FoliotError, match="its children"):
            await runtime.resume("r1")
        await _is_free(runtime, "r1")


# --- waking ----------------------------------------------------------------------------------------------------------


async def test_say_returns_while_the_run_is_still_at_work(foliot: Conveniences, gate: Gate) -> None:
    await foliot.runs.start("shaky", "go", run_id="r1")
    async for item in foliot.runs.watch("r1"):
        if isinstance(item, Recorded) and type_of(item.event) == "run.waiting":
            break
    await foliot.runs.say("r1", "hurry up")  # the gate is closed: the run cannot have ended
    assert not gate.opened.is_set()
    gate.opened.set()
    assert (await foliot.runs.wait("r1")).output == "through"
    heard = [event for _, event in await foliot.runs.events("r1") if type_of(event) == "input.received"]
    assert len(heard) == 1


async def heard(said: Awaitable[RunInput]) -> RunInfo:
    return (await said).run


TELLS: dict[str, Callable[[Runtime, str], object]] = {
    "say": lambda runtime, run_id: heard(runtime.runs.say(run_id, "hello")),
    "say_by_key": lambda runtime, run_id: heard(runtime.runs.say(run_id, "hello", key="key-1")),
    "answer": lambda runtime, run_id: runtime.questions.answer(run_id, "blue"),
    "cancel": lambda runtime, run_id: runtime.runs.cancel(run_id),
}


@pytest.mark.parametrize("fault", ["tools", "unexpected"])
@pytest.mark.parametrize("verb", TELLS)
async def test_what_is_stored_is_no_error_where_the_run_cannot_go_on(
    verb: str, fault: str, tmp_path: Path, monkeypatch, caplog
) -> None:
    script = [{"call": {"ask_user": {"question": "Which?"}}}, {"call": {"mine": {}}}, {"say": "ok"}]

    @tool(effect="read")
    async def mine() -> str:
        return "x"

    agent = Agent("py", model=ScriptedModel(script), tools=["ask_user", mine])
    async with Runtime(tmp_path / "foliot.db") as first:
        await first.runs.start(agent, "go", run_id="r1")
        await first.runs.wait("r1")
    async with Runtime(tmp_path / "foliot.db") as other:  # it knows no tool named mine
        if fault == "unexpected":

            async def breaks(*args: object, **more: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(other.inside, "resume", breaks)
        info = await TELLS[verb](other, "r1")  # type: ignore[misc]
        if (verb, fault) == ("cancel", "tools"):
            assert info.phase == "cancelled", "a run ends without its tools"
            return
        assert (info.id, info.phase) == ("r1", "waiting")
        if verb == "say_by_key":
            assert (await TELLS[verb](other, "r1")).phase == "waiting"  # type: ignore[misc]
        assert len(await other.inside.runs.journal.signals(["r1"])) == 1
    assert "run r1 has its message, and cannot go on in this process" in caplog.text


async def test_what_cannot_be_said_is_an_error_and_is_not_stored(foliot: Conveniences) -> None:
    await foliot.run("a", "same", run_id="r1")
    with pytest.raises(InvalidInput):
        await foliot.runs.say("r1", "too late", mode="shout")
    with pytest.raises(NotFound):
        await foliot.runs.say("none", "hello")
    assert len(await foliot.runs.list()) == 1


# --- waiting ---------------------------------------------------------------------------------------------------------


async def test_a_run_that_is_driven_is_waited_for(foliot: Conveniences, gate: Gate) -> None:
    await foliot.runs.start("gated", "go", run_id="r1")
    await gate.reached.wait()
    waiting: list[asyncio.Task[RunResult]] = [
        asyncio.create_task(foliot.resume("r1")),
        asyncio.create_task(foliot.run("gated", "go", run_id="r1")),
    ]
    await asyncio.wait(waiting, timeout=0)
    gate.opened.set()
    assert [(await each).output for each in waiting] == ["through", "through"]
    kinds = [type_of(event) for _, event in await foliot.runs.events("r1")]
    assert kinds.count("run.claimed") == 1


async def test_who_waits_for_a_run_that_is_released_takes_it_up(tmp_path: Path, gate: Gate) -> None:
    async with reached("runtime", tmp_path, gate) as runtime, asyncio.timeout(WITHIN):
        assert isinstance(runtime, Runtime)
        first = asyncio.create_task(runtime.run("gated", "go", run_id="r1"))
        await gate.reached.wait()
        second = asyncio.create_task(runtime.resume("r1"))
        await asyncio.wait({second}, timeout=0.05)
        assert not second.done()
        first.cancel()
        gate.opened.set()
        assert (await second).output == "through"


async def test_the_phase_of_a_result_goes_with_what_it_waits_for(tmp_path: Path, gate: Gate) -> None:
    @tool(effect="once")
    async def send() -> str:
        raise ConnectionResetError("dead")

    agent = Agent("courier", model=ScriptedModel([{"call": {"send": {}}}, {"say": "sent"}]), tools=[send])
    async with Runtime(tmp_path / "foliot.db") as runtime:

        async def one(number: int) -> set[tuple[str, bool]]:
            run_id = f"r{number}"
            await runtime.runs.start(agent, "go", run_id=run_id)
            first = await _stands(runtime, run_id)
            if first == ("succeeded", False):  # the circuit breaker of `send` had opened: the model was told
                return {first}
            await runtime.runs.settle(run_id, "send", "run")
            return {first, await _stands(runtime, run_id)}

        found = await asyncio.gather(*map(one, range(20)))
        assert ("waiting", True) in set().union(*found) <= {("waiting", True), ("succeeded", False)}


async def _stands(runtime: Runtime, run_id: str) -> tuple[str, bool]:
    result = await runtime.runs.wait(run_id)
    return result.phase, result.waiting is not None


def test_the_phase_comes_from_the_state_whatever_is_stored() -> None:
    from foliot.engine.driver.journal import phase_of
    from foliot.kernel.run.events import RunFailed, RunSucceeded, RunWaiting
    from foliot.kernel.run.spec import RunSpec
    from foliot.kernel.run.state import State
    from foliot.runtime.results import result_of

    for stored in ("pending", "running", "waiting", "succeeded", "failed", "cancelled"):
        state = State(RunSpec("a", model="m"), "r1")
        assert result_of(state, stored).phase in ("pending", "running")
        state.waiting = RunWaiting("input", "person")
        assert (result := result_of(state, stored)).phase == "waiting"
        assert result.waiting is not None
        for ended in (RunSucceeded("ok"), RunFailed("bad", "no", "it failed")):
            state.ended = ended
            assert (result := result_of(state, stored)).phase == phase_of(ended)
            assert result.waiting is None


# --- opening ---------------------------------------------------------------------------------------------------------


async def test_an_open_runtime_is_not_opened_a_second_time(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "foliot.db")
    async with runtime:
        with pytest.raises(UsageError, match="open already"):
            async with runtime:
                pytest.fail("it was opened twice")
        assert await runtime.runs.list() == []
    both = await asyncio.gather(runtime.__aenter__(), runtime.__aenter__(), return_exceptions=True)
    assert sorted(type(each).__name__ for each in both) == ["Runtime", "UsageError"]
    await runtime.__aexit__(None, None, None)
    async with runtime:  # closed, and open again
        assert await runtime.runs.list() == []


def test_run_sync_fails_with_one_traceback(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as failed:
        Runtime(tmp_path / "foliot.db").run_sync("none", "go")
    shown = "".join(traceback.format_exception(failed.value))
    assert "During handling" not in shown
    assert "no running event loop" not in shown


async def test_run_sync_inside_a_loop_is_refused_plainly(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inside an event loop"):
        Runtime(tmp_path / "foliot.db").run_sync("none", "go")
