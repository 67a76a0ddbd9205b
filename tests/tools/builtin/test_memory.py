"""The memory that the agents of a task share."""

from __future__ import annotations

import asyncio

import pytest

from foliot import Runtime
from foliot.models.scripted.model import ScriptedModel
from foliot.runtime.agent import Agent
from foliot.store.queue.placement import Offer
from foliot.tools.base import Caller, Invocation, ToolArgumentsInvalid, ToolDenied, ToolError
from foliot.tools.builtin.catalogue import builtin_tools
from foliot.work.tasks.base import Command

NAMES = ["memory.read", "memory.write", "memory.list", "memory.search"]


class Notebook:
    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    async def get(self, run_id, key):
        return self.notes.get(key)

    async def put(self, run_id, key, value):
        self.notes[key] = value

    async def entries(self, run_id):
        return sorted(self.notes.items())


@pytest.fixture
def tools():
    made = {tool.definition.name: tool for tool in builtin_tools(NAMES, memory=Notebook())}

    async def call(name, **arguments):
        return await made[name].invoke(Invocation("r", "c", name, arguments, "k", Caller("default", "a")))

    return call


async def test_what_one_agent_writes_another_reads(tools):
    assert await tools("memory.read", key="x") == {"found": False, "key": "x"}
    assert await tools("memory.write", key=" x ", value="1") == {"status": "ok", "key": "x"}
    assert await tools("memory.read", key="x") == {"found": True, "key": "x", "value": "1"}


async def test_lists_begin_as_asked_and_count_everything(tools):
    for number in range(120):
        await tools("memory.write", key=f"n{number:03}", value="")
    await tools("memory.write", key="other", value="")
    listed = await tools("memory.list", prefix="n")
    assert listed["count"] == 120
    assert len(listed["entries"]) == 100
    assert listed["entries"][0] == {"key": "n000", "value": ""}


async def test_search_looks_in_keys_and_values_whatever_the_case(tools):
    await tools("memory.write", key="City", value="Oslo")
    await tools("memory.write", key="river", value="near the CITY")
    found = await tools("memory.search", query="city")
    assert [entry["key"] for entry in found["results"]] == ["City", "river"]
    assert (await tools("memory.search", query="city", top_k=1))["count"] == 1
    assert (await tools("memory.search", query="city", top_k=-3))["count"] == 2


@pytest.mark.parametrize(("name", "arguments"), [("memory.read", {"key": " "}), ("memory.search", {"query": " "})])
async def test_blanks_are_refused(tools, name, arguments):
    with pytest.raises(ToolArgumentsInvalid, match="must not be blank"):
        await tools(name, **arguments)


async def test_agents_of_one_task_share_and_other_tasks_do_not(tmp_path):
    writer = ScriptedModel({"turns": [{"call": {"memory.write": {"key": "k", "value": "v"}}}, {"say": "ok"}]})
    reader = ScriptedModel({"turns": [{"call": {"memory.read": {"key": "k"}}}, {"say": "{tool_result}"}]})
    async with Runtime(tmp_path / "f.db") as runtime:
        first = Agent("first", model=writer, tools=["memory.write"])
        second = Agent("second", model=reader, tools=["memory.read"])
        for agent in (first, second):
            runtime.inside._assembly.know(agent)
        memory = runtime.inside._assembly.backends.memory
        assert memory is not None
        tasks = runtime.inside.tasking.tasks
        worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=2), once=True)
        await tasks.accept(Command("agent", "first", name="one", message="go"))
        await tasks.accept(Command("agent", "second", name="two", message="go"))
        await asyncio.wait_for(worker.run(), 60)
        runs = {name: (await tasks.runs("default", name))[0]["run_id"] for name in ("one", "two")}
        assert await memory.get(runs["one"], "k") == "v"
        assert await memory.get(runs["two"], "k") is None
        result = await runtime.run(second, "go", check=False)
        with pytest.raises(ToolDenied, match="belongs to no task"):
            await memory.get(result.run_id, "k")
        for number in range(63):
            await memory.put(runs["one"], f"big{number}", "x" * 64 * 1024)
        with pytest.raises(ToolError, match="is full"):
            await memory.put(runs["one"], "more", "x" * 64 * 1024)
        await memory.put(runs["one"], "big0", "replaced")
        await tasks.delete("default", "one")
        with pytest.raises(ToolDenied):
            await memory.get(runs["one"], "k")
