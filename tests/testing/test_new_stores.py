"""The stores that tests begin with are what the migrations make, and each is one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest

from foliot.store.open import open_database
from foliot.store.sqlite.file import SqliteConnection, connect
from tests.new_stores import NewFiles

TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
SHAPE = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
SETTINGS = ("auto_vacuum", "journal_mode", "page_size", "user_version", "application_id", "encoding")
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, column_default
  FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2
"""
RULES = """
SELECT pg_get_constraintdef(oid), conrelid::regclass::text
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT indexdef, tablename FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2
"""


async def made(path: Path) -> SqliteConnection:
    await (await open_database(str(path))).close()
    return connect(path, patience=1.0)


def contents(connection: SqliteConnection) -> dict[str, Any]:
    rows: dict[str, Any] = {"": connection.execute(SHAPE).fetchall()}
    for (name,) in connection.execute(TABLES).fetchall():
        hidden = "id, set_back_at, set_back" if name == "store_life" else "*"
        rows[name] = connection.execute(f"SELECT {hidden} FROM {name}").fetchall()
    return rows | {each: connection.execute(f"PRAGMA {each}").fetchall() for each in SETTINGS}


async def test_a_copied_file_is_what_the_migrations_make(
    tmp_path: Path, new_files: NewFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = [await made(tmp_path / "first" / "foliot.db"), await made(tmp_path / "second" / "foliot.db")]
    monkeypatch.setattr("foliot.store.sqlite.file._migrate", new_files.migrate_really)
    real = await made(tmp_path / "real" / "foliot.db")

    assert contents(copied[0]) == contents(copied[1]) == contents(real)
    lives = [each.execute("SELECT incarnation, boot FROM store_life").fetchall()[0] for each in (*copied, real)]
    assert len({incarnation for incarnation, _ in lives}) == 3
    assert len({boot for _, boot in lives}) == 1
    for each in (*copied, real):
        each.close()


@pytest.mark.services
async def test_a_copied_database_is_what_the_migrations_make(service_session, postgres_url: str) -> None:
    found: list[tuple[list[Any], list[Any], str]] = []
    with service_session.database() as empty:
        for url in (postgres_url, empty):
            await (await open_database(url)).close()
            client = await asyncpg.connect(url)
            shape = [list(map(tuple, await client.fetch(each))) for each in (COLUMNS, RULES)]
            found.append((*shape, await client.fetchval("SELECT incarnation FROM store_life")))
            await client.close()
    (columns, rules, life), (other_columns, other_rules, other_life) = found
    assert columns == other_columns
    assert rules == other_rules
    assert life != other_life
