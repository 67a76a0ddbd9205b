"""A store knows its key: another home, a lost key file and two first starts at once, on one file and one PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foliot.errors import SecretError
from foliot.settings.settings import load_settings
from foliot.store.base import Database, Key, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.store.secrets.store_key import RETIRED, key_of_store

KEY = Key("Secret", "default", "pin")


def secret(value: str = "0042", name: str = "pin") -> Put:
    metadata = {"name": name, "namespace": "default"}
    return Put({"kind": "Secret", "metadata": metadata, "spec": {"stringData": {"value": value}}})


class Home:
    """One FOLIOT_HOME with its own key file, on a database that others use too."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.settings = load_settings({"home": str(folder)}, {})
        self.database = database
        self.restart()

    @property
    def file(self) -> Path:
        return self.settings.secret_key_file

    def restart(self) -> None:
        make = partial(load_keyring, self.settings)
        self.store = SqlResourceStore(self.database, make, existing=partial(make, create=False))

    async def value(self) -> bytes:
        return (await self.store.reveal(KEY))["value"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def homes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Home, Home]]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "foliot.db")
    databases = [await open_database(url), await open_database(url)]
    yield Home(tmp_path / "one", databases[0]), Home(tmp_path / "two", databases[1])
    for each in databases:
        await each.close()


async def test_a_second_home_is_refused_until_it_has_the_key(homes: tuple[Home, Home]) -> None:
    one, two = homes
    await one.store.write([secret()])
    kid = await key_of_store(one.database)
    for act in (two.value, partial(two.store.write, [secret("1")]), two.store.rotate_key):
        with pytest.raises(SecretError, match=f"sealed with key {kid}") as caught:
            await act()
        assert "FOLIOT_HOME that used this store first" in (caught.value.hint or "")
    assert not two.file.exists(), "a key that nobody can use must not be made"
    assert await one.value() == b"0042"
    two.file.parent.mkdir(parents=True, exist_ok=True)
    two.file.write_bytes(one.file.read_bytes())
    two.file.chmod(0o600)
    await two.store.write([secret("0043")])
    assert (await one.value(), await two.value()) == (b"0043", b"0043")


async def test_a_home_with_a_key_of_its_own_is_refused_too(homes: tuple[Home, Home]) -> None:
    one, two = homes
    await one.store.write([secret()])
    load_keyring(two.settings)
    before = two.file.read_bytes()
    with pytest.raises(SecretError, match="the keys here are others"):
        await two.store.write([secret(name="other")])
    with pytest.raises(SecretError, match="the keys here are others"):
        await two.store.rotate_key()
    assert two.file.read_bytes() == before
    assert await one.value() == b"0042"


async def test_the_key_of_the_store_seals_wherever_it_stands(homes: tuple[Home, Home]) -> None:
    one, two = homes
    await one.store.write([secret()])
    load_keyring(two.settings)
    with two.file.open("ab") as file:  # what `cat one/secret.key >> two/secret.key` does
        file.write(one.file.read_bytes())
    await two.store.write([secret("0043")])
    assert (await one.value(), await two.value()) == (b"0043", b"0043")
    await one.store.write([secret("0044")])
    rotation = await two.store.rotate_key()
    assert await two.value() == b"0044"
    with pytest.raises(SecretError, match=f"sealed with key {rotation.key_id}"):
        await one.store.write([secret("0045")])


async def test_a_write_that_a_rotation_overtakes_is_sealed_with_the_new_key(homes: tuple[Home, Home]) -> None:
    one, _ = homes
    await one.store.write([secret()])
    looked, go_on = asyncio.Event(), asyncio.Event()
    sealing = one.store.keys.sealing

    async def slow() -> Any:
        ring = await sealing()
        looked.set()
        await go_on.wait()
        return ring

    one.store.keys.sealing = slow  # type: ignore[method-assign]
    writing = asyncio.create_task(one.store.write([secret("1")]))
    await looked.wait()
    rotator = Home(one.settings.home, one.database)
    rotation = await rotator.store.rotate_key()
    go_on.set()
    await writing
    (row,) = await one.database.read("resource_get", key="Secret\x1fdefault\x1fpin")
    assert f":{rotation.key_id}:" in json.loads(row["document"])["spec"]["data"]["value"]
    assert await rotator.value() == b"1"


async def test_of_two_first_starts_one_is_the_first(homes: tuple[Home, Home]) -> None:
    for home in homes:
        load_keyring(home.settings)  # both have passed the look for a mark, and have made a key
    outcomes = await asyncio.gather(
        *(home.store.write([secret(str(n), f"s{n}")]) for n, home in enumerate(homes)), return_exceptions=True
    )
    failed = [each for each in outcomes if isinstance(each, BaseException)]
    assert [type(each) for each in failed] == [SecretError], outcomes
    winner = homes[0 if outcomes[0] not in failed else 1]
    assert (await key_of_store(winner.database)) in load_keyring(winner.settings).key_ids


async def test_a_lost_key_file_is_not_replaced_unless_told(homes: tuple[Home, Home]) -> None:
    one, _ = homes
    await one.store.write([secret()])
    kid = await key_of_store(one.database)
    kept = one.file.read_bytes()
    one.file.unlink()
    one.restart()
    for act in (one.value, partial(one.store.write, [secret("1")])):
        with pytest.raises(SecretError, match=f"sealed with key {kid}, and there is no key file"):
            await act()
    assert not one.file.exists()
    one.file.write_bytes(kept)
    one.file.chmod(0o600)
    one.restart()
    assert await one.value() == b"0042"
    with pytest.raises(SecretError, match="not lost"):
        await one.store.keys.replace_lost(kid)

    one.file.unlink()
    one.restart()
    with pytest.raises(SecretError, match="not sealed with key 00000000"):
        await one.store.keys.replace_lost("00000000")
    assert await one.store.keys.replace_lost(kid) == await key_of_store(one.database)
    await one.store.write([secret("again")])
    assert await one.value() == b"again"


async def test_rotation_keeps_older_keys_until_told(homes: tuple[Home, Home]) -> None:
    one, _ = homes
    await one.store.write([secret()])
    (row,) = await one.database.read("resource_get", key="Secret\x1fdefault\x1fpin")
    first = await key_of_store(one.database)
    rotation = await one.store.rotate_key()
    assert (rotation.retired, rotation.kept) == ((), (first,))
    assert await key_of_store(one.database) == rotation.key_id
    sealed = json.loads(row["document"])["spec"]["data"]["value"]  # as a backup of before has it
    assert load_keyring(one.settings).open(sealed, context="default/pin/value") == b"0042"
    assert (await one.store.rotate_key()).kept == (rotation.key_id, first)
    newest = await key_of_store(one.database)  # the last backup is sealed with it
    third = await one.store.rotate_key(forget=True)
    assert (set(third.retired), third.kept) == ({first, rotation.key_id}, (newest,))
    assert load_keyring(one.settings).key_ids == (third.key_id, newest)
    assert await one.value() == b"0042"
    assert (await one.database.read("setting_get", name=RETIRED))[0]["value"] == newest


async def test_a_home_that_missed_a_rotation_is_told_and_seals_nothing(homes: tuple[Home, Home]) -> None:
    one, two = homes
    await one.store.write([secret()])
    two.file.parent.mkdir(parents=True, exist_ok=True)
    two.file.write_bytes(one.file.read_bytes())
    two.file.chmod(0o600)
    await two.store.write([secret("1")])
    rotation = await one.store.rotate_key()
    with pytest.raises(SecretError, match=f"sealed with key {rotation.key_id}"):
        await two.store.write([secret("2")])
    two.file.write_bytes(one.file.read_bytes())
    await two.store.write([secret("2")])
    assert await one.value() == b"2"
