"""Small promises of the loop that are easy to lose: nothing else stood between a wrong change and its users."""

from __future__ import annotations

from foliot.kernel.actions import AskModel, Await, CallTools
from foliot.kernel.budget import Limits
from foliot.kernel.events import (
    ApprovalDecided,
    ApprovalRequested,
    ModelResponded,
    RunSucceeded,
    StepStarted,
    ToolFinished,
)
from tests.kernel.play import Play, asks, result, says, spec


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
