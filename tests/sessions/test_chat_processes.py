"""Streams of turns that other processes drive, and that go on elsewhere when a process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.messages import ModelRequest
from foliot.sessions.base import TurnOptions
from foliot.sessions.chat_events import ChatEvent, EndEvent, InputEvent, TextEvent, ToolEvent
from tests.sessions.session_process import ANN, PLACE, helper
from tests.sessions.test_processes import heard, kept_going, speaking


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def runtime(store: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(store) as opened:
        opened.inside.know(helper(tmp_path))
        yield opened


def durable(events: list[ChatEvent]) -> list[ChatEvent]:
    return [event for event in events if event.place]


async def watched(runtime: Runtime, session: str, after: str) -> list[ChatEvent]:
    chat = runtime.inside.chat
    async with asyncio.timeout(120):
        return [event async for event in chat.watch(session, identity=ANN, after=after, follow=False)]


async def test_a_reader_reads_on_when_the_process_of_the_turn_is_killed(
    runtime: Runtime, store: str, tmp_path: Path
) -> None:
    session = await runtime.inside.sessions.create(PLACE, identity=ANN)
    before: list[ChatEvent] = []
    async with speaking(store, tmp_path, session.id, "a", 1) as process:
        assert (await heard(process)).startswith(b"said")
        async with asyncio.timeout(120), aclosing(runtime.inside.chat.watch(session.id, identity=ANN)) as events:
            async for event in events:
                before.append(event)
                if isinstance(event, ToolEvent):
                    break  # the connection of the reader is lost in the middle of a call
        process.kill()
    (tmp_path / "go").touch()
    reading = asyncio.create_task(watched(runtime, session.id, durable(before)[-1].place))
    await kept_going(runtime, session.id)
    seen = [*durable(before), *durable(await reading)]

    assert seen == durable(await watched(runtime, session.id, f"{seen[0].run}/0")), "nothing is missing or doubled"
    assert [each.text for each in seen if isinstance(each, InputEvent)] == ["a-0"]
    assert [each.text for each in seen if isinstance(each, TextEvent)] == ["Answer to a-0"]
    assert [type(each) for each in seen].count(EndEvent) == 1


async def test_whoever_says_the_same_again_elsewhere_reads_the_turn_of_the_killed_process(
    runtime: Runtime, store: str, tmp_path: Path
) -> None:
    session = await runtime.inside.sessions.create(PLACE, identity=ANN)
    async with speaking(store, tmp_path, session.id, "a", 1) as process:
        assert (await heard(process)).startswith(b"said")
    (tmp_path / "go").touch()
    chat = runtime.inside.chat.chat(session.id, "a-0", identity=ANN, key="a-0")

    async def read() -> list[ChatEvent]:
        return [event async for event in chat]

    reading = asyncio.create_task(read())
    await kept_going(runtime, session.id)
    async with asyncio.timeout(120):
        events = await reading
    assert isinstance(events[-1], EndEvent)
    assert events[-1].text == "Answer to a-0"
    assert (await runtime.inside.sessions.store.get(session.id)).turns == 1


async def test_a_turn_that_is_taken_up_elsewhere_has_the_options_that_it_began_with(store: str) -> None:
    looking = asyncio.Event()
    requests: list[ModelRequest] = []

    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        if not looking.is_set():
            looking.set()
            await asyncio.Event().wait()
        return "seen"

    @tool
    def pay() -> str:
        """Pays."""
        return "paid"

    def answer(request: ModelRequest) -> object:
        requests.append(request)
        return [{"tool": "look"}] if len(requests) == 1 else "done"

    agent = Agent("helper", prompt="You help.", model=ScriptedModel(answer), tools=[look, pay])
    options = TurnOptions(system="Be a pirate.", exclude_tools=("pay",), max_seconds=600)
    async with Runtime(store) as first:
        first.inside.know(agent)
        session = await first.inside.sessions.create(PLACE, identity=ANN)
        await first.inside.sessions.say(session.id, "go", identity=ANN, options=options)
        await looking.wait()
    async with Runtime(store) as second:
        second.inside.know(agent)
        await kept_going(second, session.id)
        head = (await second.inside.sessions.store.get(session.id)).head
        _, state = await second.inside.runs.load(head)
    assert [(each.system, {tool.name for tool in each.tools}) for each in requests] == [("Be a pirate.", {"look"})] * 2
    assert state.spec.limits.max_seconds == 600
