from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from foliot.common.waits import Waits
from foliot.dev.postgres import Postgres
from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable, UsageError
from foliot.store.open import open_database
from foliot.store.postgres import database as postgres
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.transaction import Tx, many, one, rows, run, value


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    opened = await PostgresDatabase.open(postgres_url)
    yield opened
    await opened.close()


def put(name: str, text: str) -> Tx[int]:
    return (yield from run("setting_put", name=name, value=text))


def put_then_fail(name: str) -> Tx[None]:
    yield from run("setting_put", name=name, value="never")
    raise Conflict("no")


async def get(database: PostgresDatabase, name: str) -> str | None:
    found = await database.read("setting_get", name=name)
    return found[0]["value"] if found else None


async def test_results_have_the_same_forms_as_on_sqlite(database: PostgresDatabase) -> None:
    def body() -> Tx[tuple[object, ...]]:
        yield from many("setting_put", [{"name": name, "value": name.upper()} for name in "abc"])
        yield from many("setting_put", [])
        changed = yield from run("setting_put", name="a", value="A")
        first = yield from one("setting_get", name="a")
        missing = yield from one("setting_get", name="z")
        text = yield from value("setting_get", name="b")
        all_rows = yield from rows("setting_get", name="c")
        removed = yield from run("setting_delete", name="z")
        return changed, first, missing, text, all_rows, removed

    assert await database.write(body) == (1, {"value": "A"}, None, "B", [{"value": "C"}], 0)
    assert await database.read("setting_get", name="a") == [{"value": "A"}]
    assert await database.read("setting_get", name="z") == []


async def test_an_error_undoes_its_own_body_and_nothing_of_its_neighbours(database: PostgresDatabase) -> None:
    results = await asyncio.gather(
        *(database.write(put, f"n{n}", "x") if n % 7 else database.write(put_then_fail, f"n{n}") for n in range(100)),
        return_exceptions=True,
    )
    assert [isinstance(result, Conflict) for result in results] == [n % 7 == 0 for n in range(100)]
    assert [await get(database, f"n{n}") for n in range(100)] == ["x" if n % 7 else None for n in range(100)]


async def test_concurrent_writes_share_commits(database: PostgresDatabase, postgres_url: str) -> None:
    before = await _transactions(postgres_url)
    await asyncio.gather(*(database.write(put, f"n{n}", "x") for n in range(200)))
    assert await _transactions(postgres_url) - before < 100


async def _transactions(url: str) -> int:
    """Row versions know which transaction made them: the number of transactions that wrote settings."""
    client = await asyncpg.connect(url)
    try:
        return await client.fetchval("SELECT COUNT(DISTINCT CAST(xmin AS TEXT)) FROM setting")
    finally:
        await client.close()


async def test_a_write_right_after_the_last_one_ended_is_not_forgotten(database: PostgresDatabase) -> None:
    for n in range(50):
        await asyncio.wait_for(database.write(put, "a", str(n)), 60)
    assert await get(database, "a") == "49"


async def test_what_comes_while_one_group_is_under_way_is_one_group(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "HELD_UP", 60.0)
    monkeypatch.setattr(postgres, "FAR_AWAY", 60.0)  # the server of a busy machine may look far away
    database = await PostgresDatabase.open(postgres_url, Waits(lease=600))
    await database.write(put, "theirs", "x")
    before = await _transactions(postgres_url)
    other = await asyncpg.connect(postgres_url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE setting SET value = 'theirs' WHERE name = 'theirs'")
    writes = [database.write(put, "theirs", "ours")]
    for n in range(40):
        await asyncio.sleep(0)
        writes.append(database.write(put, f"n{n}", "x"))
    await transaction.commit()
    await other.close()
    await asyncio.gather(*writes)
    assert await _transactions(postgres_url) - before == 1  # one for the row that waited, and one for all others
    await database.close()


@pytest.mark.parametrize(("held_up", "far_away"), [(0.05, 60.0), (60.0, 0.0)], ids=["near", "far away"])
async def test_a_row_that_another_process_has_locked_holds_up_no_other_write(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, held_up: float, far_away: float
) -> None:
    monkeypatch.setattr(postgres, "HELD_UP", held_up)
    monkeypatch.setattr(postgres, "FAR_AWAY", far_away)
    database = await PostgresDatabase.open(postgres_url, Waits(lease=600))  # nobody gives up meanwhile
    await database.write(put, "theirs", "x")
    other = await asyncpg.connect(postgres_url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE setting SET value = 'theirs' WHERE name = 'theirs'")
    waits = database.write(put, "theirs", "ours")
    while not await other.fetchval("SELECT COUNT(*) FROM pg_locks WHERE NOT granted"):
        await asyncio.sleep(0.01)
    for n in range(5):
        await asyncio.wait_for(database.write(put, "mine", str(n)), 60)
    assert not waits.done()
    await transaction.commit()
    await other.close()
    await asyncio.wait_for(waits, 60)
    assert (await get(database, "theirs"), await get(database, "mine")) == ("ours", "4")
    await database.close()


async def test_a_broken_rule_of_the_schema_is_a_conflict_that_the_body_may_translate(
    database: PostgresDatabase,
) -> None:
    def twice() -> Tx[None]:
        for _ in range(2):
            yield from run("label_add", label="a", value="b", key="k")

    def translated() -> Tx[None]:
        try:
            yield from twice()
        except Conflict:
            raise InvalidInput("in my own words") from None

    def stubborn() -> Tx[None]:
        try:
            yield from twice()
        except Conflict:
            yield from run("setting_put", name="a", value="b")

    with pytest.raises(Conflict):
        await database.write(twice)
    with pytest.raises(InvalidInput, match="in my own words"):
        await database.write(translated)
    with pytest.raises(Conflict):
        await database.write(stubborn)
    assert await get(database, "a") is None


async def test_a_deadlock_is_solved_by_running_the_body_again(database: PostgresDatabase, postgres_url: str) -> None:
    await database.write(put, "a", "0")
    await database.write(put, "b", "0")
    other = await asyncpg.connect(postgres_url)
    runs = 0
    holding: Any = asyncio.get_running_loop().create_future()

    def crosswise() -> Tx[None]:
        nonlocal runs
        runs += 1
        yield from run("setting_put", name="a", value="ours")
        if not holding.done():
            holding.set_result(None)
        yield from run("setting_put", name="b", value="ours")

    transaction = other.transaction()
    await transaction.start()
    await other.execute("SET LOCAL deadlock_timeout = '60s'")
    await other.execute("UPDATE setting SET value = 'theirs' WHERE name = 'b'")
    ours = database.write(crosswise)
    await holding
    await other.execute("UPDATE setting SET value = 'theirs' WHERE name = 'a'")
    await transaction.commit()
    await other.close()
    await asyncio.wait_for(ours, 60)
    assert runs >= 2  # on a busy machine the second one may meet the other once more
    assert (await get(database, "a"), await get(database, "b")) == ("ours", "ours")


_AT_COMMIT = """
CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON setting DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.name = 'fatal') EXECUTE FUNCTION at_commit();
"""


async def at_commit(url: str, what: str) -> None:
    client = await asyncpg.connect(url)
    await client.execute(_AT_COMMIT.format(what=what))
    await client.close()


async def test_a_connection_lost_during_a_commit_is_told_and_the_body_not_run_again(
    database: PostgresDatabase, postgres_url: str
) -> None:
    await at_commit(postgres_url, "PERFORM pg_terminate_backend(pg_backend_pid())")
    runs = 0

    def body() -> Tx[None]:
        nonlocal runs
        runs += 1
        yield from run("setting_put", name="fatal", value="x")

    with pytest.raises(Unavailable, match="may or may not be stored") as caught:
        await database.write(body)
    assert caught.value.hint
    assert runs == 1
    assert await database.write(put, "after", "x") == 1


async def test_a_commit_that_the_server_refuses_undoes_only_its_own_body(
    database: PostgresDatabase, postgres_url: str
) -> None:
    await at_commit(postgres_url, "RAISE unique_violation")
    writes = [database.write(put, name, "x") for name in ("a", "fatal", "b", "c")]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [int, Conflict, int, int]
    assert [await get(database, name) for name in ("a", "fatal", "b", "c")] == ["x", None, "x", "x"]


async def test_a_cancelled_caller_leaves_the_others_alone(database: PostgresDatabase) -> None:
    tasks = [database.write(put, f"n{n}", "x") for n in range(60)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1::2] == [1] * 30
    assert [await get(database, f"n{n}") for n in range(1, 60, 2)] == ["x"] * 30


async def test_closing_finishes_what_was_accepted_and_refuses_what_comes_later(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    accepted = [database.write(put, f"n{n}", "x") for n in range(50)]
    await asyncio.sleep(0)
    await database.close()
    assert await asyncio.gather(*accepted) == [1] * 50
    with pytest.raises(Unavailable, match="closed"):
        await database.write(put, "late", "x")
    with pytest.raises(Unavailable, match="closed"):
        await database.read("setting_get", name="n0")
    await database.close()


async def test_a_commit_of_this_process_or_another_ends_the_wait(database: PostgresDatabase, postgres_url: str) -> None:
    other = await PostgresDatabase.open(postgres_url)
    try:
        await database.wait_for_change(database.change_mark(), timeout=0.01)  # starts to listen
        for writer in (database, other):
            waiting = asyncio.create_task(_wait_for_value(database, f"by-{id(writer)}"))
            await asyncio.sleep(0)
            await writer.write(put, f"by-{id(writer)}", "x")
            await asyncio.wait_for(waiting, 60)
    finally:
        await other.close()


async def _wait_for_value(database: PostgresDatabase, name: str) -> None:
    while True:
        seen = database.change_mark()
        if await get(database, name) is not None:
            return
        await database.wait_for_change(seen, timeout=600)


async def test_a_commit_after_the_mark_is_not_missed_by_any_task(database: PostgresDatabase) -> None:
    await database.write(put, "a", "1")
    seen = database.change_mark()
    await database.write(put, "a", "2")

    # A task of its own, as whoever waits for one of two things makes: it has never waited before.
    await asyncio.wait_for(asyncio.create_task(database.wait_for_change(seen, timeout=600)), 60)
    later = asyncio.create_task(database.wait_for_change(database.change_mark(), timeout=600))
    await asyncio.sleep(0)
    assert not later.done(), "and nothing has happened since"
    later.cancel()


@pytest.mark.usefixtures("really_migrated")
async def test_eight_openings_at_once_migrate_once(postgres_url: str) -> None:
    opened = await asyncio.gather(*(PostgresDatabase.open(postgres_url) for _ in range(8)))
    await asyncio.gather(*(database.close() for database in opened))


async def test_an_unknown_query_and_a_wrong_value_are_told(database: PostgresDatabase) -> None:
    with pytest.raises(FoliotError, match="no query named"):
        await database.read("nothing")
    with pytest.raises(FoliotError, match="no query named"):
        await database.write(run, "nothing")
    with pytest.raises(InvalidInput):
        await database.read("setting_get", name="\x00")
    with pytest.raises(InvalidInput):
        await database.write(put, "a", 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda url: url.replace("@", "wrong@", 1), Unavailable, "refused the login"),
        (lambda url: url.rpartition("/")[0] + "/missing_database", Unavailable, "has no such database"),
    ],
)
async def test_a_wrong_url_is_told_without_its_password(
    postgres_url: str, change: Any, error: type, words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        await open_database(change(postgres_url))
    password = postgres_url.partition("@")[0].rpartition(":")[2]
    shown = f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"
    assert len(password) > 3
    assert password not in shown


async def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/x does not answer") as caught:
        await open_database("postgresql://user:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in f"{caught.value!r}{caught.value.hint}{caught.value.__cause__!r}"
    with pytest.raises(InvalidInput, match="cannot be read") as second:
        await open_database("postgresql://user:hunter2@[oops/x")
    assert "hunter2" not in f"{second.value!r}{second.value.__cause__!r}"


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///", "sqlite:///:memory:", ""])
async def test_a_url_of_no_store_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        await open_database(url)
    assert caught.value.hint


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "foliot.store.postgres.driver")
    with pytest.raises(UsageError) as caught:
        importlib.import_module("foliot.store.postgres.driver")
    assert caught.value.hint is not None
    assert "foliot-runtime[postgres]" in caught.value.hint


@pytest.mark.slow
async def test_a_restart_of_the_server_is_unavailable_for_a_while_and_loses_nothing(
    postgres_service: Postgres,
) -> None:
    database = await PostgresDatabase.open(postgres_service.url)
    acknowledged: list[str] = []
    refused = 0
    stop = asyncio.Event()

    async def keep_writing(lane: int) -> None:
        nonlocal refused
        number = 0
        while not stop.is_set():
            number += 1
            try:
                await database.write(put, f"{lane}-{number}", "x")
            except Unavailable:
                refused += 1
                await asyncio.sleep(0.01)
            else:
                acknowledged.append(f"{lane}-{number}")

    async def until(condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)

    lanes = [asyncio.create_task(keep_writing(lane)) for lane in range(6)]
    try:
        for ending in (postgres_service.kill, postgres_service.stop):
            seen = len(acknowledged)
            await until(lambda seen=seen: len(acknowledged) > seen + 20)
            failed = refused
            await asyncio.to_thread(ending)
            await until(lambda failed=failed: refused > failed)
            await asyncio.to_thread(postgres_service.start)
        seen = len(acknowledged)
        await until(lambda seen=seen: len(acknowledged) > seen + 20)
    finally:
        stop.set()
        await asyncio.gather(*lanes)
    stored = await database.read("setting_get", name=acknowledged[0])
    assert stored == [{"value": "x"}]
    missing = [name for name in acknowledged if await get(database, name) is None]
    assert missing == []
    await database.wait_for_change(database.change_mark(), timeout=0.01)
    await database.close()
