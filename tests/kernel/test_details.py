"""Small promises of the loop that are easy to lose: nothing else stood between a wrong change and its users."""

from __future__ import annotations

from foliot.kernel.messages import (
    Media,
    Message,
    ModelResponse,
    ModelSettings,
    ToolCall,
    ToolFailure,
    ToolResult,
    Usage,
)
from foliot.kernel.run.actions import AskModel, Await, CallTools, CheckOutput, Compact, End, Wait
from foliot.kernel.run.budget import Limits, Spent, check_time, remaining
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    CancelRequested,
    Fork,
    InputReceived,
    ModelDelayed,
    ModelFailed,
    ModelResponded,
    OutputAccepted,
    OutputRejected,
    QuestionAnswered,
    QuestionAsked,
    RunCancelled,
    RunClaimed,
    RunCreated,
    RunDeadLettered,
    RunFailed,
    RunResumed,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    ToolFinished,
)
from foliot.kernel.run.loop import fold
from foliot.kernel.run.rules import refusal
from foliot.kernel.run.spec import Contract, Repairs
from foliot.kernel.run.state import owner_of
from tests.kernel.play import START, USED, Play, asks, result, rule, says, spec, user


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


def test_every_way_of_steering_is_taken_at_the_next_boundary_and_the_others_wait():
    for mode, taken in (("steer", True), ("steer-backlog", True), ("interrupt", True), ("followup", False)):
        play = Play(spec(), [asks(("a", "look"))])
        play.ask(play.next())
        play.record(InputReceived("i1", user("also"), mode))
        action = play.next()
        if isinstance(action, CallTools):  # an interrupt leaves none
            play.call(action)
            action = play.next()
        assert isinstance(action, AskModel)
        assert (action.request.messages[-1] == user("also")) is taken, mode


def test_an_interrupt_is_not_undone_by_what_is_said_after_it():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"))))
    play.record(InputReceived("i1", user("stop"), "interrupt"), InputReceived("i2", user("please"), "steer"))
    play.run()
    assert play.started == []


def test_a_picture_is_an_answer():
    picture = Message("assistant", (Media("image/png", data="aGk="),))
    play = Play(spec(), [ModelResponse(picture, USED)])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_run_between_two_attempts_waits_until_the_next_is_due():
    play = Play(spec())
    play.record(RunRetried(1, "overloaded", due=7e3))
    action = play.next()
    assert isinstance(action, Wait)
    assert (action.waiting.owner, action.waiting.until) == ("capacity", 7e3)
    assert (owner_of(play.state).kind, owner_of(play.state).until) == ("timer", 7e3)


def test_another_attempt_has_all_its_repairs_again():
    failing = ModelFailed(1, "overloaded", "busy", retryable=True)
    play = Play(spec(repairs=Repairs(calls=1, outputs=1, model=1)), [failing, asks(("c", "look", "{")), says("")])
    play.run()
    play.record(RunResumed("timer"))
    for _ in range(2):
        play.ask(play.next())
    play.record(*play.decide().events)
    state = play.state
    assert (state.bad_steps, state.output_repairs) == (1, 1)
    play.record(RunRetried(1, "lost"), RunClaimed(2))
    assert (state.model_failures, state.bad_steps, state.output_repairs) == (0, 0, 0)


def test_another_attempt_waits_for_nothing_that_the_last_one_waited_for():
    failing = ModelFailed(1, "overloaded", "busy", retryable=True, retry_after=500)
    play = Play(spec(), [failing])
    play.ask(play.next())
    play.record(RunRetried(1, "lost"), RunClaimed(2))
    assert isinstance(play.next(), AskModel)
    assert play.state.model_failures == 0
    play.record(
        BudgetExceeded("cost_usd", 2, 1, "no room", "pause", budget="team"), RunRetried(2, "lost"), RunClaimed(3)
    )
    assert isinstance(play.next(), AskModel)


def test_attempts_that_bring_nothing_are_counted_until_one_brings_something():
    play = Play(spec(), [asks(("a", "look"))])
    play.crash()
    assert play.state.fruitless == 2
    play.ask(play.next())
    assert play.state.fruitless == 0
    play.crash()
    play.call(play.next())
    assert play.state.fruitless == 0
    play.crash()
    play.record(RunWaiting("input", "input"))
    assert play.state.fruitless == 0


def test_what_was_done_with_other_arguments_is_no_result_of_the_call_as_it_was_written():
    play = Play(spec(duplicates="short_circuit"), [asks(("a", "pay")), asks(("b", "pay")), says("done")])
    play.tool = lambda c: ToolFinished(result(c)) if c.grant else ApprovalRequested(c.call_id, c.call_id, "pay", "d")
    play.run()
    play.record(ApprovalDecided("a", "edit", arguments='{"x":1}'))
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.calls == ("b",)


def test_a_delegated_run_that_two_calls_report_is_paid_for_once():
    spent = {"run-2": Usage(7, 1, cost_usd=0.5)}

    def tool(call):
        return ToolFinished(result(call), usage=Usage(7, 1, cost_usd=0.5), runs=spent)

    play = Play(spec(), [asks(("a", "look"), ("b", "look")), says("done")], tool=tool)
    play.run()
    assert play.state.spent.input_tokens == 2 * USED.input_tokens + 7
    plain = Play(spec(), [asks(("a", "look")), says("done")], tool=lambda c: ToolFinished(result(c), usage=Usage(7, 1)))
    plain.run()
    assert plain.state.spent.input_tokens == 2 * USED.input_tokens + 7


def test_every_kind_of_token_is_counted():
    used = Usage(1, 2, 3, 4, 5, 0.5)
    play = Play(spec(), [asks(("a", "look"), usage=used), says("done", usage=used)])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.usage == Usage(2, 4, 6, 8, 10, 1.0)


def test_an_answer_without_tokens_has_no_price_to_be_unknown():
    play = Play(spec(limits=Limits(max_cost_usd=1.0)), [asks(("a", "look"), usage=Usage()), says("done")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_what_a_child_is_left_keeps_how_many_calls_may_run_at_once():
    assert remaining(Limits(parallel_tools=3), Spent()).parallel_tools == 3


def test_calls_and_results_count_for_the_size_of_the_next_request():
    """Nothing was counted by the provider: the names, the arguments and the results of calls are characters too."""
    for arguments, text in (('{"a": "' + "x" * 800 + '"}', "ok"), ("{}", "x" * 800)):
        answers = [asks(("a", "look", arguments), usage=Usage()), says("done")]
        play = Play(
            spec(limits=Limits(max_tokens=150)), answers, tool=lambda c, text=text: ToolFinished(result(c, text))
        )
        play.run()
        assert play.state.ended is not None
        assert (len(play.asked), play.state.ended.reason) == (1, "tokens")


def test_a_tool_that_failed_before_a_fork_has_not_been_used():
    past = (
        user("before"),
        Message("assistant", (ToolCall("c1", "look"),)),
        Message("tool", (ToolResult("c1", "look", error=ToolFailure("x", "x", "no")),)),
    )
    created = RunCreated("clerk", "s", (user("go"),), history="sha256:1", fork=Fork("r0", 9))
    state = fold(spec(contract=Contract(("look",))), "r1", [(1.0, created)], past)
    assert state.tools_done == set()


def test_a_breach_says_how_much_time_was_really_used():
    breach = check_time(Limits(max_seconds=5), now=17.0, deadline=15.0)
    assert breach is not None
    assert (breach.used, breach.allowed) == (7.0, 5)


def test_a_shortage_lasts_until_the_wait_for_it_is_over():
    play = Play(spec())
    play.next()
    play.record(BudgetExceeded("cost_usd", 2, 1, "no room", "pause", budget="team"))
    play.record(RunWaiting("capacity", "capacity"), RunResumed("capacity"))
    action = play.next()
    assert isinstance(action, Wait)
    assert action.waiting.reason == "budget"


def test_another_attempt_asks_before_it_shortens():
    play = Play(spec(compaction=True), [ModelFailed(1, "context_overflow", "too long")])
    assert isinstance(play.run(), Compact)
    play.record(RunRetried(1, "lost"), RunClaimed(2))
    assert isinstance(play.next(), AskModel)


def test_a_run_that_has_ended_waits_for_nobody():
    play = Play(spec())
    play.record(RunWaiting("input", "input"), CancelRequested("ann"))
    play.run()
    assert play.state.waiting is None


def test_a_model_that_fails_in_the_moment_in_which_the_time_is_over_is_not_blamed():
    play = Play(spec(limits=Limits(max_seconds=60.0)), [ModelFailed(1, "timeout", "cut off")])
    asking = play.next()
    assert isinstance(asking, AskModel)
    assert asking.deadline is not None
    play.now = asking.deadline - play.tick
    play.ask(asking)
    play.run()
    assert play.state.ended is not None
    assert play.state.ended.reason == "seconds"


def test_of_two_calls_without_room_the_first_is_what_the_run_waits_for():
    play = Play(spec(), [asks(("a", "pay"), ("b", "pay"))])
    play.tool = lambda call: BudgetExceeded("cost_usd", 2, 1, "no", "pause", budget="team", call_id=call.call_id)
    action = play.run()
    assert isinstance(action, Wait)
    assert action.waiting.calls == ("a",)


def test_what_the_provider_has_counted_is_not_estimated_again():
    play = Play(
        spec(limits=Limits(max_tokens=320)), [asks(("a", "look"), usage=Usage(20, 5)), says("x")], says="x" * 800
    )
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_the_name_of_a_call_counts_for_the_size_of_the_next_request():
    name = "x" * 800
    limits = Limits(max_tokens=500)  # the description of the tool takes about 420
    play = Play(spec(limits=limits, tools=(rule(name),)), [asks(("a", name), usage=Usage()), says("x")])
    play.run()
    assert len(play.asked) == 1


def test_what_was_read_after_the_last_change_is_not_read_again():
    answers = [asks(("a", "save")), asks(("b", "look")), asks(("c", "look")), says("done")]
    play = Play(spec(duplicates="short_circuit"), answers)
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]


def test_an_empty_answer_takes_nothing_of_the_history_with_it():
    past = (user("before"), says("earlier").message)
    created = RunCreated("clerk", "s", history="sha256:1")
    asked = [created, RunClaimed(1), StepStarted(1), ModelResponded(1, says(""))]
    facts = [*asked, OutputRejected("empty", "again"), RunRetried(1, "repairs_exhausted"), RunClaimed(2)]
    state = fold(spec(repairs=Repairs(outputs=0)), "r1", enumerate(facts), past)
    assert state.transcript == list(past)


def test_a_question_with_choices_that_nobody_answers_in_time_is_over_all_the_same():
    play = Play(spec(), [asks(("a", "look")), says("done")])
    play.tool = lambda call: QuestionAsked("a", "look", "which?", ("x", "y"), expires_at=2e3)
    assert isinstance(play.run(), Wait)
    play.now = 2e3
    play.record(RunResumed("timer"))
    play.run()
    assert [answered.answer for answered in play.all(QuestionAnswered)] == [None]
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_run_that_nobody_holds_does_not_end_with_a_call_that_has_no_result():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"))), RunRetried(1, "worker_lost"))
    assert refusal(play.state, RunFailed("x", "x", "x")) == "1 calls have no result yet"


def test_a_cancellation_outlives_the_attempt_that_heard_it():
    play = Play(spec())
    play.record(CancelRequested("ann"), RunRetried(1, "worker_lost"), RunClaimed(2))
    play.run()
    assert isinstance(play.state.ended, RunCancelled)


def test_the_delays_of_a_model_in_trouble_double():
    play = Play(spec(repairs=Repairs(model=4)), [ModelFailed(1, "overloaded", "busy", retryable=True)] * 3)
    delays: list[float] = []
    for _ in range(3):
        play.run()
        failed_at = max(at for at, event in play.facts if isinstance(event, ModelFailed))
        assert play.state.waiting is not None
        delays.append(play.state.waiting.until - failed_at)
        play.record(RunResumed("timer"))
    assert delays == [2.0, 4.0, 8.0]


def test_no_child_is_left_less_than_nothing():
    left = remaining(Limits(max_steps=2, max_tokens=5, max_tool_calls=1), Spent(steps=3, input_tokens=9, tool_calls=2))
    assert (left.max_steps, left.max_tokens, left.max_tool_calls) == (0, 0, 0)


def test_a_contract_also_names_the_tools_that_may_be_looked_with():
    play = Play(spec(contract=Contract(("save",))), [asks(("a", "look"))])
    play.run()
    assert play.started == []
    assert isinstance(play.state.ended, RunFailed)


def test_a_marker_is_what_it_is_in_every_letter():
    play = Play(spec(contract=Contract((), ("TOTAL",)), repairs=Repairs(outputs=0)), [says("total 3")])
    play.run()
    assert isinstance(play.state.ended, RunFailed)


def test_what_an_answer_may_take_at_most_is_never_raised():
    play = Play(spec(limits=Limits(max_tokens=9000), settings=ModelSettings(max_output_tokens=100)), [says("x")])
    play.run()
    assert play.asked[0].request.settings.max_output_tokens == 100


def test_a_turn_that_comes_later_is_waited_for_and_neither_fails_nor_uses_up_the_time_of_the_run():
    late = ModelDelayed(1, START + 5000.0, "37 are in front", "default/main")
    play = Play(spec(limits=Limits(max_seconds=60.0), repairs=Repairs(model=0)), [late, late, says("done")])
    for until in (START + 5000.0, None):
        waiting = play.run()
        if until is None:
            break
        assert isinstance(waiting, Wait)
        assert (waiting.waiting.reason, waiting.waiting.owner, waiting.waiting.until) == ("model_limit", "timer", until)
        assert waiting.waiting.message == "37 are in front"
        play.now = until
        play.record(RunResumed("timer"))
    assert isinstance(play.state.ended, RunSucceeded)
    assert not play.all(RunFailed)
