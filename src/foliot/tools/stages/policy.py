"""AgentPolicy: which models may call tools, and which tools are blocked. Every policy that applies must agree."""

from __future__ import annotations

from collections.abc import Iterable

from foliot.tools.base import Caller, Invocation, ToolDefinition
from foliot.tools.rules import EVERY_TOOL, Rules, means, tokens_of
from foliot.tools.verdict import Verdict

LAYER = "policy"


class Policies:
    layer = LAYER

    def __init__(self, definition: ToolDefinition) -> None:
        self._name = definition.name
        self._names = tokens_of(definition)

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if not rules.policies and not rules.broken:
            return _NONE
        caller = call.caller
        for policy in rules.policies_for(caller):
            if policy.blocked and means(policy.blocked, self._names):
                return Verdict("deny", LAYER, f'tool "{self._name}" is blocked by policy', f"AgentPolicy/{policy.name}")
        # A caller without a model is a person or a program: the list is about what models may do.
        return of_models(rules, caller, (caller.model,) if caller.model else ())


def of_models(rules: Rules, caller: Caller, models: Iterable[str]) -> Verdict:
    """What policies say of asking these models in the name of this caller. Asked before every question to a model."""
    if rules.broken and (broken := rules.broken.get(EVERY_TOOL)):
        return Verdict("deny", LAYER, f"a policy cannot be read, so nothing is allowed by it: {broken}", broken)
    applying = rules.policies_for(caller)
    for policy in applying:
        if not policy.models:
            continue
        for model in models:
            if model.lower() not in policy.models:
                allowed = ", ".join(sorted(policy.models))
                reason = f'model "{model}" is not allowed by policy, which allows {allowed}'
                return Verdict("deny", LAYER, reason, f"AgentPolicy/{policy.name}")
    return _AGREED if applying else _NONE


_NONE = Verdict("allow", LAYER, "no policy applies")
_AGREED = Verdict("allow", LAYER, "every policy that applies agrees")
