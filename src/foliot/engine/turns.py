"""Whose turn it is among the calls of one step, by what their tools declare to touch and to come after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foliot.engine.effects import failed
from foliot.kernel.actions import CallIntent
from foliot.kernel.arguments import parse_object
from foliot.kernel.calls import intent as intent_of
from foliot.kernel.events import ToolFinished
from foliot.kernel.messages import ToolFailure
from foliot.kernel.state import Call, State
from foliot.tools.base import Toolbox, ToolDependencyFailed
from foliot.tools.plan import Step, edges


@dataclass(frozen=True, slots=True)
class Turns:
    """`ready` may start now; `failed` never will. What is in neither waits for a call that is under way."""

    ready: Sequence[CallIntent]
    failed: Sequence[ToolFinished] = ()


def whose_turn(tools: Toolbox, state: State, intents: Sequence[CallIntent]) -> Turns:
    """The calls that may start, of those that the kernel would start side by side."""
    definitions = [tools.definition(call.name) for call in state.calls]
    if not any(each is not None and (each.after or each.resource_keys) for each in definitions):
        return Turns(intents)
    steps = [
        Step(call.id, definition, parse_object(call.arguments)[0] or {})
        for call, definition in zip(state.calls, definitions, strict=True)
        if definition is not None
    ]
    before: dict[str, list[tuple[str, bool]]] = {}
    for edge in edges(steps):
        before.setdefault(edge.later, []).append((edge.earlier, edge.declared))
    ready: list[CallIntent] = []
    refused: list[ToolFinished] = []
    moving = {intent.call_id for intent in intents} | {call.id for call in state.calls if call.phase == "running"}
    for intent in intents:
        waits = False
        for call_id, declared in before.get(intent.call_id, ()):
            earlier = state.call(call_id)
            assert earlier is not None, "edges are between calls of this step"
            strict = declared and not _goes_on(tools, intent)
            if why := _in_vain(earlier, strict, moving):
                refused.append(_dependency_failed(intent, earlier, why))
                break
            waits = waits or earlier.phase != "done"
        else:
            if not waits:
                ready.append(intent)
    if not ready and not refused and not any(call.phase == "running" for call in state.calls):
        ready = [_first_in_line(state, before) or intents[0]]  # a circle of more than two: the model's order breaks it
    return Turns(ready, refused)


def _first_in_line(state: State, before: dict[str, list[tuple[str, bool]]]) -> CallIntent | None:
    """A call that all of these wait for, though the kernel would start it later: the model wrote it behind them."""
    done = {call.id for call in state.calls if call.phase == "done"}
    for call in state.calls:
        may_start = call.phase == "requested" and call.twin is None and call.verdict is None and call.violation is None
        if may_start and all(earlier in done for earlier, _ in before.get(call.id, ())):
            return intent_of(state, call)
    return None


def _goes_on(tools: Toolbox, intent: CallIntent) -> bool:
    """Whether the tool is declared to run although one that it comes after has failed."""
    definition = tools.definition(intent.name)
    return definition is not None and definition.on_dependency_failure == "run"


def _in_vain(earlier: Call, strict: bool, moving: set[str]) -> str | None:
    """Why waiting for this call would be in vain. `strict`: its failure is one of whoever comes after it."""
    if earlier.phase == "done":
        return "failed" if strict and not earlier.succeeded else None
    # A parked call may take days. Whoever depends on it is told now, and can be called again afterwards.
    return None if earlier.id in moving or earlier.phase == "requested" else "waits for a decision"


def _dependency_failed(intent: CallIntent, earlier: Call, why: str) -> ToolFinished:
    error = ToolDependencyFailed(
        f"{intent.name!r} comes after {earlier.name!r} (call {earlier.id!r}), which {why}; it was not run",
        dependency=earlier.id,
    )
    failure = ToolFailure(error.code, error.reason, error.message, False, error.kind, error.details)
    return ToolFinished(failed(intent.call_id, intent.name, failure))
