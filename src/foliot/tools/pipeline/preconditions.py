"""Preconditions of a call: tools that must exist, secrets that must be set, calls that must have succeeded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from foliot.tools.base import Invocation, ToolDefinition, ToolIsolationMissing, ToolPrecondition, ToolSecretMissing
from foliot.tools.governance.rules import Rules, Verdict

LAYER = "preconditions"


class Preconditions:
    """`offers` says whether a tool or a capability is there, by `tool:<name>` or `capability:<name>`."""

    layer = LAYER

    def __init__(self, definition: ToolDefinition, offers: Callable[[str], bool]) -> None:
        self._name = definition.name
        self._requires = tuple(need for need in map(qualified, definition.requires) if not need.startswith("secret:"))
        self._prior = definition.requires_prior
        self._offers = offers

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        gaps = [need for need in self._requires if not self._offers(need)]
        if gaps:
            raise ToolPrecondition(
                f"the tool {self._name!r} needs what is not there: {', '.join(gaps)}", layer=LAYER, missing=gaps
            )
        owed = [name for name in self._prior if name not in call.prior]
        if owed:
            raise ToolPrecondition(
                f"{self._name!r} can be called after {' and '.join(map(repr, owed))} succeeded in this run",
                layer=LAYER,
                missing_prior=owed,
            )
        return _MET


def qualified(need: str) -> str:
    """A bare name is a tool."""
    return need if ":" in need else f"tool:{need}"


_MET = Verdict("allow", LAYER, "what it requires is there, and what must come before has succeeded")


# --- secrets ---------------------------------------------------------------------------------------------------------

# Are the secrets that the tool requires there?

HasSecret: TypeAlias = Callable[[str, str], Awaitable[bool]]


class SecretsGate:
    """Asks for the presence of a secret by namespace and reference; its value is never looked at here."""

    layer = "secrets"

    def __init__(self, definition: ToolDefinition, has_secret: HasSecret | None) -> None:
        self._name = definition.name
        self._needs = tuple(need.removeprefix("secret:") for need in definition.requires if need.startswith("secret:"))
        self._has_secret = has_secret

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        for need in self._needs:
            if self._has_secret is None or not await self._has_secret(call.caller.namespace, need):
                raise ToolSecretMissing(
                    f"the tool {self._name!r} needs the secret {need!r}, which is not there",
                    hint="create it with `foliot create secret`",
                    layer=self.layer,
                )


# --- isolation -------------------------------------------------------------------------------------------------------

# Does the backend contain the call as the tool was declared?


class IsolationLayer:
    """A tool that is declared to run isolated is refused when its backend does not offer that: never a weaker one."""

    layer = "isolation"

    def __init__(self, definition: ToolDefinition, offered: str) -> None:
        self._name = definition.name
        self._wanted = definition.isolation
        self._offered = offered
        self._contained = Verdict("allow", self.layer, f"its backend runs it {self._wanted!r}, as declared")

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if self._wanted != self._offered:
            raise ToolIsolationMissing(
                f"the tool {self._name!r} must run {self._wanted!r}, and nothing here can do that",
                hint="set runtime.isolation_mode to what this deployment offers",
                layer=self.layer,
                wanted=self._wanted,
            )
        return self._contained
