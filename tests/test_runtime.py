"""The Python API: agents and tools declared in Python, run durably."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from pydantic import BaseModel

from foliot import Agent, Recorded, RunFailedError, Runtime, ScriptedModel, Streamed, tool
from foliot.errors import Conflict, InvalidInput, NotFound, UsageError
from foliot.kernel.messages import TextDelta
from foliot.kernel.run.codec import type_of
from foliot.resources.problems import ManifestError
from foliot.store.journal.base import RunHeld


@tool(effect="read")
async def population(city: str) -> int:
    """How many people live in a city."""
    return {"Oslo": 717_000, "Rome": 2_750_000}[city]


LOOK_UP = [{"call": {"population": {"city": "Oslo"}}}, {"say": "Oslo has {last_result} people."}]


def clerk(script=LOOK_UP, **spec) -> Agent:
    fields = {"tools": [population], "prompt": "You answer questions about cities.", **spec}
    return Agent("clerk", model=ScriptedModel(script), **fields)


@pytest.fixture(params=["memory", "sqlite"])
async def runtime(request, tmp_path):
    store = "memory:" if request.param == "memory" else tmp_path / "foliot.db"
    async with Runtime(store) as rt:
        yield rt


async def types_of(runtime: Runtime, run_id: str) -> list[str]:
    return [type_of(event) for _, event in await runtime.inside.runs.facts(run_id)]


async def test_an_agent_uses_its_tool_and_answers(runtime: Runtime) -> None:
    result = await runtime.run(clerk(), "How many people live in Oslo?")

    assert result.output == "Oslo has 717000 people."
    assert (result.phase, result.steps) == ("succeeded", 2)
    assert await types_of(runtime, result.run_id) == [
        "run.created",
        "run.claimed",
        "step.started",
        "model.responded",
        "tool.started",
        "tool.finished",
        "step.started",
        "model.responded",
        "run.succeeded",
    ]


async def test_a_structured_answer_is_a_pydantic_model(runtime: Runtime) -> None:
    class City(BaseModel):
        name: str
        people: int

    agent = clerk(
        [{"say": '{"name": "Oslo", "people": "many"}'}, {"say": '{"name": "Oslo", "people": 7}'}], output=City
    )

    result = await runtime.run(agent, "Tell me about Oslo")

    assert result.value == City(name="Oslo", people=7)
    assert "output.rejected" in await types_of(runtime, result.run_id)


async def test_a_stream_shows_pieces_first_and_then_what_is_durable(runtime: Runtime) -> None:
    text, recorded = "", []
    async for item in runtime.stream(clerk(), "Oslo?"):
        match item:
            case Streamed(delta=TextDelta(text=piece)):
                text += piece
            case Recorded():
                recorded.append(item)

    assert text == "Oslo has 717000 people."
    assert [item.seq for item in recorded] == list(range(1, 10))
    assert type_of(recorded[-1].event) == "run.succeeded"


async def test_a_failing_tool_is_told_to_the_model_and_does_not_end_the_run(runtime: Runtime) -> None:
    script = [{"call": {"population": {"city": "Atlantis"}}}, {"say": "I could not find it: {last_result}"}]

    result = await runtime.run(clerk(script), "Atlantis?")

    assert result.succeeded
    assert "KeyError" in result.output


async def test_a_run_that_fails_raises_and_says_where_to_look(runtime: Runtime) -> None:
    agent = clerk([{"call": {"population": {"city": "Oslo"}}, "repeat": 9}], limits={"max_steps": 2})

    with pytest.raises(RunFailedError) as caught:
        await runtime.run(agent, "Oslo?")

    result = caught.value.result
    assert (result.phase, result.steps) == ("failed", 2)
    command = f"foliot why {result.run_id}"
    here = f'`await rt.runs.why("{result.run_id}")` says more'  # no command reaches a store in memory
    assert caught.value.hint == (here if runtime.inside._open().database is None else command)
    assert (await runtime.run(agent, "Oslo?", check=False)).phase == "failed"


@pytest.mark.parametrize("run_id", ["", "a b", "../x", "-x", "x\ud800", "x" * 129])
async def test_an_id_that_could_not_be_typed_again_is_refused(runtime: Runtime, run_id: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be the id of a run|is not text"):
        await runtime.run(clerk(), "hi", run_id=run_id)


async def test_an_id_that_was_made_here_is_new_until_a_run_begins_with_it(runtime: Runtime) -> None:
    made, forked = runtime.inside.new_run_id(), runtime.inside.new_run_id()
    assert runtime.inside.is_new(made)

    first = await runtime.run(clerk(), "hi", run_id=made)
    fork = await runtime.inside.fork(made, at=1, new_id=forked)

    assert not runtime.inside.is_new(made)
    assert (await runtime.run(clerk(), "hi", run_id=made)).output == first.output
    assert (await runtime.run(clerk(), "hi", run_id=forked)).output == fork.output


async def test_the_same_run_id_again_gives_the_same_run(runtime: Runtime) -> None:
    calls = 0

    @tool
    async def pay() -> str:
        nonlocal calls
        calls += 1
        return "paid"

    agent = Agent("payer", model=ScriptedModel([{"call": "pay"}, {"say": "done"}]), tools=[pay])

    first = await runtime.run(agent, "pay", run_id="order-17")
    again = await runtime.run(agent, "pay", run_id="order-17")

    assert first.output == again.output == "done"
    assert calls == 1


async def test_cancelling_stops_the_tool_and_ends_the_run(runtime: Runtime) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    agent = Agent("waiter", model=ScriptedModel([{"call": "forever"}, {"say": "never"}]), tools=[forever])
    task = asyncio.create_task(runtime.run(agent, "go", run_id="r1", check=False))
    await asyncio.wait_for(started.wait(), 60)

    await runtime.inside.cancel("r1", by="ann", reason="enough")
    result = await asyncio.wait_for(task, 60)

    assert result.phase == "cancelled"
    assert stopped.is_set()
    kinds = await types_of(runtime, "r1")
    assert kinds[-1] == "run.cancelled"
    assert kinds.count("tool.finished") == 1


async def test_leaving_a_stream_lets_the_run_go_and_resume_takes_it_up(runtime: Runtime) -> None:
    agent = clerk([LOOK_UP[0], {**LOOK_UP[1], "after": "200ms"}])  # the model is still thinking when the reader leaves
    async with contextlib.aclosing(runtime.stream(agent, "Oslo?", run_id="r1")) as stream:
        async for item in stream:
            if isinstance(item, Recorded) and type_of(item.event) == "tool.finished":
                break

    result = await runtime.resume("r1")

    assert result.output == "Oslo has 717000 people."
    kinds = await types_of(runtime, "r1")
    assert kinds.count("tool.started") == 1
    assert kinds.count("run.claimed") == 2


async def test_who_resumes_a_run_that_this_process_drives_waits_for_it_and_gets_the_answer(runtime: Runtime) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def hold() -> None:
        started.set()
        await gate.wait()

    agent = Agent("holder", model=ScriptedModel([{"call": "hold"}, {"say": "done"}]), tools=[hold])
    task = asyncio.create_task(runtime.run(agent, "go", run_id="r1"))
    await asyncio.wait_for(started.wait(), 60)
    with pytest.raises(RunHeld):
        await runtime.inside.resume("r1", joins=False)
    again = [asyncio.create_task(runtime.resume("r1")), asyncio.create_task(runtime.run(agent, "go", run_id="r1"))]
    await asyncio.wait(again, timeout=0)
    gate.set()
    assert [(await each).output for each in (task, *again)] == ["done"] * 3
    assert (await types_of(runtime, "r1")).count("run.claimed") == 1


async def test_what_is_said_to_a_live_run_is_heard_at_the_next_step(runtime: Runtime) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def hold() -> None:
        started.set()
        await gate.wait()

    agent = Agent("holder", model=ScriptedModel([{"call": "hold"}, {"say": "You said: {input}"}]), tools=[hold])
    task = asyncio.create_task(runtime.run(agent, "go", run_id="r1"))
    await asyncio.wait_for(started.wait(), 60)
    await runtime.runs.say("r1", "also Rome, please")
    gate.set()

    assert (await task).output == "You said: also Rome, please"


async def test_a_fork_shares_the_past_and_goes_its_own_way(runtime: Runtime) -> None:
    agent = clerk()
    original = await runtime.run(agent, "Oslo?")
    runtime.inside._assembly.models.serve(
        "other:model", ScriptedModel(lambda request: f"Shorter: {len(request.messages)}")
    )

    forked = await runtime.inside.fork(original.run_id, at=2, model="other:model", prompt="Be brief.")

    assert forked.run_id != original.run_id
    assert forked.output == "Shorter: 3"
    info = await runtime.inside.runs.journal.get(forked.run_id)
    assert info.parent == original.run_id
    with pytest.raises(NotFound, match="no step 9"):
        await runtime.inside.fork(original.run_id, at=9)


async def test_a_fork_at_the_first_step_can_be_asked_something_else(runtime: Runtime) -> None:
    agent = clerk([{"say": "You asked: {input}"}])
    original = await runtime.run(agent, "Oslo?")

    forked = await runtime.inside.fork(original.run_id, at=1, input="Rome?")

    assert (original.output, forked.output) == ("You asked: Oslo?", "You asked: Rome?")


async def test_a_replay_decides_everything_again_as_it_was(runtime: Runtime) -> None:
    result = await runtime.run(clerk(), "Oslo?")

    replayed = await runtime.inside.replay(result.run_id)

    assert replayed.difference is None
    assert replayed.events == 9
    assert replayed.decided == 3  # two starts of a step, and the end
    assert replayed.state.ended is not None


async def test_a_replay_says_where_a_journal_was_changed(runtime: Runtime) -> None:
    result = await runtime.run(clerk(), "Oslo?")
    journal = runtime.inside.runs.journal
    entries = await journal.read(result.run_id)
    from msgspec.structs import replace

    from foliot.engine.explain.replay import replay

    forged = [
        replace(entry, data=entry.data.replace(b"717000 people", b"7 people")) if entry.seq == 9 else entry
        for entry in entries
    ]
    _, state = await runtime.inside.runs.load(result.run_id)

    found = replay(state.spec, result.run_id, forged)

    assert found.difference is not None
    assert found.difference.seq == 9


def test_a_wrong_declaration_names_every_problem() -> None:
    with pytest.raises(ManifestError) as caught:
        Agent("bad name!", model=ScriptedModel("echo"), limits={"max_stepz": 3}, output={"type": "nonsense"})

    text = str(caught.value) + "".join(str(finding) for finding in caught.value.findings)
    assert "max_steps" in text
    assert "name" in text


async def test_a_runtime_that_is_not_open_says_so() -> None:
    with pytest.raises(UsageError, match="not open"):
        await Runtime("memory:").run(clerk(), "hi")


async def test_a_missing_tool_is_named_before_anything_runs(runtime: Runtime) -> None:
    with pytest.raises(NotFound, match="teleport"):
        await runtime.run(clerk(tools=["teleport"]), "go")
    assert await runtime.inside.runs.journal.list() == []


async def test_an_ended_run_cannot_be_cancelled(runtime: Runtime) -> None:
    result = await runtime.run(clerk(), "Oslo?")
    with pytest.raises(Conflict, match="has ended"):
        await runtime.inside.cancel(result.run_id)


async def test_a_run_that_waits_for_the_model_can_be_cancelled_and_its_caller_hears_of_it_at_once(
    runtime: Runtime,
) -> None:
    agent = Agent("patient", model=ScriptedModel([{"fail": "overloaded", "times": 99, "say": "never"}]))
    task = asyncio.create_task(runtime.run(agent, "go", run_id="r1", check=False))
    async with asyncio.timeout(60):
        while not (await runtime.inside.runs.journal.list(phases=["waiting"])):
            await asyncio.sleep(0.01)

    await runtime.inside.cancel("r1")

    assert (await asyncio.wait_for(task, 60)).phase == "cancelled"


async def test_a_decision_about_a_call_that_does_not_ask_for_one_is_refused(runtime: Runtime) -> None:
    result = await runtime.run(clerk(), "Oslo?")
    with pytest.raises(NotFound, match="no call"):
        await runtime.inside.settle_call(result.run_id, "call-9", "run")


async def test_a_failed_run_in_memory_hints_at_what_works_there() -> None:
    async with Runtime("memory:") as runtime:
        with pytest.raises(RunFailedError) as caught:
            await runtime.run(Agent("clerk", model=ScriptedModel([{"fail": "auth"}])), "hi")
        assert caught.value.hint == f'`await rt.runs.why("{caught.value.result.run_id}")` says more'
        assert (await runtime.runs.why(caught.value.result.run_id)).headline


async def test_a_store_that_cannot_be_used_is_not_blamed_on_a_flag() -> None:
    with pytest.raises(UsageError, match=r"^Runtime: 'mysql://x' cannot be used"):
        async with Runtime("mysql://x"):
            pass
