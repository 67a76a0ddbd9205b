"""One more rule never opens a tool: whatever is declared already, what is added refuses more, asks more, or nothing.

Rule sets are made up by Hypothesis and judged by a whole pipeline. The exceptions are rules that say by themselves who
may call the tool: `required_permissions`, an `action`, and what allows where the default is to refuse.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.tools.base import Caller
from foliot.tools.function import tool
from foliot.tools.governance.rules import Access, FixedRules
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.governed import call, permission, policy, role, rules

EXAMPLES = 3000 if os.environ.get("FOLIOT_CHAOS") else 300
INVOKE = "tool:pay:invoke"
OPERATIONS = ("read", "write", "delete", "*")
NARROWING = ("deny", "approval_required")


@tool(effect="once")
def pay(amount: float) -> str:
    """Hand over money."""
    return "paid"


PAY = pay.with_definition(replace(pay.definition, operation_classes=("write",)))


def conditions(*verdicts: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries(
        {
            "when": st.sampled_from(["args.amount > 5.0", "true"]),
            "verdict": st.sampled_from(verdicts),
        }
    )
    return st.lists(one, max_size=2)


def operations(*verdicts: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    by_class = st.dictionaries(st.sampled_from(OPERATIONS), st.sampled_from(verdicts), max_size=2)
    return by_class.map(lambda said: [{"operation_class": name, "verdict": each} for name, each in said.items()])


SCOPES = st.sampled_from([{}, {"apply_mode": "scoped", "target_agents": ["desk"]}])
# Whatever may be declared already.
ANY_PERMISSION = st.builds(
    lambda scope, required, mode, said, when: {
        **scope,
        "required_permissions": required,
        "match_mode": mode,
        "operation_rules": said,
        "conditions": when,
    },
    SCOPES,
    st.lists(st.sampled_from([INVOKE, "vip"]), max_size=2, unique=True),
    st.sampled_from(["all", "any"]),
    operations("allow", *NARROWING),
    conditions("allow", *NARROWING),
)
# What is added: it says when a call is refused or asked for, or nothing at all.
RESTRICTION = st.builds(
    lambda scope, said, when: {**scope, "operation_rules": said, "conditions": when},
    SCOPES,
    operations(*NARROWING),
    conditions(*NARROWING),
)
POLICY = st.fixed_dictionaries(
    {},
    optional={
        "blocked_tools": st.sampled_from([["pay"], ["other"]]),
        "allowed_tools": st.sampled_from([["pay"], ["other"]]),
        "allowed_categories": st.just(["money"]),
        "read_only": st.booleans(),
        "ask": st.sampled_from(["off", "on-miss", "always"]),
        "allowed_models": st.sampled_from([["m"], ["other"]]),
    },
)
HELD = st.sampled_from([(), (INVOKE,), ("vip",), (INVOKE, "vip")])


def outcome(documents: list[dict[str, Any]], caller: Caller, access: Access, amount: float) -> str:
    source = FixedRules(rules(*documents, default_access=access), default_access=access)
    pipeline = Pipeline([PAY], PipelineParts(rules=source))
    return asyncio.run(pipeline.judge(call("pay", {"amount": amount}, caller=caller))).outcome


@settings(max_examples=EXAMPLES, deadline=None, derandomize="FOLIOT_CHAOS" not in os.environ)
@given(
    st.lists(ANY_PERMISSION, max_size=2),
    st.lists(POLICY, max_size=1),
    st.one_of(RESTRICTION.map(lambda spec: ("ToolPermission", spec)), POLICY.map(lambda spec: ("AgentPolicy", spec))),
    HELD,
    st.booleans(),
    st.sampled_from(["allow", "deny"]),
    st.sampled_from([1.0, 10.0, 100.0]),
)
def test_one_more_rule_opens_nothing(
    permissions: list[dict[str, Any]],
    policies: list[dict[str, Any]],
    added: tuple[str, dict[str, Any]],
    held: tuple[str, ...],
    has_roles: bool,
    access: Access,
    amount: float,
) -> None:
    caller = Caller(agent="desk", roles=("clerk",) if has_roles else (), model="m")
    there = [role("clerk", *held)]
    there += [permission(f"p{number}", tool_ref="pay", **spec) for number, spec in enumerate(permissions)]
    there += [policy(f"q{number}", **spec) for number, spec in enumerate(policies)]
    kind, spec = added
    more = permission("added", tool_ref="pay", **spec) if kind == "ToolPermission" else policy("added", **spec)

    before, after = (outcome(documents, caller, access, amount) for documents in (there, [*there, more]))

    # Under a default of refusing, a rule that asks for every class of operation says that a person may allow it.
    asks = any(each["verdict"] == "approval_required" for each in spec.get("operation_rules", ()))
    assert before != "deny" or after == "deny" or (after == "ask" and asks and access == "deny" and not has_roles), (
        before,
        after,
    )
    assert before != "ask" or after != "allow"


@settings(max_examples=EXAMPLES, deadline=None, derandomize="FOLIOT_CHAOS" not in os.environ)
@given(ANY_PERMISSION, conditions(*NARROWING), HELD, st.booleans(), st.sampled_from(["allow", "deny"]))
def test_one_more_condition_opens_nothing(
    spec: dict[str, Any], added: list[dict[str, Any]], held: tuple[str, ...], has_roles: bool, access: Access
) -> None:
    caller = Caller(agent="desk", roles=("clerk",) if has_roles else (), model="m")
    more = {**spec, "conditions": [*spec["conditions"], *added]}
    before, after = (
        outcome([role("clerk", *held), permission("p", tool_ref="pay", **each)], caller, access, 10.0)
        for each in (spec, more)
    )
    assert (before, after) != ("deny", "allow")
    assert (before, after) != ("ask", "allow")


@pytest.mark.parametrize(
    "spec",
    [
        {"conditions": [{"when": "args.amount > 100.0", "verdict": "deny"}]},
        {"operation_rules": [{"operation_class": "delete", "verdict": "deny"}]},
    ],
)
def test_a_restriction_leaves_what_is_required_without_it(spec: dict[str, Any]) -> None:
    rule = permission("cap", tool_ref="pay", **spec)
    bound = Caller(agent="desk", roles=("clerk",))
    for access in ("allow", "deny"):
        assert outcome([role("clerk", "other"), rule], bound, access, 7.0) == "deny"
        assert outcome([role("clerk", INVOKE), rule], bound, access, 7.0) == "allow"
        assert outcome([rule], Caller(agent="desk"), access, 7.0) == access
