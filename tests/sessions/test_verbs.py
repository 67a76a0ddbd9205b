"""The verbs on sessions in Python: agents that are objects, whose session it is, and arguments of the wrong kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Client, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, InvalidInput, UsageError
from foliot.kernel.messages import Message
from foliot.runtime.local.groups import whoami
from foliot.sessions.chat_events import EndEvent, WaitingEvent
from tests.sessions.kit import quiet


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "seen"


def desk() -> Agent[Any]:
    return Agent("desk", model=ScriptedModel([{"call": "look"}, {"say": "{last_result}"}]), tools=[look])


@pytest.mark.parametrize("verb", ["create", "resolve", "rotate"])
async def test_a_session_is_with_an_agent_of_python_with_its_tools(rt: Runtime, verb: str) -> None:
    agent = desk()
    session = await getattr(rt.sessions, verb)(agent)
    events = [event async for event in rt.sessions.chat(session.id, "look")]
    assert isinstance(events[-1], EndEvent)
    assert events[-1].text == "seen"
    active = await rt.sessions.active(agent)
    assert active is not None
    assert (active.id, active.place.user) == (session.id, whoami())


async def test_an_agent_without_objects_of_its_own_needs_no_manifest(rt: Runtime) -> None:
    rt.inside.models.serve("brain", ScriptedModel(["hello"]))
    session = await rt.sessions.resolve(Agent("plain", model="brain", namespace="shop"))
    assert (session.place.namespace, session.place.agent) == ("shop", "plain")


async def test_what_is_no_agent_is_refused_with_words(rt: Runtime) -> None:
    wrong: Any = 17
    with pytest.raises(UsageError, match="17 is no agent"):
        await rt.sessions.resolve(wrong)
    with pytest.raises(InvalidInput, match="belongs to namespace"):
        await rt.sessions.resolve(desk(), namespace="other")


async def test_a_client_refuses_an_object_with_words() -> None:
    async with Client("http://127.0.0.1:9", token="x") as client:
        for verb in (client.sessions.create, client.sessions.resolve, client.sessions.rotate, client.sessions.active):
            with pytest.raises(UsageError, match="declared there"):
                await verb(desk())


@pytest.mark.parametrize(
    ("verb", "given", "named"),
    [
        ("say", {"message": b"x"}, {}),
        ("say", {"message": None}, {}),
        ("say", {"message": "x"}, {"mode": b"steer"}),
        ("say", {"message": "x"}, {"mode": None}),
        ("say", {"message": "x"}, {"key": 3}),
        ("say", {"message": "x"}, {"place": 3}),
        ("say", {"message": "x"}, {"options": {"model": "m"}}),
        ("change", {}, {"title": b"x"}),
        ("search", {"text": b"x"}, {}),
    ],
)
async def test_arguments_of_the_wrong_kind_are_refused_with_words(
    rt: Runtime, verb: str, given: dict[str, Any], named: dict[str, Any]
) -> None:
    session = await rt.sessions.resolve(desk())
    first = () if verb == "search" else (session.id,)
    with pytest.raises(InvalidInput):
        await getattr(rt.sessions, verb)(*first, *given.values(), **named)
    with pytest.raises(InvalidInput):
        await rt.sessions.get(b"x")  # type: ignore[arg-type]
    assert (await rt.sessions.get(session.id)).arrivals == 0


async def test_a_short_conversation_is_not_compacted_and_no_turn_begins(rt: Runtime) -> None:
    session = await rt.sessions.resolve(desk())
    async for _ in rt.sessions.chat(session.id, "look"):
        pass
    with pytest.raises(Conflict, match="nothing to compact yet"):
        await rt.sessions.compact(session.id)
    assert (await rt.sessions.get(session.id)).turns == 1


async def test_inputs_say_what_was_said_after_they_were_answered(rt: Runtime) -> None:
    session = await rt.sessions.resolve(desk(), options={"inbox": {"debounce": 0.01}})
    for text in ("one", "two"):
        await rt.sessions.say(session.id, text, mode="collect")
    await quiet(rt, session.id)
    rows = await rt.sessions.inputs(session.id)
    assert [each.message.text for each in rows if isinstance(each.message, Message)] == ["one", "two"]
    assert {each.status for each in rows} == {"consumed"}


@pytest.mark.parametrize("mode", ["followup", "steer", "collect"])
async def test_what_is_said_while_a_turn_asks_is_the_answer_and_ends_with_its_end(rt: Runtime, mode: str) -> None:
    agent = Agent(
        "asker", model=ScriptedModel([{"call": {"ask_user": {"question": "Which?"}}}, "done"]), tools=["ask_user"]
    )
    session = await rt.sessions.resolve(agent)
    first = [event async for event in rt.sessions.chat(session.id, "go", pauses=True)]
    assert isinstance(first[-1], EndEvent)
    assert [ask.question for event in first if isinstance(event, WaitingEvent) for ask in event.asks] == ["Which?"]
    async with asyncio.timeout(60):
        events = [event async for event in rt.sessions.chat(session.id, "this one", mode=mode, pauses=True)]
    assert isinstance(events[-1], EndEvent)
    assert (events[-1].status, events[-1].run) == ("answered", first[-1].run)
