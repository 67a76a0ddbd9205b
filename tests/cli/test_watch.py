"""Watching on a real store: every version once, and a position that is no longer kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from foliot.cli.commands.get import Request
from foliot.cli.targets import parse_targets
from foliot.cli.watch.resources import Printer, _follow
from foliot.runtime.local.resources import LocalResources
from foliot.settings.settings import load_settings
from foliot.store.base import Change, Delete, Key, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring

ROLES = Request(parse_targets(["roles"], verb="get"), "default", (), ())


def role(name: str, *permissions: str, version: int = 0) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default", **({"resourceVersion": str(version)} if version else {})}
    return {"kind": "AgentRole", "metadata": metadata, "spec": {"permissions": list(permissions)}}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    database = await open_database(settings.store)
    yield SqlResourceStore(database, lambda: load_keyring(settings))
    await database.close()


@dataclass(frozen=True)
class Resources:
    """The groups of verbs, of which a watch of resources needs this one."""

    resources: LocalResources


async def test_a_forgotten_position_lists_again_and_tells_only_what_differs(store, capsys):
    await store.write([Put(role("stays")), Put(role("goes")), Put(role("changes"))])
    client = Resources(LocalResources(store))
    printer = Printer(ROLES, "name")
    printer.listing((await client.resources.list(ROLES.filters[0])).items)
    printer.revision = 1
    capsys.readouterr()
    await store.write([Delete(Key("AgentRole", "default", "goes")), Put(role("changes", "x")), Put(role("new"))])
    await store.compact(keep=0)

    following = asyncio.create_task(_follow(client, ROLES, printer))
    async with asyncio.timeout(60):
        while printer.revision == 1 or printer.revision is None:
            await asyncio.sleep(0)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following

    said = capsys.readouterr()
    assert said.out.split() == ["agent-role/changes", "agent-role/new", "agent-role/goes"]
    assert "listing again" in said.err


def test_a_change_that_was_in_the_list_already_is_not_told_twice(capsys):
    printer = Printer(ROLES, "name")
    printer.listing([role("a", version=5)])
    capsys.readouterr()

    printer.change(Change(4, "updated", role("a", version=4)))
    printer.change(Change(5, "updated", role("a", version=5)))
    printer.change(Change(6, "updated", role("a", version=6)))

    assert capsys.readouterr().out == "agent-role/a\n"


def test_rows_get_a_heading_once_and_columns_only_grow(capsys):
    printer = Printer(ROLES, "table")
    printer.listing([role("a", version=1)])
    printer.change(Change(2, "created", role("a-much-longer-name", version=2)))
    printer.change(Change(3, "deleted", role("a", version=3)))

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["CHANGE", "NAME"],
        ["a", "-"],
        ["created", "a-much-longer-name"],
        ["deleted", "a"],
    ]
    assert lines[2].index("a-much") == lines[3].index("a ") == lines[0].index("NAME")


def test_json_tells_the_change_with_the_object(capsys):
    import json

    printer = Printer(ROLES, "json")
    printer.listing([role("a", version=1)])
    printer.change(Change(2, "deleted", role("a", version=2)))

    assert [json.loads(line)["change"] for line in capsys.readouterr().out.splitlines()] == ["listed", "deleted"]


def test_a_field_that_is_misspelt_is_not_waited_for(foliot, team):
    said = foliot("wait", "agent/writer", "--for", "spec.promt=x", "--timeout", "1m")

    assert said.code == 2
    assert "spec.prompt" in said.err
