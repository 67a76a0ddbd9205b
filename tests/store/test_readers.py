"""Reads that can become long happen off the event loop, and end: at a deadline, with their caller, with the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot.common.waits import Waits
from foliot.engine.budgets.declared import DeclaredBudgets
from foliot.engine.definition.governance import StoredRules
from foliot.engine.definition.skills import SkillCatalog
from foliot.errors import ReadTooLong, TooManyReads, Unavailable
from foliot.store import queries
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sqlite.database import SqliteDatabase
from foliot.store.sqlite.readers import MOST_THREADS
from foliot.work.tasks.list import TaskList

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) AS tasks FROM n"


class Clock:
    """A clock that stands still. A read that does not end asks it again and again."""

    now = 0.0
    asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now

    async def pass_deadlines(self) -> None:
        """Lets time pass, once a read is at work that does not end."""
        before = self.asked
        async with asyncio.timeout(60):
            while self.asked < before + 5:
                await asyncio.sleep(0.005)
        self.now = 1e9


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def db(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteDatabase]:
    """A store in which counting all tasks never ends, and time stands still."""
    opened = await endless_store(tmp_path, clock, Waits())
    yield opened
    await opened.close()


async def test_the_loop_goes_on_while_a_read_does_not_end(db: SqliteDatabase, clock: Clock) -> None:
    counting = asyncio.ensure_future(db.read("task_phases"))
    await db.read("task_feed_bounds")  # a small one, on the loop itself
    assert await db.read("telemetry_runs") == [], "and other long ones have threads of their own"
    assert not counting.done()

    await clock.pass_deadlines()

    with pytest.raises(ReadTooLong) as raised:
        await counting
    assert raised.value.details["query"] == "task_phases"
    assert "namespace" in (raised.value.hint or "")


async def test_a_list_says_that_there_is_too_much_to_look_through(db: SqliteDatabase, clock: Clock) -> None:
    listing = asyncio.ensure_future(TaskList(db).list())
    await db.read("telemetry_runs")

    await clock.pass_deadlines()

    with pytest.raises(ReadTooLong):
        await listing


async def test_a_read_that_nobody_waits_for_gives_its_thread_back(db: SqliteDatabase) -> None:
    for _ in range(2 * MOST_THREADS):
        given_up = asyncio.ensure_future(db.read("task_phases"))
        await asyncio.sleep(0)
        given_up.cancel()

    assert await db.read("telemetry_runs") == []


async def test_a_store_is_closed_although_a_read_does_not_end(db: SqliteDatabase) -> None:
    counting = asyncio.ensure_future(db.read("task_phases"))
    await db.read("telemetry_runs")

    await db.close()

    with pytest.raises(Unavailable):
        await counting
    with pytest.raises(Unavailable):
        await db.read("telemetry_runs")


async def test_a_read_is_refused_when_no_place_comes_and_no_small_one_waits(tmp_path: Path, clock: Clock) -> None:
    db = await endless_store(tmp_path, clock, Impatient(600.0))
    taken = [asyncio.ensure_future(db.read("task_phases")) for _ in range(MOST_THREADS)]
    await asyncio.sleep(0)

    with pytest.raises(TooManyReads) as raised:
        await db.read("telemetry_runs")

    assert raised.value.retryable
    assert raised.value.details["query"] == "telemetry_runs"
    assert await rules_of(db) == 0
    assert not any(each.done() for each in taken)
    await db.close()


async def test_a_deadline_counts_from_the_question(tmp_path: Path, clock: Clock) -> None:
    db = await endless_store(tmp_path, clock, Waits(6000.0))
    taken = [asyncio.ensure_future(db.read("task_phases")) for _ in range(MOST_THREADS)]
    waiting = asyncio.ensure_future(db.read("task_phases"))
    await asyncio.sleep(0)
    clock.now = 1e9  # while it stands in line

    for each in (*taken, waiting):
        with pytest.raises(ReadTooLong):
            await each
    await db.close()


async def test_a_read_after_the_threads_were_stopped_is_refused(db: SqliteDatabase) -> None:
    """As one does that another thread asks for while the store is being closed."""
    inside: Any = db
    await asyncio.to_thread(inside._threads.stop)

    with pytest.raises(Unavailable, match="closed"):
        await db.read("telemetry_runs")


async def test_what_decides_about_a_call_is_never_among_the_long_reads(tmp_path: Path) -> None:
    """Rules that have to be read anew must not stand behind the lists that people ask for."""
    db = await SqliteDatabase.open(tmp_path / "foliot.db")
    inside: Any = db
    inside._long = asked = Asked()

    assert await rules_of(db) == 0
    resources = SqlResourceStore(db, no_keys)
    await DeclaredBudgets(resources, clock=lambda: 0.0).basis("default")
    await SkillCatalog(resources).of_user("ann", "default")
    await db.close()

    assert {"feed_bounds", "resource_list"} <= asked.names
    assert not asked.names & queries.long_reads()


class Impatient(Waits):
    """Bounds of which only that for a place is short."""

    @property
    def place(self) -> float:
        return 0.05


class Asked:
    """Stands for the long reads, of which there are none, and notes each query that is looked up."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        self.names.add(name)
        return False


def no_keys() -> Any:
    raise AssertionError("nothing is sealed here")


async def rules_of(db: Any) -> int:
    """Returns how many rules the namespace has, read anew."""
    rules = await StoredRules(SqlResourceStore(db, no_keys), clock=lambda: 0.0).rules("default")
    return len(rules.grants)


async def endless_store(folder: Path, clock: Clock, waits: Waits) -> SqliteDatabase:
    opened = await SqliteDatabase.open(folder / "foliot.db", waits)
    inside: Any = opened
    inside._texts = {**queries.load(), "task_phases": ENDLESS, "task_keys_everywhere": ENDLESS}
    inside._threads._clock = clock
    return opened


@pytest.mark.services
async def test_postgresql_keeps_places_for_small_reads(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from foliot.store.postgres import database as postgres

    loaded = postgres.load_for_postgres
    sleeps = "SELECT 'x' AS phase, 1 AS tasks FROM (SELECT pg_sleep(600)) AS asleep"

    def load(name: str) -> tuple[str, tuple[str, ...]]:
        return (sleeps, ()) if name == "task_phases" else loaded(name)

    monkeypatch.setattr(postgres, "load_for_postgres", load)
    opened = await postgres.PostgresDatabase.open(postgres_url, Impatient(600.0))
    taken = [asyncio.ensure_future(opened.read("task_phases")) for _ in range(2 * postgres.POOL)]
    try:
        refused, _ = await asyncio.wait(taken, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(TooManyReads):
            refused.pop().result()
        assert await rules_of(opened) == 0
        with pytest.raises(TooManyReads):
            await opened.read("telemetry_runs")
    finally:
        for each in taken:
            each.cancel()
        await asyncio.gather(*taken, return_exceptions=True)
        await opened.close()


@pytest.mark.services
async def test_postgresql_stops_a_read_that_takes_too_long(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from foliot.store.postgres import database as postgres

    loaded = postgres.load_for_postgres

    def load(name: str) -> tuple[str, tuple[str, ...]]:
        return (ENDLESS, ()) if name == "task_phases" else loaded(name)

    monkeypatch.setattr(postgres, "load_for_postgres", load)
    opened = await postgres.PostgresDatabase.open(postgres_url, Waits(1.0))
    try:
        with pytest.raises(ReadTooLong):
            await opened.read("task_phases")
        assert await opened.read("telemetry_runs") == []
    finally:
        await opened.close()
