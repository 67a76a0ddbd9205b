"""AgentRole x ToolPermission: may this agent call this tool?

The order of the decision, from top to bottom; the first that decides, decides:

1. A rule for the tool cannot be read: refused.
2. The agent lists the tool in `allowed_tools`: allowed. (Policies and lists still hold: they are other layers.)
3. A role of the agent does not exist: refused.
4. No permission speaks of the tool: an agent without roles has the namespace's default access; one with roles needs
   `tool:<tool>:invoke` and `capability:<c>` for each capability of the tool.
5. Every permission that applies must be met: all, or any, of what it requires. One that names nothing requires of an
   agent with roles what is required without it, so that no further rule opens a tool. An agent without roles, where the
   default is to refuse, needs one that allows: for every class of operation, or under a condition.
6. For each class of operation the tool performs: the rule for that class, else the one for `*`, else allow. Over all
   classes and all permissions the strictest counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from foliot.tools.backends.agent import PREFIX, agent_definition
from foliot.tools.base import Caller, Invocation, ToolDefinition
from foliot.tools.governance.layers import AllowList, Conditions, Policies, Profile
from foliot.tools.governance.rules import (
    EVERY_TOOL,
    STRICTNESS,
    Outcome,
    Permission,
    Rules,
    Verdict,
    permission_token,
    together,
    tokens_of,
    tool_token,
)

PERMISSIONS = "permissions"


class Permissions:
    layer = PERMISSIONS

    def __init__(self, definition: ToolDefinition) -> None:
        self._name = definition.name
        self._tool = tool_token(definition.name)
        self._names = tokens_of(definition)
        self._classes = tuple(name.lower() for name in definition.classes)
        self._capabilities = tuple(
            permission_token(f"capability:{tool_token(capability)}") for capability in definition.capabilities
        )

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        caller = call.caller
        if rules.broken and (broken := self._broken(rules)):
            return Verdict("deny", PERMISSIONS, f"a rule cannot be read, so nothing is allowed by it: {broken}", broken)
        if caller.allowed_tools and not self._names.isdisjoint(map(tool_token, caller.allowed_tools)):
            return _LISTED
        held, missing = rules.held_by(caller.roles) if caller.roles else _NO_ROLES
        if missing:
            ungranted = " or are not granted by a ReferenceGrant" if any("/" in name for name in missing) else ""
            reason = f"agent {caller.agent!r} has roles that do not exist{ungranted}: {', '.join(missing)}"
            return Verdict("deny", PERMISSIONS, reason, "", {"missing_roles": list(missing)})
        found = rules.permissions_of(self._names) if rules.permissions else ()
        applying = tuple([rule for rule in found if rule.applies_to(caller.agent)]) if found else found
        if not applying:
            return self._without_rules(call, rules, held)
        if not caller.roles and rules.default_access == "deny" and not any(map(self._speaks_for, applying)):
            return _CLOSED
        return self._under(applying, held, bool(caller.roles))

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return True

    def _broken(self, rules: Rules) -> str:
        return next((rules.broken[name] for name in (*sorted(self._names), EVERY_TOOL) if name in rules.broken), "")

    def _without_rules(self, call: Invocation, rules: Rules, held: frozenset[str]) -> Verdict:
        if not call.caller.roles:
            return _OPEN if rules.default_access == "allow" else _CLOSED
        lacking = [token for token in self._required("invoke") if token not in held]
        if lacking:
            return self._lacks(lacking, "", any_of=False)
        return _HELD

    def _speaks_for(self, permission: Permission) -> bool:
        """Whether it says that the tool may be called, by whoever or when, and not only when it may not."""
        operations = permission.operations
        return (
            bool(permission.required)
            or any(condition.outcome == "allow" for condition in permission.conditions)
            or (bool(self._classes) and all(name in operations or "*" in operations for name in self._classes))
        )

    def _under(self, applying: tuple[Permission, ...], held: frozenset[str], has_roles: bool) -> Verdict:
        strictest: Verdict = _MET
        for permission in applying:
            rule = f"ToolPermission/{permission.name}"
            required = permission.required
            if not required and (has_roles or not (permission.operations or permission.conditions)):
                required = self._required(permission.action)
            lacking = [token for token in required if token not in held]
            if lacking and (not permission.any_of or len(lacking) == len(required)):
                return self._lacks(lacking, rule, any_of=permission.any_of)
            outcome, name = self._operation(permission)
            if outcome == strictest.outcome == "ask":
                strictest = together((strictest, self._operation_verdict(outcome, name, rule, permission)), PERMISSIONS)
            elif STRICTNESS[outcome] > STRICTNESS[strictest.outcome]:
                strictest = self._operation_verdict(outcome, name, rule, permission)
        return strictest

    def _operation(self, permission: Permission) -> tuple[Outcome, str]:
        """The strictest outcome for what the tool does, and the class that has it."""
        found: tuple[Outcome, str] = ("allow", "")
        for name in self._classes if permission.operations else ():
            outcome = permission.operations.get(name) or permission.operations.get("*", "allow")
            if STRICTNESS[outcome] > STRICTNESS[found[0]]:
                found = (outcome, name)
        return found

    def _operation_verdict(self, outcome: Outcome, name: str, rule: str, permission: Permission) -> Verdict:
        details = {"tool": self._name, "operation_class": name}
        if outcome == "deny":
            return Verdict("deny", PERMISSIONS, f"policy operation denied: {self._name!r} does {name!r}", rule, details)
        reason = f"{self._name!r} does {name!r}, which needs an approval"
        return Verdict(
            "ask",
            PERMISSIONS,
            reason,
            rule,
            details,
            permission.approvers,
            permission.ask_seconds,
            permission.required_approvals,
            permission.four_eyes,
        )

    def _required(self, action: str) -> tuple[str, ...]:
        return (permission_token(f"tool:{self._tool}:{action}"), *self._capabilities)

    def _lacks(self, lacking: list[str], rule: str, *, any_of: bool) -> Verdict:
        details = {"tool": self._name, "required_any" if any_of else "required": lacking}
        needed = (" or " if any_of else " and ").join(lacking)
        return Verdict("deny", PERMISSIONS, f"the agent's roles do not hold {needed}", rule, details)


_NO_ROLES: tuple[frozenset[str], tuple[str, ...]] = frozenset(), ()
_LISTED = Verdict("allow", PERMISSIONS, "the agent lists the tool in allowed_tools")
_OPEN = Verdict("allow", PERMISSIONS, "no rule speaks of the tool, and the agent has no roles: open by default")
_CLOSED = Verdict(
    "deny",
    PERMISSIONS,
    "no rule allows the tool, and this deployment refuses what no rule allows",
    "default_tool_access",
)
_HELD = Verdict("allow", PERMISSIONS, "no rule speaks of the tool, and the agent's roles hold what it needs")
_MET = Verdict("allow", PERMISSIONS, "every permission that applies is met")


# --- callees ---------------------------------------------------------------------------------------------------------

# May the agents that a call names be called? Judged as if each of them were called by its own name.

CALLEES = "delegation"
MOST_KNOWN = 256


class Delegates(Protocol):
    """A tool whose arguments say which agents it runs."""

    def callees(self, call: Invocation) -> Iterable[tuple[str, str]]:
        """The agents that the call names, each with what it is told. Raises `ToolArgumentsInvalid`."""
        ...


class _Judge(Protocol):
    def __call__(self, call: Invocation, rules: Rules) -> Verdict: ...


class Callees:
    """A run names only agents that it lists as `agent:NAME`; the rules about those hold for this way to them too."""

    layer = CALLEES

    def __init__(self, tool: Delegates, profile: Profile) -> None:
        self._tool = tool
        self._profile = profile
        self._judges: dict[tuple[str, str], tuple[_Judge, ...]] = {}

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        asks: list[Verdict] = []
        for agent, told in self._tool.callees(call):
            for verdict in self._verdicts(agent, told, call, rules):
                if verdict.outcome == "deny":
                    return verdict
                if verdict.outcome == "ask":
                    asks.append(verdict)
        return together(asks, CALLEES) if asks else _ALLOWED

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return False  # the arguments name the agents

    def _verdicts(self, agent: str, told: str, call: Invocation, rules: Rules) -> Iterable[Verdict]:
        name = f"{PREFIX}{agent}"
        shown = call.caller.advertised
        if shown is not None and name not in shown:
            listed = ", ".join(sorted(each.removeprefix(PREFIX) for each in shown if each.startswith(PREFIX))) or "none"
            yield Verdict("deny", CALLEES, f"this run may not call the agent {agent!r}; it may call: {listed}", "tools")
            return
        inner = replace(call, tool=name, arguments={"input": told})
        for judge in self._judged_by(call.namespace, agent):
            yield judge(inner, rules)

    def _judged_by(self, namespace: str, agent: str) -> tuple[_Judge, ...]:
        judges = self._judges.get((namespace, agent))
        if judges is None:
            if len(self._judges) >= MOST_KNOWN:  # models choose the names
                self._judges.clear()
            made = agent_definition(agent, namespace)
            judges = (AllowList(made, self._profile), Permissions(made), Policies(made), Conditions(made))
            self._judges[namespace, agent] = judges
        return judges


_ALLOWED = Verdict("allow", CALLEES, "the agents may be called")
