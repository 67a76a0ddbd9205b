"""Migrations: the schema is their sum, and a database with data is brought up to date in place.

There is one so far. Those behind it are made up here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from foliot.errors import FoliotError, InvalidInput
from foliot.store import schema
from foliot.store.open import open_database
from foliot.store.sqlite import file as sqlite_file
from foliot.store.transaction import run
from tests.made_up_migrations import NEWEST, go_by, write_migrations

pytestmark = pytest.mark.usefixtures("really_migrated")

TAGS = """
-- only: sqlite
CREATE TABLE tag (name TEXT PRIMARY KEY, of BIGINT NOT NULL);
-- only: postgres
CREATE TABLE tag (of BIGINT NOT NULL, name TEXT PRIMARY KEY);
-- only: both
INSERT INTO tag (name, of) SELECT name, value FROM counter WHERE name = 'tagged';
"""
COLOURS = "ALTER TABLE tag ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';"
HALF = "CREATE TABLE half (a TEXT);\nCREATE TABLE half (a TEXT);"
TWICE = "CREATE UNIQUE INDEX resource_once ON resource (kind);"
ROW = """
INSERT INTO resource (key, kind, namespace, name, version, document, owners)
VALUES ('{0}', 'Agent', 'd', '{0}', 1, '', '{{}}')
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any table."""
    if request.param == "sqlite":
        return str(tmp_path / "foliot.db")
    return request.getfixturevalue("postgres_url")


async def do(url: str, text: str) -> list[tuple[Any, ...]]:
    """Run SQL beside Foliot; returns the rows."""
    if not url.startswith("postgresql:"):
        file = apsw.Connection(url)
        try:
            return [tuple(row) for row in file.execute(text)]
        finally:
            file.close()
    server = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await server.fetch(text)]
    finally:
        await server.close()


async def versions(url: str) -> list[tuple[Any, ...]]:
    return await do(url, "SELECT version FROM schema_version ORDER BY version")


async def test_a_store_with_data_is_brought_up_to_date_in_place(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await open_database(url)
    await old.write(run, "setting_put", name="kept", value="as it was")
    await old.close()
    await do(url, "INSERT INTO counter (name, value) VALUES ('tagged', 7)")
    go_by(monkeypatch, write_migrations(tmp_path / "made_up", TAGS, COLOURS))

    for _ in range(2):
        new = await open_database(url)
        assert [row["value"] for row in await new.read("setting_get", name="kept")] == ["as it was"]
        await new.close()
        assert await do(url, "SELECT name, of, colour FROM tag") == [("tagged", 7, "red")]
        assert await versions(url) == [(n,) for n in range(1, NEWEST + 3)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(HALF, "half|another schema"), (TWICE, f"cannot be brought to schema {NEWEST + 3} .made_up_{NEWEST + 3}.")],
    ids=["statement", "rows"],
)
async def test_a_migration_that_fails_changes_nothing(
    url: str, wrong: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor those before it: all that are pending are one transaction, and the store opens as before."""
    await (await open_database(url)).close()
    for name in ("a", "b"):
        await do(url, ROW.format(name))
    with monkeypatch.context() as patch:
        go_by(patch, write_migrations(tmp_path / "made_up", TAGS, COLOURS, wrong))
        with pytest.raises(FoliotError, match=words):
            await open_database(url)

    assert await versions(url) == [(n,) for n in range(1, NEWEST + 1)]
    await (await open_database(url)).close()
    tables = "sqlite_schema" if not url.startswith("postgresql:") else "pg_class"
    column = "name" if tables == "sqlite_schema" else "relname"
    assert await do(url, f"SELECT {column} FROM {tables} WHERE {column} IN ('tag', 'half', 'resource_once')") == []


async def test_a_store_of_a_newer_foliot_is_refused_and_left_alone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        go_by(patch, write_migrations(tmp_path / "made_up", TAGS))
        await (await open_database(url)).close()
    newer = await versions(url)
    with pytest.raises(InvalidInput, match=f"newer Foliot .schema {NEWEST + 1}; this one knows {NEWEST}") as refused:
        await open_database(url)
    assert "upgrade" in (refused.value.hint or "")
    assert await versions(url) == newer


OPENING = """
import asyncio, sys
from pathlib import Path
from foliot.store import schema
from foliot.store.open import open_database

schema.FOLDER = Path(sys.argv[2])

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    await (await open_database(sys.argv[1])).close()

asyncio.run(main())
"""


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "behind"])
async def test_processes_that_open_a_store_at_once_migrate_it_once(url: str, is_new: bool, tmp_path: Path) -> None:
    if not is_new:
        await (await open_database(url)).close()
    folder = write_migrations(tmp_path / "made_up", TAGS, COLOURS)
    command = [sys.executable, "-c", OPENING, url, str(folder)]
    opening = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for each in opening:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in opening:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    assert [(each.communicate()[1], each.returncode) for each in opening] == [("", 0)] * 3
    assert await versions(url) == [(n,) for n in range(1, NEWEST + 3)]


@pytest.mark.services
async def test_both_databases_have_the_same_tables_and_columns(tmp_path: Path, postgres_url: str) -> None:
    await (await open_database(postgres_url)).close()
    server = await asyncpg.connect(postgres_url)
    query = "SELECT table_name, column_name, is_nullable = 'NO' FROM information_schema.columns"
    # The words of texts are an index in SQLite, made of tables of its own, and a column in PostgreSQL.
    query += " WHERE table_schema = 'public' AND table_name <> 'session_words'"
    in_postgres = {tuple(row) for row in await server.fetch(query)}
    await server.close()
    connection = sqlite_file.prepare(tmp_path / "foliot.db")
    query = (
        'SELECT t.name, c.name, c."notnull" OR c.pk > 0 FROM sqlite_schema AS t, pragma_table_info(t.name) AS c'
        " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' AND t.name NOT LIKE 'session_words%'"
    )
    in_sqlite = {(table, column, bool(needed)) for table, column, needed in connection.execute(query).fetchall()}
    connection.close()
    assert in_sqlite == in_postgres


def test_types_and_parts_are_translated() -> None:
    source = (
        "-- why\nCREATE TABLE t (\n  id INTEGER PRIMARY KEY,\n  a TEXT, b BLOB, c REAL\n) WITHOUT ROWID;\n"
        "-- only: sqlite\nSELECT 1;\n-- only: postgres\nSELECT 2;\n-- only: both\nSELECT 3;\n"
    )
    assert schema.translate(source, "sqlite").endswith(") WITHOUT ROWID;\nSELECT 1;\nSELECT 3;")
    assert schema.translate(source, "postgres") == (
        "CREATE TABLE t (\n  id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,\n"
        '  a text COLLATE "C", b bytea, c double precision\n);\nSELECT 2;\nSELECT 3;'
    )
    with pytest.raises(FoliotError, match="no database"):
        schema.translate("-- only: oracle\n", "sqlite")


def test_a_missing_number_is_a_broken_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0001_a.sql").touch()
    (tmp_path / "0003_b.sql").touch()
    go_by(monkeypatch, tmp_path)
    with pytest.raises(FoliotError, match="0002 is missing"):
        schema.migrations("sqlite")
