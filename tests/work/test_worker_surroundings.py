"""A worker and what it depends on: deliveries, a store or a bus that fails, and what it costs when nothing happens."""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from foliot.errors import Unavailable
from foliot.store.journal.database import SqlJournal
from foliot.store.sqlite.database import SqliteDatabase
from foliot.work.worker.worker import LATEST, Worker
from tests.conformance.claims import add, offer
from tests.work.worker_kit import CountingDatabase, Doing, Letter, Letters, slow, until, working


@pytest.fixture
async def db(tmp_path) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(await SqliteDatabase.open(tmp_path / "foliot.db"))
    yield database
    await database.close()


@pytest.fixture
def doing(db: CountingDatabase) -> Doing:
    return Doing(SqlJournal(db))


# --- deliveries ------------------------------------------------------------------------------------------------------


async def test_a_delivery_is_kept_alive_with_its_run_and_done_with_it(db: CountingDatabase, doing: Doing) -> None:
    letters = Letters()
    doing.hold_all = True
    async with working(db, doing, offer(), letters, pace=slow(), heartbeat=0.01):
        await until(lambda: db.calls["queue_lines"] == 1)
        await add(db, "r1")
        letters.send("r1")
        await until(lambda: ("r1", "extend", 0.0) in letters.said)
        doing.gate("r1").set()
        await until(lambda: ("r1", "done", 0.0) in letters.said)


async def test_a_delivery_for_a_run_that_is_gone_is_done(db: CountingDatabase, doing: Doing) -> None:
    letters = Letters()
    async with working(db, doing, offer(), letters, pace=slow()):
        letters.send("nobody")
        await until(lambda: letters.said == [("nobody", "done", 0.0)])


async def test_a_delivery_for_a_run_that_needs_another_worker_is_passed_on(db: CountingDatabase, doing: Doing) -> None:
    letters = Letters()
    await add(db, "r1", requirements='{"gpu":true}')
    async with working(db, doing, offer(), letters, pace=slow()):
        letters.send("r1")
        letters.send("nobody")
        await until(lambda: sorted(letters.said) == [("nobody", "done", 0.0), ("r1", "again", LATEST)])
    assert doing.begun == []


async def test_the_delivery_of_a_run_that_is_handed_back_goes_to_another_at_once(
    db: CountingDatabase, doing: Doing
) -> None:
    letters = Letters()
    doing.hold_all = True
    async with working(db, doing, offer(), letters, pace=slow()):
        await until(lambda: db.calls["queue_lines"] == 1)
        await add(db, "r1")
        letters.send("r1")
        await doing.until(lambda: doing.begun == ["r1"])
    assert letters.said == [("r1", "again", 0.0)]


# --- faults ----------------------------------------------------------------------------------------------------------


async def test_it_goes_on_when_the_store_comes_back_and_complains_once(
    db: CountingDatabase, doing: Doing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    letters = Letters()
    async with working(db, doing, offer(), letters, heartbeat=0.02):
        await until(lambda: db.calls["queue_lines"] >= 1)
        await add(db, "r1")
        db.away = True
        letters.send("r1")
        seen = db.calls["queue_lines"]
        await until(lambda: db.calls["queue_lines"] + db.calls["queue_claimed"] >= seen + 2)
        assert letters.said[0][:2] == ("r1", "again")
        db.away = False
        await doing.until(lambda: doing.finished == ["r1"])
    assert caplog.text.count("goes on trying: the store is away") == 1
    assert caplog.text.count("the store answers again") == 1


async def test_a_worker_that_starts_before_its_store_waits_for_it(db: CountingDatabase, doing: Doing) -> None:
    db.away = True
    async with working(db, doing, offer()):
        await until(lambda: db.calls["life_get"] >= 1)
        db.away = False
        await until(lambda: db.calls["queue_lines"] >= 1)


async def test_a_transport_that_fails_or_has_nothing_to_say_is_done_without(db: CountingDatabase, doing: Doing) -> None:
    class Broken(Letters):
        times = 0

        async def receive(self, *, want: int, timeout: float) -> Sequence[Letter]:
            self.times += 1
            if self.times == 1:
                raise RuntimeError("no bus today")
            return []

    await add(db, "r1", due_at=1_999.0)
    bus = Broken()
    async with working(db, doing, offer(), bus):
        await doing.until(lambda: doing.finished == ["r1"])
        await add(db, "r2")
        await doing.until(lambda: doing.finished == ["r1", "r2"])
    assert bus.times <= db.calls["queue_lines"] + 1  # asked once for each look, not all the time


async def test_timers_are_looked_after_also_while_every_place_is_taken(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "r1")
    doing.hold_all = True
    asked: list[float] = []

    async def timers(now: float) -> float | None:
        asked.append(now)
        if len(asked) == 2:
            raise Unavailable("the store is away")
        return now if len(asked) < 4 else None

    async with working(db, doing, offer(capacity=1), timers=timers, clock=lambda: 2_000.0):
        await doing.until(lambda: doing.begun == ["r1"])
        await until(lambda: len(asked) >= 2)


# --- idleness --------------------------------------------------------------------------------------------------------


class SkippingSelector(selectors.DefaultSelector):
    """Waits for next to nothing, and remembers what it should have waited: hours pass in moments."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(min(timeout, 0.003) if timeout else timeout)
        if not events and timeout:
            self.skipped += timeout
        return events


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped


def idle(folder: Path, due: float | None) -> tuple[Counter[str], float]:
    """Ten minutes in the life of a worker that has nothing to do; `due` is what its timers say of the next one."""

    async def live() -> tuple[Counter[str], float]:
        loop = asyncio.get_running_loop()
        db = CountingDatabase(await SqliteDatabase.open(folder / "foliot.db"))

        async def timers(now: float) -> float | None:
            for _ in range(2):  # what the real one costs
                await db.read("queue_depth", now=now)
            return due

        worker = Worker(db, Letters(), Doing(SqlJournal(db)), offer(), timers=timers, clock=loop.time)
        task = asyncio.create_task(worker.run())
        await until(lambda: db.calls["queue_lines"] > 0)
        begun = loop.time()
        for _ in range(600):  # step by step: a write that is under way must not miss an hour
            await asyncio.sleep(1)
        passed, calls = loop.time() - begun, Counter(db.calls)
        worker.drain()
        await task
        await db.close()
        return calls, passed

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(live())


def test_an_idle_worker_makes_fewer_than_one_query_a_second_in_all(tmp_path: Path) -> None:
    calls, passed = idle(tmp_path, due=None)
    assert calls.total() / passed < 1.0
    assert calls["queue_lines"] >= 100  # and it does look


def test_a_timer_that_cannot_be_dealt_with_is_not_tried_all_the_time(tmp_path: Path) -> None:
    calls, passed = idle(tmp_path, due=0.0)
    assert calls.total() / passed < 1.0
