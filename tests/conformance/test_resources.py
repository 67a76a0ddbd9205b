"""Every resource store under the same suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.store.base import Database
from foliot.store.open import open_database
from tests.conformance.resource_secrets import SecretConformance
from tests.conformance.resource_watch import WatchConformance
from tests.conformance.resources import ResourceStoreConformance


class TestSqlite(ResourceStoreConformance, SecretConformance, WatchConformance):
    @pytest.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[Database]:
        opened = await open_database(f"sqlite:///{tmp_path}/store/foliot.db")
        yield opened
        await opened.close()

    @pytest.fixture
    async def twin(self, database: Database, tmp_path: Path) -> AsyncIterator[Database]:
        opened = await open_database(f"{tmp_path}/store/foliot.db")
        yield opened
        await opened.close()


@pytest.mark.services
class TestPostgres(ResourceStoreConformance, SecretConformance, WatchConformance):
    @pytest.fixture
    async def database(self, postgres_url: str) -> AsyncIterator[Database]:
        opened = await open_database(postgres_url)
        yield opened
        await opened.close()

    @pytest.fixture
    async def twin(self, database: Database, postgres_url: str) -> AsyncIterator[Database]:
        opened = await open_database(postgres_url)
        yield opened
        await opened.close()
