"""One task keeps the leases of all runs of a process and brings them their signals."""

from __future__ import annotations

import asyncio

import pytest

from foliot.engine.keeper import Keeper
from foliot.errors import Unavailable
from foliot.store.runs import Lease, Signal


class FakeDriver:
    def __init__(self, run_id: str) -> None:
        self.lease = Lease(run_id, 1, 1, "w1", 30.0)
        self.until = 30.0
        self.lost = asyncio.Event()
        self.heard = asyncio.Event()

    def renewed(self, until: float, ends: float) -> None:
        self.until = until

    def lose(self) -> None:
        self.lost.set()

    def deliver(self, signal: Signal) -> None:
        self.heard.set()


class Calls:
    """A journal that remembers what it was asked, and can fail."""

    def __init__(self) -> None:
        self.renewals: list[list[str]] = []
        self.looks: list[list[str]] = []
        self.lost: set[str] = set()
        self.waiting: list[Signal] = []
        self.fail = 0
        self.again = asyncio.Event()

    async def renew(self, leases, *, until):
        self.renewals.append([lease.run_id for lease in leases])
        return self.lost

    async def signals(self, run_ids):
        self.looks.append(list(run_ids))
        if self.fail:
            self.fail -= 1
            raise Unavailable("not now")
        self.again.set()
        return self.waiting


@pytest.fixture
async def keeper():
    journal, now = Calls(), [1000.0]
    keeper = Keeper(journal, clock=lambda: now[0], lease_seconds=0.03)
    yield keeper, journal, now
    await keeper.close()


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 5)


async def test_all_leases_are_renewed_in_one_write_and_a_lost_one_is_told(keeper) -> None:
    keeper, journal, now = keeper
    kept, lost = FakeDriver("kept"), FakeDriver("lost")
    journal.lost = {"lost"}
    with keeper.keep(kept), keeper.keep(lost):
        now[0] += 10.0
        await soon(lost.lost)
    assert journal.renewals[0] == ["kept", "lost"]
    assert not kept.lost.is_set()
    assert kept.until == now[0] + 0.03


async def test_signals_reach_their_run_and_nobody_else(keeper) -> None:
    keeper, journal, _ = keeper
    mine, other = FakeDriver("mine"), FakeDriver("other")
    journal.waiting = [Signal("s1", "mine", 1.0, "x", b"{}"), Signal("s2", "gone", 1.0, "x", b"{}")]
    with keeper.keep(mine), keeper.keep(other):
        await soon(mine.heard)
        assert not other.heard.is_set()


async def test_a_store_that_does_not_answer_is_asked_again(keeper) -> None:
    keeper, journal, _ = keeper
    journal.fail = 3
    with keeper.keep(FakeDriver("r1")):
        await soon(journal.again)
    assert len(journal.looks) >= 4


async def test_without_runs_the_store_is_left_alone(keeper) -> None:
    keeper, journal, _ = keeper
    with keeper.keep(FakeDriver("r1")):
        await soon(journal.again)
    looks = len(journal.looks)
    journal.again.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(journal.again.wait(), 0.1)
    assert len(journal.looks) == looks
    assert keeper.driver("r1") is None


async def test_a_driver_that_replaced_another_is_not_forgotten_with_it(keeper) -> None:
    keeper, _, _ = keeper
    old, new = FakeDriver("r1"), FakeDriver("r1")
    with keeper.keep(old):
        keep_new = keeper.keep(new)
        keep_new.__enter__()
    assert keeper.driver("r1") is new
    keep_new.__exit__(None, None, None)
    assert keeper.driver("r1") is None
