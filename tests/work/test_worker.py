"""The worker's loop over a real store: what it takes, when it looks, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from foliot.bus.base import Ticket
from foliot.bus.local import LocalTransport
from foliot.errors import Unavailable
from foliot.store.journal import SqlJournal
from foliot.store.placement import Offer
from foliot.store.runs import Lease, LeaseLost
from foliot.store.sqlite import SqliteDatabase
from foliot.store.workers import list_workers
from foliot.work.pace import Pace
from foliot.work.worker import Worker
from tests.conformance.claims import add, offer


class CountingDatabase:
    """A database that counts what goes through it, and can be made not to answer."""

    def __init__(self, inner: SqliteDatabase) -> None:
        self._inner = inner
        self.calls = Counter[str]()
        self.away = False

    async def read(self, name: str, /, **params: Any) -> Any:
        self._count(name)
        return await self._inner.read(name, **params)

    async def write(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._count(body.__name__)
        return await self._inner.write(body, *args, **kwargs)

    async def wait_for_change(self, *, timeout: float) -> None:
        await self._inner.wait_for_change(timeout=timeout)

    async def close(self) -> None:
        await self._inner.close()

    def _count(self, name: str) -> None:
        self.calls[name] += 1
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
    slow = Pace(lambda: 0.0, floor=1000.0, ceiling=1000.0)
    async with working(db, doing, offer(), transport, pace=slow):
        await until(lambda: db.calls["queue_lines"] == 1)
        await add(db, "r1")
        await transport.publish([Ticket("t1", "r1", "default", "clerk")])
        await doing.until(lambda: doing.finished == ["r1"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
