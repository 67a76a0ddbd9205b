from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable
from foliot.store import queries
from foliot.store.audit.log import AuditFilter, SqlAuditLog, append_records
from foliot.store.heads import of_heads
from foliot.store.open import open_database
from foliot.store.sqlite import file as sqlite_file
from foliot.store.sqlite import writer as sqlite_writer
from foliot.store.sqlite.database import SqliteDatabase
from foliot.store.transaction import Statement, Tx, many, one, rows, run, value


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    opened = await SqliteDatabase.open(tmp_path / "store" / "foliot.db")
    yield opened
    await opened.close()


def put(name: str, text: str) -> Tx[int]:
    return (yield from run("setting_put", name=name, value=text))


def put_then_fail(name: str) -> Tx[None]:
    yield from run("setting_put", name=name, value="never")
    raise Conflict("no")


async def get(database: SqliteDatabase, name: str) -> str | None:
    found = await database.read("setting_get", name=name)
    return found[0]["value"] if found else None


async def test_what_was_written_can_be_read_at_once(database: SqliteDatabase) -> None:
    assert await database.write(put, "a", "1") == 1
    assert await database.read("setting_get", name="a") == [{"value": "1"}]
    assert await database.read("setting_get", name="b") == []


async def test_an_error_undoes_its_own_body_and_nothing_of_its_neighbours(database: SqliteDatabase) -> None:
    results = await asyncio.gather(
        *(database.write(put, f"n{n}", "x") if n % 3 else database.write(put_then_fail, f"n{n}") for n in range(60)),
        return_exceptions=True,
    )
    assert [isinstance(result, Conflict) for result in results] == [n % 3 == 0 for n in range(60)]
    stored = [await get(database, f"n{n}") for n in range(60)]
    assert stored == ["x" if n % 3 else None for n in range(60)]


async def test_an_error_of_a_body_alone_in_its_batch_undoes_it(database: SqliteDatabase) -> None:
    with pytest.raises(Conflict):
        await database.write(put_then_fail, "a")
    assert await get(database, "a") is None
    await database.write(put, "a", "after")
    assert await get(database, "a") == "after"


async def test_concurrent_writes_share_commits(database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0
    commit = sqlite_writer.Executor.commit

    def counted(executor: sqlite_writer.Executor) -> None:
        nonlocal commits
        commits += 1
        commit(executor)

    monkeypatch.setattr(sqlite_writer.Executor, "commit", counted)
    await asyncio.gather(*(database.write(put, f"n{n}", "x") for n in range(500)))
    assert commits < 100


def noted(number: int) -> Tx[int]:
    """Adds a record to the audit log; returns its place, as the body sees it."""
    who = dict.fromkeys(("namespace", "agent", "tool", "run_id", "call_id"), "x")
    (record,) = yield from append_records([{**who, "at": 1.0, "moment": "act", "outcome": f"n{number}"}], told=True)
    return record.seq


def noted_then_fail(number: int) -> Tx[int]:
    yield from noted(number)
    raise Conflict("no")


def outcomes() -> Tx[list[str]]:
    return [row["outcome"] for row in (yield from rows("audit_read", after=0, count=1000))]


async def test_bodies_of_one_commit_move_the_head_of_the_audit_log_once(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    execute = sqlite_writer.Executor._execute

    def executed(executor: sqlite_writer.Executor, statement: Statement) -> Any:
        done.append(statement.name)
        return execute(executor, statement)

    await database.write(noted, 0)
    monkeypatch.setattr(sqlite_writer.Executor, "_execute", executed)
    # Handed in without a wait between them, so they are one batch. Who reads the log sees all that came before.
    first = [database.write(noted, number) for number in range(1, 9)]
    between = database.write(outcomes)
    rest = [database.write(noted, number) for number in range(9, 17)]
    assert await asyncio.gather(*first, *rest) == list(range(2, 18))
    assert await between == [f"n{number}" for number in range(9)]
    assert done == ["audit_turn", "audit_add", "audit_advance", "audit_read", "audit_add", "audit_advance"]

    log = SqlAuditLog(database)
    assert [each.seq for each in reversed(await log.find(AuditFilter(), limit=100))] == list(range(1, 18))
    assert (await log.verify()).broken is None


async def test_a_body_that_fails_behind_its_record_leaves_no_gap_in_the_audit_log(database: SqliteDatabase) -> None:
    writes = [database.write(noted_then_fail if number % 4 == 1 else noted, number) for number in range(12)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(result, Conflict) for result in results] == [number % 4 == 1 for number in range(12)]
    assert await database.write(outcomes) == [f"n{number}" for number in range(12) if number % 4 != 1]
    verified = await SqlAuditLog(database).verify()
    assert verified.broken is None
    assert verified.head.seq == 9


def test_every_query_about_the_audit_log_is_known_to_be_about_a_head() -> None:
    about = {name for name, text in queries.load().items() if "audit" in text}
    assert about
    assert about <= of_heads()


async def test_a_writer_yields_to_other_processes_only_when_there_are_some(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(sqlite_writer, "time", SimpleNamespace(sleep=naps.append))
    for n in range(20):
        await database.write(put, "a", str(n))
    assert naps == []
    other = await SqliteDatabase.open(database.path)
    await other.write(put, "a", "other")
    await other.close()
    await database.write(put, "a", "mine")
    assert len(naps) == 1


async def test_a_folder_that_another_process_holds_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "PREPARE_PATIENCE", 0.05)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(Unavailable, match="preparing a store"):
        await SqliteDatabase.open(tmp_path / "foliot.db")
    os.close(held)
    await (await SqliteDatabase.open(tmp_path / "foliot.db")).close()


async def test_a_body_sees_its_own_writes_and_gets_every_form_of_result(database: SqliteDatabase) -> None:
    def body() -> Tx[tuple[object, ...]]:
        yield from many("setting_put", [{"name": name, "value": name.upper()} for name in "abc"])
        yield from many("setting_put", [])
        first = yield from one("setting_get", name="a")
        missing = yield from one("setting_get", name="z")
        text = yield from value("setting_get", name="b")
        nothing = yield from value("setting_get", name="z")
        all_rows = yield from rows("setting_get", name="c")
        return first, missing, text, nothing, all_rows

    assert await database.write(body) == ({"value": "A"}, None, "B", None, [{"value": "C"}])


async def test_a_broken_rule_of_the_schema_is_a_conflict_that_the_body_may_translate(database: SqliteDatabase) -> None:
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


async def test_an_unknown_query_or_a_missing_parameter_is_told_and_harms_nobody(database: SqliteDatabase) -> None:
    with pytest.raises(FoliotError, match="no query named 'nothing'"):
        await database.read("nothing")
    bad = [database.write(run, "nothing"), database.write(run, "setting_put"), database.write(put, "a", "1")]
    results = await asyncio.gather(*bad, return_exceptions=True)
    assert [type(result) for result in results] == [FoliotError, KeyError, int]


async def test_a_cancelled_caller_leaves_the_writer_well(database: SqliteDatabase) -> None:
    tasks = [database.write(put, f"n{n}", "x") for n in range(200)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1::2] == [1] * 100
    assert [await get(database, f"n{n}") for n in range(1, 200, 2)] == ["x"] * 100


async def test_closing_finishes_what_was_accepted_and_refuses_what_comes_later(tmp_path: Path) -> None:
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    accepted = [database.write(put, f"n{n}", "x") for n in range(300)]
    await asyncio.sleep(0)
    await database.close()
    assert await asyncio.gather(*accepted) == [1] * 300
    with pytest.raises(Unavailable, match="closed"):
        await database.write(put, "late", "x")
    with pytest.raises(Unavailable, match="closed"):
        await database.read("setting_get", name="n0")
    await database.close()
    again = await SqliteDatabase.open(tmp_path / "foliot.db")
    assert await get(again, "n299") == "x"
    await again.close()


async def test_a_command_that_only_reads_starts_no_thread(database: SqliteDatabase) -> None:
    before = set(threading.enumerate())
    await database.read("setting_get", name="a")
    assert set(threading.enumerate()) <= before  # what another test left running may end meanwhile


async def test_the_file_and_its_companions_are_private(database: SqliteDatabase) -> None:
    await database.write(put, "a", "1")
    files = list(database.path.parent.iterdir())
    assert {file.name for file in files} == {"foliot.db", "foliot.db-wal", "foliot.db-shm"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700


async def test_a_commit_of_this_process_or_of_another_connection_ends_the_wait(database: SqliteDatabase) -> None:
    other = await SqliteDatabase.open(database.path)
    try:
        for text, writer in (("1", database), ("2", other)):
            waiting = asyncio.create_task(database.wait_for_change(database.change_mark(), timeout=600))
            await asyncio.sleep(0)
            await writer.write(put, "a", text)
            await asyncio.wait_for(waiting, 60)
    finally:
        await other.close()


async def test_a_commit_after_the_mark_is_not_missed_whoever_has_read_it(database: SqliteDatabase) -> None:
    seen = database.change_mark()
    outside = apsw.Connection(str(database.path))
    outside.execute("INSERT INTO setting VALUES ('x', 'y')")
    outside.close()
    assert await get(database, "x") == "y"  # as any other coroutine of this thread may
    await asyncio.wait_for(database.wait_for_change(seen, timeout=600), 60)


async def test_a_wait_ends_without_a_change_too(database: SqliteDatabase) -> None:
    await database.wait_for_change(database.change_mark(), timeout=0.01)


async def test_several_event_loops_can_share_one_store(database: SqliteDatabase) -> None:
    async def elsewhere(number: int) -> str | None:
        await asyncio.gather(*(database.write(put, f"t{number}-{n}", "x") for n in range(50)))
        return await get(database, f"t{number}-49")

    threads = [asyncio.to_thread(asyncio.run, elsewhere(number)) for number in range(4)]
    assert await asyncio.gather(*threads) == ["x"] * 4


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read " * 50, b"x" * 2000])
async def test_a_file_that_is_no_store_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="is not a store") as caught:
        await SqliteDatabase.open(path)
    assert caught.value.hint
    assert path.read_bytes() == content


async def test_a_folder_or_a_path_through_a_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a folder"):
        await SqliteDatabase.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="not a folder"):
        await SqliteDatabase.open(tmp_path / "file" / "foliot.db")


async def test_a_full_disk_is_told_and_what_was_stored_stays(database: SqliteDatabase) -> None:
    await database.write(put, "before", "x")
    assert database._writer is not None
    assert database._writer._executor is not None
    connection = database._writer._executor.connection
    pages = connection.execute("PRAGMA page_count").fetchall()[0][0]
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    results = await asyncio.gather(
        *(database.write(put, f"n{n}", "x" * 50_000) for n in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, Unavailable) and "full" in result.message for result in results)
    connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    await database.write(put, "after", "x")
    assert [await get(database, name) for name in ("before", "n0", "after")] == ["x", None, "x"]


async def test_a_lock_that_is_never_released_is_unavailable_not_a_driver_error(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "WRITE_PATIENCE", 0.05)
    outside = apsw.Connection(str(database.path))
    outside.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="busy") as caught:
        await database.write(put, "a", "1")
    assert "locked" not in caught.value.message
    outside.execute("ROLLBACK")
    outside.close()
    assert await database.write(put, "a", "1") == 1


_AS_A_STRANGER = """
import asyncio, os, sys
from foliot.errors import FoliotError
from foliot.store.sqlite.database import SqliteDatabase
from foliot.store.transaction import run

async def main():
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        database = await SqliteDatabase.open(sys.argv[1])
        try:
            await database.write(run, "setting_put", name="a", value="b")
        finally:
            await database.close()
    except FoliotError as error:
        print(error.code, error.retryable, error.message, error.hint)

asyncio.run(main())
"""


@pytest.mark.parametrize("existing", [False, True])
async def test_a_store_without_permission_is_refused_in_words(existing: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "foliot.db"
        if existing:
            await (await SqliteDatabase.open(path)).close()
            path.chmod(0o444)
        os.chmod(folder, 0o555)
        arguments = [sys.executable, "-c", _AS_A_STRANGER, str(path)]
        done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=110)
        os.chmod(folder, 0o700)
    assert done.stderr == ""
    assert done.stdout.startswith(f"unavailable True the store {path} "), done.stdout
    assert "None" not in done.stdout


def test_errors_of_the_file_system_and_the_driver_have_words() -> None:
    path = Path("/somewhere/foliot.db")
    assert "may not be written" in sqlite_file.explain(PermissionError(13, "no"), path).message
    assert "may not be written" in sqlite_file.explain(apsw.ReadOnlyError("ro"), path).message
    assert "cannot be opened" in sqlite_file.explain(apsw.IOError("disk"), path).message
    assert sqlite_file.explain(apsw.IOError("disk"), path).retryable
    assert sqlite_file.explain(apsw.CantOpenError("no"), path).retryable, "too many open files pass"
    assert "could not run a query" in sqlite_file.explain(apsw.SQLError("syntax"), path).message


FORKS = """
import asyncio, os, sys
from pathlib import Path
from foliot.errors import Unavailable
from foliot.store.sqlite.database import SqliteDatabase

async def main():
    database = await SqliteDatabase.open(Path(sys.argv[1]))
    if os.fork() == 0:
        attempt = database.read("setting_get", name="a")
        try:
            attempt.send(None)
        except Unavailable as told:
            os._exit(0 if "forked" in told.message else 1)
        os._exit(2)
    _, status = os.wait()
    await database.read("setting_get", name="a")
    await database.close()
    sys.exit(os.waitstatus_to_exitcode(status))

asyncio.run(main())
"""


def test_a_forked_child_is_told_to_open_the_store_for_itself(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, str(tmp_path / "f.db")], timeout=110, check=False)
    assert done.returncode == 0


def _create_and_write(path: str, number: int, start: multiprocessing.synchronize.Event) -> None:
    async def work() -> None:
        start.wait(60)
        database = await open_database(path)
        await asyncio.gather(*(database.write(put, f"p{number}-{n}", "x") for n in range(20)))
        for n in range(20):
            await database.write(put, f"q{number}-{n}", "x")
        await database.close()

    asyncio.run(work())


async def test_eight_processes_can_create_and_write_one_store_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    path = str(tmp_path / "new" / "foliot.db")
    processes = [context.Process(target=_create_and_write, args=(path, number, start)) for number in range(8)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        await asyncio.to_thread(process.join, 90)
    assert [process.exitcode for process in processes] == [0] * 8
    database = await SqliteDatabase.open(path)
    stored = [await get(database, f"{p}{number}-{n}") for p in "pq" for number in range(8) for n in range(20)]
    await database.close()
    assert stored == ["x"] * 320
