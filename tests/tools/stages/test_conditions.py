"""Conditions on arguments: the strictest that holds decides, and what cannot be evaluated refuses."""

from __future__ import annotations

import pytest

from foliot.tools.base import Caller
from foliot.tools.governance.layers import Conditions
from tests.tools.governed import call, definition, permission, rules

LARGE = {"when": "args.amount > 500.0", "verdict": "approval_required", "reason": "large refunds are looked at"}
HUGE = {"when": "args.amount > 9000.0", "verdict": "deny"}
INSIDE = {"when": "args.path.startsWith('/data/')", "verdict": "allow"}


@pytest.mark.parametrize(
    ("conditions", "arguments", "outcome"),
    [
        ([LARGE, HUGE], {"amount": 20}, "allow"),
        ([LARGE, HUGE], {"amount": 501}, "ask"),
        ([HUGE, LARGE], {"amount": 10_000}, "deny"),
        ([LARGE], {"amount": "much"}, "deny"),
        ([LARGE], {}, "deny"),
        ([INSIDE], {"path": "/data/x"}, "allow"),
        ([INSIDE], {"path": "/etc/passwd"}, "deny"),
        ([{"when": "args.amount <= 500.0", "verdict": "allow"}, LARGE], {"amount": 600}, "ask"),
    ],
)
def test_a_table_of_conditions(conditions, arguments, outcome: str) -> None:
    found = rules(permission(conditions=conditions))

    verdict = Conditions(definition("refund"))(call("refund", arguments), found)

    assert verdict.outcome == outcome
    if outcome != "allow":
        assert verdict.rule == "ToolPermission/refund"


def test_the_reason_of_the_rule_is_what_people_are_told() -> None:
    verdict = Conditions(definition("refund"))(call("refund", {"amount": 600}), rules(permission(conditions=[LARGE])))

    assert verdict.reason == "large refunds are looked at"


def test_the_strictest_of_several_permissions_decides() -> None:
    found = rules(
        permission("a", tool_ref="refund", conditions=[LARGE]), permission("b", tool_ref="refund", conditions=[HUGE])
    )

    assert Conditions(definition("refund"))(call("refund", {"amount": 10_000}), found).rule == "ToolPermission/b"


def test_a_condition_for_another_agent_or_of_a_trusted_tool_does_not_apply() -> None:
    scoped = rules(permission(conditions=[HUGE], apply_mode="scoped", target_agents=["other"]))
    trusted = call("refund", {"amount": 10_000}, caller=Caller(agent="desk", allowed_tools=("refund",)))

    assert Conditions(definition("refund"))(call("refund", {"amount": 10_000}), scoped).outcome == "allow"
    assert Conditions(definition("refund"))(trusted, rules(permission(conditions=[HUGE]))).outcome == "allow"
