"""Every journal under the same suite."""

from __future__ import annotations

import pytest

from foliot.store.journal.database import SqlJournal
from foliot.store.journal.memory import MemoryJournal
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.journal import JournalConformance


class TestMemory(JournalConformance):
    @pytest.fixture
    def journal(self) -> MemoryJournal:
        return MemoryJournal()


class TestSqlite(JournalConformance):
    @pytest.fixture
    async def journal(self, tmp_path):
        database = await SqliteDatabase.open(tmp_path / "foliot.db")
        yield SqlJournal(database, clock=lambda: 0.0)
        await database.close()


class TestPostgres(JournalConformance):
    @pytest.fixture
    async def journal(self, postgres_url):
        database = await PostgresDatabase.open(postgres_url)
        yield SqlJournal(database, clock=lambda: 0.0)
        await database.close()
