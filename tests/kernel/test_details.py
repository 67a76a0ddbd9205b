"""Small promises of the loop that are easy to lose: nothing else stood between a wrong change and its users."""

from __future__ import annotations

from foliot.kernel.actions import AskModel, Await, CallTools, CheckOutput, End, Wait
from foliot.kernel.budget import Limits
from foliot.kernel.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    InputReceived,
    ModelResponded,
    OutputAccepted,
    RunClaimed,
    RunDeadLettered,
    RunRetried,
    RunSucceeded,
    StepStarted,
    ToolFinished,
)
from foliot.kernel.rules import refusal
from foliot.kernel.state import owner_of
from tests.kernel.play import Play, asks, result, says, spec, user


def test_an_approval_expires_also_while_another_call_is_under_way():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"), ("b", "look"), ("c", "look"))))
    action = play.next()
    assert isinstance(action, CallTools)
    _, b, c = action.calls
    play.record(ApprovalRequested("a", "ap", "pay", "d", expires_at=play.now + 50), b.started(), c.started())
    play.now += 50
    play.record(ToolFinished(result(b)))
    assert play.next() == Await(calls=("c",))
    assert [decided.decision for decided in play.all(ApprovalDecided)] == ["expired"]


def test_one_call_at_a_time_is_the_least():
    play = Play(spec(limits=Limits(parallel_tools=0)), [asks(("a", "look"), ("b", "look")), says("done")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_everything_that_takes_time_is_told_when_the_time_of_the_run_ends():
    play = Play(spec(limits=Limits(max_seconds=60.0)))
    ends = play.now + 60.0
    asking = play.next()
    assert isinstance(asking, AskModel)
    assert asking.deadline == ends
    assert play.next() == Await(model=True, deadline=ends)
    play.record(ModelResponded(1, asks(("a", "look"))))
    calling = play.next()
    assert isinstance(calling, CallTools)
    assert calling.deadline == ends
    play.record(calling.calls[0].started())
    assert play.next() == Await(calls=("a",), deadline=ends)


def test_a_run_that_waits_for_two_people_looks_again_when_the_first_of_them_is_late():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"), ("b", "pay"))))
    play.record(
        *(ApprovalRequested(call, f"ap-{call}", "pay", "d", expires_at=at) for call, at in (("a", 9e3), ("b", 8e3)))
    )
    action = play.next()
    assert isinstance(action, Wait)
    assert action.waiting.until == 8e3


def test_an_answer_that_says_null_can_be_what_was_asked_for():
    play = Play(spec(output_schema={"type": "null"}), [says("null")])
    play.ask(play.next())
    assert isinstance(play.next(), CheckOutput)
    play.record(OutputAccepted(None))
    assert isinstance(play.next(), End)
    assert play.state.ended == RunSucceeded("null", None, 1, 0, play.state.spent.usage())


def test_a_limit_of_the_run_is_not_found_passed_while_the_model_is_asked():
    play = Play(spec())
    play.next()
    assert refusal(play.state, BudgetExceeded("steps", 1, 1, "too late")) == "the model is being asked"


def test_a_run_that_nobody_holds_can_be_given_up():
    play = Play(spec())
    play.record(RunRetried(1, "worker_lost"), RunDeadLettered("attempts_exhausted"))
    assert owner_of(play.state).kind == "nobody"


def test_what_is_said_to_a_run_that_nobody_holds_is_heard_by_the_next_who_does():
    play = Play(spec())
    play.record(RunRetried(1, "worker_lost"), InputReceived("i1", user("quickly")), RunClaimed(2))
    action = play.next()
    assert isinstance(action, AskModel)
    assert action.request.messages == (user("go"), user("quickly"))
