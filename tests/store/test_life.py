"""A store that went back in time is noticed by whoever holds something newer, said, and kept for `foliot doctor`."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
import pytest

from foliot.store.backup import back_up, restore
from foliot.store.incarnation import store_life
from foliot.store.journal.base import Entry, StoreSetBack
from foliot.store.journal.database import SqlJournal
from foliot.store.queue.claims import claim
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.claims import add, offer
from tests.work.worker_kit import CountingDatabase, Doing, slow, until, working


@pytest.fixture
async def db(tmp_path: Path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield database
    await database.close()


def set_back(path: Path, statement: str) -> None:
    """Bring the store to where it was before, as an old replica would."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(20_000)  # the worker writes meanwhile
    connection.execute(statement)
    connection.close()


async def held(db: SqliteDatabase):
    await add(db, "r1", due_at=0.0)
    journal = SqlJournal(db)
    lease = await journal.claim("r1", worker="w1", now=10.0, until=40.0)
    await journal.append(lease, [Entry(2, 11.0, "x", b"{}"), Entry(3, 12.0, "x", b"{}")])
    return journal, lease


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE run SET epoch = epoch - 1", "is at epoch 0, and w1 was given 1"),
        ("UPDATE run SET last_seq = 1", "has 1 events, and w1 has stored 3"),
    ],
)
async def test_a_holder_that_knows_more_than_the_store_is_told(db: SqliteDatabase, statement: str, what: str) -> None:
    journal, lease = await held(db)
    set_back(db.path, statement)
    with pytest.raises(StoreSetBack, match=what):
        await journal.append(lease, [Entry(4, 13.0, "x", b"{}")])
    if "last_seq" not in statement:
        with pytest.raises(StoreSetBack, match=what):
            await journal.renew([lease], until=50.0)


async def test_a_run_that_another_took_is_lost_and_no_more(db: SqliteDatabase) -> None:
    journal, lease = await held(db)
    await journal.claim("r1", worker="w2", now=100.0, until=140.0)
    assert (await journal.renew([lease], until=150.0)).lost == {"r1"}


@pytest.mark.parametrize(
    "statement",
    ["UPDATE worker SET beats = 1", "UPDATE store_life SET incarnation = 'another'"],
    ids=["fewer signs of life", "another incarnation"],
)
async def test_a_worker_that_has_seen_more_stops_and_says_so(
    db: SqliteDatabase, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting = CountingDatabase(db)

    async def work() -> None:
        async with working(counting, Doing(SqlJournal(db)), offer(), pace=slow(), heartbeat=0.01) as (_, task):
            await until(lambda: counting.calls["worker_beat"] >= 4)
            set_back(db.path, statement)
            await until(task.done)

    with pytest.raises(StoreSetBack, match="the store went back in time"):
        await work()
    assert "THE STORE WENT BACK IN TIME" in caplog.text
    life = await store_life(db)
    assert life.set_back_at == 2_000.0
    assert life.set_back in caplog.text


async def test_nothing_is_claimed_from_another_incarnation(db: SqliteDatabase) -> None:
    await add(db, "r1", due_at=0.0)
    known = (await store_life(db)).incarnation
    set_back(db.path, "UPDATE store_life SET incarnation = 'another'")
    with pytest.raises(StoreSetBack, match="another store than before"):
        await claim(db, offer(), want=1, now=10.0, until=40.0, incarnation=known)
    assert (await claim(db, offer(), want=1, now=10.0, until=40.0, incarnation="another")).leases


async def test_a_restored_backup_is_another_incarnation(db: SqliteDatabase, tmp_path: Path) -> None:
    before = await store_life(db)
    back_up(db.path, tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "restored.db")
    restored = await SqliteDatabase.open(tmp_path / "restored.db")
    after = await store_life(restored)
    assert after.incarnation != before.incarnation
    assert msgspec.structs.replace(after, incarnation=before.incarnation) == before
    await restored.close()
