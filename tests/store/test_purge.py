"""Forgetting much: in small transactions of few statements, and a process that is killed leaves nothing half done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from foliot.store import portions, tasks
from foliot.store.journal.database import SqlJournal
from foliot.store.portions import LEAST, MOST, PAUSE_AFTER, TAKES_AT_MOST, Portions
from foliot.store.sqlite.database import SqliteDatabase
from tests.work.task_kit import Kit

SYSTEMS = {"line": {"agents": ["a", "b", "c"]}}
TASKS = 12
# What must not be there: the child of something that is gone.
ORPHANS = {
    "event": "SELECT COUNT(*) FROM event WHERE run NOT IN (SELECT key FROM run)",
    "use": "SELECT COUNT(*) FROM blob_use WHERE run NOT IN (SELECT key FROM run)",
    "task_event": "SELECT COUNT(*) FROM task_event WHERE task NOT IN (SELECT key FROM task)",
    "task_run": "SELECT COUNT(*) FROM task_run WHERE task NOT IN (SELECT key FROM task)",
    "content": "SELECT COUNT(*) FROM task WHERE plan NOT IN (SELECT digest FROM blob)",
    "pin": "SELECT COUNT(*) FROM run WHERE pin IS NOT NULL AND pin NOT IN (SELECT key FROM run_pin)",
}


async def worked(kit: Kit, count: int) -> None:
    for number in range(count):
        await kit.accept("line", name=f"t{number}")
    await kit.work(rounds=20 * count)


def counts(path: Path) -> dict[str, int]:
    connection = apsw.Connection(str(path))
    tables = ("task", "task_event", "task_run", "run", "event", "blob_use", "run_pin")
    found = {name: connection.execute(f"SELECT COUNT(*) FROM {name}").fetchall()[0][0] for name in tables}
    found |= {f"orphans of {name}": connection.execute(text).fetchall()[0][0] for name, text in ORPHANS.items()}
    connection.close()
    return found


@pytest.fixture
async def db(tmp_path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield database
    await database.close()


def statements_of(db: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what transactions run from now on, each set of parameters as one."""
    found: Counter[str] = Counter()
    write = db.write

    def counted(body: Any, /, *args: Any, **named: Any) -> Any:
        def looked_at(*args: Any, **named: Any) -> Any:
            inner, result = body(*args, **named), None
            while True:
                try:
                    statement = inner.send(result)
                except StopIteration as end:
                    return end.value
                found[statement.name] += len(statement.params) if statement.want == "many" else 1
                result = yield statement

        return write(looked_at, *args, **named)

    monkeypatch.setattr(db, "write", counted)
    return found


@pytest.mark.parametrize("count", [TASKS, 2 * TASKS])
async def test_a_portion_takes_the_same_statements_however_much_is_in_it(db, count, monkeypatch):
    kit = Kit(db, SYSTEMS)
    await worked(kit, count)
    statements = statements_of(db, monkeypatch)
    assert await tasks.purge(db, kit.now + 1) == (count, 3 * count)
    assert set(statements.values()) == {1}, statements
    assert len(statements) <= 14
    await kit.close()


async def test_what_ended_later_stays_and_so_do_its_runs(db, tmp_path):
    kit = Kit(db, SYSTEMS)
    await worked(kit, 2)
    kit.now += 100
    await kit.accept("line", name="young")
    await kit.work()
    assert await tasks.purge(db, kit.now - 50) == (2, 6)
    found = counts(tmp_path / "foliot.db")
    assert (found["task"], found["run"], found["task_run"]) == (1, 3, 3)
    assert not any(found[name] for name in found if name.startswith("orphans"))
    await kit.close()


async def test_a_run_of_a_forgotten_task_that_is_not_old_goes_when_its_time_has_come(db, tmp_path):
    kit = Kit(db, SYSTEMS)
    await worked(kit, 1)
    run = (await kit.tasks.runs("default", "t0"))[0]["run_id"]
    connection = apsw.Connection(str(tmp_path / "foliot.db"))
    connection.execute("UPDATE run SET updated_at = updated_at + 500 WHERE id = ?", (run,))
    connection.close()
    assert await tasks.purge(db, kit.now + 1) == (1, 2)
    assert (await kit.journal.get(run)).id == run
    assert len(await kit.journal.read(run)) > 1
    assert await kit.journal.purge(ended_before=kit.now + 501) == 1
    await kit.close()


async def test_between_portions_what_was_freed_is_given_back(db, monkeypatch):
    monkeypatch.setattr(portions, "FIRST", 2)
    monkeypatch.setattr(portions, "PAUSE_AFTER", 4)
    kit = Kit(db, SYSTEMS)
    await worked(kit, TASKS)
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    clock = iter(float(number) for number in range(1000))  # each portion takes a second: so none grows
    monkeypatch.setattr(portions, "LEAST", 2)
    await tasks.purge(db, kit.now + 1, portions=Portions(pause, clock=lambda: next(clock)))
    assert pauses == TASKS // 4
    await kit.close()


async def test_portions_follow_the_time_that_the_last_one_took():
    now = 0.0
    sizes = Portions(clock=lambda: now)

    async def took(seconds: float) -> int:
        nonlocal now
        sizes.begin()
        now += seconds
        await sizes.end(sizes.size)
        return sizes.size

    first = sizes.size
    assert await took(TAKES_AT_MOST / 100) == 2 * first
    assert await took(TAKES_AT_MOST) == first
    assert await took(1000 * TAKES_AT_MOST) == LEAST
    for _ in range(20):
        largest = await took(0.0)
    assert largest == MOST
    assert PAUSE_AFTER >= MOST


KILLED = """
import asyncio, os, signal, sys
from foliot.store import portions, tasks
from foliot.store.sqlite.database import SqliteDatabase

portions.FIRST = portions.MOST = 3
upto, times = sys.argv[2], int(sys.argv[3])

async def main():
    database = await SqliteDatabase.open(sys.argv[1])
    write, seen = database.write, 0

    def watched(body, /, *args):
        def killing(*args):
            nonlocal seen
            inner, result = body(*args), None
            while True:
                try:
                    statement = inner.send(result)
                except StopIteration as end:
                    return end.value
                if statement.name == upto:
                    seen += 1
                    if seen == times:
                        os.kill(os.getpid(), signal.SIGKILL)
                result = yield statement
        return write(killing, *args)

    database.write = watched
    await tasks.purge(database, 1e12)

asyncio.run(main())
"""


@pytest.mark.parametrize("statement", ["purge_events", "purge_runs", "task_delete_runs", "task_delete"])
async def test_a_purge_that_is_killed_leaves_whole_tasks_and_can_go_on(tmp_path, statement):
    path = tmp_path / "foliot.db"
    db = await SqliteDatabase.open(path)
    kit = Kit(db, SYSTEMS)
    await worked(kit, TASKS)
    await kit.close()
    await db.close()
    full = counts(path)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(path), statement, "2")
    assert await killed.wait() == -signal.SIGKILL
    found = counts(path)
    assert found["task"] == TASKS - 3, "one portion was stored, the next one was not"
    per_task = {name: full[name] // TASKS for name in ("task_event", "task_run", "run", "event")}
    assert {name: found[name] for name in per_task} == {name: 9 * each for name, each in per_task.items()}
    assert not any(found[name] for name in found if name.startswith("orphans"))
    db = await SqliteDatabase.open(path)
    assert await tasks.purge(db, 1e12) == (TASKS - 3, 3 * (TASKS - 3))
    await SqlJournal(db).purge(ended_before=1e12)
    left = await db.read("purge_blobs", before=1e13, since=0.0, after="", count=10)
    await db.close()
    assert left == []
    assert not any(counts(path).values()), counts(path)


async def test_a_portion_that_keeps_nobody_waiting_may_take_longer():
    now = 0.0
    sizes = Portions(takes_at_most=10 * TAKES_AT_MOST, clock=lambda: now)
    sizes.begin()
    now += TAKES_AT_MOST
    await sizes.end(0)
    assert sizes.size > portions.FIRST


async def test_what_is_old_is_forgotten_in_portions_and_what_is_young_stays(
    db: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Many that are as old as one another go together: else a portion that is smaller would never end."""
    connection = apsw.Connection(str(tmp_path / "foliot.db"))
    connection.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
        "INSERT INTO login_attempt (subject, busy_until) SELECT 's' || i, CASE WHEN i <= 300 THEN 1 ELSE i END FROM n"
    )
    monkeypatch.setattr(portions, "MOST", portions.FIRST)
    asked = statements_of(db, monkeypatch)

    gone = await portions.forget_old(db, "attempt_prune", now=1000.0)

    assert gone == 1000
    assert asked["attempt_prune"] == 1 + 700 // portions.FIRST + 1
    assert connection.execute("SELECT COUNT(*), MIN(busy_until) FROM login_attempt").fetchall() == [(1000, 1001.0)]
    connection.close()
