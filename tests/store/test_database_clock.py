"""Leases go by the database's clock, whatever a machine takes for the time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from foliot.common.cancellation import stop_tasks
from foliot.common.threads import on_thread
from foliot.errors import Unavailable
from foliot.store import database_clock
from foliot.store.database_clock import DRIFT, MEASURE_EVERY, DatabaseClock, boot, follow
from foliot.store.open import open_database
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.queue.claims import claim
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.claims import add, offer

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/foliot.db"
    return request.getfixturevalue("postgres_url")


class Machine:
    """A steady clock in a test's hands."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def measured(clock: DatabaseClock, machine: Machine, theirs: float, *, took: float = 0.0) -> None:
    asked = machine.at
    machine.at += took
    clock.measured(theirs, asked, machine.at)


@pytest.mark.parametrize("off", [300.0, -300.0])
def test_a_wrong_clock_of_the_machine_does_not_count(off: float) -> None:
    machine = Machine()
    clock = DatabaseClock(steady=machine, wall=lambda: 5_000.0 + off)
    assert clock() == 5_000.0 + off, "until it was measured there is nothing else"
    measured(clock, machine, 5_000.0)
    machine.at += 60.0
    assert clock() == 5_060.0


def test_a_slow_answer_does_not_spoil_a_good_measurement_until_that_is_old() -> None:
    machine = Machine()
    clock = DatabaseClock(steady=machine, wall=lambda: 0.0)
    measured(clock, machine, 5_000.0, took=0.002)
    before = clock() - machine.at
    measured(clock, machine, before + machine.at + 1.2, took=2.0)  # anything within two seconds may be true
    assert clock() - machine.at == before
    machine.at += 1.5 / DRIFT
    measured(clock, machine, before + machine.at + 1.2, took=2.0)
    assert clock() - machine.at != before


def test_a_database_whose_clock_was_set_is_followed_and_told(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = DatabaseClock(steady=machine, wall=lambda: 0.0)
    measured(clock, machine, 5_000.0)
    measured(clock, machine, 5_300.0, took=0.5)
    assert clock() == pytest.approx(5_300.25)
    assert "the database's clock was set, by +" in caplog.text


def test_it_knows_for_how_long_it_was_not_measured_however_good_the_last_answer_was() -> None:
    machine = Machine()
    clock = DatabaseClock(steady=machine, wall=lambda: 0.0)
    measured(clock, machine, 5_000.0)
    machine.at += MEASURE_EVERY
    assert clock.unmeasured == MEASURE_EVERY
    measured(clock, machine, 5_000.0 + MEASURE_EVERY, took=3.0)
    assert clock.unmeasured == 0.0


# What a server does that cannot say what time it is, for those who look for functions in `public` first.
SAYS_NOTHING = """
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'no time'; END $$
"""


@pytest.mark.services
async def test_any_thread_may_ask_postgres_for_its_time(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that is a plain function asks on its own thread whether its run's lease still holds."""
    database = await PostgresDatabase.open(postgres_url)
    monkeypatch.setattr(database_clock, "MEASURE_EVERY", 0.0)  # measured too long ago, at every look
    try:
        assert abs(await on_thread(database.lease_clock) - database.lease_clock()) < 60.0
    finally:
        await database.close()


@pytest.mark.services
async def test_the_clock_of_postgres_is_measured_while_nobody_asks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_clock, "MEASURE_EVERY", 0.001)
    real, again = DatabaseClock.measured, asyncio.Event()
    count = 0

    def measured(self: DatabaseClock, theirs: float, asked: float, answered: float) -> None:
        nonlocal count
        real(self, theirs, asked, answered)
        count += 1
        if count == 4:
            again.set()

    monkeypatch.setattr(DatabaseClock, "measured", measured)
    database = await PostgresDatabase.open(postgres_url)
    await asyncio.wait_for(again.wait(), 60)
    await database.close()
    assert {task.get_name() for task in asyncio.all_tasks() if "follow" in repr(task)} == set()


@pytest.mark.services
async def test_postgres_is_not_opened_without_a_measured_clock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await PostgresDatabase.open(postgres_url)).close()
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 300.0)
    await at(postgres_url, SAYS_NOTHING)
    with pytest.raises(Unavailable):
        await PostgresDatabase.open(f"{postgres_url}?search_path=public,pg_catalog")


async def test_a_clock_that_cannot_be_measured_for_long_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "foliot.store.database_clock")
    monkeypatch.setattr(database_clock, "MEASURE_EVERY", 0.0)
    machine, over = Machine(), asyncio.Event()
    clock = DatabaseClock(steady=machine, wall=lambda: 0.0)
    measured(clock, machine, 5_000.0)
    told: list[int] = []

    async def measure() -> None:
        machine.at += MEASURE_EVERY
        told.append(caplog.text.count("could not be measured for"))
        if len(told) < 12:
            raise ConnectionResetError
        measured(clock, machine, 5_000.0 + 12 * MEASURE_EVERY)
        if len(told) > 12:
            over.set()

    following = asyncio.create_task(follow(clock, measure))
    await asyncio.wait_for(over.wait(), 60)
    await stop_tasks(following)
    assert told[:13] == [0] * 7 + [1] * 6
    assert "is measured again" in caplog.text
    assert clock() > 5_000.0


async def at(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_processes_on_one_file_share_a_clock_that_nobody_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not boot():
        pytest.skip("this system has no clock that counts from its boot for all processes")
    first = await SqliteDatabase.open(tmp_path / "foliot.db")
    real = time.time
    for off in (300.0, -300.0):
        monkeypatch.setattr(time, "time", lambda off=off: real() + off)
        second = await SqliteDatabase.open(tmp_path / "foliot.db")
        assert abs(second.lease_clock() - first.lease_clock()) < 100.0
        assert abs(time.time() - second.lease_clock()) > 200.0
        await second.close()
    monkeypatch.undo()
    await first.close()


WRONG = """
import asyncio, sys, time
real = time.time
time.time = lambda: real() + float(sys.argv[2])
from foliot.runtime.runtime import Runtime
from foliot.store.queue.claims import claim
from tests.conformance.claims import offer

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        db, runs = runtime.inside.tasking.database, runtime.inside.runs
        now, leased = runtime.inside.clock(), runs.lease_clock()
        found = await claim(db, offer(identity="thief"), want=9, now=now, leased=leased, until=0.0)
        left = [info.id for info in await runs.journal.list() if runs.is_left_alone(info)]
        print([lease.run_id for lease in found.leases], left)

asyncio.run(main())
"""


@pytest.mark.parametrize("url", DATABASES, indirect=True)
@pytest.mark.parametrize("off", ["300", "-300"])
async def test_a_process_whose_clock_is_minutes_off_steals_nothing(url: str, off: str) -> None:
    database = await open_database(url)
    await add(database, "held", due_at=0.0)
    now = database.lease_clock()
    held = await claim(database, offer(identity="holder"), want=1, now=time.time(), leased=now, until=now + 30.0)
    assert [lease.run_id for lease in held.leases] == ["held"]
    asked = await asyncio.create_subprocess_exec(sys.executable, "-c", WRONG, url, off, stdout=subprocess.PIPE)
    said, _ = await asked.communicate()
    assert said.decode().strip() == "[] []"
    row = (await database.read("run_get", id="held"))[0]
    assert (row["worker"], row["lease_until"]) == ("holder", now + 30.0)
    await database.close()
