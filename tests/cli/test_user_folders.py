"""`foliot workspace folder delete` also deletes what is kept for an account, or by an agent, that is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    turns:
      - call: {write: {path: data/notes.md, content: kept}}
      - say: done
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: clerk}
spec: {model_ref: brain, prompt: Go., tools: [write]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: scribe}
spec: {model_ref: brain, prompt: Go., tools: [write]}
"""


def furnish(folder: Path) -> None:
    (folder / "team.yaml").write_text(MANIFEST)


@pytest.fixture
def kept(applied: Any) -> Any:
    """Two agents, each with a folder for ann, and on a store, where anybody can be acted for, for bob."""
    for agent in ("clerk", "scribe"):
        assert applied("run", agent, "go", "--user", "ann").code == 0
        applied("run", agent, "go", "--user", "bob")
    assert {("clerk", "ann"), ("scribe", "ann")} <= folders(applied)
    return applied


def folders(ask: Any) -> set[tuple[str, str]]:
    items = json.loads(ask("workspace", "folder", "list", "-o", "json").out)["items"]
    return {(each["agent"], each["user"]) for each in items}


def test_all_that_is_kept_for_a_user_is_deleted(kept: Any) -> None:
    others = {each for each in folders(kept) if each[1] != "ann"}
    said = kept("workspace", "folder", "delete", "--all-agents", "--user", "ann")
    assert (said.code, said.err) == (0, "Deleted 2 folders.\n")
    assert folders(kept) == others
    again = kept("workspace", "folder", "delete", "--all-agents", "--user", "ann")
    assert (again.code, again.err) == (0, "Deleted 0 folders.\n")


def test_all_that_an_agent_keeps_is_deleted_also_when_it_is_gone(kept: Any) -> None:
    assert kept("delete", "agent", "clerk").code == 0
    assert ("clerk", "ann") in folders(kept)
    others = {each for each in folders(kept) if each[0] != "clerk"}
    assert kept("workspace", "folder", "delete", "clerk", "--all-users").code == 0
    assert folders(kept) == others


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("clerk", "--all-agents"),
        ("--all-agents", "--all-users"),
        ("clerk", "--all-users", "--user", "ann"),
        ("clerk", "--all-users", "--system"),
        ("--all-agents", "--system"),
    ],
)
def test_what_may_mean_two_things_deletes_nothing(kept: Any, words: tuple[str, ...]) -> None:
    before = folders(kept)
    assert kept("workspace", "folder", "delete", *words).code == 2
    assert folders(kept) == before
