"""Accounts and sessions on SQLite and PostgreSQL, under one suite."""

from __future__ import annotations

import pytest

from foliot.store.postgres.database import PostgresDatabase
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.logins import LoginConformance


class TestSqliteLogins(LoginConformance):
    @pytest.fixture
    async def database(self, tmp_path):
        database = await SqliteDatabase.open(tmp_path / "foliot.db")
        yield database
        await database.close()


class TestPostgresLogins(LoginConformance):
    @pytest.fixture
    async def database(self, postgres_url):
        database = await PostgresDatabase.open(postgres_url)
        yield database
        await database.close()
