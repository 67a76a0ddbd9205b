"""Results that tools push, by way of the store: on both databases, whoever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.settings.settings import load_settings
from foliot.store.base import Database
from foliot.store.ledger.pushes import StoredPushes
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.store.secrets.store_key import StoreKey

LATER = 4_000_000_000.0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else f"sqlite:///{tmp_path}/store.db"
    database = await open_database(url)
    yield database
    await database.close()


@pytest.fixture
def processes(database: Database, tmp_path: Path) -> list[StoredPushes]:
    """Several who share the store and its key file, and nothing else."""
    settings = load_settings({"home": str(tmp_path)}, {})
    return [StoredPushes(database, StoreKey(database, lambda: load_keyring(settings), None)) for _ in range(4)]


async def test_all_processes_have_one_key_whoever_made_it(processes: list[StoredPushes]) -> None:
    keys = await asyncio.gather(*(each.key() for each in processes))

    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


async def test_of_several_pushes_one_is_taken_and_found_by_all(processes: list[StoredPushes]) -> None:
    waiting, *others = processes
    assert not await others[0].take("r1", b"too early")
    await waiting.expect("r1", LATER)
    assert await waiting.pushed("r1") is None

    taken = await asyncio.gather(*(each.take("r1", b"from %d" % n) for n, each in enumerate(others)))

    assert sorted(taken) == [False, False, True]
    assert await waiting.pushed("r1") == b"from %d" % taken.index(True)
    await waiting.expect("r1", LATER)  # by whoever goes on after a crash: what came stays
    assert await others[0].pushed("r1") is not None
    await waiting.forget("r1")
    assert await waiting.pushed("r1") is None
    assert not await others[0].take("r1", b"too late")


async def test_addresses_stay_good_when_keys_are_rotated_and_forgotten(
    database: Database, processes: list[StoredPushes], tmp_path: Path
) -> None:
    settings = load_settings({"home": str(tmp_path)}, {})
    before = await processes[0].key()

    for _ in range(3):
        rotated = await SqlResourceStore(database, lambda: load_keyring(settings)).rotate_key(forget=True)

    assert rotated.retired, "the key that it was sealed with is gone"
    assert await StoredPushes(database, StoreKey(database, lambda: load_keyring(settings), None)).key() == before
