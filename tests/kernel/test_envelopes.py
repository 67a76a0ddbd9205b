"""Ids, branches, rounds and texts of messages, each rule by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.graph.envelopes import (
    common_branch,
    joined,
    message_id,
    output_of,
    round_for,
    safe_name,
    under_names,
)
from foliot.kernel.graph.events import Envelope
from foliot.kernel.graph.state import AgentOutput, GraphState, Round
from tests.kernel.graph_play import plan

FAN_IN = plan({"a": ["b", "c"], "b": ["d"], "c": ["d"]})


@given(st.text())
def test_a_name_in_an_id_never_holds_a_sign_that_means_something(name: str):
    assert not set(safe_name(name)) & set(" .>*/:")


def test_an_id_names_task_attempt_hop_sender_and_receiver():
    state = GraphState(attempt=12)
    assert message_id(FAN_IN, state, 3, "B", "d") == "ns/job/a012/h003/b/d"
    state.sent = {3: {"b/d": 2}}
    assert message_id(FAN_IN, state, 3, "b", "D") == "ns/job/a012/h003/b/d.3"
    assert message_id(FAN_IN, state, 1234, "b", "d") == "ns/job/a012/h1234/b/d"


@pytest.mark.parametrize(
    ("branches", "common"),
    [
        (["b001.001", "b001.002"], "b001"),
        (["b001.001.002", "b001.001.001", "b001.001"], "b001.001"),
        (["b001", "b001.003"], "b001"),
        (["b002", "b001.004"], "b001.004"),
        (["b001.001"], "b001.001"),
    ],
)
def test_branches_that_meet_go_on_as_the_one_they_came_from(branches: list[str], common: str):
    assert common_branch(branches) == common


def test_a_round_is_the_first_behind_the_ancestry_that_the_sender_has_not_used():
    state = GraphState(joins={"d": {2: Round(seen=["b"]), 3: Round(seen=["b", "c"])}}, floors={"d": 1})
    assert round_for(state, "d", "b", {}) == 4
    assert round_for(state, "d", "c", {}) == 2
    assert round_for(state, "d", "c", {"d": 2}) == 4
    assert round_for(state, "d", "c", {"d": 7}) == 8
    assert round_for(state, "other", "c", {"d": 7}) == 1


def test_what_a_join_sends_remembers_the_highest_rounds_of_its_sources():
    waiting = [
        Envelope("m2", "c", "d", "from c", hop=2, turns=2, branch="b001.002", laps={"x": 1, "y": 4}),
        Envelope("m1", "b", "d", "from b", hop=7, turns=5, branch="b001.001", laps={"x": 3}),
    ]
    message = joined(FAN_IN, GraphState(), "d", 1, Round(waiting=waiting))
    assert message.laps == {"x": 3, "y": 4}
    assert (message.hop, message.turns, message.parent_id) == (7, 5, "m2")
    assert [source.message_id for source in message.sources] == ["m1", "m2"]


def test_one_text_stands_for_itself_and_several_under_their_names():
    assert under_names([]) == ""
    assert under_names([("a", "x", False)]) == "x"
    assert under_names([("a", "x", False), ("b", "y", True)]) == "## a\n\nx\n\n## b (failed)\n\ny"


def test_texts_of_one_agent_stand_together_in_the_order_of_the_hops():
    outputs = [
        AgentOutput("c", "third", 5, "b001"),
        AgentOutput("b", "x", 9, "b001"),
        AgentOutput("c", "first", 2, "b001"),
    ]
    outputs.append(AgentOutput("c", "second", 2, "b002"))
    assert output_of(FAN_IN, outputs) == (
        "## b\n\nx\n\n## c\n\nfirst\n\nsecond\n\nthird",
        {"b": "x", "c": "first\n\nsecond\n\nthird"},
    )
