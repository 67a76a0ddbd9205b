"""Text that people saw before an error, a stop or an interrupt: it is recorded, and the next turn knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime
from foliot.engine.driver.journal import read_conversation, signal
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, RestartDelta, Text, TextDelta
from foliot.kernel.run.events import InputReceived, ModelCut
from foliot.models.base import ModelOverloaded, ModelRequestError, OnDelta


class Writer:
    """A gateway that streams words; then it does what `then` says: hang, fail, or answer."""

    def __init__(self, *then: Any) -> None:
        self.then = list(then)
        self.asked: list[ModelRequest] = []
        self.shown = asyncio.Event()

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        self.asked.append(request)
        then = self.then.pop(0) if self.then else "whole"
        if on_delta is not None:
            for word in ("The answer ", "is fo"):
                on_delta(TextDelta(word))
        self.shown.set()
        if then == "hang":
            await asyncio.Event().wait()
        if then == "restart":
            assert on_delta is not None
            on_delta(RestartDelta("again"))
            raise ModelRequestError("no")
        if isinstance(then, Exception):
            raise then
        return ModelResponse(Message("assistant", (Text(then),)))

    async def close(self) -> None: ...


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "foliot.db")}.get(request.param)
    url = url or request.getfixturevalue("postgres_url")
    async with Runtime(url) as made:
        yield made


async def cuts(rt: Runtime, run_id: str) -> list[ModelCut]:
    return [event for _, event in await rt.inside.runs.facts(run_id) if isinstance(event, ModelCut)]


async def said(rt: Runtime, run_id: str) -> list[str]:
    return [message.text for message in await read_conversation(rt.inside.runs.journal, run_id)]


async def test_a_turn_that_was_stopped_leaves_what_was_shown_to_the_next_one(rt: Runtime) -> None:
    model = Writer("hang")
    agent = Agent("clerk", model=model)
    running = asyncio.create_task(rt.inside.run(agent, "what is it?", run_id="first", stream=True, check=False))
    await model.shown.wait()
    await rt.inside.cancel("first", by="ann")
    await running

    await rt.inside.run(agent, "go on", after="first")

    assert [(cut.text, cut.reason) for cut in await cuts(rt, "first")] == [("The answer is fo", "stopped")]
    question, shown, next_one = model.asked[-1].messages
    assert (question.text, next_one.text) == ("what is it?", "go on")
    assert shown.role == "assistant"
    assert shown.text == "The answer is fo\n[cut off here: the run was stopped]"


async def test_an_answer_that_failed_for_good_is_kept_as_far_as_it_was_shown(rt: Runtime) -> None:
    agent = Agent("clerk", model=Writer(ModelRequestError("refused")))

    await rt.inside.run(agent, "what?", run_id="first", stream=True, check=False)

    assert (await said(rt, "first"))[1:] == ["The answer is fo\n[cut off here: the model failed]"]


async def test_an_answer_that_came_after_all_stands_once(rt: Runtime) -> None:
    agent = Agent("clerk", model=Writer(ModelOverloaded("busy", retry_after=0.0), "The answer is four."))

    done = await rt.inside.run(agent, "what?", stream=True)

    assert await cuts(rt, done.run_id), "it was recorded when the first attempt failed"
    assert await said(rt, done.run_id) == ["what?", "The answer is four."]


async def test_what_nobody_saw_is_not_recorded(rt: Runtime) -> None:
    agent = Agent("clerk", model=Writer(ModelRequestError("refused")))

    done = await rt.inside.run(agent, "what?", check=False)

    assert await cuts(rt, done.run_id) == []
    assert await said(rt, done.run_id) == ["what?"]


async def test_pieces_that_were_taken_back_are_not_recorded(rt: Runtime) -> None:
    agent = Agent("clerk", model=Writer("restart"))

    done = await rt.inside.run(agent, "what?", stream=True, check=False)

    assert await cuts(rt, done.run_id) == []


async def test_what_was_shown_before_an_interrupt_stands_before_what_was_said(rt: Runtime) -> None:
    model = Writer("hang", "then five.")
    agent = Agent("clerk", model=model)
    running = asyncio.create_task(rt.inside.run(agent, "what is it?", run_id="first", stream=True))
    await model.shown.wait()
    stop = InputReceived("i1", Message("user", (Text("no, the other one"),)), "interrupt", "ann")
    heard = signal("first", stop, rt.inside.clock())
    await rt.inside.runs.journal.signal(heard)
    driver = rt.inside.runs.local("first")
    assert driver is not None
    driver.deliver(heard)
    await running

    assert await said(rt, "first") == [
        "what is it?",
        "The answer is fo\n[cut off here: it was interrupted]",
        "no, the other one",
        "then five.",
    ]


async def test_trace_and_why_tell_what_people_had_seen(rt: Runtime) -> None:
    agent = Agent("clerk", model=Writer(ModelRequestError("refused")))
    done = await rt.inside.run(agent, "what?", stream=True, check=False)

    trace, why = await rt.runs.trace(done.run_id), await rt.runs.why(done.run_id)

    assert any("had seen 16 characters" in mark.text for mark in trace.marks)
    assert any("had seen 16 characters" in line for line in why.way)
