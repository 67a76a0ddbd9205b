"""Sessions that are compacted: between turns, by the turn at work, and what people still see of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime
from foliot.errors import Conflict, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall
from foliot.kernel.run.events import SessionCompacted
from tests.sessions.kit import Gate, place, quiet

LONG = "word " * 60
ANN = Identity("ann", via="test")


class Model:
    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []
        self.tool = ""

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked.append(request)
        if "Summarise the segment" in request.messages[-1].text:
            return ModelResponse(Message("assistant", (Text("in short"),)))
        if self.tool and request.messages[-1].role == "user":
            return ModelResponse(Message("assistant", (ToolCall("c1", self.tool),)))
        return ModelResponse(Message("assistant", (Text("fine"),)))

    async def close(self) -> None: ...


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as made:
        yield made


async def begun(rt: Runtime, gate: Gate | None = None, turns: int = 4) -> tuple[str, Model]:
    """A session of some long turns, and its model."""

    async def wait() -> str:
        """Waits for the test."""
        return "" if gate is None else await gate.passed()

    model = Model()
    agent = Agent("helper", model=model, tools=[wait], compaction={"max_tokens": -1, "keep_tail": 2})
    rt.inside._assembly.know(agent)  # pyright: ignore[reportPrivateUsage]
    session = await rt.inside.sessions.create(place(), identity=ANN)
    for number in range(turns):
        await rt.inside.sessions.say(session.id, f"{LONG}{number}", identity=ANN)
        await quiet(rt, session.id)
    return session.id, model


async def test_a_session_is_compacted_by_a_turn_that_answers_nothing(rt: Runtime) -> None:
    id, model = await begun(rt)
    done = await rt.inside.sessions.compact(id, identity=ANN)
    session = await quiet(rt, id)
    assert session.head == done.run_id

    await rt.inside.sessions.say(id, "and now?", identity=ANN)
    await quiet(rt, id)

    texts = [message.text for message in model.asked[-1].messages]
    assert texts[0].startswith('<summary messages="1-6">\nin short')
    assert texts[-1] == "and now?"
    assert [tool.name for tool in model.asked[-1].tools] == ["recall", "wait"]


async def test_people_still_see_all_that_was_said(rt: Runtime) -> None:
    id, _ = await begun(rt)
    await rt.inside.sessions.compact(id, identity=ANN)
    await quiet(rt, id)

    turns = await rt.inside.sessions.history(id, identity=ANN)
    said = [message.text.split()[-1] for turn in turns for message in turn.messages if message.role == "user"]
    assert said == ["0", "1", "2", "3"]
    assert len(turns) == 5, "the compaction is a turn without messages"


async def test_the_turn_at_work_compacts_before_its_next_question(rt: Runtime) -> None:
    gate = Gate()
    id, model = await begun(rt, gate)
    model.tool = "wait"
    await rt.inside.sessions.say(id, "go", identity=ANN)
    await gate.reached()

    asked = await rt.inside.sessions.compact(id, identity=ANN)
    gate.open()
    session = await quiet(rt, id)

    assert session.head == asked.run_id
    facts = [event for _, event in await rt.inside.runs.facts(session.head)]
    assert [event.cause for event in facts if isinstance(event, SessionCompacted)] == ["asked"]


async def test_an_answer_is_given_again_although_a_compaction_came_after_it(rt: Runtime) -> None:
    id, model = await begun(rt)
    await rt.inside.sessions.compact(id, identity=ANN)
    await quiet(rt, id)

    await rt.inside.sessions.regenerate(id, identity=ANN)
    await quiet(rt, id)

    assert model.asked[-1].messages[-1].text == f"{LONG}3"


async def test_nobody_compacts_the_session_of_another_or_one_without_words(rt: Runtime) -> None:
    id, _ = await begun(rt, turns=0)
    with pytest.raises(NotFound):
        await rt.inside.sessions.compact(id, identity=Identity("bob"))
    with pytest.raises(Conflict, match="nothing was said"):
        await rt.inside.sessions.compact(id, identity=ANN)


async def test_of_two_that_compact_at_once_both_are_served_by_one_turn_or_told(rt: Runtime) -> None:
    id, _ = await begun(rt)
    done = await asyncio.gather(
        *(rt.inside.sessions.compact(id, identity=ANN) for _ in range(2)), return_exceptions=True
    )
    session = await quiet(rt, id)

    assert session.turns in (5, 6)
    assert all(isinstance(each, Conflict) or each.run_id for each in done)  # type: ignore[union-attr]
    said = await rt.inside.sessions.history(id, identity=ANN)
    assert sum(len(turn.messages) for turn in said) == 8
