"""What runs of one agent begin with is made once, and made again when anything it depends on has changed."""

from __future__ import annotations

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Denied
from foliot.resources.validate import validate_document
from foliot.store.base import Document, Put
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
