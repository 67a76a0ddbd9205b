"""A condition on a call that asks for what no call can have protects nothing: it is refused by every way there is."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pydantic import BaseModel

from foliot import parse_manifests
from foliot.errors import InvalidInput
from foliot.resources.kinds import KINDS
from foliot.resources.problems import ManifestError
from foliot.store.base import Document
from tests.client.conftest import Both

SHOP = """
kind: Agent
metadata: {name: desk}
spec: {model_ref: m, tools: [refund]}
---
kind: AgentSystem
metadata: {name: team-a}
spec: {agents: [desk]}
---
kind: Tool
metadata: {name: refund}
spec:
  type: http
  endpoint: "http://127.0.0.1:9/refund"
  input_schema:
    type: object
    properties: {amount: {type: number}, currency: {enum: [EUR, USD]}}
---
kind: Tool
metadata: {name: open}
spec:
  type: http
  endpoint: "http://127.0.0.1:9/open"
  input_schema: {type: object, additionalProperties: true, properties: {amount: {type: number}}}
---
kind: Tool
metadata: {name: unknown}
spec: {type: http, endpoint: "http://127.0.0.1:9/unknown"}
"""

NEVER = {
    "has(args.ammount) && args.ammount > 100": "did you mean amount?",
    "args.ammount > 100": "did you mean amount?",
    "args['ammount'] > 100": "did you mean amount?",
    "'ammount' in args": "did you mean amount?",
    "args.currency in ['EUR', 'EUT']": "did you mean EUR?",
    "caller.usr == 'x'": "did you mean user?",
    "caller.user == 'x' && caller.agnet == 'desk'": "did you mean agent?",
    "agent == 'dsek'": "did you mean desk?",
    "agent in ['desk', 'dsek']": "did you mean desk?",
    "caller.agent == 'dsek'": "did you mean desk?",
    "'dsek' in caller.ancestors": "did you mean desk?",
    "caller.system == 'nosys'": 'missing agentsystem "nosys"',
    "'norole' in caller.roles": 'missing role "norole"',
    "tool == 'refnd'": "did you mean refund?",
    # Conditions compare exactly, whatever else rules take for the same.
    "tool == 'Refund'": "did you mean refund?",
    "agent == 'Desk'": "did you mean desk?",
    "caller.agent in ['desk', 'DESK']": "did you mean desk?",
    "'team_a' in [caller.system] || caller.system == 'team_a'": "did you mean team-a?",
}
FINE = [
    "has(args.amount) && args.amount > 100 && args.currency == 'EUR'",
    "agent == 'desk' && caller.user != '' && size(caller.roles) == 0 && caller.depth < 3",
    "caller.user == 'dsek' || caller.model == 'dsek' || agent.startsWith('ds')",
    "agent == '' || tool == 'refund'",
]


def permission(when: str, tool: str = "refund") -> Document:
    spec = {"tool_ref": tool, "conditions": [{"when": "true"}, {"when": when, "verdict": "deny"}]}
    return {"kind": "ToolPermission", "metadata": {"name": "guard"}, "spec": spec}


def grant(when: str, tool: str = "refund") -> Document:
    spec = {"tool": tool, "standing": True, "when": when}
    return {"kind": "ToolApproval", "metadata": {"name": "grant"}, "spec": spec}


MAKERS = {"ToolPermission.conditions.when": permission, "ToolApproval.when": grant}
# Conditions that are held against something else: an answer's schema, or what anybody may send.
OTHERS = {"AgentSystem.graph.edges.when", "TaskWebhook.filter"}


def _expressions(model: Any, prefix: str) -> list[str]:
    found: list[str] = []
    for name, info in model.model_fields.items():
        inner = _model_in(info.annotation)
        if inner is not None:
            found += _expressions(inner, f"{prefix}.{name}")
        elif "CEL" in (info.description or ""):
            found.append(f"{prefix}.{name}")
    return found


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(cast("type[Any]", annotation), BaseModel):
        return annotation
    return next((found for each in getattr(annotation, "__args__", ()) if (found := _model_in(each))), None)


def test_every_field_with_an_expression_is_tried_here_or_named() -> None:
    specs = {kind: known.model().model_fields["spec"].annotation for kind, known in KINDS.items()}
    found = {field for kind, spec in specs.items() for field in _expressions(spec, kind)}
    assert found - OTHERS == set(MAKERS)


@pytest.mark.parametrize(("when", "said"), NEVER.items())
@pytest.mark.parametrize("field", MAKERS)
async def test_a_condition_on_what_no_call_can_have_is_refused(both: Both, field: str, when: str, said: str) -> None:
    await both.client.resources.apply(parse_manifests(SHOP), allow_missing=True)
    with pytest.raises(ManifestError) as told:
        await both.client.resources.apply([MAKERS[field](when)])
    assert said in str(told.value)
    assert "when" in str(told.value)
    taken = await both.client.resources.apply([MAKERS[field](when)], allow_missing=True)
    assert any(said in warning for warning in taken.warnings)


@pytest.mark.parametrize("field", MAKERS)
async def test_what_a_call_may_have_is_taken(both: Both, field: str) -> None:
    await both.client.resources.apply(parse_manifests(SHOP), allow_missing=True)
    for when in FINE:
        await both.client.resources.apply([MAKERS[field](when)])
    for tool in ("open", "unknown"):  # nobody knows what may be among their arguments
        await both.client.resources.apply([MAKERS[field]("args.ammount > 100", tool)])


@pytest.mark.parametrize(
    ("tool", "when", "said"),
    [
        ("bash", "args.comand == 'x'", "did you mean command?"),
        ("agent:desk", "args.inptu == 'x'", "did you mean input"),
    ],
)
async def test_tools_that_nobody_declared_have_schemas_too(both: Both, tool: str, when: str, said: str) -> None:
    await both.client.resources.apply(parse_manifests(SHOP), allow_missing=True)
    with pytest.raises(ManifestError) as told:
        await both.client.resources.apply([permission(when, tool)])
    assert said in str(told.value)


@pytest.mark.parametrize("tool", ["Refund", " refund", "REFUND"])
async def test_a_rule_knows_its_tool_however_it_is_spelt(both: Both, tool: str) -> None:
    await both.client.resources.apply(parse_manifests(SHOP), allow_missing=True)
    with pytest.raises(ManifestError, match="did you mean amount"):
        await both.client.resources.apply([permission("args.ammount > 1", tool)])


async def test_an_approval_in_advance_is_held_to_it_too(both: Both) -> None:
    await both.client.resources.apply(parse_manifests(SHOP), allow_missing=True)
    with pytest.raises(InvalidInput, match="has no field 'ammount'"):
        await both.runtime.approvals.grant("refund", seconds=60, when="args.ammount < 5", by="ann")
    await both.runtime.approvals.grant("refund", seconds=60, when="args.amount < 5", by="ann")


async def test_an_approval_in_advance_names_what_there_is(both: Both) -> None:
    await both.client.resources.apply(parse_manifests(SHOP), allow_missing=True)
    wrong: list[dict[str, Any]] = [
        {"tool": "refnd"},
        {"tool": "refund", "agent": "dsek"},
        {"tool": "refund", "when": "agent == 'Desk'"},
    ]
    for given in wrong:
        with pytest.raises(InvalidInput, match="missing") as told:
            await both.work.approvals.grant(seconds=60, **given)
        assert "did you mean" in (told.value.hint or "")
    right: list[dict[str, Any]] = [
        {"tool": "Refund", "agent": "Desk"},
        {"tool": "of_a_program_elsewhere", "agent": "nobody-knows"},
    ]
    for given in right:
        await both.work.approvals.grant(seconds=60, **given)
