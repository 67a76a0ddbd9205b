"""Inputs to a run outside of sessions: each mode does what it says, in the order of arrival."""

from __future__ import annotations

from foliot.kernel.run.actions import Await, CallTools
from foliot.kernel.run.events import (
    EQUALITY,
    InputMode,
    InputReceived,
    ModelFailed,
    ModelResponded,
    RunSucceeded,
    StepStarted,
    ToolUnknown,
)
from foliot.kernel.run.loop import is_interrupted
from tests.kernel.play import Play, asks, says, spec, user


def told(play: Play, *words: tuple[str, InputMode]) -> None:
    for number, (text, mode) in enumerate(words, 1):
        play.record(InputReceived(f"i{number}", user(text), mode, arrival=number))


def last_of(play: Play) -> list[str]:
    return [asked.request.messages[-1].text for asked in play.asked]


def beginning(*answers: object) -> Play:
    play = Play(spec(), answers, equality=EQUALITY)  # type: ignore[arg-type]
    play.record(StepStarted(1))
    return play


def test_three_followups_are_three_turns_oldest_first() -> None:
    play = beginning(says("1"), says("2"), says("3"))
    told(play, ("a", "followup"), ("b", "queue"), ("c", "followup"))
    play.record(ModelResponded(1, says("0")))
    play.run()
    assert last_of(play) == ["a", "b", "c"]
    assert play.state.ended.output == "3"  # type: ignore[union-attr]
    assert play.state.taken == ["i1", "i2", "i3"]


def test_what_was_collected_is_one_turn() -> None:
    play = beginning(says("1"), says("2"))
    told(play, ("a", "collect"), ("b", "followup"), ("c", "collect"))
    play.record(ModelResponded(1, says("0")))
    play.run()
    assert [message.text for message in play.asked[0].request.messages[-2:]] == ["a", "c"]
    assert last_of(play)[1] == "b"


def test_the_order_is_that_of_arrival_and_not_that_in_which_they_were_heard() -> None:
    play = beginning(says("1"), says("2"))
    play.record(InputReceived("late", user("second"), "followup", arrival=2))
    play.record(InputReceived("early", user("first"), "followup", arrival=1))
    play.record(ModelResponded(1, says("0")))
    play.run()
    assert last_of(play) == ["first", "second"]


def test_a_backlog_is_heard_at_the_boundary_and_has_a_turn_of_its_own() -> None:
    play = beginning(says("1"), says("2"))
    told(play, ("mind the cost", "steer-backlog"))
    play.record(ModelResponded(1, asks(("a", "look"))))
    play.run()
    assert last_of(play) == ["mind the cost", "mind the cost"]
    assert play.state.taken == ["i1"]


def test_an_interrupt_ends_the_answer_that_is_being_written() -> None:
    play = beginning(says("done"))
    told(play, ("stop", "interrupt"))
    assert is_interrupted(play.state)
    play.record(ModelFailed(1, "interrupted", "someone interrupted the answer"))
    play.run()
    assert last_of(play) == ["stop"]
    assert isinstance(play.state.ended, RunSucceeded)


def test_an_interrupt_stops_the_calls_under_way_and_the_model_is_told() -> None:
    play = beginning(says("done"))
    play.record(ModelResponded(1, asks(("a", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started())
    told(play, ("stop", "interrupt"))
    assert play.next() == Await(calls=("a",), stop=True)
    play.record(ToolUnknown("a", "interrupted", "pay was under way"))
    play.run()
    assert play.results()[0].error.code == "interrupted"  # type: ignore[union-attr]
    assert "may have taken effect" in play.results()[0].error.message  # type: ignore[union-attr]
    assert play.started == []


def test_an_interrupt_gives_up_calls_that_only_read_at_once() -> None:
    play = beginning(says("done"))
    play.record(ModelResponded(1, asks(("a", "look"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started())
    told(play, ("stop", "interrupt"))
    play.run()
    assert play.results()[0].error.code == "interrupted"  # type: ignore[union-attr]
    assert last_of(play) == ["stop"]


def test_older_journals_are_folded_as_they_were_written() -> None:
    play = Play(spec(), [says("both")])
    play.record(StepStarted(1))
    told(play, ("a", "followup"), ("b", "followup"))
    play.record(ModelResponded(1, says("0")))
    play.run()
    assert len(play.asked) == 1
