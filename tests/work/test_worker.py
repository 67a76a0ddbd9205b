"""The worker's loop over a real store: what it takes, when it looks, how it ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from foliot.bus.base import Ticket
from foliot.bus.local import LocalDelivery, LocalTransport
from foliot.store.journal.database import SqlJournal
from foliot.store.queue.claims import Claims
from foliot.store.queue.limits import Limit, set_limit
from foliot.store.queue.workers import list_workers, register
from foliot.store.sqlite.database import SqliteDatabase
from foliot.work.worker.worker import LookPace, Worker
from tests.conformance.claims import add, offer, take
from tests.work.worker_kit import CountingDatabase, Doing, phase_of, slow, until, until_phase, working


@pytest.fixture
async def db(tmp_path) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(await SqliteDatabase.open(tmp_path / "foliot.db"))
    yield database
    await database.close()


@pytest.fixture
def doing(db: CountingDatabase) -> Doing:
    return Doing(SqlJournal(db))


async def test_it_does_everything_that_is_queued_with_no_more_at_a_time_than_it_has_places(
    db: CountingDatabase, doing: Doing
) -> None:
    await add(db, *(f"r{n}" for n in range(30)))
    async with working(db, doing, offer(capacity=4)):
        await doing.until(lambda: len(doing.finished) == 30)
    assert sorted(doing.finished) == sorted(f"r{n}" for n in range(30))
    assert doing.most == 4


async def test_a_run_published_while_it_waits_is_begun_without_waiting_for_the_next_look(
    db: CountingDatabase, doing: Doing
) -> None:
    transport = LocalTransport()
    async with working(db, doing, offer(), transport, pace=slow()):
        await until(lambda: db.calls["queue_lines"] == 1)
        await add(db, "r1")
        await transport.publish([Ticket("t1", "r1", "default", "clerk")])
        await doing.until(lambda: doing.finished == ["r1"])


async def test_somebody_listens_at_all_times_between_two_looks(db: CountingDatabase, doing: Doing) -> None:
    """A look that comes earlier than planned moves the next one behind the end of the wait that is under way."""
    waits = iter([0.1])

    class Planned(LookPace):
        def found(self, claims: Claims, now: float) -> float:
            return next(waits, 1000.0)

    class Counted(LocalTransport):
        asked = returned = 0

        async def receive(self, *, want: int, timeout: float) -> Sequence[LocalDelivery]:
            self.asked += 1
            handed = await super().receive(want=want, timeout=timeout)
            self.returned += 1
            return handed

    transport = Counted()
    async with working(db, doing, offer(), transport, pace=Planned(lambda: 0.5)) as (worker, _):
        await until(lambda: transport.asked == 1)  # so the first look is over
        worker._look_again()  # as the end of a run does
        await until(lambda: db.calls["queue_lines"] == 2 and transport.returned == 1)
        await add(db, "r1")
        await transport.publish([Ticket("t1", "r1", "default", "clerk")])
        await doing.until(lambda: doing.finished == ["r1"])


async def test_a_place_that_becomes_free_is_used_at_once(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "r1", "r2")
    doing.hold_all = True
    async with working(db, doing, offer(capacity=1), pace=slow()):
        await doing.until(lambda: doing.begun == ["r1"])
        doing.gate("r1").set()
        await doing.until(lambda: doing.begun == ["r1", "r2"])


async def test_room_within_a_limit_is_used_as_soon_as_there_is_some(db: CountingDatabase, doing: Doing) -> None:
    await set_limit(db, Limit("agent", "default/clerk", 1))
    await add(db, "r1", "r2", "r3")
    async with working(db, doing, offer(capacity=8), pace=slow()):
        await doing.until(lambda: doing.finished == ["r1", "r2", "r3"])
    assert doing.most == 1


async def test_a_run_whose_timer_is_near_is_taken_when_it_is_due(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "r1", due_at=time.time() + 0.3)
    async with working(db, doing, offer(), pace=slow(), clock=time.time):
        await doing.until(lambda: doing.finished == ["r1"])
    assert db.calls["queue_lines"] <= 5


async def test_a_run_that_makes_its_performer_raise_leaves_the_others_alone(
    db: CountingDatabase, doing: Doing, caplog: pytest.LogCaptureFixture
) -> None:
    await add(db, "bad", due_at=1.0)
    await add(db, "good1", "good2")
    doing.trouble["bad"] = RuntimeError("what a day")
    async with working(db, doing, offer(capacity=1)):
        await doing.until(lambda: sorted(doing.finished) == ["good1", "good2"])
    assert "run bad could not be done" in caplog.text
    info = await SqlJournal(db).get("bad")
    assert (info.phase, info.epoch) == ("running", 1)  # taken up again when the lease is over


async def test_a_run_that_it_has_lost_frees_its_place(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "lost", due_at=1.0)
    await add(db, "next")
    doing.gate("lost")
    async with working(db, doing, offer(capacity=1)):
        await doing.until(lambda: doing.begun == ["lost"])
        stolen = await SqlJournal(db).claim("lost", worker="thief", now=1e9, until=2e9)
        doing.gate("lost").set()
        await doing.until(lambda: doing.finished == ["next"])
    assert (await SqlJournal(db).get("lost")).epoch == stolen.epoch


# --- ending ----------------------------------------------------------------------------------------------------------


async def test_a_drained_worker_takes_no_more_and_lets_its_runs_end(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "r1", "r2", "r3")
    doing.hold_all = True
    async with working(db, doing, offer(capacity=2), grace=1000.0) as (worker, task):
        await doing.until(lambda: len(doing.begun) == 2)
        worker.drain()
        await until_phase(db, "draining")
        doing.gate("r1").set()
        await doing.until(lambda: doing.finished == ["r1"])
        assert not task.done()
        doing.gate("r2").set()
        await asyncio.wait_for(task, 60)
    assert doing.begun == ["r1", "r2"]
    assert await phase_of(db) == "stopped"


async def test_what_does_not_end_within_the_grace_period_is_handed_back_at_once(
    db: CountingDatabase, doing: Doing
) -> None:
    await add(db, "r1")
    doing.hold_all = True
    async with working(db, doing, offer(), grace=0.01) as (worker, task):
        await doing.until(lambda: doing.begun == ["r1"])
        worker.drain()
        await asyncio.wait_for(task, 60)
    info = await SqlJournal(db).get("r1")
    assert (info.phase, info.worker) == ("pending", None)
    assert [lease.run_id for lease in (await take(db, by=offer("w2"))).leases] == ["r1"]


async def test_draining_twice_does_not_wait_for_the_grace_period(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "r1")
    doing.hold_all = True
    async with working(db, doing, offer(), grace=1000.0) as (worker, task):
        await doing.until(lambda: doing.begun == ["r1"])
        worker.drain()
        worker.drain()
        await asyncio.wait_for(task, 60)
    assert (await SqlJournal(db).get("r1")).phase == "pending"


async def test_a_cancelled_worker_hands_back_what_it_has(db: CountingDatabase, doing: Doing) -> None:
    await add(db, "r1")
    doing.hold_all = True
    worker = Worker(db, LocalTransport(), doing, offer(), clock=lambda: 2_000.0)
    task = asyncio.create_task(worker.run())
    await doing.until(lambda: doing.begun == ["r1"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await SqlJournal(db).get("r1")).phase == "pending"
    assert await phase_of(db) == "stopped"


async def test_with_once_it_ends_when_there_is_nothing_left_to_take(db: CountingDatabase, doing: Doing) -> None:
    await add(db, *(f"r{n}" for n in range(7)))
    worker = Worker(db, LocalTransport(), doing, offer(capacity=2), clock=lambda: 2_000.0, once=True)
    await asyncio.wait_for(worker.run(), 60)
    assert len(doing.finished) == 7


async def test_a_worker_whose_name_another_process_took_ends(
    db: CountingDatabase, doing: Doing, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(db, doing, offer(), heartbeat=0.02) as (_, task):
        await until_phase(db, "ready")
        await register(db, offer(identity="another"), now=2_000.0, is_gone=lambda _: False)
        await asyncio.wait_for(task, 60)
    assert "took the name w1" in caplog.text
    (info,) = await list_workers(db)
    assert (info.identity, info.phase) == ("another", "ready")


async def test_what_a_look_claimed_without_hearing_of_it_is_begun_by_the_next(
    db: CountingDatabase, doing: Doing
) -> None:
    """Nobody else could take these runs before their leases end: they must not lie about until then."""
    clock = itertools.count(2_000)
    for name in ("r1", "r2"):
        await add(db, name)
    db.mute = {"queue_claim"}
    async with working(db, doing, offer(capacity=4), clock=lambda: next(clock) / 1_000 + 2_000.0, lease_seconds=900.0):
        await doing.until(lambda: sorted(doing.finished) == ["r1", "r2"])
    assert not db.mute
    assert sorted(doing.begun) == ["r1", "r2"], "each once"
    assert db.calls["queue_claim"] == 1, "they were not claimed a second time"


async def test_a_claim_that_is_stored_after_it_was_looked_for_is_begun_all_the_same(
    db: CountingDatabase, doing: Doing
) -> None:
    clock = itertools.count(2_000)
    await add(db, "r1")
    db.late = True
    async with working(db, doing, offer(capacity=4), clock=lambda: next(clock) / 1_000 + 2_000.0, lease_seconds=900.0):
        await doing.until(lambda: doing.finished == ["r1"])
        looked = db.calls["queue_claimed"]
        await add(db, "r2")
        await doing.until(lambda: doing.finished == ["r1", "r2"])
    assert doing.begun == ["r1", "r2"], "each once"
    assert looked > 1
    assert db.calls["queue_claim"] == 2, "it was not claimed a second time"
