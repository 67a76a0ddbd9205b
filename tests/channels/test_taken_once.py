"""A message of a channel is taken once by its id: said, done or answered, whatever session is active by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foliot import Runtime
from foliot.channels.base import ChannelMember, DeclaredChannel, Incoming, Received
from foliot.channels.conversations import Conversations
from foliot.errors import FoliotError
from foliot.store.channels import Outbox
from foliot.store.sessions.base import InboxFull, Session
from foliot.store.taken import MessageKey, OtherWords, TakenMessages
from tests.channels.kit import opened

DONE = [{"say": "Done."}] * 40


class Desk:
    """A channel of which messages come in, and nothing is ever delivered."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.sessions = runtime.inside.sessions
        inside = runtime.inside
        self.conversations = Conversations(self.sessions, inside.database, inside.resources, clock=inside.clock)
        self.channel = DeclaredChannel(
            uid="desk-uid",
            namespace="default",
            name="desk",
            type="webhook",
            agent="helper",
            agents=("helper", "writer"),
            endpoint="",
            secret_ref="desk",
            secret_hosts=None,
            users={"zoe": ChannelMember("zoe", "ann")},
            groups={each: ChannelMember(each, respond="always") for each in ("general", "private", "a", "a/b")},
            mode="followup",
            suspend=False,
            generation=1,
            declarer="root",
            by_operator=True,
        )

    async def says(self, text: str, id: str, **more: Any) -> Received:
        chat = more.get("group") or "zoe"
        return await self.conversations.receive(self.channel, Incoming(id, "zoe", text, chat, **more))

    async def all(self) -> list[Session]:
        return list((await self.sessions.list("default", identity=None, archived=True)).items)

    async def arrivals(self) -> int:
        return sum(session.arrivals for session in await self.all())


@pytest.fixture
async def desk(store_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    async with opened(store_url, tmp_path, {"helper": DONE, "writer": DONE}) as runtime:
        yield Desk(runtime)


@pytest.mark.parametrize("between", ["/new", "/agent writer"])
async def test_a_message_is_said_once_whatever_session_is_active_by_then(desk: Desk, between: str) -> None:
    first = await desk.says("order one pizza", "m1")
    await desk.says(between, "m2")
    again = await desk.says("order one pizza", "m1")
    assert (again.session, again.outcome, again.again) == (first.session, first.outcome, True)
    assert await desk.arrivals() == 1


@pytest.mark.parametrize("more", [{}, {"thread": "7"}, {"group": "general"}])
async def test_the_same_id_for_something_else_is_refused_in_every_session(desk: Desk, more: dict[str, str]) -> None:
    await desk.says("order one pizza", "m1")
    await desk.says("/new", "m2")
    with pytest.raises(OtherWords):
        await desk.says("order two pizzas", "m1", **more)
    with pytest.raises(OtherWords):
        await desk.says("/abort", "m1", **more)
    assert await desk.arrivals() == 1


async def test_of_many_who_bring_one_message_at_once_one_says_it(desk: Desk) -> None:
    outcomes = await asyncio.gather(*(desk.says("order one pizza", "m1") for _ in range(8)))
    assert sorted(each.again for each in outcomes) == [False] + [True] * 7
    assert {each.session for each in outcomes} == {outcomes[0].session}
    assert await desk.arrivals() == 1


async def test_two_channels_may_use_one_id(desk: Desk) -> None:
    await desk.says("Hello", "m1")
    other = msgspec.structs.replace(desk.channel, uid="other-uid", name="other")
    received = await desk.conversations.receive(other, Incoming("m1", "zoe", "Goodbye", "zoe"))
    assert not received.again
    assert await desk.arrivals() == 2


async def test_a_command_that_comes_again_is_not_done_again(desk: Desk) -> None:
    desk.channel = msgspec.structs.replace(desk.channel, agents=("helper", "writer"))
    first = await desk.says("/agent writer", "m1")
    await desk.says("/agent helper", "m2")
    again = await desk.says("/agent writer", "m1")
    assert (again.reply, again.again) == (first.reply, True)
    assert "talking to helper" in (await desk.says("/whoami", "m3")).reply
    assert len(await Outbox(desk.runtime.inside.database).list("default")) == 3


async def test_a_secret_that_follows_a_command_reaches_no_agent(desk: Desk) -> None:
    await desk.says("Hello", "m1")
    received = await desk.says("/config TOKEN s3cret-value", "m2")
    assert "was not kept" in received.reply
    assert await desk.arrivals() == 1


async def test_abort_again_stops_no_later_turn(store_url: str, tmp_path: Path) -> None:
    slow = [{"say": "Once upon a time", "chunk": 2, "pace": 60}] * 3
    async with opened(store_url, tmp_path, {"helper": slow}) as runtime:
        desk = Desk(runtime)
        assert (await desk.says("/abort", "m1")).reply == "Nothing was at work."
        await desk.says("work", "m2")
        (session,) = await desk.all()
        assert session.turn
        assert (await desk.says("/abort", "m1")).reply == "Nothing was at work."
        assert (await desk.sessions.get(session.id, identity=None)).turn == session.turn
        assert (await desk.says("/abort", "m3")).reply == "Stopped."


async def test_a_command_whose_process_died_is_done_to_what_it_was_meant_for(store_url: str, tmp_path: Path) -> None:
    slow = [{"say": "Once upon a time", "chunk": 2, "pace": 60}] * 3
    async with opened(store_url, tmp_path, {"helper": slow}) as runtime:
        desk = Desk(runtime)
        await desk.says("work", "m1")
        (session,) = await desk.all()
        real = desk.sessions.stop

        async def dies(*given: Any, **more: Any) -> bool:
            raise FoliotError("the process ends here", retryable=True)

        desk.sessions.stop = dies  # type: ignore[method-assign]
        with pytest.raises(FoliotError, match="ends here"):
            await desk.says("/abort", "m2")
        desk.sessions.stop = real  # type: ignore[method-assign]
        await desk.sessions.stop(session.id, identity=None)
        await desk.says("work on", "m3")
        later = (await desk.sessions.get(session.id, identity=None)).turn
        assert (await desk.says("/abort", "m2")).reply == "Nothing was at work."
        assert (await desk.sessions.get(session.id, identity=None)).turn == later != ""
        await desk.sessions.stop(session.id, identity=None)


async def test_a_message_that_meets_an_archived_session_goes_to_the_next_one(desk: Desk) -> None:
    first = await desk.says("Hello", "m1")
    real = desk.sessions.resolve

    async def stale(*given: Any, **more: Any) -> Session:
        session = await real(*given, **more)
        if session.id == first.session:
            await desk.sessions.archive(session.id, identity=None)
        return session

    desk.sessions.resolve = stale  # type: ignore[method-assign]
    second = await desk.says("Hello again", "m2")
    assert second.session not in ("", first.session)


async def test_a_full_inbox_stores_nothing_and_the_message_is_taken_later(store_url: str, tmp_path: Path) -> None:
    slow = [{"say": "Once upon a time", "chunk": 2, "pace": 60}, *DONE]
    async with opened(store_url, tmp_path, {"helper": slow}) as runtime:
        desk = Desk(runtime)
        session = (await desk.says("work", "m1")).session
        await desk.sessions.change(session, identity=None, options={"inbox": {"cap": 1, "drop": "new"}})
        await desk.says("first", "m2")
        with pytest.raises(InboxFull):
            await desk.says("second", "m3")
        await desk.sessions.stop(session, identity=None, drop=True)
        assert not (await desk.says("second", "m3")).again


async def test_old_messages_are_forgotten_and_those_of_another_source_stay(desk: Desk) -> None:
    taken = TakenMessages(desk.runtime.inside.database)
    keys = [MessageKey("one", "m1", "d"), MessageKey("two", "m1", "d")]
    for now, key in enumerate(keys, 1):
        await taken.begin(key, "s", now=float(now))
    assert await taken.prune(before=1.5) == 1
    assert [await taken.get(key) is None for key in keys] == [True, False]


# --- sessions ----------------------------------------------------------------------------------------------------


async def test_groups_and_threads_never_share_a_session_by_their_names(desk: Desk) -> None:
    other = msgspec.structs.replace(desk.channel, uid="other-uid", name="other")
    places: list[dict[str, Any]] = [
        {},
        {"group": "general"},
        {"group": "private"},
        {"group": "a/b"},
        {"group": "a", "thread": "b"},
    ]
    found: list[str] = []
    for channel in (desk.channel, other):
        for number, more in enumerate(places):
            incoming = Incoming(f"m{number}", "zoe", "Hello", more.get("group", "zoe"), **more)
            found.append((await desk.conversations.receive(channel, incoming)).session)
    assert found[0] == found[len(places)], "a private chat is one over all channels"
    assert len(set(found)) == 2 * len(places) - 1


async def test_nobody_chooses_a_model_that_the_channel_does_not_list(desk: Desk) -> None:
    assert "lists none" in (await desk.says("/model expensive", "m1")).reply
    desk.channel = msgspec.structs.replace(desk.channel, models=("cheap",))
    assert "There is no 'expensive'." in (await desk.says("/model expensive", "m2")).reply
    assert "- cheap" in (await desk.says("/model", "m3")).reply
    assert all(session.model == "" for session in await desk.all())
