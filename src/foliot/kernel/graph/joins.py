"""Joins: nodes that start when enough of the agents before them have arrived.

A join fills in rounds. A message belongs to the first round behind those of its ancestry that its sender has not used
(`envelopes.round_for`), so a join in a loop starts again in every lap, and a second message of a fast agent opens the
next round. What arrives after its round has started or was closed is late.

A round is *open* from the first arrival (or the first absence: an agent that failed and whose edge does not say so
loudly). It must never wait for nobody. `prospects` are the nodes that run or may still run; when those cannot bring the
number that is required any more, the round is closed and the join's `on_failure` decides:

    deadletter         at once: the task is dead-lettered
    skip               when nobody can come any more: what came ends here, the node does not start
    continue_partial   when nobody can come any more: the node starts with what came; if nothing came, as `skip`

A round that only misses what the turn limit has cut off ends quietly like the limit itself: as `skip`.
"""

from __future__ import annotations

from collections.abc import Iterator

from foliot.kernel.graph.envelopes import laps_behind, round_for
from foliot.kernel.graph.events import Envelope, JoinClosed
from foliot.kernel.graph.plan import Join, Plan, in_order
from foliot.kernel.graph.state import GraphState, Round, open_rounds


def each_open(plan: Plan, state: GraphState) -> Iterator[tuple[str, Join, int, Round]]:
    """Every open round in the order of the graph."""
    if not state.joins:
        return
    for name in in_order(plan):
        join = plan.nodes[name].join
        if join is not None and name in state.joins:
            for number in open_rounds(state, name):
                yield name, join, number, state.joins[name][number]


def ready(plan: Plan, state: GraphState) -> tuple[str, int, Round] | None:
    """The first round that has enough, or was closed and goes on with a part."""
    for name, rounds in state.joins.items():
        join = plan.nodes[name].join
        assert join is not None
        for number, round in rounds.items():
            if round.partial or (not round.done and len(round.waiting) >= join.required):
                return name, number, round
    return None


def overdue(plan: Plan, state: GraphState, now: float) -> JoinClosed | None:
    for name, join, number, round in each_open(plan, state):
        if join.timeout is not None and round.since + join.timeout <= now:
            then = join.on_failure
            if then == "continue_partial" and not round.waiting:
                then = "skip"
            return JoinClosed(name, number, "timeout", then, missing(join, round))
    return None


def next_timeout(plan: Plan, state: GraphState) -> float | None:
    times = [round.since + join.timeout for _, join, _, round in each_open(plan, state) if join.timeout is not None]
    return min(times, default=None)


def unfillable(plan: Plan, state: GraphState) -> JoinClosed | None:
    """The first round that can no longer fill. When nothing runs at all, some round is always found."""
    waiting = list(each_open(plan, state))
    if not waiting:
        return None
    running = _under_way(state)
    if all(_possible(join, round, running) >= join.required for _, join, _, round in waiting):
        return None
    may_run = prospects(plan, state)
    for name, join, number, round in waiting:
        possible = _possible(join, round, may_run)
        if possible < join.required:
            closed = _closed(plan, state, name, join, number, round)
            if closed.then == "deadletter" or possible == len(round.waiting):
                return closed
    if not state.running:
        # What may still run then hangs on joins that would each go on with a part: the first of them starts.
        for name, join, number, round in waiting:
            if join.on_failure == "continue_partial" and round.waiting:
                return _closed(plan, state, name, join, number, round)
    return None


def _closed(plan: Plan, state: GraphState, name: str, join: Join, number: int, round: Round) -> JoinClosed:
    lacking = missing(join, round)
    then = join.on_failure
    if then == "continue_partial" and not round.waiting:
        then = "skip"
    elif then == "deadletter" and state.limited:
        cut_off = _cut_off(plan, state) - round.absent.keys()
        if len(round.waiting) + sum(agent in cut_off for agent in lacking) >= join.required:
            then = "skip"
    return JoinClosed(name, number, "cannot_fill", then, lacking)


def missing(join: Join, round: Round) -> tuple[str, ...]:
    came = {message.sender for message in round.waiting}
    return tuple(agent for agent in join.expected if agent not in came)


def prospects(plan: Plan, state: GraphState) -> set[str]:
    """The nodes that run or may still run: from what is under way, over edges, through joins that can still start."""
    found = _under_way(state)
    found.update(to for handoff in state.handoffs.values() for to in handoff.to)
    found.update(message.to for message in state.resend)
    found.update(state.starts)
    todo = list(found)
    doubtful = {name for name, _, _, _ in each_open(plan, state)} - found
    growing = True
    while growing:
        while todo:
            for edge in plan.nodes[todo.pop()].edges:
                if edge.to in found:
                    continue
                if plan.nodes[edge.to].join is None:
                    found.add(edge.to)
                    todo.append(edge.to)
                else:
                    doubtful.add(edge.to)
        todo = [name for name in doubtful if _may_start(plan, state, name, found)]
        found.update(todo)
        doubtful.difference_update(todo)
        growing = bool(todo)
    return found


def _under_way(state: GraphState) -> set[str]:
    return {running.message.to for running in state.running.values()}


def _may_start(plan: Plan, state: GraphState, name: str, found: set[str]) -> bool:
    join = plan.nodes[name].join
    assert join is not None
    rounds = [state.joins[name][number] for number in open_rounds(state, name)]
    for round in (*rounds, Round()):
        possible = _possible(join, round, found)
        if possible >= join.required or (possible and join.on_failure == "continue_partial"):
            return True
    return False


def _possible(join: Join, round: Round, may_run: set[str]) -> int:
    """How many have arrived or may still arrive."""
    return len(round.waiting) + sum(agent in may_run and agent not in round.seen for agent in join.expected)


def _cut_off(plan: Plan, state: GraphState) -> set[str]:
    """The agents that a branch might have reached had the turn limit not ended it."""
    found = set(state.limited)
    todo = list(found)
    while todo:
        for edge in plan.nodes[todo.pop()].edges:
            if edge.to not in found:
                found.add(edge.to)
                todo.append(edge.to)
    return found


def tolerates(plan: Plan, state: GraphState, node: str, lost: Envelope) -> bool:
    """Whether the join of `node` takes it upon itself that `lost.to` will not arrive, although its edge says `fail`."""
    join = plan.nodes[node].join
    if join is None:
        return False
    if join.on_failure != "deadletter":
        return True
    number = round_for(state, node, lost.to, laps_behind(plan, lost))
    round = state.joins.get(node, {}).get(number, Round())
    if round.done:
        return True
    return _possible(join, round, prospects(plan, state) - {lost.to}) >= join.required
