"""A bundle is held against the store as it will be: what its prune deletes is not there for what it declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot import parse_manifests
from foliot.errors import Denied, InvalidInput
from foliot.settings.settings import Settings, load_settings
from foliot.store.base import Filter, Requirement
from tests.client.conftest import Both

PRUNE = (Requirement("app", "=", ("x",)),)
TOOL = """
kind: Tool
metadata: {name: refund, labels: {app: x}}
spec: {type: http, endpoint: "http://127.0.0.1:9/refund", effect: once}
"""
RULE = """
kind: ToolPermission
metadata: {name: guard, labels: {app: x}}
spec: {tool_ref: refund, operation_rules: [{operation_class: write, verdict: approval_required}]}
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    store = {} if request.param == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    return load_settings({"home": str(tmp_path / "home"), **store}, {})


async def names(both: Both, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in (await both.client.resources.list(Filter(kind, "default"))).items]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_bundle_does_not_prune_what_it_names(both: Both, dry_run: bool) -> None:
    await both.client.resources.apply(parse_manifests(TOOL + "---" + RULE))

    with pytest.raises(InvalidInput) as told:
        await both.client.resources.apply(parse_manifests(RULE), prune=PRUNE, dry_run=dry_run)

    assert "spec.tool_ref" in str(told.value)
    assert "prune deletes it" in str(told.value)
    assert "allow" in (told.value.hint or "")
    assert await names(both, "Tool") == ["refund"]


async def test_what_is_allowed_to_miss_is_pruned_with_a_warning_and_told_in_the_status(both: Both) -> None:
    await both.client.resources.apply(parse_manifests(TOOL + "---" + RULE))

    applied = await both.client.resources.apply(parse_manifests(RULE), prune=PRUNE, allow_missing=True)

    assert ["refund" in warning and "prune deletes it" in warning for warning in applied.warnings] == [True]
    assert await names(both, "Tool") == []
    status = (await both.client.resources.get("ToolPermission", "guard"))["status"]
    assert status["conditions"][0]["reason"] == "PartsMissing"


async def test_what_is_pruned_is_never_what_was_meant(both: Both) -> None:
    await both.client.resources.apply(parse_manifests(TOOL))
    with pytest.raises(InvalidInput) as told:
        await both.client.resources.apply(parse_manifests(RULE.replace("refund", "refnd")), prune=PRUNE)
    assert "did you mean" not in str(told.value)


async def test_a_grant_that_goes_by_the_same_prune_lets_nobody_in(both: Both) -> None:
    grant = """
kind: ReferenceGrant
metadata: {name: lend, namespace: bank, labels: {app: x}}
spec: {from: [{kind: Agent, namespace: default}], to: [{kind: ModelEndpoint}]}
"""
    rest = """
kind: ModelEndpoint
metadata: {name: m, namespace: bank, labels: {app: x}}
spec: {provider: scripted, default_model: m, script: echo}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: bank/m}
"""
    await both.client.resources.apply(parse_manifests(grant + "---" + rest))
    with pytest.raises(Denied, match="no ReferenceGrant"):
        await both.client.resources.apply(parse_manifests(rest), prune=PRUNE, prune_namespace="bank")


async def test_what_nothing_of_the_bundle_names_is_pruned_and_a_deletion_alone_is_told(both: Both) -> None:
    role = "\nkind: AgentRole\nmetadata: {name: clerk, labels: {app: x}}\nspec: {permissions: [x]}\n"
    await both.client.resources.apply(parse_manifests(TOOL + "---" + RULE + "---" + role))
    await both.client.resources.apply(parse_manifests(TOOL + "---" + RULE), prune=PRUNE)
    assert await names(both, "AgentRole") == []

    await both.client.resources.delete("Tool", "refund")

    status = (await both.client.resources.get("ToolPermission", "guard"))["status"]
    assert (status["phase"], status["conditions"][0]["reason"]) == ("Error", "PartsMissing")
