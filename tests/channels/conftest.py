"""A real store, SQLite and PostgreSQL in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.store.base import Database
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(params=BOTH)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/foliot.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def opened_store(store_url: str) -> AsyncIterator[Database]:
    opened = await open_database(store_url)
    yield opened
    await opened.close()


@pytest.fixture
def declared(opened_store: Database) -> SqlResourceStore:
    return SqlResourceStore(opened_store, lambda: keyring_from_text("00" * 32))
