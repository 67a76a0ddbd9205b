"""May the agents that a call names be called? Judged as if each of them were called by its own name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from foliot.tools.backends.agent import PREFIX, agent_definition
from foliot.tools.base import Invocation
from foliot.tools.rules import Rules
from foliot.tools.stages.allow_list import AllowList, Profile
from foliot.tools.stages.conditions import Conditions
from foliot.tools.stages.permissions import Permissions
from foliot.tools.stages.policy import Policies
from foliot.tools.verdict import Verdict, together

LAYER = "delegation"
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

    layer = LAYER

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
        return together(asks, LAYER) if asks else _ALLOWED

    def _verdicts(self, agent: str, told: str, call: Invocation, rules: Rules) -> Iterable[Verdict]:
        name = f"{PREFIX}{agent}"
        shown = call.caller.advertised
        if shown is not None and name not in shown:
            listed = ", ".join(sorted(each.removeprefix(PREFIX) for each in shown if each.startswith(PREFIX))) or "none"
            yield Verdict("deny", LAYER, f"this run may not call the agent {agent!r}; it may call: {listed}", "tools")
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


_ALLOWED = Verdict("allow", LAYER, "the agents may be called")
