"""The steps between a decision and an effect: arguments are parsed, gates passed, answers checked by their schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from foliot.engine.budgets.calls import shortage_of
from foliot.engine.definition.freeze import CLIENT, COMMANDS, LOCK, SANDBOX, execution_of
from foliot.engine.definition.run_options import excluded_by
from foliot.engine.driver.effects import failed
from foliot.errors import Unavailable
from foliot.kernel.arguments import parse_object, repeated_name
from foliot.kernel.identity import Identity
from foliot.kernel.messages import ToolFailure, ToolResult
from foliot.kernel.run.actions import CallIntent, CallTools, CheckOutput
from foliot.kernel.run.calls import intent as intent_of
from foliot.kernel.run.events import (
    ApprovalRequested,
    BudgetExceeded,
    Event,
    OutputAccepted,
    OutputRejected,
    QuestionAsked,
    RunCreated,
    ToolFinished,
    describe_made,
)
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import Call, State, tool_names
from foliot.kernel.traces import under_call
from foliot.resources.validators import UnusableSchema, Validator, validator_of
from foliot.tools.base import Admitted, Caller, Invocation, Parked, Toolbox, ToolDependencyFailed
from foliot.tools.pipeline.order import OrderedCall, edges, touch_each_other

# --- turns -----------------------------------------------------------------------------------------------------------

# Whose turn it is among the calls of one step, by what their tools declare to touch and to come after.


@dataclass(frozen=True, slots=True)
class CallTurns:
    """`ready` may start now; `failed` never will. What is in neither waits for a call that is under way."""

    ready: Sequence[CallIntent]
    failed: Sequence[ToolFinished] = ()


def whose_turn(tools: Toolbox, state: State, intents: Sequence[CallIntent]) -> CallTurns:
    """The calls that may start, of those that the kernel would start side by side."""
    definitions = [tools.definition(call.name) for call in state.calls]
    if not touch_each_other(definitions):
        return CallTurns(intents)
    steps = [
        OrderedCall(call.id, definition, parse_object(call.arguments)[0] or {})
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
    return CallTurns(ready, refused)


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


# --- intake ----------------------------------------------------------------------------------------------------------

Outcome: TypeAlias = Admitted | Parked | ToolResult
Persist: TypeAlias = Callable[[Callable[[], Awaitable[Outcome]], Unavailable], Awaitable[Outcome]]
Answered: TypeAlias = ToolFinished | ApprovalRequested | QuestionAsked | BudgetExceeded
"""What becomes of a call that does not act now: its result, what a person has to say first, or what it waits for."""
MOST_PROBLEMS_TOLD = 8


async def admit_calls(
    tools: Toolbox, state: State, action: CallTools, caller: Caller | None = None, persist: Persist | None = None
) -> tuple[list[tuple[CallIntent, Admitted]], list[Answered]]:
    """Admits calls: returns those that may act, and the results of refused ones or the questions to be answered first.

    Neither, for a call whose turn has not come: another one of the same step has to be finished before it.
    `caller` is that of `caller_of`, by whoever has it already. `persist` asks again about a call when what governs it
    could not be looked up. Raises `Unavailable` without it, and what it raises.
    """
    caller = caller or caller_of(state)
    if state.told_by:
        caller = replace(caller, told_by=tuple(sorted(state.told_by - {""})))
    admitted: list[tuple[CallIntent, Admitted]] = []
    ready = action.calls
    refused: list[Answered] = []
    if len(state.calls) > 1:
        turns = whose_turn(tools, state, action.calls)
        ready = turns.ready
        refused.extend(turns.failed)
    for intent in ready:
        arguments = parse_object(intent.arguments)[0] or {}  # the kernel hands over JSON objects only
        call = invocation_of(state, intent, arguments, caller)
        try:
            outcome = await tools.admit(call)
        except Unavailable as error:
            if persist is None:
                raise
            outcome = await persist(partial(tools.admit, call), error)
        if isinstance(outcome, ToolResult):
            refused.append(shortage_of(intent.call_id, outcome.error) or ToolFinished(outcome))
        elif isinstance(outcome, Parked):
            refused.append(_parked(state, intent, outcome))
        else:
            admitted.append((intent, outcome))
    return admitted, refused


# Mistakes of a model that the kernel answers, and the layers that would have refused the same call.
_MISTAKES: Final = {"unknown_tool": "advertised", "invalid_arguments": "arguments"}


def mistaken_calls(
    state: State, events: Iterable[Event], caller: Caller | None = None
) -> list[tuple[Invocation, ToolResult]]:
    """The calls that the kernel refuses with these events, each with what is recorded of its refusal."""
    found: list[tuple[Invocation, ToolResult]] = []
    for event in events:
        if not isinstance(event, ToolFinished) or event.synthetic != "invalid" or event.result.error is None:
            continue
        error, call = event.result.error, state.call(event.result.call_id)
        layer = _MISTAKES.get(error.kind)
        if layer is None or call is None:
            continue
        trace = _trace(state, call.id)
        made = Invocation(
            run_id=state.run_id,
            call_id=call.id,
            tool=call.name,
            arguments=parse_object(call.arguments)[0] or {},
            idempotency_key=f"{state.run_id}/{call.id}",
            caller=caller or caller_of(state),
            step=state.step,
            trace=trace,
            trace_id=trace[3:35],
        )
        refusal = replace(error, details={**error.details, "layer": layer})
        found.append((made, replace(event.result, error=refusal)))
    return found


def invocation_of(state: State, intent: CallIntent, arguments: dict[str, Any], caller: Caller) -> Invocation:
    """The call as the pipeline is given it."""
    locked = state.spec.extra.get(LOCK, {}).get(intent.name, ("", ""))
    trace = _trace(state, intent.call_id)
    return Invocation(
        run_id=state.run_id,
        call_id=intent.call_id,
        tool=intent.name,
        arguments=arguments,
        idempotency_key=intent.key,
        caller=caller,
        step=state.step,
        grant=intent.grant.approval_id if intent.grant else "",
        # A client says itself what its own tools gave: that settles nothing for those of the agent.
        prior=state.tools_done.difference(own) if (own := state.spec.extra.get(CLIENT)) else state.tools_done,
        attempt=intent.attempt,
        trace=trace,
        trace_id=trace[3:35],
        version=locked[0],
        schema_digest=locked[1],
        # The kernel folds such a call as any other, so that journals with one stay readable.
        ambiguity=repeated_name(intent.arguments, arguments),
    )


def _trace(state: State, call_id: str) -> str:
    context = state.created.trace if state.created is not None else ""
    return under_call(context, state.run_id, call_id) if context else ""


def caller_of(state: State) -> Caller:
    """Returns the caller of tools in a run, from the frozen spec and the first event: a model has no part in it.

    Runs of the same spec for the same people have the very same one, as long as no other comes between them: then it
    takes no memory of its own, and what is known of the one is known of all (see `SettledLayers`).
    """
    spec = state.spec
    made = caller_for(spec, state.created or RunCreated(spec.agent, ""), state.identity)
    kept, last = _last_callers.get(id(spec), _NO_CALLER)
    if kept is spec and last == made:
        return last
    if len(_last_callers) >= _MOST_CALLERS:
        _last_callers.clear()
    _last_callers[id(spec)] = spec, made
    return made


_MOST_CALLERS: Final = 256
_NO_CALLER: Final[tuple[RunSpec | None, Caller]] = None, Caller()
_last_callers: Final[dict[int, tuple[RunSpec | None, Caller]]] = {}


def caller_for(spec: RunSpec, created: RunCreated, identity: Identity) -> Caller:
    """Returns the caller of tools in a run of this spec. `policy explain` uses it for runs that never start."""
    return Caller(
        namespace=spec.namespace,
        agent=spec.agent,
        roles=tuple(spec.extra.get("roles", ())),
        allowed_tools=tuple(spec.extra.get("allowed_tools", ())),
        advertised=tool_names(spec),
        model=spec.model,
        task=created.task,
        system=created.system,
        user=identity.user,
        depth=created.depth,
        by=identity.by,
        via=identity.via,
        ancestors=created.ancestors,
        template=created.template,
        ordered_by=identity.ordered_by,
        execution=execution_of(spec),
        allowed_commands=tuple(spec.extra.get(COMMANDS, ())),
        sandbox=spec.extra.get(SANDBOX, {}),
        excluded_tools=excluded_by(spec),
    )


def _parked(state: State, intent: CallIntent, parked: Parked) -> Answered:
    if (asked := parked.question) is not None:
        return QuestionAsked(
            intent.call_id, intent.name, asked.text, asked.choices, asked.default, parked.expires_at, asked.client
        )
    return _consent(state, intent, parked) if intent.grant is None else _not_covered(intent, parked)


def _consent(state: State, intent: CallIntent, parked: Parked) -> ApprovalRequested:
    past = state.created.past_effects if state.created is not None else ()
    said = (parked.reason, describe_made(past, intent.name, intent.arguments))
    return ApprovalRequested(
        call_id=intent.call_id,
        approval_id=parked.approval_id,
        tool=intent.name,
        digest=parked.digest,
        reason="; ".join(filter(None, said)),
        approvers=parked.approvers,
        expires_at=parked.expires_at,
        required=parked.required,
        four_eyes=parked.four_eyes,
    )


def _not_covered(intent: CallIntent, parked: Parked) -> ToolFinished:
    """Refuses a call whose earlier approval the gate does not accept: asking again would go round in circles."""
    message = f"the approval that was given does not cover the call as it stands ({parked.reason}); it was not run"
    failure = ToolFailure("permission_denied", "approval_not_valid", message, kind="denied")
    return ToolFinished(failed(intent.call_id, intent.name, failure), synthetic="denied")


def check_output(action: CheckOutput) -> OutputAccepted | OutputRejected:
    """Whether a final answer is JSON of the wanted shape; if not, what the model should be told."""
    try:
        value = read_answer(action.output)
    except (msgspec.DecodeError, RecursionError) as error:
        return rejected_output([f"it is not JSON: {error}"])
    try:
        validator = _validator(msgspec.json.encode(action.schema))
    except UnusableSchema as error:  # kept from before such schemas were refused when they are declared
        return rejected_output([f"nothing can be checked with the schema of the answer: {error.message}"])
    problems = validator.problems(value)
    return rejected_output(problems) if problems else OutputAccepted(value)


def read_answer(text: str) -> Any:
    """The JSON of a final answer. Raises `DecodeError`, `RecursionError`."""
    return msgspec.json.decode(_without_fence(text))


def rejected_output(problems: Sequence[str]) -> OutputRejected:
    told = problems[:MOST_PROBLEMS_TOLD]
    listing = "\n".join(f"- {problem}" for problem in told)
    return OutputRejected(
        "schema",
        f"Your answer does not fit the required format:\n{listing}\nAnswer again with JSON of that format only.",
        tuple(told),
    )


def _without_fence(text: str) -> str:
    """Models like to put JSON into a fenced block although nobody asked for one."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped[stripped.index("\n") + 1 : -3].strip()
    return stripped


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Validator:
    return validator_of(msgspec.json.decode(schema))
