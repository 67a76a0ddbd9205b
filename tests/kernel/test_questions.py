"""A call that asks a person: parked as one that needs an approval, and what is said is its result."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import Usage
from foliot.kernel.run.actions import Wait
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    InputReceived,
    ModelResponded,
    QuestionAnswered,
    QuestionAsked,
    RunResumed,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    ToolFinished,
)
from foliot.kernel.run.state import owner_of
from tests.kernel.play import Play, asks, result, says, spec, user


def asking(*, approved: bool = True, **question: object) -> Play:
    """A step of one ordinary call and one that asks, after an approval if `approved` is False."""
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "pay"))))

    def act(call):
        if call.name != "pay":
            return ToolFinished(result(call))
        if call.grant is None and not approved:
            return ApprovalRequested(call.call_id, "ap", "pay", "d")
        return QuestionAsked(call.call_id, "pay", "Which account?", **question)

    play.tool = act
    return play


def test_the_run_waits_for_a_person_while_the_siblings_of_the_call_go_on():
    play = asking()
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting == RunWaiting("input", "person", ("b",), None, "Which account?")
    assert owner_of(play.state).kind == "person"
    assert [call.call_id for call in play.started] == ["a"]
    assert play.run() == Wait(action.waiting), "it waits without recording it twice"


def test_the_answer_is_the_result_and_the_model_is_not_asked_again():
    play = asking()
    play.run()
    play.record(QuestionAnswered("b", "the second", by="ann"))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.results()[1].text == "the second"
    assert play.results()[1].error is None
    assert len(play.asked) == 1
    assert play.all(RunResumed) == [RunResumed("input")]


def test_the_answer_outlives_two_workers():
    play = asking()
    play.run()
    play.crash()
    play.record(QuestionAnswered("b", "the second", by="ann"))
    play.crash()
    play.run()
    assert play.results()[1].text == "the second"
    assert [call.call_id for call in play.started] == ["a"]


def test_asking_counts_as_a_call_although_nothing_is_started():
    play = asking()
    play.run()
    assert play.state.spent.tool_calls == 2


def test_a_question_that_nobody_answers_in_time_takes_its_default_and_the_model_is_told():
    play = asking(default="the first", expires_at=2000.0)
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.until == 2000.0
    play.now = 2000.0 - play.tick
    play.record(RunResumed("timer"))
    play.run()
    assert play.all(QuestionAnswered) == [QuestionAnswered("b", "the first", by="timer", late=True)]
    assert "Nobody answered in time" in play.results()[1].text
    assert play.results()[1].text.endswith("the first")


def test_without_a_default_it_is_a_timeout_that_the_model_hears_of():
    play = asking(expires_at=2000.0)
    play.run()
    play.now = 2000.0 - play.tick
    play.record(RunResumed("timer"))
    play.run()
    error = play.results()[1].error
    assert error is not None
    assert (error.code, error.reason, error.kind) == ("timeout", "question_expired", "timeout")
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_timer_that_goes_off_early_leaves_the_run_waiting():
    play = asking(expires_at=2000.0)
    play.run()
    play.record(RunResumed("timer"))
    assert isinstance(play.run(), Wait)
    assert play.all(QuestionAnswered) == []


def test_a_question_that_needs_an_approval_is_asked_after_it():
    play = asking(approved=False)
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.reason == "approval"
    play.record(ApprovalDecided("b", "approve", by="ann"))
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.reason == "input"
    play.record(QuestionAnswered("b", "yes"))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_beside_a_call_that_needs_an_approval_the_question_can_be_answered_first():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"), ("b", "save"))))
    play.tool = lambda call: (
        ToolFinished(result(call))
        if call.grant
        else ApprovalRequested(call.call_id, "ap", "pay", "d")
        if call.name == "pay"
        else QuestionAsked(call.call_id, "save", "Where?")
    )
    action = play.run()
    assert isinstance(action, Wait)
    assert (action.waiting.reason, action.waiting.calls) == ("approval", ("a", "b"))
    play.record(QuestionAnswered("b", "here"))
    assert isinstance(play.run(), Wait)
    play.record(ApprovalDecided("a", "approve"))
    play.run()
    assert play.results()[1].text == "here"
    assert isinstance(play.state.ended, RunSucceeded)


def test_cancelling_the_run_withdraws_the_question():
    play = asking()
    play.run()
    play.record(CancelRequested("ann"))
    play.run()
    assert play.results()[1].error.code == "cancelled"


def test_whoever_interrupts_need_not_answer():
    play = asking()
    play.run()
    play.record(InputReceived("i1", user("never mind"), "interrupt"))
    play.run()
    assert play.results()[1].error.code == "interrupted"
    assert isinstance(play.state.ended, RunSucceeded)


@pytest.mark.parametrize("limit", [1, 2])
def test_the_limit_on_calls_holds_for_questions_too(limit: int):
    play = Play(spec(limits=Limits(max_tool_calls=limit)), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "pay"))))
    play.tool = lambda call: QuestionAsked(call.call_id, call.name, "what?")
    play.run()
    assert (play.state.ended is None) == (limit == 2)


# --- what delegated runs have spent


def test_a_run_that_two_calls_report_is_paid_for_once():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "look"))))
    usage = Usage(100, 10)
    play.tool = lambda call: ToolFinished(result(call), usage=usage, runs={"sub-1": usage})
    play.run()
    own = play.state.spent.tokens - usage.total_tokens
    assert own >= 0
    assert play.state.paid == {"sub-1"}
    assert play.state.spent.usage().input_tokens - 100 < 100


def test_an_account_without_names_is_paid_as_it_is():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "look"))))
    play.tool = lambda call: ToolFinished(result(call), usage=Usage(100, 10))
    play.run()
    assert play.state.spent.usage().input_tokens >= 200
