"""The folds of a task: how each fact changes a `GraphState`. Only `apply` changes one.

A fact is checked before anything is changed, so a refused one leaves no trace. Facts that the graph itself decides are
believed as they were recorded: a later version may decide otherwise, and old tasks still fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.graph import events as t
from foliot.kernel.graph.envelopes import fired, id_key, laps_behind, round_for
from foliot.kernel.graph.joins import tolerates
from foliot.kernel.graph.plan import Plan
from foliot.kernel.graph.state import (
    AgentOutput,
    Dropped,
    GraphState,
    Handoff,
    Lost,
    Round,
    RunningMessage,
    TaskEnding,
    round_of,
)

# --- graph failures --------------------------------------------------------------------------------------------------

# What follows when an agent fails: the table in graph.py, as code.

_LONGEST_DETAIL: Final = 300


def fail(plan: Plan, state: GraphState, message: t.Envelope, fact: t.MessageEnded, at: float) -> None:
    """Decide about a message that has ended badly, and is no longer among those under way."""
    edges = plan.nodes[message.to].edges
    error = error_of(fact)
    fatal = not edges or any(
        edge.on_failure == "fail" and not tolerates(plan, state, edge.to, message) for edge in edges
    )
    if fatal:
        state.lost[message.id] = Lost(message, error)
        times = "1 attempt" if fact.attempts == 1 else f"{fact.attempts} attempts"
        text = f"message {message.id} dead-lettered after {times}: {error}"
        state.ending = TaskEnding("dead_lettered", fact.reason or fact.outcome, text, fact.code, message.id)
        return
    bare = replace(message, payload="", sources=())
    if plan.max_turns and message.turns >= plan.max_turns:
        state.lost[message.id] = Lost(message, error, tolerated=True)
        state.handoffs[message.id] = Handoff(bare, "", failed=True, ends="turn_limit", detail=error)
        return
    silent = [edge.to for edge in edges if edge.on_failure != "forward"]
    to = [edge.to for edge in edges if edge.on_failure == "forward" and edge.to not in message.told]
    if silent:
        missed = [_absent(plan, state, message, name, error, at) for name in silent]
        rounds = [place for place in missed if place is not None]
        state.lost[message.id] = Lost(message, error, rounds, tolerated=True, told=list(to))
    if to:
        state.handoffs[message.id] = Handoff(bare, error, to, len(to), failed=True)
    else:
        state.handoffs[message.id] = Handoff(bare, "", failed=True, ends="skipped", detail=error)


def _absent(
    plan: Plan, state: GraphState, message: t.Envelope, to: str, error: str, at: float
) -> tuple[str, int] | None:
    """Tell the join of `to`, if it has one, that this agent will not arrive."""
    if plan.nodes[to].join is None:
        return None
    number = round_for(state, to, message.to, laps_behind(plan, message))
    round = round_of(state, to, number, at)
    round.seen.append(message.to)
    round.absent[message.to] = error
    return to, number


def error_of(fact: t.MessageEnded) -> str:
    """Returns the error of an ended message, cut to the length that a state keeps."""
    text = fact.error or fact.reason or fact.outcome
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"


# --- graph folds -----------------------------------------------------------------------------------------------------


def apply(plan: Plan, state: GraphState, fact: t.TaskEvent, at: float) -> None:
    """Fold in one fact. Raises `IllegalEvent` when it has no place here; the state is then as before."""
    name = type(fact).__name__
    if isinstance(fact, t.TaskAccepted):
        if state.accepted:
            raise IllegalEvent(f"task {plan.task} has been accepted already")
    elif not state.accepted:
        raise IllegalEvent(f"{name} for the task {plan.task}, which has not been accepted")
    elif state.ended is not None and not isinstance(fact, t.TaskRequeued):
        raise IllegalEvent(f"{name} for the task {plan.task}, which has ended")
    _FOLDS[type(fact)](plan, state, fact, at)


def _accepted(plan: Plan, state: GraphState, fact: t.TaskAccepted, at: float) -> None:
    state.accepted = True
    state.text = fact.message
    state.starts = list(plan.entries)


# --- messages


def _sent(plan: Plan, state: GraphState, fact: t.MessageSent, at: float) -> None:
    message = fact.message
    if message.to not in plan.nodes:
        raise IllegalEvent(f"message {message.id!r} is for {message.to!r}, which is not in the graph")
    if message.id in state.running:
        raise IllegalEvent(f"message {message.id!r} was sent twice")
    if message.replaces:
        _take_resend(state, message)
    elif message.kind == "task_start":
        _take_start(state, message)
    elif message.sources:
        _take_round(state, message)
    else:
        _take_handoff(state, message)
    state.messages += 1
    counts = state.sent.setdefault(message.hop, {})
    key = id_key(message.sender, message.to)
    counts[key] = counts.get(key, 0) + 1
    if fact.activates:
        state.running[message.id] = RunningMessage(message, at)
    else:
        _arrive(state, message, at)
    _forget_rounds(plan, state, message.to)
    _forget_ids(state)


def _take_start(state: GraphState, message: t.Envelope) -> None:
    if message.to not in state.starts:
        raise IllegalEvent(f"message {message.id!r} starts {message.to!r}, which has been started or is no entry")
    state.starts.remove(message.to)
    if not state.starts:
        state.text = ""


def _take_resend(state: GraphState, message: t.Envelope) -> None:
    for place, lost in enumerate(state.resend):
        if lost.id == message.replaces:
            del state.resend[place]
            return
    raise IllegalEvent(f"message {message.id!r} replaces {message.replaces!r}, which is not to be sent again")


def _take_round(state: GraphState, message: t.Envelope) -> None:
    round = state.joins.get(message.to, {}).get(message.round)
    if round is None or (round.done and not round.partial):
        raise IllegalEvent(f"message {message.id!r} comes from round {message.round} of a join that does not wait")
    round.done = "started"
    round.partial = False
    round.waiting = []
    round.absent = {}


def _take_handoff(state: GraphState, message: t.Envelope) -> None:
    handoff = state.handoffs.get(message.parent_id)
    if handoff is None or message.to not in handoff.to:
        raise IllegalEvent(f"message {message.id!r} follows {message.parent_id!r}, which sends nothing to it")
    handoff.to.remove(message.to)
    if not handoff.to:
        del state.handoffs[message.parent_id]


def _arrive(state: GraphState, message: t.Envelope, at: float) -> None:
    round = round_of(state, message.to, message.round, at)
    round.seen.append(message.sender)
    if round.done:
        state.dropped.append(Dropped(message, "late", f"round {message.round} has {round.done}"))
    else:
        round.waiting.append(message)


def _forget_rounds(plan: Plan, state: GraphState, node: str) -> None:
    """Rounds that are over and to which nobody can come any more, from the first one on."""
    rounds, join = state.joins.get(node), plan.nodes[node].join
    if not rounds or join is None:
        return
    floor = state.floors.get(node, 0) + 1
    while (round := rounds.get(floor)) is not None and round.done in ("started", "closed") and not round.partial:
        if not all(agent in round.seen for agent in join.expected):
            break
        del rounds[floor]
        state.floors[node] = floor
        floor += 1


def _forget_ids(state: GraphState) -> None:
    """Counts of hops that nothing can send in any more. A message is sent one hop behind its parent, or by a join at
    the hop of its last source, so nothing is sent before the least hop that is under way."""
    hops = [running.message.hop for running in state.running.values()]
    hops += [handoff.message.hop for handoff in state.handoffs.values()]
    hops += [message.hop for rounds in state.joins.values() for round in rounds.values() for message in round.waiting]
    hops += [message.hop for message in state.resend]
    least = min(hops, default=0) if not state.starts else 0
    if any(hop < least for hop in state.sent):
        state.sent = {hop: counts for hop, counts in state.sent.items() if hop >= least}


def _ended(plan: Plan, state: GraphState, fact: t.MessageEnded, at: float) -> None:
    running = state.running.get(fact.message_id)
    if running is None:
        raise IllegalEvent(f"message {fact.message_id!r} has no run under way: it has ended, or was never sent")
    del state.running[fact.message_id]
    state.spent.add(fact.usage)
    message = running.message
    if fact.outcome == "succeeded":
        _succeeded(plan, state, message, fact)
    elif state.ending is not None:
        state.lost[message.id] = Lost(message, error_of(fact))
    else:
        fail(plan, state, message, fact, at)


def _succeeded(plan: Plan, state: GraphState, message: t.Envelope, fact: t.MessageEnded) -> None:
    node = plan.nodes[message.to]
    bare = replace(message, payload="", sources=())
    followers = fired(node, fact)
    to = [name for name in followers if name not in message.told]
    if to and plan.max_turns and message.turns >= plan.max_turns:
        detail = f"{message.turns} turns of {plan.max_turns}"
        state.handoffs[message.id] = Handoff(bare, fact.output, ends="turn_limit", detail=detail)
    elif to:
        state.handoffs[message.id] = Handoff(bare, fact.output, to, len(to))
    elif node.edges and not followers:
        detail = "no condition of an edge held"
        state.handoffs[message.id] = Handoff(bare, fact.output, ends="no_edge", detail=detail)
    elif not followers:
        _keep_output(state, message.to, fact.output, message)


def _keep_output(state: GraphState, agent: str, text: str, message: t.Envelope) -> None:
    state.outputs.append(AgentOutput(agent, text, message.hop, message.branch))


def _branch_ended(plan: Plan, state: GraphState, fact: t.BranchEnded, at: float) -> None:
    for place, dropped in enumerate(state.dropped):
        if dropped.message.id == fact.message_id:
            del state.dropped[place]
            message = dropped.message
            if fact.reason != "late" and not message.failed:
                _keep_output(state, message.sender, message.payload, message)
            return
    handoff = state.handoffs.get(fact.message_id)
    if handoff is None:
        raise IllegalEvent(f"the branch of message {fact.message_id!r} goes on, or has ended already")
    if fact.reason == "message_limit":
        # The handoff stays: another attempt, which counts anew, goes on from it.
        text = f"the task has sent {state.messages} messages, and at most {plan.max_messages} are allowed"
        state.ending = TaskEnding("failed", "message_limit", text, "limit_exceeded", fact.message_id)
        return
    del state.handoffs[fact.message_id]
    if fact.reason == "turn_limit" and handoff.message.to not in state.limited:
        state.limited.append(handoff.message.to)
    if not handoff.failed:
        _keep_output(state, handoff.message.to, handoff.text, handoff.message)


# --- joins


def _join_closed(plan: Plan, state: GraphState, fact: t.JoinClosed, at: float) -> None:
    round = state.joins.get(fact.node, {}).get(fact.round)
    if round is None or round.done:
        raise IllegalEvent(f"round {fact.round} of the join of {fact.node!r} is closed, and it does not wait")
    if fact.reason == "cannot_fill" and fact.then != "deadletter":
        round.seen += [agent for agent in fact.missing if agent not in round.seen]
    match fact.then:
        case "continue_partial":
            round.done, round.partial = "closed", True
        case "skip":
            join = plan.nodes[fact.node].join
            by_limit = join is not None and join.on_failure == "deadletter"
            round.done = "closed"
            detail = f"{fact.node} does not start: {_why_closed(fact, round)}"
            reason = "turn_limit" if by_limit else "skipped"
            state.dropped += [Dropped(message, reason, detail) for message in round.waiting]
            round.waiting = []
            round.absent = {}
            _forget_rounds(plan, state, fact.node)
        case "deadletter":
            round.done = "given_up"
            text = f"round {fact.round} of the join of {fact.node} was given up: {_why_closed(fact, round)}"
            state.ending = TaskEnding("dead_lettered", f"join_{fact.reason}", text)


def _why_closed(fact: t.JoinClosed, round: Round) -> str:
    names = ", ".join(
        f"{agent} (failed: {round.absent[agent]})" if agent in round.absent else agent for agent in fact.missing
    )
    if fact.reason == "timeout":
        return f"it waited too long for {names}"
    return f"nothing under way can bring {names}"


# --- the task


def _timer(plan: Plan, state: GraphState, fact: t.TimerWentOff, at: float) -> None:
    """Changes nothing by itself: what is overdue is decided from the time of the fact."""


def _cancel(plan: Plan, state: GraphState, fact: t.TaskCancelRequested, at: float) -> None:
    if state.ending is None:
        state.ending = TaskEnding("cancelled", fact.reason, by=fact.by)


def _requeued(plan: Plan, state: GraphState, fact: t.TaskRequeued, at: float) -> None:
    if state.ended is None:
        raise IllegalEvent(f"task {plan.task} has not ended, so it cannot be retried")
    if isinstance(state.ended, t.TaskSucceeded):
        raise IllegalEvent(f"task {plan.task} has succeeded, so there is nothing to retry")
    if fact.attempt != state.attempt + 1:
        raise IllegalEvent(f"attempt {fact.attempt} of task {plan.task} cannot follow attempt {state.attempt}")
    if unknown := sorted(fact.payloads.keys() - state.lost.keys()):
        raise IllegalEvent(f"message {unknown[0]!r} did not fail, so it is not sent again")
    if fact.payloads and fact.by not in state.told_by:
        state.told_by = [*state.told_by, fact.by]
    state.attempt = fact.attempt
    state.since = at
    state.ended = state.ending = None
    state.messages = 0
    state.sent = {}
    lost, state.lost = state.lost, {}
    for entry in lost.values():
        if _is_settled(plan, state, entry):
            continue
        for node, number in entry.missed:
            if (round := state.joins[node].get(number)) is not None:
                round.seen.remove(entry.message.to)
                round.absent.pop(entry.message.to, None)
        message = replace(entry.message, told=(*entry.message.told, *entry.told))
        if (payload := fact.payloads.get(message.id)) is not None:
            # What was edited stands for all that a join had collected.
            message = replace(message, payload=payload, sources=())
        state.resend.append(message)
    for rounds in state.joins.values():
        for round in rounds.values():
            if round.done == "given_up":
                round.done = ""
            round.since = at


def _is_settled(plan: Plan, state: GraphState, lost: Lost) -> bool:
    """Whether the graph has gone on without this message for good: nobody who did not hear of it can still have it."""
    if not lost.tolerated:
        return False
    rounds = [state.joins[node].get(number) for node, number in lost.missed]
    if any(round is not None and round.done not in ("started", "closed") for round in rounds):
        return False
    edges = plan.nodes[lost.message.to].edges
    return all(edge.on_failure == "forward" or plan.nodes[edge.to].join is not None for edge in edges)


def _task_ended(plan: Plan, state: GraphState, fact: t.TaskEnd, at: float) -> None:
    if state.running:
        raise IllegalEvent(f"{type(fact).__name__} while {len(state.running)} messages of {plan.task} are under way")
    state.ended = fact
    if isinstance(fact, t.TaskSucceeded):
        # Nothing follows a success, and the fact itself says what came out.
        state.outputs, state.lost, state.joins, state.sent = [], {}, {}, {}


_FOLDS: Final[Mapping[type[t.TaskFact], Callable[[Plan, GraphState, Any, float], None]]] = {
    t.TaskAccepted: _accepted,
    t.MessageSent: _sent,
    t.MessageEnded: _ended,
    t.BranchEnded: _branch_ended,
    t.JoinClosed: _join_closed,
    t.TimerWentOff: _timer,
    t.TaskCancelRequested: _cancel,
    t.TaskRequeued: _requeued,
    t.TaskSucceeded: _task_ended,
    t.TaskFailed: _task_ended,
    t.TaskCancelled: _task_ended,
    t.TaskDeadLettered: _task_ended,
}
