"""Replays a run offline: the kernel decides everything again, and every decision must come out as it was recorded.

What came from the world (answers, results, decisions of people) is taken from the journal; what the kernel decided is
decided anew and compared with the journal byte for byte. No model is asked and no tool is called. A difference means
that this version of Foliot would have run the journal differently, and says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.common.text import one_line
from foliot.engine.approval.documents import shown
from foliot.engine.definition.skills import with_prompt
from foliot.engine.driver.runs import Runs
from foliot.engine.explain.amounts import arguments
from foliot.engine.explain.trace import CallTrace, StepTrace, trace_of
from foliot.engine.runners.profile import RUNNER, has_begun_program
from foliot.errors import NotFound
from foliot.kernel.arguments import arguments_digest, parse_object
from foliot.kernel.errors import IllegalEvent
from foliot.kernel.messages import Message
from foliot.kernel.run.calls import unsettled_of
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.kernel.run.events import (
    BudgetExceeded,
    ContractViolated,
    Event,
    Fork,
    OutputRejected,
    PastEffect,
    RunCancelled,
    RunCreated,
    RunFailed,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    ToolFinished,
    Unsettled,
    WorkspaceSnapshot,
)
from foliot.kernel.run.feedback import LAST_ANSWER
from foliot.kernel.run.folds import inputs_due
from foliot.kernel.run.loop import apply, decide
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.resources.names import is_reserved
from foliot.store.journal.base import Entry
from foliot.tools.backends.agent import child_ids

# Never from outside: when one of these was recorded, the kernel must decide the same again.
ALWAYS_DECIDED = (StepStarted, RunWaiting, RunSucceeded, RunFailed, RunCancelled, ContractViolated)
# Results in a tool's place that the engine gives too: of a call that was told to stop, or is not covered by its grant.
ALSO_FROM_OUTSIDE = ("cancelled", "denied")


class ReplayDifference(Struct, frozen=True):
    """The first place where the replay does not follow the journal."""

    seq: int
    recorded: str
    replayed: str


class Replay(Struct):
    """The result of a replay. `decided` of `events` were decided by the kernel, and came out the same."""

    state: State
    events: int = 0
    decided: int = 0
    difference: ReplayDifference | None = None


def replay(spec: RunSpec, run_id: str, entries: Sequence[Entry], history: Sequence[Message] = ()) -> Replay:
    """Fold the journal once more, holding each decision against it. Raises `UnknownEvent` for a newer journal."""
    found = Replay(State(spec, run_id, history))
    expected: list[Event] = []
    for entry in entries:
        if not expected and found.events:
            expected = list(decide(found.state).events)
        found.difference = _follow(found, entry, expected)
        if found.difference is not None:
            break
        found.events += 1
    return found


def _is_decided(event: Event) -> bool:
    """Whether nobody but the kernel can have said so."""
    match event:
        case BudgetExceeded():
            return not event.budget  # a declared one is kept outside the run
        case OutputRejected():
            return event.reason != "schema"
        case ToolFinished():
            return event.synthetic is not None and event.synthetic not in ALSO_FROM_OUTSIDE
        case _:
            return isinstance(event, ALWAYS_DECIDED)


def _follow(found: Replay, entry: Entry, expected: list[Event]) -> ReplayDifference | None:
    """Fold in one recorded event, which is either the next decision or something from outside."""
    event = decode(entry.data)
    if expected and encode(expected[0]) == entry.data:
        expected.pop(0)
        found.decided += 1
    elif _is_decided(event):
        decided = encode(expected[0]).decode() if expected else "nothing is decided here"
        return ReplayDifference(entry.seq, entry.data.decode(), decided)
    else:
        # Something from outside came first; the kernel may decide otherwise when it knows that.
        expected.clear()
    if encode(event) != entry.data:
        return ReplayDifference(entry.seq, entry.data.decode(), encode(event).decode())
    try:
        apply(found.state, event, entry.at)
    except IllegalEvent as error:
        return ReplayDifference(entry.seq, f"{type_of(event)} was recorded", f"it cannot follow: {error}")
    return None


# --- fork ------------------------------------------------------------------------------------------------------------

# Forks: a new run that shares the past of another up to a step, and continues differently from there.


class Branch(Struct, frozen=True):
    """The start of a forked run: its spec, the past it shares, and its first input.

    `labels` are those that somebody chose for the original: the same budgets hold for it. `created` is its first event:
    what governs the original by task, system and the agents above it governs the fork. `unsettled` are the calls of the
    original, also after that step, which may have acted: the fork does not make them beside it. `workspace` are the
    files of the original before that step.
    """

    spec: RunSpec
    history: tuple[Message, ...]
    input: tuple[Message, ...]
    fork: Fork
    created: RunCreated
    labels: dict[str, str] = {}
    unsettled: tuple[Unsettled, ...] = ()
    workspace: WorkspaceSnapshot | None = None


async def branch(
    runs: Runs,
    run_id: str,
    *,
    at: int,
    prompt: str | None = None,
    model: str | None = None,
    input: Sequence[Message] | None = None,
) -> Branch:
    """The run as it was just before step `at`, with what is to be different. Raises `NotFound` for a step it never had.

    At step 1 `input` takes the place of the original one; later it is said after the steps that are kept. What the
    model was told right before the step (a steering input, why its answer came back) is part of what is kept.
    """
    facts = await runs.facts(run_id)
    seq = next((n for n, (_, event) in enumerate(facts) if isinstance(event, StepStarted) and event.step == at), None)
    if seq is None:
        steps = max((event.step for _, event in facts if isinstance(event, StepStarted)), default=0)
        raise NotFound(f"run {run_id} has no step {at}", hint=f"it has steps 1 to {steps}" if steps else None)
    info, state = await runs.load(run_id, upto=seq)
    created = facts[0][1]
    assert isinstance(created, RunCreated), "load() has checked it"
    changed = replace(
        state.spec if prompt is None else with_prompt(state.spec, prompt),
        extra={name: value for name, value in state.spec.extra.items() if name != "user"},  # of older runs: not his
        model=state.spec.model if model is None else model,
    )
    if at == 1:
        history = await runs.history(created)
        said = (*created.input, *_told(state)) if input is None else tuple(input)
    else:
        history, said = (*state.settled_messages(), *_told(state)), tuple(input or ())
    labels = {name: value for name, value in info.labels.items() if _is_given(name)}
    _, whole = await runs.load(run_id)
    fork = Fork(run_id, seq, await effects_ahead(runs, run_id, facts, whole.spec, at), at)
    return Branch(changed, history, said, fork, created, labels, unsettled_of(whole), state.workspace)


async def effects_ahead(
    runs: Runs, run_id: str, facts: Sequence[tuple[float, Event]], spec: RunSpec, at: int
) -> tuple[PastEffect, ...]:
    """Returns the calls from step `at` on that were made, and did more than read: a fork may make them again.

    In the place of a call that had runs below it do something stands what these did. A program acts without calls of
    tools: the call that began it counts, and of a run that is one itself each turn.
    """
    created = facts[0][1] if facts else None
    before = created.past_effects if isinstance(created, RunCreated) else ()
    found = await _effects(runs, run_id, facts, spec, at, turns=RUNNER in spec.extra)
    return (*before, *found)[-_MOST_EFFECTS:]


async def _effects(
    runs: Runs, run_id: str, facts: Sequence[tuple[float, Event]], spec: RunSpec, at: int, *, turns: bool = False
) -> list[PastEffect]:
    effects = {rule.name: rule.effect for rule in spec.tools}
    found: list[PastEffect] = []
    for step in trace_of(run_id, facts).steps:
        if step.number < at:
            continue
        if turns:
            found.append(_turn(run_id, step))
        for call in step.calls:
            if not call.starts or (call.error and call.error.before_effect):
                continue
            made = _effect(run_id, step.number, call, effects.get(call.name, "once"))
            if (below := await _effects_below(runs, spec.namespace, made, call)) is not None:
                found += below
            elif made.effect != "read":
                found.append(made)
    return found


async def _effects_below(runs: Runs, namespace: str, made: PastEffect, call: CallTrace) -> list[PastEffect] | None:
    """Returns the effects of the runs that a call began; None for a call that began none that is still known."""
    found: list[PastEffect] | None = None
    for child in child_ids(namespace, made.run_id, call.name, call.id, call.arguments):
        with suppress(NotFound):
            facts = await runs.facts(child)
            _, state = await runs.load(child)
            found = found or []
            if made not in found and has_begun_program(state):
                found.append(made)
            found += await _effects(runs, child, facts, state.spec, 1)
    return found


def _turn(run_id: str, step: StepTrace) -> PastEffect:
    """One turn of a run that is a program: nobody but itself knows what it did."""
    result = step.text or "".join(ask.message for ask in step.failures[-1:])
    outcome = "done" if step.answered_at is not None else "failed" if step.failures else "unknown"
    given = arguments_digest({})
    return PastEffect(
        run_id,
        step.number,
        f"turn_{step.number}",
        RUNNER,
        "",
        given,
        "once",
        outcome,
        one_line(result, _LONGEST_EFFECT),
    )


def _effect(run_id: str, step: int, call: CallTrace, effect: str) -> PastEffect:
    given = parse_object(call.arguments)[0] or {}
    return PastEffect(
        run_id,
        step,
        call.id,
        call.name,
        arguments(msgspec.json.encode(shown(given)).decode(), _LONGEST_EFFECT),
        arguments_digest(given),
        effect,
        _outcome(call),
        one_line(call.error.message if call.error is not None else call.result, _LONGEST_EFFECT),
    )


# The first event of a fork holds them: a run of a thousand payments does not make it a megabyte.
_MOST_EFFECTS: Final = 200
_LONGEST_EFFECT: Final = 200


def _outcome(call: CallTrace) -> Literal["done", "failed", "unknown"]:
    if call.may_have_acted or call.finished_at is None:
        return "unknown"
    return "done" if call.error is None else "failed"


def _is_given(label: str) -> bool:
    """Whether somebody chose this label. The others say how the original came about: by which task or request."""
    return not is_reserved(label)


def _told(state: State) -> tuple[Message, ...]:
    """Returns the pending messages to the model, without the note on its last answer: a fork has limits of its own."""
    notes = (note for note in state.notes if note.text != LAST_ANSWER)
    return (*notes, *(given.message for given in inputs_due(state)))
