"""A real store on SQLite for the catalog."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.settings import load_settings
from foliot.store.keyring import load_keyring
from foliot.store.open import open_database
from foliot.store.resources import SqlResourceStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    database = await open_database(settings.store)
    yield SqlResourceStore(database, lambda: load_keyring(settings))
    await database.close()
