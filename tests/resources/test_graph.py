from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources.graph import CYCLE, Graph, check_graph, find_cycle, is_cyclic
from foliot.resources.problems import Problem
from foliot.resources.validate import validate_document


def system(agents: list[str], graph: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    raw = {"kind": "AgentSystem", "metadata": {"name": "desk"}, "spec": {"agents": agents, "graph": graph, **spec}}
    document, problems = validate_document(raw)
    assert problems == []
    assert document is not None
    return document


def found(*args: Any, **kwargs: Any) -> list[tuple[str, str, str]]:
    return [(p.severity, p.field, p.message) for p in check_graph(system(*args, **kwargs))]


def test_a_pipeline_without_a_graph_is_sound() -> None:
    assert found(["a", "b"]) == []


def test_a_diamond_is_sound() -> None:
    assert found(["a", "b", "c", "d"], {"a": {"edges": ["b", "c"]}, "b": {"next": "d"}, "c": {"next": "d"}}) == []


def test_a_system_without_agents_is_an_error() -> None:
    assert found([]) == [("error", "spec.agents", 'agentsystem "desk" has no spec.agents')]


def test_nodes_and_edges_must_name_agents_of_the_system() -> None:
    problems = check_graph(system(["writer", "editor"], {"writer": {"edges": ["editr"]}, "Writer": {"next": "editor"}}))
    assert problems[:2] == [
        Problem(
            ("spec", "graph", "Writer"), 'graph node "Writer" is not listed in spec.agents', "did you mean writer?"
        ),
        Problem(
            ("spec", "graph", "writer", "edges", 0, "to"),
            'graph edge "writer" -> "editr" points to unknown agent',
            "did you mean editor?",
        ),
    ]


def test_a_cycle_is_a_warning_that_shows_it() -> None:
    (problem,) = check_graph(system(["a", "b"], {"a": {"next": "b"}, "b": {"next": "a"}}))
    assert (problem.severity, problem.message) == ("warning", CYCLE)
    assert problem.hint is not None
    assert "a -> b -> a" in problem.hint


def test_a_cycle_with_a_turn_limit_is_sound() -> None:
    assert found(["a", "b"], {"a": {"next": "b"}, "b": {"next": "a"}}, max_turns=4) == []


def test_an_agent_may_hand_over_to_itself_with_a_limit() -> None:
    assert is_cyclic(system(["a"], {"a": {"next": "a"}}))
    assert found(["a"], {"a": {"next": "a"}}, max_turns=2) == []


def test_an_island_of_agents_is_never_reached() -> None:
    graph = {"a": {"next": "b"}, "c": {"next": "d"}, "d": {"next": "c"}}
    assert found(["a", "b", "c", "d"], graph, max_turns=2) == [
        ("warning", "spec.graph.c", 'agent "c" is never reached'),
        ("warning", "spec.graph.d", 'agent "d" is never reached'),
    ]


def test_an_agent_on_no_edge_starts_on_its_own() -> None:
    ((severity, field, message),) = found(["a", "b", "c"], {"a": {"next": "b"}})
    assert (severity, field) == ("warning", "spec.agents[2]")
    assert "starts and ends on its own" in message


FAN_IN = {"a": {"edges": ["b", "c"]}, "b": {"next": "d"}, "c": {"next": "d"}}


@pytest.mark.parametrize(
    ("join", "severity", "field", "message"),
    [
        ({"mode": "quorum", "quorum_count": 3}, "error", "quorum_count", "a quorum of 3 can never arrive"),
        ({"mode": "quorum"}, "warning", "mode", "waits for all"),
        ({"quorum_count": 1}, "warning", "quorum_count", "has no effect unless join.mode is quorum"),
        ({"quorum_percent": 50}, "warning", "quorum_percent", "has no effect unless join.mode is quorum"),
    ],
)
def test_joins_that_cannot_mean_what_they_say(join: dict[str, Any], severity: str, field: str, message: str) -> None:
    ((how, where, what),) = found(["a", "b", "c", "d"], {**FAN_IN, "d": {"join": join}})
    assert (how, where) == (severity, f"spec.graph.d.join.{field}")
    assert message in what


@pytest.mark.parametrize("join", [{"mode": "quorum", "quorum_count": 2}, {"mode": "quorum", "quorum_percent": 50}])
def test_a_quorum_that_can_arrive_is_sound(join: dict[str, Any]) -> None:
    assert found(["a", "b", "c", "d"], {**FAN_IN, "d": {"join": join}}) == []


def test_a_join_where_nothing_arrives_has_no_effect() -> None:
    ((severity, field, _),) = found(["a", "b"], {"a": {"next": "b", "join": {}}})
    assert (severity, field) == ("warning", "spec.graph.a.join")


CHOICE = {
    "a": {"edges": [{"to": "b", "when": {"route": "b"}}, {"to": "c", "when": "otherwise"}]},
    "b": {"next": "d"},
    "c": {"next": "d"},
}


def test_waiting_for_all_of_several_alternatives_is_doubtful() -> None:
    ((severity, field, message),) = found(["a", "b", "c", "d"], CHOICE)
    assert (severity, field) == ("warning", "spec.graph")
    assert message == '"d" waits for all, but a chooses between b and c'


@pytest.mark.parametrize(
    "join",
    [
        {"mode": "quorum", "quorum_count": 1},
        {"on_failure": "continue_partial"},
        {"on_failure": "skip"},
    ],
)
def test_alternatives_that_meet_in_a_patient_join_are_sound(join: dict[str, Any]) -> None:
    assert found(["a", "b", "c", "d"], {**CHOICE, "d": {"join": join}}) == []


def test_waiting_for_an_edge_with_a_condition_is_doubtful() -> None:
    graph = {"a": {"edges": ["b", {"to": "c", "when": "output.score > 3"}]}, "b": {"next": "c"}}
    ((_, _, message),) = found(["a", "b", "c"], graph)
    assert message == '"c" waits for all, but the edge from a has a condition'


def test_a_node_that_waits_for_its_own_follower_would_never_start() -> None:
    graph = {"a": {"next": "b"}, "b": {"next": "c"}, "c": {"next": "b"}}
    ((severity, _, message),) = found(["a", "b", "c"], graph, max_turns=5)
    assert severity == "error"
    assert message == '"b" waits for c, which can only follow it'
    assert (
        found(
            ["a", "b", "c"], {**graph, "b": {"next": "c", "join": {"mode": "quorum", "quorum_count": 1}}}, max_turns=5
        )
        == []
    )


def test_joins_that_wait_for_each_other_can_never_start() -> None:
    graph = {"a": {"edges": ["j", "k"]}, "j": {"next": "k"}, "k": {"next": "j"}}
    assert found(["a", "j", "k"], graph, max_turns=5) == [
        ("error", "spec.graph.j", '"j" waits for k, which cannot start before it'),
        ("error", "spec.graph.k", '"k" waits for j, which cannot start before it'),
    ]
    patient = {**graph, "j": {"next": "k", "join": {"on_failure": "continue_partial"}}}
    assert found(["a", "j", "k"], patient, max_turns=5) == []


def test_a_join_that_skips_and_can_never_start_is_only_doubtful() -> None:
    graph = {"a": {"next": "b"}, "b": {"next": "b", "join": {"on_failure": "skip"}}}
    assert found(["a", "b"], graph, max_turns=5) == [("warning", "spec.graph.b.join", '"b" waits for itself')]


def test_a_join_that_waits_for_what_is_never_reached_can_never_start() -> None:
    graph = {"a": {"next": "e"}, "c": {"next": "d"}, "d": {"edges": ["c", "e"]}}
    problems = found(["a", "c", "d", "e"], graph, max_turns=5)
    assert ("error", "spec.graph", '"e" waits for d, which is never reached') in problems


def test_a_join_names_every_reason_why_it_can_never_start() -> None:
    graph = {"a": {"next": "b"}, "b": {"next": "c"}, "c": {"next": "b"}, "x": {"next": "y"}, "y": {"edges": ["x", "b"]}}
    messages = [
        message for severity, _, message in found(["a", "b", "c", "x", "y"], graph, max_turns=5) if severity == "error"
    ]
    assert messages == ['"b" waits for c, which can only follow it; and for y, which is never reached']


def test_an_entry_starts_although_its_join_waits_for_what_follows_it() -> None:
    scouts = ["s1", "s2"]
    graph = {"lead": {"edges": [*scouts, "end"]}, **{scout: {"next": "lead"} for scout in scouts}}
    assert found(["lead", *scouts, "end"], graph, max_turns=4) == []


def test_a_second_edge_to_the_same_agent_has_no_effect() -> None:
    graph = {"a": {"next": "b", "edges": [{"to": "b", "when": {"x": "1"}}]}}
    ((severity, field, message),) = found(["a", "b"], graph)
    assert (severity, field) == ("warning", "spec.graph.a.edges[0].to")
    assert message == 'a second edge "a" -> "b" has no effect'


@pytest.mark.parametrize("how", ["fail", "skip", "forward", "FORWARD"])
def test_an_edge_says_what_a_failure_does(how: str) -> None:
    document = system(["a", "b"], {"a": {"edges": [{"to": "b", "onFailure": how}]}})
    assert document["spec"]["graph"]["a"]["edges"][0]["on_failure"] == how.lower()
    assert [route.on_failure for route in Graph.of(document).outgoing("a")] == [how.lower()]


def test_an_edge_that_says_nothing_of_failures_stays_as_it_was_written() -> None:
    document = system(["a", "b"], {"a": {"edges": ["b"]}})
    assert document["spec"]["graph"]["a"]["edges"] == [{"to": "b"}]
    assert [route.on_failure for route in Graph.of(document).outgoing("a")] == ["fail"]


GRAPHS = st.dictionaries(st.integers(0, 7).map(str), st.lists(st.integers(0, 7).map(str), max_size=4), max_size=8)


@given(GRAPHS)
def test_a_cycle_is_found_exactly_when_there_is_one(following: dict[str, list[str]]) -> None:
    cycle = find_cycle(following)

    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert all(after in following[before] for before, after in pairwise(cycle))
    else:  # then nodes that nothing follows can be taken away until none is left
        left = {node: set(targets) for node, targets in following.items()}
        while leaves := [node for node, targets in left.items() if not targets & left.keys()]:
            for leaf in leaves:
                del left[leaf]
        assert not left
