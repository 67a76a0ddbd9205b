"""Agents declared in Python: what they take, what they refuse and in which words, and what their answers become."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import foliot
from foliot import (
    Agent,
    Media,
    Message,
    Recorded,
    RunResult,
    Runtime,
    ScriptedModel,
    Streamed,
    Text,
    tool,
)
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.run.events import RunFailed, RunSucceeded

MODEL = ScriptedModel([{"say": "hi"}])


class City(BaseModel):
    name: str


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    names: tuple[str, ...]


def look(query: str) -> str:
    """Looks something up."""
    return query


def other(query: str) -> str:
    return query


def says(text: str) -> ScriptedModel:
    return ScriptedModel([{"say": text}])


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"model": None}, "None is no model of Agent('clerk')", "anthropic:claude"),
        ({"instructions": "x"}, "has no 'instructions'", "'prompt'"),
        ({"system_prompt": "x"}, "has no 'system_prompt'", "'prompt'"),
        ({"output_type": City}, "has no 'output_type'", "'output'"),
        ({"output": 3}, "the output of Agent('clerk') cannot be 3", "a pydantic model"),
        ({"tools": look}, "the tools of Agent('clerk') are not a list", "tools=[…]"),
        ({"tools": "look"}, "the tools of Agent('clerk') are not a list: 'look'", "tools=[…]"),
        ({"tools": [look, tool(name="look")(other)]}, "two tools of Agent('clerk') are called 'look'", "@tool(name=…)"),
        ({"tools": [5]}, "5 cannot be a tool", "a function"),
        ({"tools": [functools.partial(look, "x")]}, "cannot be a tool", "a function"),
    ],
)
def test_what_is_no_argument_of_an_agent_is_refused_in_words(
    arguments: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises((UsageError, InvalidInput)) as caught:
        Agent("clerk", **{"model": MODEL, **arguments})

    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_the_same_function_twice_is_one_tool() -> None:
    agent = Agent("clerk", model=MODEL, tools=[look, look])

    assert agent.document["spec"]["tools"] == ["look"]
    assert len(agent.tools) == 1


@pytest.mark.parametrize("input", [None, ["hello"], {"role": "user", "content": "hello"}, 3, [Text("hello")]])
async def test_what_is_no_input_starts_no_run(input: Any) -> None:
    async with Runtime("memory:") as rt:
        with pytest.raises(UsageError, match="nothing that an agent can be told"):
            await rt.run(Agent("clerk", model=MODEL), input)
        assert await rt.inside.runs.journal.list() == []


async def test_what_is_no_agent_is_refused_in_words() -> None:
    async with Runtime("memory:") as rt:
        with pytest.raises(UsageError, match="3 is no agent"):
            await rt.run(3, "hello")  # type: ignore[arg-type]  # wrong on purpose


# --- what is said and answered ------------------------------------------------------------------------------------


async def test_messages_with_pictures_are_said_as_they_are() -> None:
    said = Message("user", (Text("What is this?"), Media("image/png", data="aGk=")))
    async with Runtime("memory:") as rt:
        result = await rt.run(Agent("clerk", model=MODEL), said)

    assert result.messages[0] == said


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (City, '{"name": "Oslo"}', City(name="Oslo")),
        (list[City], '[{"name": "Oslo"}]', [City(name="Oslo")]),
        (City | None, "null", None),
        (dict[str, City], '{"a": {"name": "Oslo"}}', {"a": City(name="Oslo")}),
        (Strict, '{"names": ["Oslo"]}', Strict(names=("Oslo",))),
        (int, "3", 3),
        ({"type": "object"}, '{"name": "Oslo"}', {"name": "Oslo"}),
    ],
)
async def test_the_answer_becomes_a_value_of_the_type_that_was_asked_for(output: Any, text: str, value: object) -> None:
    async with Runtime("memory:") as rt:
        result = await rt.run(Agent("clerk", model=says(text), output=output), "Which?")
        again = await rt.resume(result.run_id)

    assert result.value == again.value == value
    assert type(result.value) is type(value)


async def test_a_stream_gives_its_text_and_its_last_event_the_end() -> None:
    async with Runtime("memory:") as rt:
        agent = Agent("clerk", model=ScriptedModel({"chunk": 2, "turns": [{"think": "Hm.", "say": "Hello there."}]}))
        items = [item async for item in rt.stream(agent, "Hello")]
        result = await rt.resume(items[-1].run_id)
        failing = Agent("failing", model=ScriptedModel([{"fail": "auth"}]))
        failed = [item async for item in rt.stream(failing, "Hello")]

    assert "".join(item.text for item in items if isinstance(item, Streamed)) == "Hello there."
    assert isinstance(items[-1], Recorded)
    assert isinstance(items[-1].event, RunSucceeded)
    assert result.output == "Hello there."
    assert isinstance(failed[-1], Recorded)
    assert isinstance(failed[-1].event, RunFailed)


def test_everything_that_is_offered_can_be_imported() -> None:
    assert {name for name in foliot.__all__ if getattr(foliot, name, None) is None} == set()
    assert set(foliot._HOME) == set(foliot.__all__)


async def test_what_the_answer_is_can_be_said_in_annotations() -> None:
    async def city_of(rt: Runtime, agent: Agent[City]) -> RunResult[City]:
        return await rt.run(agent, "Which?")

    async with Runtime("memory:") as rt:
        assert (await city_of(rt, Agent("clerk", model=says('{"name": "Oslo"}'), output=City))).value.name == "Oslo"
