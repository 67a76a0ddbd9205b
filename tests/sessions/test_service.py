"""The service of sessions: turns begin and end one after the other, for the user of the session, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Media, Message, Text, ToolCall
from foliot.kernel.run.events import RunCreated
from foliot.sessions.base import TurnOptions
from foliot.store.sessions.base import NewSession, Place, SessionArchived, SessionBusy
from tests.sessions.kit import Gate, conversation, place, quiet

ANN, BOB = Identity("ann"), Identity("bob")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "foliot.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def runtime(store: str) -> AsyncIterator[Runtime]:
    async with Runtime(store) as opened:
        opened.inside.know(Agent("helper", model=ScriptedModel([{"say": "Done."}] * 50)))
        yield opened


@pytest.fixture
async def gated(store: str) -> AsyncIterator[tuple[Runtime, Gate]]:
    """A runtime whose agent stays in its first tool call until the gate is opened."""
    gate = Gate()

    @tool(effect="idempotent")
    async def work() -> str:
        """Works until the gate opens."""
        return await gate.passed()

    script: list[dict[str, Any]] = [{"call": {"work": {}}}, {"say": "Worked."}]
    async with Runtime(store) as opened:
        opened.inside.know(Agent("helper", model=ScriptedModel(script * 30), tools=[work]))
        yield opened, gate


async def test_what_is_said_begins_a_turn_and_the_next_goes_on_after_it(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    said = await sessions.say(session.id, "First", identity=ANN)
    assert (said.seq, said.outcome, said.problem) == (1, "direct", "")
    first = await quiet(runtime, session.id)
    await sessions.say(session.id, "Second", identity=ANN)
    second = await quiet(runtime, session.id)
    assert (first.turns, second.turns, second.title) == (1, 2, "First")
    assert await conversation(runtime, session.id) == [
        ("user", "First"),
        ("assistant", "Done."),
        ("user", "Second"),
        ("assistant", "Done."),
    ]


async def test_a_turn_acts_for_the_user_of_the_session_and_says_who_spoke(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "Hello", identity=Identity("ann", "olga", "http"))
    done = await quiet(runtime, session.id)
    created = (await runtime.inside.runs.facts(done.head))[0][1]
    assert isinstance(created, RunCreated)
    assert created.identity == Identity("ann", "olga", "http")
    assert (created.session, created.turn, created.inputs) == (session.id, 1, (1,))


async def test_a_session_of_another_user_does_not_exist(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    calls = (
        lambda: sessions.get(session.id, identity=BOB),
        lambda: sessions.say(session.id, "Hello", identity=BOB),
        lambda: sessions.stop(session.id, identity=BOB),
        lambda: sessions.archive(session.id, identity=BOB),
        lambda: sessions.change(session.id, identity=BOB, title="Mine"),
        lambda: sessions.delete(session.id, identity=BOB),
        lambda: sessions.history(session.id, identity=BOB),
        lambda: sessions.inputs(session.id, identity=BOB),
        lambda: sessions.search("default", "hello", identity=BOB, session=session.id),
        lambda: sessions.get(session.id, identity=ANN, namespace="elsewhere"),
        lambda: sessions.create(place(user="ann"), identity=BOB),
    )
    for call in calls:
        with pytest.raises(NotFound):
            await call()
    assert (await sessions.list("default", identity=BOB)).items == []
    assert [each.id for each in (await sessions.list("default", identity=ANN)).items] == [session.id]


async def test_nobody_is_a_user_of_their_own_and_not_everybody(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    await sessions.create(place(), identity=ANN)
    own = await sessions.create(Place("default", "helper"), identity=Identity())
    assert [each.id for each in (await sessions.list("default", identity=Identity())).items] == [own.id]
    assert len((await sessions.list("default", identity=None)).items) == 2


async def test_of_many_who_resolve_at_once_all_get_one_session(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    found = await asyncio.gather(*(sessions.resolve(place(), identity=ANN) for _ in range(20)))
    assert len({each.id for each in found}) == 1


async def test_rotating_archives_the_active_session_and_begins_another(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    first = await sessions.resolve(place(), identity=ANN)
    second = await sessions.rotate(place(), identity=ANN)
    assert (await sessions.get(first.id, identity=ANN)).archived_at is not None
    active = await sessions.active(place(), identity=ANN)
    assert active is not None
    assert active.id == second.id
    with pytest.raises(SessionArchived):
        await sessions.say(first.id, "Still there?", identity=ANN)


async def test_an_archived_session_answers_what_waits(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "One", identity=ANN)
    assert (await sessions.say(session.id, "Two", identity=ANN)).outcome == "queued"
    await sessions.archive(session.id, identity=ANN)
    gate.open()
    assert (await quiet(runtime, session.id)).turns == 2


async def test_followups_get_a_turn_each_and_collected_inputs_one_together(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN, options={"inbox": {"debounce": 0.0}})
    await sessions.say(session.id, "First", identity=ANN)
    for text in ("a", "b"):
        await sessions.say(session.id, text, identity=ANN, mode="followup")
    for text in ("c", "d"):
        await sessions.say(session.id, text, identity=ANN, mode="collect")
    gate.open()
    done = await quiet(runtime, session.id)
    views = await sessions.history(session.id, identity=ANN)
    said = [[message.text for message in view.messages if message.role == "user"] for view in views]
    assert (done.turns, said) == (4, [["First"], ["a"], ["b"], ["c", "d"]])


async def test_collected_inputs_wait_for_a_silence(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    # Longer than a busy machine is silent by itself between the two.
    session = await sessions.create(place(), identity=ANN, options={"inbox": {"debounce": 2.0}})
    said = [await sessions.say(session.id, text, identity=ANN, mode="collect") for text in ("a", "b")]
    assert [each.outcome for each in said] == ["direct", "direct"]
    await quiet(runtime, session.id)
    answered = [each.run_id for each in await sessions.inputs(session.id, identity=ANN)]
    assert all(answered)


async def test_an_interrupt_ends_the_turn_and_comes_first(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    await sessions.say(session.id, "Later", identity=ANN)
    assert (await sessions.say(session.id, "No, this", identity=ANN, mode="interrupt")).outcome == "interrupted"
    gate.open()
    await quiet(runtime, session.id)
    views = await sessions.history(session.id, identity=ANN)
    assert [view.phase for view in views] == ["cancelled", "succeeded", "succeeded"]
    assert [view.messages[0].text for view in views] == ["First", "No, this", "Later"]


async def test_a_steering_input_is_heard_within_the_turn(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    await sessions.say(session.id, "To the left", identity=ANN, mode="steer")
    gate.open()
    done = await quiet(runtime, session.id)
    assert done.turns == 1
    assert ("user", "To the left") in await conversation(runtime, session.id)


async def test_an_input_with_a_file_is_not_steered_because_its_file_comes_with_the_next_turn(
    gated: tuple[Runtime, Gate],
) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    sent = Message("user", (Text("Use this"), Media("application/zip", data="UEsDBA==", name="a.zip")))
    said = await sessions.say(session.id, sent, identity=ANN, mode="steer")
    gate.open()
    done = await quiet(runtime, session.id)
    assert (said.outcome, done.turns) == ("queued", 2)
    _, state = await runtime.inside.runs.load(done.head)
    assert state.created is not None
    assert state.created.workspace is not None
    assert state.created.workspace.files == 2


async def test_what_had_to_make_room_is_told_once_in_lines(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN, options={"inbox": {"cap": 2}})
    await sessions.say(session.id, "First", identity=ANN)
    for text in ("a\nwith two lines", "b", "c", "d"):
        await sessions.say(session.id, text, identity=ANN)
    gate.open()
    await quiet(runtime, session.id)
    views = await sessions.history(session.id, identity=ANN)
    said = [[message.text for message in view.messages if message.role == "user"] for view in views]
    assert [len(each) for each in said] == [1, 2, 1]
    assert said[1][0].endswith("- a with two lines\n- b")
    assert (said[1][1], said[2][0]) == ("c", "d")


async def test_little_is_kept_of_what_had_to_make_room(gated: tuple[Runtime, Gate]) -> None:
    """However much is dropped while a turn works: a line of each is kept, and the next turn has the newest of them."""
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN, options={"inbox": {"cap": 1}})
    await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    for number in range(61):
        await sessions.say(session.id, f"{number} " + "long " * 20_000, identity=ANN)
    kept = [each for each in await sessions.store.inputs(session.key) if each.status == "dropped"]
    assert len(kept) == 60
    assert max(len(each.message.text) for each in kept if each.message is not None) <= 200
    gate.open()
    await quiet(runtime, session.id)
    told = (await sessions.history(session.id, identity=ANN))[-1].messages[0].text.splitlines()
    assert (told[1], told[2][:4], told[-1][:4], len(told)) == ("(and 10 before these)", "- 10", "- 59", 52)
    left = await sessions.store.dropped(session, "")
    assert (left.newest, left.count) == ((), 0)


async def test_the_oldest_are_forgotten_where_the_session_says_so(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN, options={"inbox": {"cap": 1, "drop": "old"}})
    await sessions.say(session.id, "First", identity=ANN)
    for text in ("a", "b"):
        await sessions.say(session.id, text, identity=ANN)
    gate.open()
    await quiet(runtime, session.id)
    users = [text for role, text in await conversation(runtime, session.id) if role == "user"]
    assert users == ["First", "b"]


async def test_a_full_inbox_refuses_where_the_session_says_so(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN, options={"inbox": {"cap": 1, "drop": "new"}})
    await sessions.say(session.id, "First", identity=ANN)
    await sessions.say(session.id, "a", identity=ANN)
    with pytest.raises(Conflict, match="full"):
        await sessions.say(session.id, "b", identity=ANN)
    gate.open()
    await quiet(runtime, session.id)


async def test_the_same_key_is_one_input_with_one_outcome(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    first = await sessions.say(session.id, "Hello", identity=ANN, key="k")
    again = await sessions.say(session.id, "Hello", identity=ANN, key="k")
    assert (first.seq, first.outcome) == (again.seq, again.outcome)
    with pytest.raises(Conflict):
        await sessions.say(session.id, "Other words", identity=ANN, key="k")
    assert (await quiet(runtime, session.id)).turns == 1


@pytest.mark.parametrize(
    "message",
    ["", "  \n", Message("assistant", (Text("I"),)), Message("user", (ToolCall("c", "x"),)), Message("user", ())],
)
async def test_what_is_nothing_to_say_is_refused_and_not_stored(runtime: Runtime, message: Any) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    with pytest.raises(InvalidInput):
        await sessions.say(session.id, message, identity=ANN)
    assert (await sessions.get(session.id, identity=ANN)).arrivals == 0


@pytest.mark.parametrize("text", ["nul \x00 inside", "half \ud83d a pair", "\x1b[31mred", "e" * 3_000_000])
async def test_odd_and_huge_texts_are_stored_or_refused_but_never_break_a_session(runtime: Runtime, text: str) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    try:
        await sessions.say(session.id, text, identity=ANN)
    except InvalidInput:
        assert "\x1b" not in text
    await sessions.say(session.id, "And a plain one", identity=ANN)
    done = await quiet(runtime, session.id)
    assert done.title.isprintable()
    assert ("user", "And a plain one") in await conversation(runtime, session.id)


async def test_a_mode_that_is_none_is_named(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    with pytest.raises(InvalidInput, match='"shout" is not supported'):
        await sessions.say(session.id, "Hello", identity=ANN, mode="shout")


async def test_a_picture_alone_is_something_to_say(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, Message("user", (Media("image/png", data="iVBORw0KGgo="),)), identity=ANN)
    assert (await quiet(runtime, session.id)).title == ""


async def test_a_turn_that_cannot_begin_says_why_and_its_input_waits(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.store.create(NewSession("s1", place("gone")), now=runtime.inside.clock())
    said = await sessions.say(session.id, "Hello", identity=ANN)
    assert "gone" in said.problem
    waiting = await sessions.store.waiting(await sessions.get(session.id, identity=ANN))
    assert [each.seq for each in waiting] == [1]


async def test_a_model_that_is_not_there_is_refused_where_it_is_chosen(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    with pytest.raises(NotFound):
        await sessions.change(session.id, identity=ANN, model="no-such-model")
    with pytest.raises(NotFound):
        await sessions.say(session.id, "Hello", identity=ANN, options=TurnOptions(model="no-such-model"))
    with pytest.raises(NotFound):
        await sessions.create(place("no-such-agent"), identity=ANN)


async def test_stopping_says_whether_a_turn_was_at_work_and_keeps_what_waits(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    assert not await sessions.stop(session.id, identity=ANN)
    first = await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    await sessions.say(session.id, "Second", identity=ANN)
    assert await sessions.stop(session.id, identity=ANN)
    gate.open()
    await quiet(runtime, session.id)
    views = await sessions.history(session.id, identity=ANN)
    assert first.outcome == "direct"
    assert [view.phase for view in views] == ["cancelled", "succeeded"]


async def test_stopping_can_drop_what_waits(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    await sessions.say(session.id, "Second", identity=ANN)
    assert await sessions.stop(session.id, identity=ANN, drop=True)
    assert (await quiet(runtime, session.id)).turns == 1
    assert [each.status for each in await sessions.inputs(session.id, identity=ANN)] == ["consumed", "dropped"]


async def test_a_session_is_not_deleted_under_its_turn(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "First", identity=ANN)
    with pytest.raises(SessionBusy):
        await sessions.delete(session.id, identity=ANN)
    gate.open()
    await quiet(runtime, session.id)
    await sessions.delete(session.id, identity=ANN)
    with pytest.raises(NotFound):
        await sessions.get(session.id, identity=ANN)


async def test_a_list_is_read_in_pages_without_loss(runtime: Runtime) -> None:
    sessions = runtime.inside.sessions
    made = {(await sessions.create(place(channel=f"c{n}"), identity=ANN)).id for n in range(7)}
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await sessions.list("default", identity=ANN, limit=3, cursor=cursor)
        seen += [each.id for each in page.items]
        cursor = page.cursor
    assert (set(seen), len(seen)) == (made, 7)
    with pytest.raises(InvalidInput):
        await sessions.list("default", identity=ANN, cursor="bm90aGluZw")


async def test_the_model_of_a_session_is_that_of_its_next_turns(gated: tuple[Runtime, Gate]) -> None:
    runtime, gate = gated
    runtime.inside.know(Agent("other", model=ScriptedModel([{"say": "Other."}] * 9)))
    other = runtime.inside.agent
    sessions = runtime.inside.sessions
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "First", identity=ANN)
    await gate.reached()
    await sessions.change(session.id, identity=ANN, model=(await other("default/other")).model_ref)
    gate.open()
    await quiet(runtime, session.id)
    await sessions.say(session.id, "Second", identity=ANN)
    await quiet(runtime, session.id)
    answers = [text for role, text in await conversation(runtime, session.id) if role == "assistant" and text]
    assert answers == ["Worked.", "Other."]


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../x"},
        {"id": ""},
        {"title": "t" * 300},
        {"options": {"inbox": {"cap": 0}}},
        {"options": {"inbox": {"kap": 1}}},
        {"options": {"inbocks": {}}},
        {"options": {"inbox": {"drop": "all"}}},
        {"options": {"inbox": 3}},
        {"kind": "feast"},
    ],
)
async def test_a_session_that_makes_no_sense_is_refused(runtime: Runtime, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await runtime.inside.sessions.create(place(), identity=ANN, **wrong)
