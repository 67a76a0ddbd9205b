"""Graphs, outcomes and orders that nobody thought of."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.graph import events as t
from foliot.kernel.graph.advance import GraphState, encode_state
from foliot.kernel.graph.joins import prospects
from foliot.kernel.graph.plan import OTHERWISE, Edge, Plan
from tests.kernel.graph_play import Play, plan

NAMES = ["a", "b", "c", "d", "e", "f"]
CONDITIONS = st.sampled_from([None, None, None, {"r": "0"}, {"r": "1"}, OTHERWISE, "an expression"])
ON_FAILURE = st.sampled_from(["fail", "skip", "forward"])
JOIN_FAILURE = st.sampled_from(["deadletter", "skip", "continue_partial"])


@st.composite
def graphs(draw: st.DrawFn, *, acyclic: bool = False) -> dict[str, list[Edge]]:
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    graph: dict[str, list[Edge]] = {}
    for place, name in enumerate(names):
        targets = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        graph[name] = [
            Edge(to, draw(CONDITIONS), draw(ON_FAILURE)) for to in targets if not acyclic or names.index(to) > place
        ]
    return graph


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    graph = draw(graphs())
    names = list(graph)
    return plan(
        graph,
        quorum=draw(st.dictionaries(st.sampled_from(names), st.just(1), max_size=2)),
        on_failure=draw(st.fixed_dictionaries(dict.fromkeys(names, JOIN_FAILURE))),
        timeout=draw(st.dictionaries(st.sampled_from(names), st.just(3.0), max_size=2)),
        max_turns=draw(st.integers(0, 9)),
        max_messages=30,
    )


OUTCOMES = ["succeeded"] * 4 + ["failed", "cancelled"]


def one_move(play: Play, chance: Random) -> None:
    """End one of the runs, or let time pass, or cancel, or say something twice."""
    identity = chance.choice(list(play.state.running))
    what = chance.randrange(20)
    if what == 0:
        play.give(t.TaskCancelRequested())
    elif what < 3:
        play.give(t.TimerWentOff())
    else:
        ended = t.MessageEnded(
            identity,
            chance.choice(OUTCOMES),  # pyright: ignore[reportArgumentType] - one of the literals
            output=f"said by {identity}",
            route=chance.choice([{}, {"r": "0"}, {"r": "1"}]),
            held=chance.choice([(), (0,), (1,), (0, 1, 2)]),
        )
        play.give(ended)
        before = encode_state(play.state)
        with pytest.raises(IllegalEvent):
            play.give(ended)
        assert encode_state(play.state) == before


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(0, 2**32))
def test_any_task_ends_once_within_its_bounds_whatever_happens(graph: Plan, seed: int):
    """`Play` checks after each move: fold = state, ids are unique, nothing starts after the end, phases are legal."""
    chance = Random(seed)  # not drawn one by one: hundreds of draws make a failure slow to shrink
    play = Play(graph)
    joins = sum(node.join is not None for node in graph.nodes.values())
    for attempt in range(1, 4):
        for _ in range(400):
            if play.end is not None:
                break
            one_move(play, chance)
        assert play.end is not None, "every task ends"
        assert sum(isinstance(fact, t.TaskEnd) for _, fact in play.facts) == attempt, "each attempt ends once"
        sent = [fact.message for fact in play.of(t.MessageSent) if fact.message.attempt == attempt]
        assert len(sent) <= graph.max_messages * (2 if joins else 1) + len(graph.entries)
        assert all(not graph.max_turns or message.turns <= graph.max_turns for message in sent)
        if isinstance(play.end, t.TaskSucceeded) or attempt == 3:
            break
        play.give(t.TaskRequeued(attempt + 1))


@settings(max_examples=60, deadline=None)
@given(plans())
def test_when_all_goes_well_no_join_is_left_waiting(graph: Plan):
    play = Play(graph)
    play.all_ok()
    assert play.end is not None
    if isinstance(play.end, t.TaskDeadLettered):
        assert play.end.reason.startswith("join_")


def outcome_of(agent: str, how: dict[str, int]) -> dict[str, Any]:
    """What an agent does depends on nothing but its name."""
    match how.get(agent, 0):
        case 1:
            return {"outcome": "failed", "error": f"{agent} broke"}
        case 2:
            return {"outcome": "succeeded", "output": agent, "route": {"r": "1"}, "held": (0, 1, 2)}
        case _:
            return {"outcome": "succeeded", "output": agent, "route": {"r": "0"}}


@settings(max_examples=60, deadline=None)
@given(
    graphs(acyclic=True),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)),
    st.fixed_dictionaries(dict.fromkeys(NAMES, JOIN_FAILURE)),
    st.data(),
)
def test_the_order_in_which_runs_end_does_not_matter(
    graph: dict[str, list[Edge]], how: dict[str, int], on_failure: dict[str, Any], data: st.DataObject
):
    results: list[Any] = []
    for _ in range(2):
        play = Play(plan(graph, on_failure=on_failure))
        while play.state.running:
            identity = data.draw(st.sampled_from(sorted(play.state.running)))
            agent = play.state.running[identity].message.to
            play.give(t.MessageEnded(identity, **outcome_of(agent, how)))
        assert play.end is not None
        if isinstance(play.end, t.TaskSucceeded):
            results.append((sorted(map(repr, play.activated)), play.end.output))
        else:
            results.append(type(play.end))  # what had begun before the first failure is a matter of order
    assert results[0] == results[1]


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 2**32))
def test_a_requeue_after_which_all_goes_well_ends_as_well_as_a_fresh_task(graph: dict[str, list[Edge]], seed: int):
    always = {name: [Edge(edge.to, None, edge.on_failure) for edge in edges] for name, edges in graph.items()}
    same = plan(always, max_turns=6)
    fresh, play, chance = Play(same), Play(same), Random(seed)
    while play.end is None:
        identity = chance.choice(list(play.state.running))
        if chance.random() < 0.25:
            play.fail(identity)
        else:
            play.ok(identity)
    if isinstance(fresh.all_ok(), t.TaskSucceeded) and not isinstance(play.end, t.TaskSucceeded):
        play.give(t.TaskRequeued(2))
        assert isinstance(play.all_ok(), t.TaskSucceeded)


def slow_prospects(graph: Plan, state: GraphState) -> set[str]:
    """What may still run, by trying every node until nothing changes."""
    found = {running.message.to for running in state.running.values()}
    while True:
        more = set[str]()
        for name, node in graph.nodes.items():
            before = {source for source in found if name in [edge.to for edge in graph.nodes[source].edges]}
            if node.join is None:
                starts = bool(before)
            else:
                rounds = [round for round in state.joins.get(name, {}).values() if not round.done]
                counts = [len(before), *(len(r.waiting) + len(before - set(r.seen)) for r in rounds)]
                partial = node.join.on_failure == "continue_partial"
                starts = any(count >= node.join.required or (partial and count) for count in counts)
            if starts:
                more.add(name)
        if more <= found:
            return found
        found |= more


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(0, 2**32))
def test_what_may_still_run_is_found_fast_and_right(graph: Plan, seed: int):
    chance = Random(seed)
    play = Play(graph)
    for _ in range(30):
        if play.end is not None:
            break
        assert prospects(graph, play.state) == slow_prospects(graph, play.state) or play.state.ending
        one_move(play, chance)


def test_the_state_stays_small_however_long_a_loop_runs():
    graph = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["a"]}
    play = Play(plan(graph, entries=["a"], max_messages=10_000))
    sizes: list[int] = []
    for _ in range(60):
        for agent in ("a", "b", "c", "d"):
            play.ok(agent, "x" * 200)
        sizes.append(len(encode_state(play.state)))
    assert sizes[-1] <= sizes[3] + 20


def test_a_loop_in_which_one_way_is_never_taken_stays_small_too():
    graph = {"a": ["b", Edge("c", {"never": "x"})], "b": ["d"], "c": ["d"], "d": ["a"]}
    play = Play(plan(graph, entries=["a"], on_failure={"d": "continue_partial"}, max_messages=10_000))
    sizes: list[int] = []
    for _ in range(60):
        for agent in ("a", "b", "d"):
            play.ok(agent)
        sizes.append(len(encode_state(play.state)))
    assert sizes[-1] <= sizes[3] + 20
