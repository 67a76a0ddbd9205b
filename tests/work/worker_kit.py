"""A worker for tests: on a real store, with runs that end when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from foliot.bus.base import Ticket
from foliot.bus.local import LocalTransport
from foliot.errors import Unavailable
from foliot.store.journal.base import Lease, LeaseLost
from foliot.store.journal.database import SqlJournal
from foliot.store.queue.claims import take
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import list_workers
from foliot.store.sqlite.database import SqliteDatabase
from foliot.work.worker.worker import LookPace, Worker


class CountingDatabase:
    """A database that counts the statements that go through it, and can be made not to answer."""

    def __init__(self, inner: SqliteDatabase) -> None:
        self._inner = inner
        self.calls = Counter[str]()
        self.away = False
        self.mute: set[str] = set()  # statements whose transactions are stored, and whose next answer is lost
        self.late = False  # the next claim is stored only when it was looked for, its answer given up long before
        self._claim: tuple[Any, ...] = ()

    async def read(self, name: str, /, **params: Any) -> Any:
        self.calls[name] += 1
        self._check()
        found = await self._inner.read(name, **params)
        if name == "queue_claimed" and self._claim:
            claim, self._claim = self._claim, ()
            await self.write(*claim)
        return found

    async def write(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._check()
        if self.late and body is take:
            self.late, self._claim = False, (body, *args)
            raise Unavailable("the change may or may not be stored")

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

        before = self.calls.copy()
        result = await self._inner.write(counted)
        if lost := {name for name in self.mute if self.calls[name] > before[name]}:
            self.mute -= lost
            raise Unavailable("the connection was lost during the commit")
        return result

    def change_mark(self) -> object:
        return self._inner.change_mark()

    async def wait_for_change(self, seen: object, *, timeout: float) -> None:
        await self._inner.wait_for_change(seen, timeout=timeout)

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

    async def prepare(self, leases: Sequence[Lease]) -> None: ...

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
            await asyncio.wait_for(self.changed.wait_for(condition), 60)


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


@contextlib.asynccontextmanager
async def working(
    db: CountingDatabase, doing: Doing, by: Offer, transport: Any = None, **options: Any
) -> AsyncIterator[tuple[Worker, asyncio.Task[None]]]:
    options = {"pace": LookPace(lambda: 0.0, floor=0.05, ceiling=0.2), "clock": lambda: 2_000.0, **options}
    worker = Worker(db, transport or LocalTransport(), doing, by, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker, task
    finally:
        if not task.done():
            worker.drain()
            worker.drain()
        await asyncio.wait_for(task, 60)


def slow() -> LookPace:
    """A worker that would look again by itself after the test is long over."""
    return LookPace(lambda: 0.0, floor=1000.0, ceiling=1000.0)


async def phase_of(db: CountingDatabase) -> str:
    (info,) = await list_workers(db)
    return info.phase


async def until_phase(db: CountingDatabase, phase: str) -> None:
    async with asyncio.timeout(60):
        while [info.phase for info in await list_workers(db)] != [phase]:
            await asyncio.sleep(0.005)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
