"""Every query finds what it looks for without going through a table that grows, or sorting one.

Each named query is explained, and carried out, in a store with many rows (large_store.py): with values that are rare
and with values that most rows have; on SQLite without statistics, as a fresh store has none, and with them; on
PostgreSQL as one plan for all parameters, and over arrays of them, as it is done for many callers at once. What it had
to look at is counted by the database and held against what it gave or changed, so a filter that no index serves shows
too, although the plan speaks of a search. A page that is sorted before it is cut off is refused by its plan.

A new query is covered by itself. One that must look at much is named in `MUCH`, `SCANS` or `SORTS` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import pytest

from foliot.store import queries
from foliot.store.sqlite.file import FEWEST_COUNTED, SqliteConnection, connect, prepare, refresh_statistics
from tests.store import large_store

# Queries that look at more than they give, each with the reason.
MUCH: Final[Mapping[str, str]] = {
    "audit_short": "holds all runs of a time against the audit log, now and then and when somebody verifies it",
    "budget_list": "the last used accounts come first, and an index of that would be written with every call",
    "task_phases": "counts all tasks",
    "queue_depth": "counts what is queued",
    "telemetry_queue": "counts what is queued",
    "telemetry_in_flight": "counts what is queued",
    "queue_hasten": "changes all that wait in a namespace, when an endpoint of a model was declared anew",
    "queue_unheard": "holds what was told to runs against those that wait, as a net below those who wake them at once",
    "task_feed_marks": "compares the newest tasks, some thousand, with what is queued; once for all who watch",
    "task_feed_deleted": "holds what was told against what there is; rows of what has ended are dropped",
    "task_feed_old": "looks for the oldest of what was told, when that has grown",
    "held_by_runs": "measures all that runs hold, when a store has become too large",
    "held_by_tasks": "measures all that tasks hold, when a store has become too large",
    "held_content": "measures all content, when a store has become too large",
    "purge_blobs": "passes over content that is in use, which is told by the place of the last one",
}
# Of these, those that go through a whole table that grows: what they count or compare is all of it.
SCANS: Final = (
    *("task_phases", "queue_depth", "telemetry_queue", "telemetry_in_flight", "queue_unheard", "task_feed_deleted"),
    "slot_schedules",  # of an index that has those few rows
    *("token_any", "user_any"),  # these want one row, whichever it is
    *("token_list", "user_list"),  # and these show all
)
# Of those that look at much, the ones that are read inside of a transaction, on the thread that writes.
IN_TRANSACTIONS: Final = ("task_feed_old",)
# Queries that sort what they have found before a page of it is taken, each with what bounds it.
SORTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("run_keys_in_phases", "run_keys_in_phases_everywhere", "run_keys_of_agent_everywhere"),
        "pages of several phases or namespaces, one each",
    ),
    **dict.fromkeys(
        ("task_keys_in_phases", "task_keys_in_phases_everywhere", "task_keys_of_target_everywhere"),
        "pages of several phases or namespaces, one each",
    ),
    **dict.fromkeys(
        ("task_keys_of_lane_everywhere", "task_keys_of_label_everywhere", "audit_find_tool_everywhere"),
        "pages of several namespaces, one each",
    ),
    **dict.fromkeys(("task_keys_named", "task_keys_named_everywhere"), "the tasks of the names that are given"),
    "task_find_end": "some thousand of the newest tasks of a namespace",
    "task_feed_marks": "as in MUCH",
    "budget_list": "as in MUCH",
    "session_search": "the sessions that have the words",
    "token_find": "the tokens that ever had a name",
    "endpoint_of": "the endpoints of one webhook",
    "queue_lines": "a few lines of the queue",
    "queue_unheard": "as in MUCH",
    "conversation_last": "the turns of one conversation",
    "audit_short": "the calls of one run",
    **dict.fromkeys(
        ("run_asking", "run_unattended", "run_paused", "run_waiting_for_model", "task_open_for", "sessions_unanswered"),
        "what is live, beside the event loop",
    ),
    **dict.fromkeys(
        ("telemetry_waiting", "telemetry_expired", "telemetry_pending"), "what is live, beside the event loop"
    ),
    "held_content": "the owners of so many pieces of content",
    "doubt_list": "calls of the same instant about which nobody knows whether they happened",
    "budget_hold_over": "what was held for too long, which is what processes left behind that have died",
}

# Queries that go through much of what is live when there is much. They are read on the thread that writes all the same,
# or a run needs them to go on.
MUCH_THAT_IS_LIVE: Final[Mapping[str, str]] = {
    "mcp_pin_list": "what a namespace has agreed to about tools of MCP servers, once for all who use them",
    "task_feed_old": "looks for the oldest of what was told, when that has grown",
    "budget_hold_over": SORTS["budget_hold_over"],
    "outbox_claim": "takes deliveries of one channel, in an order that depends on the statistics",
}

# Of the steps of SQLite's machine a row that is looked at takes three at least, one that is read twenty to a hundred.
STEPS_AT_MOST: Final = 2 * large_store.ROWS
STEPS_OF_A_ROW: Final = 150
ROWS_AT_MOST: Final = large_store.ROWS // 5
ROWS_OF_A_ROW: Final = 5
# Over arrays are only done what takes part in the transactions of several callers; these are read by themselves.
NEVER_SHARED: Final = ("queue_brief",)
# A query over arrays is carried out for so many sets of parameters.
SETS: Final = 10

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
    **dict.fromkeys(("change_list_kind.upto", "change_list_kinds.upto"), 2**62),
    "homes": '["a"]',
    "at": 5.0,
    "high": "c6",
    "low": "c5",
    "count": 50,
    "limit": 50,
    "each": 4,
    "after": 0,
    "held_content.after": "",
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
    "audit_find_tool_everywhere.agent": "",
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
    # None at all: runs in other phases must not be passed one by one.
    "run_keys_in_phases_any_order.phases": '["none"]',
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
# Values that most rows have, in the place of those above: a page of them is found as soon.
_FREQUENT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("agent", "target", "tool", "kind", "lane"), "few5"),
    "phase": "succeeded",
    "phases": '["succeeded"]',
    "user_name": "user5",
    **dict.fromkeys(("holder", "worker", "identity"), "worker1"),
    **dict.fromkeys(("schedule", "webhook"), "a/5"),
    "state": "sent",
    "budget_hold_forget.state": "settled",
    "outcome": "ok",
    "moment": "decided",
    "folder_list.agent": "few5",
    "inbox_by_id.owner_kind": "session",
}
_ARRAY: Final = re.compile(r"json_each\(:([a-z_]+)\)")
_TABLE: Final = re.compile(r"(?:\b(?:FROM|JOIN|UPDATE|INTO)|,)\s+([a-z_]+)(?:\s+AS\s+([a-z_]+))?")


def given(name: str, text: str, *, frequent: bool = False) -> dict[str, Any]:
    """Returns parameters with which a query finds something, or looks for it in vain where it is rare."""
    arrays = set(_ARRAY.findall(text))
    known = {**_PARAMETERS, **_FREQUENT} if frequent else _PARAMETERS
    return {
        each: known.get(f"{name}.{each}", known.get(each, '["c5"]' if each in arrays else "c5"))
        for each in queries.for_postgres(text)[1]
    }


class Cost(NamedTuple):
    """How a query was carried out: what it looked at, and how many rows it gave or changed."""

    plan: list[str]
    looked_at: int
    rows: int


def refused(name: str, cost: Cost, text: str) -> str | None:
    """Returns what is wrong with how SQLite carries out a query."""
    tables = {alias or table: table for table, alias in _TABLE.findall(text)}
    scans = [line for line in cost.plan if _scanned(line, tables)]
    if scans and name not in SCANS:
        return f"goes through {scans}"
    if "LIMIT" in text and name not in SORTS and any("TEMP B-TREE" in line for line in cost.plan):
        return f"sorts before it takes a page: {cost.plan}"
    if cost.looked_at <= STEPS_AT_MOST + STEPS_OF_A_ROW * cost.rows or name in MUCH:
        return None
    return f"takes {cost.looked_at} steps for {cost.rows} rows: {cost.plan}"


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
        for frequent in (False, True):
            cost = _cost(connection, text, given(name, text, frequent=frequent))
            if wrong := refused(name, cost, text):
                found[name] = wrong
    return found


def _cost(connection: SqliteConnection, text: str, parameters: Mapping[str, Any]) -> Cost:
    """Carries out a statement, which changes nothing in the end, and counts the steps of SQLite's machine."""
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()]
    steps = rows = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps = event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    traced: Any = connection
    connection.execute("SAVEPOINT looked_at")
    traced.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    with suppress(apsw.ConstraintError):  # a row that is there already was looked for all the same
        rows = len(connection.execute(text, parameters).fetchall())
        if not text.startswith(("SELECT", "WITH")):
            rows = traced.changes()
    traced.trace_v2(0, None)
    connection.execute("ROLLBACK TO looked_at; RELEASE looked_at")
    return Cost(plan, steps, rows)


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
        "UPDATE outbox SET state = 'pending'; UPDATE budget_hold SET state = 'held'; UPDATE task SET phase = 'queued';"
        "UPDATE inbox SET status = 'pending'; UPDATE session SET turn = NULL"
    )
    try:
        walks = {
            name
            for name, text in queries.load().items()
            if text.startswith(("SELECT", "WITH")) and name not in queries.long_reads()
            if _cost(sqlite, text, given(name, text)).looked_at > STEPS_AT_MOST
        }
    finally:
        sqlite.execute("ROLLBACK TO everything_lives; RELEASE everything_lives")

    assert walks <= set(MUCH_THAT_IS_LIVE)


def _expect_none(wrong: Mapping[str, str]) -> None:
    if wrong:
        pytest.fail("\n".join(f"{name} {each}" for name, each in wrong.items()), pytrace=False)


@pytest.mark.services
async def test_no_query_goes_through_a_growing_table_on_postgresql(postgres_url: str) -> None:
    import asyncpg

    from foliot.store.postgres.database import PostgresDatabase
    from foliot.store.postgres.sets import form_of, has_set_form

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
            for frequent in (False, True):
                parameters = given(name, queries.load("postgres")[name], frequent=frequent)
                plan = await _explained(client, text, [[parameters[each] for each in names]])
                if wrong := _refused_by_postgres(name, plan):
                    found[name] = wrong
            if has_set_form(name) and queries.locks_of(name) is not None and name not in NEVER_SHARED:
                form, rare = await form_of(client, name), given(name, queries.load("postgres")[name])
                sets = [[_another(rare[each], number) for each in names] for number in range(SETS)]
                if wrong := _refused_by_postgres(name, await _explained(client, form.text, sets)):
                    found[f"{name} over arrays"] = wrong
    finally:
        await client.close()
    _expect_none(found)


def _another(value: Any, number: int) -> Any:
    """Returns the parameter of another one of what is rare."""
    if isinstance(value, str):
        return re.sub(r"\b(c?)5\b", rf"\g<1>{5 + number}", value)
    return value + number if value == 5 else value


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


async def _explained(client: Any, text: str, sets: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Returns the plan of a statement with what it looked at; without that where it would break a rule of a table.

    Of several sets of parameters each parameter is an array.
    """
    import asyncpg

    for carried_out in ("ANALYZE, TIMING OFF, ", ""):
        transaction = client.transaction()
        await transaction.start()
        try:
            prepared = await client.prepare(text)
            types = [each.name for each in prepared.get_parameters()]
            literals = [
                _literal(column[0], kind)
                if not kind.endswith("[]")
                else f"ARRAY[{', '.join(_literal(each, kind[:-2]) for each in column)}]::{kind}"
                for column, kind in zip(zip(*sets, strict=True), types, strict=True)
            ]
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
    nodes = [plan]
    for node in nodes:
        nodes += node.get("Plans", ())
    scans = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
    if (grown := _GROWING.intersection(scans)) and name not in SCANS:
        return f"goes through {grown}"
    looked_at = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if "Actual Rows" in node and not node.get("Plans")
    )
    # What is changed is what stands below the node that changes it.
    rows = max(node.get("Actual Rows", 0) for node in (plan, *plan.get("Plans", ())))
    if looked_at <= ROWS_AT_MOST + ROWS_OF_A_ROW * rows or name in MUCH:
        return None
    shown = [
        (n["Node Type"], n.get("Index Name"), n.get("Actual Rows"), n.get("Rows Removed by Filter")) for n in nodes
    ]
    return f"looks at {looked_at} for {rows} rows: {shown}"


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
            "INSERT INTO blob (digest, data, created_at) SELECT 'd' || i, x'00', i FROM n",
            (first, behind),
        ).fetchall()
        refresh_statistics(path)
        counts.append(len(connection.execute("SELECT 1 FROM sqlite_stat1 WHERE tbl = 'blob'").fetchall()))
    connection.close()

    assert counts[0] == 0
    assert counts[1] > 0
