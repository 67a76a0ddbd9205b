"""A call that may have acted holds the same call of every run of its family: branches, delegates, requeues, kills."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, ScriptedModel, tool
from foliot.engine.driver.doubts import family
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.run.events import ToolHeld, ToolUnknown, UnknownDecided
from foliot.resources.validate import validate_document
from foliot.runtime.local.groups import LocalGroups
from foliot.runtime.runtime import Runtime
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import Put
from foliot.store.journal.base import RunInfo
from foliot.store.queue.placement import Offer
from foliot.tools.base import Invocation
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.work.tasks.base import Command

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
PAY = {"call": {"pay": {"amount": 5}}}


class Till:
    """What happens outside: under which keys money left it. The first payment never says how it ended."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.lost = asyncio.Event()

        @tool(effect="once", timeout=None)
        async def pay(amount: int, call: Invocation) -> str:
            """Pay."""
            self.paid.append(call.idempotency_key)
            if len(self.paid) == 1:
                raise ConnectionResetError("the line is dead")
            return f"paid {amount}"

        @tool(effect="read", timeout=None)
        async def hesitate() -> str:
            """Wait until the other one is in doubt."""
            await self.lost.wait()
            return "now"

        self.tools = [pay, hesitate]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
async def runtime(url: str, till: Till) -> AsyncIterator[Runtime]:
    async with Runtime(url, tools=till.tools) as opened:
        yield opened


def agent(name: str) -> tuple[str, str, dict[str, Any]]:
    return "Agent", name, {"prompt": "Do it.", "model_ref": "brain", "tools": ["pay", "hesitate"]}


async def declare(runtime: Runtime) -> None:
    """Two branches that run side by side: the first one pays, the other pays the same when that is in doubt."""
    script = [
        {"match": {"agent": "left"}, "turns": [PAY, {"say": "left is done"}]},
        {"match": {"agent": "right"}, "turns": [{"call": "hesitate"}, PAY, {"say": "right is done"}]},
        {"match": {"agent": "head"}, "turns": [{"say": "go"}]},
    ]
    kinds = [
        ("ModelEndpoint", "brain", {"provider": "scripted", "default_model": "scripted", "script": script}),
        agent("head"),
        agent("left"),
        agent("right"),
        (
            "AgentSystem",
            "both",
            {"agents": ["head", "left", "right"], "graph": {"head": {"edges": [{"to": "left"}, {"to": "right"}]}}},
        ),
    ]
    assert runtime.inside.resources is not None
    for kind, name, spec in kinds:
        document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None, problems
        await runtime.inside.resources.write([Put(document)])


async def solo(runtime: Runtime, till: Till) -> str:
    """A task of one agent, which has paid and nobody knows it; then it hesitates."""
    script = [PAY, {"call": "hesitate"}, {"say": "done"}]
    assert runtime.inside.resources is not None
    for kind, name, spec in [
        ("ModelEndpoint", "brain", {"provider": "scripted", "default_model": "scripted", "script": script}),
        agent("solo"),
    ]:
        document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None, problems
        await runtime.inside.resources.write([Put(document)])
    name = await submit(runtime, "agent", "solo")
    await work(runtime)
    assert len(till.paid) == 1
    return name


async def submit(runtime: Runtime, kind: Any = "system", name: str = "both") -> str:
    return (await runtime.inside.tasking.tasks.accept(Command(kind, name, message="go"))).task.name


async def work(runtime: Runtime) -> None:
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)


async def run_of(runtime: Runtime, name: str) -> RunInfo:
    (found,) = [info for info in await runtime.inside.runs.journal.list() if info.agent == name]
    return found


async def facts(runtime: Runtime, run_id: str, kind: type[Any]) -> list[Any]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, kind)]


async def lost_then_held(runtime: Runtime, till: Till) -> tuple[str, RunInfo, RunInfo]:
    """A task in which `left` has paid and nobody knows it, and `right` wants to pay the same."""
    await declare(runtime)
    name = await submit(runtime)
    worker = asyncio.create_task(work(runtime))
    async with asyncio.timeout(60):
        while not (found := await runtime.inside.unknown_calls.open()):
            await asyncio.sleep(0.01)
    till.lost.set()
    await worker
    assert [each.tool for each in found] == ["pay"]
    return name, await run_of(runtime, "left"), await run_of(runtime, "right")


async def test_a_branch_is_held_while_the_same_call_of_another_is_in_doubt(runtime: Runtime, till: Till) -> None:
    _, left, right = await lost_then_held(runtime, till)

    assert (left.phase, right.phase, len(till.paid)) == ("waiting", "waiting", 1)
    (held,) = await facts(runtime, right.id, ToolHeld)
    (lost,) = await facts(runtime, left.id, ToolUnknown)
    assert (held.run_id, held.earlier.key) == (left.id, till.paid[0])
    assert lost.until is not None  # the function has ended
    told = await runtime.runs.why(right.id)
    assert f"the same call of run {left.id} may have taken effect" in str(told)
    assert [each.run_id for each in await runtime.inside.unknown_calls.open()] == [
        left.id
    ]  # one effect is one question


async def test_what_happened_is_told_to_all_who_are_asked_about_it(runtime: Runtime, till: Till) -> None:
    name, left, right = await lost_then_held(runtime, till)

    await LocalGroups(runtime.inside, wakes=False).runs.settle(
        right.id, "pay", "happened", result="receipt 7", by="ann"
    )
    await work(runtime)

    assert (await runtime.inside.tasking.tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == 1
    for run_id in (left.id, right.id):
        assert [(each.decision, each.by) for each in await facts(runtime, run_id, UnknownDecided)] == [
            ("happened", "ann")
        ]
    assert await runtime.inside.unknown_calls.open() == []


async def test_what_is_to_be_run_is_run_by_the_one_that_was_told(runtime: Runtime, till: Till) -> None:
    _, left, right = await lost_then_held(runtime, till)

    await LocalGroups(runtime.inside, wakes=False).runs.settle(right.id, "pay", "run", by="ann")
    await work(runtime)

    assert len(till.paid) == 2
    assert (await run_of(runtime, "right")).phase == "succeeded"
    assert (await run_of(runtime, "left")).phase == "waiting"
    assert [each.run_id for each in await runtime.inside.unknown_calls.open()] == [left.id]
    assert right.id != left.id


@pytest.mark.parametrize("decision", ["happened", "not_happened"])
async def test_what_is_said_after_the_end_holds_for_another_try(runtime: Runtime, till: Till, decision: Any) -> None:
    name, left, _ = await lost_then_held(runtime, till)
    tasks, work_of = runtime.inside.tasking.tasks, LocalGroups(runtime.inside, wakes=False)
    await tasks.cancel("default", name)
    await work(runtime)
    (open_call,) = await runtime.inside.unknown_calls.open(ended=True)
    assert (open_call.run_id, open_call.phase, open_call.tool) == (left.id, "cancelled", "pay")

    with pytest.raises(Conflict, match="has ended"):
        await work_of.runs.settle(left.id, "pay", "run", by="ann")
    await work_of.runs.settle(left.id, "pay", decision, by="ann", reason="the bank says so")
    with pytest.raises(Conflict, match="ann has said"):
        await work_of.runs.settle(left.id, "pay", decision, by="bob")
    assert (await runtime.inside.runs.journal.get(left.id)).phase == "cancelled"
    assert await runtime.inside.unknown_calls.open() == []

    await tasks.requeue("default", name)
    await work(runtime)
    assert (await tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == (1 if decision == "happened" else 3)  # left and right pay when the first had not


async def test_what_was_said_of_a_call_is_in_the_audit_log(runtime: Runtime, till: Till) -> None:
    name, left, _ = await lost_then_held(runtime, till)
    await runtime.inside.tasking.tasks.cancel("default", name)
    await work(runtime)
    await LocalGroups(runtime.inside, wakes=False).runs.settle(
        left.id, "pay", "happened", by="ann", reason="the bank says so"
    )
    await runtime.inside.audit.flush()
    said = [
        each.body for each in await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(moment="decided"))
    ]
    found = [(each["outcome"], each["decision"]["by"], each["run_id"], each["tool"]) for each in said]
    assert found == [("happened", "ann", left.id, "pay")]


async def test_a_child_that_is_asked_again_does_not_do_it_again(runtime: Runtime, till: Till) -> None:
    """The parent delegates, the child pays and is lost; the parent delegates the same again."""
    helper = Agent("helper", model=ScriptedModel([PAY, {"say": "done"}]), tools=["pay"])
    order = {"call": {"agent:helper": {"input": "pay 5"}}}
    boss = Agent("boss", model=ScriptedModel([order, order, {"say": "ok"}]), tools=[helper])
    going = asyncio.create_task(runtime.run(boss, "Go.", run_id="boss"))
    await _until(lambda: _waits(runtime, "helper", 1))
    (first,) = [info for info in await runtime.inside.runs.journal.list() if info.agent == "helper"]
    await runtime.inside.cancel(first.id, by="ann")

    await _until(lambda: _waits(runtime, "helper", 1, but=first.id))
    (second,) = [
        info for info in await runtime.inside.runs.journal.list() if info.agent == "helper" and info.id != first.id
    ]
    (held,) = await facts(runtime, second.id, ToolHeld)
    assert (held.run_id, len(till.paid)) == (first.id, 1)

    await LocalGroups(runtime.inside, wakes=False).runs.settle(first.id, "pay", "happened", by="ann")
    result = await asyncio.wait_for(going, 60)
    assert (result.output, len(till.paid)) == ("ok", 1)


async def test_runs_that_have_nothing_in_common_are_not_held(runtime: Runtime, till: Till) -> None:
    payer = Agent("payer", model=ScriptedModel([PAY, {"say": "done"}]), tools=["pay"])
    first = await runtime.run(payer, "Go.", check=False)
    second = await runtime.run(payer, "Go.")
    assert (first.phase, second.phase, len(till.paid)) == ("waiting", "succeeded", 2)


@pytest.mark.parametrize("namespace", ["default", "other"])
async def test_a_run_with_the_uid_of_a_task_as_its_id_does_not_join_it(
    runtime: Runtime, till: Till, namespace: str
) -> None:
    """The id of a run can be chosen: it tells its caller nothing of a task, and the task hears nothing of it."""
    name = await solo(runtime, till)
    uid = (await runtime.inside.tasking.tasks.get("default", name)).uid
    (lost,) = await runtime.inside.unknown_calls.open("default")
    await runtime.inside.tasking.tasks.cancel("default", name)
    await work(runtime)
    await LocalGroups(runtime.inside, wakes=False).runs.settle(
        lost.run_id, lost.call_id, "happened", result="a secret", by="ann"
    )

    helper = Agent("helper", model=ScriptedModel([{"say": "hi"}]), namespace=namespace)
    model = ScriptedModel([PAY, {"say": "done"}])
    stranger = Agent("stranger", model=model, tools=["pay", helper], namespace=namespace)
    await runtime.run(stranger, "Go.", run_id=uid)
    assert await facts(runtime, uid, ToolHeld) == []
    assert till.paid == [lost.key, f"{uid}/call_1_1"]


async def test_a_family_does_not_reach_into_another_namespace(runtime: Runtime, till: Till) -> None:
    """Not even by a key that a caller knows."""
    name = await solo(runtime, till)
    (lost,) = await runtime.inside.unknown_calls.open("default")
    await runtime.inside.tasking.tasks.cancel("default", name)
    await work(runtime)
    await LocalGroups(runtime.inside, wakes=False).runs.settle(
        lost.run_id, lost.call_id, "happened", result="a secret", by="ann"
    )
    assert runtime.inside.runs.doubts is not None
    assert len(await runtime.inside.runs.doubts.table.of_keys("default", [lost.key])) == 1
    assert await runtime.inside.runs.doubts.table.of_keys("other", [lost.key]) == []
    names = [family("a", "r", "t", "x"), family("b", "r", "t", "x"), family("a", "x"), family("a", "r", "", "x")]
    assert len({each.name for each in names}) == 3
    assert names[2] == names[3]


async def test_what_is_said_to_a_living_run_holds_for_a_requeue(runtime: Runtime, till: Till) -> None:
    name = await solo(runtime, till)
    (lost,) = await runtime.inside.unknown_calls.open()
    await LocalGroups(runtime.inside, wakes=False).runs.settle(
        lost.run_id, "pay", "happened", result="receipt 7", by="ann"
    )
    going = asyncio.create_task(work(runtime))
    await _until(lambda: _tells(runtime, lost.run_id))
    await runtime.inside.tasking.tasks.cancel("default", name)
    await going
    await work(runtime)
    assert (await runtime.inside.runs.journal.get(lost.run_id)).phase == "cancelled"

    till.lost.set()
    await runtime.inside.tasking.tasks.requeue("default", name)
    await work(runtime)
    assert (await runtime.inside.tasking.tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == 1


async def test_what_is_said_to_one_branch_holds_for_one_that_asks_later(runtime: Runtime, till: Till) -> None:
    await declare(runtime)
    name = await submit(runtime)
    worker = asyncio.create_task(work(runtime))
    await _until(runtime.inside.unknown_calls.open)
    left = await run_of(runtime, "left")
    await LocalGroups(runtime.inside, wakes=False).runs.settle(left.id, "pay", "happened", by="ann")
    await _until(lambda: _tells(runtime, left.id))
    till.lost.set()
    await worker
    assert (await runtime.inside.tasking.tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == 1


@pytest.mark.parametrize("decision", ["happened", "not_happened"])
async def test_one_word_settles_an_effect_that_several_runs_ended_with(
    runtime: Runtime, till: Till, decision: Any
) -> None:
    name = await solo(runtime, till)
    tasks, work_of = runtime.inside.tasking.tasks, LocalGroups(runtime.inside, wakes=False)
    till.lost.set()
    for _ in range(2):
        await tasks.cancel("default", name)
        await work(runtime)
        await tasks.requeue("default", name)
        await work(runtime)
    await tasks.cancel("default", name)
    await work(runtime)
    ended = sorted(info.id for info in await runtime.inside.runs.journal.list())
    assert (len(ended), len(till.paid)) == (3, 1)
    (asked,) = await runtime.inside.unknown_calls.open()
    assert asked.run_id == ended[0]

    await work_of.runs.settle(ended[1], "pay", decision, by="ann", reason="the bank says so")
    assert await runtime.inside.unknown_calls.open() == []
    contrary: Any = "not_happened" if decision == "happened" else "happened"
    for run_id in ended:
        with pytest.raises(Conflict, match=r"ann has said .*the bank says so"):
            await work_of.runs.settle(run_id, "pay", contrary, by="bob")

    await tasks.requeue("default", name)
    await work(runtime)
    assert (await tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == (1 if decision == "happened" else 2)


@pytest.mark.parametrize("decision", ["happened", "run"])
async def test_a_word_to_the_run_that_waits_settles_those_that_have_ended(
    runtime: Runtime, till: Till, decision: Any
) -> None:
    name = await solo(runtime, till)
    tasks, work_of = runtime.inside.tasking.tasks, LocalGroups(runtime.inside, wakes=False)
    till.lost.set()
    (first,) = await runtime.inside.unknown_calls.open()
    await tasks.cancel("default", name)
    await work(runtime)
    await tasks.requeue("default", name)
    await work(runtime)
    (asked,) = await runtime.inside.unknown_calls.open()
    assert asked.run_id != first.run_id  # the one that waits for the answer

    await work_of.runs.settle(asked.run_id, "pay", decision, by="ann")
    with pytest.raises(Conflict, match="ann has said"):
        await work_of.runs.settle(first.run_id, "pay", "not_happened", by="bob")
    await work(runtime)
    assert await runtime.inside.unknown_calls.open() == []
    assert (await tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == (1 if decision == "happened" else 2)


async def test_a_word_to_a_run_that_waits_cannot_be_to_the_contrary_of_what_was_said(
    runtime: Runtime, till: Till
) -> None:
    name = await solo(runtime, till)
    tasks, work_of = runtime.inside.tasking.tasks, LocalGroups(runtime.inside, wakes=False)
    till.lost.set()
    (first,) = await runtime.inside.unknown_calls.open()
    await tasks.cancel("default", name)
    await work(runtime)
    await tasks.requeue("default", name)
    await work(runtime)
    await work_of.runs.settle(first.run_id, "pay", "not_happened", by="ann")
    (asked,) = await runtime.inside.unknown_calls.open()

    with pytest.raises(Conflict, match=r"ann has said .* did not happen"):
        await work_of.runs.settle(asked.run_id, "pay", "happened", by="bob")
    await work_of.runs.settle(asked.run_id, "pay", "run", by="bob")
    await work(runtime)
    assert (await tasks.get("default", name)).phase == "succeeded"
    assert len(till.paid) == 2


async def test_pages_of_the_list_skip_nothing_and_say_how_many_there_are(url: str) -> None:
    @tool(effect="once", timeout=None)
    async def lose(n: int) -> str:
        """Lose."""
        raise ConnectionResetError("the line is dead")

    calls = [{"lose": {"n": n}} for n in range(5)]
    async with Runtime(url, tools=[lose]) as runtime:
        loser = Agent("loser", model=ScriptedModel([{"call": calls}, {"say": "done"}]), tools=["lose"])
        await runtime.run(loser, "Go.", check=False)
        work_of, seen, cursor = LocalGroups(runtime.inside, wakes=False), list[str](), None
        while True:
            page = await work_of.runs.unknown(namespace=None, limit=2, after=cursor)
            assert page.total == 5
            seen += [each.key for each in page.calls]
            if (cursor := page.cursor) is None:
                break
        assert (len(seen), len(set(seen))) == (5, 5)
        with pytest.raises(InvalidInput, match="cursor"):
            await work_of.runs.unknown(namespace=None, after="nonsense")


@pytest.mark.parametrize("ended", [False, True])
async def test_the_id_of_a_call_wins_over_the_name_of_a_tool(url: str, ended: bool) -> None:
    @tool(effect="once", timeout=None)
    async def lose(n: int) -> str:
        """Lose."""
        raise ConnectionResetError("the line is dead")

    calls = [{"tool": "lose", "args": {"n": 1}, "id": "first"}, {"tool": "lose", "args": {"n": 2}, "id": "lose"}]
    async with Runtime(url, tools=[lose]) as runtime:
        loser = Agent("loser", model=ScriptedModel([{"call": calls}, {"say": "done"}]), tools=["lose"])
        await runtime.run(loser, "Go.", run_id="one", check=False)
        if ended:
            await runtime.inside.cancel("one")
        await LocalGroups(runtime.inside, wakes=False).runs.settle("one", "lose", "happened", by="ann")
        if not ended:
            await runtime.resume("one", check=False)
        assert [each.call_id for each in await runtime.inside.unknown_calls.open()] == ["first"]


async def test_a_call_in_dead_hands_is_in_doubt_before_anybody_has_written_so(
    runtime: Runtime, till: Till, url: str, tmp_path: Path
) -> None:
    await declare(runtime)
    await submit(runtime)
    book = tmp_path / "book"
    script = Path(__file__).with_name("family_process.py")
    done = await asyncio.to_thread(subprocess.run, [sys.executable, script, url, book], timeout=60, check=False)
    assert done.returncode == -9, "it killed itself in the middle of a payment"
    left, right = await run_of(runtime, "left"), await run_of(runtime, "right")
    assert (left.phase, right.phase) == ("running", "running")
    assert await runtime.inside.unknown_calls.open() == []

    till.lost.set()
    settlement = runtime.inside.tasking.performer.settlement
    # Nobody has taken up the other one yet.
    driver = await runtime.inside.runs.take(right.id, tools=Pipeline(till.tools), settlement=settlement)
    await asyncio.wait_for(runtime.inside.runs.drive(driver), 60)
    assert till.paid == []
    (held,) = await facts(runtime, right.id, ToolHeld)
    assert held.run_id == left.id
    assert f"paid 5 {held.earlier.key}\n" == book.read_text()

    await work(runtime)  # now both are taken up: still nobody pays
    assert till.paid == []
    assert len(await runtime.inside.unknown_calls.open()) == 1
    (lost,) = await facts(runtime, left.id, ToolUnknown)
    assert lost.reason == "process_died"
    assert lost.until is not None
    assert lost.until <= time.time() + 60


async def _waits(runtime: Runtime, agent: str, count: int, but: str = "") -> bool:
    found = [info for info in await runtime.inside.runs.journal.list() if info.agent == agent and info.id != but]
    return sum(info.phase == "waiting" for info in found) == count


async def _tells(runtime: Runtime, run_id: str) -> bool:
    return bool(await facts(runtime, run_id, UnknownDecided))


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)
