"""Regenerate: another answer to the same question, with the earlier one kept as a branch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Media, Message, ModelRequest, Text
from foliot.sessions.base import TurnOptions
from foliot.sessions.chat_events import EndEvent
from foliot.store.sessions.base import Session, SessionArchived, SessionBusy
from tests.sessions.kit import conversation, place, quiet

ANN, BOB = Identity("ann"), Identity("bob")


class Desk:
    """A runtime whose agent numbers its answers."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        self.requests: list[ModelRequest] = []
        self.hold: asyncio.Event | None = None
        self.looking = asyncio.Event()
        rt.inside.know(Agent("helper", prompt="You help.", model=ScriptedModel(self._answer)))

    async def _answer(self, request: ModelRequest) -> str:
        self.requests.append(request)
        self.looking.set()
        if self.hold is not None:
            await self.hold.wait()
        return f"answer {len(self.requests)}"

    async def begun(self) -> Session:
        return await self.rt.inside.sessions.create(place(), identity=ANN)

    async def talk(self, session: Session, text: str | Message, **more: Any) -> EndEvent:
        async with asyncio.timeout(60):
            events = [event async for event in self.rt.inside.chat.chat(session.id, text, identity=ANN, **more)]
        assert isinstance(events[-1], EndEvent)
        return events[-1]

    async def again(self, session: Session, **more: Any) -> Session:
        await self.rt.inside.sessions.regenerate(session.id, identity=ANN, **more)
        return await quiet(self.rt, session.id)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield Desk(opened)


async def test_another_answer_takes_the_place_of_the_last_one_which_stays_as_a_branch(desk: Desk) -> None:
    session = await desk.begun()
    await desk.talk(session, "one")
    await desk.talk(session, "two")
    after = await desk.again(session)
    assert [message.text for message in desk.requests[-1].messages] == ["one", "answer 1", "two"]
    assert await conversation(desk.rt, session.id) == [
        ("user", "one"), ("assistant", "answer 1"), ("user", "two"), ("assistant", "answer 3")
    ]  # fmt: skip
    turns = await desk.rt.inside.sessions.history(session.id, identity=ANN)
    assert [(each.number, each.parent, each.current) for each in turns] == [(1, 0, True), (2, 1, False), (3, 1, True)]
    assert [each.messages[-1].text for each in turns] == ["answer 1", "answer 2", "answer 3"]
    assert after.turns == 3


async def test_a_branch_can_be_chosen_and_gone_on_with(desk: Desk) -> None:
    session = await desk.begun()
    await desk.talk(session, "one")
    await desk.again(session)
    await desk.rt.inside.sessions.select_branch(session.id, 1, identity=ANN)
    await desk.talk(session, "two")
    assert [text for _, text in await conversation(desk.rt, session.id)] == ["one", "answer 1", "two", "answer 3"]
    turns = await desk.rt.inside.sessions.history(session.id, identity=ANN)
    assert [(each.number, each.current) for each in turns] == [(1, True), (2, False), (3, True)]


async def test_the_first_answer_can_be_asked_for_again_and_again(desk: Desk) -> None:
    session = await desk.begun()
    await desk.talk(session, "one")
    for _ in range(3):
        await desk.again(session)
    assert [text for _, text in await conversation(desk.rt, session.id)] == ["one", "answer 4"]
    turns = await desk.rt.inside.sessions.history(session.id, identity=ANN)
    assert {each.parent for each in turns} == {0}


async def test_it_has_the_options_and_the_files_of_the_first_time_and_those_that_are_given(desk: Desk) -> None:
    session = await desk.begun()
    picture = Media("image/png", data="iVBORw0KGgo=", name="a.png")
    message = Message("user", (Text("What is it?"), picture))
    await desk.talk(session, message, options=TurnOptions(system="Be a pirate."))
    await desk.again(session)
    assert desk.requests[-1].system == "Be a pirate."
    assert desk.requests[-1].messages[-1].parts[-1] == picture
    await desk.again(session, options=TurnOptions(system="Be a king."))
    assert desk.requests[-1].system == "Be a king."


async def test_a_turn_that_was_to_answer_again_and_is_stopped_leaves_the_answer_that_there_was(desk: Desk) -> None:
    session, sessions = await desk.begun(), desk.rt.inside.sessions
    await desk.talk(session, "one")
    desk.hold, desk.looking = asyncio.Event(), asyncio.Event()
    await sessions.regenerate(session.id, identity=ANN)
    await desk.looking.wait()
    assert await sessions.stop(session.id, identity=ANN)
    desk.hold = None
    assert await conversation(desk.rt, session.id) == [("user", "one"), ("assistant", "answer 1")]
    turns = await sessions.history(session.id, identity=ANN)
    assert [(each.number, each.phase, each.current) for each in turns] == [
        (1, "succeeded", True), (2, "cancelled", False)
    ]  # fmt: skip


async def test_a_turn_without_an_answer_makes_room_for_another_that_has_none(desk: Desk) -> None:
    session, sessions = await desk.begun(), desk.rt.inside.sessions
    for number in range(2):
        desk.hold, desk.looking = asyncio.Event(), asyncio.Event()
        if number:
            await sessions.regenerate(session.id, identity=ANN)
        else:
            await sessions.say(session.id, "one", identity=ANN)
        await desk.looking.wait()
        await sessions.stop(session.id, identity=ANN)
    turns = await sessions.history(session.id, identity=ANN)
    assert [(each.number, each.current) for each in turns] == [(1, False), (2, True)]


async def test_what_is_said_to_a_turn_that_answers_again_stays_when_it_is_stopped(desk: Desk) -> None:
    session, sessions = await desk.begun(), desk.rt.inside.sessions
    await desk.talk(session, "one")
    looked, go = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        looked.set()
        await go.wait()
        return "seen"

    async def answer(request: ModelRequest) -> Any:
        if len(request.messages) > 1:
            desk.looking.set()
            await asyncio.Event().wait()
        return {"call": "look"}

    desk.rt.inside.know(Agent("helper", prompt="You help.", model=ScriptedModel(answer), tools=[look]))
    desk.looking.clear()
    await sessions.regenerate(session.id, identity=ANN)
    await looked.wait()
    await sessions.say(session.id, "and this", identity=ANN, mode="steer")
    go.set()
    await desk.looking.wait()
    await sessions.stop(session.id, identity=ANN)
    assert ("user", "and this") in await conversation(desk.rt, session.id)
    rows = await sessions.inputs(session.id, identity=ANN)
    assert [(each.message.text if each.message else None, each.steered) for each in rows] == [
        ("one", False), ("and this", True)
    ]  # fmt: skip


async def test_never_while_a_turn_is_at_work(desk: Desk) -> None:
    session = await desk.begun()
    desk.hold = asyncio.Event()
    talking = asyncio.create_task(desk.talk(session, "one"))
    await desk.looking.wait()
    sessions = desk.rt.inside.sessions
    with pytest.raises(SessionBusy):
        await sessions.regenerate(session.id, identity=ANN)
    with pytest.raises(SessionBusy):
        await sessions.select_branch(session.id, 1, identity=ANN)
    desk.hold.set()
    await talking


async def test_of_many_who_ask_at_once_one_begins_a_turn(desk: Desk) -> None:
    session = await desk.begun()
    await desk.talk(session, "one")
    desk.hold = asyncio.Event()
    asked = (desk.rt.inside.sessions.regenerate(session.id, identity=ANN) for _ in range(5))
    found = await asyncio.gather(*asked, return_exceptions=True)
    desk.hold.set()
    assert sum(not isinstance(each, BaseException) for each in found) == 1
    assert all(isinstance(each, SessionBusy) for each in found if isinstance(each, BaseException))
    assert (await quiet(desk.rt, session.id)).turns == 2


async def test_what_cannot_be_answered_again_says_so(desk: Desk) -> None:
    session, sessions = await desk.begun(), desk.rt.inside.sessions
    with pytest.raises(Conflict, match="nothing was said"):
        await sessions.regenerate(session.id, identity=ANN)
    await desk.talk(session, "one")
    with pytest.raises(NotFound):
        await sessions.regenerate(session.id, identity=BOB)
    for number in (0, 2, -1):
        with pytest.raises(NotFound):
            await sessions.select_branch(session.id, number, identity=ANN)
    with pytest.raises(NotFound):
        await sessions.select_branch(session.id, 1, identity=BOB)
    await sessions.archive(session.id, identity=ANN)
    with pytest.raises(SessionArchived):
        await sessions.regenerate(session.id, identity=ANN)
    with pytest.raises(SessionArchived):
        await sessions.select_branch(session.id, 1, identity=ANN)
