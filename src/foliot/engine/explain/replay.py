"""Replays a run offline: the kernel decides everything again, and every decision must come out as it was recorded.

What came from the world (answers, results, decisions of people) is taken from the journal; what the kernel decided is
decided anew and compared with the journal byte for byte. No model is asked and no tool is called. A difference means
that this version of Foliot would have run the journal differently, and says where.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.kernel.run.events import (
    BudgetExceeded,
    ContractViolated,
    Event,
    OutputRejected,
    RunCancelled,
    RunFailed,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    ToolFinished,
)
from foliot.kernel.run.loop import apply, decide
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.store.journal.base import Entry

# Never from outside: when one of these was recorded, the kernel must decide the same again.
ALWAYS_DECIDED = (StepStarted, RunWaiting, RunSucceeded, RunFailed, RunCancelled, ContractViolated)
# Results in a tool's place that the engine gives too: of a call that was told to stop, or is not covered by its grant.
ALSO_FROM_OUTSIDE = ("cancelled", "denied")


class Difference(Struct, frozen=True):
    """The first place where the replay does not follow the journal."""

    seq: int
    recorded: str
    replayed: str


class Replay(Struct):
    """The result of a replay. `decided` of `events` were decided by the kernel, and came out the same."""

    state: State
    events: int = 0
    decided: int = 0
    difference: Difference | None = None


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


def _follow(found: Replay, entry: Entry, expected: list[Event]) -> Difference | None:
    """Fold in one recorded event, which is either the next decision or something from outside."""
    event = decode(entry.data)
    if expected and encode(expected[0]) == entry.data:
        expected.pop(0)
        found.decided += 1
    elif _is_decided(event):
        decided = encode(expected[0]).decode() if expected else "nothing is decided here"
        return Difference(entry.seq, entry.data.decode(), decided)
    else:
        # Something from outside came first; the kernel may decide otherwise when it knows that.
        expected.clear()
    if encode(event) != entry.data:
        return Difference(entry.seq, entry.data.decode(), encode(event).decode())
    try:
        apply(found.state, event, entry.at)
    except IllegalEvent as error:
        return Difference(entry.seq, f"{type_of(event)} was recorded", f"it cannot follow: {error}")
    return None
