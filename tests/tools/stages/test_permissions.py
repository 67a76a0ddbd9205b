"""Roles and permissions, in the exact order in which they decide."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.tools.base import Caller
from foliot.tools.governance.permissions import Permissions
from tests.tools.governed import call, definition, permission, role, rules

INVOKE = "tool:refund:invoke"


def verdict_of(*documents: dict[str, Any], tool: Any = None, access: Any = "allow", **caller: Any):
    tool = tool or definition("refund", operation_classes=("write",))
    asked = call("refund", caller=Caller(agent="desk", **caller))
    return Permissions(tool)(asked, rules(*documents, default_access=access))


def test_an_agent_without_roles_is_open_by_default_and_closed_where_the_deployment_says_so() -> None:
    assert verdict_of().outcome == "allow"
    closed = verdict_of(access="deny")
    assert (closed.outcome, closed.rule) == ("deny", "default_tool_access")


def test_a_tool_in_allowed_tools_needs_nothing_else() -> None:
    deny = permission(operation_rules=[{"operation_class": "*", "verdict": "deny"}])

    assert verdict_of(deny, roles=("ghost",), allowed_tools=("Refund",), access="deny").outcome == "allow"


def test_a_role_that_does_not_exist_refuses_and_is_named() -> None:
    verdict = verdict_of(role("clerk", INVOKE), roles=("zed", "clerk", "ghost"))

    assert verdict.outcome == "deny"
    assert verdict.details == {"missing_roles": ["ghost", "zed"]}


def test_without_a_rule_an_agent_with_roles_needs_the_tool_and_every_capability() -> None:
    tool = definition("refund", capabilities=("Money Out", "ledger"))
    some = verdict_of(role("clerk", INVOKE, "capability:ledger"), roles=("clerk",), tool=tool)
    every = verdict_of(role("clerk", INVOKE, "capability:ledger", "capability:money_out"), roles=("clerk",), tool=tool)

    assert (some.outcome, some.details["required"]) == ("deny", ["capability:money_out"])
    assert every.outcome == "allow"


def test_permissions_of_several_roles_add_up() -> None:
    rule = permission(required_permissions=["a", "b"])

    assert verdict_of(rule, role("one", "a"), role("two", "b"), roles=("one", "two")).outcome == "allow"
    assert verdict_of(rule, role("one", "a"), role("two", "b"), roles=("one",)).outcome == "deny"


@pytest.mark.parametrize(
    ("mode", "held", "outcome"), [("all", ["a"], "deny"), ("any", ["a"], "allow"), ("any", [], "deny")]
)
def test_match_modes(mode: str, held: list[str], outcome: str) -> None:
    verdict = verdict_of(
        permission(required_permissions=["a", "b"], match_mode=mode), role("clerk", *held), roles=("clerk",)
    )

    assert verdict.outcome == outcome
    if outcome == "deny":
        assert verdict.rule == "ToolPermission/refund"
        assert verdict.details["required_any" if mode == "any" else "required"]


def test_a_rule_that_requires_nothing_asks_for_its_action() -> None:
    rule = permission(action="approve")

    assert verdict_of(rule, role("clerk", INVOKE), roles=("clerk",)).outcome == "deny"
    assert verdict_of(rule, role("clerk", "tool:refund:approve"), roles=("clerk",)).outcome == "allow"


def test_a_rule_for_another_agent_does_not_apply() -> None:
    scoped = permission(required_permissions=["x"], apply_mode="scoped", target_agents=["Desk"])
    other = permission(required_permissions=["x"], apply_mode="scoped", target_agents=["other"])

    assert verdict_of(scoped).outcome == "deny"
    assert verdict_of(other).outcome == "allow"


@pytest.mark.parametrize(
    ("classes", "rules_", "outcome"),
    [
        (("read",), {"*": "deny"}, "deny"),
        (("read",), {"*": "deny", "read": "allow"}, "allow"),
        (("read", "delete"), {"delete": "approval_required"}, "ask"),
        (("read", "delete"), {"delete": "approval_required", "read": "deny"}, "deny"),
        ((), {"*": "deny"}, "allow"),
        (("write",), {"read": "deny"}, "allow"),
    ],
)
def test_the_strictest_operation_rule_decides(classes, rules_: dict[str, str], outcome: str) -> None:
    rule = permission(operation_rules=[{"operation_class": name, "verdict": said} for name, said in rules_.items()])

    assert verdict_of(rule, tool=definition("refund", operation_classes=classes)).outcome == outcome


@pytest.mark.parametrize(
    ("effect", "risk", "outcome"),
    [("once", "low", "ask"), ("idempotent", "low", "ask"), ("read", "medium", "allow"), ("read", "high", "ask")],
)
def test_a_function_that_says_no_class_is_judged_by_its_effect(effect: Any, risk: Any, outcome: str) -> None:
    asks = permission(operation_rules=[{"operation_class": "write", "verdict": "approval_required"}])

    assert verdict_of(asks, tool=definition("refund", effect=effect, risk=risk)).outcome == outcome


def test_the_strictest_of_several_permissions_decides_and_says_who_may_approve() -> None:
    loose = permission("a", tool_ref="refund", operation_rules=[{"operation_class": "write", "verdict": "allow"}])
    asks = permission(
        "b",
        tool_ref="refund",
        operation_rules=[{"operation_class": "write", "verdict": "approval_required"}],
        approvers=["ana"],
        approval_ttl="1h",
    )

    verdict = verdict_of(loose, asks)

    assert (verdict.outcome, verdict.rule, verdict.approvers, verdict.seconds) == (
        "ask",
        "ToolPermission/b",
        ("ana",),
        3600.0,
    )
    assert verdict.details == {"tool": "refund", "operation_class": "write"}
