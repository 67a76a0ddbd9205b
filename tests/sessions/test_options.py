"""Options of one turn: its model, its prompt, tools that it lacks, its time; and that a resumed turn has the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Media, Message, ModelRequest, ModelResponse, Text
from foliot.models.config import GatewayConfig
from foliot.models.gateways.openai import OpenAIChatGateway
from foliot.sessions.base import TurnOptions
from foliot.sessions.chat_events import EndEvent, TextEvent
from foliot.sessions.turns import MAX_SECONDS
from foliot.store.sessions.base import Session
from simulators.provider import Play, WireServer
from tests.sessions.kit import conversation, place

ANN = Identity("ann")


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


@tool
def look() -> str:
    """Looks."""
    return "seen"


@tool
def pay() -> str:
    """Pays."""
    return "paid"


class Asked:
    """An agent that keeps what it was asked."""

    def __init__(self, rt: Runtime, **agent: Any) -> None:
        self.requests: list[ModelRequest] = []
        model = ScriptedModel(self._answer)
        rt.inside.know(Agent("helper", prompt="You help.", model=model, tools=[look, pay], **agent))

    def _answer(self, request: ModelRequest) -> str:
        self.requests.append(request)
        return "done"

    @property
    def tools(self) -> set[str]:
        return {each.name for each in self.requests[-1].tools}


async def talk(rt: Runtime, session: Session, text: str | Message, **options: Any) -> EndEvent:
    chat = rt.inside.chat.chat(session.id, text, identity=ANN, options=TurnOptions(**options) if options else None)
    async with asyncio.timeout(60):
        last = [event async for event in chat][-1]
    assert isinstance(last, EndEvent)
    return last


async def begun(rt: Runtime) -> Session:
    return await rt.inside.sessions.create(place(), identity=ANN)


# --- the prompt and the tools ----------------------------------------------------------------------------------------


async def test_the_prompt_and_the_tools_of_one_turn_are_its_own(rt: Runtime) -> None:
    asked, session = Asked(rt), await begun(rt)
    await talk(rt, session, "one", system="Be a pirate.", exclude_tools=("pay", " ", "pay", ""))
    assert (asked.requests[-1].system, asked.tools) == ("Be a pirate.", {"look"})
    await talk(rt, session, "two")
    assert (asked.requests[-1].system, asked.tools) == ("You help.", {"look", "pay"})


async def test_a_blank_prompt_changes_nothing(rt: Runtime) -> None:
    asked, session = Asked(rt), await begun(rt)
    await talk(rt, session, "one", system="  \n")
    assert asked.requests[-1].system == "You help."


async def test_an_excluded_tool_is_not_run_when_it_is_called_all_the_same(rt: Runtime) -> None:
    script = [{"call": "pay"}, {"say": "{last_result}"}]
    rt.inside.know(Agent("helper", model=ScriptedModel(script), tools=[look, pay]))
    end = await talk(rt, await begun(rt), "go", exclude_tools=("pay",))
    assert "no tool named 'pay'" in end.text


@pytest.mark.parametrize(
    "options",
    [
        {"max_seconds": inf},
        {"max_seconds": float("nan")},
        {"max_seconds": 0.0},
        {"max_seconds": -1.0},
        {"system": "x" * 200_001},
        {"exclude_tools": ("a\nb",)},
        {"exclude_tools": ("payy",)},
    ],
)
async def test_options_that_no_turn_can_have_are_refused(rt: Runtime, options: dict[str, Any]) -> None:
    Asked(rt)
    session = await begun(rt)
    with pytest.raises(InvalidInput):
        await talk(rt, session, "x", **options)
    assert (await rt.inside.sessions.store.get(session.id)).arrivals == 0


async def test_a_misspelt_tool_is_refused_with_the_one_that_was_meant(rt: Runtime) -> None:
    Asked(rt)
    with pytest.raises(InvalidInput, match="no tool 'payy'") as refused:
        await talk(rt, await begun(rt), "x", exclude_tools=("payy",))
    assert refused.value.hint == "did you mean pay?"


async def test_an_agent_that_calls_others_may_lose_tools_of_theirs(rt: Runtime) -> None:
    asked = Asked(rt)
    rt.inside.know(Agent("chief", model=ScriptedModel(["done"]), tools=[Agent("aide", model=ScriptedModel(["x"]))]))
    session = await rt.inside.sessions.create(place("chief"), identity=ANN)
    assert (await talk(rt, session, "x", exclude_tools=("pay", "*"))).status == "answered"
    assert not asked.requests


async def test_a_model_that_is_not_there_is_refused_before_anything_is_said(rt: Runtime) -> None:
    Asked(rt)
    session = await begun(rt)
    with pytest.raises(NotFound, match="elsewhere"):
        await talk(rt, session, "x", model="elsewhere")
    assert (await rt.inside.sessions.store.get(session.id)).arrivals == 0


# --- time ------------------------------------------------------------------------------------------------------------


async def test_a_turn_has_half_an_hour_unless_it_says_otherwise(rt: Runtime) -> None:
    Asked(rt)
    session = await begun(rt)
    for given, most in ((None, MAX_SECONDS), (60.0, 60.0)):
        end = await talk(rt, session, "x", **({} if given is None else {"max_seconds": given}))
        _, state = await rt.inside.runs.load(end.run)
        assert state.spec.limits.max_seconds == most


async def test_the_agents_own_limit_is_kept_when_it_is_tighter(rt: Runtime) -> None:
    Asked(rt, limits={"timeout": "10s"})
    end = await talk(rt, await begun(rt), "x", max_seconds=60.0)
    assert (await rt.inside.runs.load(end.run))[1].spec.limits.max_seconds == 10.0


@pytest.mark.parametrize("what", ["model", "tool"])
async def test_a_turn_whose_time_is_over_ends_with_a_stored_notice_and_no_error(rt: Runtime, what: str) -> None:
    hanging = asyncio.Event()

    @tool(effect="once")
    async def hang() -> str:
        """Never returns."""
        await hanging.wait()
        return ""

    async def answer(request: ModelRequest) -> Any:
        if request.messages[-1].text == "slow" and what == "model":
            await hanging.wait()
        return [{"tool": "hang"}] if request.messages[-1].text == "slow" else f"heard {request.messages[-1].text}"

    rt.inside.know(Agent("helper", model=ScriptedModel(answer), tools=[hang]))
    session = await begun(rt)
    chat = rt.inside.chat.chat(session.id, "slow", identity=ANN, options=TurnOptions(max_seconds=0.2))
    async with asyncio.timeout(60):
        events = [event async for event in chat]
    end = events[-1]
    assert isinstance(end, EndEvent)
    assert (end.status, end.stop, end.code) == ("answered", "time_limit", "")
    assert [each.text for each in events if isinstance(each, TextEvent) and each.notice] == [end.text]
    assert not [each for each in events if type(each).__name__ == "ErrorEvent"]
    assert (await conversation(rt, session.id))[-1] == ("assistant", end.text)
    assert (await talk(rt, session, "go on")).text == "heard go on"


# --- files and models ------------------------------------------------------------------------------------------------

PICTURE = Message("user", (Text("What is this?"), Media("image/png", data="iVBORw0KGgo=", name="a.png")))
SAID = ModelResponse(Message("assistant", (Text("ok"),)))


@asynccontextmanager
async def gateway(url: str, **profile: Any) -> AsyncGenerator[OpenAIChatGateway]:
    made = OpenAIChatGateway(GatewayConfig("openai", url, "k", model="m", options={"profile": profile}))
    yield made
    await made.close()


async def test_a_picture_for_a_model_that_reads_none_is_refused_with_words(rt: Runtime) -> None:
    async with WireServer([Play(SAID)]) as server, gateway(server.url, unread=["image/"]) as blind:
        rt.inside.know(Agent("helper", model=blind))
        session = await begun(rt)
        with pytest.raises(InvalidInput, match="does not read image/png"):
            await talk(rt, session, PICTURE)
        assert server.requests == []


async def test_pictures_of_earlier_turns_do_not_keep_a_model_that_reads_none_from_answering(rt: Runtime) -> None:
    async with (
        WireServer([Play(SAID), Play(SAID)]) as server,
        gateway(server.url) as seeing,
        gateway(server.url, unread=["image/"]) as blind,
    ):
        rt.inside.know(Agent("helper", model=seeing))
        session = await begun(rt)
        assert (await talk(rt, session, PICTURE)).status == "answered"
        rt.inside.know(Agent("helper", model=blind))
        assert (await talk(rt, session, "And in words?")).status == "answered"
    seen, named = (str(request.json["messages"]) for request in server.requests)
    assert "data:image/png;base64,iVBORw0KGgo=" in seen
    assert "base64" not in named
    assert "does not read image/png" in named
