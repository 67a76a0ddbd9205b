"""Claiming on both databases under the same suite."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from foliot.store.postgres.database import PostgresDatabase
from foliot.store.queue.limits import COOL_DOWN, THRESHOLD, Limit, class_failed, set_limit
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.claims import NOW, ClaimsConformance, add, ids, offer, take


class TestSqlite(ClaimsConformance):
    @pytest.fixture
    async def db(self, tmp_path):
        database = await SqliteDatabase.open(tmp_path / "foliot.db")
        yield database
        await database.close()


class TestPostgres(ClaimsConformance):
    @pytest.fixture
    async def db(self, postgres_url):
        database = await PostgresDatabase.open(postgres_url)
        yield database
        await database.close()

    @pytest.mark.parametrize("bound", ["limit", "own limit", "breaker", "none"])
    async def test_bounds_hold_between_processes_that_claim_at_the_same_moment(
        self, postgres_url: str, bound: str
    ) -> None:
        """Each with connections of its own: nothing but the database keeps them apart."""
        async with AsyncExitStack() as stack:
            databases = [await PostgresDatabase.open(postgres_url) for _ in range(5)]
            for database in databases:
                stack.push_async_callback(database.close)
            first, now = databases[0], NOW
            most = {"limit": 3, "own limit": 3, "breaker": 1, "none": 40}[bound]
            if bound == "limit":
                await set_limit(first, Limit("namespace", "default", most))
            if bound == "breaker":
                for _ in range(THRESHOLD):
                    await first.write(class_failed, "default/clerk", NOW)
                now += COOL_DOWN
            for n in range(40):
                await add(first, f"r{n}", lane=f"lane{n % 4}", max_running=3 if bound == "own limit" else 0)
            taken: list[str] = []
            for _ in range(6):
                found = await asyncio.gather(
                    *(take(database, 2, by=offer(f"w{n}"), now=now) for n, database in enumerate(databases))
                )
                taken += [run_id for each in found for run_id in ids(each)]
            assert len(taken) == len(set(taken)) == most
