"""The loop around the scheduler: when it looks, and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot.errors import Unavailable
from foliot.resources.validate import validate_document
from foliot.store.base import Database, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.work.triggers.scheduler import LONGEST_REST, Scheduler
from tests.work.task_book import TaskBook


class Watched:
    """A database that counts its reads, can be away, and in which waiting moves the clock of the test."""

    def __init__(self, inner: Database) -> None:
        self.inner = inner
        self.reads = Counter[str]()
        self.writes = 0
        self.away = 0
        self.now = 1_780_300_830.0
        self.waits: list[float] = []
        self.end_at = float("inf")
        self.done = asyncio.Event()

    async def read(self, name: str, /, **params: Any) -> Any:
        self.reads[name] += 1
        if self.away:
            self.away -= 1
            raise Unavailable("the store is away")
        return await self.inner.read(name, **params)

    async def write(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.writes += 1
        return await self.inner.write(body, *args, **kwargs)

    async def wait_for_change(self, seen: object, *, timeout: float) -> None:
        self.waits.append(timeout)
        self.now += timeout
        if self.now >= self.end_at:
            self.done.set()
            await asyncio.Event().wait()

    async def close(self) -> None:
        await self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    database = Watched(await open_database(f"{tmp_path}/foliot.db"))
    yield database
    await database.close()


async def declare(database: Database, name: str, **spec: Any) -> None:
    document, problems = validate_document(
        {"kind": "TaskSchedule", "metadata": {"name": name}, "spec": {"task_ref": "brief", **spec}}
    )
    assert document is not None, problems
    now = getattr(database, "now", None)
    store = SqlResourceStore(database, lambda: pytest.fail("no secrets"), now=lambda: now or time.time())
    await store.write([Put(document)])


async def until(work: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait for the event while the work goes on, then end the work."""
    waiting = asyncio.create_task(event.wait())
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([waiting, work], return_when=asyncio.FIRST_COMPLETED)
        assert event.is_set(), work
    finally:
        for task in (waiting, work):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_an_idle_scheduler_asks_far_less_than_once_a_second(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.work.triggers.scheduler.PACE", 0.0)
    for number in range(20):
        await declare(watched, f"s{number}", schedule="0 0 1 1 *")
    scheduler = Scheduler(watched, _store(watched), TaskBook(), clock=lambda: watched.now)
    await scheduler.tick(watched.now)
    watched.reads.clear()
    watched.writes = 0
    watched.end_at = watched.now + 600
    await until(asyncio.create_task(scheduler.run()), watched.done)
    # What has changed, and whose slots are due: once each at the end of each rest.
    assert sum(watched.reads.values()) <= 2 * 600 / LONGEST_REST + 2
    assert watched.writes == 0


async def test_it_rests_until_a_slot_is_due_and_not_longer(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.work.triggers.scheduler.PACE", 0.0)
    await declare(watched, "minutely", schedule="* * * * *", concurrency_policy="allow")
    book = TaskBook()
    scheduler = Scheduler(watched, _store(watched), book, clock=lambda: watched.now)
    watched.end_at = watched.now + 180
    await until(asyncio.create_task(scheduler.run()), watched.done)
    assert len(book.names) == 4  # the one that had just been due, and three more
    assert max(watched.waits) <= 5.0
    assert all(wait > 0 for wait in watched.waits)


async def test_a_store_that_was_away_is_waited_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("foliot.work.triggers.scheduler.PACE", 0.001)
    await declare(watched, "minutely", schedule="* * * * *", concurrency_policy="allow")
    book = TaskBook()
    scheduler = Scheduler(watched, _store(watched), book, clock=lambda: watched.now)
    watched.away = 5
    watched.end_at = watched.now + 60
    with caplog.at_level(logging.ERROR):
        await until(asyncio.create_task(scheduler.run()), watched.done)
    assert len(book.names) == 2


async def test_what_is_declared_while_it_rests_is_noticed(opened_store: Database) -> None:
    book = TaskBook()
    scheduler = Scheduler(opened_store, _store(opened_store), book)
    work = asyncio.create_task(scheduler.run())
    try:
        await asyncio.sleep(0)
        await declare(opened_store, "now", at="2020-01-01T00:00:00", missed="last")
        async with asyncio.timeout(60):
            while not book.names and not work.done():
                await asyncio.sleep(0.01)
        assert book.names == ["now-20200101-0000"]
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def _store(database: Database) -> SqlResourceStore:
    return SqlResourceStore(database, lambda: pytest.fail("no secrets"))
