"""A run is governed from its first question to its last call, by the rules as they are when a call is made."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, Denied, InvalidInput
from foliot.kernel.messages import ModelRequest, ToolResult
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import BudgetExceeded, ToolFinished, ToolStarted
from foliot.resources.validate import validate_document
from foliot.store.base import Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.tools.search import FIT, NAME


@tool(effect="read")
async def refund(amount: float) -> str:
    """Give money back."""
    return f"refunded {amount:g}"


def desk(script: Any = None, *, tools: Any = (refund,), **spec: Any) -> Agent:
    turns = script or [{"call": {"refund": {"amount": 20}}}, {"say": "{last_result}"}]
    return Agent("desk", model=ScriptedModel(turns), tools=tools, **spec)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    database = await open_database(str(tmp_path / "foliot.db"))
    try:
        yield SqlResourceStore(database, lambda: pytest.fail("no secret is touched"))
    finally:
        await database.close()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db", allow_missing=True) as runtime:
        yield runtime


async def declare(store: SqlResourceStore, kind: str, name: str, **spec: Any) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    await store.write([Put(document)])


async def results_of(runtime: Runtime, run_id: str) -> list[ToolResult]:
    return [event.result for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)]


# --- rules -------------------------------------------------------------------------------------------------------


async def test_a_policy_in_the_store_blocks_a_tool_of_python(runtime: Runtime, store: SqlResourceStore) -> None:
    await declare(store, "AgentPolicy", "house", apply_mode="global", blocked_tools=["refund"])

    result = await runtime.run(desk(), "please")

    (refused,) = await results_of(runtime, result.run_id)
    assert refused.error is not None
    assert refused.error.details == {"layer": "policy", "rule": "AgentPolicy/house"}


async def test_a_rule_that_is_applied_during_a_run_holds_from_the_next_call_on(
    runtime: Runtime, store: SqlResourceStore
) -> None:
    @tool(effect="read")
    async def tighten() -> str:
        await declare(store, "ToolPermission", "refund", operation_rules=[{"operation_class": "*", "verdict": "deny"}])
        return "tightened"

    script = [
        {"call": {"refund": {"amount": 1}}},
        {"call": "tighten"},
        {"call": {"refund": {"amount": 2}}},
        {"say": "x"},
    ]
    result = await runtime.run(desk(script, tools=(refund, tighten)), "go")

    first, _, last = await results_of(runtime, result.run_id)
    assert first.error is None
    assert last.error is not None
    assert last.error.details["rule"] == "ToolPermission/refund"


async def test_roles_are_looked_up_in_the_store_and_a_missing_one_refuses(
    runtime: Runtime, store: SqlResourceStore
) -> None:
    refused = await runtime.run(desk(roles=["clerk"]), "please")
    await declare(store, "AgentRole", "clerk", permissions=["tool:refund:invoke"])
    allowed = await runtime.run(desk(roles=["clerk"]), "please")

    assert "do not exist: clerk" in refused.output
    assert allowed.output == "refunded 20"


async def test_a_runtime_in_memory_is_open_for_agents_without_roles_and_closed_for_others() -> None:
    async with Runtime("memory:", allow_missing=True) as runtime:
        assert (await runtime.run(desk(), "please")).output == "refunded 20"
        assert "do not exist" in (await runtime.run(desk(roles=["clerk"]), "please")).output


async def test_a_condition_on_arguments_parks_one_call_and_lets_the_other_pass(
    runtime: Runtime, store: SqlResourceStore
) -> None:
    await declare(
        store, "ToolPermission", "refund", conditions=[{"when": "args.amount > 500.0", "verdict": "approval_required"}]
    )
    script = [{"call": [{"refund": {"amount": 20}}, {"refund": {"amount": 600}}]}, {"say": "done"}]

    result = await runtime.run(desk(script), "both")

    assert result.waiting is not None
    assert [each.text for each in await results_of(runtime, result.run_id)] == ["refunded 20"]


@pytest.mark.parametrize("name", ["FOLIOT_DEFAULT_TOOL_ACCESS", "FOLIOT_ALLOWED_TOOLS"])
async def test_settings_of_the_deployment_refuse_what_nobody_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "deny" if "DEFAULT" in name else "search, weather")

    async with Runtime(tmp_path / "foliot.db") as runtime:
        result = await runtime.run(desk(), "please")

    assert "permission_denied" in result.output


async def test_a_model_that_no_policy_allows_is_not_asked_at_all(runtime: Runtime, store: SqlResourceStore) -> None:
    await declare(store, "AgentPolicy", "house", apply_mode="global", allowed_models=["gpt-5"])

    with pytest.raises(Denied, match="is not allowed by policy"):
        await runtime.run(desk(), "please")


async def test_the_token_limit_of_a_policy_holds_beside_that_of_the_agent(
    runtime: Runtime, store: SqlResourceStore
) -> None:
    await declare(store, "AgentPolicy", "house", apply_mode="global", max_tokens_per_run=1)

    result = await runtime.run(desk(limits={"max_tokens": 9000}), "please", check=False)

    assert result.phase == "failed"
    (told,) = [
        event for _, event in await runtime.inside.runs.facts(result.run_id) if isinstance(event, BudgetExceeded)
    ]
    assert (told.limit, told.allowed, told.budget) == ("tokens", 1, "AgentPolicy/house")


async def test_a_policy_that_cannot_be_read_keeps_runs_from_starting(runtime: Runtime, store: SqlResourceStore) -> None:
    document, _ = validate_document({"kind": "AgentPolicy", "metadata": {"name": "odd"}, "spec": {}})
    assert document is not None
    document["spec"]["apply_mode"] = "sometimes"  # as an older or newer version may have written it
    await store.write([Put(document)])

    with pytest.raises(Denied, match="AgentPolicy/odd"):
        await runtime.run(desk(), "please")


# --- versions ----------------------------------------------------------------------------------------------------


def versioned(version: str, **fields: Any) -> Any:
    @tool(name="f", effect="read", version=version)
    async def f() -> str:
        return f"version {version}"

    return f.with_definition(dataclasses.replace(f.definition, **fields)) if fields else f


async def test_an_agent_asks_for_a_version_and_the_run_is_locked_to_it(tmp_path: Path) -> None:
    tools = [versioned("1.0.0"), versioned("1.4.0"), versioned("2.0.0")]
    script = [{"call": "f"}, {"say": "{last_result}"}]

    async with Runtime(tmp_path / "foliot.db", tools=tools) as runtime:
        old = await runtime.run(Agent("old", model=ScriptedModel(script), tools=["f@^1.0"]), "go")
        new = await runtime.run(Agent("new", model=ScriptedModel(script), tools=["f"]), "go")
        spec = (await runtime.inside.runs.load(old.run_id))[1].spec

    assert (old.output, new.output) == ("version 1.4.0", "version 2.0.0")
    assert spec.extra["tools"]["f"][0] == "1.4.0"


@pytest.mark.parametrize(
    ("later", "kind"),
    [
        (versioned("1.0.0"), None),
        (versioned("1.0.1"), "version_mismatch"),
        (versioned("1.0.0", schema={"type": "object"}), "version_mismatch"),
    ],
)
async def test_a_resumed_run_does_not_get_another_tool_under_the_same_name(
    tmp_path: Path, later: Any, kind: str | None
) -> None:
    path = tmp_path / "foliot.db"

    def agent(f: Any) -> Agent:
        turns = [{"call": "f"}, {"say": "{last_result}"}]
        return Agent("desk", model=ScriptedModel(turns), tools=[f])

    database = await open_database(str(path))
    store = SqlResourceStore(database, lambda: pytest.fail("no secret is touched"))
    await declare(
        store, "ToolPermission", "f", operation_rules=[{"operation_class": "*", "verdict": "approval_required"}]
    )
    await database.close()
    async with Runtime(path) as runtime:
        parked = await runtime.run(agent(versioned("1.0.0")), "go")
        (waiting,) = [each async for each in runtime.inside.approvals.list("default")]
        await runtime.inside.approvals.decide(waiting["metadata"]["name"], "approve", by="ana")
    async with Runtime(path) as runtime:
        await runtime.resume(parked.run_id, agent=agent(later))
        (result,) = await results_of(runtime, parked.run_id)

    assert (result.error.kind if result.error else None) == kind


async def test_two_tools_of_one_name_in_one_runtime_collide() -> None:
    with pytest.raises(Conflict, match="already registered"):
        async with Runtime("memory:", tools=[versioned("1.0.0"), versioned("1.0.0")]):
            pass


async def test_agents_with_functions_of_the_same_name_keep_their_own() -> None:
    def agent(name: str) -> Agent:
        @tool(name="who", effect="read")
        async def who() -> str:
            return name

        return Agent(name, model=ScriptedModel([{"call": "who"}, {"say": "{last_result}"}]), tools=[who])

    async with Runtime("memory:") as runtime:
        one, two = agent("one"), agent("two")
        answers = await asyncio.gather(*(runtime.run(each, "go") for each in (one, two, one)))

    assert [answer.output for answer in answers] == ["one", "two", "one"]


# --- turns -------------------------------------------------------------------------------------------------------


def ordered(name: str, log: list[str], *, fails: bool = False, **fields: Any) -> Any:
    @tool(name=name, effect="once" if name.startswith("write") else "read")
    async def act(path: str = "") -> str:
        log.append(f"{name} begins")
        await asyncio.sleep(0)
        log.append(f"{name} ends")
        if fails:
            raise ValueError("broken")
        return name

    return act.with_definition(dataclasses.replace(act.definition, **fields))


async def run_calls(tools: list[Any], *names: str) -> tuple[list[ToolResult], list[str]]:
    script = [{"call": [{name: {"path": "a"}} for name in names]}, {"say": "done"}]
    async with Runtime("memory:") as runtime:
        result = await runtime.run(Agent("desk", model=ScriptedModel(script), tools=tools), "go")
        facts = [event for _, event in await runtime.inside.runs.facts(result.run_id)]
    started = [event.name for event in facts if isinstance(event, ToolStarted)]
    return [event.result for event in facts if isinstance(event, ToolFinished)], started


async def test_calls_that_touch_the_same_thing_run_one_after_the_other() -> None:
    log: list[str] = []
    keys = ("file:{path}",)
    tools = [ordered("write", log, resource_keys=keys), ordered("look", log, resource_keys=keys), ordered("other", log)]

    await run_calls(tools, "write", "look", "other")

    assert log.index("look begins") > log.index("write ends")
    assert log.index("other begins") < log.index("write ends")


async def test_a_call_waits_for_the_tool_it_comes_after_whatever_the_model_wrote() -> None:
    log: list[str] = []

    results, started = await run_calls(
        [ordered("deploy", log, after=("build",)), ordered("build", log)], "deploy", "build"
    )

    assert started == ["build", "deploy"]
    assert all(result.error is None for result in results)


async def test_calls_wait_for_the_tool_they_come_after_also_when_it_is_behind_all_that_may_run_at_once() -> None:
    log: list[str] = []
    ships = [f"ship{number}" for number in range(Limits().parallel_tools)]
    tools = [ordered("test", log, after=("build",)), ordered("build", log)]

    results, started = await run_calls(
        [*tools, *(ordered(name, log, after=("test",)) for name in ships)], *ships, "test", "build"
    )

    assert started == ["build", "test", *ships]
    assert all(result.error is None for result in results)


async def test_a_call_is_not_run_when_the_one_it_depends_on_failed() -> None:
    log: list[str] = []
    tools = [ordered("build", log, fails=True), ordered("deploy", log, after=("build",))]

    results, started = await run_calls(tools, "build", "deploy")

    assert started == ["build"]
    (refused,) = [result for result in results if result.name == "deploy"]
    assert refused.error is not None
    assert refused.error.kind == "dependency_failed"


async def test_a_call_can_be_declared_to_run_although_the_one_before_it_failed() -> None:
    log: list[str] = []
    clean = ordered("clean_up", log, after=("build",), on_dependency_failure="run")

    results, started = await run_calls([ordered("build", log, fails=True), clean], "clean_up", "build")

    assert started == ["build", "clean_up"]
    assert [result.name for result in results if result.error is None] == ["clean_up"]


@pytest.mark.parametrize(("policy", "polls"), [("short_circuit", 1), ("allow", 3)])
async def test_a_tool_that_is_polled_is_run_again_when_the_agent_says_so(policy: str, polls: int) -> None:
    log: list[str] = []
    script = [{"call": "state"}] * 3 + [{"say": "done"}]
    execution = {"duplicate_tool_call_policy": policy}
    async with Runtime("memory:") as runtime:
        agent = Agent("desk", model=ScriptedModel(script), tools=[ordered("state", log)], execution=execution)
        await runtime.run(agent, "go")

    assert log.count("state begins") == polls


async def test_tools_that_wait_in_a_circle_are_refused_before_anything_runs() -> None:
    log: list[str] = []
    tools = [ordered("a", log, after=("b",)), ordered("b", log, after=("c",)), ordered("c", log, after=("a",))]

    with pytest.raises(InvalidInput, match="wait for each other: a -> b -> c -> a"):
        await run_calls(tools, "a", "b", "c")
    assert log == []


async def test_tools_that_need_what_the_agent_has_not_are_refused_before_anything_runs() -> None:
    log: list[str] = []
    tools = [ordered("a", log, requires=("b", "capability:gpu", "secret:key")), ordered("c", log, requires=("tool:a",))]

    with pytest.raises(InvalidInput, match=r"a needs tool:b; a needs capability:gpu$"):
        await run_calls(tools, "a")
    assert log == []


async def test_what_is_deprecated_is_still_run_and_the_model_is_told_what_to_use() -> None:
    old = ordered("look", [], deprecated_since="2.0.0", replaced_by="see")
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> dict[str, Any]:
        seen.append(request)
        return {"say": "done"} if len(seen) > 1 else {"call": {"look": {"path": "a"}}}

    async with Runtime("memory:") as runtime:
        result = await runtime.run(Agent("desk", model=ScriptedModel(answer), tools=[old]), "go")
        (done,) = await results_of(runtime, result.run_id)

    assert done.error is None
    assert seen[0].tools[0].description.endswith("(Deprecated; use see instead.)")


async def test_a_tool_that_must_come_first_is_asked_for() -> None:
    log: list[str] = []
    pay = ordered("pay", log, requires_prior=("look",))
    script = [{"call": "pay"}, {"call": "look"}, {"call": "pay"}, {"say": "done"}]
    async with Runtime("memory:") as runtime:
        result = await runtime.run(Agent("desk", model=ScriptedModel(script), tools=[pay, ordered("look", log)]), "go")
        first, _, last = await results_of(runtime, result.run_id)

    assert first.error is not None
    assert first.error.kind == "precondition_failed"
    assert last.error is None


# --- more tools than fit -----------------------------------------------------------------------------------------


async def test_a_model_with_too_many_tools_searches_and_is_shown_what_it_finds() -> None:
    def filler(n: int) -> Any:
        @tool(name=f"filler_{n}", effect="read", description=f"Does thing number {n}.")
        async def act() -> str:
            return "filler"

        return act

    seen: list[set[str]] = []

    def model(request: ModelRequest) -> Any:
        seen.append({each.name for each in request.tools})
        match len(seen):
            case 1:
                return {"call": {NAME: {"query": "give money back"}}}
            case 2:
                return {"call": {"refund": {"amount": 20}}}
            case _:
                return "done"

    tools = [*(filler(n) for n in range(FIT)), refund]
    async with Runtime("memory:") as runtime:
        result = await runtime.run(Agent("desk", model=ScriptedModel(model), tools=tools), "go")
        results = await results_of(runtime, result.run_id)

    assert seen[0] == {NAME}
    assert seen[1] == {NAME, "refund"}
    assert results[1].text == "refunded 20"
