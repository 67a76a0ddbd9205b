"""A store whose file is deleted or replaced under a process says so at the next commit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from foliot.errors import Unavailable
from foliot.store.journal.database import SqlJournal
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.claims import add


@pytest.fixture
async def db(tmp_path: Path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield database
    await database.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("written", [True, False], ids=["written before", "never written"])
async def test_a_deleted_file_refuses_the_next_commit_and_every_read_after_it(
    db: SqliteDatabase, suffix: str, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.store.sqlite.file._MOMENT", -1.0)
    if written:
        await add(db, "r1")
    os.unlink(f"{db.path}{suffix}")
    with pytest.raises(Unavailable, match=r"was (deleted|replaced) while this process had it open") as refused:
        await add(db, "r2")
    assert refused.value.retryable is False
    with pytest.raises(Unavailable, match="nothing is stored any more"):
        await db.read("queue_depth", now=0.0)
    with pytest.raises(Unavailable, match="nothing is stored any more"):
        await add(db, "r3")


async def test_a_replaced_file_refuses_the_next_commit_and_the_new_one_is_left_alone(
    db: SqliteDatabase, tmp_path: Path
) -> None:
    await add(db, "r1")
    other = await SqliteDatabase.open(tmp_path / "other.db")
    await add(other, "theirs")
    await other.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{db.path}{suffix}").unlink()
    shutil.move(tmp_path / "other.db", db.path)
    new = await SqliteDatabase.open(db.path)
    await add(new, "newer")
    with pytest.raises(Unavailable, match="was replaced"):
        await add(db, "r2")
    await db.close()
    assert Path(f"{db.path}-wal").stat().st_size, "the log of the new store is not removed with the old one"
    await add(new, "newest")
    found = await SqlJournal(new).list()
    assert {run.id for run in found} == {"theirs", "newer", "newest"}
    await new.close()


async def test_other_processes_that_come_and_go_change_nothing(db: SqliteDatabase) -> None:
    for number in range(3):
        other = await SqliteDatabase.open(db.path)
        await add(other, f"o{number}")
        await other.close()
        await add(db, f"r{number}")
