"""Leases go by the database's clock, whatever a machine takes for the time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foliot.store.claims import claim
from foliot.store.database_clock import DRIFT, MEASURE_EVERY, DatabaseClock, boot
from foliot.store.open import open_database
from foliot.store.sqlite import SqliteDatabase
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


def test_it_is_measured_again_now_and_then_however_the_last_answer_was() -> None:
    machine = Machine()
    clock = DatabaseClock(steady=machine, wall=lambda: 0.0)
    measured(clock, machine, 5_000.0)
    assert not clock.is_stale
    machine.at += MEASURE_EVERY + 1
    assert clock.is_stale
    measured(clock, machine, 5_000.0 + MEASURE_EVERY, took=3.0)
    assert not clock.is_stale


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
        assert abs(second.clock() - second.lease_clock()) > 200.0
        await second.close()
    monkeypatch.undo()
    await first.close()


WRONG = """
import asyncio, sys, time
real = time.time
time.time = lambda: real() + float(sys.argv[2])
from foliot.runtime import Runtime
from foliot.store.claims import claim
from tests.conformance.claims import offer

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        db, runs = runtime.tasking.database, runtime.runs
        now, leased = runtime.clock(), runs.lease_clock()
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
