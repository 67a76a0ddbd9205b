"""What is said to a run outside of sessions: each mode does what it says, once, and nothing said is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.events import CancelRequested, InputReceived, RunCreated, ToolFinished
from foliot.runtime.inputs import RunInput
from foliot.store.journal.base import NewRun
from foliot.store.sessions.base import NewInput
from foliot.store.sessions.run_inputs import RunInputs


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "foliot.db")}.get(request.param)
    url = url or request.getfixturevalue("postgres_url")
    async with Runtime(url) as made:
        yield made


class Held:
    """A run that stands in a call of its tool until the gate opens."""

    def __init__(self, rt: Runtime, *, steps: int = 50) -> None:
        self.gate, self.started, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.rt = rt

        @tool(effect="read")
        async def hold() -> str:
            self.started.set()
            try:
                await self.gate.wait()
            finally:
                self.stopped.set()
            return "held"

        script = {"turns": [{"call": "hold"}], "otherwise": {"say": "heard {input}"}}
        limits = {"max_steps": steps}
        self.agent = Agent("holder", model=ScriptedModel(script), tools=[hold], limits=limits)

    async def __aenter__(self) -> Held:
        self.task = asyncio.create_task(self.rt.run(self.agent, "go", run_id="r1"))
        await asyncio.wait_for(self.started.wait(), 60)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.set()
        await self.task

    async def end(self) -> str:
        self.gate.set()
        return (await asyncio.wait_for(self.task, 60)).output


async def answers(rt: Runtime, run_id: str) -> list[str]:
    _, state = await rt.inside.runs.load(run_id)
    return [message.text for message in state.transcript if message.role == "assistant" and message.text]


async def test_followups_are_answered_one_by_one_in_the_order_of_arrival(rt: Runtime) -> None:
    async with Held(rt) as held:
        said = [await rt.runs.say("r1", word, mode="followup") for word in ("one", "two", "three")]
        assert {each.outcome for each in said} == {"queued"}
        assert await held.end() == "heard three"
    assert await answers(rt, "r1") == ["heard go", "heard one", "heard two", "heard three"]


async def test_what_is_collected_is_answered_together(rt: Runtime) -> None:
    async with Held(rt) as held:
        for word in ("one", "two"):
            await rt.runs.say("r1", word, mode="collect")
        await held.end()
    assert await answers(rt, "r1") == ["heard go", "heard two"]


async def test_an_interrupt_stops_a_tool_that_never_returns(rt: Runtime) -> None:
    async with Held(rt) as held:
        said = await rt.runs.say("r1", "stop", mode="interrupt")
        assert said.outcome == "interrupted"
        await asyncio.wait_for(held.stopped.wait(), 60)
        assert (await asyncio.wait_for(held.task, 60)).output == "heard stop"  # the gate was never opened
    finished = [event for _, event in await rt.inside.runs.facts("r1") if isinstance(event, ToolFinished)]
    assert [event.synthetic for event in finished] == ["interrupted"]


async def test_an_interrupt_ends_an_answer_that_never_ends(rt: Runtime) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def slow(request: object) -> str:
        if not asked.is_set():
            asked.set()
            await never.wait()
        return "at once"

    agent = Agent("thinker", model=ScriptedModel(slow))  # type: ignore[arg-type]
    task = asyncio.create_task(rt.run(agent, "think", run_id="r1"))
    await asyncio.wait_for(asked.wait(), 60)
    assert (await rt.runs.say("r1", "quick", mode="interrupt")).outcome == "interrupted"
    assert (await asyncio.wait_for(task, 60)).output == "at once"


async def test_an_ended_run_is_restarted_and_the_next_word_goes_to_the_restart(rt: Runtime) -> None:
    agent = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "heard {input}"}}))
    await rt.run(agent, "one", run_id="r1")

    said = await rt.runs.say("r1", "two", key="k")
    assert (said.outcome, said.run.id == "r1") == ("restarted", False)
    await rt.runs.wait(said.run.id)
    created = (await rt.inside.runs.facts(said.run.id))[0][1]
    assert isinstance(created, RunCreated)
    assert created.after == "r1"

    again = await rt.runs.say("r1", "two", key="k")
    assert (again.outcome, again.run.id, again.again) == ("restarted", said.run.id, True)


@pytest.mark.parametrize("rt", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True)
async def test_the_same_key_at_once_restarts_an_ended_run_once(rt: Runtime) -> None:
    agent = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "heard {input}"}}))
    await rt.run(agent, "one", run_id="r1")
    said = await asyncio.gather(*(rt.runs.say("r1", "pay the bill", key="k") for _ in range(5)))
    assert len({each.run.id for each in said}) == 1
    assert [each.again for each in said].count(False) == 1
    assert len({each.arrival for each in said}) == 1
    await rt.runs.wait(said[0].run.id)
    assert len(await rt.inside.runs.journal.list()) == 2


@pytest.mark.parametrize("rt", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True)
async def test_two_who_restart_a_run_at_once_speak_to_one(rt: Runtime) -> None:
    agent = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "heard {input}"}}))
    await rt.run(agent, "one", run_id="r1")
    both = await asyncio.gather(*(rt.runs.say("r1", word, mode="followup") for word in ("two", "three", "four")))
    ends = [await rt.runs.wait(each.run.id) for each in both]
    assert all(each.succeeded for each in ends)
    heads = [each for each in await rt.inside.runs.journal.list() if each.id != "r1"]
    followed = {(await rt.inside.runs.facts(info.id))[0][1].after for info in heads}  # type: ignore[union-attr]
    assert len(followed) == len(heads), "no run is continued by two"
    texts = [text for info in heads for text in await answers(rt, info.id)]
    assert {"heard two", "heard three", "heard four"} <= set(texts)


async def test_the_same_key_is_one_input_with_one_outcome(rt: Runtime) -> None:
    async with Held(rt) as held:
        first = await rt.runs.say("r1", "one", mode="followup", key="k")
        again = await rt.runs.say("r1", "one", mode="followup", key="k")
        assert (again.outcome, again.arrival, again.again) == (first.outcome, first.arrival, True)
        with pytest.raises(Conflict, match="other words"):
            await rt.runs.say("r1", "two", mode="followup", key="k")
        await held.end()
    after: RunInput = await rt.runs.say("r1", "one", mode="followup", key="k")
    assert (after.outcome, after.again) == ("queued", True), "not restarted: it had been said"
    heard = [event for _, event in await rt.inside.runs.facts("r1") if isinstance(event, InputReceived)]
    assert len(heard) == 1


@pytest.mark.parametrize("rt", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True)
async def test_inputs_of_many_writers_are_numbered_without_gaps_and_each_is_answered_once(rt: Runtime) -> None:
    async with Held(rt) as held:
        said = await asyncio.gather(*(rt.runs.say("r1", f"word {n}", mode="followup") for n in range(20)))
        assert sorted(each.arrival for each in said) == list(range(1, 21))
        await held.end()
    in_order = [f"heard word {n}" for n, _ in sorted(enumerate(said), key=lambda each: each[1].arrival)]
    assert await answers(rt, "r1") == ["heard go", *in_order]


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        (" ", "steer", "message is required"),
        ("x", "shout", r'queue_mode "shout" is not supported \(supported: queue, followup, collect, steer'),
    ],
)
async def test_what_cannot_be_said_is_refused_and_not_stored(rt: Runtime, text: str, mode: str, problem: str) -> None:
    async with Held(rt) as held:
        with pytest.raises(InvalidInput, match=problem):
            await rt.runs.say("r1", text, mode=mode)
        assert (await rt.runs.say("r1", "x", mode=" Follow\tup ".replace("\t", ""))).outcome == "queued"
        await held.end()
    assert await answers(rt, "r1") == ["heard go", "heard x"]


async def test_what_is_said_while_a_run_ends_is_answered(rt: Runtime) -> None:
    """Between the decision to end and its commit: the end is taken back."""
    journal = rt.inside.runs.journal
    append, told = journal.append, asyncio.Event()

    async def late(lease, entries, **rest):  # type: ignore[no-untyped-def]
        if rest.get("phase") == "succeeded" and not told.is_set():
            told.set()
            await rt.runs.say("r1", "wait", mode="followup")
        return await append(lease, entries, **rest)

    journal.append = late  # type: ignore[method-assign]
    agent = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "heard {input}"}}))
    assert (await rt.run(agent, "go", run_id="r1")).output == "heard wait"
    assert (await rt.inside.replay("r1")).difference is None


async def test_what_a_run_cannot_answer_within_its_limits_is_answered_when_it_is_restarted(rt: Runtime) -> None:
    async with Held(rt, steps=3) as held:
        for word in ("one", "two"):
            await rt.runs.say("r1", word, mode="followup")
        assert await held.end() == "heard one"
    restarted = await rt.runs.say("r1", "three")
    await rt.runs.wait(restarted.run.id)
    created = (await rt.inside.runs.facts(restarted.run.id))[0][1]
    assert [message.text for message in created.input] == ["two", "three"]  # type: ignore[union-attr]


@pytest.mark.parametrize("rt", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True)
async def test_nothing_is_acknowledged_by_a_run_that_is_being_cancelled(rt: Runtime, tmp_path: Path) -> None:
    agent = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "heard {input}"}}))
    await rt.run(agent, "one", run_id="done")
    journal = rt.inside.runs.journal
    first = await journal.read("done", limit=1)
    info = await journal.get("done")
    await journal.create(NewRun("r1", "default", "clerk", info.spec, 0.0), first)  # nobody drives it
    await journal.signal(signal("r1", CancelRequested("ann"), 0.0))
    said = NewInput("k", "followup", Message("user", (Text("then"),)), "digest")
    with pytest.raises(Conflict, match="being cancelled"):
        await RunInputs(rt.inside.database).say("r1", said, now=0.0)
