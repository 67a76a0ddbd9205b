"""Checks that arguments can be judged, and that they fit the tool's JSON Schema, before anything else sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foliot.kernel.arguments import problem_of
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.tools.base import Invocation, ToolArgumentsInvalid, ToolPolicyInvalid
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict

MOST_PROBLEMS_SHOWN = 5


class CheckArguments:
    """Refuses a call whose arguments do not fit, and tells the model every place that is wrong.

    Every way in (a model, a person, MCP, NATS, edited arguments, Python) comes through here, so this is where arguments
    that two readers would read differently end: see `kernel/arguments.py`.
    """

    layer = "arguments"

    def __init__(self, tool: str, schema: Mapping[str, Any] | None) -> None:
        self._tool = tool
        self._unusable = ""
        try:
            self._validator = validator_of(schema if schema is not None else {})
        except UnusableSchema as error:  # one from before such schemas were refused: no call of the tool is let through
            self._unusable = error.message
            self._validator = validator_of(False)
        self._is_valid = self._validator.is_valid
        self._fit = Verdict("allow", self.layer, "the arguments fit the tool's schema")

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if problem := call.ambiguity or problem_of(call.arguments):
            raise ToolArgumentsInvalid(f"the arguments of {self._tool!r} cannot be judged: {problem}")
        if not self._is_valid(call.arguments):
            if self._unusable:
                raise ToolPolicyInvalid(f"the schema of {self._tool!r} cannot be used: {self._unusable}")
            raise ToolArgumentsInvalid(f"arguments of {self._tool!r} do not fit its schema: {self._explain(call)}")
        return self._fit

    def _explain(self, call: Invocation) -> str:
        problems = self._validator.problems(call.arguments, whole="arguments")
        shown = problems[:MOST_PROBLEMS_SHOWN]
        if len(problems) > MOST_PROBLEMS_SHOWN:
            shown.append(f"and {len(problems) - MOST_PROBLEMS_SHOWN} more")
        return "; ".join(shown)
