"""Each row of the table of causes, with the error that a real database raises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from foliot.common.waits import Waits
from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable
from foliot.store.causes import POSTGRES, SQLITE, UNLISTED, FailureCause, is_away, of_sqlstate, table
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.postgres.driver import explain
from foliot.store.sqlite import file as sqlite_file
from foliot.store.sqlite import writer as sqlite_writer
from foliot.store.sqlite.database import SqliteDatabase
from foliot.store.transaction import Tx, run

# A write of a setting that is called `fail` raises the SQLSTATE that is its value.
RAISES = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = NEW.value; END $$;
CREATE TRIGGER fail BEFORE INSERT ON setting FOR EACH ROW WHEN (NEW.name = 'fail') EXECUTE FUNCTION fail();
"""
# A class is tried with a state of it that has no row of its own.
OF_A_CLASS = {
    "08": "08006", "0A": "0A000", "22": "22003", "23": "23514", "25": "25001", "28": "28P01", "3F": "3F000",
    "40": "40001", "42": "42P01", "53": "53400", "54": "54000", "55": "55000", "57": "57P04", "58": "58030",
}  # fmt: skip


def put(name: str, text: str) -> Tx[int]:
    return (yield from run("setting_put", name=name, value=text))


def matches(error: FoliotError, cause: FailureCause) -> None:
    assert type(error) is cause.error, error.message
    assert error.retryable is cause.retryable
    assert error.http == cause.http
    assert isinstance(error, Unavailable) == (cause.fault in ("store", "worker")), "only runs and callers are refused"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    opened = await PostgresDatabase.open(postgres_url, Waits(lease=6.0))
    yield opened
    await opened.close()


async def test_each_row_of_postgres(database: PostgresDatabase, postgres_url: str) -> None:
    """All in one test: a database for each would cost more than the statements."""
    client = await asyncpg.connect(postgres_url)
    await client.execute(RAISES)
    await client.close()
    states = [OF_A_CLASS.get(state, state) for state in POSTGRES] + ["P0001", "HV000", "ZZ999"]
    for state in states:
        with pytest.raises(FoliotError) as caught:
            await database.write(put, "fail", state)
        matches(caught.value, of_sqlstate(state))
        assert await database.write(put, "a", state) == 1, f"the store goes on after {state}"
    assert of_sqlstate("ZZ999") is UNLISTED


async def test_a_lock_that_another_holds_is_unavailable(database: PostgresDatabase, postgres_url: str) -> None:
    await database.write(put, "a", "1")
    other = await asyncpg.connect(postgres_url)
    async with other.transaction():
        await other.execute("UPDATE setting SET value = 'theirs' WHERE name = 'a'")
        with pytest.raises(Unavailable, match="lock") as caught:
            await database.write(put, "a", "2")
        assert caught.value.details["sqlstate"] == "55P03"
        assert caught.value.retryable
    await other.close()
    assert await database.write(put, "a", "2") == 1


async def test_a_database_that_is_read_only_is_unavailable_until_it_is_not(
    database: PostgresDatabase, postgres_url: str
) -> None:
    name = postgres_url.rpartition("/")[2]
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    late = await PostgresDatabase.open(postgres_url, Waits(lease=6.0))
    try:
        with pytest.raises(Unavailable, match="read-only") as caught:
            await late.write(put, "a", "1")
        assert caught.value.details["sqlstate"] == "25006"
        assert caught.value.retryable
    finally:
        await late.close()
    await admin.execute("SET default_transaction_read_only = off")
    await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    await admin.close()
    assert await database.write(put, "a", "1") == 1


def test_only_a_store_that_is_away_is_waited_for() -> None:
    wrong = asyncpg.InvalidPasswordError("no"), asyncpg.InvalidCatalogNameError("no")
    away = ConnectionRefusedError(), TimeoutError(), asyncpg.CannotConnectNowError("starting")
    assert not any(is_away(explain(error, "here")) for error in wrong)
    assert all(is_away(explain(error, "here")) for error in away)


# --- SQLite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", SQLITE)
def test_each_row_of_sqlite(code: str) -> None:
    error: Any = apsw.exception_for(getattr(apsw, code))
    matches(sqlite_file.explain(error, Path("/somewhere/foliot.db")), SQLITE[code])


async def test_a_file_that_is_held_by_another_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "WRITE_PATIENCE", 0.05)
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    other = apsw.Connection(str(tmp_path / "foliot.db"))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="busy"):
        await database.write(put, "a", "1")
    other.execute("ROLLBACK")
    other.close()
    assert await database.write(put, "a", "1") == 1
    await database.close()


async def test_a_damaged_file_is_the_stores_fault_and_not_the_runs(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    database = await SqliteDatabase.open(path)
    await database.write(put, "a", "x" * 200_000)
    await database.close()
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(Unavailable, match="damaged") as caught:
        await opened_and_written(path)
    assert not caught.value.retryable


async def opened_and_written(path: Path) -> None:
    database = await SqliteDatabase.open(path)
    try:
        await database.write(put, "a", "1")
    finally:
        await database.close()


def test_what_a_run_or_caller_did_wrong_is_never_unavailable() -> None:
    for cause in (*POSTGRES.values(), *SQLITE.values(), UNLISTED):
        assert (cause.error in (Conflict, InvalidInput)) == (cause.fault in ("run", "caller"))
        assert cause.http == (503 if cause.error is Unavailable else cause.error.http)


def test_the_documentation_shows_the_table() -> None:
    """`python -c 'import foliot.store.causes; print(foliot.store.causes.table())'` prints it."""
    page = Path(__file__).parents[2] / "docs" / "failures.md"
    assert table() in page.read_text()
