"""What a hook refused is read by no model later: not in the next turn, a search, a recall or a summary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foliot import Agent, Hook, HookAct, Runtime, hook, tool
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall
from foliot.kernel.run.events import RunFailed, SessionCompacted
from foliot.sessions.history import texts_of
from foliot.tools.builtin.recall import conversation_of
from tests.sessions.kit import Gate, place, quiet

ANN = Identity("ann", via="test")
SECRET = "zanzibar"
LONG = "word " * 120


class Model:
    """A model that keeps what it was sent, and says what the test wants."""

    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []
        self.next: list[Message] = []
        self.pauses = 0

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
        self.asked.append(request)
        said = self.next.pop(0) if self.next else Message("assistant", (Text("fine"),))
        if self.pauses:
            self.pauses -= 1
            return ModelResponse(said, stop="pause")
        return ModelResponse(said)

    async def close(self) -> None: ...

    def was_sent(self, word: str) -> bool:
        return any(word in msgspec.json.encode(request).decode() for request in self.asked)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as made:
        yield made


async def begun(rt: Runtime, gate: Hook, *tools: Any) -> tuple[str, Model]:
    model = Model()
    agent = Agent("helper", model=model, hooks=[gate], tools=tools, compaction={"max_tokens": -1, "keep_tail": 1})
    rt.inside.know(agent)
    session = await rt.inside.sessions.create(place(), identity=ANN, title="a talk")
    return session.id, model


async def say(rt: Runtime, id: str, *texts: str) -> None:
    for text in texts:
        await rt.inside.sessions.say(id, text, identity=ANN)
        await quiet(rt, id)


async def is_nowhere(rt: Runtime, id: str, notice: str) -> None:
    """Fails if the word is found in the session, or if no notice stands in its place."""
    sessions = rt.inside.sessions
    assert not await sessions.search("default", SECRET, identity=ANN)
    shown = msgspec.json.encode(await sessions.history(id, identity=ANN)).decode()
    assert SECRET not in shown
    assert notice in shown
    head = (await sessions.store.get(id)).head
    said = await conversation_of(rt.inside.runs.journal, head)
    assert not [each for each in said if SECRET in each.words]
    assert [each for each in said if notice in each.words]


def refusing(point: Any) -> Hook:
    @hook(point, name="gate", on_failure="block")
    def gate(act: HookAct) -> Any:
        return act.block("not this") if SECRET in f"{act.text} {[each.text for each in act.messages]}" else None

    return gate


@pytest.mark.parametrize("point", ["before_message", "before_model"])
async def test_a_refused_message_is_a_notice_in_all_that_follows(rt: Runtime, point: Any) -> None:
    id, model = await begun(rt, refusing(point))
    await say(rt, id, LONG, f"my word is {SECRET}", LONG)
    assert not model.was_sent(SECRET)
    assert [message.text for message in model.asked[-1].messages] == [
        LONG, "fine", "[a message was refused by hook gate]", LONG,
    ]  # fmt: skip
    await is_nowhere(rt, id, "[a message was refused by hook gate]")
    done = await rt.inside.sessions.compact(id, identity=ANN)
    await quiet(rt, id)
    assert any(isinstance(event, SessionCompacted) for _, event in await rt.inside.runs.facts(done.run_id))
    assert not model.was_sent(SECRET)


async def test_the_messages_of_a_refused_run_are_notices(rt: Runtime) -> None:
    turned_away: list[str] = []

    @hook("before_run", name="gate")
    def gate(act: HookAct) -> Any:
        turned_away.append(act.run_id)
        return act.block("closed") if len(turned_away) == 1 else None

    id, model = await begun(rt, gate)
    await say(rt, id, f"my word is {SECRET}", "and now?")
    assert [message.text for message in model.asked[-1].messages] == [
        "[a message was refused by hook gate]", "and now?",
    ]  # fmt: skip
    await is_nowhere(rt, id, "[a message was refused by hook gate]")


@pytest.mark.parametrize("policy", ["block", "abort"])
@pytest.mark.parametrize("point", ["before_message", "before_model", "before_run", "after_message"])
async def test_what_a_broken_hook_could_not_judge_is_withheld(rt: Runtime, point: Any, policy: Any) -> None:
    broken = [True]

    @hook(point, name="gate", on_failure=policy)
    def gate(act: HookAct) -> None:
        if broken[0]:
            raise ValueError("no")

    id, model = await begun(rt, gate)
    word = SECRET if point != "after_message" else "a question"
    model.next = [Message("assistant", (Text(f"it is {SECRET}"),))] if point == "after_message" else []
    await say(rt, id, word)
    broken[0] = False
    await say(rt, id, "and now?")
    assert not model.was_sent(SECRET)
    await is_nowhere(rt, id, "was refused by hook gate]")


@pytest.mark.parametrize("pauses", [0, 1])
async def test_a_refused_answer_is_a_notice_whole_and_in_pieces(rt: Runtime, pauses: int) -> None:
    id, model = await begun(rt, refusing("after_message"))
    model.next, model.pauses = [Message("assistant", (Text(f"{SECRET} "),))] * (pauses + 1), pauses
    await say(rt, id, "tell me", "and now?")
    assert [message.text for message in model.asked[-1].messages] == [
        "tell me", "[the answer was refused by hook gate]", "and now?",
    ]  # fmt: skip
    await is_nowhere(rt, id, "[the answer was refused by hook gate]")


@pytest.mark.parametrize("pauses", [0, 1])
async def test_an_answer_that_a_hook_changed_is_nowhere_as_it_was(rt: Runtime, pauses: int) -> None:
    @hook("after_message", "before_message", name="gate")
    def gate(act: HookAct) -> Any:
        return act.change(text=act.text.replace(SECRET, "***"))

    id, model = await begun(rt, gate)
    model.next, model.pauses = [Message("assistant", (Text(f"{SECRET} "),))] * (pauses + 1), pauses
    await say(rt, id, f"tell me of {SECRET}", "and now?")
    assert [message.text for message in model.asked[-1].messages] == [
        "tell me of ***",
        "*** " * (pauses + 1),
        "and now?",
    ]
    await is_nowhere(rt, id, "***")


async def test_a_refused_input_to_a_turn_at_work_is_not_said_to_the_next_one(rt: Runtime) -> None:
    held = Gate()

    @tool(effect="read")
    async def wait() -> str:
        """Waits for the test."""
        return await held.passed()

    id, model = await begun(rt, refusing("before_message"), wait)
    model.next = [Message("assistant", (ToolCall("c1", "wait"),))]
    await rt.inside.sessions.say(id, "go", identity=ANN)
    await held.reached()
    await rt.inside.sessions.say(id, f"by the way: {SECRET}", identity=ANN, mode="steer")
    held.open()
    await quiet(rt, id)
    await say(rt, id, "and now?")
    assert not model.was_sent(SECRET)
    turns = await rt.inside.sessions.history(id, identity=ANN)
    assert [turn.phase for turn in turns] == ["succeeded", "succeeded"]
    assert not await rt.inside.sessions.search("default", SECRET, identity=ANN)


async def test_a_result_that_a_failed_hook_ended_the_run_for_is_withheld(rt: Runtime) -> None:
    broken = [True]

    @hook("after_tool", name="gate", on_failure="abort")
    def gate(act: HookAct) -> None:
        if broken[0]:
            raise ValueError("no")

    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return SECRET

    id, model = await begun(rt, gate, look)
    model.next = [Message("assistant", (ToolCall("c1", "look"),))]
    await say(rt, id, "look")
    broken[0] = False
    await say(rt, id, "and now?")
    assert not model.was_sent(SECRET)


@pytest.mark.parametrize("ends_by", ["stop", "interrupt"])
@pytest.mark.parametrize("point", ["before_run", "before_message"])
async def test_a_message_that_no_hook_was_asked_about_is_withheld_when_its_turn_is_ended(
    rt: Runtime, point: Any, ends_by: str
) -> None:
    held, asked = Gate(), list[str]()

    @hook(point, "before_message", name="gate", timeout=300)
    async def gate(act: HookAct) -> Any:
        asked.append(f"{act.point} {act.text}")
        if len(asked) == 1:
            await held.passed()  # for longer than anybody waits: a stop does not wait for it
        return act.block("not this") if SECRET in act.text else None

    id, model = await begun(rt, gate)
    await rt.inside.sessions.say(id, f"my word is {SECRET}", identity=ANN)
    await held.reached()
    if ends_by == "stop":
        async with asyncio.timeout(30):
            assert await rt.inside.sessions.stop(id, identity=ANN)
    else:
        await rt.inside.sessions.say(id, "no, wait", identity=ANN, mode="interrupt")
    await quiet(rt, id)
    held.open()
    await say(rt, id, "and now?")
    assert not model.was_sent(SECRET)
    assert [message.text for message in model.asked[-1].messages][-1] == "and now?"
    assert model.asked[-1].messages[0].text == "[a message was refused by hook gate]"
    turns = await rt.inside.sessions.history(id, identity=ANN)
    assert [turn.phase for turn in turns][:1] == ["cancelled"]
    await is_nowhere(rt, id, "[a message was refused by hook gate]")


async def test_a_message_that_fails_before_any_hook_is_asked_is_withheld(rt: Runtime) -> None:
    """The hooks of the run are there, and the question that they would be asked about never comes."""
    broken = [True]

    @hook("before_run", name="first", on_failure="abort")
    def first(act: HookAct) -> None:
        if broken[0]:
            raise ValueError("no")

    model = Model()
    rt.inside.know(Agent("helper", model=model, hooks=[first, refusing("before_message")]))
    session = await rt.inside.sessions.create(place(), identity=ANN, title="a talk")
    await say(rt, session.id, f"my word is {SECRET}")
    broken[0] = False
    await say(rt, session.id, "and now?")
    assert not model.was_sent(SECRET)


async def test_a_stopped_turn_without_hooks_keeps_what_was_said(rt: Runtime) -> None:
    held = Gate()

    @hook("before_model", name="slow", timeout=300)
    async def slow(act: HookAct) -> None:
        if not model.asked and act.messages[-1].text == "first":
            await held.passed()

    id, model = await begun(rt, slow)
    await rt.inside.sessions.say(id, "first", identity=ANN)
    await held.reached()
    await rt.inside.sessions.stop(id, identity=ANN)
    held.open()
    await say(rt, id, "second")
    assert [message.text for message in model.asked[-1].messages] == ["first", "second"]


async def test_the_journal_keeps_what_was_said(rt: Runtime) -> None:
    id, _ = await begun(rt, refusing("before_message"))
    await say(rt, id, f"my word is {SECRET}")
    head = (await rt.inside.sessions.store.get(id)).head
    facts = [event for _, event in await rt.inside.runs.facts(head)]
    assert SECRET in msgspec.json.encode(facts[0]).decode()
    assert isinstance(facts[-1], RunFailed)
    _, state = await rt.inside.runs.load(head)
    assert texts_of(state) == ["[a message was refused by hook gate]"]
