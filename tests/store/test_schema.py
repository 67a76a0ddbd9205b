"""Migrations: the schema is their sum, and a database with data is brought up to date in place."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import asyncpg
import msgspec
import pytest

from foliot.errors import Conflict, FoliotError, InvalidInput
from foliot.resources.agreed import Agreed, Levels
from foliot.store import schema
from foliot.store.access.tokens import SqlTokens
from foliot.store.access.users import SqlUsers
from foliot.store.base import Database, Filter, Key
from foliot.store.open import open_database
from foliot.store.postgres.database import PostgresDatabase, migrate
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.mcp_pins import read_agreed
from foliot.store.resources.selectors import parse_labels
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.sqlite import file as sqlite_file
from foliot.store.sqlite.database import SqliteDatabase
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import encode_command
from foliot.work.tasks.list import TaskList

pytestmark = pytest.mark.usefixtures("really_migrated")
COMMAND = encode_command(Command("agent", "a", message="Go"))
NEWEST = len(schema.migrations("sqlite"))


def old_rows() -> list[tuple[str, str, str, str, int, str]]:
    rows: list[tuple[str, str, str, str, int, str]] = []
    for n, labels in enumerate([{"app": "web"}, {"app": "web", "tier": "ñ"}, {}, None], start=1):
        metadata = {"name": f"n{n}", "namespace": "default", "resourceVersion": str(n), "generation": 1}
        metadata |= {"uid": f"u{n}", "createdAt": "2024-01-01T00:00:00Z", "updatedAt": "2024-01-01T00:00:00Z"}
        if labels is not None:
            metadata["labels"] = labels
        document = {"kind": "Agent", "metadata": metadata, "spec": {}, "status": {}}
        rows.append((f"Agent\x1fdefault\x1fn{n}", "Agent", "default", f"n{n}", n, json.dumps(document)))
    return rows


async def check_upgraded(database: Database) -> None:
    store = SqlResourceStore(database, lambda: keyring_from_text("00" * 32))
    found = await store.list(Filter("Agent", labels=parse_labels("app=web")))
    assert [item["metadata"]["name"] for item in found.items] == ["n1", "n2"]
    found = await store.list(Filter("Agent", labels=parse_labels("tier=ñ")))
    assert [item["metadata"]["name"] for item in found.items] == ["n2"]
    assert len((await store.list(Filter())).items) == 4
    assert (await store.get(Key("Agent", "default", "n3")))["metadata"]["uid"] == "u3"
    assert await store.revision() == 4


async def test_an_old_sqlite_file_with_data_is_upgraded_in_place(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    sqlite_file.prepare(path, upto=1).close()
    old = apsw.Connection(str(path))
    old.executemany("INSERT INTO resource VALUES (?, ?, ?, ?, ?, ?)", old_rows())
    old.execute("UPDATE counter SET value = 4 WHERE name = 'revision'")
    old.close()
    database = await SqliteDatabase.open(path)
    await check_upgraded(database)
    await database.close()
    again = await SqliteDatabase.open(path)
    await check_upgraded(again)
    await again.close()


async def test_an_old_postgresql_database_with_data_is_upgraded_in_place(postgres_url: str) -> None:
    old = await asyncpg.connect(postgres_url)
    await migrate(old, "here", upto=1)
    await old.executemany("INSERT INTO resource VALUES ($1, $2, $3, $4, $5, $6)", old_rows())
    await old.execute("UPDATE counter SET value = 4 WHERE name = 'revision'")
    assert await old.fetchval(schema.READ_VERSION) == 1
    await old.close()
    database = await PostgresDatabase.open(postgres_url)
    await check_upgraded(database)
    await database.close()


OLD_CALLERS = """
INSERT INTO user_account (id, name, password, grants, created_at, created_by, password_at)
VALUES ('1', 'ada', 'x', '{}', 1.0, '', 1.0);
INSERT INTO api_token (id, name, digest, namespaces, roles, created_at, created_by, revoked_at, owner)
VALUES ('2', 'CI', 'd', '[]', '[]', 1.0, '', 1.0, ''), ('3', 'ci', 'd', '[]', '[]', 2.0, '', NULL, '');
"""


async def check_names(database: Database) -> None:
    users, tokens = SqlUsers(database), SqlTokens(database)
    with pytest.raises(Conflict, match="account"):
        await tokens.create("Ada", namespaces=["*"], roles=["reader"], now=2.0)
    with pytest.raises(Conflict, match="token"):
        await users.create("ci", password="x", grants={}, now=2.0)
    await users.create("bob", password="x", grants={}, now=2.0)
    await database.close()


async def test_names_of_callers_that_were_there_stay_theirs(tmp_path: Path, postgres_url: str) -> None:
    path, before = tmp_path / "foliot.db", 14
    sqlite_file.prepare(path, upto=before).close()
    file = apsw.Connection(str(path))
    server = await asyncpg.connect(postgres_url)
    await migrate(server, "here", upto=before)
    file.execute(OLD_CALLERS)
    await server.execute(OLD_CALLERS)
    file.close()
    await server.close()
    await check_names(await SqliteDatabase.open(path))
    await check_names(await PostgresDatabase.open(postgres_url))


# Labels that a task could have: two that look alike once put together, none, one with a zero, one too long to index.
OLD_LABELS: list[dict[str, str | None]] = [
    {"a=b": "c", "a": "b=c"},
    {"a": None, "team": "blue"},
    {"a": "x\0y"},
    {"a": "b" * 20_000},
    {"a": "b" * 20_000 + "c", "team": "blue"},
]


def old_tasks() -> list[tuple[object, ...]]:
    texts = [msgspec.json.encode(each).decode() for each in OLD_LABELS]
    return [(f"u{number}", f"t{number}", text, COMMAND) for number, text in enumerate(texts)]


OLD_TASK = """
INSERT INTO task (uid, namespace, name, target_kind, target, digest, phase, revision, attempt, priority, lane,
                  spawned_by, parent, labels, command, plan, graph, summary, created_at, updated_at)
VALUES ({}, 'default', {}, 'agent', 'a', 'd', 'succeeded', 1, 1, 1, '', '', '', {}, {}, '{{}}', '', '{{}}', 1.0, 1.0)
"""


async def check_labels(database: Database) -> None:
    async def named(**labels: str) -> set[str]:
        found, _ = await TaskList(database).list(namespace="default", labels=labels)
        return {task.name for task in found}

    assert await named(a="b=c") == await named(**{"a=b": "c"}) == {"t0"}
    assert await named(team="blue") == {"t1", "t4"}
    assert await named(a="b" * 20_000) == {"t3"}
    assert await named(a="b" * 20_000, team="blue") == set()
    await database.close()


async def test_tasks_with_any_labels_are_carried_over(tmp_path: Path, postgres_url: str) -> None:
    path, before = tmp_path / "foliot.db", _number_of("sizes") - 1
    sqlite_file.prepare(path, upto=before).close()
    file = apsw.Connection(str(path))
    server = await asyncpg.connect(postgres_url)
    await migrate(server, "here", upto=before)
    file.executemany(OLD_TASK.format(*"????"), old_tasks())
    await server.executemany(OLD_TASK.format("$1", "$2", "$3", "$4"), old_tasks())
    file.close()
    await server.close()
    await check_labels(await SqliteDatabase.open(path))
    await check_labels(await PostgresDatabase.open(postgres_url))


def old_tools() -> list[tuple[str, str, str, str, int, str]]:
    """A server with a tool that went away and one with a NUL in its name, and Tools as an older Foliot kept them."""
    generated = {"foliot.dev/mcp-server": "s", "foliot.dev/mcp-generated": "true"}
    pin = {"foliot.dev/mcp-pin": '{"digest":"sha256:1"}'}
    held = {**pin, "foliot.dev/mcp-quarantine": '{"digest":"sha256:2"}'}
    spec = {"type": "mcp", "mcp_server_ref": "s", "risk_level": "high", "effect": "once"}
    spec |= {"operation_classes": ["write", "delete"], "runtime": {"isolation_mode": "none"}, "description": "\0"}
    documents: list[tuple[str, str, dict[str, object]]] = [
        (
            "Tool",
            "s--a",
            {"metadata": {"labels": generated, "annotations": pin}, "spec": spec | {"mcp_tool_name": "a"}},
        ),
        (
            "Tool",
            "s--b",
            {
                "metadata": {"labels": generated, "annotations": held},
                "spec": spec | {"mcp_tool_name": "b", "mcp_server_ref": "default/s"},
            },
        ),
        ("Tool", "s--lost", {"metadata": {"labels": generated}, "spec": spec | {"mcp_tool_name": "lost"}}),
        ("Tool", "mine", {"metadata": {"annotations": pin}, "spec": spec | {"mcp_tool_name": "mine"}}),
        (
            "Tool",
            "nul",
            {"metadata": {"labels": generated, "annotations": pin}, "spec": spec | {"mcp_tool_name": "x\0"}},
        ),
        ("Tool", "web", {"metadata": {}, "spec": {"type": "http"}}),
        (
            "McpServer",
            "s",
            {
                "metadata": {},
                "spec": {},
                "status": {
                    "discoveredTools": [
                        {"name": "gone", "state": "gone", "pin": '{"digest":"sha256:3"}'},
                        {"name": "a", "pin": '{"digest":"sha256:other"}'},
                        {"name": "x\0", "pin": "{}"},
                        {"name": "ready", "state": "ready"},
                        7,
                    ]
                },
            },
        ),
        ("McpServer", "t", {"metadata": {}, "spec": {}, "status": {"discoveredTools": "?"}}),
        ("McpServer", "u", {"metadata": {}, "spec": {}}),
    ]
    return [
        (f"{kind}\x1fdefault\x1f{name}", kind, "default", name, number, json.dumps(document, ensure_ascii=False))
        for number, (kind, name, document) in enumerate(documents, start=1)
    ]


async def check_pins(database: Database) -> None:
    levels = Levels("high", "once", "none", ("write", "delete"))
    changed = "the server changed its definition"
    assert await read_agreed(database, "default") == [
        Agreed("default", "s", "a", "s--a", '{"digest":"sha256:1"}', "", levels),
        Agreed("default", "s", "b", "s--b", '{"digest":"sha256:1"}', "", levels, changed),
        Agreed("default", "s", "gone", "", '{"digest":"sha256:3"}', "", Levels.read("")),
    ]
    await database.close()


async def test_pins_that_stood_in_annotations_are_carried_over(tmp_path: Path, postgres_url: str) -> None:
    path, before = tmp_path / "foliot.db", _number_of("mcp_pins") - 1
    sqlite_file.prepare(path, upto=before).close()
    file = apsw.Connection(str(path))
    server = await asyncpg.connect(postgres_url)
    await migrate(server, "here", upto=before)
    columns = "(key, kind, namespace, name, version, document)"
    file.executemany(f"INSERT INTO resource {columns} VALUES (?, ?, ?, ?, ?, ?)", old_tools())
    await server.executemany(f"INSERT INTO resource {columns} VALUES ($1, $2, $3, $4, $5, $6)", old_tools())
    file.close()
    await server.close()
    await check_pins(await SqliteDatabase.open(path))
    await check_pins(await PostgresDatabase.open(postgres_url))


def _number_of(name: str) -> int:
    return next(each.version for each in schema.migrations("sqlite") if each.name == name)


async def test_a_sqlite_file_from_a_newer_foliot_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    sqlite_file.prepare(path).close()
    newer = apsw.Connection(str(path))
    newer.execute("INSERT INTO schema_version VALUES (9999, 'of_tomorrow')")
    newer.close()
    with pytest.raises(InvalidInput, match="newer Foliot") as caught:
        await SqliteDatabase.open(path)
    assert caught.value.hint is not None
    assert "upgrade" in caught.value.hint


async def test_a_postgresql_database_from_a_newer_foliot_is_refused(postgres_url: str) -> None:
    await (await PostgresDatabase.open(postgres_url)).close()
    newer = await asyncpg.connect(postgres_url)
    await newer.execute("INSERT INTO schema_version VALUES (9999, 'of_tomorrow')")
    await newer.close()
    with pytest.raises(InvalidInput, match="newer Foliot"):
        await PostgresDatabase.open(postgres_url)


async def test_both_databases_have_the_same_tables_and_columns(tmp_path: Path, postgres_url: str) -> None:
    await (await open_database(postgres_url)).close()
    server = await asyncpg.connect(postgres_url)
    query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    # The words of texts are an index in SQLite, made of tables of its own, and a column in PostgreSQL.
    in_postgres = {(row[0], row[1]) for row in await server.fetch(f"{query} AND table_name <> 'session_words'")}
    await server.close()
    connection = sqlite_file.prepare(tmp_path / "foliot.db")
    query = (
        "SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c"
        " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' AND t.name NOT LIKE 'session_words%'"
    )
    in_sqlite = set(connection.execute(query).fetchall())
    connection.close()
    assert in_sqlite == in_postgres


async def test_a_migration_that_fails_leaves_the_version_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "foliot.db"
    broken = schema.Migration(NEWEST + 1, "broken", "CREATE TABLE half (a TEXT); CREATE TABLE half (a TEXT);")
    with_broken = (*schema.migrations("sqlite"), broken)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda _: with_broken)
        with pytest.raises(FoliotError, match="half"):
            await SqliteDatabase.open(path)
    database = await SqliteDatabase.open(path)
    await database.close()
    connection = apsw.Connection(str(path))
    assert connection.execute(schema.READ_VERSION).fetchall() == [(NEWEST,)]
    assert not connection.table_exists("main", "half")
    connection.close()


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
    monkeypatch.setattr(schema, "FOLDER", tmp_path)
    with pytest.raises(FoliotError, match="0002 is missing"):
        schema.migrations.__wrapped__("sqlite")
