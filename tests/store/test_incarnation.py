"""A store that was put back hands out no version and no position of a watch that its lost history had handed out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.common.waits import Waits
from foliot.errors import Conflict, Gone, NotFound
from foliot.store.backup import back_up, restore
from foliot.store.base import Database, Document, Filter, Key, Put
from foliot.store.incarnation import first_revision, renew_database, renew_file, store_life
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.postgres.driver import connect
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.documents import key_text
from foliot.store.sqlite.database import SqliteDatabase

KEY = Key("Agent", "default", "a")


def store_on(database: Database) -> SqlResourceStore:
    def no_secrets() -> Any:
        raise AssertionError("nothing here is secret")

    return SqlResourceStore(database, no_secrets)


def agent(prompt: str) -> Document:
    annotations = {"resourceVersion": "1", "quoted": '"resourceVersion":"1"', "word": "für"}
    metadata = {"name": "a", "namespace": "default", "labels": {"x": "y"}, "annotations": annotations}
    return {"kind": "Agent", "metadata": metadata, "spec": {"prompt": prompt, "z": 1.0, "a": [10**17]}}


async def said(store: SqlResourceStore, prompt: str) -> tuple[str, int]:
    """Write something; the version, and the newest revision."""
    (written,) = await store.write([Put(agent(prompt))])
    return written.document["metadata"]["resourceVersion"], await store.revision()


async def look_into(restored: Database, versions: list[tuple[str, int]], before: Document) -> None:
    """Whatever was known of the store, up to the newest of its lost history, matches nothing in the restored one."""
    store = store_on(restored)
    assert await store.revision() > versions[-1][1] + 10**9
    after = await store.get(KEY)
    assert int(after["metadata"].pop("resourceVersion")) > versions[-1][1]
    before["metadata"].pop("resourceVersion")
    assert after == before
    assert [*after["spec"]] == [*before["spec"]]
    for _ in range(3):
        for version, revision in versions:
            with pytest.raises(Conflict):
                await store.write([Put(agent("unseen"), expect=version)])
            with pytest.raises(Gone):
                await anext(aiter(store.watch(Filter("Agent"), after=revision)))
        await said(store, f"{await store.revision()}")
    position = await store.revision()
    await said(store, "seen")
    change = await anext(aiter(store.watch(Filter("Agent"), after=position)))
    assert (change.revision, change.document["spec"]["prompt"]) == (position + 1, "seen")


async def test_a_restored_file_begins_anew(tmp_path: Path) -> None:
    path, backup = tmp_path / "foliot.db", tmp_path / "backup.tar"
    database = await SqliteDatabase.open(path)
    store = store_on(database)
    versions = [await said(store, "first")]
    before = await store.get(KEY)
    back_up(path, backup)
    versions += [await said(store, "lost"), await said(store, "lost too")]
    await database.close()

    restore(backup, path, replace=True)

    restored = await SqliteDatabase.open(path)
    await look_into(restored, versions, before)
    await restored.close()


async def test_two_restores_of_one_backup_have_different_histories(tmp_path: Path) -> None:
    path, backup = tmp_path / "foliot.db", tmp_path / "backup.tar"
    database = await SqliteDatabase.open(path)
    await said(store_on(database), "first")
    back_up(path, backup)
    await database.close()
    seen: list[int] = []
    for _ in range(2):
        restore(backup, path, replace=True)
        database = await SqliteDatabase.open(path)
        seen.append(await store_on(database).revision())
        seen.append((await said(store_on(database), "other"))[1])
        await database.close()
    assert sorted({*seen}) == seen


@settings(deadline=None)
@given(st.integers(0, 2**60), st.floats(0, 4e9))
def test_an_incarnation_begins_behind_all_that_was_and_grows_with_time(newest: int, at: float) -> None:
    assert first_revision(newest, at) > newest
    assert first_revision(0, at + 1) > first_revision(0, at) + 2**19
    assert first_revision(0, at) < 2**53


async def run(url: str, *statements: str) -> None:
    connection = await connect(url, within=20.0)
    try:
        for each in statements:
            await connection.execute(each)
    finally:
        await connection.close()


def named(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def test_a_database_that_was_copied_begins_anew(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    life = await store_life(database)
    versions = [await said(store_on(database), "first")]
    before = await store_on(database).get(KEY)
    await database.close()
    name = urlsplit(postgres_url).path[1:]
    admin, copy = named(postgres_url, "postgres"), named(postgres_url, f"{name}_copy")
    await run(admin, f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"')
    try:
        database = await PostgresDatabase.open(postgres_url)  # the first one has stayed what it was
        versions.append(await said(store_on(database), "lost"))
        assert [revision for _, revision in versions] == [1, 2]
        await database.close()

        restored = await PostgresDatabase.open(copy)

        assert (await store_life(restored)).incarnation != life.incarnation
        await look_into(restored, versions, before)
        revision = await store_on(restored).revision()
        await restored.close()
        again = await PostgresDatabase.open(copy)
        assert await store_on(again).revision() == revision
        await again.close()
    finally:
        await run(admin, f'DROP DATABASE "{name}_copy" WITH (FORCE)')


async def test_another_timeline_begins_the_versions_anew_and_leaves_the_workers_alone(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    life = await store_life(database)
    versions = [await said(store_on(database), "first")]
    before = await store_on(database).get(KEY)
    await database.close()
    await run(postgres_url, "UPDATE store_life SET place = replace(place, '.0', '.7')")

    taken_over = await PostgresDatabase.open(postgres_url)

    assert (await store_life(taken_over)).incarnation == life.incarnation
    await look_into(taken_over, versions, before)
    await taken_over.close()


async def test_an_empty_database_that_was_copied_begins_anew_too(postgres_url: str) -> None:
    await (await PostgresDatabase.open(postgres_url)).close()
    await run(postgres_url, "UPDATE store_life SET place = '1/2/3.00000001'")

    database = await PostgresDatabase.open(postgres_url)

    assert (await said(store_on(database), "first"))[1] > 10**9  # the lost history may have had changes
    await database.close()


async def test_a_file_that_was_copied_back_by_hand_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    database = await SqliteDatabase.open(path)
    life = await store_life(database)
    versions = [await said(store_on(database), "first")]
    before = await store_on(database).get(KEY)
    await database.close()
    shutil.copy(path, tmp_path / "copy.db")
    database = await SqliteDatabase.open(path)
    versions += [await said(store_on(database), "lost"), await said(store_on(database), "lost too")]
    await database.close()
    shutil.copy(tmp_path / "copy.db", path)

    first = renew_file(path)

    renewed = await SqliteDatabase.open(path)
    assert await store_on(renewed).revision() == first
    assert (await store_life(renewed)).incarnation != life.incarnation
    await look_into(renewed, versions, before)
    await renewed.close()


async def test_rows_that_were_put_back_into_their_tables_are_renewed(postgres_url: str) -> None:
    tables = ("counter", "resource", "change")
    database = await PostgresDatabase.open(postgres_url)
    life = await store_life(database)
    versions = [await said(store_on(database), "first")]
    before = await store_on(database).get(KEY)
    await run(postgres_url, *(f"CREATE TABLE kept_{each} AS TABLE {each}" for each in tables))
    versions += [await said(store_on(database), "lost"), await said(store_on(database), "lost too")]
    await database.close()
    for each in tables:
        await run(postgres_url, f"DELETE FROM {each}", f"INSERT INTO {each} SELECT * FROM kept_{each}")
    unnoticed = await PostgresDatabase.open(postgres_url)
    assert await store_on(unnoticed).revision() == versions[0][1]
    await unnoticed.close()

    first = await renew_database(postgres_url)

    renewed = await PostgresDatabase.open(postgres_url)
    assert await store_on(renewed).revision() == first
    assert (await store_life(renewed)).incarnation != life.incarnation
    await look_into(renewed, versions, before)
    await renewed.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def test_a_store_is_renewed_while_it_is_in_use(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    database: Database
    if kind == "sqlite":
        path = tmp_path / "foliot.db"
        database = await SqliteDatabase.open(path)
    else:
        url = request.getfixturevalue("postgres_url")
        database = await PostgresDatabase.open(url)
    store = store_on(database)
    version, _ = await said(store, "first")
    watch = aiter(store.watch(Filter("Agent"), after=0))
    await anext(watch)

    first = renew_file(path) if kind == "sqlite" else await renew_database(url)

    with pytest.raises(Conflict):
        await store.write([Put(agent("unseen"), expect=version)])
    assert (await said(store, "second"))[1] == first + 1
    with pytest.raises(Gone):
        await anext(watch)
    await database.close()


def test_no_store_is_made_by_renewing_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        renew_file(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


ELSEWHERE = "UPDATE store_life SET place = replace(place, '.0', '.7')"
# Every row has a version that its document repeats; the third ones say it again where it is not theirs to change.
MANY = """
INSERT INTO resource (key, kind, namespace, name, version, document, owners)
SELECT 'Agent' || chr(31) || 'default' || chr(31) || 'm' || i, 'Agent', 'default', 'm' || i, i,
       '{"kind":"Agent","metadata":{"name":"m' || i || '","namespace":"default",'
       || CASE WHEN i %% 3 = 0 THEN '"annotations":{"resourceVersion":"' || i || '"},' ELSE '' END
       || '"resourceVersion":"' || i || '"},"spec":{"prompt":"\\"resourceVersion\\":\\"' || i || '\\"","z":1.0,"a":2}}',
       '{}'
  FROM generate_series(1, %d) AS i
"""


@pytest.mark.parametrize("count", [300, *([200_000] if os.environ.get("FOLIOT_CHAOS") == "1" else [])])
async def test_every_resource_of_a_database_that_was_taken_over_has_the_new_version_and_nothing_else_changed(
    postgres_url: str, count: int
) -> None:
    await (await PostgresDatabase.open(postgres_url)).close()
    await run(postgres_url, MANY % count, f"UPDATE counter SET value = {count} WHERE name = 'revision'", ELSEWHERE)

    database = await PostgresDatabase.open(postgres_url)

    store = store_on(database)
    revision = await store.revision()
    for number in (1, 2, 3, count - count % 3):
        document = await store.get(Key("Agent", "default", f"m{number}"))
        metadata = {"name": f"m{number}", "namespace": "default", "resourceVersion": str(revision)}
        if number % 3 == 0:
            metadata |= {"annotations": {"resourceVersion": str(number)}}
        assert document["metadata"] == metadata
        assert [*document["spec"].items()] == [("prompt", f'"resourceVersion":"{number}"'), ("z", 1.0), ("a", 2)]
    (left,) = await database.read("resource_get_many", keys=json.dumps([key_text(Key("Agent", "default", "m1"))]))
    assert left["version"] == revision
    await database.close()


async def test_to_begin_anew_may_take_longer_than_any_answer(postgres_url: str) -> None:
    """Both ways: when a store is opened, and when the connection that listens is made anew."""
    waits = Waits(lease=1.5)
    database = await PostgresDatabase.open(postgres_url)
    await said(store_on(database), "first")
    await database.close()
    await run(
        postgres_url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.8); RETURN NEW; END'",
        "CREATE TRIGGER slow BEFORE UPDATE ON resource FOR EACH ROW EXECUTE FUNCTION slow()",
        ELSEWHERE,
    )

    database = await PostgresDatabase.open(postgres_url, waits)

    first = await store_on(database).revision()
    assert first > 10**9
    await run(postgres_url, ELSEWHERE)
    listening = asyncio.Event()
    database.listen("anything", lambda _: listening.set())
    await listening.wait()
    assert await store_on(database).revision() > first
    await database.close()
