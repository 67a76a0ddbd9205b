"""A fault that nobody expected ends its run with a reason; it never leaves a run waiting under a lease that is kept."""

from __future__ import annotations

import asyncio

import pytest

from foliot.engine.driver.lease_keeper import LeaseKeeper
from foliot.errors import Unavailable
from foliot.kernel.run.events import RunDeadLettered
from foliot.store.journal.base import Signal
from foliot.tools.function import tool
from foliot.tools.pipeline.pipeline import Pipeline
from tests.engine.kit import Engine, calls, in_turn, says
from tests.engine.test_keeper import Calls, FakeDriver, keep


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


class BrokenPurse:
    """A purse whose code has a mistake in it."""

    is_free = False

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def ask(self, action, ask):
        raise self.error

    def close(self) -> None:
        pass


class BrokenToolbox(Pipeline):
    def definition(self, name: str):
        raise TypeError("a mistake in the registry")


async def test_a_fault_in_asking_the_model_ends_the_run_with_a_reason() -> None:
    engine = Engine(in_turn(says("never")))
    driver = await engine.runs.start(engine.spec, (), run_id="r1")
    driver._purse = BrokenPurse(KeyError("price"))

    state = await asyncio.wait_for(engine.runs.drive(driver), 60)

    assert isinstance(state.ended, RunDeadLettered)
    assert state.ended.reason == "internal"
    assert "KeyError" in state.ended.message
    assert (await engine.journal.get("r1")).phase == "failed"
    assert (await engine.types())[-1] == "run.dead_lettered"
    await engine.close()


async def test_a_fault_in_calling_a_tool_ends_the_run_with_a_reason() -> None:
    engine = Engine(in_turn(calls("look"), says("never")), [look], toolbox=BrokenToolbox([look]))

    state = await engine.run()

    assert isinstance(state.ended, RunDeadLettered)
    assert "a mistake in the registry" in state.ended.message
    await engine.close()


async def test_a_store_that_is_away_in_an_effect_hands_the_run_back() -> None:
    engine = Engine(in_turn(says("never")))
    driver = await engine.runs.start(engine.spec, (), run_id="r1")
    driver._purse = BrokenPurse(Unavailable("the accounts cannot be read"))

    with pytest.raises(Unavailable, match="accounts"):
        await asyncio.wait_for(engine.runs.drive(driver), 60)
    assert (await engine.journal.get("r1")).phase == "running"  # whoever has the lease gives it back
    await engine.close()


async def test_a_watcher_with_a_fault_ends_the_run_with_a_reason() -> None:
    class Broken:
        def attends(self, run_id: str) -> bool:
            return True

        def wanted(self, run_id: str) -> bool:
            return False

        def recorded(self, run_id, seq, at, event) -> None:
            if seq == 3:
                raise ZeroDivisionError("in a view")

    engine = Engine(in_turn(says("hello")), watcher=Broken())

    state = await engine.run()

    assert isinstance(state.ended, RunDeadLettered)
    assert "ZeroDivisionError" in state.ended.message
    await engine.close()


async def test_the_keeper_outlives_a_fault_and_the_run_hears_of_its_own() -> None:
    class Deaf(FakeDriver):
        failed: Exception | None = None

        def deliver(self, signal: Signal) -> None:
            raise IndexError("in the mailbox")

        def fail(self, error: Exception) -> None:
            self.failed = error
            self.lost.set()

    journal = Calls()
    keeper = LeaseKeeper(journal, clock=lambda: 1000.0, lease_seconds=0.03)
    deaf, well = Deaf("r1"), FakeDriver("r2")
    journal.waiting = [Signal("s1", "r1", 1.0, "t", b""), Signal("s2", "r2", 1.0, "t", b"")]
    with keep(keeper, deaf), keep(keeper, well):
        await asyncio.wait_for(deaf.lost.wait(), 60)
        await asyncio.wait_for(well.heard.wait(), 60)

        async def broken(leases, *, until):
            journal.again.clear()
            raise RuntimeError("a mistake in renewing")

        journal.renew = broken
        journal.again.clear()
        await asyncio.wait_for(journal.again.wait(), 60)  # it looks on all the same
    assert isinstance(deaf.failed, IndexError)
    await keeper.close()
