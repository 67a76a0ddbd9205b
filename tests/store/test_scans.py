"""Queries that are asked again and again, whatever is stored, find what they look for by an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.store import queries
from foliot.store.sqlite.file import prepare

# Of timers, sweeps and housekeeping: asked every few seconds or minutes by every process.
ASKED_OFTEN = ("queue_unheard", "purge_blobs", "purge_hold", "queue_lapsed", "queue_due", "signal_any")
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


def test_old_content_is_found_without_reading_it(tmp_path) -> None:
    plan = plan_of(tmp_path, "purge_blobs")

    assert any(line.startswith("SEARCH blob USING COVERING INDEX blob_by_age") for line in plan), plan
