"""One run under one lease: what the driver does when the world does not behave."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from foliot.common.waits import Waits
from foliot.engine.driver.driver import Driver
from foliot.engine.driver.journal import signal
from foliot.engine.driver.runs import user_message
from foliot.errors import Unavailable
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.errors import NewerEvent
from foliot.kernel.messages import Text, ToolFailure, ToolResult
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import (
    BudgetExceeded,
    CancelRequested,
    InputReceived,
    ModelFailed,
    RunFailed,
    RunSucceeded,
    ToolFinished,
    ToolStarted,
    UnknownDecided,
)
from foliot.kernel.run.spec import Repairs
from foliot.models.base import ModelOverloaded
from foliot.store.journal.base import LeaseLost, Renewal, Signal
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.base import Admitted, Invocation, RateLimit, ToolUnreachable
from foliot.tools.function import tool
from foliot.tools.pipeline.limiter import LocalLimiter
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from tests.engine.kit import Engine, calls, in_turn, says


class Gate:
    """A tool that waits until it is let through, and knows whether it was stopped."""

    def __init__(self, effect="once") -> None:
        self.started, self.open, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.acts = 0
        self.tool = tool(name="gate", effect=effect)(self.wait)

    async def wait(self) -> str:
        self.started.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        self.acts += 1
        return "through"


async def until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 60)


async def begun(engine: Engine, gate: Gate) -> tuple[Driver, asyncio.Task]:
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1")
    task = asyncio.create_task(engine.runs.drive(driver))
    await until(gate.started)
    return driver, task


async def test_who_loses_the_lease_stops_at_once_and_writes_nothing_more() -> None:
    gate = Gate()
    engine = Engine(in_turn(calls("gate"), says("done")), [gate.tool])
    driver, task = await begun(engine, gate)
    before = await engine.types()

    driver.lose()

    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert gate.stopped.is_set()
    assert await engine.types() == before
    await engine.close()


async def test_the_keeper_notices_a_lost_lease_and_stops_the_driver() -> None:
    gate = Gate()
    engine = Engine(in_turn(calls("gate")), [gate.tool], lease_seconds=0.06)
    _, task = await begun(engine, gate)

    engine.now += 1.0
    await engine.journal.claim("r1", worker="w2", now=engine.now, until=engine.now + 30)

    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert gate.stopped.is_set()
    await engine.close()


async def test_whoever_slept_past_its_lease_does_not_act_when_another_has_the_run() -> None:
    gate = Gate()
    engine = Engine(in_turn(calls("gate"), says("done")), [gate.tool])
    other = engine.process("w2")

    class Sleepy(MemoryJournal):
        """The machine is suspended right after the start of the tool became durable."""

        async def append(self, lease, entries, **kwargs):
            await super().append(lease, entries, **kwargs)
            if any(entry.type == "tool.started" for entry in entries):
                engine.now += 100.0
                await other.take("r1")

    engine.journal = other.journal = Sleepy()
    engine.runs = engine.process("w1")

    with pytest.raises(LeaseLost):
        await engine.run()

    assert not gate.started.is_set()
    await engine.close()


async def test_whoever_slept_past_its_lease_goes_on_when_nobody_took_the_run() -> None:
    @tool(effect="once")
    async def pay() -> str:
        return "paid"

    engine = Engine(in_turn(calls("pay"), says("done")), [pay])

    class Sleepy(MemoryJournal):
        async def append(self, lease, entries, **kwargs):
            await super().append(lease, entries, **kwargs)
            engine.now += 100.0

    engine.journal = Sleepy()
    engine.runs = engine.process("w1")

    assert isinstance((await engine.run()).ended, RunSucceeded)
    await engine.close()


@pytest.mark.parametrize("taken_over", [True, False])
async def test_a_machine_suspended_between_two_attempts_tries_again_only_if_the_run_is_still_its_own(
    taken_over: bool,
) -> None:
    tried: list[int] = []

    @tool(effect="idempotent")
    async def flaky() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise ToolUnreachable("connection reset")
        return "through"

    patient = RetryPolicy(3, backoff=1.0, jitter="none")
    flaky = flaky.with_definition(replace(flaky.definition, timeout=None, retry=patient))
    engine = Engine(in_turn(calls("flaky"), says("done")), [flaky])
    other = engine.process("w2")

    async def suspended(seconds: float) -> None:
        engine.now += 100.0
        if taken_over:
            await other.take("r1")

    engine.toolbox = Pipeline([flaky], PipelineParts(clock=lambda: engine.now, sleep=suspended))
    engine.runs = engine.process("w1")

    if taken_over:
        with pytest.raises(LeaseLost):
            await engine.run()
        assert len(tried) == 1, "the other process decides about the next attempt"
    else:
        assert isinstance((await engine.run()).ended, RunSucceeded)
        assert len(tried) == 2
    await engine.close()


async def test_a_machine_suspended_while_it_waits_for_its_turn_does_not_act_in_anothers_place() -> None:
    acted: list[int] = []

    @tool(effect="once")
    async def pay() -> str:
        acted.append(1)
        return "paid"

    pay = pay.with_definition(replace(pay.definition, rate_limit=RateLimit(concurrency=1)))
    engine = Engine(in_turn(calls("pay"), says("done")), [pay])
    other = engine.process("w2")

    class Sleepy(LocalLimiter):
        async def enter(self, key: str, limit: RateLimit, *, within: float) -> None:
            await super().enter(key, limit, within=within)
            engine.now += 100.0
            await other.take("r1")

    engine.toolbox = Pipeline([pay], PipelineParts(clock=lambda: engine.now, limiter=Sleepy()))
    engine.runs = engine.process("w1")

    with pytest.raises(LeaseLost):
        await engine.run()
    assert acted == []
    await engine.close()


async def test_a_lease_that_is_lost_while_a_start_is_written_keeps_the_tool_from_acting() -> None:
    gate = Gate()

    class Slow(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.reached, self.go = asyncio.Event(), asyncio.Event()

        async def append(self, lease, entries, **kwargs):
            await super().append(lease, entries, **kwargs)
            if any(entry.type == "tool.started" for entry in entries):
                self.reached.set()
                await self.go.wait()

    journal = Slow()
    engine = Engine(in_turn(calls("gate")), [gate.tool], journal=journal)
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1")
    task = asyncio.create_task(engine.runs.drive(driver))
    await until(journal.reached)
    driver.lose()
    journal.go.set()

    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert not gate.started.is_set()
    await engine.close()


async def test_a_signal_that_comes_while_the_run_is_let_go_is_taken_first() -> None:
    @tool(effect="once")
    async def pay() -> str:
        return "paid"

    class Late(MemoryJournal):
        """Someone decides in the very moment in which the run is let go."""

        async def append(self, lease, entries, *, phase=None, **kwargs):
            if phase == "waiting" and not self._runs["r1"].signals and not self.decided:
                self.decided = True
                await self.signal(signal("r1", UnknownDecided("c1", "run", "ann"), 1.0, signal_id="s1"))
            await super().append(lease, entries, phase=phase, **kwargs)

        decided = False

    engine = Engine(in_turn(calls("pay"), says("done")), [pay], journal=Late())
    await crashed_in_a_call(engine)

    state = await engine.take()

    assert isinstance(state.ended, RunSucceeded)
    kinds = await engine.types()
    assert kinds[kinds.index("run.waiting") :][:3] == ["run.waiting", "unknown.decided", "run.resumed"]
    await engine.close()


async def crashed_in_a_call(engine: Engine) -> None:
    """A worker started the first call of the run, and was never heard of again."""
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1")
    hold = asyncio.Event()

    class Stuck(Driver):
        __slots__ = ()

        async def _call(self, *args) -> None:
            hold.set()
            await asyncio.Event().wait()

    driver.__class__ = Stuck  # the tool never acts
    task = asyncio.create_task(driver.drive())
    await until(hold)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    engine.now += 1000.0


async def test_a_signal_that_nobody_can_read_does_not_keep_the_run_busy_for_ever() -> None:
    @tool(effect="once")
    async def pay() -> str:
        return "paid"

    engine = Engine(in_turn(calls("pay"), says("done")), [pay])
    await crashed_in_a_call(engine)
    await engine.journal.signal(Signal("s1", "r1", 1.0, "input.received", b'{"type":"input.received","input_id":7}'))

    state = await engine.take()

    assert state.waiting is not None
    assert await engine.journal.signals(["r1"]) == []
    await engine.close()


async def test_a_signal_of_a_newer_version_is_left_to_a_newer_worker() -> None:
    @tool(effect="once")
    async def pay() -> str:
        return "paid"

    engine = Engine(in_turn(calls("pay"), says("done")), [pay])
    await crashed_in_a_call(engine)
    driver = await engine.runs.take("r1")
    driver.lease = msgspec.structs.replace(driver.lease, queued=True)  # a run of a task, which any worker may take up
    unknown = Signal("s1", "r1", 1.0, "from.the.future", b'{"type":"from.the.future"}')
    await engine.journal.signal(unknown)
    driver.deliver(unknown)

    with pytest.raises(NewerEvent):
        await asyncio.wait_for(engine.runs.drive(driver), 60)

    assert [each.id for each in await engine.journal.signals(["r1"])] == ["s1"]
    await engine.close()


async def test_a_signal_of_a_newer_version_does_not_keep_a_run_that_no_worker_takes_up() -> None:
    @tool(effect="read")
    async def look() -> str:
        return "seen"

    engine = Engine(in_turn(calls("look"), says("done")), [look])
    await crashed_in_a_call(engine)
    await engine.journal.signal(Signal("s1", "r1", 1.0, "from.the.future", b'{"type":"from.the.future"}'))

    assert isinstance((await engine.take()).ended, RunSucceeded)
    assert await engine.journal.signals(["r1"]) == []
    await engine.close()


async def test_the_same_signal_twice_is_heard_once() -> None:
    gate = Gate()
    engine = Engine(in_turn(calls("gate"), says("done")), [gate.tool])
    driver, task = await begun(engine, gate)
    said = signal("r1", InputReceived("i1", user_message("hello")), 1.0, signal_id="s1")
    await engine.journal.signal(said)
    driver.deliver(said)
    driver.deliver(said)
    gate.open.set()
    await asyncio.wait_for(task, 60)
    assert (await engine.types()).count("input.received") == 1
    await engine.close()


async def test_a_decision_about_a_call_that_needs_none_is_dropped() -> None:
    gate = Gate()
    engine = Engine(in_turn(calls("gate"), says("done")), [gate.tool])
    driver, task = await begun(engine, gate)
    await engine.journal.signal(wrong := signal("r1", UnknownDecided("c1", "fail", "bob"), 1.0))
    driver.deliver(wrong)
    gate.open.set()
    state = await asyncio.wait_for(task, 60)
    assert isinstance(state.ended, RunSucceeded)
    assert "unknown.decided" not in await engine.types()
    await engine.close()


async def test_a_journal_that_will_not_come_back_ends_the_attempt_and_not_the_run() -> None:
    class Flaky(MemoryJournal):
        fails = True

        async def append(self, lease, entries, **kwargs):
            if self.fails and any(entry.type == "tool.finished" for entry in entries):
                raise Unavailable("the store is closed", retryable=False)
            await super().append(lease, entries, **kwargs)

    @tool(effect="read")
    async def look() -> str:
        return "seen"

    journal = Flaky()
    engine = Engine(in_turn(calls("look"), says("done")), [look], journal=journal)
    with pytest.raises(Unavailable):
        await engine.run()
    assert (await journal.get("r1")).phase == "running"

    journal.fails = False
    engine.now += 60.0  # until the lease is over
    state = await engine.take()

    assert isinstance(state.ended, RunSucceeded)
    starts = [event for event in await engine.events() if isinstance(event, ToolStarted)]
    assert [start.attempt for start in starts] == [1, 2]
    assert starts[0].key == starts[1].key
    await engine.close()


async def test_a_write_that_was_stored_though_it_seemed_to_fail_is_not_done_twice() -> None:
    class Ambiguous(MemoryJournal):
        fails = True

        async def append(self, lease, entries, **kwargs):
            await super().append(lease, entries, **kwargs)
            if self.fails and any(entry.type == "model.responded" for entry in entries):
                self.fails = False
                raise Unavailable("the connection was lost during the commit")

    engine = Engine(in_turn(says("done")), journal=Ambiguous())

    assert isinstance((await engine.run()).ended, RunSucceeded)

    _, state = await engine.runs.load("r1")
    assert isinstance(state.ended, RunSucceeded)
    assert state.seq == len(await engine.types())
    assert len(engine.models.requests) == 1
    await engine.close()


async def test_a_refusal_that_ends_the_run_keeps_the_other_calls_from_starting() -> None:
    acted = False

    @tool(effect="once")
    async def pay() -> str:
        nonlocal acted
        acted = True
        return "paid"

    @tool(effect="once")
    async def forbidden() -> str:
        return "never"

    class Strict(Pipeline):
        async def admit(self, call: Invocation) -> Admitted | ToolResult:
            if call.tool == "forbidden":
                failure = ToolFailure("permission_denied", "tool_permission_denied", "no", kind="denied")
                return ToolResult(call.call_id, call.tool, (Text("no"),), failure)
            return await super().admit(call)

    tools = [pay, forbidden]
    engine = Engine(in_turn(calls("pay", "forbidden")), tools, toolbox=Strict(tools), on_denied="fail")

    state = await engine.run()

    assert isinstance(state.ended, RunFailed)
    assert state.ended.code == "denied"
    assert not acted
    assert "tool.started" not in await engine.types()
    await engine.close()


async def test_a_tool_that_will_not_stop_does_not_hold_the_end_up_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(Waits, "stop", 0.01)
    started, release = asyncio.Event(), asyncio.Event()

    @tool(effect="once", timeout=None)
    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    engine = Engine(in_turn(calls("stubborn")), [stubborn])
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1")
    task = asyncio.create_task(engine.runs.drive(driver))
    await until(started)
    driver.deliver(signal("r1", CancelRequested("ann"), 1.0))

    state = await asyncio.wait_for(task, 60)

    assert (await engine.types())[-1] == "run.cancelled"
    assert state.ended is not None
    release.set()
    await engine.close()


async def test_the_time_limit_cuts_a_model_call() -> None:
    asked = asyncio.Event()
    engine = Engine(lambda request: never(), limits=Limits(max_seconds=0.05))

    async def never():
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            engine.now += 0.05  # the wall clock, which stands still in this test, shows what the loop's has measured

    state = await engine.run()

    assert asked.is_set()
    assert isinstance(state.ended, RunFailed)
    assert (state.ended.code, state.ended.reason) == ("budget_exceeded", "seconds")
    failed = next(event for event in await engine.events() if isinstance(event, ModelFailed))
    assert failed.kind == "timeout"
    await engine.close()


async def test_the_time_limit_cuts_a_tool_call() -> None:
    @tool(effect="once")
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            engine.now += 0.05

    engine = Engine(in_turn(calls("hang")), [hang], limits=Limits(max_seconds=0.05))

    state = await engine.run()

    assert isinstance(state.ended, RunFailed)
    assert state.ended.reason == "seconds"
    events = await engine.events()
    finished = next(event for event in events if isinstance(event, ToolFinished))
    assert finished.result.error is not None
    assert finished.result.error.code == "timeout"
    assert any(isinstance(event, BudgetExceeded) for event in events)
    await engine.close()


async def test_a_failing_model_is_asked_again_when_the_timer_goes_off_and_not_before() -> None:
    failing = ModelOverloaded("busy", retry_after=20.0)
    engine = Engine(in_turn(failing, says("done")), repairs=Repairs(model=2))

    state = await engine.run()
    assert state.waiting is not None
    assert (state.waiting.reason, state.waiting.until) == ("model_retry", 1020.0)
    assert (await engine.journal.get("r1")).phase == "waiting"

    early = await engine.take()
    assert early.waiting is not None
    assert len(engine.models.requests) == 1

    engine.now = 1020.0
    late = await engine.take()
    assert isinstance(late.ended, RunSucceeded)
    assert "run.resumed" in await engine.types()
    await engine.close()


async def test_a_driver_that_is_cancelled_lets_the_run_go_for_others() -> None:
    gate = Gate("read")
    engine = Engine(in_turn(calls("gate"), says("done")), [gate.tool])
    _, task = await begun(engine, gate)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert (await engine.journal.get("r1")).phase == "pending"
    gate.open.set()
    other = engine.process("w2")
    state = await asyncio.wait_for(other.drive(await other.take("r1")), 60)
    assert isinstance(state.ended, RunSucceeded)
    await other.close()
    await engine.close()


async def test_a_thousand_waiting_runs_hold_no_task() -> None:
    engine = Engine(lambda request: refuse(), repairs=Repairs(model=3))

    async def refuse():
        raise ModelOverloaded("busy", retry_after=3600.0)

    for number in range(1000):
        await engine.run(f"r{number:04}")
    await engine.close()

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(await engine.journal.list(phases=["waiting"], limit=2000)) == 1000


async def test_a_call_that_tidies_up_is_not_told_to_stop_a_second_time() -> None:
    started, tidy, told = asyncio.Event(), asyncio.Event(), []

    @tool(effect="read", timeout=None)
    async def careful() -> None:
        """Puts everything away before it ends."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            while not tidy.is_set():
                told.append("stop")
                await tidy.wait()
                told.append("tidied up")

    engine = Engine(in_turn(calls("careful")), [careful])
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1")
    task = asyncio.create_task(engine.runs.drive(driver))
    await until(started)
    for _ in range(3):  # as a keeper does at each renewal
        driver.lose()
        await asyncio.sleep(0)
    assert driver.is_over
    tidy.set()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert told == ["stop", "tidied up"]
    await engine.close()


class Locked(MemoryJournal):
    """Somebody keeps the rows of its runs locked for so many renewals."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def renew(self, leases, *, until):
        if self.times:
            self.times -= 1
            return Renewal(passed_by={lease.run_id for lease in leases})
        return await super().renew(leases, until=until)


@pytest.mark.parametrize("times", [2, 1_000_000])
async def test_whoever_slept_and_finds_its_run_locked_asks_again_and_not_for_ever(times: int, monkeypatch) -> None:
    monkeypatch.setattr("foliot.engine.driver.driver.ASK_AGAIN", 0.001)
    monkeypatch.setattr(Waits, "answer", 5.0 if times == 2 else 0.01)
    acted: list[str] = []

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        acted.append("paid")
        return "paid"

    def sleeps(_: Any) -> Any:
        engine.now += 100.0
        return answers(_)

    answers = in_turn(calls("pay"), says("done"))
    engine = Engine(sleeps, [pay], journal=Locked(times))
    if times == 2:
        await engine.run()
    else:
        with pytest.raises(LeaseLost, match="somebody keeps its row locked"):
            await engine.run()
    assert acted == (["paid"] if times == 2 else [])
    await engine.close()
