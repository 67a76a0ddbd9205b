"""Cancellation, failures of the model, limits: how a run ends when it does not simply answer."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import ModelSettings, Usage
from foliot.kernel.run.actions import AskModel, Await, CallTools, Compact, End, Wait
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import decode, encode
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    CancelRequested,
    ModelFailed,
    ModelResponded,
    OutputRejected,
    RunCancelled,
    RunClaimed,
    RunFailed,
    RunResumed,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    SessionCompacted,
    StepStarted,
    ToolFinished,
    ToolUnknown,
)
from foliot.kernel.run.loop import apply, fold
from foliot.kernel.run.spec import Repairs
from foliot.kernel.run.state import owner_of
from tests.kernel.play import Play, asks, failure, result, says, spec, user

# --- cancellation


def test_a_cancelled_run_does_not_wait_for_the_model():
    play = Play(spec())
    assert isinstance(play.next(), AskModel)
    play.record(CancelRequested("ann", "enough"))
    end = play.next()
    assert isinstance(end, End)
    assert play.state.ended == RunCancelled("ann", "enough", usage=Usage(cost_usd=0.0))


def test_a_cancelled_run_gives_each_call_a_result_and_waits_only_for_what_may_have_an_effect():
    play = Play(spec(limits=Limits(parallel_tools=2)))
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "pay"), ("c", "save"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(*(call.started() for call in action.calls))
    play.record(CancelRequested("ann"))
    waiting = play.next()
    assert isinstance(waiting, Await)
    assert (waiting.calls, waiting.stop) == (("b",), True)
    assert play.next() == Await(calls=("b",), stop=True)
    play.record(ToolFinished(failure(action.calls[1], "cancelled")))
    assert isinstance(play.next(), End)
    assert isinstance(play.state.ended, RunCancelled)
    texts = [r.text for r in play.results()]
    assert "it only reads, and was stopped" in texts[0]
    assert "may have taken effect" not in texts[0]
    assert texts[1] == "it broke"
    assert "it was not run" in texts[2]


def test_a_cancelled_run_drops_calls_that_wait_for_an_approval():
    play = Play(spec(), [asks(("a", "pay"))], tool=lambda c: ApprovalRequested(c.call_id, "ap", "pay", "d"))
    assert isinstance(play.run(), Wait)
    play.record(CancelRequested())
    play.run()
    assert isinstance(play.state.ended, RunCancelled)
    assert [r.error.code for r in play.results()] == ["cancelled"]


def test_a_run_that_nobody_holds_can_be_cancelled():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started(), RunRetried(1, "worker_lost", due=5000.0))
    assert owner_of(play.state).kind == "timer"
    play.record(CancelRequested())
    assert isinstance(play.next(), End)
    assert "may have taken effect" in play.results()[0].text


def test_a_cancelled_once_call_whose_worker_died_is_not_waited_for():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started(), CancelRequested())
    assert isinstance(play.next(), Await)
    play.crash()
    assert isinstance(play.next(), End)


# --- the model fails


def failing(**changes) -> ModelFailed:
    return ModelFailed(**{"step": 1, "kind": "overloaded", "message": "busy", "retryable": True, **changes})


def test_a_model_that_fails_for_good_ends_the_run():
    play = Play(spec(), [failing(kind="auth", message="bad key", retryable=False)])
    play.run()
    assert play.state.ended == RunFailed("model_failed", "auth", "bad key", usage=Usage(cost_usd=0.0))


def test_what_a_failed_answer_cost_is_counted():
    play = Play(spec(), [failing(retryable=False, usage=Usage(7, 1, cost_usd=0.5))])
    play.run()
    assert play.state.ended.usage == Usage(7, 1, cost_usd=0.5)


def test_a_model_in_trouble_is_asked_again_after_a_growing_delay():
    play = Play(spec(repairs=Repairs(model=2)), [failing(), failing(), failing()])
    for delay in (2.0, 4.0):
        action = play.run()
        assert isinstance(action, Wait)
        failed_at = max(at for at, event in play.facts if isinstance(event, ModelFailed))
        assert (action.waiting.owner, action.waiting.until) == ("timer", failed_at + delay)
        assert isinstance(play.run(), Wait)
        play.record(RunResumed("timer"))
    play.run()
    assert play.state.ended.reason == "overloaded"
    assert [step.attempt for step in play.all(StepStarted)] == [1, 2, 3]


def test_the_delay_a_provider_asks_for_is_kept():
    play = Play(spec(), [failing(retry_after=30.0), says("done")])
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.until == play.facts[-2][0] + 30.0
    play.now += 30.0
    play.crash()
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


@pytest.mark.parametrize(
    ("asked", "waited"), [(1e14, 86_400.0), (float("inf"), 2.0), (float("nan"), 2.0), (float("-inf"), 2.0)]
)
def test_no_provider_makes_a_run_wait_for_ever(asked: float, waited: float):
    play = Play(spec())
    play.next()
    failed = failing(retry_after=asked)
    apply(play.state, failed, play.now)  # as a shell folds it, before it is bytes
    read = fold(spec(), "r1", [*play.facts, (play.now, decode(encode(failed)))])
    assert play.state.retry_at == read.retry_at == play.now + waited


def test_an_answer_starts_the_count_of_failures_again():
    play = Play(
        spec(repairs=Repairs(model=1, model_backoff=0.0)),
        [failing(), asks(("a", "look")), failing(step=2), says("done")],
    )
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_crash_while_the_model_thinks_asks_again():
    play = Play(spec(), [says("done")])
    assert isinstance(play.next(), AskModel)
    play.crash()
    play.run()
    assert [step.attempt for step in play.all(StepStarted)] == [1, 2]
    assert isinstance(play.state.ended, RunSucceeded)


def test_the_attempts_of_each_step_are_counted_anew():
    play = Play(spec(), [asks(("a", "look")), says("done")])
    assert isinstance(play.next(), AskModel)
    play.crash()
    play.run()
    assert [(step.step, step.attempt) for step in play.all(StepStarted)] == [(1, 1), (1, 2), (2, 1)]


def test_the_delay_does_not_grow_for_ever():
    play = Play(spec(repairs=Repairs(model=9, model_max_backoff=5.0)), [failing()] * 9)
    for _ in range(8):
        play.run()
        failed_at = max(at for at, event in play.facts if isinstance(event, ModelFailed))
        assert play.state.waiting.until <= failed_at + 5.0
        play.record(RunResumed("timer"))


def test_a_refusal_ends_the_run_with_the_words_of_the_model():
    play = Play(spec(), [says("I will not", stop="refusal")])
    play.run()
    assert play.state.ended.code == "refused"
    assert play.state.ended.message == "I will not"


def test_an_empty_answer_is_sent_back_and_then_fails_the_run():
    play = Play(spec(repairs=Repairs(outputs=1)), [says(" "), says("")])
    play.run()
    assert play.state.ended.code == "empty_answer"
    assert [message.role for message in play.asked[1].request.messages] == ["user", "user"]


def test_an_answer_that_was_cut_off_is_sent_back_and_then_fails_the_run():
    play = Play(spec(repairs=Repairs(outputs=1)), [says("half an ans", stop="length"), says("still", stop="length")])
    play.run()
    assert play.state.ended.code == "truncated"
    assert [rejected.reason for rejected in play.all(OutputRejected)] == ["truncated", "truncated"]


@pytest.mark.parametrize("outputs", [0, 1])
def test_another_attempt_does_not_begin_with_the_answer_that_was_not_accepted(outputs: int):
    """A provider would take it as the beginning of its own answer, or refuse the request."""
    cut = says("half an ans", stop="length")
    play = Play(spec(repairs=Repairs(outputs=outputs)), [cut] * (outputs + 1))
    for _ in range(outputs + 1):
        play.ask(play.next())
    play.record(*play.decide().events, RunRetried(1, "repairs_exhausted"), RunClaimed(2))
    play.answers = iter([says("done")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    roles = [message.role for message in play.asked[-1].request.messages]
    assert roles == ["user", *["assistant", "user"] * outputs]


def test_another_attempt_after_an_empty_answer_begins_with_all_that_was_said():
    past = (user("before"), says("earlier").message)
    play = Play(spec(repairs=Repairs(outputs=0)), [says(" ")], history=past)
    play.ask(play.next())
    play.record(*play.decide().events, RunRetried(1, "repairs_exhausted"), RunClaimed(2))
    assert play.next().request.messages == (*past, user("go"))


def test_a_transcript_that_is_too_long_is_compacted_once():
    overflow = failing(kind="context_overflow", retryable=False)
    play = Play(spec(compaction=True), [overflow, says("done")])
    action = play.run()
    assert action == Compact(1, (user("go"),))
    play.record(SessionCompacted(1, user("short"), Usage(5, 5, cost_usd=0.5)))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.spent.cost_usd == 0.51


def test_a_later_step_may_be_compacted_again():
    overflow = [failing(kind="context_overflow", retryable=False, step=step) for step in (1, 2)]
    play = Play(spec(compaction=True), [overflow[0], asks(("a", "look")), overflow[1], says("done")])
    for _ in range(2):
        assert isinstance(play.run(), Compact)
        play.record(SessionCompacted(len(play.state.transcript), user("short")))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_transcript_that_stays_too_long_ends_the_run():
    overflow = failing(kind="context_overflow", retryable=False)
    play = Play(spec(compaction=True), [overflow, overflow])
    play.run()
    play.record(SessionCompacted(1, user("short")))
    play.run()
    assert play.state.ended.reason == "context_overflow"


def test_a_shell_that_cannot_compact_ends_the_run():
    overflow = failing(kind="context_overflow", retryable=False)
    play = Play(spec(compaction=True), [overflow])
    play.run()
    play.record(overflow)
    assert isinstance(play.run(), End)


# --- limits


def test_the_step_limit_is_checked_before_the_model_is_asked():
    play = Play(spec(limits=Limits(max_steps=2)), [asks(("a", "look"))] * 3)
    play.run()
    assert len(play.asked) == 2
    assert play.all(BudgetExceeded) == [BudgetExceeded("steps", 2, 2, "the limit of 2 steps is reached")]
    assert (play.state.ended.code, play.state.ended.reason) == ("budget_exceeded", "steps")


def test_an_answer_in_the_last_step_is_a_success():
    play = Play(spec(limits=Limits(max_steps=1)), [says("done")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_with_finish_the_last_step_is_asked_for_without_tools():
    play = Play(spec(limits=Limits(max_steps=2), on_limit="finish"), [asks(("a", "look")), says("so far: 1")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    first, last = (action.request for action in play.asked)
    assert (first.settings.tool_choice, last.settings.tool_choice) == ("auto", "none")
    assert last.tools == first.tools, "the prefix of the prompt stays as it was"
    assert "final answer" in last.messages[-1].text


def test_a_last_answer_that_still_asks_for_tools_fails():
    play = Play(spec(limits=Limits(max_steps=2), on_limit="finish"), [asks(("a", "look")), asks(("b", "pay"))])
    play.run()
    assert [call.call_id for call in play.started] == ["a"]
    assert play.state.ended.code == "budget_exceeded"
    assert play.results()[-1].error.code == "budget_exceeded"


def test_the_token_limit_counts_the_next_request():
    play = Play(spec(limits=Limits(max_tokens=150)), [asks(("a", "look"), usage=Usage(60, 20)), says("x")])
    play.run()
    assert len(play.asked) == 1, "80 are used, and the next request takes at least as many"
    assert play.state.ended.reason == "tokens"


def test_the_output_limit_is_lowered_to_what_the_token_limit_leaves():
    play = Play(spec(limits=Limits(max_tokens=1000), settings=ModelSettings(max_output_tokens=5000)), [says("x")])
    play.run()
    assert 900 < play.asked[0].request.settings.max_output_tokens < 1000


def test_without_counts_of_the_provider_the_estimate_goes_by_characters():
    long = Play(spec(limits=Limits(max_tokens=100)), says="x" * 800)
    long.run()
    assert long.state.ended.reason == "tokens"
    assert long.asked == []


def test_the_money_limit_ends_the_run_before_the_next_question():
    play = Play(spec(limits=Limits(max_cost_usd=0.02)), [asks(("a", "look"))] * 5)
    play.run()
    assert len(play.asked) == 2
    assert play.state.ended.reason == "cost_usd"


def test_an_answer_without_a_price_breaks_a_money_limit():
    play = Play(spec(limits=Limits(max_cost_usd=5.0)), [says("", usage=Usage(1, 1)), says("x")])
    play.run()
    assert len(play.asked) == 1
    assert "not known" in play.state.ended.message


def test_the_time_limit_is_kept_for_questions_and_for_calls():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [asks(("a", "look"))])
    claimed = play.now
    asking = play.next()
    assert isinstance(asking, AskModel)
    assert asking.deadline == claimed + 60.0
    play.now = claimed + 60.0
    play.ask(asking)
    play.run()
    assert play.started == []
    assert play.state.ended.reason == "seconds"


def test_a_model_that_was_cut_off_by_the_time_limit_is_not_blamed():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [failing(kind="timeout", retryable=False)])
    asking = play.next()
    assert isinstance(asking, AskModel)
    play.now += 60.0
    play.ask(asking)
    play.run()
    assert play.state.ended.code == "budget_exceeded"


def test_waiting_for_a_person_does_not_use_up_the_time_limit():
    play = Play(
        spec(limits=Limits(max_seconds=60.0)),
        [asks(("a", "pay")), says("done")],
        tool=lambda c: ToolFinished(result(c)) if c.grant else ApprovalRequested(c.call_id, "ap", "pay", "d"),
    )
    play.run()
    play.now += 86400.0
    play.record(ApprovalDecided("a", "approve"))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_waiting_for_the_model_uses_up_the_time_limit():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [failing(retry_after=100.0), says("x")])
    play.run()
    play.now += 100.0
    play.record(RunResumed("timer"))
    play.run()
    assert play.state.ended.reason == "seconds"


def test_nobody_waits_for_the_model_past_the_time_limit():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [failing(retry_after=3600.0), says("x")])
    ends = play.now + 60.0
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.until == ends
    play.now = ends
    play.record(RunResumed("timer"))
    play.run()
    assert (play.state.ended.code, play.state.ended.reason) == ("budget_exceeded", "seconds")
    assert len(play.asked) == 1


def test_each_attempt_has_its_own_time():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [failing(kind="other", retryable=False), says("x")])
    play.ask(play.next())
    play.record(RunRetried(1, "other", due=play.now + 500.0))
    play.now += 500.0
    play.record(RunClaimed(2))
    claimed = play.facts[-1][0]
    asking = play.next()
    assert isinstance(asking, AskModel)
    assert asking.deadline == claimed + 60.0
    play.ask(asking)
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_wait_that_outlasts_an_attempt_does_not_use_up_the_time_of_the_next():
    play = Play(spec(limits=Limits(max_seconds=60.0)))
    play.record(RunWaiting("capacity", "capacity"))
    play.record(RunRetried(1, "worker_lost"))
    play.now += 500.0
    play.record(RunClaimed(2), RunResumed("capacity"))
    assert play.state.deadline == play.facts[-1][0] + 60.0


def test_a_claim_alone_is_no_attempt():
    """A pause, an approval, a worker that died: whoever claims the run goes on with the same attempt."""
    play = Play(spec(), [failing(kind="other", retryable=False)])
    assert play.state.attempt == 1
    play.record(RunClaimed(2), RunClaimed(3))  # as earlier versions numbered them
    assert (play.state.attempt, play.state.next_attempt) == (1, 1)
    play.record(RunRetried(1, "rate_limit", counted=False), RunClaimed(1))
    assert play.state.attempt == 1
    play.record(RunRetried(1, "other"), RunClaimed(2))
    assert play.state.attempt == 2


def test_a_crash_does_not_give_a_run_more_time():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [says("x")])
    first = play.now
    play.now += 30.0
    play.crash()
    asking = play.next()
    assert isinstance(asking, AskModel)
    assert asking.deadline == first + 60.0


def test_the_limit_on_calls_refuses_all_of_a_step_that_would_pass_it():
    play = Play(spec(limits=Limits(max_tool_calls=2)), [asks(("a", "look")), asks(("b", "look"), ("c", "look"))])
    play.run()
    assert [call.call_id for call in play.started] == ["a"]
    assert play.state.ended.reason == "tool_calls"
    assert len(play.results()) == 3


def test_with_finish_the_limit_on_calls_lets_through_what_fits_and_asks_for_an_answer():
    play = Play(
        spec(limits=Limits(max_tool_calls=2), on_limit="finish"),
        [asks(("a", "look")), asks(("b", "look"), ("c", "look")), says("done")],
    )
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.asked[-1].request.settings.tool_choice == "none"
    assert len(play.all(BudgetExceeded)) == 1


def test_with_finish_the_end_of_the_calls_is_recorded_once():
    play = Play(
        spec(limits=Limits(max_tool_calls=1, parallel_tools=1), on_limit="finish"),
        [asks(("a", "look"), ("b", "look"), ("c", "look")), says("done")],
    )
    play.run()
    assert [call.call_id for call in play.started] == ["a"]
    assert len(play.all(BudgetExceeded)) == 1


def test_a_last_answer_that_asks_for_tools_is_not_asked_for_again():
    play = Play(
        spec(limits=Limits(max_tool_calls=0), on_limit="finish"), [asks(("a", "look")), asks(("b", "look")), says("x")]
    )
    play.run()
    assert len(play.asked) == 2
    assert play.state.ended.code == "budget_exceeded"


def test_an_agent_without_tools_needs_no_special_last_answer():
    play = Play(spec(limits=Limits(max_steps=1), on_limit="finish", tools=()), [says("done")])
    play.run()
    assert play.all(BudgetExceeded) == []


def test_a_call_that_is_repeated_after_a_crash_counts_once():
    play = Play(spec(limits=Limits(max_tool_calls=1)), [asks(("a", "look")), says("done")])
    play.ask(play.next())
    action = play.next()
    play.record(action.calls[0].started())
    play.crash()
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


# --- owners


def test_every_state_has_an_owner():
    play = Play(spec(), [asks(("a", "look")), says("done")])
    assert owner_of(play.state).kind == "worker"
    play.record(RunRetried(1, "worker_lost"))
    assert owner_of(play.state).kind == "capacity"
    assert isinstance(play.next(), Wait)
    play.record(RunClaimed(2), RunWaiting("capacity", "capacity", until=9.0))
    assert (owner_of(play.state).kind, owner_of(play.state).until) == ("capacity", 9.0)
    play.run()
    assert owner_of(play.state).kind == "nobody"


def test_a_wait_that_the_shell_recorded_gives_way_to_the_one_of_the_run():
    play = Play(spec(), tool=lambda c: ApprovalRequested(c.call_id, "ap", "pay", "d"))
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"))))
    play.record(ApprovalRequested("a", "ap", "pay", "d"), RunWaiting("capacity", "capacity"))
    play.run()
    assert play.state.waiting.reason == "approval"


def test_a_waiting_run_that_nobody_holds_is_not_resumed_before_it_is_claimed():
    play = Play(spec())
    play.record(RunWaiting("input", "input"), RunRetried(1, "worker_lost"))
    action = play.next()
    assert isinstance(action, Wait)
    assert action.waiting.reason == "capacity"
    assert play.all(RunResumed) == []


@pytest.mark.parametrize("by", ["cancel", "fail"])
def test_the_first_reason_to_end_stands(by: str):
    play = Play(spec())
    play.record(StepStarted(1))
    if by == "cancel":
        play.record(CancelRequested("ann"), failing(kind="auth", retryable=False))
    else:
        play.record(failing(kind="auth", retryable=False))
    play.run()
    assert isinstance(play.state.ended, RunCancelled if by == "cancel" else RunFailed)


# --- a notice in the place of an answer


NOTICED = {"limits": Limits(max_seconds=60.0), "time_notice": "The time is over. Shall I go on?"}


def test_a_run_whose_time_is_over_answers_with_its_notice():
    play = Play(spec(**NOTICED), [asks(("a", "look"))])
    asking = play.next()
    assert isinstance(asking, AskModel)
    play.now += 61.0
    play.ask(asking)
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "The time is over. Shall I go on?"
    assert [message.role for message in play.state.transcript][-2:] == ["tool", "assistant"]
    assert play.state.settled_messages()[-1].text == "The time is over. Shall I go on?"


def test_every_call_has_its_result_before_the_notice():
    play = Play(spec(**NOTICED))
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(*(call.started() for call in action.calls))
    play.now += 61.0
    play.record(ToolUnknown("b", "timeout"), ToolFinished(result(action.calls[0])))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert [each.call_id for each in play.results()] == ["a", "b"]
    assert play.state.unsettled, "what may have acted is still in doubt"


def test_the_notice_stands_for_time_only():
    play = Play(spec(limits=Limits(max_steps=1), time_notice="later"), [asks(("a", "look")), says("x")])
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert play.state.ended.reason == "steps"
