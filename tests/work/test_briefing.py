"""What is read of claimed runs at once, and when a run must be read by itself after all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.engine.driver.journal import signal
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import CancelRequested, RunClaimed, RunCreated
from foliot.store.journal.base import Entry
from foliot.store.sqlite.database import SqliteDatabase
from foliot.work.tasks.base import Command
from foliot.work.worker.performer import Briefs
from tests.journal_links import linked
from tests.work.task_kit import Kit
from tests.work.worker_kit import CountingDatabase

SYSTEMS = {"line": {"agents": ["a", "b", "c"]}}


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(await SqliteDatabase.open(tmp_path / "foliot.db"))
    yield database
    await database.close()


@pytest.fixture
def kit(db: CountingDatabase) -> Kit:
    return Kit(db, SYSTEMS)


async def accept(kit: Kit, *names: str, message: str = "go") -> None:
    for name in names:
        await kit.tasks.accept(Command("system", "line", name=name, message=message))


def briefs(kit: Kit) -> Briefs:
    return kit.performer._briefs


async def test_one_query_says_what_all_of_them_begin_with(kit: Kit, db: CountingDatabase) -> None:
    await accept(kit, *(f"t{n}" for n in range(10)))
    db.calls.clear()
    await kit.work()
    for n in range(10):
        assert (await kit.tasks.get("default", f"t{n}")).phase == "succeeded"
    assert db.calls["queue_brief"] == 3, "once for each agent in the line, not for each run"
    assert [db.calls[name] for name in ("task_of_run", "event_read", "signal_list")] == [0, 0, 0]


async def test_a_run_that_was_never_begun_is_known_by_its_first_event(kit: Kit) -> None:
    await accept(kit, "t1")
    (lease,) = await kit.claim()
    await kit.performer.prepare([lease])
    brief = briefs(kit).of(lease)
    assert brief is not None
    assert (brief.task.id, brief.quiet) == ("default/t1", True)
    assert brief.told is not None
    (first,) = brief.told.facts
    assert isinstance(first[1], RunCreated)
    await kit.performer.perform(lease)
    assert briefs(kit).of(lease) is None, "it is needed once"


async def test_what_was_said_to_a_run_before_it_was_taken_is_heard_first(kit: Kit) -> None:
    await accept(kit, "t1")
    (lease,) = await kit.claim()
    await kit.journal.signal(signal(lease.run_id, CancelRequested("ann", "enough"), kit.now))
    await kit.performer.prepare([lease])
    brief = briefs(kit).of(lease)
    assert brief is not None
    assert not brief.quiet
    await kit.performer.perform(lease)
    assert kit.asked == [], "no model was asked"


async def test_what_was_read_under_one_lease_says_nothing_under_the_next(kit: Kit) -> None:
    await accept(kit, "t1")
    (lease,) = await kit.claim()
    await kit.performer.prepare([lease])
    await kit.journal.append(lease, [], phase="pending", due=0.0)
    (again,) = await kit.claim()
    assert briefs(kit).of(again) is None


async def test_a_run_that_somebody_had_in_hand_before_is_read_in_full(kit: Kit) -> None:
    await accept(kit, "t1")
    (lease,) = await kit.claim()
    claimed = RunClaimed(1, "somebody", lease.epoch)
    entry = Entry(2, kit.now, type_of(claimed), encode(claimed))
    told = await kit.journal.read(lease.run_id)
    await kit.journal.append(lease, linked(lease.run_id, told, [entry]), phase="pending", due=0.0)
    (again,) = await kit.claim()
    await kit.performer.prepare([again])
    brief = briefs(kit).of(again)
    assert brief is not None
    assert brief.told is None
    await kit.performer.perform(again)
    assert kit.asked == [("a", "go")]


async def test_a_large_first_message_is_read_where_it_is_stored(kit: Kit) -> None:
    await accept(kit, "t1", message="x" * 100_000)
    (lease,) = await kit.claim()
    await kit.performer.prepare([lease])
    brief = briefs(kit).of(lease)
    assert brief is not None
    assert brief.told is None
    await kit.performer.perform(lease)
    assert kit.asked[0] == ("a", "x" * 100_000)


async def test_a_store_that_does_not_answer_leaves_each_run_to_itself(kit: Kit, db: CountingDatabase) -> None:
    await accept(kit, "t1")
    (lease,) = await kit.claim()
    db.away = True
    await kit.performer.prepare([lease])
    db.away = False
    assert briefs(kit).of(lease) is None
    await kit.performer.perform(lease)
    assert kit.asked == [("a", "go")]


async def test_the_tasks_that_are_kept_are_bounded(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.work.worker.performer.MOST_TASKS", 3)
    await accept(kit, *(f"t{n}" for n in range(10)))
    await kit.work()
    assert len(briefs(kit)._tasks) == 3
    assert (await kit.tasks.get("default", "t9")).phase == "succeeded"
