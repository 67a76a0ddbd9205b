"""A run told in lines while it happens."""

from __future__ import annotations

from foliot.cli.show.run import RunStory
from foliot.engine.live.hub import Recorded
from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall, ToolResult
from foliot.kernel.run import events as e
from foliot.kernel.run import feedback


def told(*events: e.Event) -> list[str]:
    story = RunStory(lambda: 0.0)
    lines = [
        line
        for seq, event in enumerate(events, 1)
        for line in story.take(Recorded("r1", seq, 100.0 + seq, event), answer=True)
    ]
    return [f"{line.text}  {line.detail}".rstrip() for line in lines]


def test_a_model_that_fails_for_a_while_says_when_it_is_asked_again() -> None:
    lines = told(
        e.RunClaimed(1, "w1", 1),
        e.StepStarted(1),
        e.ModelFailed(1, "overloaded", "busy", retryable=True),
        e.RunWaiting("model_retry", "timer", until=106.5, message="the model failed 1 times; it is asked again later"),
        e.RunClaimed(2, "w1", 2),
        e.StepStarted(1),
    )

    assert lines == ["step 1", "the model failed (overloaded)  busy", "waits: the model is asked again in 2.5s"]


def test_a_program_in_the_place_of_a_model_fails_as_a_program() -> None:
    assert told(e.StepStarted(1), e.ModelFailed(1, "program", "no"))[1:] == ["the program failed  no"]


def test_a_call_without_an_id_is_shown_with_its_arguments() -> None:
    answer = ModelResponse(Message("assistant", (Text("Look."), ToolCall("", "look", '{"at": 1}'))))
    lines = told(e.ModelResponded(1, answer, 0.5), e.ToolFinished(ToolResult("call_1_1", "look", (Text("ok"),))))
    assert "look at=1" in lines


def test_what_is_noted_of_answers_is_told_once() -> None:
    note = "backup answered in place of main (rate_limit)"
    answer = ModelResponse(Message("assistant", (Text("done"),)), notes=(note,))

    lines = told(e.StepStarted(1), e.ModelResponded(1, answer, 0.5), e.StepStarted(2), e.ModelResponded(2, answer, 0.5))

    assert lines.count(note) == 1


def test_whoever_takes_a_run_over_from_a_dead_process_says_so() -> None:
    assert told(e.RunClaimed(1, "w1", 1), e.StepStarted(1), e.RunClaimed(2, "w2", 2)) == [
        "step 1",
        "attempt 2 takes over",
    ]


def test_a_run_that_waits_says_for_what() -> None:
    assert told(e.RunWaiting("approval", "person", message="pay needs an approval")) == ["waits: pay needs an approval"]


def test_what_is_asked_is_said_once() -> None:
    lines = told(
        e.QuestionAsked("c1", "q1", "Which colour?"),
        e.RunWaiting("input", "person", ("c1",), message="Which colour?"),
        e.RunClaimed(2, "w1", 2),
        e.RunWaiting("unknown_effect", "person", ("c2",), message="did pay take effect?"),
    )

    assert lines == ["asks: Which colour?", "waits: did pay take effect?"]


def test_a_call_that_may_have_acted_is_told_once() -> None:
    lost = e.ToolFinished(feedback.not_run("c1", "pay", "cancelled", started=True, unknown="cancelled").result)
    lines = told(e.ToolStarted("c1", "pay", "k"), e.ToolUnknown("c1", "cancelled", "pay was under way"), lost)
    assert lines == ["pay  nobody knows whether it took effect", "pay was under way"]
