"""The worker's loop over a real store: what it takes, when it looks, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from foliot.bus.base import Ticket
from foliot.bus.local import LocalTransport
from foliot.errors import Unavailable
from foliot.store.bounds import Limit, set_limit
from foliot.store.journal import SqlJournal
from foliot.store.placement import Offer
from foliot.store.runs import Lease, LeaseLost
from foliot.store.sqlite import SqliteDatabase
from foliot.store.workers import list_workers, register
from foliot.work.pace import Pace
from foliot.work.worker import LATEST, Worker
from tests.conformance.claims import add, offer, take


class CountingDatabase:
    """A database that counts the statements that go through it, and can be made not to answer."""

    def __init__(self, inner: SqliteDatabase) -> None:
        self._inner = inner
        self.calls = Counter[str]()
        self.away = False

    async def read(self, name: str, /, **params: Any) -> Any:
        self.calls[name] += 1
        self._check()
        return await self._inner.read(name, **params)

    async def write(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._check()

        def counted() -> Any:
            running = body(*args, **kwargs)
            statement = next(running)
            while True:
                self.calls[statement.name] += 1
                result = yield statement
                try:
                    statement = running.send(result)
                except StopIteration as end:
                    return end.value

        return await self._inner.write(counted)

    async def wait_for_change(self, *, timeout: float) -> None:
        await self._inner.wait_for_change(timeout=timeout)

    async def close(self) -> None:
        await self._inner.close()

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the store is away")


class Doing:
    """A performer whose runs end when the test says so; cancelled ones are handed back, as the real one does."""

    def __init__(self, journal: SqlJournal) -> None:
        self._journal = journal
        self.at_work: dict[str, Lease] = {}
        self.most = 0
        self.begun: list[str] = []
        self.finished: list[str] = []
        self.changed = asyncio.Condition()
        self.gates: dict[str, asyncio.Event] = {}
        self.hold_all = False
        self.trouble: dict[str, Exception] = {}

    def gate(self, run_id: str) -> asyncio.Event:
        return self.gates.setdefault(run_id, asyncio.Event())

    async def perform(self, lease: Lease) -> None:
        self.begun.append(lease.run_id)
        self.at_work[lease.run_id] = lease
        self.most = max(self.most, len(self.at_work))
        await self._tell()
        try:
            if (error := self.trouble.pop(lease.run_id, None)) is not None:
                raise error
            if self.hold_all or lease.run_id in self.gates:
                await self.gate(lease.run_id).wait()
            await self._journal.append(lease, [], phase="succeeded")
            self.finished.append(lease.run_id)
        except LeaseLost:
            pass
        except asyncio.CancelledError:
            await asyncio.shield(self._journal.append(lease, [], phase="pending"))
            raise
        finally:
            del self.at_work[lease.run_id]
            await asyncio.shield(self._tell())

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(condition), 20)


@pytest.fixture
async def db(tmp_path) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(await SqliteDatabase.open(tmp_path / "foliot.db"))
    yield database
    await database.close()


@pytest.fixture
def doing(db: CountingDatabase) -> Doing:
    return Doing(SqlJournal(db))


@contextlib.asynccontextmanager
async def working(
    db: CountingDatabase, doing: Doing, by: Offer, transport: Any = None, **options: Any
) -> AsyncIterator[tuple[Worker, asyncio.Task[None]]]:
    options = {"pace": Pace(lambda: 0.0, floor=0.05, ceiling=0.2), "clock": lambda: 2_000.0, **options}
    worker = Worker(db, transport or LocalTransport(), doing, by, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker, task
    finally:
        if not task.done():
            worker.drain()
            worker.drain()
        await asyncio.wait_for(task, 20)


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
        await asyncio.wait_for(task, 20)
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
        await asyncio.wait_for(task, 20)
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
        await asyncio.wait_for(task, 20)
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
    await asyncio.wait_for(worker.run(), 20)
    assert len(doing.finished) == 7


async def test_a_worker_whose_name_another_process_took_ends(
    db: CountingDatabase, doing: Doing, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(db, doing, offer(), heartbeat=0.02) as (_, task):
        await until_phase(db, "ready")
        await register(db, offer(identity="another"), now=2_000.0, is_gone=lambda _: False)
        await asyncio.wait_for(task, 20)
    assert "took the name w1" in caplog.text
    (info,) = await list_workers(db)
    assert (info.identity, info.phase) == ("another", "ready")


# --- deliveries ------------------------------------------------------------------------------------------------------


class Letters:
    """A transport that hands out what the test gives it, and writes down what became of each."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[Letter] = asyncio.Queue()
        self.said: list[tuple[str, str, float]] = []

    def send(self, run_id: str) -> None:
        self.waiting.put_nowait(Letter(Ticket(f"t-{run_id}", run_id, "default", "clerk"), self.said))

    async def publish(self, tickets: Sequence[Ticket]) -> None: ...

    async def receive(self, *, want: int, timeout: float) -> Sequence[Letter]:
        return [await self.waiting.get()]

    async def close(self) -> None: ...


class Letter:
    def __init__(self, ticket: Ticket, said: list[tuple[str, str, float]]) -> None:
        self.ticket = ticket
        self._said = said

    async def done(self) -> None:
        self._said.append((self.ticket.run_id, "done", 0.0))

    async def again(self, *, delay: float) -> None:
        self._said.append((self.ticket.run_id, "again", delay))

    async def extend(self) -> None:
        self._said.append((self.ticket.run_id, "extend", 0.0))


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
        await until(lambda: db.calls["queue_lines"] >= seen + 2)
        assert letters.said[0][:2] == ("r1", "again")
        db.away = False
        await doing.until(lambda: doing.finished == ["r1"])
    assert caplog.text.count("goes on trying: the store is away") == 1
    assert caplog.text.count("the store answers again") == 1


async def test_a_worker_that_starts_before_its_store_waits_for_it(db: CountingDatabase, doing: Doing) -> None:
    db.away = True
    async with working(db, doing, offer()):
        await until(lambda: db.calls["worker_alive"] >= 1)
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


def test_an_idle_worker_makes_fewer_than_one_query_a_second_in_all(tmp_path) -> None:
    async def idle() -> tuple[Counter[str], float]:
        loop = asyncio.get_running_loop()
        inner = await SqliteDatabase.open(tmp_path / "foliot.db")
        db = CountingDatabase(inner)

        async def timers(now: float) -> float | None:
            for _ in range(2):  # what the real one costs
                await db.read("queue_depth", now=now)
            return None

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
        calls, passed = runner.run(idle())
    assert calls.total() / passed < 0.9
    assert calls["queue_lines"] >= 100  # and it does look


def slow() -> Pace:
    """A worker that would look again by itself after the test is long over."""
    return Pace(lambda: 0.0, floor=1000.0, ceiling=1000.0)


async def phase_of(db: CountingDatabase) -> str:
    (info,) = await list_workers(db)
    return info.phase


async def until_phase(db: CountingDatabase, phase: str) -> None:
    async with asyncio.timeout(20):
        while [info.phase for info in await list_workers(db)] != [phase]:
            await asyncio.sleep(0.005)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
