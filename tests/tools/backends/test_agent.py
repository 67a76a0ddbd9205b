"""Agents that call agents: a run of their own, the same one after a crash, within what the caller has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import NotFound, UsageError
from foliot.kernel.messages import Usage
from foliot.kernel.run.events import RunCreated, ToolFinished
from foliot.resources.problems import ManifestError
from foliot.resources.references import references
from foliot.resources.validate import validate_document
from foliot.runtime.delegation import MAX_DEPTH
from foliot.tools.backends.agent import AgentTool, Delegated, DelegationOrder, child_run_id
from foliot.tools.base import Invocation, ToolCancelled, ToolError
from foliot.tools.pipeline.parts import Spending, count, spend
from foliot.tools.pipeline.pipeline import Pipeline

USAGE = {"input_tokens": 30, "output_tokens": 10}


def helper(turns: list[Any] | None = None, name: str = "helper", **spec: Any) -> Agent:
    return Agent(name, model=ScriptedModel(turns or [{"say": "done: {input}", "usage": USAGE}]), **spec)


def boss(*callees: Any, turns: list[Any] | None = None, **spec: Any) -> Agent:
    ask = {"call": {"agent:helper": {"input": "count the gears"}}, "usage": {"input_tokens": 5, "output_tokens": 1}}
    last = {"say": "They say: {last_result}", "usage": {"input_tokens": 5, "output_tokens": 1}}
    return Agent("boss", model=ScriptedModel(turns or [ask, last]), tools=callees, **spec)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def finished(runtime: Runtime, run_id: str) -> list[ToolFinished]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)]


async def children(runtime: Runtime, parent: str) -> list[Any]:
    return [info for info in await runtime.inside.runs.journal.list() if info.parent == parent]


async def test_an_agent_asks_another_and_gets_its_answer(runtime: Runtime) -> None:
    result = await runtime.run(boss(helper()), "How many?")

    assert result.output == "They say: done: count the gears"
    (child,) = await children(runtime, result.run_id)
    _, state = await runtime.inside.runs.load(child.id)
    created = state.created
    assert isinstance(created, RunCreated)
    assert (created.agent, created.parent, created.depth) == ("helper", result.run_id, 1)
    assert child.phase == "succeeded"


async def test_what_the_child_spent_is_the_parents_too(runtime: Runtime) -> None:
    result = await runtime.run(boss(helper()), "How many?")

    (fact,) = await finished(runtime, result.run_id)
    assert fact.usage is not None
    assert (fact.usage.input_tokens, fact.usage.output_tokens) == (30, 10)
    assert result.usage.total_tokens == 30 + 10 + 2 * 6


async def test_agents_in_a_manifest_call_each_other_by_name(runtime: Runtime) -> None:
    runtime.inside._assembly.know(helper())  # its model is a Python object
    assert (await runtime.run(boss("agent:helper"), "How many?")).output.endswith("done: count the gears")
    with pytest.raises(NotFound, match="agent:nobody"):
        await runtime.run(boss("agent:nobody"), "How many?")


def test_a_manifest_may_list_agents_as_tools() -> None:
    raw = {
        "kind": "Agent",
        "metadata": {"name": "boss"},
        "spec": {"model_ref": "m", "tools": ["search@^1.2", "agent:helper"]},
    }
    document, problems = validate_document(raw)
    assert document is not None, problems
    found = [(each.kind, each.name) for each in references(document)]
    assert ("Agent", "helper") in found
    assert ("Tool", "search") in found
    for wrong in ("agent:", "agent:a b", "agent:helper@1", "agent:other/helper"):
        with pytest.raises(ManifestError):
            Agent("boss", model="m", tools=[wrong])


def test_agents_of_another_namespace_cannot_be_called() -> None:
    with pytest.raises(UsageError, match="namespace"):
        boss(helper(namespace="other"))


async def test_the_child_gets_what_its_parent_has_left_and_no_more(runtime: Runtime) -> None:
    careful = boss(helper(limits={"max_tokens": 1000}), limits={"max_tokens": 206, "max_steps": 7})
    result = await runtime.run(careful, "How many?")
    (child,) = await children(runtime, result.run_id)
    _, state = await runtime.inside.runs.load(child.id)
    assert state.spec.limits.max_tokens == 200
    assert state.spec.limits.max_steps == 6


async def test_children_of_one_step_share_what_is_left(runtime: Runtime) -> None:
    both = [{"agent:helper": {"input": "a"}}, {"agent:helper": {"input": "b"}}]
    usage = {"input_tokens": 5, "output_tokens": 1}
    turns = [{"call": both, "usage": usage}, {"say": "both", "usage": usage}]
    result = await runtime.run(boss(helper(), turns=turns, limits={"max_tokens": 1006}), "How many?")
    limits = []
    for child in await children(runtime, result.run_id):
        _, state = await runtime.inside.runs.load(child.id)
        limits.append(state.spec.limits.max_tokens)
    assert limits == [500, 500]


async def test_a_child_that_fails_is_a_failed_call_and_still_costs(runtime: Runtime) -> None:
    greedy = helper([{"call": {"nothing": {}}, "usage": USAGE}, {"say": "x"}], limits={"max_steps": 1})
    result = await runtime.run(boss(greedy), "How many?")

    (fact,) = await finished(runtime, result.run_id)
    assert fact.result.error is not None
    assert "agent 'helper' failed" in fact.result.error.message
    assert not fact.result.error.retryable
    assert fact.usage is not None
    assert fact.usage.input_tokens == 30


async def test_agents_cannot_call_each_other_in_a_circle(runtime: Runtime) -> None:
    turns = [{"call": {"agent:boss": {"input": "you do it"}}}, {"say": "no: {last_result}"}]
    echo = helper(turns, tools=["agent:boss"])
    result = await runtime.run(boss(echo), "How many?")

    (child,) = await children(runtime, result.run_id)
    (fact,) = await finished(runtime, child.id)
    assert fact.result.error is not None
    assert fact.result.error.code == "permission_denied"
    assert "boss -> helper -> boss" in fact.result.error.message
    assert await children(runtime, child.id) == []


async def test_delegation_ends_at_a_depth(runtime: Runtime) -> None:
    last: Agent | None = None
    for number in reversed(range(1, MAX_DEPTH + 2)):
        turns = [{"call": {f"agent:a{number + 1}": {"input": "deeper"}}}, {"say": "back: {last_result}"}]
        last = helper(turns if last else None, name=f"a{number}", tools=[last] if last else [])
    assert last is not None
    top = helper([{"call": {"agent:a1": {"input": "go"}}}, {"say": "{last_result}"}], name="a0", tools=[last])
    result = await runtime.run(top, "go")

    assert "agents may delegate 4 deep" in result.output
    runs = await runtime.inside.runs.journal.list()
    assert sorted(info.agent for info in runs) == [f"a{number}" for number in range(MAX_DEPTH + 1)]


async def test_cancelling_the_parent_cancels_the_child(runtime: Runtime) -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def think() -> str:
        """Thinks for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    slow = helper([{"call": "think"}, {"say": "never"}], tools=[think])
    task = asyncio.create_task(runtime.run(boss(slow), "How many?", run_id="r1", check=False))
    async with asyncio.timeout(60):
        await begun.wait()
        await runtime.inside.cancel("r1", by="somebody")
        result = await task
    assert result.phase == "cancelled"
    (child,) = await children(runtime, "r1")
    assert child.phase == "cancelled"


async def test_when_only_the_process_ends_the_child_is_gone_on_with(tmp_path: Path) -> None:
    begun = asyncio.Event()
    let_through = asyncio.Event()

    @tool(effect="idempotent")
    async def slowly() -> str:
        """Takes its time."""
        begun.set()
        await let_through.wait()
        return "at last"

    def worker() -> Agent:
        return helper([{"call": "slowly", "usage": USAGE}, {"say": "{last_result}", "usage": USAGE}], tools=[slowly])

    async with Runtime(tmp_path / "foliot.db") as first:
        task = asyncio.create_task(first.run(boss(worker()), "How many?", run_id="r1"))
        async with asyncio.timeout(60):
            await begun.wait()
        task.cancel()  # as a process does that is told to end
        await asyncio.gather(task, return_exceptions=True)
        (child,) = await children(first, "r1")
        assert child.phase == "pending"

    let_through.set()
    async with Runtime(tmp_path / "foliot.db") as second:
        result = await second.resume("r1", agent=boss(worker()))
        assert result.output == "They say: at last"
        (again,) = await children(second, "r1")
        assert again.id == child.id
        assert result.usage.input_tokens == 2 * 30 + 2 * 5
        _, state = await second.inside.runs.load(child.id)
        assert state.spent.steps == 2, "the first answer of the child was not asked for again"


async def test_a_child_that_waits_for_a_person_keeps_its_parent_waiting(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        """Pays."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    payer = helper([{"call": "pay"}, {"say": "paid: {last_result}"}], tools=[pay])
    async with Runtime(tmp_path / "foliot.db") as first:
        task = asyncio.create_task(first.run(boss(payer), "Pay", run_id="r1"))
        async with asyncio.timeout(60):
            await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (child,) = await children(first, "r1")

    async with Runtime(tmp_path / "foliot.db") as second:
        going = asyncio.create_task(second.resume("r1", agent=boss(payer)))

        async def waits() -> None:
            while (await second.inside.runs.journal.get(child.id)).phase != "waiting":
                await asyncio.sleep(0.02)

        async with asyncio.timeout(60):
            await waits()
            assert not going.done()
            _, state = await second.inside.runs.load(child.id)
            await second.inside.settle_call(child.id, state.calls[0].id, "happened", result="yes", by="anna")
            result = await going
        assert result.output == "They say: paid: yes"


# --- the tool alone ----------------------------------------------------------------------------------------------

CALL = Invocation("run-1", "c1", "agent:helper", {"input": "go"}, "key")


async def test_the_child_of_a_call_is_always_the_same_run() -> None:
    orders: list[DelegationOrder] = []

    async def delegate(order: DelegationOrder) -> Delegated:
        orders.append(order)
        return Delegated(order.run_id, "succeeded", "text", {"answer": 42})

    asked = AgentTool("helper", delegate, input_schema={"type": "object"})
    assert await asked.invoke(CALL) == {"answer": 42}
    assert await asked.invoke(CALL) == {"answer": 42}
    assert orders[0] == orders[1]
    assert orders[0].input == '{"input":"go"}'
    assert orders[0].run_id == child_run_id(CALL)
    other = Invocation("run-2", "c1", "agent:helper", {"input": "go"}, "key")
    assert child_run_id(other) != child_run_id(CALL)


async def test_a_cancelled_child_is_a_cancelled_call() -> None:
    async def delegate(order: DelegationOrder) -> Delegated:
        return Delegated(order.run_id, "cancelled", reason="enough")

    with pytest.raises(ToolCancelled, match="enough"):
        await AgentTool("helper", delegate).invoke(CALL)


async def test_arguments_are_checked_and_broken_delegates_are_failures() -> None:
    async def delegate(order: DelegationOrder) -> Delegated:
        raise ToolError("no")

    pipeline = Pipeline([AgentTool("helper", delegate)])
    wrong = await pipeline.call(Invocation("run-1", "c1", "agent:helper", {"text": "go"}, "key"))
    assert wrong.error is not None
    assert wrong.error.code == "invalid_input"
    failed = await pipeline.call(CALL)
    assert failed.error is not None
    assert failed.error.message == "no"


async def test_spending_is_counted_per_run_in_every_task_of_a_call() -> None:
    spending = count()
    spend("a", Usage(input_tokens=1))
    await asyncio.create_task(_spend_later("a", 5))
    await asyncio.create_task(_spend_later("b", 7))
    Context().run(spend, "c", Usage(input_tokens=100))  # nobody counts there: nothing happens
    assert spending.usage is not None
    assert spending.usage.input_tokens == 12
    assert Spending().usage is None


async def _spend_later(run_id: str, tokens: int) -> None:
    spend(run_id, Usage(input_tokens=tokens))
