"""Chat: the events of a turn, whoever reads them and however often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Media, Message, ModelRequest, ModelResponse, Text
from foliot.resources.validate import validate_document
from foliot.sessions.chat_events import (
    ChatEvent,
    EndEvent,
    ErrorEvent,
    ImageEvent,
    InputEvent,
    ReasoningEvent,
    TextEvent,
    ToolEvent,
    WaitingEvent,
    decode_chat_event,
    encode_chat_event,
)
from foliot.store.base import Put
from foliot.store.sessions.base import NewSession, Session
from tests.sessions.kit import conversation, place, quiet

ANN, BOB = Identity("ann"), Identity("bob")
Kind = TypeVar("Kind")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield opened


async def session_of(rt: Runtime, script: Any, **agent: Any) -> Session:
    rt.inside.know(Agent("helper", model=ScriptedModel(script), **agent))
    return await rt.inside.sessions.create(place(), identity=ANN)


async def told(rt: Runtime, session: Session, text: str | Message = "Hello", **more: Any) -> list[ChatEvent]:
    async with asyncio.timeout(60):
        return [event async for event in rt.inside.chat.chat(session.id, text, identity=ANN, **more)]


def only(events: Sequence[ChatEvent], kind: type[Kind]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def durable(events: Sequence[ChatEvent]) -> list[ChatEvent]:
    return [event for event in events if event.place]


def end_of(events: Sequence[ChatEvent]) -> EndEvent:
    (end,) = only(events, EndEvent)
    assert events[-1] is end, "the end is the last event"
    return end


# --- the events of a turn --------------------------------------------------------------------------------------------


@tool
def look(path: str) -> str:
    """Looks at a file."""
    return "one\ntwo\nthree" + " and more" * 20


async def test_a_turn_is_told_from_its_input_to_its_one_end(rt: Runtime) -> None:
    script = [{"think": "hm", "say": "I look.", "call": {"look": {"path": "a.txt"}}}, {"say": "Three lines."}]
    session = await session_of(rt, script, tools=[look])
    events = await told(rt, session, "How long is it?")
    kept = durable(events)
    assert [type(each).__name__ for each in kept] == [
        "InputEvent", "ReasoningEvent", "TextEvent", "ToolEvent", "ToolEvent", "TextEvent", "EndEvent"
    ]  # fmt: skip
    assert only(kept, InputEvent)[0].text == "How long is it?"
    assert only(kept, ReasoningEvent)[0].text == "hm"
    assert [each.text for each in only(kept, TextEvent)] == ["I look.", "Three lines."]
    assert [(each.status, each.detail) for each in only(kept, ToolEvent)] == [("running", ""), ("done", "3 lines")]
    end = end_of(events)
    assert (end.status, end.stop, end.text, end.turn) == ("answered", "end", "Three lines.", 1)
    assert (end.steps, end.tool_calls) == (2, 1)
    assert end.usage.total_tokens > 0


async def test_pieces_say_what_the_recorded_text_says(rt: Runtime) -> None:
    session = await session_of(rt, [{"say": "A long answer that comes in pieces", "chunk": 5, "after": 0.05}])
    texts = only(await told(rt, session), TextEvent)
    pieces = [each for each in texts if each.piece]
    (whole,) = [each for each in texts if not each.piece]
    assert "".join(each.text for each in pieces) == whole.text == "A long answer that comes in pieces"
    assert texts[-1] is whole, "what is recorded comes after its pieces"
    assert not any(each.place for each in pieces)


async def test_events_are_the_same_after_json(rt: Runtime) -> None:
    session = await session_of(rt, [{"call": {"look": {"path": "a"}}}, {"say": "x"}], tools=[look])
    for event in await told(rt, session):
        data = encode_chat_event(event)
        assert decode_chat_event(data) == event
        assert msgspec.json.decode(data)["type"] in {"text", "tool", "input", "end"}


async def test_images_of_a_model_are_events_of_their_own(rt: Runtime) -> None:
    made = Message("assistant", (Text("A dot."), Media("image/png", data="aGk=", name="dot.png")))
    session = await session_of(rt, partial(_said, made))
    (image,) = only(await told(rt, session), ImageEvent)
    assert (image.media_type, image.data, image.name, image.call_id) == ("image/png", "aGk=", "dot.png", "")


def _said(message: Message, _: ModelRequest) -> ModelResponse:
    return ModelResponse(message)


async def test_call_ids_that_come_again_in_a_later_turn_are_told_apart(rt: Runtime) -> None:
    call = {"call": {"tool": "look", "args": {"path": "x"}, "id": "c1"}}
    session = await session_of(rt, {"turns": [call, {"say": "seen"}], "count": "input"}, tools=[look])
    for _ in range(2):
        tools = only(await told(rt, session), ToolEvent)
        assert [each.status for each in tools if each.place] == ["running", "done"]
        assert len({each.call_id for each in tools}) == 1


# --- ends of all kinds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "stop", "code"),
    [
        ({"say": "I will not.", "stop": "refusal"}, "refusal", "refused"),
        ({"say": "", "repeat": 9}, "empty", "empty_answer"),
        ({"fail": "auth"}, "error", "model_failed"),
    ],
)
async def test_a_turn_that_fails_says_why_and_ends_once(
    rt: Runtime, turn: dict[str, Any], stop: str, code: str
) -> None:
    session = await session_of(rt, [turn])
    events = await told(rt, session)
    end = end_of(events)
    assert (end.status, end.stop, end.code) == ("failed", stop, code)
    assert end.message.strip()
    last = only(events, ErrorEvent)[-1]
    assert (last.message, last.retries) == (end.message, False)


async def test_the_conversation_goes_on_after_a_turn_that_failed(rt: Runtime) -> None:
    session = await session_of(rt, [{"fail": "auth", "when": {"input": "one"}}, {"say": "{input} heard"}])
    assert end_of(await told(rt, session, "one")).status == "failed"
    assert end_of(await told(rt, session, "two")).text == "two heard"


async def test_an_agent_that_is_gone_does_not_keep_the_reader_waiting(rt: Runtime) -> None:
    new = NewSession("s1", place("nobody"))
    events = await told(rt, await rt.inside.sessions.store.create(new, now=rt.inside.clock()))
    assert end_of(events).status == "waiting"
    assert "nobody" in end_of(events).message


# --- who reads, and from where ---------------------------------------------------------------------------------------


async def test_whoever_comes_back_reads_on_from_every_place_without_a_gap_or_a_repeat(rt: Runtime) -> None:
    script = [{"say": "I look.", "call": {"look": {"path": "a"}}}, {"think": "so", "say": "Done."}]
    session = await session_of(rt, script, tools=[look])
    kept = durable(await told(rt, session))
    assert len({each.place for each in kept}) == len(kept)
    for number, event in enumerate(kept):
        watched = rt.inside.chat.watch(session.id, identity=ANN, after=event.place, follow=False)
        rest = durable([each async for each in watched])
        assert rest == kept[number + 1 :]


async def test_a_watcher_sees_turn_after_turn_each_with_one_end(rt: Runtime) -> None:
    session = await session_of(rt, {"otherwise": "heard {input}"})
    ends: list[str] = []

    async def watch() -> None:
        async with aclosing(rt.inside.chat.watch(session.id, identity=ANN)) as events:
            async for event in events:
                if isinstance(event, EndEvent):
                    ends.append(event.text)
                    if len(ends) == 3:
                        return

    async with asyncio.timeout(60):
        watching = asyncio.create_task(watch())
        for word in ("a", "b", "c"):
            await told(rt, session, word)
        await watching
    assert ends == ["heard a", "heard b", "heard c"]


async def test_a_place_in_somebody_elses_session_is_no_place_here(rt: Runtime) -> None:
    session = await session_of(rt, {"otherwise": "x"})
    other = await rt.inside.sessions.create(place(user="bob"), identity=BOB)
    theirs = [each async for each in rt.inside.chat.chat(other.id, "a secret", identity=BOB)][-1]
    for after, error in (
        (theirs.place, NotFound),
        ("nothing/1", NotFound),
        ("../..", InvalidInput),
        ("a/-1", InvalidInput),
    ):
        with pytest.raises(error):
            await anext(rt.inside.chat.watch(session.id, identity=ANN, after=after))
    with pytest.raises(NotFound):
        await anext(rt.inside.chat.watch(other.id, identity=ANN))


async def test_saying_the_same_again_yields_the_same_turn_once_more(rt: Runtime) -> None:
    session = await session_of(rt, {"otherwise": "heard {input}"})
    first = durable(await told(rt, session, "a", key="k1"))
    assert durable(await told(rt, session, "a", key="k1")) == first
    assert (await quiet(rt, session.id)).turns == 1


async def test_a_reader_that_leaves_does_not_stop_the_turn(rt: Runtime) -> None:
    go_on = asyncio.Event()

    async def answer(_: ModelRequest) -> str:
        await go_on.wait()
        return "done"

    session = await session_of(rt, answer)
    async with aclosing(rt.inside.chat.chat(session.id, "go", identity=ANN)) as events:
        await anext(events)
    go_on.set()
    done = await quiet(rt, session.id)
    assert (await rt.inside.runs.load(done.head))[1].transcript[-1].text == "done"


async def test_a_reader_that_does_not_read_holds_up_no_turn_and_misses_no_event(rt: Runtime) -> None:
    session = await session_of(rt, [{"say": "word " * 20_000, "chunk": 5}])
    async with aclosing(rt.inside.chat.chat(session.id, "go", identity=ANN)) as events:
        first = await anext(events)
        await quiet(rt, session.id)  # the turn is over before the second event is read
        rest = [first, *[event async for event in events]]
    assert [type(each) for each in durable(rest)] == [InputEvent, TextEvent, EndEvent]
    assert end_of(rest).text == "word " * 20_000


async def test_what_waits_behind_a_turn_is_told_when_its_own_turn_comes(rt: Runtime) -> None:
    go_on = asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        await go_on.wait()
        return f"heard {request.messages[-1].text}"

    session = await session_of(rt, answer)
    first = asyncio.create_task(told(rt, session, "one"))
    await at_work(rt, session)
    second = asyncio.create_task(told(rt, session, "two"))
    await arrived(rt, session, 2)
    go_on.set()
    assert [end_of(await each).text for each in (first, second)] == ["heard one", "heard two"]
    assert [each.text for each in only(await second, InputEvent)] == ["two"]


async def test_what_steers_a_turn_is_answered_by_that_turn(rt: Runtime) -> None:
    looking, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait_here() -> str:
        """Waits."""
        looking.set()
        await go_on.wait()
        return "done waiting"

    script = {"turns": [{"call": "wait_here"}], "otherwise": "heard {input}"}
    session = await session_of(rt, script, tools=[wait_here])
    first = asyncio.create_task(told(rt, session, "go"))
    await looking.wait()
    second = asyncio.create_task(told(rt, session, "faster", mode="steer"))
    await arrived(rt, session, 2)
    go_on.set()
    events = await second
    assert end_of(events) == end_of(await first)
    assert end_of(events).text == "heard faster"
    assert [each.text for each in only(events, InputEvent)] == ["faster"]


async def test_what_is_dropped_has_its_end_too(rt: Runtime) -> None:
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> str:
        looking.set()
        await go_on.wait()
        return "x"

    session = await session_of(rt, answer)
    first = asyncio.create_task(told(rt, session, "one"))
    await looking.wait()
    second = asyncio.create_task(told(rt, session, "two"))
    await arrived(rt, session, 2)
    await rt.inside.sessions.store.drop_waiting(session.id)
    end = end_of(await second)
    assert (end.status, end.run) == ("dropped", "")
    assert end.message
    go_on.set()
    await first


async def test_stop_ends_the_stream_of_a_tool_that_never_returns(rt: Runtime) -> None:
    looking = asyncio.Event()

    @tool
    async def hang() -> str:
        """Never returns."""
        looking.set()
        await asyncio.Event().wait()
        return ""

    session = await session_of(rt, [{"say": "Wait.", "call": "hang"}, {"say": "never"}], tools=[hang])
    reading = asyncio.create_task(told(rt, session, "go"))
    await looking.wait()
    async with asyncio.timeout(60):
        assert await rt.inside.sessions.stop(session.id, identity=ANN)
    events = await reading
    assert (end_of(events).status, end_of(events).stop) == ("stopped", "cancelled")
    assert [each.text for each in only(durable(events), TextEvent)] == ["Wait."]
    assert only(events, ToolEvent)[-1].status == "error"


async def test_text_that_was_shown_before_a_stop_stays_in_the_stream_and_in_the_conversation(rt: Runtime) -> None:
    session = await session_of(rt, [{"say": "Once upon a time there was " * 50, "chunk": 5, "pace": 0.05}])
    shown = ""
    stopping: asyncio.Task[bool] | None = None
    events: list[ChatEvent] = []
    async with asyncio.timeout(60):
        async for event in rt.inside.chat.chat(session.id, "Tell me a story", identity=ANN):
            events.append(event)
            if isinstance(event, TextEvent) and event.piece and not shown:
                shown = event.text
                stopping = asyncio.create_task(rt.inside.sessions.stop(session.id, identity=ANN))
    assert stopping is not None
    assert await stopping
    (kept,) = [each for each in only(events, TextEvent) if each.place]
    # Who comes late to a turn has missed its first pieces: what was seen may stand behind them.
    assert (kept.cut, shown in kept.text) == (True, True)
    assert (end_of(events).status, end_of(events).text) == ("stopped", kept.text)
    assert (await conversation(rt, session.id))[-1][1].startswith(kept.text)


async def test_an_interrupt_ends_one_stream_and_begins_the_next(rt: Runtime) -> None:
    looking = asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        if request.messages[-1].text == "one":
            looking.set()
            await asyncio.Event().wait()
        return f"heard {request.messages[-1].text}"

    session = await session_of(rt, answer)
    first = asyncio.create_task(told(rt, session, "one"))
    await looking.wait()
    second = await told(rt, session, "two", mode="interrupt")
    assert end_of(await first).status == "interrupted"
    assert end_of(second).text == "heard two"


async def test_many_sessions_have_a_live_turn_each_and_no_reader_reads_what_is_anothers(rt: Runtime) -> None:
    count, asked, all_asked = 60, 0, asyncio.Event()

    async def answer(request: ModelRequest) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == count:
            all_asked.set()
        await all_asked.wait()
        return {"say": f"heard {request.messages[-1].text}", "chunk": 4}

    rt.inside.know(Agent("helper", model=ScriptedModel(answer)))
    sessions = [await rt.inside.sessions.create(place(channel=f"c{n}"), identity=ANN) for n in range(count)]
    reading = [told(rt, session, f"number {n}") for n, session in enumerate(sessions)]
    for n, events in enumerate(await asyncio.gather(*reading)):
        assert end_of(events).text == f"heard number {n}"
        assert {each.run for each in events} == {end_of(events).run}


# --- approvals -------------------------------------------------------------------------------------------------------


async def test_a_turn_that_waits_for_an_approval_says_what_is_asked_and_goes_on_when_it_is_decided(rt: Runtime) -> None:
    await needs_approval(rt, "pay")

    @tool
    def pay(amount: int, password: str) -> str:
        """Pays."""
        return f"paid {amount}"

    script = [{"call": {"pay": {"amount": 5, "password": "hunter2"}}}, {"say": "{last_result}"}]
    session = await session_of(rt, script, tools=[pay])
    events: list[ChatEvent] = []
    async with asyncio.timeout(60):
        async for event in rt.inside.chat.chat(session.id, "pay", identity=ANN):
            events.append(event)
            if isinstance(event, WaitingEvent):
                (ask,) = event.asks
                assert (ask.kind, ask.tool, ask.arguments["amount"]) == ("approval", "pay", 5)
                assert "hunter2" not in encode_chat_event(event).decode()
                assert "approve" in ask.decisions
                await rt.inside.decide_approval(ask.id, "approve", by="boss", digest=ask.digest)
    assert end_of(events).text == "paid 5"


async def test_a_stream_that_pauses_ends_when_a_person_is_asked_and_can_be_gone_on_with(rt: Runtime) -> None:
    await needs_approval(rt, "pay")

    @tool
    def pay() -> str:
        """Pays."""
        return "paid"

    session = await session_of(rt, [{"call": "pay"}, {"say": "{last_result}"}], tools=[pay])
    events = await told(rt, session, "pay", pauses=True)
    assert end_of(events).status == "waiting"
    (ask,) = only(events, WaitingEvent)[0].asks
    await rt.inside.decide_approval(ask.id, "deny", by="boss", digest=ask.digest, comment="not today")
    rest = [e async for e in rt.inside.chat.watch(session.id, identity=ANN, after=events[-1].place, follow=False)]
    assert [each.status for each in only(rest, ToolEvent) if each.place] == ["error"]
    assert end_of(rest).status == "answered"


# --- sub-agents ------------------------------------------------------------------------------------------------------


@tool(effect="once")
def pay_at(shop: str) -> str:
    """Pays, and may not come back to say so."""
    if shop == "nowhere":
        raise ConnectionResetError("the line is dead")
    return f"paid at {shop}"


async def session_with_a_buyer(rt: Runtime, *asks: Any) -> Session:
    """A session whose agent has another one buy something, which does what is given first."""
    await needs_approval(rt, "pay_at")
    script = [*asks, {"say": "{last_result}"}]
    rt.inside.know(Agent("buyer", model=ScriptedModel(script), tools=["ask_user", pay_at]))
    order = {"call": {"agent:buyer": {"input": "Buy it."}}}
    return await session_of(rt, [order, {"say": "So: {last_result}"}], tools=["agent:buyer"])


ASKS_WHERE = {"call": {"ask_user": {"question": "Which shop?"}}}


async def decided(rt: Runtime, event: WaitingEvent) -> None:
    """Decides what a run asks, one after the other."""
    for ask in event.asks:
        if ask.kind == "question":
            await rt.inside.answer_question(event.run, ask.call_id, "the corner", by="ann")
        elif ask.kind == "approval":
            await rt.inside.decide_approval(ask.id, "approve", by="ann", digest=ask.digest)
        else:
            await rt.inside.settle_call(event.run, ask.call_id, "happened", result="paid after all", by="ann")


async def test_what_a_sub_agent_asks_is_told_to_every_reader_once_for_each_state(rt: Runtime) -> None:
    session = await session_with_a_buyer(rt, ASKS_WHERE, {"call": {"pay_at": {"shop": "nowhere"}}})
    said = asyncio.create_task(told(rt, session))
    asked: list[str] = []
    seen: list[ChatEvent] = []
    async with asyncio.timeout(60), aclosing(rt.inside.chat.watch(session.id, identity=ANN)) as events:
        async for event in events:
            seen.append(event)
            if isinstance(event, WaitingEvent) and event.asks:
                (ask,) = event.asks
                asked.append(ask.kind)
                assert event.run != (await rt.inside.sessions.store.get(session.id)).turn
                assert not event.place, "of what is not of the turn there is no place"
                late = [e async for e in _until_asked(rt, session)]
                assert late[-1] == event, "who joins late is told what is asked now"
                await decided(rt, event)
            if isinstance(event, EndEvent):
                break
    assert asked == ["question", "approval", "unknown_effect"]
    assert end_of(seen).text == end_of(await said).text == "So: paid after all"
    waits = only(seen, WaitingEvent)
    assert all(one != other for one, other in pairwise(waits))
    first = durable(seen)[0].place
    again = [e async for e in rt.inside.chat.watch(session.id, identity=ANN, after=first, follow=False)]
    assert durable(again) == durable(seen)[1:]


async def _until_asked(rt: Runtime, session: Session) -> AsyncIterator[ChatEvent]:
    async with aclosing(rt.inside.chat.watch(session.id, identity=ANN)) as events:
        async for event in events:
            yield event
            if isinstance(event, WaitingEvent):
                return


async def test_a_stream_pauses_when_a_sub_agent_asks_and_what_is_said_behind_it_too(rt: Runtime) -> None:
    session = await session_with_a_buyer(rt, {"call": {"pay_at": {"shop": "here"}}})
    events = await told(rt, session, pauses=True)
    assert end_of(events).status == "waiting"
    (waits,) = only(events, WaitingEvent)
    turn = (await rt.inside.sessions.store.get(session.id)).turn
    assert waits.run != turn == end_of(events).run
    behind = await told(rt, session, "And then?", pauses=True)
    assert only(behind, WaitingEvent) == [waits]
    assert (end_of(behind).status, end_of(behind).run) == ("waiting", turn)
    await decided(rt, waits)
    rest = [e async for e in rt.inside.chat.watch(session.id, identity=ANN, follow=False)]
    assert only(rest, EndEvent)[0].text == "So: paid at here"


async def session_with_one_that_asks_and_one_at_work(rt: Runtime, go_on: asyncio.Event) -> Session:
    async def answer(_: ModelRequest) -> str:
        await go_on.wait()
        return "built"

    for name, script in (("asker", [ASKS_WHERE, {"say": "x"}]), ("builder", answer)):
        rt.inside.know(Agent(name, model=ScriptedModel(script), tools=["ask_user"]))
    both = [{"agent:asker": {"input": "ask"}}, {"agent:builder": {"input": "build"}}]
    return await session_of(rt, [{"call": both}, {"say": "done"}], tools=["agent:asker", "agent:builder"])


async def test_a_stream_pauses_only_when_no_sub_agent_is_at_work(rt: Runtime) -> None:
    go_on = asyncio.Event()
    session = await session_with_one_that_asks_and_one_at_work(rt, go_on)
    chat = rt.inside.chat.chat(session.id, "go", identity=ANN, pauses=True)
    seen: list[ChatEvent] = []
    async with asyncio.timeout(60), aclosing(chat) as events:
        async for event in events:
            seen.append(event)
            if isinstance(event, WaitingEvent):
                assert [each.question for each in event.asks] == ["Which shop?"]
                go_on.set()
    assert len(only(seen, WaitingEvent)) == 1, "it is told at once, and once"
    assert end_of(seen).status == "waiting"


async def test_that_a_sub_agent_asks_nothing_any_more_is_told(rt: Runtime) -> None:
    go_on = asyncio.Event()
    session = await session_with_one_that_asks_and_one_at_work(rt, go_on)
    said = asyncio.create_task(told(rt, session, "go"))
    waits: list[WaitingEvent] = []
    async with asyncio.timeout(60), aclosing(rt.inside.chat.watch(session.id, identity=ANN)) as events:
        async for event in events:
            if isinstance(event, WaitingEvent):
                waits.append(event)
                if event.asks:
                    await decided(rt, event)
                else:
                    break
    go_on.set()
    assert waits[-1] == WaitingEvent(waits[0].run, reason="")
    assert end_of(await said).text == "done"


async def needs_approval(rt: Runtime, tool: str) -> None:
    rules = [{"operation_class": "*", "verdict": "approval_required"}]
    raw = {"kind": "ToolPermission", "metadata": {"name": "p"}, "spec": {"tool_ref": tool, "operation_rules": rules}}
    document, problems = validate_document(raw)
    assert document is not None, problems
    await rt.inside.resources.write([Put(document)])


# --- how the tests wait ----------------------------------------------------------------------------------------------


async def at_work(rt: Runtime, session: Session) -> None:
    for _ in range(600):
        if (await rt.inside.sessions.store.get(session.id)).turn:
            return
        await rt.inside.next_change()()
    raise AssertionError("no turn began")


async def arrived(rt: Runtime, session: Session, count: int) -> None:
    for _ in range(600):
        if (await rt.inside.sessions.store.get(session.id)).arrivals >= count:
            return
        await rt.inside.next_change()()
    raise AssertionError("it never arrived")
