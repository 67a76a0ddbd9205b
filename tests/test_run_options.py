"""Options of one run: another model, another prompt, and tools that it and everything below it lack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.definition.run_options import EVERY_TOOL, RunOptions, excluded_by, without_tools
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.messages import ModelSettings, ToolSpec
from foliot.kernel.run.events import ToolFinished
from foliot.kernel.run.spec import Contract, RunSpec, ToolRule, decode_spec, encode_spec


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


@tool(effect="read")
def listen() -> str:
    """Listen."""
    return "heard"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def spec_of(runtime: Runtime, run_id: str) -> RunSpec:
    return (await runtime.inside.runs.load(run_id))[1].spec


def names(spec: RunSpec) -> list[str]:
    return [rule.name for rule in spec.tools]


def with_tools(*called: str, **fields: Any) -> RunSpec:
    return RunSpec("a", "m", tools=tuple(ToolRule(ToolSpec(name)) for name in called), **fields)


async def test_an_excluded_tool_is_neither_shown_nor_called(runtime: Runtime) -> None:
    agent = Agent("a", model=ScriptedModel([{"call": {"look": {"place": "x"}}}, {"say": "ok"}]), tools=[look, listen])
    result = await runtime.inside.run(agent, "Go.", options=RunOptions(exclude_tools=("look", "", "look")))

    spec = await spec_of(runtime, result.run_id)
    assert names(spec) == ["listen"]
    assert excluded_by(spec) == ("look",)
    facts = [event for _, event in await runtime.inside.runs.facts(result.run_id) if isinstance(event, ToolFinished)]
    assert facts[0].result.error is not None
    assert "there is no tool named 'look'" in facts[0].result.error.message


async def test_no_run_below_regains_what_a_run_above_has_lost(runtime: Runtime) -> None:
    low = Agent("low", model=ScriptedModel([{"say": "low"}]), tools=[look, listen])
    mid = Agent(
        "mid", model=ScriptedModel([{"call": {"agent:low": {"input": "x"}}}, {"say": "mid"}]), tools=[low, look]
    )
    top = Agent("top", model=ScriptedModel([{"call": {"agent:mid": {"input": "x"}}}, {"say": "top"}]), tools=[mid])
    await runtime.inside.run(top, "Go.", options=RunOptions(exclude_tools=("look",)))

    specs = {info.agent: await spec_of(runtime, info.id) for info in await runtime.inside.runs.journal.list()}
    assert names(specs["mid"]) == ["agent:low"]
    assert names(specs["low"]) == ["listen"]
    assert excluded_by(specs["low"]) == ("look",)


async def test_the_program_of_a_run_does_not_see_what_is_excluded(runtime: Runtime) -> None:
    agent = Agent("a", model=ScriptedModel([{"say": "ok"}]), tools=[look, listen, "code"])
    result = await runtime.inside.run(agent, "Go.", options=RunOptions(exclude_tools=("look",)))

    (code,) = [rule for rule in (await spec_of(runtime, result.run_id)).tools if rule.name == "code"]
    assert "listen" in code.spec.description
    assert "look" not in code.spec.description


async def test_a_prompt_of_one_run_stands_in_the_place_of_the_agents(runtime: Runtime) -> None:
    agent = Agent("a", model=ScriptedModel([{"say": "ok"}]), prompt="Be long.")
    changed = await runtime.inside.run(agent, "Go.", options=RunOptions(system="Be brief."))
    blank = await runtime.inside.run(agent, "Go.", options=RunOptions(system="  "))

    assert (await spec_of(runtime, changed.run_id)).system == "Be brief."
    assert (await spec_of(runtime, blank.run_id)).system == "Be long."


async def test_a_model_that_there_is_not_is_refused_before_the_run_begins(runtime: Runtime) -> None:
    agent = Agent("a", model=ScriptedModel([{"say": "ok"}]))
    with pytest.raises(NotFound):
        await runtime.inside.run(agent, "Go.", run_id="r-1", options=RunOptions(model="nowhere"))
    assert await runtime.inside.runs.journal.list() == []


async def test_another_model_answers_one_run(runtime: Runtime) -> None:
    other = Agent("other", model=ScriptedModel([{"say": "from the other"}]))
    runtime.inside.know(other)
    agent = Agent("a", model=ScriptedModel([{"say": "mine"}]))
    result = await runtime.inside.run(agent, "Go.", options=RunOptions(model=other.model_ref))
    assert result.output == "from the other"


@pytest.mark.parametrize("other", ["read_file", "read", "read@1"])
def test_a_tool_is_excluded_under_all_of_its_names(other: str) -> None:
    assert names(without_tools(with_tools("read_file", "glob"), [other])) == ["glob"]


def test_a_star_excludes_every_tool_and_is_kept_for_those_below() -> None:
    spec = without_tools(with_tools("read", "glob", settings=ModelSettings(tool_choice="required")), [EVERY_TOOL])
    assert names(spec) == []
    assert spec.settings.tool_choice == "auto"
    assert names(without_tools(with_tools("x"), excluded_by(spec))) == []


def test_exclusions_add_up_and_survive_storing() -> None:
    spec = without_tools(without_tools(with_tools("a", "b", "c"), ["a"]), ["b"])
    assert decode_spec(encode_spec(spec)) == spec
    assert (names(spec), excluded_by(spec)) == (["c"], ("a", "b"))


def test_a_contract_keeps_its_tools() -> None:
    with pytest.raises(InvalidInput, match="contract to use a"):
        without_tools(with_tools("a", contract=Contract(("a",))), ["a"])


def test_the_search_for_tools_goes_with_the_last_tool_that_it_could_find() -> None:
    spec = with_tools("a", "tool_search", extra={"deferred": ["a"]})
    assert names(without_tools(spec, ["a"])) == []
