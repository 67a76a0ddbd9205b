"""What follows when an agent fails: every cell of the table in graph.py, and how joins close."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.kernel.graph import events as t
from tests.kernel.graph_play import Play, edge, plan


def fan_in(how: str, **more: Any) -> Play:
    """a -> b, c -> d; the edge of c says `how` when c fails. b and c run."""
    graph = {"a": ["b", "c"], "b": ["d"], "c": [edge("d", on_failure=how)]}
    play = Play(plan(graph, **more))
    play.ok("a")
    return play


# --- no join


def test_a_failed_agent_without_followers_dead_letters_the_task():
    play = Play(plan({"a": []}))
    moves = play.fail("a", "the disk is full", attempts=3)
    message = "message ns/job/a001/h001/system/a dead-lettered after 3 attempts: the disk is full"
    assert isinstance(moves.ended, t.TaskDeadLettered)
    assert moves.ended.message == message
    assert (moves.ended.reason, moves.ended.message_id) == ("tool_failed", "ns/job/a001/h001/system/a")


def test_fail_to_a_plain_node_dead_letters_the_task():
    play = Play(plan({"a": ["b"]}))
    assert isinstance(play.fail("a").ended, t.TaskDeadLettered)
    assert play.ran == ["a"]


def test_skip_to_a_plain_node_ends_the_branch_and_the_task_says_that_nothing_is_left():
    play = Play(plan({"a": [edge("b", on_failure="skip")]}))
    moves = play.fail("a", "no network")
    assert play.branch_ends() == [("system/a", "skipped")]
    assert isinstance(moves.ended, t.TaskSucceeded)
    assert moves.ended.outputs == {}
    assert moves.ended.output == "No agent's answer is left, because every branch was skipped (a failed: no network)."


def test_forward_tells_the_next_agent_what_went_wrong():
    play = Play(plan({"a": [edge("b", on_failure="forward")]}))
    (message,) = play.fail("a", "no network").activate
    assert (message.to, message.payload, message.failed) == ("b", "no network", True)
    assert isinstance(play.ok("b", "sorry").ended, t.TaskSucceeded)


def test_conditions_do_not_matter_when_there_is_no_answer():
    graph = {
        "a": [edge("b", {"x": "1"}, "forward"), edge("c", "otherwise", "skip"), edge("d", "size(x) > 1", "forward")]
    }
    play = Play(plan(graph))
    play.fail("a")
    assert play.running == ["b", "d"]


def test_one_edge_that_fails_outweighs_the_others():
    play = Play(plan({"a": [edge("b", on_failure="forward"), edge("c", on_failure="skip"), edge("d")]}))
    moves = play.fail("a")
    assert isinstance(moves.ended, t.TaskDeadLettered)
    assert play.ran == ["a"]


def test_siblings_are_stopped_and_the_task_ends_when_they_confirm():
    play = Play(plan({"a": ["b", "c", "d"]}))
    play.ok("a")
    c, d = play.find("c"), play.find("d")
    moves = play.fail("b")
    assert (moves.stop, moves.ended) == ([c.id, d.id], None)
    assert play.stopped("c").stop == []
    assert isinstance(play.ok("d", "ready all the same").ended, t.TaskDeadLettered)


def test_the_first_failure_is_the_one_that_is_named():
    play = Play(plan({"a": ["b", "c"]}))
    play.ok("a")
    play.fail("b", "first")
    play.fail("c", "second")
    assert isinstance(play.end, t.TaskDeadLettered)
    assert play.end.message.endswith("first")


def test_a_run_that_was_cancelled_alone_counts_as_failed():
    play = Play(plan({"a": ["b"]}))
    moves = play.stopped("a")
    assert isinstance(moves.ended, t.TaskDeadLettered)
    assert moves.ended.reason == "cancelled"


def test_a_failure_at_the_turn_limit_is_forwarded_to_nobody():
    graph = {"a": [edge("b", on_failure="forward")], "b": [edge("a", on_failure="forward")]}
    play = Play(plan(graph, max_turns=2))
    play.ok("a")
    assert isinstance(play.fail("b").ended, t.TaskSucceeded)
    assert play.branch_ends() == [("a/b", "turn_limit")]
    assert play.ran == ["a", "b"]


def test_a_long_error_is_cut_in_what_the_graph_keeps():
    play = Play(plan({"a": [edge("b", on_failure="skip"), "c"]}))
    play.fail("a", "x" * 10_000)
    assert isinstance(play.end, t.TaskDeadLettered)
    assert len(play.end.message) < 500


# --- joins, edge `fail`


def test_fail_to_a_join_of_all_dead_letters_the_task_at_once():
    play = fan_in("fail")
    moves = play.fail("c")
    assert moves.stop == [play.find("b").id]
    assert isinstance(play.stopped("b").ended, t.TaskDeadLettered)


def test_fail_to_a_join_of_all_is_final_although_the_agent_may_run_again():
    """`a` and `e` go round, so `c` will have another message; the round that misses this one is lost all the same."""
    graph = {"a": ["b", "c", "e"], "b": ["d"], "c": ["d"], "e": ["a"]}
    play = Play(plan(graph, entries=["a"], max_turns=9))
    play.ok("a")
    play.ok("e")
    play.fail("c", "no c")
    for sibling in list(play.running):
        play.stopped(sibling)
    assert isinstance(play.end, t.TaskDeadLettered)
    assert play.end.message.endswith("no c")


def test_fail_to_a_quorum_that_others_can_fill_is_left_to_the_join():
    play = fan_in("fail", quorum={"d": 1})
    assert play.fail("c").ended is None
    play.ok("b")
    assert play.running == ["d"]
    assert isinstance(play.ok("d").ended, t.TaskSucceeded)


def test_fail_to_a_quorum_that_nobody_can_fill_any_more_dead_letters_the_task():
    play = fan_in("fail", quorum={"d": 1})
    play.fail("b")
    moves = play.fail("c", "the last hope")
    assert isinstance(moves.ended, t.TaskDeadLettered)
    assert "the last hope" in moves.ended.message


def test_fail_to_a_round_that_has_started_changes_nothing():
    play = fan_in("fail", quorum={"d": 1})
    play.ok("b")
    play.ok("d")
    assert isinstance(play.fail("c").ended, t.TaskSucceeded)


def test_fail_to_a_join_that_skips_leaves_out_the_node():
    play = fan_in("fail", on_failure={"d": "skip"})
    assert play.fail("c", "no c").ended is None
    play.ok("b", "from b")
    (closed,) = play.of(t.JoinClosed)
    assert closed == t.JoinClosed("d", 1, "cannot_fill", "skip", ("c",))
    assert play.branch_ends() == [("a/c", "skipped"), ("b/d", "skipped")]
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {"b": "from b"}
    assert "d" not in play.ran


def test_fail_to_a_join_that_goes_on_with_a_part_starts_it_with_what_came():
    play = fan_in("fail", on_failure={"d": "continue_partial"})
    play.ok("b", "from b")
    play.fail("c")
    (closed,) = play.of(t.JoinClosed)
    assert closed.then == "continue_partial"
    assert [source.agent for source in play.find("d").sources] == ["b"]
    assert isinstance(play.ok("d").ended, t.TaskSucceeded)


# --- joins, edges `skip` and `forward`


@pytest.mark.parametrize(
    ("on_failure", "ended", "runs"),
    [
        ("deadletter", t.TaskDeadLettered, False),
        ("skip", t.TaskSucceeded, False),
        ("continue_partial", t.TaskSucceeded, True),
    ],
)
@pytest.mark.parametrize("order", ["bc", "cb"])
def test_skip_to_a_join_makes_the_agent_absent_and_the_join_decides(
    on_failure: Any, ended: type, runs: bool, order: str
):
    play = fan_in("skip", on_failure={"d": on_failure})
    for who in order:
        if who == "b":
            play.ok("b")
        else:
            play.fail("c", "no c")
    if runs:
        play.ok("d")
    assert isinstance(play.end, ended)
    assert ("d" in play.ran) == runs
    assert [closed.missing for closed in play.of(t.JoinClosed)] in ([("c",)], [("b", "c")])


def test_a_join_that_is_given_up_names_who_failed_and_why():
    play = fan_in("skip")
    play.ok("b")
    moves = play.fail("c", "no c")
    assert isinstance(moves.ended, t.TaskDeadLettered)
    assert moves.ended.reason == "join_cannot_fill"
    expected = "round 1 of the join of d was given up: nothing under way can bring c (failed: no c)"
    assert moves.ended.message == expected


@pytest.mark.parametrize(
    ("on_failure", "ended"),
    [("deadletter", t.TaskDeadLettered), ("skip", t.TaskSucceeded), ("continue_partial", t.TaskSucceeded)],
)
def test_a_join_to_which_nobody_comes_does_not_start_and_is_closed_all_the_same(on_failure: Any, ended: type):
    graph = {"a": ["b", "c"], "b": [edge("d", on_failure="skip")], "c": [edge("d", on_failure="skip")]}
    play = Play(plan(graph, on_failure={"d": on_failure}))
    play.ok("a")
    play.fail("b")
    play.fail("c")
    assert isinstance(play.end, ended)
    assert len(play.of(t.JoinClosed)) == 1
    assert "d" not in play.ran


@pytest.mark.parametrize("on_failure", ["skip", "continue_partial"])
def test_a_patient_join_to_which_nobody_comes_is_closed_once_and_the_task_says_why(on_failure: Any):
    play = Play(plan({"b": ["d"], "c": ["d"]}, on_failure={"d": on_failure}))
    play.fail("b", "no b")
    play.fail("c", "no c")
    assert play.of(t.JoinClosed) == [t.JoinClosed("d", 1, "cannot_fill", "skip", ("b", "c"))]
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.output.endswith("every branch was skipped (b failed: no b; c failed: no c).")


def test_forward_to_a_join_arrives_and_is_marked():
    play = fan_in("forward")
    play.fail("c", "no c")
    (joined,) = play.ok("b", "from b").activate
    assert [(s.agent, s.payload, s.failed) for s in joined.sources] == [("b", "from b", False), ("c", "no c", True)]
    assert joined.payload == "## b\n\nfrom b\n\n## c (failed)\n\nno c"


def test_a_forwarded_failure_that_ends_at_a_skipped_join_is_no_output():
    graph = {"a": ["b", "c"], "b": [edge("d", on_failure="forward")], "c": [edge("d", on_failure="skip")]}
    play = Play(plan(graph, on_failure={"d": "skip"}))
    play.ok("a")
    play.fail("b")
    play.fail("c")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {}


# --- joins that cannot fill


def test_a_join_that_waits_for_a_condition_that_did_not_hold_is_given_up():
    graph = {"a": ["b", edge("c", {"go": "c"})], "b": ["d"], "c": ["d"]}
    play = Play(plan(graph))
    play.ok("a")
    assert isinstance(play.ok("b").ended, t.TaskDeadLettered)


def test_a_join_waits_as_long_as_anything_under_way_can_reach_a_missing_agent():
    graph = {"a": ["b", "x"], "x": ["y"], "y": [edge("c", {"go": "c"}), "z"], "b": ["d"], "c": ["d"]}
    play = Play(plan(graph, on_failure={"d": "continue_partial"}))
    play.ok("a")
    play.ok("b")
    play.ok("x")
    assert play.of(t.JoinClosed) == []
    play.ok("y")
    assert len(play.of(t.JoinClosed)) == 1, "z runs, and cannot reach c"
    assert play.running == ["z", "d"]


def test_a_join_behind_a_join_that_is_skipped_is_closed_too():
    graph = {"a": ["b", "c", "e"], "b": ["j"], "c": [edge("j", on_failure="skip")], "j": ["k"], "e": ["k"]}
    play = Play(plan(graph, on_failure={"j": "skip", "k": "continue_partial"}))
    play.ok("a")
    play.ok("b")
    play.ok("e", "from e")
    play.fail("c")
    assert [(closed.node, closed.then) for closed in play.of(t.JoinClosed)] == [
        ("j", "skip"),
        ("k", "continue_partial"),
    ]
    assert play.find("k").payload == "from e"


def test_a_join_behind_one_that_goes_on_with_a_part_is_not_given_up():
    graph = {"e": ["k"], "j": ["k"], "b": ["j"], "c": [edge("j", on_failure="skip")]}
    play = Play(plan(graph, on_failure={"j": "continue_partial"}))
    play.ok("e")
    play.ok("b")
    play.fail("c")
    play.ok("j")
    assert play.running == ["k"]


def test_joins_that_wait_for_each_other_do_not_wait_for_ever():
    graph = {"a": ["j", "k"], "j": ["k", "x"], "k": ["j"]}
    play = Play(plan(graph, entries=["a"], max_turns=9))
    moves = play.ok("a")
    assert isinstance(moves.ended, t.TaskDeadLettered)
    assert "nothing under way can bring" in moves.ended.message


def test_joins_that_wait_for_each_other_and_take_a_part_start_the_first():
    graph = {"a": ["j", "k"], "j": ["k"], "k": ["j"]}
    play = Play(plan(graph, entries=["a"], max_turns=4, on_failure={"j": "continue_partial", "k": "continue_partial"}))
    play.ok("a")
    assert play.running == ["j"]
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)


def test_a_strict_join_is_not_given_up_while_others_can_go_on_with_a_part():
    """`s` stands first in the graph and needs `j`, which hangs on `k`, which hangs on `j`."""
    graph = {"s": ["z"], "a": ["s", "j", "k"], "j": ["k", "s"], "k": ["j"]}
    play = Play(plan(graph, entries=["a"], max_turns=4, on_failure={"j": "continue_partial", "k": "continue_partial"}))
    play.ok("a")
    assert play.running == ["j"]
    play.ok("j")
    assert "s" in play.running


def test_a_join_that_waits_for_itself_is_given_up():
    play = Play(plan({"a": ["b"], "b": ["b"]}, max_turns=5))
    assert isinstance(play.ok("a").ended, t.TaskDeadLettered)


def test_a_failure_and_a_join_that_gives_up_at_once_start_nothing():
    """c forwards its failure to x, but d needs c: x was sent in the same move and never starts."""
    graph = {"a": ["b", "c"], "b": ["d"], "c": [edge("x", on_failure="forward"), edge("d", on_failure="skip")]}
    play = Play(plan(graph))
    play.ok("a")
    play.ok("b")
    moves = play.fail("c")
    assert (moves.activate, moves.stop) == ([], [])
    assert isinstance(moves.ended, t.TaskDeadLettered)
    (ended,) = [fact for fact in moves.facts[1:] if isinstance(fact, t.MessageEnded)]
    assert (ended.message_id, ended.outcome, ended.reason) == ("ns/job/a001/h003/c/x", "cancelled", "not_started")


# --- the turn limit and joins


def test_a_round_that_lacks_what_the_turn_limit_cut_off_ends_well():
    graph = {"a": ["b", "c"], "b": ["d"], "c": ["e"], "e": ["d"]}
    play = Play(plan(graph, max_turns=3))
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {"b": "b2", "e": "e3"}
    assert [closed.then for closed in play.of(t.JoinClosed)] == ["skip"]
    assert play.branch_ends() == [("c/e", "turn_limit"), ("b/d", "turn_limit")]


def test_a_turn_limit_elsewhere_is_no_excuse():
    graph = {"a": ["b", "c", "x"], "b": ["d"], "c": [edge("d", {"go": "d"})], "x": ["y"], "y": ["x2"], "x2": ["x3"]}
    play = Play(plan(graph, max_turns=3))
    play.ok("a")
    play.ok("x")
    play.ok("y")
    play.ok("b")
    play.ok("c")
    assert isinstance(play.end, t.TaskDeadLettered)


# --- time-outs


def waits(on_failure: Any) -> Play:
    play = fan_in("fail", on_failure={"d": on_failure}, timeout={"d": 60})
    moves = play.give(t.MessageEnded(play.find("b").id, "succeeded", output="from b"), at=1000)
    assert moves.timer == 1060
    return play


def test_a_timer_that_goes_off_too_early_changes_nothing():
    play = waits("skip")
    moves = play.give(t.TimerWentOff(), at=1059)
    assert (moves.facts, moves.timer) == ([t.TimerWentOff()], 1060)


def test_a_timeout_that_dead_letters_stops_who_still_runs():
    play = waits("deadletter")
    moves = play.give(t.TimerWentOff(), at=1060)
    assert moves.stop == [play.find("c").id]
    assert moves.timer is None
    play.stopped("c")
    assert isinstance(play.end, t.TaskDeadLettered)
    assert play.end.reason == "join_timeout"
    assert play.end.message == "round 1 of the join of d was given up: it waited too long for c"


def test_a_timeout_that_skips_makes_the_rest_late():
    play = waits("skip")
    moves = play.give(t.TimerWentOff(), at=1060)
    assert (moves.stop, moves.ended) == ([], None)
    play.ok("c")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {"b": "from b"}
    assert play.branch_ends() == [("b/d", "skipped"), ("c/d", "late")]


def test_a_timeout_that_goes_on_with_a_part_starts_the_node():
    play = waits("continue_partial")
    (joined,) = play.give(t.TimerWentOff(), at=1060).activate
    assert (joined.to, joined.payload) == ("d", "from b")
    play.ok("d")
    play.ok("c")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {"d": "d3"}


def test_an_absence_alone_can_time_out_and_the_node_does_not_start():
    play = fan_in("skip", on_failure={"d": "continue_partial"}, timeout={"d": 5})
    moves = play.fail("c")
    assert moves.timer == play.now + 5
    play.give(t.TimerWentOff(), at=play.now + 5)
    assert play.of(t.JoinClosed) == [t.JoinClosed("d", 1, "timeout", "skip", ("b", "c"))]
    play.ok("b")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.ran == ["a", "b", "c"]


def test_a_task_that_is_ending_needs_no_timer():
    graph = {"a": ["b", "c", "x", "y"], "b": ["d"], "c": ["d"]}
    play = Play(plan(graph, timeout={"d": 60}))
    play.ok("a")
    assert play.ok("b").timer is not None
    assert play.fail("x").timer is None
    assert play.stopped("y").timer is None
    assert play.stopped("c").timer is None
    assert isinstance(play.end, t.TaskDeadLettered)


def test_a_round_that_fills_needs_no_timer():
    play = waits("deadletter")
    assert play.ok("c").timer is None
