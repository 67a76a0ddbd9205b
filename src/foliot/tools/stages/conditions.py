"""Conditions of permissions on the arguments of a call: `args.amount > 500.0` needs an approval."""

from __future__ import annotations

from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.conditions import ConditionFailed
from foliot.tools.rules import Condition, Permission, Rules, tokens_of, tool_token
from foliot.tools.verdict import STRICTNESS, Verdict, together

LAYER = "conditions"


class Conditions:
    """Of the conditions that hold, the strictest decides; one that cannot be evaluated refuses."""

    layer = LAYER

    def __init__(self, definition: ToolDefinition) -> None:
        self._names = tokens_of(definition)

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        caller = call.caller
        found = rules.permissions_of(self._names)
        if not found:
            return _NONE
        if caller.allowed_tools and not self._names.isdisjoint(map(tool_token, caller.allowed_tools)):
            return _LISTED
        strictest = _NONE
        for permission in found:
            if not permission.conditions or not permission.applies_to(caller.agent):
                continue
            verdict = _under(permission, call)
            if verdict.outcome == strictest.outcome == "ask":
                strictest = together((strictest, verdict), LAYER)
            elif STRICTNESS[verdict.outcome] > STRICTNESS[strictest.outcome] or strictest is _NONE:
                strictest = verdict
        return strictest


def _under(permission: Permission, call: Invocation) -> Verdict:
    rule = f"ToolPermission/{permission.name}"
    strictest: Condition | None = None
    for condition in permission.conditions:
        try:
            holds = condition.when.holds(call)
        except ConditionFailed as error:
            reason = f"the condition `{condition.when.text}` cannot be evaluated for this call: {error}"
            return Verdict("deny", LAYER, reason, rule)
        if holds and (strictest is None or STRICTNESS[condition.outcome] > STRICTNESS[strictest.outcome]):
            strictest = condition
    if strictest is not None:
        reason = strictest.reason or f"the condition `{strictest.when.text}` holds"
        return Verdict(
            strictest.outcome,
            LAYER,
            reason,
            rule,
            {},
            permission.approvers,
            permission.ask_seconds,
            permission.required_approvals,
            permission.four_eyes,
        )
    if any(condition.outcome == "allow" for condition in permission.conditions):
        return Verdict("deny", LAYER, "none of the conditions that would allow the call holds", rule)
    return _PASSED


_NONE = Verdict("allow", LAYER, "no condition applies")
_LISTED = Verdict("allow", LAYER, "the agent lists the tool in allowed_tools")
_PASSED = Verdict("allow", LAYER, "no condition speaks against the arguments")
