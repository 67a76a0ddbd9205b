"""The graph of a task, as pure functions: what happened goes in, what follows from it comes out.

    advance(plan, state, fact, at) -> Moves      fold in one fact from outside, and everything it brings about
    apply(plan, state, fact, at)                 fold in one fact, as it was recorded
    fold(plan, facts) -> GraphState              the state after these facts

From outside come `TaskAccepted`, `MessageEnded`, `TimerWentOff`, `TaskCancelRequested` and `TaskRequeued`. All other
facts are decided here, one after another, each from the state alone; so a fold of the recorded facts is the state.

An agent that ended well sends its text along the edges that fire (`envelopes.fired`). If none does, or it has none, its
text is part of the task's output. `max_turns` counts messages along the ancestry: in a fan-out each branch goes on
counting from its parent, and a join from the highest count among its sources; so every loop is bounded, however it
branches. An agent whose message has used up the turns hands nothing on, and its branch ends well. `max_messages` bounds
the attempt as a whole, and fails the task.

An agent that failed (its retries are used up, or its run was cancelled alone) has given no labels, so the conditions of
its edges do not matter; `on_failure` of each edge does:

    edge          receiver                                                     what happens
    (no edge)     -                                                            the task is dead-lettered
    fail          a node without a join                                        the task is dead-lettered
    fail          a join: `deadletter`, its round cannot fill any more         the task is dead-lettered
    fail          a join: `deadletter`, others can still fill its round        the agent is absent from the round
    fail          a join: `deadletter`, its round has started already          nothing is missed
    fail          a join: `skip` or `continue_partial`                         the agent is absent from the round
    skip          a node without a join                                        the branch ends here
    skip          a join, whatever its `on_failure`                            the agent is absent from the round
    forward       any                                                          receives the error, marked as failed

One edge that dead-letters the task outweighs all others of the same node: then nothing is forwarded, and a requeue
sends the message again. At the turn limit nothing is forwarded and nobody is told of an absence. What becomes of a
round that lacks someone is said in joins.py.

A task that must end badly, or was cancelled, waits for the runs under way (`Moves.stop`) to confirm that they have
stopped, and ends then. What they still bring is kept, and handed on if the task is requeued.

A requeue is a new attempt of the same graph. What has ended well stays; what waits at a join still waits there; rounds
that were given up are open again. Messages that failed or were stopped are sent again, unless the graph has gone on
without them for good: every receiver was told, or is a join whose round is over. Nobody is told twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.graph import events as t
from foliot.kernel.graph import joins
from foliot.kernel.graph.envelopes import again, handed_on, joined, kickoff, output_of
from foliot.kernel.graph.folds import apply
from foliot.kernel.graph.lifecycle import TaskPhase
from foliot.kernel.graph.plan import Plan
from foliot.kernel.graph.state import GraphState, Handoff, TaskEnding, decode_state, encode_state, new_state

# --- reasons ---------------------------------------------------------------------------------------------------------

# Why a task is where it is, for people: what runs, what waits for whom, what has ended it.


class Reason(Struct, frozen=True, omit_defaults=True):
    """One thing that keeps a task where it is. `text` says it in a sentence; the rest is for programs.

    `running`: the message `message_id` to `node` has a run under way.   `join`: a round of `node` waits for `missing`.
    `ending`: the task will end once nothing runs.   `failed`: `node` failed; a requeue sends `message_id` again.
    `withheld`: `node` is done, a requeue hands its answer on.   `ended`: how the task ended.   `new`: not accepted yet.
    """

    kind: Literal["new", "running", "join", "ending", "failed", "withheld", "ended"]
    text: str
    node: str = ""
    message_id: str = ""
    since: float | None = None
    until: float | None = None
    round: int = 0
    came: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def explain(plan: Plan, state: GraphState) -> list[Reason]:
    """Every reason, the most telling first. Never empty."""
    if not state.accepted:
        return [Reason("new", "the task has not been accepted yet")]
    return [*_end(state), *_running(state), *_waiting(plan, state), *_left(state)]


def _end(state: GraphState) -> Iterator[Reason]:
    match state.ended:
        case t.TaskSucceeded():
            yield Reason("ended", "the task has succeeded")
        case t.TaskFailed(message=message):
            yield Reason("ended", f"the task has failed: {message}")
        case t.TaskCancelled(by=by, reason=reason):
            yield Reason("ended", f"the task was cancelled{_by(by)}{f': {reason}' if reason else ''}")
        case t.TaskDeadLettered(message=message, message_id=message_id):
            yield Reason("ended", f"the task was dead-lettered: {message}", message_id=message_id)
        case None if state.ending is not None:
            ending = state.ending
            how = {"failed": "fail", "cancelled": "be cancelled", "dead_lettered": "be dead-lettered"}[ending.how]
            why = ending.message or ending.reason
            text = f"the task will {how}{_by(ending.by)} when what runs has stopped{f': {why}' if why else ''}"
            yield Reason("ending", text, message_id=ending.message_id)
        case None:
            pass


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _running(state: GraphState) -> Iterator[Reason]:
    for running in state.running.values():
        message = running.message
        text = f"{message.to} is at work on {_what(message)}"
        if state.ending is not None:
            text = f"{message.to} has been told to stop and has not confirmed it"
        yield Reason("running", text, message.to, message.id, since=running.since, round=message.round)


def _what(message: t.Envelope) -> str:
    if message.sources:
        return f"what {', '.join(source.agent for source in message.sources)} sent"
    return "the task" if message.kind == "task_start" else f"what {message.sender} sent"


def _waiting(plan: Plan, state: GraphState) -> Iterator[Reason]:
    for name, join, number, round in joins.each_open(plan, state):
        came = tuple(message.sender for message in round.waiting)
        lacking = joins.missing(join, round)
        until = None if join.timeout is None else round.since + join.timeout
        lost = "".join(f"; {agent} failed: {error}" for agent, error in round.absent.items())
        text = (
            f"{name} waits for {', '.join(lacking)} (round {number}: {len(came)} of {join.required} have arrived{lost})"
        )
        yield Reason("join", text, name, since=round.since, until=until, round=number, came=came, missing=lacking)


def _left(state: GraphState) -> Iterator[Reason]:
    for identity, lost in state.lost.items():
        how = "the task went on without it" if lost.tolerated else "a retry sends its message again"
        text = f"{lost.message.to} did not finish: {lost.error}; {how}"
        yield Reason("failed", text, lost.message.to, identity)
    for identity, handoff in state.handoffs.items():
        if handoff.to:
            text = f"{handoff.message.to} is done; a retry hands its answer to {', '.join(handoff.to)}"
            yield Reason("withheld", text, handoff.message.to, identity)


# --- advance ---------------------------------------------------------------------------------------------------------

__all__ = [
    "GraphState",
    "Moves",
    "Reason",
    "advance",
    "apply",
    "decode_state",
    "encode_state",
    "explain",
    "fold",
    "new_state",
    "phase",
]

_OUTSIDE = (t.TaskAccepted, t.MessageEnded, t.TimerWentOff, t.TaskCancelRequested, t.TaskRequeued)


class Moves(Struct, frozen=True):
    """The next acts of the shell, in one transaction with `facts`: the given one and all that follow, already applied.

    `activate` are messages to create runs for. `stop` are ids of messages whose runs must be cancelled; it may name one
    again that was named before. `timer` is when to give `TimerWentOff`, if nothing happens before; it replaces any
    earlier one. `ended` is the last of the facts when the task has ended.
    """

    facts: list[t.TaskEvent]
    activate: list[t.Envelope]
    stop: list[str]
    timer: float | None
    ended: t.TaskEnd | None


def advance(plan: Plan, state: GraphState, fact: t.TaskEvent, at: float) -> Moves:
    """Fold in what happened, and decide what follows, until nothing follows by itself.

    Raises `IllegalEvent` when the fact has no place; the state is then as before.
    """
    if not isinstance(fact, _OUTSIDE):
        raise IllegalEvent(f"{type(fact).__name__} is decided by the graph itself")
    was_ending = state.ending
    apply(plan, state, fact, at)
    facts: list[t.TaskEvent] = [fact]
    fresh: dict[str, t.Envelope] = {}
    while (decided := _decide(plan, state, at, fresh)) is not None:
        apply(plan, state, decided, at)
        facts.append(decided)
        match decided:
            case t.MessageSent(message, activates=True):
                fresh[message.id] = message
            case t.MessageEnded(message_id):
                del fresh[message_id]
            case _:
                pass
    asked = isinstance(fact, t.TaskCancelRequested)
    stop = list(state.running) if state.ending is not None and (was_ending is None or asked) else []
    timer = joins.next_timeout(plan, state) if state.ending is None and state.ended is None else None
    return Moves(facts, list(fresh.values()), stop, timer, state.ended)


def fold(plan: Plan, facts: Iterable[tuple[float, t.TaskEvent]]) -> GraphState:
    """The state after these facts, each with its time. Raises `IllegalEvent`."""
    state = new_state()
    for at, fact in facts:
        apply(plan, state, fact, at)
    return state


def phase(state: GraphState) -> TaskPhase:
    """Returns the phase of the task as far as the graph knows: whether its runs wait for a person only they know."""
    match state.ended:
        case None:
            return "running" if state.accepted else "queued"
        case t.TaskSucceeded():
            return "succeeded"
        case t.TaskFailed():
            return "failed"
        case t.TaskCancelled():
            return "cancelled"
        case t.TaskDeadLettered():
            return "dead_lettered"


def _decide(plan: Plan, state: GraphState, at: float, fresh: dict[str, t.Envelope]) -> t.TaskEvent | None:
    """The next fact that follows from the state. `fresh` are messages of this move, which have no run yet."""
    if state.ended is not None:
        return None
    if state.dropped:
        dropped = state.dropped[0]
        return t.BranchEnded(dropped.message.id, dropped.reason, dropped.detail)
    if state.ending is not None:
        if fresh:
            return t.MessageEnded(next(iter(fresh)), "cancelled", reason="not_started")
        return None if state.running else _bad_end(state, state.ending)
    if state.starts:
        return t.MessageSent(kickoff(plan, state, state.starts[0]))
    if state.resend:
        return t.MessageSent(again(plan, state, state.resend[0]))
    if state.handoffs:
        return _hand_on(plan, state, next(iter(state.handoffs.values())))
    if (full := joins.ready(plan, state)) is not None:
        return t.MessageSent(joined(plan, state, *full))
    if (closed := joins.overdue(plan, state, at) or joins.unfillable(plan, state)) is not None:
        return closed
    return None if state.running else _good_end(plan, state)


def _hand_on(plan: Plan, state: GraphState, handoff: Handoff) -> t.TaskEvent:
    if handoff.ends is not None:
        return t.BranchEnded(handoff.message.id, handoff.ends, handoff.detail)
    if state.messages + len(handoff.to) > plan.max_messages:
        detail = f"{state.messages} messages of {plan.max_messages}"
        return t.BranchEnded(handoff.message.id, "message_limit", detail)
    to = handoff.to[0]
    message = handed_on(plan, state, handoff, to)
    return t.MessageSent(message, activates=plan.nodes[to].join is None)


def _bad_end(state: GraphState, ending: TaskEnding) -> t.TaskEvent:
    usage = state.spent.usage()
    match ending.how:
        case "failed":
            return t.TaskFailed(ending.code, ending.reason, ending.message, usage)
        case "cancelled":
            return t.TaskCancelled(ending.by, ending.reason, usage)
        case "dead_lettered":
            return t.TaskDeadLettered(ending.reason, ending.message, ending.message_id, usage)


def _good_end(plan: Plan, state: GraphState) -> t.TaskSucceeded:
    text, parts = output_of(plan, state.outputs)
    if not parts:
        why = "; ".join(f"{lost.message.to} failed: {lost.error}" for lost in state.lost.values())
        text = f"No agent's answer is left, because every branch was skipped{f' ({why})' if why else ''}."
    return t.TaskSucceeded(text, parts, state.spent.usage())
