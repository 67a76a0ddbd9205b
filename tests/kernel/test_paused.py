"""A declared budget has no room: the run waits, without asking the model and without starting the call."""

from __future__ import annotations

from typing import Literal

import pytest

from foliot.kernel.run.actions import AskModel, CallTools, Wait
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import decode, encode
from foliot.kernel.run.events import BudgetExceeded, CancelRequested, RunCancelled, RunFailed, RunResumed, RunWaiting
from foliot.kernel.run.rules import refusal
from foliot.kernel.run.state import owner_of
from tests.kernel.play import START, Play, asks, says, spec


def no_room(
    call_id: str | None = None, then: Literal["pause", "fail"] = "pause", until: float | None = START + 500
) -> BudgetExceeded:
    return BudgetExceeded("cost_usd", 2, 1, "no room in team", then, budget="team", until=until, call_id=call_id)


def test_a_question_without_room_is_not_asked_and_the_run_waits_for_the_window() -> None:
    play = Play(spec(), [no_room(), says("done")])
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting == RunWaiting("budget", "budget", (), START + 500, "no room in team")
    assert (owner_of(play.state).kind, owner_of(play.state).until) == ("budget", START + 500)
    assert play.state.spent.steps == 0
    assert play.run() == Wait(action.waiting)  # asked again, it still waits


def test_when_the_wait_is_over_the_same_step_is_asked_for_again() -> None:
    play = Play(spec(), [no_room(), no_room(), says("done")])
    play.run()
    play.record(RunResumed("timer"))
    assert isinstance(play.run(), Wait)
    play.record(RunResumed("budget"))
    play.run()
    assert play.state.ended is not None
    assert [action.step for action in play.asked] == [1, 1, 1]
    assert play.journal[-4:] == ["run.resumed", "step.started", "model.responded", "run.succeeded"]


def test_a_call_without_room_is_not_started_and_others_of_its_step_are() -> None:
    play = Play(spec(), [asks(("a", "pay"), ("b", "look")), says("done")])
    tool = play.tool
    play.tool = lambda call: no_room("a") if call.call_id == "a" else tool(call)
    action = play.run()
    assert isinstance(action, Wait)
    assert (action.waiting.reason, action.waiting.calls) == ("budget", ("a",))
    assert [call.call_id for call in play.started] == ["b"]
    play.tool = tool
    play.record(RunResumed("budget"))
    play.run()
    assert [call.call_id for call in play.started] == ["b", "a"]
    assert play.state.ended is not None


def test_waiting_for_a_budget_does_not_use_up_the_time_of_the_run() -> None:
    play = Play(spec(limits=Limits(max_seconds=60)), [no_room(), says("done")])
    play.run()
    play.now += 10_000
    play.record(RunResumed("timer"))
    play.run()
    assert not isinstance(play.state.ended, RunFailed)


def test_a_budget_that_fails_ends_the_run_with_its_reason() -> None:
    play = Play(spec(), [no_room(then="fail")])
    play.run()
    ended = play.state.ended
    assert isinstance(ended, RunFailed)
    assert (ended.code, ended.reason, ended.message) == ("budget_exceeded", "cost_usd", "no room in team")


def test_a_paused_run_can_be_cancelled() -> None:
    play = Play(spec(), [asks(("a", "pay"))], tool=lambda call: no_room("a"))
    play.run()
    play.record(CancelRequested("ann"))
    play.run()
    assert isinstance(play.state.ended, RunCancelled)


def test_a_pause_survives_a_crash() -> None:
    play = Play(spec(), [no_room(), says("done")])
    assert isinstance(play.next(), AskModel)
    play.record(no_room())
    play.crash()
    assert isinstance(play.run(), Wait)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (no_room(), "the model was not asked"),
        (no_room("zz"), "the call 'zz' is not about to be started"),
        (BudgetExceeded("cost_usd", 2, 1, "m", "pause"), "a limit of the run itself does not pause it"),
    ],
)
def test_a_shortage_of_something_that_was_not_about_to_happen_is_refused(event: BudgetExceeded, why: str) -> None:
    play = Play(spec(), [asks(("a", "pay"))])
    asking = play.next()
    assert isinstance(asking, AskModel)
    play.ask(asking)
    assert isinstance(play.next(), CallTools)
    assert refusal(play.state, event) == why


def test_what_a_budget_said_is_read_as_it_was_written() -> None:
    assert decode(encode(no_room("a"))) == no_room("a")
