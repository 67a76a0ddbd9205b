"""Plan and apply on a real store: one transaction, retries, prune, references, secrets."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from foliot.catalog.apply import ATTEMPTS, apply_documents
from foliot.catalog.checks import uses
from foliot.catalog.declared import MANAGED_BY, declared, same
from foliot.cli.commands.apply import unified_diff
from foliot.errors import Conflict, InvalidInput
from foliot.resources.problems import ManifestError
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.store.base import Delete, Document, Filter, Key, Put, Requirement, Written
from foliot.store.resources.database import SqlResourceStore

DOCS = (Requirement("team", "=", ("docs",)),)


def role(name: str, *permissions: str, team: str = "docs") -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "AgentRole",
        "metadata": {"name": name, "namespace": "default", "labels": {"team": team}},
        "spec": {"permissions": list(permissions)},
    }


def secret(**values: str) -> Document:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "spec": {"data": data}}


async def names(store: SqlResourceStore) -> list[str]:
    return [document["metadata"]["name"] for document in (await store.list(Filter())).items]


async def test_actions_follow_what_is_there(store):
    first = await apply_documents(store, [role("a"), role("b")])
    second = await apply_documents(store, [role("a"), role("b", "x"), role("c")])

    assert [step.action for step in first.steps] == ["created", "created"]
    assert [step.action for step in second.steps] == ["unchanged", "updated", "created"]


@pytest.mark.parametrize("count", [3, 60])
async def test_a_dry_run_foretells_what_apply_does(store, count):
    await apply_documents(store, [role(f"r{n}") for n in range(count)])
    wanted = [role(f"r{n}", *(["x"] if n % 2 else [])) for n in range(count + 2)]

    revision = await store.revision()
    foretold = await apply_documents(store, wanted, dry_run=True)
    assert await store.revision() == revision
    done = await apply_documents(store, wanted)

    assert [step.action for step in foretold.steps] == [step.action for step in done.steps]
    assert {step.action for step in done.steps} == {"created", "updated", "unchanged"}


async def test_all_or_nothing(store):
    stale = role("b")
    stale["metadata"]["resourceVersion"] = "999"

    with pytest.raises(Conflict, match="not at version 999"):
        await apply_documents(store, [role("a"), stale])

    assert await names(store) == []


async def test_one_resource_declared_twice_is_refused(store):
    with pytest.raises(InvalidInput, match="declared twice"):
        await apply_documents(store, [role("a"), role("a", "x")])


class Rival:
    """The store, and somebody else who changes a resource just before each of the first `wins` writes."""

    def __init__(self, store: SqlResourceStore, wins: int) -> None:
        self.store, self.wins, self.writes = store, wins, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def write(self, changes: Sequence[Put | Delete], **more: Any) -> list[Written]:
        self.writes += 1
        if self.writes <= self.wins:
            rival = role("a")
            rival["metadata"]["labels"]["rival"] = str(self.writes)
            await self.store.write([Put(rival)])
        return await self.store.write(changes, **more)


async def test_a_lost_race_is_planned_again_and_won(store):
    await apply_documents(store, [role("a")])
    rival = Rival(store, wins=2)

    result = await apply_documents(rival, [role("a", "mine")])

    assert result.steps[0].action == "updated"
    assert rival.writes == 3
    stored = await store.get(Key("AgentRole", "default", "a"))
    assert stored["spec"]["permissions"] == ["mine"]
    assert stored["metadata"]["labels"]["rival"] == "2"


async def test_losing_every_race_is_a_conflict_for_the_user(store):
    await apply_documents(store, [role("a")])
    rival = Rival(store, wins=1000)

    with pytest.raises(Conflict):
        await apply_documents(rival, [role("a", "mine")])

    assert rival.writes == ATTEMPTS


async def test_prune_spares_what_apply_did_not_make_and_what_has_other_labels(store):
    await apply_documents(store, [role("old"), role("kept"), role("other", team="ops")])
    await store.write([Put(role("by-hand"))])

    result = await apply_documents(store, [role("kept")], prune=DOCS)

    assert [(step.action, step.document["metadata"]["name"]) for step in result.steps] == [
        ("unchanged", "kept"),
        ("deleted", "old"),
    ]
    assert await names(store) == ["by-hand", "kept", "other"]


async def test_prune_without_a_selector_is_refused(store):
    with pytest.raises(InvalidInput, match="selector"):
        await apply_documents(store, [role("a")], prune=())


async def test_a_missing_reference_that_is_taken_is_a_warning_and_a_stored_one_is_none(store):
    agent = {
        "apiVersion": "foliot.dev/v1",
        "kind": "Agent",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"model_ref": "brain", "roles": ["r"]},
    }
    await apply_documents(store, [role("r")])

    (warning,) = (await apply_documents(store, [agent], allow_missing=True)).warnings

    assert "brain" in warning


async def test_a_graph_that_cannot_be_stops_everything(store):
    system = {
        "apiVersion": "foliot.dev/v1",
        "kind": "AgentSystem",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {"agents": ["a"], "graph": {"a": {"edges": [{"to": "ghost"}]}}},
    }

    with pytest.raises(ManifestError) as caught:
        await apply_documents(store, [role("r"), system])

    assert caught.value.findings[0].file == "AgentSystem/s in default"
    assert await names(store) == []


async def test_secret_values_are_compared_and_never_in_a_step(store):
    await apply_documents(store, [secret(a="hunter2", b="same")])

    same_again = await apply_documents(store, [secret(a="hunter2", b="same")], dry_run=True)
    changed = await apply_documents(store, [secret(a="hunter3", b="same", c="new")], dry_run=True)

    assert same_again.steps[0].action == "unchanged"
    assert changed.steps[0].document["spec"]["data"] == {"a": "*** (changed)", "b": "***", "c": "***"}
    await apply_documents(store, [secret(a="hunter3", b="same")])
    assert (await store.reveal(Key("Secret", "default", "s")))["a"] == b"hunter3"


async def test_a_masked_value_keeps_what_is_stored(store):
    await apply_documents(store, [secret(a="hunter2")])
    masked = {**secret(), "spec": {"data": {"a": "***"}}}

    assert (await apply_documents(store, [masked])).steps[0].action == "unchanged"
    assert (await store.reveal(Key("Secret", "default", "s")))["a"] == b"hunter2"


def test_only_what_was_declared_is_compared():
    stored = role("a")
    stored["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 2, "annotations": {MANAGED_BY: "apply"}}
    stored["status"] = {"phase": "Ready"}

    assert declared(stored) == declared(role("a"))
    assert not same(stored, role("a"))  # one is marked as made by apply, the other is not
    assert unified_diff(stored, role("a"), label="role/a", render=dump_yaml) == ""


def test_true_and_one_are_different_declarations():
    one, true = role("a"), role("a")
    one["spec"], true["spec"] = {"x": 1}, {"x": True}

    assert not same(one, true)


def test_a_diff_against_nothing_is_all_new_or_all_gone():
    assert "+  name: a" in unified_diff(None, role("a"), label="role/a", render=dump_yaml)
    assert "-  name: a" in unified_diff(role("a"), None, label="role/a", render=dump_yaml)


def test_what_a_document_uses_is_named_once_with_its_field():
    agent = {
        "kind": "Agent",
        "metadata": {"name": "a", "namespace": "x"},
        "spec": {"model_ref": "other/brain", "tools": ["t"], "allowed_tools": ["t"]},
    }

    assert list(uses(agent)) == [
        (Key("ModelEndpoint", "other", "brain"), "spec.model_ref"),
        (Key("Tool", "x", "t"), "spec.tools[0]"),
    ]
