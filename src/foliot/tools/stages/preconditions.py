"""What must be there, and what must have happened, before a tool can be called."""

from __future__ import annotations

from collections.abc import Callable

from foliot.tools.base import Invocation, ToolDefinition, ToolPrecondition
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict

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
