"""Forks: a new run that shares the past of another up to a step, and continues differently from there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from foliot.engine.driver.runs import Runs
from foliot.errors import NotFound
from foliot.kernel.messages import Message
from foliot.kernel.run.calls import unsettled_of
from foliot.kernel.run.events import Fork, RunCreated, StepStarted, Unsettled
from foliot.kernel.run.feedback import LAST_ANSWER
from foliot.kernel.run.folds import inputs_due
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.resources.names import is_reserved


class Branch(Struct, frozen=True):
    """The start of a forked run: its spec, the past it shares, and its first input.

    `labels` are those that somebody chose for the original: the same budgets hold for it. `created` is its first event:
    what governs the original by task, system and the agents above it governs the fork. `unsettled` are the calls of the
    original, also after that step, which may have acted: the fork does not make them beside it.
    """

    spec: RunSpec
    history: tuple[Message, ...]
    input: tuple[Message, ...]
    fork: Fork
    created: RunCreated
    labels: dict[str, str] = {}
    unsettled: tuple[Unsettled, ...] = ()


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
        state.spec,
        extra={name: value for name, value in state.spec.extra.items() if name != "user"},  # of older runs: not his
        system=state.spec.system if prompt is None else prompt,
        model=state.spec.model if model is None else model,
    )
    if at == 1:
        history = await runs.history(created)
        said = (*created.input, *_told(state)) if input is None else tuple(input)
    else:
        history, said = (*state.settled_messages(), *_told(state)), tuple(input or ())
    labels = {name: value for name, value in info.labels.items() if _is_given(name)}
    _, whole = await runs.load(run_id)
    return Branch(changed, history, said, Fork(run_id, seq), created, labels, unsettled_of(whole))


def _is_given(label: str) -> bool:
    """Whether somebody chose this label. The others say how the original came about: by which task or request."""
    return not is_reserved(label)


def _told(state: State) -> tuple[Message, ...]:
    """Returns the pending messages to the model, without the note on its last answer: a fork has limits of its own."""
    notes = (note for note in state.notes if note.text != LAST_ANSWER)
    return (*notes, *(given.message for given in inputs_due(state)))
