"""AgentPolicy: which models may call tools, and which tools are blocked. Every policy that applies must agree."""

from __future__ import annotations

from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.rules import EVERY_TOOL, Rules, tool_token
from foliot.tools.verdict import Verdict

LAYER = "policy"


class Policies:
    layer = LAYER

    def __init__(self, definition: ToolDefinition) -> None:
        self._name = definition.name
        self._tool = tool_token(definition.name)

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if rules.broken and (broken := rules.broken.get(EVERY_TOOL)):
            return Verdict("deny", LAYER, f"a policy cannot be read, so nothing is allowed by it: {broken}", broken)
        if not rules.policies:
            return _NONE
        caller = call.caller
        applying = rules.policies_for(caller.task, caller.system)
        for policy in applying:
            rule = f"AgentPolicy/{policy.name}"
            if self._tool in policy.blocked:
                return Verdict("deny", LAYER, f'tool "{self._name}" is blocked by policy', rule)
            # A caller without a model is a person or a program: the list is about what models may do.
            if policy.models and caller.model and caller.model.lower() not in policy.models:
                return Verdict("deny", LAYER, f'model "{caller.model}" is not allowed by policy', rule)
        return _AGREED if applying else _NONE


_NONE = Verdict("allow", LAYER, "no policy applies")
_AGREED = Verdict("allow", LAYER, "every policy that applies agrees")
