"""What every resource store must do with secret values. Subclass it together with `ResourceStoreConformance`."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from foliot.errors import FoliotError, InvalidInput, NotFound, SecretError
from foliot.store.base import Database, Document, Filter, Requirement, ResourceStore
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import Keyring
from foliot.store.transaction import run
from tests.conformance.resources import EVERYTHING, agent, key, put, take


def secret(name: str = "s", **clear: str) -> Document:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in clear.items()}
    return {"apiVersion": "foliot.dev/v1", "kind": "Secret", "metadata": {"name": name}, "spec": {"data": data}}


class SecretConformance:
    async def stored_text(self, database: Database) -> str:
        resources = await database.read("resource_list", after="", before="\U0010ffff", count=100)
        changes = await database.read("change_list", after=0, upto=1000)
        return "".join(row["document"] for row in [*resources, *changes])

    async def test_secret_values_are_masked_everywhere_and_revealed_on_demand(
        self, store: ResourceStore, database: Database
    ) -> None:
        clear = {"user": "root-of-all", "password": "hunter2hunter2"}
        (written,) = await put(store, secret(**clear))
        hidden = {"data": {"user": "***", "password": "***"}}
        assert written.document["spec"] == hidden
        assert (await store.get(key("s", kind="Secret")))["spec"] == hidden
        assert (await store.list(EVERYTHING)).items[0]["spec"] == hidden
        assert (await take(store.watch(EVERYTHING, after=0), 1))[0].document["spec"] == hidden
        revealed = await store.reveal(key("s", kind="Secret"))
        assert revealed == {name: text.encode() for name, text in clear.items()}
        text = await self.stored_text(database)
        for value in clear.values():
            assert value not in text
            assert base64.b64encode(value.encode()).decode() not in text
        probe = base64.b64encode(b"hunter2hunter2").decode()
        assert not (await store.list(Filter(fields=(Requirement("spec.data.password", "=", (probe,)),)))).items

    async def test_equal_values_are_unchanged_and_a_mask_keeps_the_stored_one(self, store: ResourceStore) -> None:
        name = key("s", kind="Secret")
        await put(store, secret(a="1", b="2"))
        assert [each.action for each in await put(store, secret(a="1", b="2"))] == ["unchanged"]
        assert [each.action for each in await put(store, await store.get(name))] == ["unchanged"]
        edited = await store.get(name)
        edited["spec"]["data"] |= {"b": base64.b64encode(b"3").decode(), "c": base64.b64encode(b"4").decode()}
        (written,) = await put(store, edited)
        assert (written.action, written.document["metadata"]["generation"]) == ("updated", 2)
        assert await store.reveal(name) == {"a": b"1", "b": b"3", "c": b"4"}
        with pytest.raises(InvalidInput, match="'d' is masked"):
            await put(store, {**edited, "spec": {"data": {"d": "***"}}})
        await put(store, {**edited, "spec": {"data": {"a": "***"}}})
        assert await store.reveal(name) == {"a": b"1"}
        await put(store, {**edited, "status": {"phase": "Ready"}}, only="status")
        assert await store.reveal(name) == {"a": b"1"}

    async def test_plain_text_data_is_sealed_too(self, store: ResourceStore, database: Database) -> None:
        document = secret(a="kept", b="overridden")
        document["spec"]["stringData"] = {"b": "plain-as-day", "c": "ñ"}
        (written,) = await put(store, document)
        assert written.document["spec"] == {"data": {"a": "***", "b": "***", "c": "***"}}
        assert await store.reveal(key("s", kind="Secret")) == {"a": b"kept", "b": b"plain-as-day", "c": "ñ".encode()}
        assert "plain-as-day" not in await self.stored_text(database)

    async def test_errors_about_secrets_never_show_a_value(self, store: ResourceStore) -> None:
        bad = secret()
        bad["spec"]["data"] = {"k": "hunter2 is not base64!"}
        with pytest.raises(InvalidInput) as caught:
            await put(store, bad)
        bad["spec"]["data"] = {"k": ["hunter2"]}
        with pytest.raises(InvalidInput) as second:
            await put(store, bad)
        for error in (caught.value, second.value):
            assert "hunter2" not in f"{error!r}{error.hint}{error.details}{error.__cause__!r}{error.__context__!r}"
        with pytest.raises(NotFound):
            await store.reveal(key("s", kind="Secret"))
        await put(store, agent())
        with pytest.raises(InvalidInput, match="not a Secret"):
            await store.reveal(key())

    async def test_a_secret_moved_to_another_name_does_not_open(self, store: ResourceStore, database: Database) -> None:
        await put(store, secret("one", k="1"), secret("two", k="2"))
        found = await database.read("resource_list", after="Secret\x1f", before="Secret ", count=10)
        moved = {row["key"]: row["document"] for row in found}
        first, second = sorted(moved)
        await database.write(run, "reseal_resource", key=first, document=moved[second])
        with pytest.raises(SecretError):
            await store.reveal(key("one", kind="Secret"))
        # Storing the value again is the way out.
        await put(store, secret("one", k="1"))
        assert await store.reveal(key("one", kind="Secret")) == {"k": b"1"}

    async def test_rotation_seals_everything_anew_and_the_next_may_give_up_the_old_key(
        self, store: ResourceStore, database: Database, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.store.resources.database.SECRETS_PER_ROUND", 3)
        await put(store, agent(), *(secret(f"s{n}", a=f"a{n}", b=f"b{n}") for n in range(8)))
        revision, old = await store.revision(), keyring.active_id
        rotation = await store.rotate_key(forget=True)
        assert (rotation.secrets, rotation.values, rotation.retired, rotation.kept) == (8, 16, (), (old,))
        assert rotation.key_id == keyring.active_id != old
        assert old not in await self.stored_text(database)
        assert keyring.key_ids == (rotation.key_id, old)
        again = await store.rotate_key(forget=True)
        assert (again.retired, again.kept) == ((old,), (rotation.key_id,))
        assert keyring.key_ids == (again.key_id, rotation.key_id)
        assert await store.revision() == revision
        for n in range(8):
            assert await store.reveal(key(f"s{n}", kind="Secret")) == {"a": f"a{n}".encode(), "b": f"b{n}".encode()}
        assert [each.action for each in await put(store, secret("s0", a="a0", b="b0"))] == ["unchanged"]

    async def test_a_rotation_that_died_half_way_is_finished_by_the_next(
        self, store: SqlResourceStore, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.store.resources.database.SECRETS_PER_ROUND", 2)
        await put(store, *(secret(f"s{n}", a=f"a{n}") for n in range(6)))
        old = keyring.active_id
        left = 3
        write = store._database.write

        async def dying(body: Any, /, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise FoliotError("died here")
            return await write(body, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(store._database, "write", dying)
            with pytest.raises(FoliotError, match="died here"):
                await store.rotate_key()
        half = keyring.active_id
        assert set(keyring.key_ids) == {old, half}
        for n in range(6):
            assert await store.reveal(key(f"s{n}", kind="Secret")) == {"a": f"a{n}".encode()}
        rotation = await store.rotate_key(forget=True)
        assert rotation.key_id == half
        assert (rotation.retired, rotation.kept) == ((), (old,)), "the key of before the rotation that died"
        assert rotation.values == 2
        assert keyring.key_ids == (half, old)
        for n in range(6):
            assert await store.reveal(key(f"s{n}", kind="Secret")) == {"a": f"a{n}".encode()}

    async def test_secrets_can_be_written_while_a_key_is_rotated(
        self, store: ResourceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.store.resources.database.SECRETS_PER_ROUND", 1)
        await put(store, *(secret(f"s{n}", a=f"a{n}") for n in range(10)))
        writing = [put(store, secret(f"s{n}", a=f"new{n}"), secret(f"t{n}", a="t")) for n in range(10)]
        await asyncio.gather(store.rotate_key(), *writing)
        for n in range(10):
            assert await store.reveal(key(f"s{n}", kind="Secret")) == {"a": f"new{n}".encode()}
            assert await store.reveal(key(f"t{n}", kind="Secret")) == {"a": b"t"}

    async def test_without_secrets_the_keyring_is_never_loaded(self, database: Database) -> None:
        def unwanted() -> Keyring:
            raise AssertionError("the keyring was loaded")

        store = SqlResourceStore(database, unwanted)
        await put(store, agent())
        await store.get(key())
        await store.list(EVERYTHING)
        await take(store.watch(EVERYTHING, after=0), 1)
        with pytest.raises(AssertionError):
            await put(store, secret(a="b"))
