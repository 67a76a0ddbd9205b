"""Rules are read once; after a change only what changed is, unless it is not certain that all changes are known."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from foliot.engine.definition import governance
from foliot.engine.definition.governance import StoredRules
from foliot.resources.validate import validate_document
from foliot.store.base import Delete, Filter, Key, Page, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sqlite.database import SqliteDatabase
from foliot.tools.governance import reader

MANY = 200


def declared(kind: str, name: str, namespace: str = "default", **spec: Any) -> Put:
    manifest = {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    document, problems = validate_document(manifest)
    assert document is not None, problems
    return Put(document)


def permission(name: str, verdict: str = "allow") -> Put:
    return declared("ToolPermission", name, operation_rules=[{"operation_class": "*", "verdict": verdict}])


def no_keys() -> Any:
    raise AssertionError("no secret is sealed here")


class Counted:
    """A store that counts its lists."""

    def __init__(self, store: SqlResourceStore) -> None:
        self._store = store
        self.lists = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, filter: Filter, *, cursor: str | None = None) -> Page:
        self.lists += 1
        return await self._store.list(filter, cursor=cursor)


@pytest.fixture
async def store(tmp_path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield Counted(SqlResourceStore(database, no_keys))
    await database.close()


def source(store: Counted) -> StoredRules:
    return StoredRules(store, clock=time.time)  # pyright: ignore[reportArgumentType] - it has all that is asked for


def read_documents(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    permit = reader._permission

    def noted(namespace: str, name: str, spec: Any) -> Any:
        read.append(name)
        return permit(namespace, name, spec)

    monkeypatch.setattr(reader, "_permission", noted)
    return read


async def test_after_a_change_only_what_changed_is_read(store, monkeypatch):
    await store.write([permission(f"tool{number}") for number in range(MANY)])
    rules = source(store)
    read = read_documents(monkeypatch)
    assert len((await rules.rules("default")).permissions) == MANY
    listed = store.lists
    read.clear()
    await store.write([permission("tool7", "deny")])
    found = await rules.rules("default")
    assert [*found.permissions["tool7"][0].operations.values()] == ["deny"]
    assert len(found.permissions) == MANY
    assert (store.lists, read) == (listed, ["tool7"])


async def test_a_change_of_something_else_reads_nothing(store, monkeypatch):
    await store.write([permission("pay")])
    rules = source(store)
    before = await rules.rules("default")
    listed = store.lists
    read = read_documents(monkeypatch)
    await store.write([declared("AgentRole", "other", namespace="elsewhere", permissions=["x"])])
    await store.write([declared("Agent", "clerk", prompt="hi", model_ref="m")])
    assert await rules.rules("default") is before
    assert (store.lists, read) == (listed, [])


async def test_a_rule_that_is_deleted_or_made_again_is_seen(store):
    await store.write([declared("AgentPolicy", "ban", apply_mode="global", blocked_tools=["pay"])])
    rules = source(store)
    assert (await rules.rules("default")).policies
    await store.write([Delete(Key("AgentPolicy", "default", "ban"))])
    assert not (await rules.rules("default")).policies
    await store.write([declared("AgentPolicy", "ban", apply_mode="global", blocked_tools=["look"])])
    (policy,) = (await rules.rules("default")).policies
    assert policy.blocked == {"look"}


async def test_a_lent_role_comes_changes_and_goes_with_its_grant(store):
    grant = {"from": [{"kind": "Agent", "namespace": "default"}], "to": [{"kind": "AgentRole"}]}
    await store.write([declared("AgentRole", "payer", namespace="bank", permissions=["pay"])])
    rules = source(store)
    assert (await rules.rules("default")).roles == {}
    await store.write([declared("ReferenceGrant", "lend", namespace="bank", **grant)])
    assert [*(await rules.rules("default")).roles] == ["bank/payer"]
    listed = store.lists
    await store.write([declared("AgentRole", "payer", namespace="bank", permissions=["look"])])
    assert (await rules.rules("default")).roles["bank/payer"].permissions == {"look"}
    assert store.lists == listed
    await store.write([Delete(Key("ReferenceGrant", "bank", "lend"))])
    assert (await rules.rules("default")).roles == {}


@pytest.mark.parametrize("lost", ["DELETE FROM change WHERE revision = 3", "DELETE FROM change"])
async def test_when_a_change_is_not_kept_everything_is_read(store, tmp_path, lost):
    await store.write([permission("pay")])
    rules = source(store)
    await rules.rules("default")
    await store.write([permission("look")])
    await store.write([permission("pay", "deny")])
    connection = apsw.Connection(str(tmp_path / "foliot.db"))
    connection.execute(lost)
    connection.close()
    listed = store.lists
    found = await rules.rules("default")
    assert [*found.permissions["pay"][0].operations.values()] == ["deny"]
    assert store.lists > listed


async def test_after_more_changes_than_are_worth_following_everything_is_read(store):
    await store.write([permission("pay")])
    rules = source(store)
    await rules.rules("default")
    listed = store.lists
    await store.write([permission(f"tool{number}") for number in range(600)])
    assert len((await rules.rules("default")).permissions) == 601
    assert store.lists > listed


WRITES = """
import asyncio, sys
from foliot.store.base import Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sqlite.database import SqliteDatabase
from foliot.resources.validate import validate_document

async def main():
    database = await SqliteDatabase.open(sys.argv[1])
    store = SqlResourceStore(database, None)
    for line in sys.stdin:
        rules = [{"operation_class": "*", "verdict": line.strip()}]
        manifest = {"kind": "ToolPermission", "metadata": {"name": "pay"}, "spec": {"operation_rules": rules}}
        document, problems = validate_document(manifest)
        await store.write([Put(document)])
        print("stored", flush=True)
    await database.close()

asyncio.run(main())
"""


async def test_a_rule_of_another_process_holds_from_the_next_look_on(store, tmp_path: Path):
    rules = source(store)
    await rules.rules("default")
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITES, str(tmp_path / "foliot.db")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    for verdict in ("deny", "allow", "deny", "approval_required"):
        other.stdin.write(f"{verdict}\n".encode())
        async with asyncio.timeout(60):
            assert await other.stdout.readline() == b"stored\n"
        assert rules.at_hand("default") is None
        found = await rules.rules("default")
        expected = reader.OUTCOMES[verdict]
        assert [*found.permissions["pay"][0].operations.values()] == [expected]
    other.stdin.close()
    assert await other.wait() == 0


async def test_rules_are_made_once_for_all_who_ask_after_a_change_and_beside_the_loop_when_many(store, monkeypatch):
    """A rule that was applied holds from the next call on, for everybody."""
    await store.write([permission(f"p{number}") for number in range(2 * MANY)])
    rules = StoredRules(store, clock=time.time)
    first = await rules.rules("default")
    made: list[str] = []
    read_rules = governance.read_rules

    def counted(*given: Any, **named: Any) -> Any:
        made.append(threading.current_thread().name)
        return read_rules(*given, **named)

    monkeypatch.setattr(governance, "read_rules", counted)
    await store.write([permission("p7", "deny")])
    found = await asyncio.gather(*(rules.rules("default") for _ in range(20)))
    assert len(made) == 1
    assert made[0] != threading.main_thread().name
    assert all(each is found[0] for each in found)
    assert found[0] is not first


class Together:
    """A store whose revision is answered when so many have asked for it at once."""

    def __init__(self, store: Counted, asked: int) -> None:
        self._store = store
        self._all_there = asyncio.Barrier(asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def revision(self) -> int:
        await self._all_there.wait()
        return await self._store.revision()


async def test_those_who_ask_at_one_moment_ask_for_the_revision_together(store) -> None:
    # One behind the other each would make a round trip of its own: on PostgreSQL that was two thirds of a step.
    await store.write([permission("pay")])
    rules = StoredRules(store, clock=time.time)
    known = await rules.rules("default")
    rules._store = Together(store, 50)  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(rules.rules("default") for _ in range(50))) == [known] * 50
