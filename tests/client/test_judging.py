"""What would become of a call is judged where the call would be made: by the rules and settings of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foliot import Client
from foliot.client.http import Http, Server
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.runtime.local.groups import LocalGroups
from foliot.settings.settings import Settings, load_settings
from foliot.tools.governance.judge import PolicyQuestion

SPECS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ModelEndpoint", "brain", "team-a", {"provider": "mock", "default_model": "m"}),
    ("AgentRole", "clerk", "team-b", {"permissions": ["tool:pay:invoke"]}),
    ("ReferenceGrant", "clerk", "team-b", {"from": [{"namespace": "team-a"}], "to": [{"kind": "AgentRole"}]}),
    ("Agent", "payer", "team-a", {"model_ref": "brain", "tools": ["pay", "look"], "roles": ["team-b/clerk"]}),
    ("ToolPermission", "pay", "team-a", {"tool_ref": "pay", "required_permissions": ["tool:pay:invoke"]}),
]
PAY = PolicyQuestion("payer", "pay", {"amount": 1})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path / "home"), "allowed_tools": "pay"}, {})


@pytest.fixture
async def reader(site: Any) -> Any:
    """Somebody who sees one namespace, and not the one where the role is."""
    async with Client(site.url, token=await site.token("root")) as root:
        await root.resources.apply(
            [
                {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name, "namespace": space}, "spec": s}
                for kind, name, space, s in SPECS
            ],
            allow_missing=True,
        )
    async with Client(site.url, token=await site.token("ann", ("reader",), "team-a")) as client:
        yield client


async def test_the_server_judges_by_roles_that_the_client_cannot_see_and_by_its_own_settings(
    reader: Client, site: Any, settings: Settings
) -> None:
    pay = await reader.policies.explain(PAY, namespace="team-a")
    look = await reader.policies.explain(PolicyQuestion("payer", "look", {}), namespace="team-a")

    assert (pay.judgement.outcome, pay.declared) == ("allow", False)
    assert look.judgement.outcome == "deny", "the server allows one tool only"
    runtime = site.runtime
    here = LocalGroups(runtime.inside, caller=Identity("ann"))
    assert await here.policies.explain(PAY, namespace="team-a") == pay, "the same as at the machine of the store"


async def test_without_arguments_what_depends_on_them_is_left_out(reader: Client) -> None:
    open_ended = await reader.policies.explain(PolicyQuestion("payer", "pay"), namespace="team-a")

    assert {each.layer for each in open_ended.judgement.verdicts}.isdisjoint({"arguments", "conditions"})


async def test_what_is_not_there_or_not_theirs_is_missing(reader: Client) -> None:
    with pytest.raises(NotFound, match="paver") as missing:
        await reader.policies.explain(PolicyQuestion("paver", "pay", {}), namespace="team-a")
    assert "payer" in (missing.value.hint or "")
    with pytest.raises(NotFound):
        await reader.policies.explain(PAY, namespace="team-b")


async def test_names_that_nothing_has_are_told(reader: Client) -> None:
    typo = await reader.policies.explain(
        PolicyQuestion("payer", "pay", {}, task="tmp", system="flow"), namespace="team-a"
    )
    with pytest.raises(NotFound, match="refnd"):
        await reader.policies.explain(PolicyQuestion("payer", "refnd", {}), namespace="team-a")

    assert [each.partition(" here")[0] for each in typo.notes] == [
        "there is no Task/tmp",
        "there is no AgentSystem/flow",
    ]
    (resolve,) = [each for each in typo.judgement.verdicts if each.layer == "resolve"]
    assert "is not declared" in resolve.reason, "one that only Python knows is said to be so"


async def test_a_question_that_cannot_be_read_is_refused(site: Any) -> None:
    async with Http(Server(site.url, await site.token("ann"))) as http:
        with pytest.raises(InvalidInput, match="tool"):
            await http.ask("POST", "/v1/policies/explain", body=b'{"agent": "payer"}')


async def test_the_server_says_what_manifests_would_change(reader: Client, site: Any, settings: Settings) -> None:
    freeze = {"kind": "AgentPolicy", "metadata": {"name": "freeze", "namespace": "team-a"}}
    freeze["spec"] = {"target_tasks": ["nightly"], "blocked_tools": ["pay"]}
    asked = [PAY, PolicyQuestion("payer", "pay", {"amount": 1}, task="nightly")]

    fates = await reader.policies.simulate([freeze], asked, namespace="team-a")

    assert [(fate.before.outcome, fate.after.outcome) for fate in fates] == [("allow", "allow"), ("allow", "deny")]
    assert fates[1].after.decided.rule == "AgentPolicy/freeze"
    here = LocalGroups(site.runtime.inside, caller=Identity("ann"))
    assert await here.policies.simulate([freeze], asked, namespace="team-a") == fates, (
        "the same as at the machine of the store"
    )
    with pytest.raises(InvalidInput):
        await reader.policies.simulate([{"kind": "AgentPolicy"}], asked, namespace="team-a")


async def test_a_simulated_call_of_an_agent_or_a_tool_that_nothing_has_says_so(reader: Client) -> None:
    brought = {"kind": "Agent", "metadata": {"name": "new", "namespace": "team-a"}, "spec": {"model_ref": "brain"}}
    asked = [PAY, PolicyQuestion("no-such-agent", "no-such-tool", {}), PolicyQuestion("new", "no-such-tool", {})]

    fates = await reader.policies.simulate([brought], asked, namespace="team-a")

    assert [[note.split(":")[0] for note in each.notes] for each in fates] == [
        [],
        ["there is no Agent/no-such-agent here", "there is no Tool/no-such-tool here"],
        ["there is no Tool/no-such-tool here"],
    ]
