"""The rules of one namespace, as plain data that a gate can read in a microsecond.

Names of tools, agents and permissions are compared in a form of their own (`tool_token`, `permission_token`), so that
spelling does not decide what is allowed. Rules are a snapshot: nothing in here changes under a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from foliot.kernel.identity import Person
from foliot.resources.names import tool_token
from foliot.tools.base import Caller, Invocation, ToolDefinition, ToolDenied
from foliot.tools.fences import Ceiling
from foliot.tools.governance.cel import Expression

# --- verdict ---------------------------------------------------------------------------------------------------------

# What one layer of governance says of one call.

Outcome: TypeAlias = Literal["allow", "ask", "deny"]

# The words of the manifests.
OUTCOMES: Final[Mapping[str, Outcome]] = {"allow": "allow", "deny": "deny", "approval_required": "ask"}
STRICTNESS: Final[Mapping[Outcome, int]] = {"allow": 0, "ask": 1, "deny": 2}
# How long a question stands when no rule says otherwise.
ASK_SECONDS: Final = 72 * 3600.0  # people sleep, travel and have weekends


class Verdict(Struct, frozen=True):
    """`layer` is who speaks, `rule` what it goes by (`ToolPermission/refunds`), `reason` is for people.

    The rest belongs to "ask": `approvers` may answer (anybody with the role, when empty), `required` of them must
    agree, with `four_eyes` none of them is who the call is made for, and the question stands for `seconds`.
    """

    outcome: Outcome
    layer: str
    reason: str
    rule: str = ""
    details: dict[str, Any] = {}
    approvers: tuple[str, ...] = ()
    seconds: float = ASK_SECONDS
    required: int = 1
    four_eyes: bool = False

    def denial(self) -> ToolDenied:
        """The refusal as it goes back to the model."""
        rule = {"rule": self.rule} if self.rule else {}
        return ToolDenied(self.reason, layer=self.layer, **rule, **self.details)


def together(asks: Sequence[Verdict], layer: str) -> Verdict:
    """Returns one question for several rules that ask: whoever answers it satisfies each of them, or nobody may."""
    if len(asks) == 1:
        return asks[0]
    named = [ask for ask in asks if ask.approvers]
    common = [name for name in named[0].approvers if all(name in ask.approvers for ask in named)] if named else []
    required = max(ask.required for ask in asks)
    rules = ", ".join(dict.fromkeys(ask.rule for ask in asks if ask.rule))
    if named and len(common) < required:
        return Verdict("deny", layer, f"nobody may approve this: {rules} name different approvers", rules)
    return Verdict(
        "ask",
        layer,
        "; ".join(dict.fromkeys(ask.reason for ask in asks)),
        rules,
        asks[0].details,
        tuple(common),
        min(ask.seconds for ask in asks),
        required,
        any(ask.four_eyes for ask in asks),
    )


# --- rules -----------------------------------------------------------------------------------------------------------

Access: TypeAlias = Literal["allow", "deny"]
Ask: TypeAlias = Literal["off", "on-miss", "always"]

EVERY_TOOL: Final = "*"
MOST_REMEMBERED: Final = 1024


def permission_token(text: str) -> str:
    """`Tool: Web-Search :invoke` and `tool:web_search:invoke` are the same permission."""
    return _SEPARATORS.sub("_", text.strip().lower().replace(" ", ""))


def tokens_of(definition: ToolDefinition) -> frozenset[str]:
    """All names by which rules may mean a tool."""
    return frozenset(map(tool_token, (definition.name, *definition.other_names)))


def means(words: frozenset[str], tokens: frozenset[str]) -> bool:
    """Whether a list of a rule means one of these names; `*` in a word stands for anything."""
    if not words.isdisjoint(tokens):
        return True
    return any("*" in word and any(fnmatchcase(token, word) for token in tokens) for word in words)


def placed(name: str, namespace: str) -> str:
    """A task or system as rules compare it: `namespace/name`, in lower case."""
    name = name.strip().lower()
    return name if "/" in name else f"{namespace.lower()}/{name}"


_SEPARATORS: Final = re.compile(r"[/\\-]")


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    permissions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RuleCondition:
    when: Expression
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Permission:
    """One ToolPermission. `agents` None means every agent; `operations` has the outcome of each class, `*` for others.

    `conditions` are a table: of those that hold, the strictest decides. When any of them allows, a call for which none
    holds is refused: who writes "allow when …" means "and not otherwise".
    """

    name: str
    tool: str
    action: str = "invoke"
    required: tuple[str, ...] = ()
    any_of: bool = False
    agents: frozenset[str] | None = None
    operations: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    conditions: tuple[RuleCondition, ...] = ()
    approvers: tuple[str, ...] = ()
    ask_seconds: float = ASK_SECONDS
    required_approvals: int = 1
    four_eyes: bool = False

    def applies_to(self, agent: str) -> bool:
        return self.agents is None or agent.lower() in self.agents


@dataclass(frozen=True, slots=True)
class Policy:
    """One AgentPolicy. An empty set of models, tools or categories is no limit.

    `tasks` and `systems` are `namespace/name`, in lower case. A task is meant by its own name, or by that of the Task
    that it was made after. `ceiling` is the most that fences of its callers may be.
    """

    name: str
    everywhere: bool = False
    systems: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    max_tokens: int = 0
    models: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    categories: frozenset[str] = frozenset()
    read_only: bool = False
    ask: Ask = "off"
    ceiling: Ceiling | None = None

    def applies_to(self, caller: Caller) -> bool:
        """Whether it holds for what this caller does: everywhere, or under a task or system that it targets."""
        if self.everywhere:
            return True
        home = caller.namespace
        return (
            bool(self.tasks)
            and (placed(caller.task, home) in self.tasks or placed(caller.template, home) in self.tasks)
        ) or placed(caller.system, home) in self.systems


@dataclass(frozen=True, slots=True)
class StandingGrant:
    """An approval given in advance, for calls like these, until `expires_at` (seconds since 1970; None: for good).

    `giver` is who gave it, and `person` the same by all their names: it answers only what they could have answered when
    asked. One that is `spent` has no use left, but for a call that took one before a crash.
    """

    id: str
    tool: str
    agents: frozenset[str] | None = None
    when: Expression | None = None
    expires_at: float | None = None
    giver: str = ""
    person: Person | None = None
    spent: bool = False

    def covers(self, call: Invocation, now: float) -> bool:
        """Raises `ConditionFailed` when its condition cannot be evaluated."""
        if self.tool != tool_token(call.tool) or (self.expires_at is not None and now >= self.expires_at):
            return False
        if self.agents is not None and call.caller.agent.lower() not in self.agents:
            return False
        return self.when is None or self.when.holds(call)

    def answers(self, call: Invocation, asks: Sequence[Verdict], now: float) -> bool:
        """Whether it stands for the consent that these rules ask for. Raises as `covers`.

        One person is not several: what needs more than one approval is always asked.
        """
        for ask in asks:
            if ask.required > 1 or (ask.approvers and self.giver not in ask.approvers):
                return False
            if ask.four_eyes and (self.person or Person(self.giver)).is_among(call.caller.people):
                return False
        return self.covers(call, now)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one namespace. `roles` are by `namespace/name`, `permissions` by the token of their tool.

    `default_access` is for a call that no rule speaks of, of an agent without roles. `broken` says which tool is
    refused because a rule for it cannot be read; `*` stands for every tool.
    """

    namespace: str = "default"
    roles: Mapping[str, Role] = field(default_factory=dict[str, Role])
    permissions: Mapping[str, tuple[Permission, ...]] = field(default_factory=dict[str, tuple[Permission, ...]])
    policies: tuple[Policy, ...] = ()
    grants: tuple[StandingGrant, ...] = ()
    default_access: Access = "allow"
    broken: Mapping[str, str] = field(default_factory=dict[str, str])
    # What was worked out before; the rules never change, so neither does this. Bounded.
    _held: dict[tuple[str, ...], tuple[frozenset[str], tuple[str, ...]]] = field(
        default_factory=dict[tuple[str, ...], tuple[frozenset[str], tuple[str, ...]]],
        init=False,
        compare=False,
        repr=False,
    )

    def held_by(self, roles: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
        """The permissions of these roles together, and those of the roles that do not exist."""
        known = self._held.get(roles)
        if known is None:
            found = {name: self.role(name) for name in roles}
            missing = tuple(sorted(name for name, role in found.items() if role is None))
            held = frozenset(token for role in found.values() if role is not None for token in role.permissions)
            if len(self._held) >= MOST_REMEMBERED:
                self._held.clear()
            known = self._held[roles] = held, missing
        return known

    def role(self, name: str) -> Role | None:
        return self.roles.get(name if "/" in name else f"{self.namespace}/{name}")

    def permissions_of(self, tokens: frozenset[str]) -> tuple[Permission, ...]:
        """The permissions that speak of a tool with these names, for whatever agent."""
        if not self.permissions:
            return ()
        if len(tokens) == 1:
            (token,) = tokens
            return self.permissions.get(token, ())
        found = [rule for token in tokens for rule in self.permissions.get(token, ())]
        return tuple(sorted(found, key=lambda rule: rule.name))

    def policies_for(self, caller: Caller) -> tuple[Policy, ...]:
        """The policies that hold for what this caller does."""
        if not self.policies:
            return ()
        return tuple([policy for policy in self.policies if policy.everywhere or policy.applies_to(caller)])


class RuleSource(Protocol):
    """A source of rules."""

    async def rules(self, namespace: str) -> Rules:
        """The rules as they are now. Whatever this raises, the call is refused."""
        ...

    def at_hand(self, namespace: str) -> Rules | None:
        """The same without waiting, if it is known that they hold this moment."""
        ...


class FixedRules:
    """The same rules for every call; without any, every namespace has only the default."""

    def __init__(self, *rules: Rules, default_access: Access = "allow") -> None:
        self._rules = {each.namespace: each for each in rules}
        self._default: Access = default_access

    async def rules(self, namespace: str) -> Rules:
        return self.at_hand(namespace)

    def at_hand(self, namespace: str) -> Rules:
        found = self._rules.get(namespace)
        if found is None:
            found = self._rules[namespace] = Rules(namespace, default_access=self._default)
        return found
