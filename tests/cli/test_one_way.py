"""One way to work: the command line has one code path for a store and for a server, and opens one database."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import foliot as package
from foliot.store.base import Key
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sqlite.database import SqliteDatabase

SOURCE = Path(package.__file__).parent

# Every place that asks where the work is, and why it may.
BRANCHES = {
    "commands/about.py": 1,  # capabilities are those of this installation, or of the server
    "commands/contexts.py": 1,  # it shows which of the two the settings name
    "commands/doctor.py": 1,  # a server says itself how it is; a store is looked at from here
    "commands/mcp.py": 1,  # an MCP server is asked by who may use it: this machine, or the server
    "commands/tokens.py": 1,  # the first token can only be made on the store: a server asks for one
    "invocation.py": 2,  # some commands work on the store itself; contexts name servers
    "reach.py": 1,  # `connected` opens the store, or the server
    "runtimes.py": 2,  # `reached` opens a runtime, or the server; a server goes by the token, and takes no name
    "watch/run.py": 2,  # a run of this process stops with it, also before it has begun; one of a server does not
    "watch/task.py": 1,  # the work of a task is done here only on a runtime of this process
}
ASKS = re.compile(r"\.server is (?:not )?None|\.drives_here|isinstance\(\w+, (?:LocalClient|RemoteClient)\)")


def test_only_these_places_ask_where_the_work_is() -> None:
    found = {
        str(path.relative_to(SOURCE / "cli")): len(ASKS.findall(path.read_text()))
        for path in (SOURCE / "cli").rglob("*.py")
    }

    assert {path: count for path, count in found.items() if count} == BRANCHES


# --- one database ---------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The databases that commands open from now on."""
    found: list[str] = []
    real = SqliteDatabase.open.__func__  # type: ignore[attr-defined]

    async def noted(cls: type[SqliteDatabase], path: object, *args: object, **given: object) -> SqliteDatabase:
        found.append(str(path))
        return await real(cls, path, *args, **given)

    monkeypatch.setattr(SqliteDatabase, "open", classmethod(noted))
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("run", "team.yaml", "--agent", "writer", "hi"),
        ("run", "writer", "hi"),
        ("task", "run", "writer", "hi", "--detach"),
        ("fork", "--at", "1", "--model", "brain", "r1"),
        ("resume", "r1"),
        ("approvals", "grant", "--tool", "clock", "--until", "1h"),
        ("tools", "list"),
        ("get", "agents"),
    ],
    ids=" ".join,
)
def test_a_command_opens_one_database(foliot, team, opened: list[str], words: tuple[str, ...]) -> None:
    assert foliot("run", "writer", "hi", "--id", "r1", "-q").code == 0
    opened.clear()

    said = foliot(*words)

    assert said.code == 0, said.err
    assert len(opened) == 1


def test_a_run_of_a_manifest_reads_its_agent_once(foliot, manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Key] = []
    real = SqlResourceStore.get

    async def noted(self: SqlResourceStore, key: Key) -> object:
        read.append(key)
        return await real(self, key)

    monkeypatch.setattr(SqlResourceStore, "get", noted)

    assert foliot("run", manifest, "--agent", "writer", "hi", "-q").code == 0

    assert [key for key in read if key.kind == "Agent"] == [Key("Agent", "default", "writer")]


# --- late imports ---------------------------------------------------------------------------------------------------


def test_late_imports_of_the_command_line_buy_something() -> None:
    """A module that is loaded in any case is imported at the top: a late import of it is only noise."""
    useless = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {node.module}"
        for path in sorted((SOURCE / "cli").rglob("*.py"))
        for node in _late(ast.parse(path.read_text()))
        if node.module in _loaded_with(_name(path))
    ]

    assert useless == []


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _late(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(outer):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foliot."):
                    yield node


@cache
def _imported_by(name: str) -> frozenset[str]:
    """The modules of Foliot that a module imports at its top."""
    path = SOURCE.parent.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foliot"):
            found.add(node.module or "")
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("foliot")}
    return frozenset(each for each in found if each != "foliot")


@cache
def _loaded_with(name: str) -> frozenset[str]:
    found: set[str] = set()
    left = [*_imported_by(name)]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += _imported_by(each)
    return frozenset(found)
