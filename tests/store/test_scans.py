"""Every query finds what it looks for without going through a table that grows, or sorting one.

Each named query is explained, and carried out, in a store with many rows (large_store.py): on SQLite without
statistics, as a fresh store has none, and with them; on PostgreSQL as one plan for all parameters. What it had to look
at is counted by the database, so a filter that no index serves shows too, although the plan speaks of a search. A new
query is covered by itself; when it must look at much, it is named in `MUCH` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

from foliot.store import queries
from foliot.store.sqlite.file import FEWEST_COUNTED, SqliteConnection, connect, prepare, refresh_statistics
from tests.store import large_store

# Queries that look at much, each with the reason.
MUCH: Final[Mapping[str, str]] = {
    "audit_short": "holds all runs of a time against the audit log, now and then and when somebody verifies it",
    "budget_list": "the last used accounts come first, and an index of that would be written with every call",
    "outbox_counts": "counts deliveries, which are forgotten by age",
    "task_phases": "counts all tasks",
    "queue_depth": "counts what is queued",
    "telemetry_queue": "counts what is queued",
    "telemetry_in_flight": "counts what is queued",
    "queue_hasten": "changes all that wait in a namespace, when an endpoint of a model was declared anew",
    "task_feed_marks": "compares the newest tasks, some thousand, with what is queued; once for all who watch",
    "task_feed_deleted": "holds what was told against what there is; rows of what has ended are dropped",
    # Whatever is old is forgotten by going through it, a part at a time.
    "task_feed_old": "forgets",
    "task_feed_drop": "forgets",
    "task_purge_find": "forgets",
    "purge_find": "forgets",
    "purge_blobs": "forgets",
    "purge_held": "forgets",
    "budget_hold_forget": "forgets",
    "outbox_prune": "forgets",
    "taken_prune": "forgets",
    "request_key_prune": "forgets",
    "event_forget_old": "forgets",
    "login_session_prune": "forgets",
    "attempt_prune": "forgets",
}
# Of these, those that are read inside of a transaction, on the thread that writes.
IN_TRANSACTIONS: Final = ("task_feed_old", "task_purge_find", "purge_find")

# Queries that go through much of what is live when there is much, and are read on the thread that writes.
LIVE_IN_TRANSACTIONS: Final[Mapping[str, str]] = {
    "task_feed_old": "forgets",
    "budget_hold_over": "sorts what was held for too long, which is what processes left behind that have died",
    "outbox_claim": "takes deliveries of one channel, in an order that depends on the statistics",
}

# Of the steps of SQLite's machine a row that is looked at takes three at least, one that is read twenty to a hundred.
STEPS_AT_MOST: Final = 2 * large_store.ROWS
ROWS_AT_MOST: Final = large_store.ROWS // 5

# The parameters by name, or by query and name; all others are names that occur once, or numbers of one thing.
_PARAMETERS: Final[Mapping[str, Any]] = {
    "namespace": "a",
    "before": 2**62,
    "before_key": 2**62,
    "before_at": 1e15,
    "before_time": 1e15,
    "until": 1e15,
    "keep": 100,
    "key": 5,
    "run": 5,
    "task": 5,
    "seq": 5,
    "session": 5,
    "owner": 5,
    "number": 5,
    "last": 5,
    "upto": 5,
    "at": 5.0,
    "high": "c6",
    "low": "c5",
    "count": 50,
    "limit": 50,
    "each": 4,
    "after": 0,
    "after_time": 0.0,
    "since": 0.0,
    "now": 1e9,
    # These narrow what an index has found, and may have to look at all of it: their queries have a deadline.
    "moment": "",
    "outcome": "",
    "call_id": "",
    "channel": "",
    "state": "",
    "audit_find.agent": "",
    "audit_find_everywhere.agent": "",
    "session_list.kind": "",
    "folder_list.agent": "",
    "folder_list.one_user": 0,
    "begun": 1,
    "held": 1,
    "all": 0,
    "archived": 0,
    "ended": 0,
    "mine": 0,
    "down_to": 0,
    "floor": large_store.ROWS - 100,
    "words": "word5",
    "parent": "",
    "spawned_by": "",
    "phases": '["failed"]',
    "phase": "failed",
    "namespaces": '["a"]',
    "keys": '["5"]',
    "tasks": '["5"]',
    "runs": '["5"]',
    "also": "[]",
    "labels": "[]",
    "private": "",
    "own": "",
}
_ARRAY: Final = re.compile(r"json_each\(:([a-z_]+)\)")
_TABLE: Final = re.compile(r"(?:\b(?:FROM|JOIN|UPDATE|INTO)|,)\s+([a-z_]+)(?:\s+AS\s+([a-z_]+))?")


def given(name: str, text: str) -> dict[str, Any]:
    """Returns parameters with which a query finds something, or looks for it in vain where it is rare."""
    arrays = set(_ARRAY.findall(text))
    return {
        each: _PARAMETERS.get(f"{name}.{each}", _PARAMETERS.get(each, '["c5"]' if each in arrays else "c5"))
        for each in queries.for_postgres(text)[1]
    }


def refused(name: str, plan: list[str], looked_at: int, most: int, text: str) -> str | None:
    """Returns what is wrong with how a query is carried out."""
    if name in MUCH:
        return None
    tables = {alias or table: table for table, alias in _TABLE.findall(text)}
    scans = [line for line in plan if _scanned(line, tables)]
    if scans:
        return f"goes through {scans}"
    return f"looks at {looked_at}: {plan}" if looked_at > most else None


def _scanned(line: str, tables: Mapping[str, str]) -> bool:
    """Whether SQLite goes through a whole table that grows. An index of rows that are at work holds few."""
    if not line.startswith("SCAN") or "VIRTUAL TABLE" in line:
        return False
    table = tables.get(line.split()[1], line.split()[1])
    partial = re.search(r"INDEX (\w+)", line)
    return table in _GROWING and not (partial and partial[1] in _OF_LIVE_ROWS)


_GROWING: set[str] = set()
# Partial indices: of what is at work, or has not yet been decided.
_OF_LIVE_ROWS: Final = ("queue_held_by_due", "outbox_due", "doubt_open", "task_told_live", "run_live")


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteConnection]:
    connection = prepare(tmp_path_factory.mktemp("scans") / "foliot.db")
    connection.execute("PRAGMA query_only = OFF; PRAGMA synchronous = OFF")
    tables: dict[str, list[tuple[str, str]]] = {}
    found = connection.execute(
        "SELECT name FROM sqlite_schema "
        "WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'session_words_%'"
    )
    for (table,) in found.fetchall():
        columns = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
        tables[table] = [(column[1], column[2]) for column in columns if column[6] == 0]
    tables["session_words"].append(("rowid", "int"))
    _GROWING.update(tables.keys() - large_store.SMALL.keys())
    connection.execute("BEGIN")
    for statement in large_store.statements(tables, "sqlite"):
        connection.execute(statement).fetchall()
    connection.execute("COMMIT")
    yield connection
    connection.close()


def _of_sqlite(connection: SqliteConnection, texts: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the queries that are not carried out well, each with what is wrong."""
    found: dict[str, str] = {}
    for name, text in (texts or queries.load()).items():
        parameters = given(name, text)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()]
        steps = _steps(connection, text, parameters)
        if wrong := refused(name, plan, steps, STEPS_AT_MOST, text):
            found[name] = wrong
    return found


def _steps(connection: SqliteConnection, text: str, parameters: Mapping[str, Any]) -> int:
    """Returns how many steps SQLite's machine takes for a statement, which changes nothing in the end."""
    steps = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps = event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    traced: Any = connection
    connection.execute("SAVEPOINT looked_at")
    traced.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    with suppress(apsw.ConstraintError):  # a row that is there already was looked for all the same
        connection.execute(text, parameters).fetchall()
    traced.trace_v2(0, None)
    connection.execute("ROLLBACK TO looked_at; RELEASE looked_at")
    return steps


def test_no_query_goes_through_a_growing_table_on_sqlite(sqlite: SqliteConnection) -> None:
    without_statistics = _of_sqlite(sqlite)
    sqlite.execute("PRAGMA analysis_limit = 400; ANALYZE").fetchall()

    _expect_none(without_statistics)
    _expect_none(_of_sqlite(sqlite))


@pytest.mark.parametrize("name", ["task_keys_in_phases", "task_keys_in_phases_everywhere"])
def test_a_page_of_what_waits_is_found_without_sorting_all_that_does(name: str, sqlite: SqliteConnection) -> None:
    sqlite.execute("SAVEPOINT everything_waits; UPDATE queue SET let_go = 1")
    wrong = _of_sqlite(sqlite, {name: queries.load()[name]})
    sqlite.execute("ROLLBACK TO everything_waits; RELEASE everything_waits")

    _expect_none(wrong)


def test_what_goes_through_all_that_is_live_is_read_off_the_event_loop(sqlite: SqliteConnection) -> None:
    """Partial indices of what is live are small until there is much that is."""
    sqlite.execute(
        "SAVEPOINT everything_lives; UPDATE run SET phase = 'waiting'; UPDATE doubt SET decision = '';"
        "UPDATE outbox SET state = 'pending'; UPDATE budget_hold SET state = 'held'; UPDATE task SET phase = 'queued'"
    )
    try:
        walks = {
            name
            for name, text in queries.load().items()
            if text.startswith(("SELECT", "WITH")) and name not in queries.long_reads()
            if _steps(sqlite, text, given(name, text)) > STEPS_AT_MOST
        }
    finally:
        sqlite.execute("ROLLBACK TO everything_lives; RELEASE everything_lives")

    assert walks <= set(LIVE_IN_TRANSACTIONS)


def _expect_none(wrong: Mapping[str, str]) -> None:
    if wrong:
        pytest.fail("\n".join(f"{name} {each}" for name, each in wrong.items()), pytrace=False)


@pytest.mark.services
async def test_no_query_goes_through_a_growing_table_on_postgresql(postgres_url: str) -> None:
    import asyncpg

    from foliot.store.postgres.database import PostgresDatabase

    await (await PostgresDatabase.open(postgres_url)).close()
    client = await asyncpg.connect(postgres_url)
    try:
        await _fill(client)
        # A table of this size fits in few pages, and going through them may seem cheap: only who has no index does.
        await client.execute("SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off")
        await client.execute("SET random_page_cost = 1.1")
        found: dict[str, str] = {}
        for name in queries.load():
            text, names = queries.load_for_postgres(name)
            parameters = given(name, queries.load("postgres")[name])
            plan = await _explained(client, text, [parameters[each] for each in names])
            if wrong := _refused_by_postgres(name, plan):
                found[name] = wrong
    finally:
        await client.close()
    _expect_none(found)


async def _fill(client: Any) -> None:
    rows = await client.fetch(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND is_generated = 'NEVER' ORDER BY table_name, ordinal_position"
    )
    tables: dict[str, list[tuple[str, str]]] = {}
    for table, column, kind in rows:
        tables.setdefault(table, []).append((column, kind))
    _GROWING.update(tables.keys() - large_store.SMALL.keys())
    await client.execute("SET synchronous_commit = off")
    for statement in large_store.statements(tables, "postgres"):
        await client.execute(statement)
    await client.execute("VACUUM ANALYZE")


async def _explained(client: Any, text: str, parameters: list[Any]) -> dict[str, Any]:
    """Returns the plan of a statement with what it looked at; without that where it would break a rule of a table."""
    import asyncpg

    for carried_out in ("ANALYZE, TIMING OFF, ", ""):
        transaction = client.transaction()
        await transaction.start()
        try:
            prepared = await client.prepare(text)
            types = [each.name for each in prepared.get_parameters()]
            literals = [_literal(each, kind) for each, kind in zip(parameters, types, strict=True)]
            await client.execute(f"PREPARE asked AS {text}")
            arguments = f"({', '.join(literals)})" if literals else ""
            found = await client.fetchval(f"EXPLAIN ({carried_out}COSTS ON, FORMAT JSON) EXECUTE asked{arguments}")
            return json.loads(found)[0]["Plan"]
        except asyncpg.IntegrityConstraintViolationError:
            assert text.startswith("INSERT")
        finally:
            await transaction.rollback()
            await client.execute("DEALLOCATE asked")
    raise AssertionError("a statement that is only planned breaks no rule")


def _literal(value: Any, kind: str) -> str:
    if kind in ("int8", "int4"):
        return str(value) if isinstance(value, int) else str(int(value)) if isinstance(value, float) else "5"
    if kind in ("float8", "float4", "numeric"):
        return str(float(value)) if isinstance(value, int | float) else "5.0"
    if kind == "bytea":
        return "'\\x00'::bytea"
    return f"'{value}'"


def _refused_by_postgres(name: str, plan: dict[str, Any]) -> str | None:
    if name in MUCH:
        return None
    nodes = [plan]
    for node in nodes:
        nodes += node.get("Plans", ())
    scans = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
    if grown := _GROWING.intersection(scans):
        return f"goes through {grown}"
    looked_at = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if "Actual Rows" in node and not node.get("Plans")
    )
    if looked_at <= ROWS_AT_MOST:
        return None
    shown = [
        (n["Node Type"], n.get("Index Name"), n.get("Actual Rows"), n.get("Rows Removed by Filter")) for n in nodes
    ]
    return f"looks at {looked_at}: {shown}"


def test_old_content_is_found_without_reading_it(sqlite: SqliteConnection) -> None:
    text = queries.load()["purge_blobs"]
    plan = [row[3] for row in sqlite.execute(f"EXPLAIN QUERY PLAN {text}", given("purge_blobs", text)).fetchall()]

    assert any(line.startswith("SEARCH blob USING COVERING INDEX blob_by_age") for line in plan), plan


def test_what_looks_at_much_is_read_off_the_event_loop() -> None:
    reads = [name for name in MUCH if queries.load()[name].startswith(("SELECT", "WITH"))]

    assert set(reads).difference(IN_TRANSACTIONS) <= queries.long_reads()


def test_the_rows_of_a_table_are_counted_only_when_it_is_large(tmp_path: Path) -> None:
    """A plan that was made for a small table would go through all of it when it has grown."""
    path = tmp_path / "foliot.db"
    prepare(path).close()
    connection = connect(path, patience=5.0)
    counts: list[int] = []
    for first, behind in ((0, 100), (100, FEWEST_COUNTED)):
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT ? UNION ALL SELECT i + 1 FROM n WHERE i < ? - 1) "
            "INSERT INTO blob (digest, data, created_at, unowned) SELECT 'd' || i, x'00', i, 0 FROM n",
            (first, behind),
        ).fetchall()
        refresh_statistics(path)
        counts.append(len(connection.execute("SELECT 1 FROM sqlite_stat1 WHERE tbl = 'blob'").fetchall()))
    connection.close()

    assert counts[0] == 0
    assert counts[1] > 0
