"""Queries over arrays: what becomes of the text, and that they do what the query does when it is run once for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from foliot.errors import FoliotError
from foliot.store.journal.base import Entry, JournalConflict, Lease, LeaseLost, NewRun, StoreSetBack
from foliot.store.journal.database import SqlJournal
from foliot.store.postgres.connections import BY_KEYS
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.postgres.driver import asyncpg
from foliot.store.postgres.sets import can_share, form_of, has_set_form, over_arrays, run_many, run_shared
from foliot.store.queries import apart_of, load, load_for_postgres
from foliot.store.transaction import Statement

# Tables with a row for each worker, and for each class of runs that fails: they do not grow.
WALKS = {"class_forget_namespace", "worker_lose"}

# --- the texts -------------------------------------------------------------------------------------------------------


def test_rows_to_add_come_from_arrays() -> None:
    text, _ = load_for_postgres("event_add")
    types = ["int8", "int8", "float8", "text", "bytea", "text", "bytea"]
    assert over_arrays(text, types).text == (
        "INSERT INTO event (run, seq, at, type, data, blob, link) "
        "SELECT given.p1, given.p2, given.p3, given.p4, given.p5, given.p6, given.p7 FROM unnest("
        "$1::int8[], $2::int8[], $3::float8[], $4::text[], $5::bytea[], $6::text[], $7::bytea[]) "
        "AS given(p1, p2, p3, p4, p5, p6, p7)"
    )


def test_a_change_looks_at_each_row_that_it_is_given_in_the_order_of_keys() -> None:
    text, names = load_for_postgres("run_advance")
    assert names == ("last", "key", "epoch", "worker", "after")
    form = over_arrays(text, ["int8", "int8", "int8", "text", "int8"], unique=[frozenset({"key"})])
    assert form.text == (
        "UPDATE run SET last_seq = given.p1 "
        "FROM (SELECT each.* FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[], $5::int8[]) "
        "WITH ORDINALITY AS each(p1, p2, p3, p4, p5, given_nr) "
        "JOIN run AS locked ON locked.key = each.p2 ORDER BY locked.key FOR UPDATE OF locked) AS given "
        "WHERE key = given.p2 AND epoch = given.p3 AND worker = given.p4 AND last_seq = given.p5 "
        "AND COALESCE(cancelling, 0) <> 1 RETURNING given.given_nr"
    )
    assert [names[place] for place in form.key] == ["key"]


def test_only_rows_are_locked_that_agree_in_all_that_is_compared_unless_fewer_columns_name_one() -> None:
    text = "DELETE FROM t WHERE kind = $1 AND owner = $2\n   AND seq = $3 AND (a OR b = $4)"
    for unique, locked in (
        ([], ["kind", "owner", "seq"]),
        ([frozenset({"kind"})], ["kind"]),
        ([frozenset({"owner", "kind"}), frozenset({"seq"})], ["kind", "owner"]),
        ([frozenset({"other"})], ["kind", "owner", "seq"]),
    ):
        form = over_arrays(text, ["text", "int8", "int8", "int8"], unique=unique)
        assert form.text.partition("ORDER BY ")[2].partition(" FOR UPDATE")[0] == ", ".join(
            f"locked.{each}" for each in locked
        )
        assert form.key == tuple(range(len(locked)))


def test_new_rows_come_in_the_order_of_what_they_may_conflict_in() -> None:
    text = "INSERT INTO t (a, b, c) VALUES ($2, 'x', $1) ON CONFLICT (c, a) DO NOTHING"
    assert "ORDER BY given.p1, given.p2 ON CONFLICT" in over_arrays(text, ["int8", "int8"]).text


def test_what_a_new_row_is_told_apart_by_comes_back_with_it() -> None:
    text, names = load_for_postgres("blob_use")
    form = over_arrays(text, ["int8", "text"], apart=apart_of("blob_use"), names=names)
    assert form.text.endswith("RETURNING digest AS given_digest, run AS given_run")
    assert [names[place] for place in form.apart] == ["digest", "run"]


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET a = (SELECT 1 WHERE true) WHERE b = $1",
        "UPDATE t SET a = $1 WHERE b = (SELECT MAX(b) FROM t)",
        "UPDATE t SET a = $1 FROM u WHERE b = $1",
        "UPDATE t SET a = 1 WHERE b = $1 OR c = $1",
        "DELETE FROM t WHERE a IN (SELECT $1)",
        "DELETE FROM t WHERE a = $1 RETURNING a + 1 AS b",
        "INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET b = 1",
        "INSERT INTO t (a) SELECT $1 ON CONFLICT (a) DO UPDATE SET b = 1",
        "INSERT INTO t (a, b) VALUES ($1, (SELECT MAX(b) FROM t))",
        "WITH x AS (SELECT $1) DELETE FROM t",
        "SELECT 1",
    ],
)
def test_what_has_another_form_is_refused(text: str) -> None:
    with pytest.raises(FoliotError, match="cannot be run over arrays"):
        over_arrays(text, ["int8"] * text.count("$1"))


def test_a_column_that_tells_rows_apart_is_a_parameter_too() -> None:
    for name in load():
        assert set(apart_of(name)) <= set(load_for_postgres(name)[1]), name


# --- on a real PostgreSQL --------------------------------------------------------------------------------------------


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    opened = await PostgresDatabase.open(postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def client(database: PostgresDatabase, postgres_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def test_postgresql_takes_every_query_that_has_a_form_over_arrays(client: Any) -> None:
    taken = [name for name in sorted(load()) if has_set_form(name)]
    assert len(taken) > 100
    for name in taken:
        types = [each.name for each in (await client.prepare(load_for_postgres(name)[0])).get_parameters()]
        form = await form_of(client, name)
        try:
            prepared = await client.prepare(form.text)
        except asyncpg.PostgresError as error:
            error.add_note(f"{name}: {form.text}")
            raise
        assert [each.name for each in prepared.get_parameters()] == [f"{each}[]" for each in types], name


async def test_no_plan_that_was_made_when_a_table_was_empty_walks_through_it_later(client: Any) -> None:
    """A plan is kept for minutes. Of what is written over arrays, each row is found by its key from the beginning."""
    await client.execute("; ".join(f"SET {each} = off" for each in BY_KEYS))
    await client.execute("SET plan_cache_mode = force_generic_plan")
    walks: set[str] = set()
    for name in sorted(filter(has_set_form, load())):
        text, _ = load_for_postgres(name)
        types = [each.name for each in (await client.prepare(text)).get_parameters()]
        form = await form_of(client, name)
        if form.verb not in ("update", "delete") and "FOR UPDATE" not in text:
            continue
        await client.execute(f"PREPARE shown AS {form.text}")
        given = ", ".join("'{}'" for _ in types)
        plan = [each[0] for each in await client.fetch(f"EXPLAIN EXECUTE shown({given})")]
        await client.execute("DEALLOCATE shown")
        if any("Seq Scan" in line for line in plan):
            walks.add(name)
    assert walks == WALKS


SEED = """
INSERT INTO run (id, namespace, agent, phase, epoch, last_seq, worker, lease_until, created_at, updated_at,
                 labels, summary, root, conversation, pin)
SELECT 'r' || n, 'default', 'a', 'running', n, 5, 'w', 9, 1, 1, '{}', '{}', '', 'r' || n, 1
  FROM generate_series(1, 6) AS n;
INSERT INTO queue (run, run_id, task, namespace, agent, lane, class, priority, line, due_at, held, max_running,
                   requirements)
SELECT key, id, key, 'default', 'a', '', 'c', 0, 'l', key % 3, 0, 0, '{}' FROM run;
INSERT INTO signal (id, run_id, at, type, data, arrival)
SELECT 's' || n, 'r' || (n % 4 + 1), n, 't', '', n FROM generate_series(1, 9) AS n;
INSERT INTO blob (digest, data, created_at) SELECT 'd' || n, '', 0 FROM generate_series(1, 3) AS n;
INSERT INTO work_class (key, namespace, agent, lane, failures, failed_at) VALUES ('c', 'n', 'a', '', 1, 0);
"""
TABLES = ("run", "event", "queue", "signal", "blob", "blob_use", "work_class", "task_event")


def statements(name: str, want: Any, sets: Sequence[dict[str, Any]]) -> list[Statement]:
    return [Statement(name, each, want) for each in sets]


def release(key: int, *, epoch: int | None = None, summary: str | None = None) -> dict[str, Any]:
    fields = {"key": key, "epoch": key if epoch is None else epoch, "worker": "w", "after": 5, "last": 7, "at": 2.0}
    return {**fields, "phase": "succeeded", "summary": summary}


CASES: dict[str, list[Statement]] = {
    "a read finds rows for some": statements("run_get", "rows", [{"id": each} for each in ("r2", "none", "r1", "r2")]),
    "a read gives many rows in its order": statements(
        "queue_take",
        "rows",
        [{"line": "l", "now": now, "count": count} for now, count in ((2.0, 3), (0.5, 9), (9.0, 2))],
    ),
    "locks by keys": statements("run_lock", "rows", [{"keys": json.dumps(each)} for each in ([1, 2], [4], [9])]),
    "a fence holds for some": statements(
        "run_release", "count", [release(1), release(2, epoch=1), release(3, summary="{1}"), release(99)]
    ),
    "rows that go, and are told": statements("signals_left", "rows", [{"id": each} for each in ("r1", "r6", "r3")]),
    "the same row goes once": statements("class_well", "count", [{"key": each} for each in ("c", "c", "d", "c")]),
    "rows that go, by key": statements("queue_remove", "count", [{"run": each} for each in (1, 42, 3)]),
    "content that is used": statements(
        "blob_use", "count", [{"digest": d, "run": r} for d, r in (("d1", 1), ("gone", 1), ("d1", 2), ("d1", 1))]
    ),
    "runs, one of them twice": statements(
        "run_create",
        "rows",
        [
            {
                **dict.fromkeys(("worker", "lease_until", "parent", "parent_seq")),
                **dict.fromkeys(("namespace", "agent", "phase", "labels", "root"), "x"),
                "pin": 1,
                **dict.fromkeys(("id", "conversation"), each),
                **dict.fromkeys(("epoch", "last", "created_at"), 1),
            }
            for each in ("new1", "r1", "new2", "new1")
        ],
    ),
    "a row is changed twice": statements("queue_hold", "count", [{"run": 1, "until": 5.0}, {"run": 1, "until": 6.0}]),
}


async def dump(client: Any) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for table in TABLES:
        rows = await client.fetch(f"SELECT * FROM {table}")
        # Keys come from a sequence, which no ROLLBACK sets back.
        kept = [{k: v for k, v in row.items() if (table, k) != ("run", "key")} for row in rows]
        found[table] = sorted((tuple(each.values()) for each in kept), key=repr)
    return found


async def one_by_one(client: Any, wanted: Sequence[Statement]) -> list[Any]:
    results: list[Any] = []
    for each in wanted:
        text, names = load_for_postgres(each.name)
        params: Any = each.params
        arguments = [params[name] for name in names]
        if each.want == "rows":
            results.append([dict(row) for row in await client.fetch(text, *arguments)])
        else:
            results.append(int((await client.execute(text, *arguments)).split()[-1]))
    return results


def without_keys(name: str, results: Any) -> Any:
    return [len(each) for each in results] if name == "run_create" else results


@pytest.mark.parametrize("case", CASES)
async def test_together_is_the_same_as_one_by_one(case: str, client: Any) -> None:
    wanted = CASES[case]
    await client.execute("ALTER SEQUENCE run_key_seq RESTART")
    await client.execute(SEED)
    outcomes: list[Any] = []
    for run in (one_by_one, run_shared):
        await client.execute("BEGIN")
        results = await run(client, wanted)
        if results is None:  # it says that it would not be the same
            assert case == "a row is changed twice"
            await client.execute("ROLLBACK")
            return
        outcomes.append((without_keys(wanted[0].name, results), await dump(client)))
        await client.execute("ROLLBACK")
    assert can_share(wanted[0].name, wanted[0].want)
    assert outcomes[0] == outcomes[1]


async def test_what_is_changed_twice_by_many_is_changed_in_order(client: Any) -> None:
    await client.execute("ALTER SEQUENCE run_key_seq RESTART")
    await client.execute(SEED)
    await run_many(client, "queue_hold", [(5.0, 1), (6.0, 2), (7.0, 1)])
    found = await client.fetch("SELECT run, due_at FROM queue WHERE held = 1 ORDER BY run")
    assert [tuple(each) for each in found] == [(1, 7.0), (2, 6.0)]


# --- facts -----------------------------------------------------------------------------------------------------------


def entry(seq: int) -> Entry:
    return Entry(seq, float(seq), "x", b"{}", b"")


async def begun(journal: SqlJournal, run_id: str) -> Lease:
    new = NewRun(id=run_id, namespace="default", agent="a", spec="s", created_at=1.0, content={"s": b""})
    lease = await journal.create(new, [entry(1)], worker="w", lease_until=9e9)
    assert lease is not None
    return lease


async def test_of_appends_together_only_those_fail_whose_fence_does_not_hold(database: PostgresDatabase) -> None:
    journal = SqlJournal(database)
    leases = [await begun(journal, f"r{number}") for number in range(12)]
    stale = Lease(leases[3].run_id, leases[3].key, leases[3].epoch - 1, "w", 9e9)
    appends = [journal.append(lease, [entry(2), entry(3)]) for lease in leases if lease is not leases[3]]
    results = await asyncio.gather(
        *appends,
        journal.append(stale, [entry(2)]),
        journal.append(leases[5], [entry(2)]),  # a second one for a run
        journal.append(leases[6], [entry(9)]),
        return_exceptions=True,
    )
    assert results[: len(appends)] == [None] * len(appends)
    assert [type(each) for each in results[len(appends) :]] == [LeaseLost, JournalConflict, StoreSetBack]
    for lease in leases:
        found = [each.seq for each in await journal.read(lease.run_id)]
        assert found == ([1] if lease is leases[3] else [1, 2, 3]), lease.run_id


OTHERS = """
INSERT INTO inbox (owner_kind, owner, seq, id, mode, digest, by_name, place, details, status, steered, outcome, reason,
                   at)
SELECT kind, owner, seq, 'i' || seq, 'followup', '', '', '', '{}', 'pending', 0, '', '', 0
  FROM unnest(ARRAY['session', 'run']) AS kind, generate_series(1, 40) AS owner, generate_series(1, 3) AS seq;
INSERT INTO session_channel (namespace, agent, user_name, channel, active)
SELECT namespace, 'a' || n, 'u', 'c', '' FROM unnest(ARRAY['one', 'two']) AS namespace, generate_series(1, 40) AS n;
INSERT INTO resource_label (label, value, key)
SELECT label, 'v', n FROM unnest(ARRAY['x', 'y']) AS label, generate_series(1, 40) AS n;
"""
# A change of two rows that have a column in common with very many others, and where one of the others is.
NAMED: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "inbox_clear": ("inbox WHERE owner = 30", [("session", 1), ("session", 2)]),
    "inbox_consume": ("inbox WHERE owner = 30", [("r", 0, "session", 1, 1), ("r", 0, "run", 2, 1)]),
    "session_channel_set": (
        "session_channel WHERE agent = 'a30'",
        [("s", "one", "a1", "u", "c"), ("s", "two", "a1", "u", "c")],
    ),
    "label_remove": ("resource_label WHERE key = '30'", [("x", "v", "1"), ("y", "v", "1")]),
}


@pytest.mark.parametrize("name", NAMED)
async def test_what_is_changed_together_waits_for_no_row_that_nobody_names(
    name: str, client: Any, postgres_url: str
) -> None:
    others, sets = NAMED[name]
    assert has_set_form(name)
    await client.execute(OTHERS)
    holder = await asyncpg.connect(postgres_url)
    try:
        async with holder.transaction():
            assert await holder.fetch(f"SELECT 1 FROM {others} FOR UPDATE")
            await client.execute("SET lock_timeout = '5s'")
            await run_many(client, name, sets)
    finally:
        await holder.close()
