"""What follows when an agent fails: the table in graph.py, as code."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foliot.kernel import task_events as t
from foliot.kernel.envelopes import laps_behind, round_for
from foliot.kernel.graph_state import Ending, GraphState, Handoff, Lost, round_of
from foliot.kernel.joins import tolerates
from foliot.kernel.plan import Plan

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
        state.ending = Ending("dead_lettered", fact.reason or fact.outcome, text, fact.code, message.id)
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
    """What went wrong, cut to what a state can keep."""
    text = fact.error or fact.reason or fact.outcome
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"
