"""Every shape of a system: who runs, in which order, with what, and what the task says in the end."""

from __future__ import annotations

import pytest

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.graph import events as t
from foliot.kernel.graph.advance import advance, apply, new_state, phase
from foliot.kernel.graph.plan import Plan
from foliot.kernel.messages import Usage
from tests.kernel.graph_play import Play, edge, plan, used

PIPELINE = {"planner": ["research"], "research": ["writer"]}
HIERARCHY = {
    "manager": ["lead-a", "lead-b"],
    "lead-a": ["worker-a"],
    "lead-b": ["worker-b"],
    "worker-a": ["editor"],
    "worker-b": ["editor"],
}
SCOUTS = ["scout-a", "scout-b", "scout-c"]
SWARM = {"coordinator": [*SCOUTS, "synthesizer"], **{scout: ["coordinator"] for scout in SCOUTS}}
DIAMOND = {"a": ["b", "c"], "b": ["d"], "c": ["d"]}


# --- one line


def test_one_agent_is_a_graph():
    play = Play(plan({"clerk": []}), message="hello")
    (message,) = play.moves.activate
    assert (message.id, message.sender, message.to) == ("ns/job/a001/h001/system/clerk", "system", "clerk")
    assert (message.payload, message.kind, message.branch) == ("hello", "task_start", "b001")
    moves = play.ok("clerk", "done", usage=used(7))
    assert moves.ended == t.TaskSucceeded("done", {"clerk": "done"}, used(7))
    assert phase(play.state) == "succeeded"


def test_a_pipeline_hands_on_the_text_of_each_agent_to_the_next():
    play = Play(plan(PIPELINE))
    play.ok("planner", "the plan")
    (research,) = play.moves.activate
    assert research == t.Envelope(
        "ns/job/a001/h002/planner/research",
        "planner",
        "research",
        "the plan",
        hop=2,
        turns=2,
        parent_branch="b001",
        parent_id="ns/job/a001/h001/system/planner",
    )
    play.ok("research", "facts")
    assert play.ok("writer", "text").ended == t.TaskSucceeded("text", {"writer": "text"}, Usage(cost_usd=0))
    assert play.ran == ["planner", "research", "writer"]


def test_the_facts_of_a_pipeline_tell_its_story():
    play = Play(plan({"a": ["b"]}))
    play.ok("a")
    play.ok("b")
    assert [type(fact).__name__ for _, fact in play.facts] == [
        "TaskAccepted",
        "MessageSent",
        "MessageEnded",
        "MessageSent",
        "MessageEnded",
        "TaskSucceeded",
    ]


def test_the_usage_of_all_agents_is_summed():
    play = Play(plan(PIPELINE))
    for agent in ("planner", "research", "writer"):
        play.ok(agent, usage=used(10))
    assert isinstance(play.end, t.TaskSucceeded)
    assert (play.end.usage.input_tokens, play.end.usage.cost_usd) == (30, 1.5)


def test_several_entries_start_at_once_each_in_a_branch_of_its_own():
    play = Play(plan({"a": ["c"], "b": ["d"]}))
    assert [(m.to, m.branch) for m in play.moves.activate] == [("a", "b001"), ("b", "b002")]
    play.all_ok()
    assert play.end == t.TaskSucceeded("## c\n\nc2\n\n## d\n\nd2", {"c": "c2", "d": "d2"}, Usage(cost_usd=0))


# --- fan-out and joins


def test_a_hierarchy_joins_in_its_editor():
    play = Play(plan(HIERARCHY))
    assert play.running == ["manager"]
    play.ok("manager")
    assert play.running == ["lead-a", "lead-b"]
    assert [m.branch for m in play.moves.activate] == ["b001.001", "b001.002"]
    play.ok("lead-b")
    play.ok("worker-b", "from b")
    assert play.running == ["lead-a"]
    play.ok("lead-a")
    (editor,) = play.ok("worker-a", "from a").activate
    assert (editor.id, editor.sender, editor.branch) == ("ns/job/a001/h004/join/editor", "join", "b001")
    assert (editor.round, editor.required, editor.turns) == (1, 2, 4)
    assert [(s.agent, s.payload) for s in editor.sources] == [("worker-a", "from a"), ("worker-b", "from b")]
    assert editor.payload == "## worker-a\n\nfrom a\n\n## worker-b\n\nfrom b"
    play.ok("editor", "all")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.output == "all"


def test_a_fan_out_without_a_join_gives_every_text_under_its_name_in_the_order_of_the_graph():
    play = Play(plan({"a": ["b", "c"]}))
    play.ok("a")
    play.ok("c", "last")
    play.ok("b", "first")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.output == "## b\n\nfirst\n\n## c\n\nlast"
    assert play.end.outputs == {"b": "first", "c": "last"}


def test_a_quorum_starts_early_and_what_comes_later_is_late():
    play = Play(plan({"a": ["b", "c", "d"], "b": ["e"], "c": ["e"], "d": ["e"]}, quorum={"e": 2}))
    play.ok("a")
    play.ok("d")
    (joined,) = play.ok("b").activate
    assert [source.agent for source in joined.sources] == ["b", "d"]
    assert play.ok("e").ended is None, "c still runs"
    assert play.ok("c").activate == []
    assert play.branch_ends() == [("c/e", "late")]
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {"e": "e3"}


def test_a_quorum_of_one_agent_is_a_join_too():
    play = Play(plan({"a": ["b"]}, quorum={"b": 1}))
    play.ok("a", "x")
    assert [source.agent for source in play.find("b").sources] == ["a"]
    assert play.find("b").payload == "x"


# --- loops


def test_two_agents_in_a_loop_exchange_exactly_max_turns_messages():
    play = Play(plan({"a": ["b"], "b": ["a"]}, max_turns=3))
    play.all_ok()
    assert play.ran == ["a", "b", "a"]
    assert len(play.of(t.MessageSent)) == 3
    assert play.branch_ends() == [("b/a", "turn_limit")]
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.output == "a3"


def test_a_manager_and_a_researcher_take_six_turns():
    play = Play(plan({"manager": ["research"], "research": ["manager"]}, max_turns=6))
    play.all_ok()
    assert play.ran == ["manager", "research"] * 3
    assert [m.id.split("/")[3] for m in play.activated] == ["h001", "h002", "h003", "h004", "h005", "h006"]


def test_a_swarm_starts_although_its_coordinator_has_a_join_and_joins_in_every_lap():
    play = Play(plan(SWARM, max_turns=4))
    assert play.running == ["coordinator"]
    assert play.activated[0].round == 0
    play.ok("coordinator")
    assert play.running == [*SCOUTS, "synthesizer"]
    for scout in ("scout-c", "synthesizer", "scout-a"):
        play.ok(scout)
    assert play.running == ["scout-b"]
    (second,) = play.ok("scout-b").activate
    assert (second.to, second.round, second.turns) == ("coordinator", 1, 3)
    play.all_ok()
    assert play.ran.count("coordinator") == 2
    assert play.ran.count("synthesizer") == 2
    assert [play.ran.count(scout) for scout in SCOUTS] == [2, 2, 2]
    assert isinstance(play.end, t.TaskSucceeded)
    assert set(play.end.outputs) == {*SCOUTS, "synthesizer"}


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_diamond_in_a_loop_joins_again_in_every_lap_until_the_turns_are_used_up(turns: int):
    play = Play(plan({**DIAMOND, "d": ["a"]}, entries=["a"], max_turns=turns))
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)
    assert max(message.turns for message in play.activated) == turns
    assert play.ran.count("d") == turns // 3
    assert [message.round for message in play.activated if message.to == "d"] == list(range(1, turns // 3 + 1))


def test_turns_are_not_reset_by_a_fan_out():
    play = Play(plan({"a": ["b", "c"], "b": ["a"], "c": ["a"]}, quorum={"a": 1}, max_turns=5))
    play.all_ok()
    assert max(message.turns for message in play.activated) == 5
    assert len(play.activated) < 20


def test_an_agent_that_is_left_out_of_a_lap_is_in_step_again_in_the_next():
    """`c` takes part only in the second lap; its first message belongs to the second round of `d`, not to the first."""
    graph = {"a": ["b", edge("c", {"with": "c"})], "b": ["d"], "c": ["d"], "d": ["a"]}
    play = Play(plan(graph, entries=["a"], quorum={"d": 1}, on_failure={"d": "continue_partial"}, max_turns=6))
    play.ok("a")
    play.ok("b")
    play.ok("d")
    play.ok("a", route={"with": "c"})
    assert play.running == ["b", "c"]
    (joined,) = play.ok("c").activate
    assert (joined.to, joined.round) == ("d", 2)


def test_a_second_message_of_the_same_agent_opens_the_next_round():
    """`a` and `b` go round twice and tell `d` each time; `c` tells it once."""
    graph = {"a": ["b", "d"], "b": ["a"], "c": ["d"]}
    play = Play(plan(graph, entries=["a", "c"], on_failure={"d": "continue_partial"}, max_turns=5))
    play.ok("a", "one")
    play.ok("b")
    play.ok("a", "two")
    assert {number: [m.payload for m in round.waiting] for number, round in play.state.joins["d"].items()} == {
        1: ["one"],
        2: ["two"],
    }
    first, second = play.ok("c").activate
    assert (first.round, [source.payload for source in first.sources]) == (1, ["one", "c1"])
    assert (second.round, second.payload) == (2, "two"), "c has ended, so the second round goes on without it"


def test_rounds_go_on_counting_when_the_earlier_ones_are_forgotten():
    """Two loops that know nothing of each other feed one join."""
    graph = {"a": ["a2", "d"], "a2": ["a"], "b": ["b2", "d"], "b2": ["b"]}
    play = Play(plan(graph, entries=["a", "b"], max_turns=6))
    play.all_ok()
    assert [message.round for message in play.activated if message.to == "d"] == [1, 2, 3]
    assert isinstance(play.end, t.TaskSucceeded)


def test_a_join_goes_on_from_the_longest_way_that_led_to_it():
    play = Play(plan({"a": ["b", "c"], "b": ["d"], "c": ["e"], "e": ["d"], "d": ["f"]}))
    for agent in ("a", "c", "e", "b"):
        play.ok(agent)
    joined = play.find("d")
    assert (joined.hop, joined.turns, joined.branch) == (4, 4, "b001")
    play.ok("d")
    assert (play.find("f").hop, play.find("f").turns) == (5, 5)


# --- conditions

CHOICE = {"triage": [edge("bug", {"route": "bug"}), edge("feature", {"route": "feature"}), edge("other", "otherwise")]}


@pytest.mark.parametrize(
    ("route", "chosen"),
    [
        ({"route": "bug"}, ["bug"]),
        ({"route": "feature", "more": "x"}, ["feature"]),
        ({"route": "Bug"}, ["other"]),
        ({}, ["other"]),
    ],
)
def test_labels_choose_the_edge(route: dict[str, str], chosen: list[str]):
    play = Play(plan(CHOICE))
    play.ok("triage", route=route)
    assert play.running == chosen


def test_all_labels_must_be_equal():
    graph = plan({"a": [edge("b", {"x": "1", "y": "2"}), edge("c", "otherwise")]})
    play = Play(graph)
    play.ok("a", route={"x": "1"})
    assert play.running == ["c"]
    play = Play(graph)
    play.ok("a", route={"x": "1", "y": "2"})
    assert play.running == ["b"]


def test_expressions_fire_by_their_position_and_edges_without_a_condition_always():
    graph = plan({"a": ["always", edge("b", "value.score > 3"), edge("c", "size(output) > 9"), edge("d", "otherwise")]})
    for held, expected in [((), ["always", "d"]), ((1,), ["always", "b"]), ((1, 2), ["always", "b", "c"])]:
        play = Play(graph)
        play.ok("a", held=held)
        assert play.running == expected


def test_a_word_that_only_looks_like_otherwise_is_an_expression():
    play = Play(plan({"a": [edge("b", "otherwise == 1")]}))
    play.ok("a")
    assert play.branch_ends() == [("system/a", "no_edge")]


def test_a_branch_where_no_condition_held_ends_well_with_what_was_said():
    play = Play(plan({"a": [edge("b", {"route": "b"})]}))
    moves = play.ok("a", "nothing to do")
    assert isinstance(moves.ended, t.TaskSucceeded)
    assert moves.ended.output == "nothing to do"
    assert play.branch_ends() == [("system/a", "no_edge")]


# --- limits


def test_a_loop_without_a_turn_limit_ends_by_the_number_of_messages_and_says_so():
    play = Play(plan({"a": ["b"], "b": ["a"]}, max_messages=5))
    play.all_ok()
    assert isinstance(play.end, t.TaskFailed)
    assert (play.end.code, play.end.reason) == ("limit_exceeded", "message_limit")
    assert play.end.message == "the task has sent 5 messages, and at most 5 are allowed"
    assert len(play.activated) == 5


def test_siblings_are_stopped_when_the_number_of_messages_is_used_up():
    play = Play(plan({"a": ["b", "c"], "b": ["x", "y", "z"]}, max_messages=5))
    play.ok("a")
    moves = play.ok("b")
    assert moves.activate == []
    assert moves.stop == [play.find("c").id]
    assert moves.ended is None
    assert isinstance(play.stopped("c").ended, t.TaskFailed)


# --- ids


def test_names_in_ids_are_lower_case_and_without_signs():
    play = Play(plan({"Lead Editor": ["v1.2:x"]}))
    assert play.ok("Lead Editor").activate[0].id == "ns/job/a001/h002/lead_editor/v1_2_x"


def test_ids_that_would_be_equal_are_numbered():
    play = Play(plan({"a": ["x.y", "x:y", "x/y"]}))
    play.ok("a")
    assert [message.id.split("/", 4)[4] for message in play.activated[1:]] == ["a/x_y", "a/x_y.2", "a/x_y.3"]


def test_an_agent_may_be_called_join_or_system():
    graph = {"system": ["join", "b"], "join": ["d"], "b": ["d"]}
    play = Play(plan(graph))
    play.all_ok()
    assert play.ran == ["system", "join", "b", "d"]


# --- facts that have no place


def test_a_message_ends_once():
    play = Play(plan({"a": ["b"]}))
    message = play.find("a")
    play.ok("a")
    with pytest.raises(IllegalEvent, match="has ended, or was never sent"):
        play.give(t.MessageEnded(message.id, "succeeded"))
    assert play.running == ["b"]


@pytest.mark.parametrize(
    ("fact", "complaint"),
    [
        (t.MessageEnded("nobody", "succeeded"), "'nobody' has no run"),
        (t.TaskAccepted("again"), "accepted already"),
        (t.TaskRequeued(2), "has not ended"),
        (t.TaskSucceeded("x"), "decided by the graph itself"),
    ],
)
def test_facts_without_a_place_are_refused_and_change_nothing(fact: t.TaskEvent, complaint: str):
    graph = plan({"a": []})
    state = new_state()
    advance(graph, state, t.TaskAccepted("go"), 1)
    before = repr(state)
    with pytest.raises(IllegalEvent, match=complaint):
        advance(graph, state, fact, 2)
    assert repr(state) == before


def test_nothing_can_happen_before_the_task_is_accepted_nor_after_it_ended():
    graph: Plan = plan({"a": []})
    with pytest.raises(IllegalEvent, match="not been accepted"):
        advance(graph, new_state(), t.TimerWentOff(), 1)
    play = Play(graph)
    play.ok("a")
    for fact in (t.TimerWentOff(), t.TaskCancelRequested(), t.MessageEnded("x", "failed")):
        with pytest.raises(IllegalEvent, match="has ended"):
            play.give(fact)


SENT = t.Envelope("ns/job/a001/h009/x/b", "x", "b", "text", parent_id="nobody")


@pytest.mark.parametrize(
    ("fact", "complaint"),
    [
        (t.MessageSent(SENT), "sends nothing to it"),
        (t.MessageSent(t.Envelope("i", "a", "stranger", "")), "not in the graph"),
        (t.MessageSent(t.Envelope("ns/job/a001/h001/system/a", "system", "a", "", kind="task_start")), "sent twice"),
        (t.MessageSent(t.Envelope("i", "system", "a", "", kind="task_start")), "has been started"),
        (t.MessageSent(t.Envelope("i", "system", "a", "", replaces="x")), "not to be sent again"),
        (t.MessageSent(t.Envelope("i", "join", "b", "", sources=(t.Source("m", "a", ""),))), "does not wait"),
        (t.BranchEnded("nobody", "late"), "goes on, or has ended"),
        (t.JoinClosed("b", 1, "timeout", "skip"), "does not wait"),
        (t.TaskSucceeded("x"), "1 messages of ns/job are under way"),
    ],
)
def test_recorded_facts_that_do_not_fit_are_refused(fact: t.TaskEvent, complaint: str):
    play = Play(plan({"a": ["b"]}))
    before = repr(play.state)
    with pytest.raises(IllegalEvent, match=complaint):
        apply(play.plan, play.state, fact, 1)
    assert repr(play.state) == before
