"""Calls that cannot be run as written, approvals, and the crash in the middle of a call."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import ModelResponse, ToolFailure, ToolResult
from foliot.kernel.run.actions import Await, CallTools, End, Wait
from foliot.kernel.run.calls import JournalCalls
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    HookDecided,
    InputReceived,
    ModelResponded,
    RunFailed,
    RunResumed,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    ToolFinished,
    UnknownDecided,
)
from foliot.kernel.run.spec import Effect, OnUnknown, Repairs
from foliot.kernel.run.state import owner_of
from tests.kernel.play import Play, asks, failure, result, rule, says, spec, user


def in_step(*calls: tuple[str, str], run_spec=None, answers=(), tool=None) -> Play:
    """A run whose first answer has asked for these calls."""
    play = Play(run_spec or spec(), answers, tool=tool)
    play.record(StepStarted(1), ModelResponded(1, asks(*calls)))
    return play


# --- as written


def test_an_unknown_tool_is_answered_with_the_names_there_are():
    play = Play(spec(), [asks(("c1", "serach")), says("done")])
    play.run()
    assert play.started == []
    assert "look, pay, save" in play.results()[0].text
    assert play.results()[0].error.code == "unsupported_tool"


def test_a_call_without_a_name_is_answered():
    play = Play(spec(), [asks(("c1", "")), says("done")])
    play.run()
    assert "names no tool" in play.results()[0].text


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "null", '"x"', "42", "nonsense", '{"a": NaN}', "[" * 5000])
def test_broken_arguments_are_answered_and_never_run(arguments: str):
    play = Play(spec(), [asks(("c1", "pay", arguments)), says("done")])
    play.run()
    assert play.started == []
    assert play.results()[0].error.kind == "invalid_arguments"
    assert isinstance(play.state.ended, RunSucceeded)


def test_no_arguments_at_all_are_an_empty_object():
    play = Play(spec(), [asks(("c1", "look", " ")), says("done")])
    play.run()
    assert play.started[0].arguments == "{}"


def test_no_arguments_in_an_answer_that_was_cut_off_are_not_run():
    play = Play(spec(), [asks(("c1", "pay", ""), stop="length"), says("done")])
    play.run()
    assert play.started == []
    assert "cut off" in play.results()[0].text


def test_a_good_call_beside_a_bad_one_is_run():
    play = Play(spec(), [asks(("a", "look", "{"), ("b", "save")), says("done")])
    play.run()
    assert [call.call_id for call in play.started] == ["b"]
    assert [r.call_id for r in play.results()] == ["a", "b"]


def test_a_model_that_never_gets_its_calls_right_fails_the_run():
    play = Play(spec(repairs=Repairs(calls=2)), [asks(("c", "look", "{"))] * 5)
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert (play.state.ended.code, play.state.ended.steps) == ("invalid_tool_calls", 3)


def test_a_step_without_a_mistake_starts_the_count_again():
    bad, good = asks(("c", "look", "{")), asks(("c", "look"))
    play = Play(spec(repairs=Repairs(calls=1)), [bad, good, bad, good, says("done")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_arguments_that_the_shell_refuses_count_as_mistakes():
    play = Play(
        spec(repairs=Repairs(calls=1)),
        [asks(("c", "look"))] * 5,
        tool=lambda call: ToolFinished(failure(call, "invalid_arguments")),
    )
    play.run()
    assert play.state.ended.code == "invalid_tool_calls"


def test_an_ordinary_failure_is_no_mistake_of_the_model():
    play = Play(
        spec(repairs=Repairs(calls=0)), [asks(("c", "look")), says("done")], tool=lambda c: ToolFinished(failure(c))
    )
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_ids_that_a_model_uses_twice_are_made_unique_in_the_same_way_each_time():
    first, second = asks(("c", "look"), ("c", "look"), ("", "look")), asks(("c", "look"), ("c-2", "look"))
    play = Play(spec(), [first, second, says("x")])
    play.run()
    assert [call.call_id for call in play.started] == ["c", "c-2", "call_1_2", "c-3", "c-2-2"]
    written = [call.id for message in play.state.transcript for call in message.calls]
    assert [r.call_id for r in play.results()] == written


def test_a_shell_may_refuse_a_call_before_it_starts():
    play = in_step(("a", "pay"), answers=[says("done")])
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(ToolFinished(failure(action.calls[0], "denied", "permission_denied")))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.spent.tool_calls == 0


def test_a_missing_permission_ends_the_run_when_the_spec_says_so():
    play = Play(
        spec(on_denied="fail"), [asks(("a", "pay"), ("b", "look"))], tool=lambda c: ToolFinished(failure(c, "denied"))
    )
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert play.state.ended.code == "denied"
    assert len(play.results()) == 2


# --- approvals


def request(call_id: str, tool: str = "pay", *, expires_at: float | None = None) -> ApprovalRequested:
    return ApprovalRequested(call_id, f"ap-{call_id}", tool, "sha256:args", expires_at=expires_at)


def parked(**kwargs) -> Play:
    play = in_step(("a", "look"), ("b", "pay"), answers=[says("done")], **kwargs)
    play.tool = lambda call: (
        request(call.call_id) if call.name == "pay" and not call.grant else ToolFinished(result(call))
    )
    return play


def test_a_call_waits_for_its_approval_while_its_siblings_go_on():
    play = parked()
    action = play.run()
    assert isinstance(action, Wait)
    waiting = RunWaiting("approval", "person", ("b",), None, "pay needs an approval")
    assert action.waiting == waiting
    assert [call.call_id for call in play.started] == ["a"]
    assert owner_of(play.state).kind == "person"
    assert play.run() == Wait(waiting), "it waits without recording it twice"


def test_an_approved_call_is_run_without_asking_the_model_again():
    play = parked()
    play.run()
    play.record(ApprovalDecided("b", "approve", by="ann"))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert len(play.asked) == 1
    assert play.started[-1].grant.by == "ann"
    assert play.all(RunResumed) == [RunResumed("approval")]


def test_a_worker_that_takes_over_after_the_decision_goes_on_at_the_call():
    play = parked()
    play.run()
    play.crash()
    play.record(ApprovalDecided("b", "approve", by="ann"))
    play.crash()
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_denied_call_is_told_to_the_model():
    play = parked()
    play.run()
    play.record(ApprovalDecided("b", "deny", by="ann", reason="too much"))
    play.run()
    assert [call.call_id for call in play.started] == ["a"]
    assert "ann: too much" in play.results()[1].text
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_denied_call_ends_the_run_when_the_spec_says_so():
    play = parked(run_spec=spec(on_denied="fail"))
    play.run()
    play.record(ApprovalDecided("b", "deny"))
    play.run()
    assert play.state.ended.code == "denied"
    assert len(play.results()) == 2


def test_edited_arguments_are_what_is_run_and_the_model_is_told():
    play = parked()
    play.run()
    play.record(ApprovalDecided("b", "edit", by="ann", arguments='{"amount": 1}'))
    play.run()
    assert play.started[-1].arguments == '{"amount": 1}'
    assert '{"amount": 1}' in play.results()[1].text


def test_an_edited_call_that_is_not_run_says_nothing_of_its_arguments():
    play = parked()
    play.run()
    play.record(ApprovalDecided("b", "edit", arguments='{"amount": 1}'), CancelRequested())
    play.run()
    assert "amount" not in play.results()[1].text


def test_of_an_edited_call_that_a_rule_denies_the_model_is_told_that_it_was_not_run():
    play = parked()
    play.run()
    play.record(ApprovalDecided("b", "edit", by="ann", arguments='{"amount": 90}'))
    denial = ToolFailure("permission_denied", "denied", "never ninety", kind="denied")
    play.record(ToolFinished(ToolResult("b", "pay", (), denial)))
    play.run()
    said = play.results()[1].text
    assert "it was run" not in said
    assert 'to {"amount": 90}; it was not run' in said


def test_the_arguments_that_hooks_put_in_place_of_the_model_s_are_shown_but_not_after_an_approval():
    journal = JournalCalls()
    journal.add("a", "pay", '{"amount":500}')
    (changed,) = journal.take(HookDecided("before_tool", "a", ("cap",), arguments='{"amount":100}'))
    assert (changed.arguments, changed.written, changed.changed_by) == ('{"amount":100}', '{"amount":500}', "cap")
    journal.take(ApprovalDecided("a", "edit", by="ann", arguments='{"amount":80}'))
    journal.take(HookDecided("before_tool", "a", ("cap",), arguments='{"amount":1}'))
    assert (changed.arguments, changed.changed_by) == ('{"amount":80}', "ann")


def test_an_approval_that_nobody_gives_in_time_is_a_denial():
    play = parked()
    play.tool = lambda c: request(c.call_id, expires_at=2000.0) if c.name == "pay" else ToolFinished(result(c))
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.until == 2000.0
    play.now = 2000.0 - play.tick
    play.record(RunResumed("timer"))
    play.run()
    assert play.all(ApprovalDecided)[0].decision == "expired"
    assert play.results()[1].error.code == "approval_expired"
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_timer_that_goes_off_early_leaves_the_run_waiting():
    play = parked()
    play.tool = lambda c: request(c.call_id, expires_at=2000.0) if c.name == "pay" else ToolFinished(result(c))
    play.run()
    play.record(RunResumed("timer"))
    assert isinstance(play.run(), Wait)
    assert play.all(ApprovalDecided) == []


# --- the crash in the middle of a call


def crashed(effect: Effect, on_unknown: OnUnknown = "ask", answers: list[ModelResponse] | None = None) -> Play:
    tools = (rule("act", effect, on_unknown),)
    play = in_step(("a", "act"), run_spec=spec(tools=tools), answers=answers or [says("done")])
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started())
    play.crash()
    return play


@pytest.mark.parametrize(("effect", "on_unknown"), [("read", "ask"), ("idempotent", "fail"), ("once", "retry")])
def test_a_call_that_may_be_repeated_is_started_again_under_the_same_key(effect: Effect, on_unknown: OnUnknown):
    play = crashed(effect, on_unknown)
    play.run()
    assert [(call.key, call.attempt) for call in play.started] == [("r1/a", 2)]
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.spent.tool_calls == 1


def test_a_once_call_is_never_repeated_without_a_decision():
    play = crashed("once")
    action = play.run()
    assert isinstance(action, Wait)
    assert (action.waiting.reason, action.waiting.owner, action.waiting.calls) == ("unknown_effect", "person", ("a",))
    play.crash()
    assert isinstance(play.run(), Wait)
    assert play.started == []


def test_an_interrupt_does_not_decide_about_a_lost_call():
    play = crashed("once")
    play.record(InputReceived("i1", user("hurry"), "interrupt"))
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.reason == "unknown_effect"


def test_an_interrupt_does_not_leave_a_call_half_done():
    play = crashed("idempotent")
    play.record(InputReceived("i1", user("hurry"), "interrupt"))
    play.run()
    assert [call.attempt for call in play.started] == [2]


def test_a_person_says_that_it_happened_and_what_it_returned():
    play = crashed("once")
    play.run()
    play.record(UnknownDecided("a", "happened", by="ann", result=result("other", "paid", "act")))
    play.run()
    assert play.started == []
    assert [(r.call_id, r.text) for r in play.results()] == [("a", "paid")]
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_person_says_that_it_happened_without_a_result():
    play = crashed("once")
    play.run()
    play.record(UnknownDecided("a", "happened", by="ann"))
    play.run()
    assert "as ann confirmed" in play.results()[0].text


def test_a_person_says_that_it_did_not_happen():
    play = crashed("once")
    play.run()
    play.record(UnknownDecided("a", "run", by="ann"))
    play.run()
    assert [(call.key, call.attempt) for call in play.started] == [("r1/a", 2)]
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_decision_holds_for_one_crash_only():
    play = crashed("once")
    play.run()
    play.record(UnknownDecided("a", "run"))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started())
    play.crash()
    assert isinstance(play.run(), Wait)


def test_a_person_ends_the_run():
    play = crashed("once")
    play.run()
    play.record(UnknownDecided("a", "fail", by="ann"))
    play.run()
    assert play.state.ended.code == "unknown_effect"
    assert "may have taken effect" in play.results()[0].text


def test_a_once_call_fails_the_run_when_its_rule_says_so():
    play = crashed("once", "fail")
    assert isinstance(play.run(), End)
    assert play.state.ended.code == "unknown_effect"
    assert len(play.results()) == 1


def test_a_call_that_had_finished_is_not_touched_by_a_crash():
    play = in_step(("a", "pay"), ("b", "look"), answers=[says("done")])
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(*(call.started() for call in action.calls), ToolFinished(result(action.calls[0], "paid")))
    play.crash()
    play.run()
    assert [call.call_id for call in play.started] == ["b"]
    assert [r.text for r in play.results()] == ["paid", "ok"]


def test_a_sibling_goes_on_while_a_person_thinks_about_a_lost_call():
    play = in_step(("a", "pay"), ("b", "look"), answers=[says("done")])
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(*(call.started() for call in action.calls))
    play.crash()
    again = play.next()
    assert isinstance(again, CallTools)
    assert [call.call_id for call in again.calls] == ["b"]
    play.record(again.calls[0].started())
    assert play.next() == Await(calls=("b",))
