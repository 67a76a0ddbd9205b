"""The store is away for a moment, or for longer than a lease: what is known stays known, and nobody acts too late."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from foliot.engine.base import Clock
from foliot.engine.driver.appends import LeaseClock
from foliot.engine.driver.driver import Driver
from foliot.engine.driver.runs import user_message
from foliot.errors import Unavailable
from foliot.kernel.messages import ToolResult
from foliot.kernel.run.events import RunSucceeded, RunWaiting, ToolStarted
from foliot.kernel.run.spec import Effect
from foliot.store.journal.base import LeaseLost
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.base import Invocation
from foliot.tools.function import tool
from foliot.tools.governance.rules import FixedRules, Rules, RuleSource
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from simulators.engine.history import Acted, Stored
from simulators.engine.report import Report
from simulators.engine.simulation import simulate
from simulators.engine.virtual_loop import VirtualLoop
from simulators.workshop.simulation import simulate as simulate_workshop
from tests.engine.kit import Engine, calls, in_turn, says


def facts(report: Report) -> Counter[str]:
    """What a world holds of doubt, of repetition and of acting too late."""
    seen: Counter[str] = Counter()
    for item in report.history.items:
        if isinstance(item, Acted):
            seen["acted"] += 1
            seen["acted without a lease"] += not item.held
        elif isinstance(item, Stored):
            for event in item.events:
                seen["asked a person"] += isinstance(event, RunWaiting) and event.reason == "unknown_effect"
                seen["started again"] += isinstance(event, ToolStarted) and event.attempt > 1
    return seen


def played(profile: str, seeds: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(seeds):
        report = simulate(seed, profile)
        assert report.ok, report
        seen += facts(report)
    return seen


def test_a_store_that_blinks_leaves_nothing_in_doubt() -> None:
    """Every second write fails in these worlds, before or after it was stored; every process lives."""
    seen = played("blips", 100)
    assert seen["acted"] > 500
    assert not seen["asked a person"]
    assert not seen["started again"]
    assert not seen["acted without a lease"]


def test_nobody_acts_when_its_lease_is_over() -> None:
    seen = played("blackouts", 100)
    assert seen["acted"] > 300
    assert seen["asked a person"], "the outages are long enough to cut calls off"
    assert not seen["acted without a lease"]


@pytest.mark.parametrize("start", range(0, 30, 10))
def test_tasks_do_not_notice_a_store_that_blinks(start: int) -> None:
    for seed in range(start, start + 10):
        report = simulate_workshop(seed, "blips")
        assert report.ok, report
        acted = [item for item in report.history.items if isinstance(item, Acted)]
        assert len({item.key for item in acted}) == len(acted), "no call was made a second time"
        assert all(item.held for item in acted)


def test_worlds_in_which_an_append_is_tried_only_once_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gives_up(append, error, **rest) -> None:
        raise error

    monkeypatch.setattr("foliot.engine.driver.driver.append_again", gives_up)
    seen = played("blips", 40)
    assert seen["asked a person"]
    assert seen["started again"]


def test_worlds_in_which_a_lease_has_no_end_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "_lapsed", lambda self, slept: None)
    monkeypatch.setattr(Driver, "holds", lambda self: True)  # each step of a call asks for itself too
    assert any(facts(simulate(seed, "blackouts"))["acted without a lease"] for seed in range(100))


# --- one run, step by step -------------------------------------------------------------------------------------------


class Away(MemoryJournal):
    """Can be made not to answer, or to answer never."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.silent = False

    async def _reach(self) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.away:
            raise Unavailable("the store is away")

    async def append(self, lease, entries, **kwargs):
        await self._reach()
        await super().append(lease, entries, **kwargs)

    async def renew(self, leases, *, until):
        await self._reach()
        return await super().renew(leases, until=until)

    async def read(self, run_id, **kwargs):
        await self._reach()
        return await super().read(run_id, **kwargs)

    async def signals(self, run_ids):
        await self._reach()
        return await super().signals(run_ids)


class Shop:
    """An engine in virtual time, with a tool that pays and takes ten minutes over it."""

    def __init__(self, effect: Effect = "once", rules: RuleSource | None = None) -> None:
        self.loop = VirtualLoop(Random(1), latest=10_000.0)
        self.journal = Away()
        self.begun: asyncio.Future[None] = self.loop.create_future()
        self.paid: list[float] = []
        self.stopped: list[float] = []

        @tool(effect=effect, timeout=None)
        async def pay() -> str:
            self.begun.set_result(None)
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                self.stopped.append(self.loop.time())
                raise
            self.paid.append(self.loop.time())
            return "paid"

        toolbox = None if rules is None else Pipeline([pay], PipelineParts(rules=rules))
        self.engine = Engine(in_turn(calls("pay"), says("done")), [pay], journal=self.journal, toolbox=toolbox)
        self.engine.runs = self.engine.process("w1")
        self.engine.runs._clock = self.clock
        self.engine.runs._keeper._clock = self.clock

    def clock(self) -> float:
        return 1000.0 + self.loop.time()

    async def begin(self) -> asyncio.Task:
        driver = await self.engine.runs.start(self.engine.spec, (user_message("go"),), run_id="r1")
        task = asyncio.create_task(self.engine.runs.drive(driver))
        await self.begun
        return task

    async def end(self, task: asyncio.Task):
        try:
            return await task
        finally:
            self.journal.silent = self.journal.away = False
            await self.engine.close()


def test_an_outage_within_the_lease_costs_only_its_time() -> None:
    shop = Shop()

    async def scene() -> None:
        task = await shop.begin()
        await asyncio.sleep(591.0)  # nine seconds before the tool is done
        shop.journal.away = True
        await asyncio.sleep(15.0)
        shop.journal.away = False
        state = await shop.end(task)
        assert isinstance(state.ended, RunSucceeded)

    shop.loop.run(scene())
    assert len(shop.paid) == 1
    assert shop.stopped == []


class Rulebook(FixedRules):
    """Can be made not to answer."""

    away = True

    async def rules(self, namespace: str) -> Rules:
        if self.away:
            raise Unavailable("the database at 10.0.0.1 does not answer")
        return super().at_hand(namespace)

    def at_hand(self, namespace: str) -> Rules | None:  # type: ignore[override]  # a base that always has them
        return None


def test_rules_that_cannot_be_read_for_a_moment_are_no_answer_to_the_model() -> None:
    """What governs a call is asked again, and the call is made once."""
    rules = Rulebook()
    shop = Shop(rules=rules)

    async def scene() -> None:
        driver = await shop.engine.runs.start(shop.engine.spec, (user_message("go"),), run_id="r1")
        task = asyncio.create_task(shop.engine.runs.drive(driver))
        await asyncio.sleep(20.0)
        assert not shop.begun.done()
        rules.away = False
        assert isinstance((await shop.end(task)).ended, RunSucceeded)

    shop.loop.run(scene())
    assert len(shop.paid) == 1
    assert [len(request.messages) for request in shop.engine.models.requests] == [1, 3]
    (result,) = shop.engine.models.requests[-1].messages[-1].parts
    assert isinstance(result, ToolResult)
    assert (result.error, result.text) == (None, "paid")


def test_rules_that_stay_away_with_the_store_let_the_run_go_undecided() -> None:
    shop = Shop(rules=Rulebook())

    async def scene() -> None:
        driver = await shop.engine.runs.start(shop.engine.spec, (user_message("go"),), run_id="r1")
        task = asyncio.create_task(shop.engine.runs.drive(driver))
        await asyncio.sleep(5.0)
        shop.journal.away = True
        with pytest.raises((Unavailable, LeaseLost)):
            await shop.end(task)

    shop.loop.run(scene())
    assert shop.paid == []


async def test_a_call_outside_any_run_is_refused_and_not_told_where_the_database_is() -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        raise AssertionError("ungoverned")

    result = await Pipeline([pay], PipelineParts(rules=Rulebook())).call(Invocation("", "c1", "pay", {}, "k"))

    assert result.error is not None
    assert result.error.retryable
    assert "10.0.0.1" not in result.text


@pytest.mark.parametrize("how", ["away", "silent"])
def test_a_call_is_stopped_in_the_moment_in_which_the_lease_ends(how: str) -> None:
    """Whether the store refuses, or the renewal is still under way: nobody may act after that."""
    shop = Shop()

    async def scene() -> None:
        task = await shop.begin()
        await asyncio.sleep(100.0)
        setattr(shop.journal, how, True)
        ends = (await MemoryJournal.get(shop.journal, "r1")).lease_until
        with pytest.raises(LeaseLost, match="ended, and the store did not answer"):
            await shop.end(task)
        assert shop.stopped == [pytest.approx(ends - 1000.0, abs=1e-6)]

    shop.loop.run(scene())
    assert shop.paid == []


def test_an_append_that_is_never_answered_does_not_let_other_calls_go_on() -> None:
    """The driver itself hangs in a write; its lease ends all the same."""
    shop = Shop()

    async def scene() -> None:
        task = await shop.begin()
        await asyncio.sleep(100.0)
        shop.journal.silent = True
        shop.engine.runs.local("r1")._taken += ("a signal",)  # something to write, while the tool is at work
        shop.engine.runs.local("r1")._wake()
        await asyncio.sleep(31.0)
        assert len(shop.stopped) == 1
        task.cancel()
        shop.journal.silent = False
        with pytest.raises(asyncio.CancelledError):
            await shop.end(task)

    shop.loop.run(scene())
    assert shop.paid == []


@pytest.mark.parametrize("taken_over", [True, False])
@pytest.mark.parametrize("effect", ["once", "idempotent"])
def test_who_slept_through_the_end_of_its_lease_asks_unless_a_call_must_not_happen_twice(
    effect: Effect, taken_over: bool
) -> None:
    shop = Shop(effect)

    async def scene() -> None:
        task = await shop.begin()
        driver = shop.engine.runs.local("r1")
        driver._tenure._ends = 0.0  # the process was stopped for a long while,
        if taken_over:
            await shop.journal.claim("r1", worker="w2", now=2000.0, until=2900.0)
        driver._lapsed(True)  # and that is what it notices first
        if effect == "once" or taken_over:
            with pytest.raises(LeaseLost, match="while this process slept" if effect == "once" else "no longer held"):
                await shop.end(task)
        else:
            assert isinstance((await shop.end(task)).ended, RunSucceeded)

    shop.loop.run(scene())
    assert len(shop.paid) == (effect == "idempotent" and not taken_over)


# --- the clocks of a lease -------------------------------------------------------------------------------------------


class Wall:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def in_time(scene) -> None:
    VirtualLoop(Random(1), latest=10_000.0).run(scene(Wall()))


def tenure_of(wall: Clock, seconds: float = 30.0) -> LeaseClock:
    return LeaseClock(wall() + seconds, clock=wall, seconds=seconds)


def test_a_lease_ends_by_whichever_clock_says_so_first() -> None:
    async def scene(wall: Wall) -> None:
        lease = tenure_of(wall)
        assert lease.in_force()
        await asyncio.sleep(29.0)
        wall.now += 29.0
        assert lease.in_force()
        await asyncio.sleep(1.0)
        assert not lease.in_force(), "the wall clock was set back by a second, and means nothing"
        lease = tenure_of(wall)
        wall.now += 30.0
        assert not lease.in_force(), "the machine was suspended: only the wall clock knows"
        assert lease.left() == 30.0

    in_time(scene)


def test_a_wall_clock_set_back_makes_no_lease_longer() -> None:
    async def scene(wall: Wall) -> None:
        until = wall() + 30.0
        wall.now -= 500.0
        lease = LeaseClock(until, clock=wall, seconds=30.0)
        assert lease.left() == 30.0

    in_time(scene)


def test_renewals_move_the_end_and_late_answers_do_not_move_it_back() -> None:
    async def scene(wall: Wall) -> None:
        loop = asyncio.get_running_loop()
        lease = tenure_of(wall)
        rung: list[tuple[float, bool]] = []
        lease.watch(lambda slept: rung.append((loop.time(), slept)))
        await asyncio.sleep(10.0)
        lease.renewed(wall() + 40.0, loop.time() + 30.0)
        lease.renewed(wall() + 35.0, loop.time() + 25.0)
        await asyncio.sleep(100.0)
        assert rung == [(40.0, False)]

    in_time(scene)


def test_an_alarm_that_is_closed_stays_silent() -> None:
    async def scene(wall: Wall) -> None:
        lease = tenure_of(wall)
        rung: list[bool] = []
        lease.watch(rung.append)
        lease.close()
        lease.close()
        await asyncio.sleep(100.0)
        assert rung == []

    in_time(scene)


async def test_who_slept_through_the_end_is_told_so() -> None:
    """A real loop: it is held up, as by a stopped process, and the timer comes late."""
    loop = asyncio.get_running_loop()
    lease = LeaseClock(loop.time() + 0.2, clock=loop.time, seconds=0.2)
    rung: asyncio.Future[bool] = loop.create_future()
    lease.watch(rung.set_result)
    lease._ends -= 1.0  # as if it should have gone off long ago
    assert await asyncio.wait_for(rung, 60) is True
