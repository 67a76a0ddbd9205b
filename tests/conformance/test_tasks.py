"""Tasks on both databases under the same suite."""

from __future__ import annotations

import pytest

from foliot.store.postgres.database import PostgresDatabase
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.tasks import TasksConformance


class TestSqlite(TasksConformance):
    @pytest.fixture
    async def db(self, tmp_path):
        database = await SqliteDatabase.open(tmp_path / "foliot.db")
        yield database
        await database.close()


class TestPostgres(TasksConformance):
    @pytest.fixture
    async def db(self, postgres_url):
        database = await PostgresDatabase.open(postgres_url)
        yield database
        await database.close()
