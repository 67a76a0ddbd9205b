"""Prompts of one question: an agent without its tools, or a model by itself; in words, or as JSON of a schema."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, RunFailedError, Runtime, SchemaMismatch, ScriptedModel, tool
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.messages import ModelRequest
from foliot.kernel.run.events import OutputRejected

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OSLO = '{"city": "Oslo"}'


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


class Remembering(ScriptedModel):
    def __init__(self, *said: str) -> None:
        super().__init__([{"say": each} for each in said])
        self.asked: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, **more: Any) -> Any:
        self.asked.append(request)
        return await super().respond(request, **more)


@pytest.fixture(params=["memory:", "foliot.db"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    store = request.param if request.param == "memory:" else tmp_path / request.param
    async with Runtime(store) as opened:
        yield opened


def clerk(*said: str, **spec: Any) -> Agent:
    return Agent("clerk", model=Remembering(*said), prompt="You know cities.", tools=[look], **spec)


async def test_an_object_is_checked_and_given_as_a_value(runtime: Runtime) -> None:
    agent = clerk(OSLO)
    result = await runtime.runs.object("Where?", agent=agent, schema=CITY)

    assert (result.value, result.output) == ({"city": "Oslo"}, OSLO)
    (asked,) = agent.gateway.asked
    assert (asked.tools, asked.output_schema, asked.system) == ((), CITY, "You know cities.")


async def test_what_does_not_fit_goes_back_with_what_is_wrong_twice(runtime: Runtime) -> None:
    agent = clerk("Oslo", '{"town": "Oslo"}', OSLO)
    result = await runtime.runs.object("Where?", agent=agent, schema=json.dumps(CITY))

    assert result.value == {"city": "Oslo"}
    assert "city" in agent.gateway.asked[2].messages[-1].text


async def test_after_two_repairs_the_raw_text_is_told(runtime: Runtime) -> None:
    with pytest.raises(SchemaMismatch) as failed:
        await runtime.runs.object("Where?", agent=clerk("a", "b", "it is c", OSLO), schema=CITY)

    assert (failed.value.code, failed.value.raw_text) == ("schema_mismatch", "it is c")
    facts = await runtime.runs.events(failed.value.result.run_id)
    assert sum(isinstance(event, OutputRejected) for _, event in facts) == 3


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (None, "schema is required"),
        ("", "schema is required"),
        ({}, "schema is required"),
        ("{", "parsing schema"),
        (b"\xff", "parsing schema"),
        ("[]", "parsing schema"),
        ("3", "parsing schema"),
        ({"properties": {}}, "top-level type"),
        ({"type": "nonsense"}, "parsing schema"),
        ({"type": "object", "$ref": "https://example.com/x"}, "parsing schema"),
    ],
)
async def test_a_schema_that_is_none_is_refused_before_anything_begins(
    runtime: Runtime, schema: Any, told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        await runtime.runs.object("Where?", agent=clerk(OSLO), schema=schema)
    assert await runtime.runs.list() == []


async def test_a_plain_prompt_has_no_tools_and_no_shape(runtime: Runtime) -> None:
    agent = clerk("In Oslo.")
    result = await runtime.runs.prompt("Where?", agent=agent, system="Be brief.")

    assert result.output == "In Oslo."
    (asked,) = agent.gateway.asked
    assert (asked.tools, asked.output_schema, asked.system) == ((), None, "Be brief.")


async def test_a_model_is_asked_by_itself(runtime: Runtime) -> None:
    other = clerk("In Oslo.")
    runtime.inside.know(other)
    result = await runtime.runs.prompt("Where?", model=other.model_ref)
    assert result.output == "In Oslo."
    assert other.gateway.asked[0].system == ""


async def test_nobody_to_ask_is_said(runtime: Runtime) -> None:
    with pytest.raises(InvalidInput, match="no language model"):
        await runtime.runs.object("Where?", schema=CITY)
    with pytest.raises((InvalidInput, NotFound)):
        await runtime.runs.prompt("Where?", model="nowhere")


async def test_a_contract_to_use_tools_cannot_be_prompted_around(runtime: Runtime) -> None:
    agent = clerk(OSLO, execution={"profile": "contract", "tool_sequence": ["look"]})
    with pytest.raises(InvalidInput, match="contract"):
        await runtime.runs.prompt("Where?", agent=agent)


async def test_another_failure_is_not_called_a_mismatch(runtime: Runtime) -> None:
    agent = Agent("clerk", model=ScriptedModel([{"fail": "auth"}]))
    with pytest.raises(RunFailedError) as failed:
        await runtime.runs.object("Where?", agent=agent, schema=CITY)
    assert failed.value.code == "run_failed"
