"""Inputs to a run outside of sessions: each mode does what it says, in the order of arrival."""

from __future__ import annotations

from foliot.kernel.run.actions import Await, CallTools, Wait
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import (
    EQUALITY,
    InputMode,
    InputReceived,
    ModelFailed,
    ModelResponded,
    RunResumed,
    RunSucceeded,
    StepStarted,
    ToolUnknown,
)
from foliot.kernel.run.loop import is_interrupted
from tests.kernel.play import START, Play, asks, says, spec, user


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
    assert play.state.taken == ("i1", "i2", "i3")


def test_what_was_collected_is_one_turn() -> None:
    play = beginning(says("1"), says("2"))
    told(play, ("a", "collect"), ("b", "followup"), ("c", "collect"))
    play.record(ModelResponded(1, says("0")))
    play.run()
    assert [message.text for message in play.asked[0].request.messages[-2:]] == ["a", "c"]
    assert last_of(play)[1] == "b"


def collecting(*said_at: float, debounce: float = 60.0) -> Play:
    """Returns a run that would end, and to which this was said: `i1` and so on."""
    play = beginning(says("together"), says("then"))
    play.record(ModelResponded(1, says("0")))
    for number, at in enumerate(said_at, 1):
        collect(play, number, at, debounce)
    return play


def collect(play: Play, number: int, at: float, debounce: float = 60.0) -> None:
    said = InputReceived(f"i{number}", user(f"word {number}"), "collect", arrival=number, said_at=at, debounce=debounce)
    play.record(said)


def silence(play: Play) -> float:
    action = play.run()
    assert isinstance(action, Wait), action
    assert action.waiting.reason == "collecting"
    assert action.waiting.until is not None
    return action.waiting.until


def test_what_is_collected_waits_for_a_silence_and_what_is_said_in_it_is_answered_with_it() -> None:
    at = START + 3
    play = collecting(at)
    assert silence(play) == at + 60
    play.now = at + 50
    collect(play, 2, at + 50)
    assert silence(play) == at + 110
    assert not play.asked
    play.crash()
    play.now = at + 110
    play.record(RunResumed("timer"))
    play.run()
    assert [message.text for message in play.asked[0].request.messages[-2:]] == ["word 1", "word 2"]
    assert play.state.taken == ("i1", "i2")
    assert play.state.ended.output == "together"  # type: ignore[union-attr]


def test_who_never_falls_silent_is_answered_after_ten_pauses() -> None:
    play = collecting(START)
    for number in range(2, 30):
        play.now = START + 50 * number
        collect(play, number, play.now)
        if play.now >= START + 600:
            break
        assert silence(play) <= START + 600
    play.run()
    assert len(play.asked) == 1


def test_what_is_said_in_another_mode_ends_the_silence_and_comes_after_what_was_collected() -> None:
    play = collecting(START + 3)
    silence(play)
    play.record(InputReceived("i2", user("and this"), "followup", arrival=2))
    play.run()
    assert last_of(play) == ["word 1", "and this"]


def test_what_was_collected_long_before_the_end_is_answered_at_once() -> None:
    play = collecting(START - 60)
    play.run()
    assert last_of(play) == ["word 1"]


def test_a_clock_that_is_ahead_makes_nobody_wait_longer() -> None:
    play = collecting(START + 1e9)
    assert silence(play) <= play.now + 60


def test_a_time_limit_leaves_no_silence_that_ends_after_it() -> None:
    play = Play(spec(limits=Limits(max_seconds=30)), [says("in time")], equality=EQUALITY)
    play.record(StepStarted(1), ModelResponded(1, says("0")))
    collect(play, 1, play.now)
    play.run()
    assert last_of(play) == ["word 1"]


def test_a_silence_does_not_use_up_the_time_of_a_run() -> None:
    play = Play(spec(limits=Limits(max_seconds=90)), [says("in time")], equality=EQUALITY)
    play.record(StepStarted(1), ModelResponded(1, says("0")))
    collect(play, 1, play.now)
    until, before = silence(play), play.state.deadline
    play.now = until
    play.record(RunResumed("timer"))
    assert before is not None
    assert play.state.deadline is not None
    assert play.state.deadline > before + 50


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
    assert play.state.taken == ("i1",)


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
