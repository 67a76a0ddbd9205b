"""Limiters and circuits of one process and of a store, under the same suites."""

from __future__ import annotations

import pytest

from foliot.engine.limits.shared import SharedCircuits, SharedLimiter
from foliot.store.ledger.tool_limits import SqlLimits
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.pipeline.breaker import Circuits
from foliot.tools.pipeline.limiter import LocalLimiter
from tests.conformance.limits import CircuitConformance, LimiterConformance


@pytest.fixture
async def sqlite(tmp_path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield SqlLimits(database)
    await database.close()


@pytest.fixture
async def postgres(postgres_url):
    database = await PostgresDatabase.open(postgres_url)
    yield SqlLimits(database)
    await database.close()


class TestLocalLimiter(LimiterConformance):
    @pytest.fixture
    def limiter(self, time):
        return LocalLimiter(time, time.sleep)


class TestSqliteLimiter(LimiterConformance):
    @pytest.fixture
    async def limiter(self, sqlite, time):
        limiter = SharedLimiter(sqlite, clock=time, sleep=time.sleep)
        yield limiter
        await limiter.close()


class TestPostgresLimiter(LimiterConformance):
    @pytest.fixture
    async def limiter(self, postgres, time):
        limiter = SharedLimiter(postgres, clock=time, sleep=time.sleep)
        yield limiter
        await limiter.close()


class TestLocalCircuits(CircuitConformance):
    @pytest.fixture
    def circuits(self):
        return Circuits(failures=3, seconds=30.0)


class TestSqliteCircuits(CircuitConformance):
    @pytest.fixture
    async def circuits(self, sqlite, time):
        circuits = SharedCircuits(sqlite, clock=time, failures=3, seconds=30.0)
        yield circuits
        await circuits.close()


class TestPostgresCircuits(CircuitConformance):
    @pytest.fixture
    async def circuits(self, postgres, time):
        circuits = SharedCircuits(postgres, clock=time, failures=3, seconds=30.0)
        yield circuits
        await circuits.close()
