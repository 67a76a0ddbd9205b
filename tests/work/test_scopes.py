"""What is done under a task or a system is held to the policies that target it: its tools, its models, its tokens.

Every run of the task counts, every agent that one of them calls, a fork of any of them, and a task that was made after
the Task that a policy names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, ScriptedModel, tool
from foliot.kernel.run.events import BudgetExceeded, Event, ModelFailed, RunCreated, ToolFinished
from foliot.resources.references import Origin
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.store.base import Put
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command, TaskInfo

PAY: list[dict[str, Any]] = [{"call": {"pay": {}}}, {"say": "done"}]


@pytest.fixture
def paid() -> list[str]:
    return []


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


def clerk(paid: list[str], script: Any = None, **spec: Any) -> Agent:
    @tool(name="pay", effect="once")
    async def pay() -> str:
        paid.append("paid")
        return "ok"

    return Agent("clerk", model=ScriptedModel(script or PAY), tools=[pay], **spec)


def know(runtime: Runtime, agent: Agent) -> None:
    runtime.inside._assembly.know(agent)  # pyright: ignore[reportPrivateUsage]


async def declare(runtime: Runtime, kind: str, name: str, **spec: Any) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    await runtime.inside.resources.write([Put(document)])


async def work(runtime: Runtime, command: Command) -> TaskInfo:
    tasks = runtime.inside.tasking.tasks
    name = (await tasks.accept(command)).task.name
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)
    return await tasks.get("default", name)


async def told(runtime: Runtime, kind: type[Event]) -> list[Any]:
    """The facts of one kind, over all runs."""
    found = await runtime.inside.runs.journal.list(limit=100)
    return [event for info in found for _, event in await runtime.inside.runs.facts(info.id) if isinstance(event, kind)]


TARGETS = [
    pytest.param({"target_tasks": ["nightly"]}, id="task"),
    pytest.param({"target_tasks": ["default/Nightly"]}, id="task-in-full"),
    pytest.param({"target_systems": ["shop"]}, id="system"),
]


async def system(runtime: Runtime, *agents: str) -> None:
    await declare(runtime, "AgentSystem", "shop", agents=list(agents))


@pytest.mark.parametrize("target", TARGETS)
class TestTools:
    async def test_of_a_run_of_the_task(self, runtime: Runtime, paid: list[str], target: dict[str, Any]) -> None:
        know(runtime, clerk(paid))
        await system(runtime, "clerk")
        await declare(runtime, "AgentPolicy", "night", blocked_tools=["pay"], **target)

        await work(runtime, Command("system", "shop", name="nightly", message="go"))

        (refused,) = [each.result.error for each in await told(runtime, ToolFinished)]
        assert (paid, refused.details) == ([], {"layer": "policy", "rule": "AgentPolicy/night"})

    async def test_of_whoever_it_calls(self, runtime: Runtime, paid: list[str], target: dict[str, Any]) -> None:
        boss = Agent(
            "boss",
            model=ScriptedModel([{"call": {"agent:clerk": {"input": "pay"}}}, {"say": "so"}]),
            tools=[clerk(paid)],
        )
        know(runtime, boss)
        await system(runtime, "boss")
        await declare(runtime, "AgentPolicy", "night", blocked_tools=["pay"], **target)

        await work(runtime, Command("system", "shop", name="nightly", message="go"))

        assert paid == []
        child = next(each for each in await told(runtime, RunCreated) if each.parent)
        assert (child.task, child.system) == ("default/nightly", "shop")

    async def test_of_a_fork(self, runtime: Runtime, paid: list[str], target: dict[str, Any]) -> None:
        know(runtime, clerk(paid))
        await system(runtime, "clerk")
        await work(runtime, Command("system", "shop", name="nightly", message="go"))
        assert paid == ["paid"], "no policy yet"
        await declare(runtime, "AgentPolicy", "night", blocked_tools=["pay"], **target)
        (run,) = await runtime.inside.runs.journal.list(limit=10)

        await runtime.inside.fork(run.id, at=1)

        assert paid == ["paid"]
        first, fork = await told(runtime, RunCreated)
        assert first.root == fork.root != "", "its tokens count to the task"


@pytest.mark.parametrize("target", TARGETS)
async def test_a_model_that_the_task_may_not_ask_is_not_asked(
    runtime: Runtime, paid: list[str], target: dict[str, Any]
) -> None:
    know(runtime, clerk(paid))
    await system(runtime, "clerk")
    await declare(runtime, "AgentPolicy", "night", allowed_models=["gpt-5"], **target)

    task = await work(runtime, Command("system", "shop", name="nightly", message="go"))

    (refused,) = await told(runtime, ModelFailed)
    assert (task.phase, paid, refused.kind) == ("dead_lettered", [], "policy")
    assert "AgentPolicy/night" in refused.message


@pytest.mark.parametrize("extra", [{"model": "gpt-6"}, {"models": ["a", "gpt-6"]}, {"fallbacks": [{"model": "gpt-6"}]}])
async def test_a_model_in_the_settings_is_judged_too(runtime: Runtime, paid: list[str], extra: dict[str, Any]) -> None:
    sly = clerk(paid, model_settings={"extra": extra})
    await declare(runtime, "AgentPolicy", "house", apply_mode="global", allowed_models=[sly.model_ref, "a"])

    with pytest.raises(Exception, match="gpt-6"):
        await runtime.run(sly, "go")


@pytest.mark.parametrize("target", TARGETS)
async def test_the_tokens_of_a_task_are_counted_over_all_of_its_runs(
    runtime: Runtime, paid: list[str], target: dict[str, Any]
) -> None:
    usage = {"input_tokens": 60, "output_tokens": 0}
    said = [{"say": "hello", "usage": usage}]
    know(runtime, Agent("second", model=ScriptedModel(said)))
    know(runtime, Agent("third", model=ScriptedModel(said)))
    boss = Agent(
        "first",
        model=ScriptedModel([{"call": {"agent:third": {"input": "go"}}, "usage": usage}, *said]),
        tools=[Agent("third", model=ScriptedModel(said))],
    )
    know(runtime, boss)
    await system(runtime, "first", "second")
    await declare(runtime, "AgentPolicy", "night", max_tokens_per_run=170, **target)

    task = await work(runtime, Command("system", "shop", name="nightly", message="go"))

    (short,) = await told(runtime, BudgetExceeded)
    assert (task.phase, short.budget, short.used, short.allowed) == ("dead_lettered", "AgentPolicy/night", 180, 170)
    assert len(await told(runtime, RunCreated)) == 3, "the second agent began, and could not ask"

    other = await work(runtime, Command("agent", "second", name="daily", message="go"))
    assert other.phase == "succeeded", "another task has tokens of its own"


async def test_a_task_made_after_another_one_is_held_to_its_policies(runtime: Runtime, paid: list[str]) -> None:
    know(runtime, clerk(paid))
    await declare(runtime, "Task", "nightly", agent="clerk", mode="template", input={"topic": "go"})
    await declare(runtime, "AgentPolicy", "night", blocked_tools=["pay"], target_tasks=["nightly"])
    tasks = runtime.inside.tasking.tasks

    command, origin = Command("agent", "", name="nightly-17"), Origin("TaskSchedule", "default")
    await tasks.accept_template("default/nightly", command, origin=origin)
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)

    assert paid == []
    (created,) = await told(runtime, RunCreated)
    assert (created.task, created.template) == ("default/nightly-17", "default/nightly")


async def test_work_that_waits_goes_on_under_the_rules_of_that_time(runtime: Runtime, paid: list[str]) -> None:
    know(runtime, clerk(paid))
    await declare(
        runtime,
        "ToolPermission",
        "pay",
        tool_ref="pay",
        conditions=[{"when": "true", "verdict": "approval_required"}],
    )
    task = await work(runtime, Command("agent", "clerk", name="nightly", message="go"))
    assert task.phase == "waiting"
    await declare(runtime, "AgentPolicy", "night", blocked_tools=["pay"], target_tasks=["nightly"])
    (asked,) = [each async for each in runtime.inside.approvals.list("default")]

    await runtime.inside.approvals.decide(asked["metadata"]["name"], "approve", by="ann")
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)

    assert paid == [], "an approval does not lift what was forbidden since"
    assert (await runtime.inside.tasking.tasks.get("default", "nightly")).phase == "succeeded"
