"""Queries that are asked again and again, whatever is stored, find what they look for by an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.store import queries
from foliot.store.sqlite.file import prepare

# Of timers, sweeps and housekeeping: asked every few seconds or minutes by every process.
ASKED_OFTEN = ("queue_unheard", "purge_blobs", "purge_hold", "queue_lapsed", "queue_due", "signal_any")
# Of sessions, which grow without bound with everything that is said in them, and the index by which each is found.
OF_SESSIONS = {
    "session_list": "session_by_activity",
    "session_list_of_user": "session_of_user",
    "session_list_of_agent": "session_of_agent",
    "sessions_to_purge": "session_archived",
    "sessions_unanswered": "inbox_open",
    "inbox_open": "inbox_open",
    "inbox_waiting": "inbox_open",
    "inbox_drop_pending": "inbox_open",
    "inbox_cancel_offered": "inbox_open",
    "inbox_dropped": "inbox_dropped",
    "inbox_forget_dropped": "inbox_dropped",
    "session_of_run": "session_turn_of_run",
    "session_turns": "session_turn_number",
}
# What a query may go through from end to end: it is small whatever is stored.
SMALL = ("signal", "wanted", "s")


def plan_of(folder: Path, name: str) -> list[str]:
    text = queries.load()[name]
    connection = prepare(folder / "foliot.db")
    try:
        given = dict.fromkeys(queries.for_postgres(text)[1], 1)
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", given).fetchall()]
    finally:
        connection.close()


@pytest.mark.parametrize("name", ASKED_OFTEN)
def test_a_query_that_is_asked_often_scans_nothing_large(tmp_path, name: str) -> None:
    plan = plan_of(tmp_path, name)

    scanned = [line for line in plan if line.startswith("SCAN") and line.split()[1] not in SMALL]
    assert scanned == [], plan


@pytest.mark.parametrize(("name", "index"), OF_SESSIONS.items())
def test_a_query_of_sessions_is_answered_by_its_index(tmp_path, name: str, index: str) -> None:
    plan = plan_of(tmp_path, name)

    scanned = [line for line in plan if line.startswith("SCAN")]
    assert scanned == [], plan
    assert any(f"INDEX {index}" in line for line in plan), plan
    assert not any("TEMP B-TREE" in line for line in plan if name.startswith("session_list")), plan


@pytest.mark.services
@pytest.mark.parametrize("name", OF_SESSIONS)
async def test_postgresql_need_not_scan_for_a_query_of_sessions(postgres_url: str, name: str) -> None:
    import asyncpg

    from foliot.store.postgres.database import PostgresDatabase

    await (await PostgresDatabase.open(postgres_url)).close()
    text, names = queries.load_for_postgres(name)
    client = await asyncpg.connect(postgres_url)
    try:
        # Empty tables are always scanned. So that is forbidden, and only a query without an index does it still.
        await client.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
        await client.execute(f"PREPARE asked AS {text}")
        given = f"({', '.join(['NULL'] * len(names))})" if names else ""
        plan = [row[0] for row in await client.fetch(f"EXPLAIN EXECUTE asked{given}")]
    finally:
        await client.close()
    assert not any("Seq Scan on" in line for line in plan), plan


def test_old_content_is_found_without_reading_it(tmp_path) -> None:
    plan = plan_of(tmp_path, "purge_blobs")

    assert any(line.startswith("SEARCH blob USING COVERING INDEX blob_by_age") for line in plan), plan
