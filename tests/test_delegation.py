"""Generic delegation: several tasks at once, and agents that run beside the one that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.kernel.run.events import RunCreated, RunSucceeded, ToolFinished, ToolUnknown
from foliot.kernel.run.state import State
from foliot.resources.validate import validate_document
from foliot.runtime.delegation import MAX_DEPTH, MOST_BESIDE, Children, Delegator
from foliot.store.base import Put
from foliot.store.journal.base import TERMINAL, Signal
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.tools.builtin.delegation import MOST_TASKS

USAGE = {"input_tokens": 30, "output_tokens": 10}
OWN = {"input_tokens": 5, "output_tokens": 1}


def helper(turns: list[Any] | None = None, name: str = "helper", **spec: Any) -> Agent:
    return Agent(name, model=ScriptedModel(turns or [{"say": "done: {input}", "usage": USAGE}]), **spec)


def boss(turns: list[Any], *tools: Any, **spec: Any) -> Agent:
    turns = [{**turn, "usage": OWN} for turn in turns]
    return Agent("boss", model=ScriptedModel(turns), tools=tools or (helper(), *GENERIC), **spec)


GENERIC = ("delegate", "spawn_agent", "wait_agents")


def tasks(*told: str, agent: str = "helper") -> dict[str, Any]:
    return {"call": {"delegate": {"tasks": [{"agent": agent, "task": each} for each in told]}}}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def results(runtime: Runtime, run_id: str) -> list[Any]:
    """What the calls of a run gave: the value, or the error."""
    facts = [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)]
    return [fact.result.error or _value(fact.result.text) for fact in facts]


def _value(text: str) -> Any:
    return msgspec.json.decode(text) if text.startswith("{") else text


async def children(runtime: Runtime, parent: str) -> list[Any]:
    return [info for info in reversed(await runtime.inside.runs.journal.list()) if info.parent == parent]


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


# --- delegate ----------------------------------------------------------------------------------------------------


async def test_tasks_are_done_side_by_side_and_answered_by_their_ids(runtime: Runtime) -> None:
    turn = {
        "call": {"delegate": {"tasks": [{"id": "x", "agent": "helper", "task": "a"}, {"agent": "helper", "task": "b"}]}}
    }
    result = await runtime.run(boss([turn, {"say": "ok"}]), "Go.")

    (value,) = await results(runtime, result.run_id)
    found = {name: (each["output"], each["complete"]) for name, each in value["results"].items()}
    assert found == {"x": ("done: a", True), "task_1": ("done: b", True)}
    assert {info.id for info in await children(runtime, result.run_id)} == {
        each["run_id"] for each in value["results"].values()
    }
    assert result.usage.total_tokens == 2 * 40 + 2 * 6


async def test_a_task_that_fails_fails_alone(runtime: Runtime) -> None:
    broken = helper([{"call": {"nothing": {}}}, {"say": "x"}], name="broken", limits={"max_steps": 1})
    turn = {"call": {"delegate": {"tasks": [{"agent": "broken", "task": "a"}, {"agent": "helper", "task": "b"}]}}}
    result = await runtime.run(boss([turn, {"say": "ok"}], helper(), broken, "delegate"), "Go.")

    (value,) = await results(runtime, result.run_id)
    first, second = value["results"]["task_0"], value["results"]["task_1"]
    assert (first["complete"], second["complete"]) == (False, True)
    assert first["error"].startswith("failed: ")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "at least one task is required"),
        ([{"agent": "helper", "task": " "}], "tasks[0]: task is required"),
        (
            [{"id": "a", "agent": "helper", "task": "x"}, {"id": "a", "agent": "helper", "task": "y"}],
            "tasks[1]: duplicate id",
        ),
        ([{"agent": "helper", "task": "x"}] * (MOST_TASKS + 1), f"at most {MOST_TASKS} tasks"),
    ],
)
async def test_tasks_that_cannot_be_given_are_told_to_the_model(runtime: Runtime, given: Any, told: str) -> None:
    result = await runtime.run(boss([{"call": {"delegate": {"tasks": given}}}, {"say": "ok"}]), "Go.")

    (error,) = await results(runtime, result.run_id)
    assert error.code == "invalid_input"
    assert told in error.message
    assert await children(runtime, result.run_id) == []


async def test_the_budget_is_shared_by_all_tasks_of_the_step(runtime: Runtime) -> None:
    result = await runtime.run(boss([tasks("a", "b", "c", "d"), {"say": "ok"}], limits={"max_tokens": 1006}), "Go.")
    for child in await children(runtime, result.run_id):
        _, state = await runtime.inside.runs.load(child.id)
        assert state.spec.limits.max_tokens == 250


async def test_agents_that_one_step_spawns_get_equal_shares(runtime: Runtime) -> None:
    agent = boss(spawning("a", "b", then=[{"say": "ok"}]), limits={"max_tokens": 1006})
    result = await runtime.run(agent, "Go.")
    states = [(await runtime.inside.runs.load(child.id))[1] for child in await children(runtime, result.run_id)]
    assert [state.spec.limits.max_tokens for state in states] == [500, 500]


# --- who may be called -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn", [tasks("a", agent="other"), {"call": {"spawn_agent": {"agent": "other", "prompt": "a"}}}]
)
async def test_only_agents_that_are_listed_can_be_named(runtime: Runtime, turn: Any) -> None:
    runtime.inside._assembly.know(helper(name="other"))
    result = await runtime.run(boss([turn, {"say": "ok"}]), "Go.")

    (error,) = await results(runtime, result.run_id)
    assert (error.code, error.details["layer"]) == ("permission_denied", "delegation")
    assert "it may call: helper" in error.message
    assert await children(runtime, result.run_id) == []


async def declare(path: Path, kind: str, name: str, **spec: Any) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    database = await open_database(str(path))
    try:
        await SqlResourceStore(database, lambda: pytest.fail("no secret is touched")).write([Put(document)])
    finally:
        await database.close()


@pytest.mark.parametrize(
    "turn", [tasks("a"), {"call": {"spawn_agent": {"agent": "helper", "prompt": "a", "wait": True}}}]
)
async def test_rules_about_an_agent_hold_on_this_way_to_it_too(runtime: Runtime, tmp_path: Path, turn: Any) -> None:
    rules = [{"operation_class": "*", "verdict": "deny"}]
    await declare(tmp_path / "foliot.db", "ToolPermission", "no-help", tool_ref="agent:helper", operation_rules=rules)
    result = await runtime.run(boss([turn, {"say": "ok"}]), "Go.")

    (error,) = await results(runtime, result.run_id)
    assert error.code == "permission_denied"
    assert error.details["rule"] == "ToolPermission/no-help"


async def test_a_rule_that_wants_an_approval_of_an_agent_parks_the_call(runtime: Runtime, tmp_path: Path) -> None:
    await declare(
        tmp_path / "foliot.db",
        "ToolPermission",
        "careful",
        tool_ref="agent:helper",
        conditions=[{"when": 'args.input == "risky"', "verdict": "approval_required"}],
    )
    agent = boss([tasks("harmless"), tasks("harmless", "risky"), {"say": "ok"}])
    result = await runtime.run(agent, "Go.")

    assert result.phase == "waiting"
    (approval,) = [each async for each in runtime.inside.approvals.list()]
    assert approval["spec"]["tool"] == "delegate"
    assert len(await children(runtime, result.run_id)) == 1
    info = await runtime.inside.decide_approval(approval["metadata"]["name"], "approve", by="ann")
    assert info.phase == "succeeded"
    assert len(await children(runtime, result.run_id)) == 3


async def test_agents_cannot_spawn_each_other_in_a_circle_or_too_deep(runtime: Runtime) -> None:
    echo = helper([tasks("you do it", agent="boss"), {"say": "{last_result}"}], tools=["agent:boss", "delegate"])
    result = await runtime.run(boss([tasks("a"), {"say": "ok"}], echo, "delegate"), "Go.")
    (child,) = await children(runtime, result.run_id)
    (value,) = await results(runtime, child.id)
    assert "in a circle" in value["results"]["task_0"]["error"]

    deep = helper(name="d0")
    for n in range(1, MAX_DEPTH + 2):
        turns = [
            {"call": {"spawn_agent": {"agent": f"d{n - 1}", "prompt": "go", "wait": True}}},
            {"say": "{last_result}"},
        ]
        deep = helper(turns, name=f"d{n}", tools=[deep, "spawn_agent"])
    assert "one deeper" in (await runtime.run(deep, "Go.")).output


# --- spawn and wait ----------------------------------------------------------------------------------------------


def spawning(*prompts: str, then: list[Any], agent: str = "helper", **more: Any) -> list[Any]:
    calls = [{"spawn_agent": {"agent": agent, "prompt": prompt, **more}} for prompt in prompts]
    return [{"call": calls}, *then]


def child_ids(run_id: str, *call_ids: str) -> list[str]:
    from foliot.tools.backends.agent import child_run_id
    from foliot.tools.base import Invocation

    return [child_run_id(Invocation(run_id, call_id, "spawn_agent", {}, "k")) for call_id in call_ids]


def two_spawned(wait: dict[str, Any], *more: Any, run_id: str = "r-1") -> list[Any]:
    """The turns of a run with this id that spawns two and waits for them."""
    calls = [
        {"tool": "spawn_agent", "id": name, "args": {"agent": "helper", "prompt": name}} for name in ("one", "two")
    ]
    waits = {"call": {"wait_agents": {"run_ids": child_ids(run_id, "one", "two"), **wait}}}
    return [{"call": calls}, waits, *more, {"say": "ok"}]


async def test_spawned_agents_run_beside_their_parent_and_are_collected(runtime: Runtime) -> None:
    result = await runtime.run(boss(two_spawned({})), "Go.", run_id="r-1")

    *started, collected = await results(runtime, "r-1")
    assert [each["run_id"] for each in started] == child_ids("r-1", "one", "two")
    assert {(each["output"], each["complete"], each["phase"]) for each in collected["results"].values()} == {
        ("done: one", True, "succeeded"),
        ("done: two", True, "succeeded"),
    }
    assert result.phase == "succeeded"
    created = [(await runtime.inside.runs.facts(each))[0][1] for each in child_ids("r-1", "one", "two")]
    assert all(isinstance(each, RunCreated) and each.parent == "r-1" and each.depth == 1 for each in created)


async def test_what_is_waited_for_twice_is_paid_for_once(runtime: Runtime) -> None:
    again = {"call": {"wait_agents": {"run_ids": child_ids("r-1", "one")}}}
    result = await runtime.run(boss(two_spawned({}, again)), "Go.", run_id="r-1")

    assert result.usage.total_tokens == 2 * 40 + 4 * 6
    _, state = await runtime.inside.runs.load("r-1")
    assert state.paid == set(child_ids("r-1", "one", "two"))


async def test_what_beside_may_still_be_spent_is_not_given_away_again(runtime: Runtime) -> None:
    hold = asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait."""
        await hold.wait()
        return "late"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    turns = [
        {"call": {"spawn_agent": {"agent": "helper", "prompt": "a"}}},
        {"call": {"spawn_agent": {"agent": "helper", "prompt": "b"}}},
        {"say": "ok"},
    ]
    result = await runtime.run(boss(turns, slow, *GENERIC, limits={"max_tokens": 1000}), "Go.")
    limits = []
    for child in await children(runtime, result.run_id):
        _, state = await runtime.inside.runs.load(child.id)
        limits.append(state.spec.limits.max_tokens)
    assert sorted(limits) == [0, 1000 - 6]
    hold.set()


@pytest.mark.parametrize("mode", ["all", "any"])
async def test_a_wait_ends_when_its_time_is_over_and_says_how_they_stand(runtime: Runtime, mode: str) -> None:
    hold = asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait."""
        await hold.wait()
        return "late"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    agent = boss(two_spawned({"timeout_seconds": 0, "mode": mode}), slow, *GENERIC)
    result = await runtime.run(agent, "Go.", run_id="r-1")

    assert result.phase == "succeeded"
    collected = (await results(runtime, "r-1"))[-1]
    assert {(each["complete"], each["phase"]) for each in collected["results"].values()} == {(False, "running")}
    assert all("error" not in each for each in collected["results"].values())


async def test_children_end_with_the_run_that_started_them(runtime: Runtime) -> None:
    @tool(effect="read")
    async def dawdle() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    turns = spawning("a", "b", then=[{"say": "not waiting"}])
    result = await runtime.run(boss(turns, slow, *GENERIC), "Go.")
    assert result.output == "not waiting"

    async def all_ended() -> bool:
        return {info.phase for info in await children(runtime, result.run_id)} == {"cancelled"}

    await until(all_ended)
    for child in await children(runtime, result.run_id):
        assert "the run that started it has ended" in str((await runtime.inside.runs.load(child.id))[1].ended)


@pytest.mark.parametrize("asks", [False, True])
async def test_nothing_is_remembered_of_a_run_that_has_ended_or_waits(runtime: Runtime, asks: bool) -> None:
    last = {"call": {"ask": {"question": "Which?"}}} if asks else {"say": "not asking"}
    turns = [*two_spawned({})[:2], last, {"say": "ok"}]
    result = await runtime.run(boss(turns, helper(), *GENERIC, "ask"), "Go.", run_id="r-1")
    assert result.phase == ("waiting" if asks else "succeeded")
    delegator = runtime.inside._assembly.delegate
    assert isinstance(delegator, Delegator)

    async def forgotten() -> bool:
        return not delegator._children._of and not delegator._children._minders

    await until(forgotten)


async def test_closing_the_runtime_leaves_no_child_of_an_ended_run_behind(tmp_path: Path) -> None:
    @tool(effect="read")
    async def dawdle() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    async with Runtime(tmp_path / "foliot.db") as runtime:
        result = await runtime.run(boss(spawning("a", then=[{"say": "ok"}]), slow, *GENERIC), "Go.")
    async with Runtime(tmp_path / "foliot.db") as runtime:
        assert [info.phase for info in await children(runtime, result.run_id)] == ["cancelled"]


async def test_closing_the_runtime_while_children_are_being_ended_lets_them_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(effect="read")
    async def dawdle() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    begun = asyncio.Event()
    async with Runtime(tmp_path / "foliot.db") as runtime:
        kind = type(runtime.inside.runs.journal)
        send = kind.signal

        async def slowly(self: Any, *given: Any, **named: Any) -> Any:
            begun.set()
            for _ in range(100):  # the runtime is closed meanwhile
                await asyncio.sleep(0)
            return await send(self, *given, **named)

        monkeypatch.setattr(kind, "signal", slowly)
        result = await runtime.run(boss(spawning("a", then=[{"say": "ok"}]), slow, *GENERIC), "Go.")
        await begun.wait()
    async with Runtime(tmp_path / "foliot.db") as runtime:
        assert [info.phase for info in await children(runtime, result.run_id)] == ["cancelled"]


async def test_no_more_than_so_many_run_beside_one_run(runtime: Runtime) -> None:
    hold = asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait."""
        await hold.wait()
        return "late"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    turns = spawning(*(str(n) for n in range(MOST_BESIDE + 1)), then=[{"say": "ok"}])
    result = await runtime.run(boss(turns, slow, *GENERIC), "Go.")

    errors = [each for each in await results(runtime, result.run_id) if not isinstance(each, dict)]
    assert [each.details["rule"] for each in errors] == ["fan_out"]
    assert len(await children(runtime, result.run_id)) == MOST_BESIDE
    hold.set()


async def test_only_own_children_can_be_waited_for(runtime: Runtime) -> None:
    stranger = await runtime.run(helper(name="stranger"), "Hello.")
    turn = {"call": {"wait_agents": {"run_ids": [stranger.run_id]}}}
    result = await runtime.run(boss([turn, {"say": "ok"}]), "Go.")
    (error,) = await results(runtime, result.run_id)
    assert (error.code, error.details["rule"]) == ("permission_denied", "parent")


async def test_tools_and_steps_of_a_child_can_only_be_narrowed(runtime: Runtime) -> None:
    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    @tool(effect="read")
    async def hear() -> str:
        """Hear."""
        return "heard"

    able = helper([{"say": "done"}], tools=[look, hear], limits={"max_steps": 5})
    turns = [
        {"call": {"spawn_agent": {"agent": "helper", "prompt": "a", "wait": True, "tools": ["look"], "max_steps": 2}}},
        {"call": {"spawn_agent": {"agent": "helper", "prompt": "a", "wait": True, "max_steps": 900}}},
        {"call": {"spawn_agent": {"agent": "helper", "prompt": "a", "tools": ["look", "pay"]}}},
        {"say": "ok"},
    ]
    result = await runtime.run(boss(turns, able, *GENERIC, limits={"max_steps": 50}), "Go.")

    states = [(await runtime.inside.runs.load(info.id))[1] for info in await children(runtime, result.run_id)]
    by_steps = {state.spec.limits.max_steps: {rule.name for rule in state.spec.tools} for state in states}
    assert by_steps == {2: {"look"}, 5: {"look", "hear"}}
    *_, error = await results(runtime, result.run_id)
    assert "has no tool pay; it has: hear, look" in error.message


async def test_a_question_of_a_child_is_answered_while_its_parent_waits_for_it(runtime: Runtime) -> None:
    curious = helper([{"call": {"ask": {"question": "Which?"}}}, {"say": "it is {last_result}"}], tools=["ask"])
    running = asyncio.create_task(runtime.run(boss([tasks("a"), {"say": "{last_result}"}], curious, "delegate"), "Go."))

    async def asked() -> bool:
        return bool(await runtime.inside.questions.open())

    await until(asked)
    (question,) = await runtime.inside.questions.open()
    assert question.agent == "helper"
    await runtime.inside.answer_question(question.run_id, None, "this one")
    async with asyncio.timeout(60):
        assert "it is this one" in (await running).output


async def test_outside_a_run_nothing_can_be_delegated(runtime: Runtime) -> None:
    from foliot.runtime.tools import ToolCaller

    done = await runtime.inside.tools.call("wait_agents", {"run_ids": ["r"]}, ToolCaller())
    assert done.error is not None
    assert done.error.code == "unsupported_tool"


# --- a process that dies -----------------------------------------------------------------------------------------

DIES = """
import asyncio, os, sys
from pathlib import Path
from foliot import Runtime
from tests.test_delegation import dying_boss

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        await runtime.run(dying_boss(Path(sys.argv[2])), "Go.", run_id="r-1")

asyncio.run(main())
"""


def dying_boss(folder: Path) -> Agent:
    """Its children each leave a mark, and the first process is killed while they work."""

    @tool(effect="idempotent")
    async def mark(name: str) -> str:
        """Leave a mark."""
        with (folder / "marks").open("a") as marks:
            marks.write(f"{name}\n")
        if (folder / "die").exists() and len((folder / "marks").read_text().splitlines()) == 2:
            (folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return name

    worker = helper([{"call": {"mark": {"name": "{input}"}}}, {"say": "done: {input}"}], tools=[mark])
    return boss(two_spawned({}), worker, *GENERIC)


@tool(effect="read")
async def dawdle() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


SPAWNED: dict[str, Any] = {"call": {"spawn_agent": {"agent": "helper", "prompt": "a"}}}


def forgetful_boss(folder: Path) -> Agent:
    """Spawns one that waits for ever, is killed, and answers without waiting for it."""

    @tool(effect="idempotent")
    async def die() -> str:
        """Be killed, once."""
        if (folder / "die").exists():
            (folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    return boss([SPAWNED, {"call": "die"}, {"say": "ok"}], slow, die, *GENERIC)


async def test_after_a_kill_a_child_that_nobody_waits_for_still_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waits, "child", 60.0)  # on a busy machine it may take its time
    (tmp_path / "die").touch()
    store = str(tmp_path / "foliot.db")
    done = subprocess.run(
        [sys.executable, "-c", DIES.replace("dying_boss", "forgetful_boss"), store, str(tmp_path)],
        timeout=110,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with Runtime(store) as runtime:
        assert [info.phase for info in await children(runtime, "r-1")] == ["running"]
        assert (await runtime.resume("r-1", agent=forgetful_boss(tmp_path))).output == "ok"
    async with Runtime(store) as runtime:
        assert [info.phase for info in await children(runtime, "r-1")] == ["cancelled"]


async def test_a_child_that_outlived_its_parent_ends_when_somebody_takes_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(self: Children, parent: str) -> None:
        """As if the process had died between the end of the parent and that of its children."""

    agent = forgetful_boss(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Children, "_end_children", killed)
        async with Runtime(tmp_path / "foliot.db") as runtime:
            result = await runtime.run(agent, "Go.")
    async with Runtime(tmp_path / "foliot.db") as runtime:
        (orphan,) = await children(runtime, result.run_id)
        assert orphan.phase == "pending"
        runtime.inside._assembly.know(agent)
        ended = await runtime.resume(orphan.id, check=False)
        assert (ended.phase, ended.reason) == ("cancelled", "the run that started it has ended")


@pytest.mark.parametrize("below", ["called", "deep", "spawned"])
async def test_nothing_begins_below_a_run_from_the_moment_that_it_is_cancelled(runtime: Runtime, below: str) -> None:
    """The tool of the child returns in the same moment. `spawned`: the cancelled run takes a while to end."""
    looking, seen, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    paid: list[str] = []

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        looking.set()
        await seen.wait()
        return "all is well"

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        paid.append("5")
        return "paid"

    @tool(effect="once")
    async def linger() -> str:
        """Take a while to end."""
        try:
            await stop.wait()
        except asyncio.CancelledError:
            await stop.wait()
        return "late"

    turns = [{"call": "look"}, {"call": "pay"}, {"say": "done"}]
    payer = Agent("payer", model=ScriptedModel(turns), tools=[look, pay])
    match below:
        case "called":
            agent = boss([{"call": {"agent:payer": {"input": "Pay."}}}, {"say": "ok"}], payer)
        case "deep":
            middle = helper([{"call": {"agent:payer": {"input": "Pay."}}}, {"say": "ok"}], tools=[payer])
            agent = boss([{"call": {"agent:helper": {"input": "Pay."}}}, {"say": "ok"}], middle)
        case _:
            spawned = {"call": {"spawn_agent": {"agent": "payer", "prompt": "Pay."}}}
            agent = boss([spawned, {"call": "linger"}, {"say": "ok"}], payer, linger, *GENERIC)
    running = asyncio.create_task(runtime.run(agent, "Go.", run_id="r-1", check=False))
    async with asyncio.timeout(60):
        await looking.wait()

        cancelling = asyncio.create_task(runtime.inside.cancel("r-1"))
        seen.set()

        await cancelling
        stop.set()
        assert (await running).phase == "cancelled"
    assert paid == []
    (payer_run,) = [info.id for info in await runtime.inside.runs.journal.list() if info.agent == "payer"]
    facts = [type(event).__name__ for _, event in await runtime.inside.runs.facts(payer_run)]
    assert (facts.count("StepStarted"), facts.count("ToolStarted"), facts[-1]) == (1, 1, "RunCancelled")


@pytest.mark.parametrize("calls", [False, True])
async def test_a_cancelled_agent_may_have_acted_only_if_it_has_called_something(runtime: Runtime, calls: bool) -> None:
    """Its own journal knows; the parent says one thing about it, and no more than may be so."""
    under_way = asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        under_way.set()
        await asyncio.Event().wait()
        return "paid"

    class Thinking(ScriptedModel):
        async def respond(self, *args: Any, **options: Any) -> Any:
            if not calls:
                under_way.set()
                await asyncio.Event().wait()
            return await super().respond(*args, **options)

    payer = Agent("payer", model=Thinking([{"call": "pay"}, {"say": "done"}]), tools=[pay])
    agent = boss([{"call": {"agent:payer": {"input": "Pay."}}}, {"say": "ok"}], payer)
    running = asyncio.create_task(runtime.run(agent, "Go.", run_id="r-1", check=False))
    async with asyncio.timeout(60):
        await under_way.wait()
        await runtime.inside.cancel("r-1")
        assert (await running).phase == "cancelled"
    facts = [event for _, event in await runtime.inside.runs.facts("r-1")]
    (finished,) = [event for event in facts if isinstance(event, ToolFinished)]
    assert finished.result.error is not None
    said = finished.result.error.message
    assert bool(finished.result.error.unknown) is calls
    assert any(isinstance(event, ToolUnknown) for event in facts) is calls
    assert ("may have taken effect" in said) is calls
    assert ("before it had called any tool" in said) is not calls


async def test_a_run_that_is_let_go_while_it_is_taken_up_is_held_by_nobody(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def never(_: State) -> list[Signal]:
        held.set()
        await asyncio.Event().wait()
        return []

    slow = helper([{"call": "dawdle"}, {"say": "done"}], tools=[dawdle])
    agent = boss([SPAWNED, {"call": "dawdle"}, {"say": "ok"}], slow, dawdle, *GENERIC)
    async with Runtime(tmp_path / "foliot.db") as runtime:
        running = asyncio.create_task(runtime.run(agent, "Go.", run_id="r-1"))
        while not (family := await children(runtime, "r-1")):
            await asyncio.sleep(0)
        await stop_tasks(running)
    async with Runtime(tmp_path / "foliot.db") as runtime:
        runtime.inside.runs.taken_up = never
        taking = asyncio.create_task(runtime.inside.runs.take(family[0].id))
        async with asyncio.timeout(60):
            await held.wait()
        assert (await runtime.inside.runs.journal.get(family[0].id)).phase == "running"
        await stop_tasks(taking)
        assert (await runtime.inside.runs.journal.get(family[0].id)).phase == "pending"


async def test_after_a_kill_the_same_children_go_on_and_none_is_started_twice(tmp_path: Path) -> None:
    (tmp_path / "die").touch()
    store = str(tmp_path / "foliot.db")
    done = subprocess.run(
        [sys.executable, "-c", DIES, store, str(tmp_path)],
        timeout=110,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    async with Runtime(store) as runtime:
        result = await runtime.resume("r-1", agent=dying_boss(tmp_path))
        assert result.phase == "succeeded"
        family = await children(runtime, "r-1")
        assert {info.id for info in family} == set(child_ids("r-1", "one", "two"))
        assert {info.phase for info in family} == {"succeeded"}
        ended = [(await runtime.inside.runs.load(info.id))[1].ended for info in family]
        assert all(isinstance(each, RunSucceeded) for each in ended)
        assert all(info.phase in TERMINAL for info in await runtime.inside.runs.journal.list())
