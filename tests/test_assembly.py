"""What runs of one agent begin with is made once, and made again when anything it depends on has changed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Denied, NotFound
from foliot.kernel.run.spec import RunSpec
from foliot.resources.validate import validate_document
from foliot.store.base import Delete, Document, Key, Put
from foliot.tools.function import FunctionTool


def lookup(version: str = "1.0.0") -> FunctionTool:
    @tool(name="lookup", effect="read", version=version)
    async def function(key: str) -> str:
        """Look up the value of a key."""
        return f"{key} by {version}"

    return function


SCRIPT = [{"call": {"lookup": {"key": "k"}}}, {"say": "{last_result}"}]


def clerk(**spec) -> Agent:
    return Agent("clerk", **{"model": ScriptedModel(SCRIPT), "tools": [lookup()], **spec})


@pytest.fixture
async def runtime(tmp_path):
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def declare(runtime: Runtime, kind: str, name: str, **spec) -> Document:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    await runtime.inside._assembly.resources.write([Put(document)])
    return document


async def test_it_is_the_same_for_as_long_as_nothing_changes(runtime) -> None:
    agent = clerk()
    assembly = runtime.inside._assembly
    await assembly.agent(agent)
    spec, pipeline = await assembly.prepare(agent)
    await runtime.run(agent, "go")

    again, tools = await assembly.prepare(agent)
    assert again is spec
    assert tools is pipeline


async def test_a_rule_that_was_declared_meanwhile_holds(runtime) -> None:
    agent = clerk()
    assert (await runtime.run(agent, "go")).output == "k by 1.0.0"
    await declare(runtime, "AgentPolicy", "house", apply_mode="global", allowed_models=["another"])
    with pytest.raises(Denied, match="is not allowed by policy"):
        await runtime.run(agent, "go")


async def test_another_agent_of_the_same_name_has_its_own_tools(runtime) -> None:
    first, second = clerk(), clerk(tools=[lookup("2.0.0")])
    assert (await runtime.run(first, "go")).output == "k by 1.0.0"
    assert (await runtime.run(second, "go")).output == "k by 2.0.0"
    assert (await runtime.run(first, "go")).output == "k by 1.0.0"


async def test_a_tool_that_was_registered_meanwhile_is_used(runtime) -> None:
    runtime.inside._assembly.given.register(lookup("1.0.0"))
    agent = clerk(tools=["lookup"])
    assert (await runtime.run(agent, "go")).output == "k by 1.0.0"
    runtime.inside._assembly.given.register(lookup("1.1.0"))
    assert (await runtime.run(agent, "go")).output == "k by 1.1.0"
    runtime.inside._assembly.given.unregister("lookup", "1.1.0")
    assert (await runtime.run(agent, "go")).output == "k by 1.0.0"


async def test_an_endpoint_that_is_declared_is_looked_up_for_each_run(runtime) -> None:
    await declare(runtime, "ModelEndpoint", "brain", provider="scripted", default_model="one", script=SCRIPT)
    agent = clerk(model="brain")
    assembly = runtime.inside._assembly
    await assembly.agent(agent)
    spec, _ = await assembly.prepare(agent)
    assert (await assembly.prepare(agent))[0] is not spec


def shout(word: str) -> str:
    """Say a word loudly."""
    return word.upper()


async def declared_clerk(runtime: Runtime, *tools: str) -> RunSpec:
    await declare(runtime, "ModelEndpoint", "brain", provider="scripted", default_model="one", script=SCRIPT)
    await declare(runtime, "Agent", "clerk", model_ref="brain", tools=list(tools))
    assembly = runtime.inside._assembly
    return await assembly.freeze(await assembly.agent("clerk"))


async def test_runs_of_one_spec_share_their_tools_until_something_is_declared(runtime) -> None:
    await declare(runtime, "Tool", "shout", type="function", function=f"{__name__}:shout", effect="read")
    spec = await declared_clerk(runtime, "shout")
    assembly = runtime.inside._assembly
    first = await assembly.pipeline(spec)
    assert await assembly.pipeline(spec) is first
    assert await assembly.pipeline(replace(spec)) is not first, "an equal spec is another one"

    await declare(
        runtime, "Tool", "shout", type="function", function=f"{__name__}:shout", effect="read", risk_level="medium"
    )
    again = await assembly.pipeline(spec)
    assert first.definitions["shout"].risk == "low"
    assert again.definitions["shout"].risk == "medium"

    key = Key("Tool", "default", "shout")
    await assembly.resources.write([Delete(key)])
    with pytest.raises(NotFound, match="shout"):
        await assembly.pipeline(spec)


async def test_a_tool_that_is_given_meanwhile_is_in_the_next_run_of_a_spec(runtime) -> None:
    await declare(runtime, "Tool", "lookup", type="function", function=f"{__name__}:shout", effect="read")
    spec = await declared_clerk(runtime, "lookup")
    assembly = runtime.inside._assembly
    before = await assembly.pipeline(spec)
    assembly.given.register(given := lookup("0.1.0"))
    after = await assembly.pipeline(spec)
    assert after.entry("lookup").tool is given
    assert before.entry("lookup").tool is not given


async def test_what_goes_by_the_machine_is_looked_at_for_each_run(runtime) -> None:
    spec = await declared_clerk(runtime, "bash")
    assembly = runtime.inside._assembly
    assert await assembly.pipeline(spec) is not await assembly.pipeline(spec)


async def test_only_so_many_pipelines_are_kept(runtime, monkeypatch) -> None:
    monkeypatch.setattr("foliot.runtime.assembly.MOST_PREPARED", 2)
    spec = await declared_clerk(runtime, "submit_work")
    assembly = runtime.inside._assembly
    specs = [replace(spec) for _ in range(3)]
    made = [await assembly.pipeline(each) for each in specs]
    assert len(assembly._pipelines) == 2
    assert await assembly.pipeline(specs[2]) is made[2]
    assert await assembly.pipeline(specs[0]) is not made[0]
