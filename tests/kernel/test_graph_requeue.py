"""Cancelling a task, requeueing it, and why it is where it is."""

from __future__ import annotations

import pytest

from foliot.kernel.errors import IllegalEvent, Unencodable, UnknownEvent
from foliot.kernel.graph import events as t
from foliot.kernel.graph.advance import GraphState, decode_state, encode_state, explain, new_state
from tests.kernel.graph_play import Play, edge, plan

FAN_IN = {"a": ["b", "c"], "b": ["d"], "c": ["d"]}


def started(graph: dict[str, list[str]] | None = None) -> Play:
    play = Play(plan(graph or FAN_IN))  # pyright: ignore[reportArgumentType] - a list of names is a list of targets
    play.ok("a")
    return play


# --- cancel


def test_a_task_is_cancelled_when_everything_under_way_has_confirmed():
    play = started()
    b, c = play.find("b").id, play.find("c").id
    moves = play.give(t.TaskCancelRequested("ann", "too slow"))
    assert (moves.stop, moves.ended) == ([b, c], None)
    assert play.stopped("b").ended is None
    ended = play.stopped("c").ended
    assert isinstance(ended, t.TaskCancelled)
    assert (ended.by, ended.reason) == ("ann", "too slow")


def test_what_finishes_while_the_task_is_cancelled_is_not_handed_on():
    play = started()
    play.give(t.TaskCancelRequested())
    assert play.ok("b").activate == []
    assert isinstance(play.fail("c").ended, t.TaskCancelled)


def test_asking_twice_names_what_must_stop_again():
    play = started()
    first = play.give(t.TaskCancelRequested("ann"))
    second = play.give(t.TaskCancelRequested("bob"))
    assert first.stop == second.stop
    play.stopped("b")
    ended = play.stopped("c").ended
    assert isinstance(ended, t.TaskCancelled)
    assert ended.by == "ann"


def test_a_task_that_is_failing_is_not_cancelled_any_more():
    play = started()
    play.fail("b")
    moves = play.give(t.TaskCancelRequested("ann"))
    assert moves.stop == [play.find("c").id]
    assert isinstance(play.stopped("c").ended, t.TaskDeadLettered)


# --- requeue


def test_a_requeued_task_goes_on_behind_what_had_succeeded():
    play = Play(plan({"a": ["b"], "b": ["c"]}))
    play.ok("a", "kept")
    play.fail("b")
    (again,) = play.give(t.TaskRequeued(2, "ann")).activate
    assert (again.id, again.replaces) == ("ns/job/a002/h002/a/b", "ns/job/a001/h002/a/b")
    assert (again.payload, again.attempt, again.turns, again.hop) == ("kept", 2, 2, 2)
    play.ok("b")
    assert play.find("c").id == "ns/job/a002/h003/b/c"
    assert isinstance(play.ok("c").ended, t.TaskSucceeded)
    assert play.ran == ["a", "b", "b", "c"]


def test_the_payload_of_a_failed_message_can_be_edited():
    play = Play(plan({"a": []}))
    failed = play.find("a").id
    play.fail("a")
    (again,) = play.give(t.TaskRequeued(2, payloads={failed: "better"})).activate
    assert again.payload == "better"


def test_what_waited_at_a_join_still_waits_there_after_a_requeue():
    play = started()
    play.ok("b", "from b")
    play.fail("c")
    assert isinstance(play.end, t.TaskDeadLettered)
    play.give(t.TaskRequeued(2))
    assert play.running == ["c"]
    (joined,) = play.ok("c", "from c").activate
    assert joined.id == "ns/job/a002/h003/join/d"
    assert [source.payload for source in joined.sources] == ["from b", "from c"]
    assert isinstance(play.ok("d").ended, t.TaskSucceeded)


def test_what_succeeded_while_the_task_was_ending_is_handed_on_after_a_requeue():
    play = started()
    play.fail("c")
    play.ok("b", "just in time")
    assert isinstance(play.end, t.TaskDeadLettered)
    play.give(t.TaskRequeued(2))
    assert play.running == ["c"]
    assert [m.id for m in play.state.joins["d"][1].waiting] == ["ns/job/a002/h003/b/d"]
    play.ok("c")
    assert play.find("d").sources[0].payload == "just in time"


def test_a_sibling_that_was_stopped_is_sent_again():
    play = started()
    play.fail("c")
    play.stopped("b")
    play.give(t.TaskRequeued(2))
    assert sorted(play.running) == ["b", "c"]
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)


def test_a_cancelled_task_can_be_requeued():
    play = started()
    play.give(t.TaskCancelRequested())
    play.stopped("b")
    play.stopped("c")
    play.give(t.TaskRequeued(2))
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)


def test_a_join_that_was_given_up_opens_again_and_its_absent_agent_has_another_chance():
    graph = {"a": ["b", "c"], "b": ["d"], "c": [edge("d", on_failure="skip")]}
    play = Play(plan(graph, timeout={"d": 60}))
    play.ok("a")
    play.ok("b")
    play.fail("c")
    assert isinstance(play.end, t.TaskDeadLettered)
    moves = play.give(t.TaskRequeued(2), at=5000)
    assert (play.running, moves.timer) == (["c"], 5060)
    assert "d waits for c (round 1: 1 of 2 have arrived)" in [r.text for r in explain(play.plan, play.state)]
    play.ok("c")
    assert isinstance(play.ok("d").ended, t.TaskSucceeded)


def test_a_failure_that_the_graph_went_on_without_is_not_repaired():
    graph = {"a": ["b", "c"], "b": ["d"], "c": [edge("d", on_failure="skip")], "d": ["e"]}
    play = Play(plan(graph, on_failure={"d": "continue_partial"}))
    play.ok("a")
    play.ok("b")
    play.fail("c")
    play.ok("d")
    play.fail("e")
    play.give(t.TaskRequeued(2))
    assert play.running == ["e"], "d has gone on without c"


def test_a_failure_that_was_forwarded_is_not_sent_again():
    graph = {"a": [edge("b", on_failure="forward")], "b": ["c"]}
    play = Play(plan(graph))
    play.fail("a")
    play.fail("b")
    play.give(t.TaskRequeued(2))
    assert play.running == ["b"]
    assert play.find("b").failed


def test_a_failure_that_was_forwarded_stays_so_when_no_join_wants_it_any_more():
    graph = {
        "a": ["b", "c"],
        "b": ["d"],
        "c": [edge("x", on_failure="forward"), edge("d", on_failure="skip")],
        "d": ["e"],
    }
    play = Play(plan(graph, on_failure={"d": "continue_partial"}))
    for agent in ("a", "b"):
        play.ok(agent)
    play.fail("c")
    play.ok("x")
    play.ok("d")
    play.fail("e")
    play.give(t.TaskRequeued(2))
    assert play.running == ["e"]


def test_a_failure_that_was_forwarded_is_sent_again_when_a_join_still_wants_it():
    graph = {"a": ["b", "c"], "b": ["d"], "c": [edge("x", on_failure="forward"), edge("d", on_failure="skip")]}
    play = Play(plan(graph))
    play.ok("a")
    play.fail("c")
    assert isinstance(play.stopped("b").ended, t.TaskDeadLettered)
    play.give(t.TaskRequeued(2))
    assert sorted(play.running) == ["b", "c", "x"]
    assert play.find("x").failed
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.ran.count("d") == 1
    assert play.ran.count("x") == 1, "it was told of the failure, and hears nothing more of it"


def test_what_a_failed_message_would_have_brought_to_others_is_made_up_for():
    """c told f and e of its failure and left out d, without which e cannot start."""
    told = ["f", "e"]
    graph = {"c": [*(edge(name, on_failure="forward") for name in told), edge("d", on_failure="skip")], "d": ["e"]}
    play = Play(plan(graph))
    assert isinstance(play.fail("c", "no c").ended, t.TaskDeadLettered)
    play.give(t.TaskRequeued(2))
    assert play.find("c").told == ("f", "e")
    play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)
    joined = next(message for message in play.activated if message.to == "e")
    assert [(source.agent, source.failed) for source in joined.sources] == [("c", True), ("d", False)]
    assert set(play.end.outputs) == {"e", "f"}


def test_a_message_of_a_join_is_sent_again_with_its_sources():
    play = started()
    play.ok("b")
    play.ok("c")
    before = play.find("d")
    play.fail("d")
    (again,) = play.give(t.TaskRequeued(2)).activate
    assert (again.sources, again.round, again.id) == (before.sources, 1, "ns/job/a002/h003/join/d")
    assert isinstance(play.ok("d").ended, t.TaskSucceeded)


def test_an_edited_message_of_a_join_says_what_was_edited():
    play = started()
    play.ok("b")
    play.ok("c")
    failed = play.find("d").id
    play.fail("d")
    (again,) = play.give(t.TaskRequeued(2, payloads={failed: "shorter"})).activate
    assert (again.payload, again.sources, again.sender, again.round) == ("shorter", (), "join", 1)
    assert isinstance(play.ok("d").ended, t.TaskSucceeded)


def test_a_task_that_ran_out_of_messages_goes_on_with_the_next_ones():
    play = Play(plan({"a": ["b"], "b": ["a"]}, max_messages=3, max_turns=5))
    play.all_ok()
    assert isinstance(play.end, t.TaskFailed)
    play.give(t.TaskRequeued(2))
    assert play.all_ok()
    assert isinstance(play.end, t.TaskSucceeded)
    assert [m.turns for m in play.activated] == [1, 2, 3, 4, 5]


def test_outputs_from_before_a_requeue_are_part_of_the_result():
    play = Play(plan({"a": ["b", "c"]}))
    play.ok("a")
    play.ok("b", "old")
    play.fail("c")
    play.give(t.TaskRequeued(2))
    play.ok("c", "new")
    assert isinstance(play.end, t.TaskSucceeded)
    assert play.end.outputs == {"b": "old", "c": "new"}


def test_a_task_can_be_requeued_again_and_again():
    play = Play(plan({"a": []}))
    for attempt in (2, 3, 4):
        play.fail("a")
        play.give(t.TaskRequeued(attempt))
    assert play.find("a").id == "ns/job/a004/h001/system/a"
    assert play.find("a").replaces == "ns/job/a003/h001/system/a"


@pytest.mark.parametrize(
    ("fact", "complaint"),
    [
        (t.TaskRequeued(3), "attempt 3 of task ns/job cannot follow attempt 1"),
        (t.TaskRequeued(1), "cannot follow"),
        (t.TaskRequeued(2, payloads={"x": "y"}), "'x' did not fail"),
    ],
)
def test_a_requeue_that_does_not_fit_is_refused(fact: t.TaskEvent, complaint: str):
    play = Play(plan({"a": []}))
    play.fail("a")
    before = encode_state(play.state)
    with pytest.raises(IllegalEvent, match=complaint):
        play.give(fact)
    assert encode_state(play.state) == before


def test_a_task_that_succeeded_is_not_requeued():
    play = Play(plan({"a": []}))
    play.ok("a")
    with pytest.raises(IllegalEvent, match="succeeded"):
        play.give(t.TaskRequeued(2))


# --- why


def test_a_running_task_says_who_works_and_which_join_waits_for_whom():
    play = started()
    play.ok("b")
    running, waiting = explain(play.plan, play.state)
    assert (running.kind, running.node, running.message_id) == ("running", "c", play.find("c").id)
    assert running.text == "c is at work on what a sent"
    assert (waiting.kind, waiting.node, waiting.missing, waiting.came) == ("join", "d", ("c",), ("b",))
    assert waiting.since == play.now
    assert waiting.text == "d waits for c (round 1: 1 of 2 have arrived)"


def test_a_running_agent_is_named_with_what_it_works_on():
    play = Play(plan(FAN_IN))
    assert [reason.text for reason in explain(play.plan, play.state)] == ["a is at work on the task"]
    for agent in ("a", "b", "c"):
        play.ok(agent)
    assert [reason.text for reason in explain(play.plan, play.state)] == ["d is at work on what b, c sent"]


def test_a_task_that_ends_says_what_it_waits_for():
    play = started()
    play.give(t.TaskCancelRequested("ann", "too slow"))
    assert [reason.text for reason in explain(play.plan, play.state)] == [
        "the task will be cancelled by ann when what runs has stopped: too slow",
        "b has been told to stop and has not confirmed it",
        "c has been told to stop and has not confirmed it",
    ]


def test_a_dead_lettered_task_says_why_and_what_a_requeue_would_do():
    play = started()
    play.fail("c", "no key")
    play.ok("b")
    assert [(reason.kind, reason.text) for reason in explain(play.plan, play.state)] == [
        (
            "ended",
            "the task was dead-lettered: message ns/job/a001/h002/a/c dead-lettered after 1 attempt: no key",
        ),
        ("failed", "c did not finish: no key; a retry sends its message again"),
        ("withheld", "b is done; a retry hands its answer to d"),
    ]


def test_every_other_state_has_its_reason():
    assert [reason.kind for reason in explain(plan({"a": []}), new_state())] == ["new"]
    play = Play(plan({"a": []}))
    play.ok("a")
    assert [reason.text for reason in explain(play.plan, play.state)] == ["the task has succeeded"]
    play = Play(plan({"a": ["b"], "b": ["a"]}, max_messages=1))
    play.ok("a")
    assert explain(play.plan, play.state)[0].text.startswith("the task has failed: the task has sent 1 messages")


# --- bytes


def test_what_is_no_state_is_refused():
    for data in (b"", b"\xff", b"[]"):
        with pytest.raises(UnknownEvent, match="not the state"):
            decode_state(data)
    with pytest.raises(Unencodable):
        encode_state(GraphState(text="\ud800"))
    with pytest.raises(UnknownEvent, match="version 99"):
        decode_state(encode_state(GraphState(v=99)))
