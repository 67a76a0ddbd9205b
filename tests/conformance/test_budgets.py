"""The ledger of budgets on either database, under the same suite."""

from __future__ import annotations

import pytest

from foliot.store.ledger.budgets import SqlBudgetLedger
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.budgets import BudgetLedgerConformance


class TestSqlite(BudgetLedgerConformance):
    @pytest.fixture
    async def ledger(self, tmp_path):
        database = await SqliteDatabase.open(tmp_path / "foliot.db")
        yield SqlBudgetLedger(database)
        await database.close()


class TestPostgres(BudgetLedgerConformance):
    @pytest.fixture
    async def ledger(self, postgres_url):
        database = await PostgresDatabase.open(postgres_url)
        yield SqlBudgetLedger(database)
        await database.close()
