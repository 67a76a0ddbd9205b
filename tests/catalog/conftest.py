"""A real store on SQLite for the catalog."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.settings.settings import load_settings
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    database = await open_database(settings.store)
    yield SqlResourceStore(database, lambda: load_keyring(settings))
    await database.close()
