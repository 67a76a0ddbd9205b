"""What would happen to a call, layer by layer, without making it.

The same layers that a call passes are asked here, in the same order; only here none of them stops the next, so that
everything that speaks against a call is said at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from foliot.tools.base import Invocation, OnOutput, Tool, ToolDefinition, ToolError
from foliot.tools.conditions import ConditionFailed
from foliot.tools.parts import Parts
from foliot.tools.pipeline import Layer, layers_for
from foliot.tools.rules import Rules
from foliot.tools.stages.allow_list import Profile
from foliot.tools.stages.callees import Delegates
from foliot.tools.stages.preconditions import qualified
from foliot.tools.verdict import STRICTNESS, Outcome, Verdict


class Judgement(Struct, frozen=True):
    """`verdicts` of every layer in order; `decided` is the one that decides: the first of the strictest."""

    outcome: Outcome
    decided: Verdict
    verdicts: tuple[Verdict, ...]


class Declared:
    """A tool of which only the definition is known, and which agents it names. It is judged and never called."""

    def __init__(self, definition: ToolDefinition, tool: Tool | None = None) -> None:
        self._definition = definition
        self.isolation = definition.isolation
        if hasattr(tool, "callees"):
            self.callees = cast("Delegates", tool).callees

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        raise ToolError(f"the tool {call.tool!r} is only judged here")


def layers_of(
    definition: ToolDefinition, *, profile: Profile, offered: frozenset[str], tool: Tool | None = None
) -> tuple[Layer, ...]:
    """The layers of a tool. `offered` are the needs that are met: `tool:<name>`, `capability:<name>`."""
    return layers_for(Declared(definition, tool), Parts(profile=profile), lambda need: qualified(need) in offered)


def judge(layers: Sequence[Layer], call: Invocation, rules: Rules, *, now: float) -> Judgement:
    """What every layer says, and what comes of it. Never raises for what a call or a rule holds."""
    verdicts = [_asked(layer, call, rules) for layer in layers]
    decided = max(verdicts, key=lambda verdict: STRICTNESS[verdict.outcome])
    if decided.outcome == "ask" and (grant := _standing(call, rules, now)) is not None:
        verdicts.append(grant)
        decided = grant
    return Judgement(decided.outcome, decided, tuple(verdicts))


def _asked(layer: Layer, call: Invocation, rules: Rules) -> Verdict:
    try:
        return layer(call, rules)
    except ToolError as error:
        return Verdict("deny", layer.layer, error.message, "", error.details)
    except Exception as error:
        return Verdict("deny", layer.layer, f"the layer itself breaks, which refuses: {type(error).__name__}: {error}")


def _standing(call: Invocation, rules: Rules, now: float) -> Verdict | None:
    for grant in rules.grants:
        try:
            if grant.covers(call, now):
                return Verdict("allow", "approval", "a standing grant covers the call", f"ToolApproval/{grant.id}")
        except ConditionFailed:
            continue
    return None
