"""One task keeps the leases of all runs of a process and brings them their signals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from foliot.common.waits import Waits
from foliot.engine.driver.journal import signal
from foliot.engine.driver.lease_keeper import LeaseKeeper
from foliot.engine.driver.runs import user_message
from foliot.errors import Unavailable
from foliot.kernel.run.events import CancelRequested
from foliot.store.journal.base import Lease, LeaseLost, Renewal, Signal
from foliot.store.journal.database import SqlJournal
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.function import tool
from tests.engine.kit import Engine, calls, in_turn, says


@contextmanager
def keep(keeper: LeaseKeeper, driver: Any) -> Iterator[None]:
    keeper.take(driver)
    try:
        yield
    finally:
        keeper.leave(driver)


class FakeDriver:
    def __init__(self, run_id: str, epoch: int = 1) -> None:
        self.lease = Lease(run_id, 1, epoch, "w1", 30.0)
        self.why = self.parent = ""
        self.is_over = False
        self.calls: list[asyncio.Task[None]] = []
        self.until = 30.0
        self.lost = asyncio.Event()
        self.renewal = asyncio.Event()
        self.heard = asyncio.Event()

    def renewed(self, until: float, ends: float) -> None:
        self.until = until
        self.renewal.set()

    def lose(self, why: str = "") -> None:
        self.why, self.is_over = why, True
        self.lost.set()

    def under_way(self) -> list[asyncio.Task[None]]:
        return [task for task in self.calls if not task.done()]

    def deliver(self, signal: Signal) -> None:
        self.heard.set()


class Calls:
    """A journal that remembers what it was asked, and can fail."""

    def __init__(self) -> None:
        self.renewals: list[list[str]] = []
        self.looks: list[list[str]] = []
        self.lost: set[str] = set()
        self.locked: set[str] = set()
        self.waiting: list[Signal] = []
        self.fail = 0
        self.again = asyncio.Event()

    async def renew(self, leases, *, until):
        self.renewals.append([lease.run_id for lease in leases])
        return Renewal(self.lost, self.locked)

    async def signals(self, run_ids):
        self.looks.append(list(run_ids))
        if self.fail:
            self.fail -= 1
            raise Unavailable("not now")
        self.again.set()
        return self.waiting


@pytest.fixture
async def keeper(monkeypatch):
    journal, now = Calls(), [1000.0]
    monkeypatch.setattr("foliot.engine.driver.lease_keeper.LOOK_EVERY", 0.01)
    keeper = LeaseKeeper(journal, clock=lambda: now[0], lease_seconds=0.03)
    yield keeper, journal, now
    await keeper.close()


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 60)


async def test_all_leases_are_renewed_in_one_write_and_a_lost_one_is_told(keeper) -> None:
    keeper, journal, now = keeper
    kept, lost = FakeDriver("kept"), FakeDriver("lost")
    journal.lost = {"lost"}
    with keep(keeper, kept), keep(keeper, lost):
        now[0] += 10.0
        await soon(lost.lost)
    assert journal.renewals[0] == ["kept", "lost"]
    assert not kept.lost.is_set()
    assert kept.until == now[0] + 0.03


async def test_a_lease_that_somebody_keeps_locked_is_renewed_at_the_next_look(keeper) -> None:
    keeper, journal, now = keeper
    free, locked = FakeDriver("free"), FakeDriver("locked")
    journal.locked = {"locked"}
    keeper._lease_seconds = 3600.0  # only once are all of them due
    with keep(keeper, free), keep(keeper, locked):
        now[0] += 3600.0
        await soon(free.renewal)
        assert not locked.renewal.is_set()
        journal.locked = set()
        await soon(locked.renewal)
    assert journal.renewals[0] == ["free", "locked"]
    assert journal.renewals[-1] == ["locked"], "the other one has nothing to wait for"
    assert not locked.lost.is_set()


async def test_what_was_given_back_or_lost_is_not_renewed_and_hears_nothing(keeper) -> None:
    keeper, journal, now = keeper
    kept, over = FakeDriver("kept"), FakeDriver("over")
    with keep(keeper, kept), keep(keeper, over):
        over.is_over = True
        now[0] += 10.0
        journal.again.clear()
        await soon(journal.again)
        await soon(kept.renewal)
        assert keeper.driver("over") is over, "whoever ends with it looks at how it ended"
    assert journal.renewals[0] == ["kept"]
    assert journal.looks[-1] == ["kept"]


async def test_signals_reach_their_run_and_nobody_else(keeper) -> None:
    keeper, journal, _ = keeper
    mine, other = FakeDriver("mine"), FakeDriver("other")
    journal.waiting = [Signal("s1", "mine", 1.0, "x", b"{}"), Signal("s2", "gone", 1.0, "x", b"{}")]
    with keep(keeper, mine), keep(keeper, other):
        await soon(mine.heard)
        assert not other.heard.is_set()


async def test_a_store_that_does_not_answer_is_asked_again(keeper) -> None:
    keeper, journal, _ = keeper
    journal.fail = 3
    with keep(keeper, FakeDriver("r1")):
        await soon(journal.again)
    assert len(journal.looks) >= 4


async def test_without_runs_the_store_is_left_alone(keeper) -> None:
    keeper, journal, _ = keeper
    with keep(keeper, FakeDriver("r1")):
        await soon(journal.again)
    looks = len(journal.looks)
    journal.again.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(journal.again.wait(), 0.1)
    assert len(journal.looks) == looks
    assert keeper.driver("r1") is None


async def test_a_driver_that_replaced_another_is_not_forgotten_with_it(keeper) -> None:
    keeper, _, _ = keeper
    old, new = FakeDriver("r1"), FakeDriver("r1", epoch=3)
    with keep(keeper, old):
        keep_new = keep(keeper, new)
        keep_new.__enter__()
    assert keeper.driver("r1") is new
    keep_new.__exit__(None, None, None)
    assert keeper.driver("r1") is None


async def test_an_older_claim_of_a_run_is_lost_whichever_came_first(keeper) -> None:
    keeper, journal, now = keeper
    old, new = FakeDriver("r1", epoch=1), FakeDriver("r1", epoch=3)
    with keep(keeper, old), keep(keeper, new):
        assert old.lost.is_set()
        assert "under epoch 3" in old.why
        assert keeper.orphans("r1") == [old]
        now[0] += 10.0
        journal.again.clear()
        await soon(journal.again)
    assert journal.renewals[0] == ["r1"], "the lost claim is not renewed"
    late = FakeDriver("r1", epoch=1)
    with keep(keeper, new), keep(keeper, late):
        assert late.lost.is_set()
        assert keeper.driver("r1") is new


async def test_a_claim_is_remembered_until_its_last_call_has_ended(keeper) -> None:
    keeper, _, _ = keeper
    old, new, release = FakeDriver("r1", epoch=1), FakeDriver("r1", epoch=3), asyncio.Event()
    old.calls = [asyncio.create_task(release.wait(), name="pay")]
    with keep(keeper, old):
        pass
    with keep(keeper, new):
        assert keeper.orphans("r1") == [old]
        alone = asyncio.create_task(keeper.stand_alone(new))
        await asyncio.sleep(0)
        assert not alone.done()
        release.set()
        await asyncio.wait_for(alone, 60)
        assert keeper.orphans("r1") == []


async def test_a_call_of_an_older_claim_that_does_not_end_is_named(keeper, monkeypatch, caplog) -> None:
    keeper, _, _ = keeper
    monkeypatch.setattr(Waits, "stop", 0.01)
    old, new, release = FakeDriver("r1", epoch=1), FakeDriver("r1", epoch=3), asyncio.Event()
    old.calls = [asyncio.create_task(release.wait(), name="pay")]
    with keep(keeper, old):
        pass
    with keep(keeper, new):
        await keeper.stand_alone(new)
    assert "has not ended epoch 1 of it: still under way: pay" in caplog.text
    release.set()


async def test_a_process_robbed_twice_pays_once() -> None:
    """It loses the run to another process, which dies, and claims it anew: its first attempt must not go on beside."""
    begun, go = asyncio.Queue[int](), asyncio.Event()
    paid: list[int] = []

    @tool(effect="idempotent")
    async def pay() -> str:
        """Pay."""
        begun.put_nowait(number := begun.qsize() + len(paid) + 1)
        await go.wait()
        paid.append(number)
        return "paid"

    engine = Engine(in_turn(calls("pay"), says("done")), [pay])
    first = asyncio.create_task(engine.run())
    await begun.get()
    engine.now += 100.0
    await engine.journal.claim("r1", worker="w2", now=engine.now, until=engine.now + 30.0)
    engine.now += 100.0
    second = asyncio.create_task(engine.take())
    await asyncio.wait_for(begun.get(), 60)
    go.set()
    assert (await second).ended is not None
    with pytest.raises(LeaseLost, match="claimed run r1 again, under epoch 3"):
        await first
    assert len(paid) == 1
    await engine.close()


class Renewing(SqlJournal):
    """Says when it has renewed, and what."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self.renewed = asyncio.Event()
        self.asked: list[str] = []

    async def renew(self, leases, *, until):
        self.asked += [lease.run_id for lease in leases]
        try:
            return await super().renew(leases, until=until)
        finally:
            self.renewed.set()


async def test_a_run_that_is_deleted_while_its_calls_come_to_their_end_costs_no_other(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("foliot.engine.driver.lease_keeper.LOOK_EVERY", 0.01)
    begun, tidied, working, finish = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    cancelled: list[str] = []

    @tool(effect="read", timeout=None)
    async def tidy() -> str:
        """Works for ever, and has something to put away."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("tidy")
            await tidied.wait()
            raise
        return ""

    @tool(effect="once", timeout=None)
    async def work() -> str:
        """Works until it is told."""
        working.set()
        await finish.wait()
        return "done"

    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    journal = Renewing(database)
    engine = Engine(in_turn(calls("tidy"), calls("work"), says("done")), [tidy, work], journal=journal)
    victim = await engine.runs.start(engine.spec, (user_message("go"),), run_id="victim")
    ending = asyncio.create_task(engine.runs.drive(victim))
    await soon(begun)
    other = asyncio.create_task(engine.run("other"))
    victim.deliver(signal("victim", CancelRequested("ann"), 1.0))
    while (await journal.get("victim")).phase != "cancelled":
        await asyncio.sleep(0)
    await journal.forget("victim")
    await soon(working)  # a lease that is taken after the clock was moved would not have to be renewed
    journal.asked.clear()
    journal.renewed.clear()
    engine.now += 31.0
    await soon(journal.renewed)
    assert set(journal.asked) == {"other"}
    tidied.set()
    assert (await asyncio.wait_for(ending, 60)).ended is not None
    finish.set()
    assert (await other).ended is not None
    assert cancelled == ["tidy"]
    await engine.close()
    await database.close()
