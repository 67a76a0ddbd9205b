"""Is the tool on the lists of what may be called at all: the deployment's, and those of the policies that apply?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foliot.tools.base import Effect, Invocation, ToolDefinition
from foliot.tools.rules import Policy, Rules, means, tokens_of, tool_token
from foliot.tools.verdict import Verdict

UNCATEGORISED = "uncategorised"
_HARM: dict[str, int] = {"read": 0, "idempotent": 1, "once": 2}


@dataclass(frozen=True, slots=True)
class Profile:
    """Which tools may be called, as data. `exclude` wins over everything; None is no limit.

    A tool whose category nobody declared is in no category, so a list of categories never lets it through.
    `max_effect="read"` leaves only tools that change nothing.
    """

    tools: frozenset[str] | None = None
    categories: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    max_effect: Effect = "once"

    @classmethod
    def of(
        cls,
        tools: Iterable[str] | None = None,
        categories: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        max_effect: Effect = "once",
    ) -> Profile:
        """With names as people write them."""
        return cls(
            None if tools is None else frozenset(map(tool_token, tools)),
            None if categories is None else frozenset(word.lower() for word in categories),
            frozenset(map(tool_token, exclude)),
            max_effect,
        )

    def objection(self, definition: ToolDefinition) -> str | None:
        """Why this tool may not be called; None when it may. A tool on `tools` needs no category."""
        names = tokens_of(definition)
        if means(self.exclude, names):
            return f'tool "{definition.name}" is excluded'
        if _HARM[definition.effect] > _HARM[self.max_effect]:
            return (
                f'tool "{definition.name}" has the effect "{definition.effect}"; at most "{self.max_effect}" is allowed'
            )
        if self.tools is None and self.categories is None:
            return None
        if self.tools is not None and means(self.tools, names):
            return None
        category = definition.category.lower()
        if self.categories is not None and category != UNCATEGORISED and category in self.categories:
            return None
        if self.tools is None:
            return f'tool "{definition.name}" is of the category "{category}", which is not allowed'
        return f'tool "{definition.name}" is not allowed'


class AllowList:
    """The deployment's profile is settled when the tool is added; policies can only narrow it further."""

    layer = "allow-list"

    def __init__(self, definition: ToolDefinition, profile: Profile) -> None:
        self._definition = definition
        objection = profile.objection(definition)
        self._deployment = (
            Verdict("allow", self.layer, "no list leaves it out")
            if objection is None
            else Verdict("deny", self.layer, objection, "deployment")
        )

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if self._deployment.outcome == "deny" or not rules.policies:
            return self._deployment
        asked: Verdict | None = None
        for policy in rules.policies_for(call.caller):
            verdict = self._under(policy)
            if verdict is None:
                continue
            if verdict.outcome == "deny":
                return verdict
            asked = asked or verdict
        return asked or self._deployment

    def _under(self, policy: Policy) -> Verdict | None:
        rule = f"AgentPolicy/{policy.name}"
        if policy.read_only and self._definition.effect != "read":
            return Verdict("deny", self.layer, f'tool "{self._definition.name}" may change something', rule)
        if policy.tools or policy.categories:
            objection = Profile(policy.tools, policy.categories).objection(self._definition)
            if objection is not None:
                return Verdict("ask" if policy.ask == "on-miss" else "deny", self.layer, objection, rule)
        if policy.ask == "always":
            return Verdict("ask", self.layer, "every call is asked for", rule)
        return None
