"""What is said to a run outside of sessions: each mode does what it says, once, and nothing said is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.driver.journal import signal
from foliot.engine.driver.runs import user_message
from foliot.errors import Conflict, InvalidInput
from foliot.kernel import inbox
from foliot.kernel.inbox import MODES
from foliot.kernel.messages import Message, ModelRequest, Text, ToolResult
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import CancelRequested, InputReceived, RunCreated, ToolFinished
from foliot.runtime.inputs import RunInput
from foliot.runtime.results import RunFailedError
from foliot.store.journal.base import TERMINAL, NewRun
from foliot.store.queue.placement import Offer
from foliot.store.sessions import run_inputs
from foliot.store.sessions.base import InboxFull, NewInput
from foliot.store.sessions.run_inputs import RunInputs, restarting
from foliot.work.tasks.base import Command


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "foliot.db")}.get(request.param)
    url = url or request.getfixturevalue("postgres_url")
    async with Runtime(url) as made:
        yield made


class Held:
    """A run that stands in a call of its tool until the gate opens."""

    def __init__(self, rt: Runtime, *, steps: int = 50, inbox: dict[str, Any] | None = None) -> None:
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
        self.agent = Agent("holder", model=ScriptedModel(script), tools=[hold], limits=limits, inbox=inbox or {})

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


@pytest.mark.parametrize("store", ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def test_what_is_collected_waits_for_the_silence_that_the_agent_declares(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "foliot.db")}.get(store)
    late = 0.0
    async with Runtime(url or request.getfixturevalue("postgres_url"), clock=lambda: time.time() + late) as rt:
        async with Held(rt) as held:
            held.agent.document["spec"]["inbox"] = {"debounce": "1h"}
            await rt.runs.say("r1", "one", mode="collect")
            held.gate.set()
            while (row := await rt.inside.runs.journal.get("r1")).phase != "waiting":
                await asyncio.sleep(0)
            assert row.summary["waiting"]["reason"] == "collecting"
            assert (await rt.runs.say("r1", "two", mode="collect")).outcome == "queued"
            while len([e for _, e in await rt.inside.runs.facts("r1") if isinstance(e, InputReceived)]) < 2:
                await asyncio.sleep(0)
            assert await answers(rt, "r1") == ["heard go"]
            late = 3601.0
            assert (await asyncio.wait_for(held.task, 60)).output == "heard two"
        assert await answers(rt, "r1") == ["heard go", "heard two"]
        assert (await rt.inside.replay("r1")).difference is None


async def test_a_declared_agent_says_how_long_its_runs_collect(rt: Runtime) -> None:
    if not rt.inside.keeps:
        pytest.skip("nothing is declared in memory")
    spec = {"model_ref": "brain", "inbox": {"debounce": "7s"}}
    brain = {"provider": "scripted", "script": {"otherwise": "x"}}
    await rt.resources.apply([{"kind": "ModelEndpoint", "metadata": {"name": "brain"}, "spec": brain}])
    await rt.resources.apply([{"kind": "Agent", "metadata": {"name": "clerk"}, "spec": spec}])
    await rt.run("clerk", "go", run_id="r0")
    info = await rt.inside.runs.journal.get("r0")
    first = await rt.inside.runs.journal.read("r0", limit=1)
    await rt.inside.runs.journal.create(NewRun("r1", "default", "clerk", info.spec, 0.0), first)  # nobody drives it
    said = NewInput("i1", "collect", Message("user", (Text("one"),)), "sha256:00")
    await RunInputs(rt.inside.database).say("r1", said, now=5.0)
    (heard,) = [decode(each.data) for each in await rt.inside.runs.journal.signals(["r1"])]
    assert isinstance(heard, InputReceived)
    assert (heard.said_at, heard.debounce) == (5.0, 7.0)


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


@pytest.mark.parametrize("restarted", [False, True])
async def test_nothing_is_said_to_a_run_of_an_archived_task(tmp_path: Path, restarted: bool) -> None:
    async with Runtime(str(tmp_path / "foliot.db")) as rt:
        await rt.resources.apply(
            [
                {
                    "kind": "ModelEndpoint",
                    "metadata": {"name": "brain"},
                    "spec": {"provider": "scripted", "script": {"turns": [], "otherwise": "heard {input}"}},
                },
                {"kind": "Agent", "metadata": {"name": "clerk"}, "spec": {"model_ref": "brain"}},
            ]
        )
        await rt.tasks.submit(Command("agent", "clerk", message="one", name="t"))
        offer = Offer("w", rt.inside.runs.worker)
        await asyncio.wait_for(rt.inside.tasking.worker(offer, grace=0.0, once=True).run(), 60)
        (run,) = await rt.inside.runs.journal.list(agent="clerk")
        before = [run.id]
        if restarted:
            said = await rt.runs.say(run.id, "two", mode="followup", key="k")
            await rt.runs.wait(said.run.id)
            before.append(said.run.id)
            task = await rt.tasks.get("t")
            assert (said.outcome, task.phase) == ("restarted", "succeeded"), "the task stays as it ended"
        await rt.tasks.archive("t")
        with pytest.raises(Conflict, match="task t is archived"):
            await rt.runs.say(run.id, "three", mode="followup")
        body = restarting(run.id, run.key, NewInput("x", "followup", user_message("x"), "d"), "new", now=1.0)
        with pytest.raises(Conflict, match="task t is archived"):  # archived since it was looked at
            await rt.inside.database.write(body)
        assert {each.id for each in await rt.inside.runs.journal.list(agent="clerk")} == set(before)
        if restarted:
            again = await rt.runs.say(run.id, "two", mode="followup", key="k")
            assert (again.outcome, again.again, again.run.id) == ("restarted", True, before[1])


async def heard(rt: Runtime, count: int) -> None:
    """Returns when the run has so many inputs in its journal: from then on no signal counts them."""
    driver = rt.inside.runs.local("r1")
    async with asyncio.timeout(60):
        while driver is None or len(driver.state.inputs) < count or await rt.inside.runs.journal.signals(["r1"]):
            await asyncio.sleep(0)


async def test_what_a_run_has_heard_and_not_answered_still_fills_its_inbox(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_WAITING", 4)
    monkeypatch.setattr(run_inputs, "MOST_WAITING", 4)
    async with Held(rt, inbox={"cap": 4}) as run:
        for n, mode in enumerate(("followup", "collect", "steer", "steer-backlog")):
            await rt.runs.say("r1", f"m{n}", mode=mode, key=f"k{n}")
        await heard(rt, 4)
        for mode in MODES:
            with pytest.raises(InboxFull, match="input queue is full"):
                await rt.runs.say("r1", "too much", mode=mode)
        assert (await rt.runs.say("r1", "m0", mode="followup", key="k0")).again, "what was taken is still known"
        run.gate.set()
        result = await run.task
    asked = [message.text for message in result.messages if message.role == "user"]
    assert sorted(asked) == ["go", "m0", "m1", "m2", "m3", "m3"]
    assert (await rt.runs.say("r1", "next", mode="followup")).outcome == "restarted"


async def test_answered_inputs_make_room(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_WAITING", 2)
    monkeypatch.setattr(run_inputs, "MOST_WAITING", 2)
    begun, gate = asyncio.Queue[str](), asyncio.Semaphore(0)

    async def answer(request: ModelRequest) -> str:
        begun.put_nowait(request.messages[-1].text)
        await gate.acquire()
        return "done"

    task = asyncio.create_task(rt.run(Agent("slow", model=ScriptedModel(answer), inbox={"cap": 2}), "go", run_id="r1"))
    async with asyncio.timeout(60):
        assert await begun.get() == "go"
        for n in range(2):
            await rt.runs.say("r1", f"m{n}", mode="followup")
        for n in range(2, 6):
            await heard(rt, 2)
            with pytest.raises(InboxFull):
                await rt.runs.say("r1", "too much", mode="followup")
            gate.release()
            assert await begun.get() == f"m{n - 2}"
            await rt.runs.say("r1", f"m{n}", mode="followup")
        for _ in range(3):
            gate.release()
        await task


async def test_the_bytes_that_wait_for_a_run_are_limited(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_BYTES", 1000)
    async with Held(rt):
        await rt.runs.say("r1", "x" * 600, mode="followup")
        await heard(rt, 1)
        with pytest.raises(InboxFull):
            await rt.runs.say("r1", "y" * 600, mode="followup")
        with pytest.raises(InvalidInput, match="1,000,001 characters"):
            await rt.runs.say("r1", "z" * 1_000_001, mode="followup")


@pytest.mark.parametrize(("drop", "refuses"), [("new", True), ("old", False), ("summarize", False)])
async def test_the_cap_of_an_agent_refuses_and_takes_nothing_back(rt: Runtime, drop: str, refuses: bool) -> None:
    async with Held(rt, inbox={"cap": 1, "drop": drop}) as run:
        await rt.runs.say("r1", "first", mode="followup")
        await heard(rt, 1)
        if refuses:
            with pytest.raises(InboxFull):
                await rt.runs.say("r1", "second", mode="followup")
            await rt.runs.say("r1", "second", mode="queue")
        else:
            await rt.runs.say("r1", "second", mode="followup")
        run.gate.set()
        result = await run.task
    assert [each.text for each in result.messages if each.role == "user"] == ["go", "first", "second"]


async def test_an_ended_run_keeps_no_second_copy_of_what_it_did_not_answer(tmp_path: Path) -> None:
    async with Runtime(str(tmp_path / "foliot.db")) as rt:
        with contextlib.suppress(RunFailedError):
            async with Held(rt, steps=1):
                await rt.runs.say("r1", "left", mode="followup")
                await heard(rt, 1)
        ended = await rt.inside.runs.journal.get("r1")
        assert ended.phase == "failed"
        key = ended.key
        (row,) = await rt.inside.database.read("inbox_list", owner_kind="run", owner=key, after=0, count=9)
        assert (row["status"], row["message"]) == ("consumed", None)
        said = await rt.runs.say("r1", "again", mode="followup")
        _, state = await rt.inside.runs.load(said.run.id)
        assert state.created is not None
        assert [each.text for each in state.created.input][-2:] == ["left", "again"]


# --- while the run asks -----------------------------------------------------------------------------------------------


def asker(name: str, *questions: str, below: str = "") -> Agent:
    step = {"call": [{"ask_user": {"question": each}} for each in questions]}
    if below:
        step = {"call": {f"agent:{below}": {"input": "go"}}}
    tools = [f"agent:{below}"] if below else ["ask_user"]
    return Agent(name, model=ScriptedModel([step, *[{"say": "told {last_result}"}] * 9]), tools=tools)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "interrupt"])
async def test_what_is_said_is_the_answer_to_an_open_question(rt: Runtime, mode: str) -> None:
    waiting = await rt.run(asker("clerk", "Which day?"), "go", run_id="r1", check=False)
    assert waiting.phase == "waiting"
    said = await rt.runs.say("r1", "Thursday", mode=mode, key="k")
    assert (said.outcome, said.run.id, bool(said.answered)) == ("direct", "r1", True)
    assert (await rt.resume("r1")).output == "told Thursday"
    again = await rt.runs.say("r1", "Thursday", mode=mode, key="k")
    assert again.again, "the key is one input, also after the run has ended"


async def test_what_is_said_answers_a_run_below_too(rt: Runtime) -> None:
    rt.inside.know(asker("inner", "Which day?"))
    going = asyncio.create_task(rt.run(asker("outer", below="inner"), "go", run_id="r1", check=False))
    async with asyncio.timeout(60):
        while not await rt.inside.questions.open("default"):
            await asyncio.sleep(0.02)
    said = await rt.runs.say("r1", "Thursday")
    assert (said.outcome, said.run.id, bool(said.answered)) == ("direct", "r1", True)
    async with asyncio.timeout(60):
        await going
        assert (await rt.resume("r1")).output == "told told Thursday"


async def test_of_several_questions_what_is_said_names_one(rt: Runtime) -> None:
    await rt.run(asker("clerk", "Which day?", "Which city?"), "go", run_id="r1", check=False)
    with pytest.raises(Conflict, match="1: Which day"):
        await rt.runs.say("r1", "Thursday")
    assert (await rt.runs.say("r1", "2: Turin")).answered
    assert (await rt.runs.say("r1", "Thursday")).answered
    await rt.resume("r1")
    _, state = await rt.inside.runs.load("r1")
    results = [part.text for message in state.transcript for part in message.parts if isinstance(part, ToolResult)]
    assert results == ["Thursday", "Turin"]


async def test_an_interrupt_is_never_the_answer(rt: Runtime) -> None:
    await rt.run(asker("clerk", "Which day?"), "go", run_id="r1", check=False)
    said = await rt.runs.say("r1", "Forget it", mode="interrupt")
    assert (said.outcome, said.answered) == ("interrupted", "")


async def asked(rt: Runtime, count: int = 1) -> list[str]:
    """Waits until so many things are asked; the runs that ask."""
    async with asyncio.timeout(60):
        while len(found := await rt.inside.questions.open("default")) < count:
            await asyncio.sleep(0.02)
    return [each.run_id for each in found]


async def ended(rt: Runtime, run_id: str) -> str:
    """Waits for the end of a run that something drives, and takes it up itself in no case; its phase."""
    async with asyncio.timeout(60):
        while (info := await rt.inside.runs.journal.get(run_id)).phase not in TERMINAL:
            await asyncio.sleep(0.02)
    return info.phase


@pytest.mark.parametrize("to", ["outer", "middle", "inner"])
async def test_what_is_said_to_any_run_above_a_question_answers_it(rt: Runtime, to: str) -> None:
    rt.inside.know(asker("inner", "Which day?"))
    rt.inside.know(asker("middle", below="inner"))
    going = asyncio.create_task(rt.run(asker("outer", below="middle"), "go", check=False))
    await asked(rt)
    (run,) = await rt.inside.runs.journal.list(agent=to)
    said = await rt.runs.say(run.id, "Thursday")
    assert (said.outcome, said.run.id, bool(said.answered)) == ("direct", run.id, True)
    async with asyncio.timeout(60):
        assert (await going).output == "told told told Thursday"


async def test_what_is_said_to_a_run_answers_nothing_above_or_beside_it(rt: Runtime) -> None:
    for name in ("one", "two"):
        rt.inside.know(asker(name, f"Of {name}?"))
        rt.inside.know(asker(f"over-{name}", below=name))
    step = {"call": [{f"agent:over-{name}": {"input": "go"}} for name in ("one", "two")]}
    tools = ["agent:over-one", "agent:over-two"]
    outer = Agent("outer", model=ScriptedModel([step, {"say": "done"}]), tools=tools)
    going = asyncio.create_task(rt.run(outer, "go", check=False))
    await asked(rt, 2)
    for name in ("one", "two"):
        (run,) = await rt.inside.runs.journal.list(agent=f"over-{name}")
        assert (await rt.runs.say(run.id, f"Word of {name}")).answered
        (below,) = await rt.inside.runs.journal.list(agent=name)
        await ended(rt, below.id)
        _, state = await rt.inside.runs.load(below.id)
        assert state.transcript[-1].text == f"told Word of {name}"
    async with asyncio.timeout(60):
        await going


ASKS_BELOW = [
    {"kind": "ModelEndpoint", "metadata": {"name": f"of-{name}"}, "spec": {"provider": "scripted", "script": script}}
    for name, script in (
        ("outer", [{"call": {"agent:inner": {"input": "go"}}}, {"say": "outer {last_result}"}]),
        ("inner", [{"call": {"ask_user": {"question": "Which day?"}}}, {"say": "inner {last_result}"}]),
    )
] + [
    {"kind": "Agent", "metadata": {"name": name}, "spec": {"model_ref": f"of-{name}", "tools": [tool_name]}}
    for name, tool_name in (("inner", "ask_user"), ("outer", "agent:inner"))
]


@pytest.mark.parametrize("rt", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True)
async def test_what_is_said_to_the_run_of_a_task_answers_a_run_below_it(rt: Runtime) -> None:
    await rt.resources.apply(ASKS_BELOW)
    await rt.tasks.submit(Command("agent", "outer", message="go", name="t"))
    worker = asyncio.create_task(rt.inside.tasking.worker(Offer("w", rt.inside.runs.worker), grace=0.0).run())
    try:
        await asked(rt)
        (run,) = await rt.inside.runs.journal.list(agent="outer")
        assert (await rt.runs.say(run.id, "Thursday")).answered
        assert await ended(rt, run.id) == "succeeded"
    finally:
        worker.cancel()
        await asyncio.wait({worker})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url: str = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "foliot.db")
    return url


@pytest.mark.parametrize("way", ["say", "say-below", "answer"])
async def test_after_a_restart_an_answer_below_has_the_runs_above_go_on(store_url: str, way: str) -> None:
    async with Runtime(store_url) as rt:
        await rt.resources.apply(ASKS_BELOW)
        await rt.runs.start("outer", "go", run_id="r1")
        await asked(rt)
    async with Runtime(store_url) as rt:
        (asker_id,) = await asked(rt)
        assert (await rt.inside.runs.journal.get("r1")).phase == "pending"
        if way == "answer":
            await rt.questions.answer(asker_id, "Thursday")
        else:
            assert (await rt.runs.say("r1" if way == "say" else asker_id, "Thursday")).answered
        assert await ended(rt, "r1") == "succeeded"
        _, state = await rt.inside.runs.load("r1")
        assert state.transcript[-1].text == "outer inner Thursday"


async def test_after_a_restart_a_run_that_asks_again_is_answered_again(store_url: str) -> None:
    steps = [{"call": {"ask_user": {"question": each}}} for each in ("Which day?", "Which city?")]
    script = {"provider": "scripted", "script": [*steps, {"say": "inner {last_result}"}]}
    twice = {"kind": "ModelEndpoint", "metadata": {"name": "of-inner"}, "spec": script}
    async with Runtime(store_url) as rt:
        await rt.resources.apply([*(each for each in ASKS_BELOW if each["metadata"] != twice["metadata"]), twice])
        await rt.runs.start("outer", "go", run_id="r1")
        await asked(rt)
    async with Runtime(store_url) as rt:
        assert (await rt.runs.say("r1", "Thursday")).answered
        async with asyncio.timeout(60):
            while [each.question for each in await rt.inside.questions.open("default")] != ["Which city?"]:
                await asyncio.sleep(0.02)
        assert (await rt.runs.say("r1", "Turin")).answered
        assert await ended(rt, "r1") == "succeeded"


async def test_a_run_that_is_held_for_a_moment_still_asks(store_url: str) -> None:
    """Who resumes the run above takes the one that asks, and gives it back when it cannot go on."""
    async with Runtime(store_url) as rt:
        await rt.resources.apply(ASKS_BELOW)
        await rt.runs.start("outer", "go", run_id="r1")
        (asker_id,) = await asked(rt)
    async with Runtime(store_url) as rt:
        journal, now = rt.inside.runs.journal, rt.inside.clock()
        lease = await journal.claim(asker_id, worker="for a moment", now=now + 3600, until=now + 7200)
        assert (await journal.get(asker_id)).phase == "running"
        assert (await rt.runs.say("r1", "Thursday")).answered
        await journal.append(lease, [], phase="pending")
        await rt.runs.resume("r1")
        assert await ended(rt, "r1") == "succeeded"


async def test_a_decision_to_end_a_run_below_wakes_nothing_above(store_url: str) -> None:
    """Whoever cancels a run in a command that ends at once does not begin the work of another."""
    async with Runtime(store_url) as rt:
        await rt.resources.apply(ASKS_BELOW)
        await rt.runs.start("outer", "go", run_id="r1")
        await asked(rt)
    async with Runtime(store_url) as rt:
        (asker_id,) = await asked(rt)
        await rt.runs.cancel(asker_id)
        assert (await rt.inside.runs.journal.get("r1")).phase == "pending"
        assert rt.inside.runs.local("r1") is None
