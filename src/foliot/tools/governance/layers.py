"""Is this the tool that the run was locked to?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from foliot.kernel.arguments import problem_of
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.tools.base import (
    Caller,
    Effect,
    Invocation,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolPolicyInvalid,
    ToolVersionMismatch,
)
from foliot.tools.fences import Ceiling
from foliot.tools.governance.cel import ConditionFailed
from foliot.tools.governance.execution import ceiling_of
from foliot.tools.governance.rules import (
    EVERY_TOOL,
    STRICTNESS,
    Permission,
    Policy,
    RuleCondition,
    Rules,
    RuleSource,
    Verdict,
    means,
    together,
    tokens_of,
    tool_token,
)


class Resolve:
    """A run is told of its tools when it begins. A tool that became another one since then is not called in its place.

    The same version with another schema is another tool: the model writes arguments for the schema it was shown.
    """

    layer = "resolve"

    def __init__(self, definition: ToolDefinition, digest: str) -> None:
        self._name = definition.name
        self._version = definition.version
        self._digest = digest
        self._same = Verdict("allow", self.layer, f"the tool {definition.name!r} is there, version {self._version}")

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if (call.version and call.version != self._version) or (
            call.schema_digest and call.schema_digest != self._digest
        ):
            raise self._mismatch(call)
        return self._same

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return False  # a call says itself what it is locked to

    def _mismatch(self, call: Invocation) -> ToolVersionMismatch:
        if call.version and call.version != self._version:
            message = f"tool {self._name!r} version {call.version!r} is not available, only {self._version!r}"
        else:
            message = f"tool {self._name!r} has another schema than when this run began (version {self._version!r})"
        return ToolVersionMismatch(
            message, hint="start a new run", layer=self.layer, wanted=call.version, available_versions=[self._version]
        )


# --- advertised ------------------------------------------------------------------------------------------------------

# Was the tool given to this run?


class Advertised:
    """A run calls only tools that it was shown. A caller without a list (a person, a test) has no such limit."""

    layer = "advertised"

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        shown = call.caller.advertised
        if shown is None:
            return _NO_LIST
        return _SHOWN if call.tool in shown else _hidden(call)

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return True


def _hidden(call: Invocation) -> Verdict:
    return Verdict("deny", Advertised.layer, f"there is no tool named {call.tool!r} for this run: it was not given it")


_SHOWN = Verdict("allow", Advertised.layer, "the run was given this tool")
_NO_LIST = Verdict("allow", Advertised.layer, "the caller has no list of tools")


# --- allow list ------------------------------------------------------------------------------------------------------

# Is the tool on the lists of what may be called at all: the deployment's, and those of the policies that apply?

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
        """Makes a profile from names as people write them."""
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

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return True

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


# --- fences ----------------------------------------------------------------------------------------------------------

# The most that fences of a caller may be.


async def ceilings_of(source: RuleSource, caller: Caller) -> list[Ceiling]:
    """The ceilings that hold for what this caller does now: those of the policies that apply, and of its run.

    Raises `ToolDenied` for an execution policy that no fence can hold.
    """
    rules = await source.rules(caller.namespace)
    policies = [policy.ceiling for policy in rules.policies_for(caller) if policy.ceiling is not None]
    return policies if caller.execution is None else [*policies, ceiling_of(caller.execution)]


# --- arguments -------------------------------------------------------------------------------------------------------

# Checks that arguments can be judged, and that they fit the tool's JSON Schema, before anything else sees them.

MOST_PROBLEMS_SHOWN = 5


class CheckArguments:
    """Refuses a call whose arguments do not fit, and tells the model every place that is wrong.

    Every way in (a model, a person, MCP, NATS, edited arguments, Python) comes through here, so this is where arguments
    that two readers would read differently end: see `kernel/arguments.py`.
    """

    layer = "arguments"

    def __init__(
        self, tool: str, schema: Mapping[str, Any] | None, words: Callable[[Mapping[str, Any]], str] | None = None
    ) -> None:
        """`words` says in the tool's own words what does not fit; a blank text leaves it to the schema."""
        self._tool = tool
        self._words = words
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
            if self._words is not None and (told := self._words(call.arguments)):
                raise ToolArgumentsInvalid(told)
            raise ToolArgumentsInvalid(f"arguments of {self._tool!r} do not fit its schema: {self._explain(call)}")
        return self._fit

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return False

    def _explain(self, call: Invocation) -> str:
        problems = self._validator.problems(call.arguments, whole="arguments")
        shown = problems[:MOST_PROBLEMS_SHOWN]
        if len(problems) > MOST_PROBLEMS_SHOWN:
            shown.append(f"and {len(problems) - MOST_PROBLEMS_SHOWN} more")
        return "; ".join(shown)


# --- policy ----------------------------------------------------------------------------------------------------------

# AgentPolicy: which models may call tools, and which tools are blocked. Every policy that applies must agree.

POLICY = "policy"
# Types of tools of which nothing runs here: a service, another agent, a client. Programs of MCP servers are held to the
# ceilings when they are started.
_ELSEWHERE = frozenset({"http", "external", "webhook-callback", "grpc", "queue", "agent", "client", "mcp"})


class Policies:
    layer = POLICY

    def __init__(self, definition: ToolDefinition, *, ours: bool = False) -> None:
        """`ours`: the tool comes with Foliot, and runs no code of others."""
        self._name = definition.name
        self._names = tokens_of(definition)
        self._isolation = "" if ours or definition.type in _ELSEWHERE else definition.isolation

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if not rules.policies and not rules.broken:
            return _NONE
        caller = call.caller
        for policy in rules.policies_for(caller):
            if policy.ceiling is not None and (objection := self._too_weak(policy.ceiling)):
                return Verdict("deny", POLICY, objection, policy.ceiling.rule)
            if policy.blocked and means(policy.blocked, self._names):
                return Verdict(
                    "deny", POLICY, f'tool "{self._name}" is blocked by policy', f"AgentPolicy/{policy.name}"
                )
        # A caller without a model is a person or a program: the list is about what models may do.
        return of_models(rules, caller, (caller.model,) if caller.model else ())

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return True

    def _too_weak(self, ceiling: Ceiling) -> str:
        """Why the isolation of the tool does not do. A fence that is too weak is made stronger when it is opened."""
        if not ceiling.fenced or self._isolation not in ("none", "wasm"):
            return ""
        weakest = "sandboxed" if ceiling.backend == "process" else ceiling.backend
        if self._isolation == "wasm" and weakest == "sandboxed":
            return ""
        runs = "without a sandbox" if self._isolation == "none" else "as a WebAssembly module"
        return f'tool "{self._name}" runs {runs}, and the weakest isolation allowed is "{weakest}"'


def of_models(rules: Rules, caller: Caller, models: Iterable[str]) -> Verdict:
    """Judges by the policies whether this caller may ask these models. Called before every question to a model."""
    if rules.broken and (broken := rules.broken.get(EVERY_TOOL)):
        return Verdict("deny", POLICY, f"a policy cannot be read, so nothing is allowed by it: {broken}", broken)
    applying = rules.policies_for(caller)
    for policy in applying:
        if not policy.models:
            continue
        for model in models:
            if model.lower() not in policy.models:
                allowed = ", ".join(sorted(policy.models))
                reason = f'model "{model}" is not allowed by policy, which allows {allowed}'
                return Verdict("deny", POLICY, reason, f"AgentPolicy/{policy.name}")
    return _AGREED if applying else _NONE


_NONE = Verdict("allow", POLICY, "no policy applies")
_AGREED = Verdict("allow", POLICY, "every policy that applies agrees")


# --- conditions ------------------------------------------------------------------------------------------------------

# Conditions of permissions on the arguments of a call: `args.amount > 500.0` needs an approval.

CONDITIONS = "conditions"


class Conditions:
    """Applies the strictest of the conditions that hold; one that cannot be evaluated refuses."""

    layer = CONDITIONS

    def __init__(self, definition: ToolDefinition) -> None:
        self._names = tokens_of(definition)

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        caller = call.caller
        found = rules.permissions_of(self._names) if rules.permissions else ()
        if not found:
            return _conditions_NONE
        if caller.allowed_tools and not self._names.isdisjoint(map(tool_token, caller.allowed_tools)):
            return _LISTED
        strictest = _conditions_NONE
        for permission in found:
            if not permission.conditions or not permission.applies_to(caller.agent):
                continue
            verdict = _under(permission, call)
            if verdict.outcome == strictest.outcome == "ask":
                strictest = together((strictest, verdict), CONDITIONS)
            elif STRICTNESS[verdict.outcome] > STRICTNESS[strictest.outcome] or strictest is _conditions_NONE:
                strictest = verdict
        return strictest

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return not any(permission.conditions for permission in rules.permissions_of(self._names))


def _under(permission: Permission, call: Invocation) -> Verdict:
    rule = f"ToolPermission/{permission.name}"
    strictest: RuleCondition | None = None
    for condition in permission.conditions:
        try:
            holds = condition.when.holds(call)
        except ConditionFailed as error:
            reason = f"the condition `{condition.when.text}` cannot be evaluated for this call: {error}"
            return Verdict("deny", CONDITIONS, reason, rule)
        if holds and (strictest is None or STRICTNESS[condition.outcome] > STRICTNESS[strictest.outcome]):
            strictest = condition
    if strictest is not None:
        reason = strictest.reason or f"the condition `{strictest.when.text}` holds"
        return Verdict(
            strictest.outcome,
            CONDITIONS,
            reason,
            rule,
            {},
            permission.approvers,
            permission.ask_seconds,
            permission.required_approvals,
            permission.four_eyes,
        )
    if any(condition.outcome == "allow" for condition in permission.conditions):
        return Verdict("deny", CONDITIONS, "none of the conditions that would allow the call holds", rule)
    return _PASSED


_conditions_NONE = Verdict("allow", CONDITIONS, "no condition applies")
_LISTED = Verdict("allow", CONDITIONS, "the agent lists the tool in allowed_tools")
_PASSED = Verdict("allow", CONDITIONS, "no condition speaks against the arguments")
