"""A declared system becomes a plan: edges in order, joins with their numbers, defaults filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foliot.cli
from foliot.errors import InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.graph import events as t
from foliot.kernel.graph.plan import Edge, Join, Node, Plan, decode_plan, encode_plan
from foliot.resources.reader import read_manifests
from foliot.resources.validate import validate_document
from foliot.work.tasks.plan import compile_plan, retry_of
from tests.kernel.graph_play import Play


def declared(kind: str, **spec: Any) -> dict[str, Any]:
    document, problems = validate_document({"kind": kind, "metadata": {"name": "desk"}, "spec": spec})
    assert problems == []
    assert document is not None
    return document


def compiled(
    agents: list[str], graph: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **spec: Any
) -> Plan:
    document = declared("AgentSystem", agents=agents, graph=graph, **spec)
    digests = {agent: f"sha256:{agent}" for agent in agents}
    return compile_plan("job", "team", document, task or {}, digests, {"AgentSystem/desk": "sha256:1"})


def test_one_agent_is_a_plan_of_one_node():
    document = {"kind": "Agent", "metadata": {"name": "clerk"}}
    assert compile_plan("job", "team", document, {}, {"clerk": "sha256:0"}, {}) == Plan(
        "team/job", {"clerk": Node()}, ("clerk",), {"clerk": "sha256:0"}, order=("clerk",)
    )


def test_agents_without_a_graph_follow_each_other_in_their_order():
    plan = compiled(["c", "a", "b"])
    assert plan == Plan(
        "team/job",
        {"c": Node((Edge("a"),)), "a": Node((Edge("b"),)), "b": Node()},
        ("c",),
        {"c": "sha256:c", "a": "sha256:a", "b": "sha256:b"},
        {"AgentSystem/desk": "sha256:1"},
        "desk",
        order=("c", "a", "b"),
    )
    assert decode_plan(encode_plan(plan)) == plan


def test_next_comes_first_then_edges_in_order_and_each_agent_once():
    graph = {
        "a": {
            "next": "d",
            "edges": [
                {"to": "b", "when": {"route": "b"}, "on_failure": "skip"},
                {"to": "d", "when": "otherwise"},
                {"to": "c", "when": "otherwise"},
                {"to": "e", "when": "value.score > 3.0", "on_failure": "forward"},
            ],
        }
    }
    plan = compiled(["a", "b", "c", "d", "e"], graph)
    assert plan.nodes["a"].edges == (
        Edge("d"),
        Edge("b", {"route": "b"}, "skip"),
        Edge("c", "otherwise"),
        Edge("e", "value.score > 3.0", "forward"),
    )


FAN_IN = {"a": {"edges": ["b", "c", "d"]}, "b": {"next": "e"}, "c": {"next": "e"}, "d": {"next": "e"}}


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (None, Join("wait_for_all", ("b", "c", "d"), 3)),
        ({"on_failure": "skip", "timeout": "1m30s"}, Join("wait_for_all", ("b", "c", "d"), 3, "skip", 90.0)),
        ({"mode": "quorum", "quorum_count": 2}, Join("quorum", ("b", "c", "d"), 2)),
        ({"mode": "quorum", "quorum_percent": 50}, Join("quorum", ("b", "c", "d"), 2)),
        ({"mode": "quorum", "quorum_percent": 34, "quorum_count": 1}, Join("quorum", ("b", "c", "d"), 2)),
        ({"mode": "quorum", "quorum_percent": 1}, Join("quorum", ("b", "c", "d"), 1)),
        ({"mode": "quorum"}, Join("quorum", ("b", "c", "d"), 3)),
        ({"mode": "quorum", "quorum_percent": 100, "quorum_count": 1}, Join("quorum", ("b", "c", "d"), 3)),
    ],
)
def test_a_join_requires_the_larger_of_count_and_share(join: dict[str, Any] | None, expected: Join):
    graph = FAN_IN if join is None else {**FAN_IN, "e": {"join": join}}
    plan = compiled(["a", "b", "c", "d", "e"], graph)
    assert plan.nodes["e"].join == expected
    assert [name for name, node in plan.nodes.items() if node.join] == ["e"]


def test_one_agent_before_a_node_makes_a_join_only_with_an_explicit_quorum():
    assert compiled(["a", "b"], {"a": {"next": "b"}, "b": {"join": {}}}).nodes["b"].join is None
    quorum = {"a": {"next": "b"}, "b": {"join": {"mode": "quorum", "quorum_count": 1}}}
    assert compiled(["a", "b"], quorum).nodes["b"].join == Join("quorum", ("a",), 1)


def test_entries_are_those_that_nothing_leads_to_or_the_first_of_a_circle():
    assert compiled(["a", "b", "c"], {"a": {"next": "c"}, "b": {"next": "c"}}).entries == ("a", "b")
    assert compiled(["b", "a"], {"a": {"next": "b"}, "b": {"next": "a"}}, max_turns=3).entries == ("b",)


def test_the_turns_of_the_task_win_over_those_of_the_system():
    loop = {"a": {"next": "b"}, "b": {"next": "a"}}
    assert compiled(["a", "b"], loop, max_turns=3).max_turns == 3
    assert compiled(["a", "b"], loop, {"max_turns": 5}, max_turns=3).max_turns == 5
    assert compiled(["a", "b"], loop, {"max_turns": 5}).max_turns == 5


def test_a_cycle_without_a_turn_limit_is_refused():
    with pytest.raises(InvalidInput, match="contains a cycle") as refused:
        compiled(["a", "b"], {"a": {"next": "b"}, "b": {"next": "a"}})
    assert "a -> b -> a" in str(refused.value.hint)


def test_everything_that_is_wrong_with_a_graph_is_said_at_once():
    with pytest.raises(InvalidInput, match=r'"ghost" is not listed.*points to unknown agent'):
        compiled(["a"], {"a": {"next": "b"}, "ghost": {"next": "a"}})
    with pytest.raises(InvalidInput, match="which can only follow it"):
        compiled(["a", "b", "c"], {"a": {"next": "b"}, "b": {"next": "c"}, "c": {"next": "b"}}, max_turns=5)
    with pytest.raises(InvalidInput, match=r"has no spec\.agents"):
        compiled([])


def test_an_agent_that_was_not_frozen_is_refused():
    document = declared("AgentSystem", agents=["a", "b"])
    with pytest.raises(InvalidInput, match="'b' is not there"):
        compile_plan("job", "team", document, {}, {"a": "x"}, {})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, RetryPolicy()),
        ({"retry": {"max_attempts": 3, "backoff": "2s"}}, RetryPolicy(3, 2.0)),
        (
            {"retry": {"max_attempts": 3, "backoff": "2s"}, "message_retry": {"max_attempts": 2, "backoff": "250ms"}},
            RetryPolicy(2, 0.25),
        ),
        (
            {
                "message_retry": {
                    "max_attempts": 2,
                    "backoff": 0.5,
                    "max_backoff": "2s",
                    "jitter": "none",
                    "non_retryable": ["No Such"],
                }
            },
            RetryPolicy(2, 0.5, 2.0, "none", ("no such",)),
        ),
        ({"message_retry": {"max_attempts": 0}, "retry": {"max_attempts": 4}}, RetryPolicy(4)),
    ],
)
def test_the_retry_of_messages_falls_back_on_that_of_the_task(spec: dict[str, Any], expected: RetryPolicy):
    assert retry_of(spec) == expected


def test_a_task_as_the_reader_completes_it_gives_the_same_rule():
    task = declared(
        "Task", system="desk", retry={"max_attempts": 2, "backoff": "1s"}, message_retry={"jitter": "equal"}
    )
    assert retry_of(task["spec"]) == RetryPolicy(2, 1.0, 86_400.0, "equal")


def test_what_is_no_duration_is_refused():
    with pytest.raises(InvalidInput, match="'soon' is no duration"):
        retry_of({"retry": {"backoff": "soon"}})


BLUEPRINTS = sorted((Path(foliot.cli.__file__).parent / "blueprints").glob("*/agent-system.yaml"))


@pytest.mark.parametrize("manifest", BLUEPRINTS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("routes", [{}, {"route": "scouts"}], ids=["no-label", "labelled"])
def test_every_blueprint_of_a_system_runs_to_its_end(manifest: Path, routes: dict[str, str]):
    (system,) = read_manifests([manifest]).documents
    agents = {name: f"sha256:{name}" for name in system["spec"]["agents"]}
    play = Play(compile_plan("job", "team", system, {}, agents, {}))

    while play.state.running:
        play.ok(play.running[0], route=routes)

    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs
