"""The verbs of `Runtime` and `Client` cannot diverge: same groups, same signatures, same docstrings, same results."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from foliot import Client, Runtime
from foliot.client import remote, remote_operations, remote_sessions, remote_work
from foliot.runtime.groups import groups, sessions, store, work
from foliot.runtime.local import operations, resources, tools
from foliot.runtime.local import sessions as local_sessions
from foliot.runtime.local import work as local_work

EXAMPLES = Path(__file__).parents[2] / "examples"
BASES = [
    each
    for module in (work, store, sessions)
    for each in vars(module).values()
    if inspect.isclass(each) and each.__module__ == module.__name__
]
IMPLEMENTATIONS = (
    *(local_work, local_sessions, operations, resources, tools),
    *(remote, remote_operations, remote_sessions, remote_work),
)


def implementations(base: type) -> list[type]:
    found = [
        each
        for module in IMPLEMENTATIONS
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, base) and each.__module__ == module.__name__
    ]
    assert len(found) == 2, f"{base.__name__} has one implementation here and one over HTTP"
    return found


def verbs(thing: type) -> dict[str, Any]:
    return {name: each for name, each in vars(thing).items() if callable(each) and not name.startswith("_")}


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_both_implementations_have_the_signatures_of_the_group(base: type) -> None:
    for name, promised in verbs(base).items():
        for made in implementations(base):
            assert inspect.signature(getattr(made, name)) == inspect.signature(promised), f"{made.__name__}.{name}"


@pytest.mark.parametrize("base", [*BASES, groups.Groups, groups.Conveniences], ids=lambda base: base.__name__)
def test_every_verb_says_what_it_does(base: type) -> None:
    for name, each in {**verbs(base), **{n: p for n, p in vars(base).items() if isinstance(p, property)}}.items():
        assert inspect.getdoc(each), f"{base.__name__}.{name}"


@pytest.mark.parametrize("name", ["run", "stream", "resume", "run_sync"])
def test_the_conveniences_have_one_signature_and_one_docstring(name: str) -> None:
    promised = getattr(groups.Conveniences, name)
    for made in (Runtime, Client):
        assert inspect.signature(getattr(made, name)) == inspect.signature(promised)
        assert inspect.getdoc(getattr(made, name)) == inspect.getdoc(promised)


def test_a_runtime_and_a_client_have_the_same_groups() -> None:
    promised = {name for base in (groups.StoreGroups, groups.Groups) for name in vars(base) if not name.startswith("_")}

    about_the_server = {"version", "me", "health", "capabilities", "close"}
    for made, more in ((Runtime, {"inside", "models", "plugins"}), (Client, about_the_server)):
        public = {name for name in dir(made) if not name.startswith("_")}
        assert public - {"run", "run_sync", "stream", "resume"} - more == promised
        assert not getattr(made, "__abstractmethods__", None)


async def test_the_same_script_gives_the_same_on_a_runtime_and_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import same_script

    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()

    assert await same_script.here(str(here)) == await same_script.there(str(there))
    sys.modules.pop("same_script")
