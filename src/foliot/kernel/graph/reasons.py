"""Why a task is where it is, for people: what runs, what waits for whom, what has ended it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from foliot.kernel.graph import events as t
from foliot.kernel.graph import joins
from foliot.kernel.graph.plan import Plan
from foliot.kernel.graph.state import GraphState


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
        how = "the task went on without it" if lost.tolerated else "a requeue sends its message again"
        text = f"{lost.message.to} did not finish: {lost.error}; {how}"
        yield Reason("failed", text, lost.message.to, identity)
    for identity, handoff in state.handoffs.items():
        if handoff.to:
            text = f"{handoff.message.to} is done; a requeue hands its answer to {', '.join(handoff.to)}"
            yield Reason("withheld", text, handoff.message.to, identity)
