"""The plain way of a run: questions, calls, results, an answer."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import Media, Message, ModelResponse, ModelSettings, Text, ToolCall, ToolResult, Usage
from foliot.kernel.run.actions import AskModel, Await, CallTools, End, Stop
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import (
    Fork,
    InputReceived,
    ModelResponded,
    RunClaimed,
    RunCreated,
    RunFailed,
    RunSucceeded,
    SessionCompacted,
    StepStarted,
    ToolFinished,
)
from foliot.kernel.run.loop import MOST_PAUSES, apply, decide, fold
from foliot.kernel.run.spec import Contract, Repairs
from foliot.kernel.run.state import State
from tests.kernel.play import Play, asks, failure, result, rule, says, spec, user


def test_a_run_with_one_tool_call_writes_this_journal():
    play = Play(spec(), [asks(("c1", "look", '{"q":1}')), says("42")])

    end = play.run()

    assert isinstance(end, End)
    assert play.journal == [
        "run.created",
        "run.claimed",
        "step.started",
        "model.responded",
        "tool.started",
        "tool.finished",
        "step.started",
        "model.responded",
        "run.succeeded",
    ]
    assert play.state.ended == RunSucceeded("42", None, 2, 1, Usage(20, 10, cost_usd=0.02))
    assert decide(play.state) == Stop(play.state.ended)


def test_the_transcript_is_what_was_said_in_order():
    play = Play(spec(), [asks(("c1", "look"), text="let me see"), says("42")])
    play.run()
    assert play.state.transcript == [
        user("go"),
        Message("assistant", (Text("let me see"), ToolCall("c1", "look", "{}"))),
        Message("tool", (ToolResult("c1", "look", (Text("ok"),)),)),
        Message("assistant", (Text("42"),)),
    ]


def test_requests_share_their_prefix_and_list_tools_by_name():
    shuffled = (rule("zebra"), rule("apple"), rule("mango"))
    play = Play(spec(tools=shuffled), [asks(("c1", "mango")), asks(("c2", "apple")), says("done")])
    play.run()
    first, second, third = (action.request for action in play.asked)
    assert [tool.name for tool in first.tools] == ["apple", "mango", "zebra"]
    assert first.system == second.system == "Be brief."
    assert first.tools == second.tools == third.tools
    assert second.messages[: len(first.messages)] == first.messages
    assert third.messages[: len(second.messages)] == second.messages


def test_calls_of_one_step_start_together():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "save"), ("c", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    assert [call.call_id for call in action.calls] == ["a", "b", "c"]
    assert [call.key for call in action.calls] == ["r1/a", "r1/b", "r1/c"]


def test_results_stand_in_call_order_whichever_finishes_first():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "save"), ("c", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(*(call.started() for call in action.calls))
    for call in reversed(action.calls):
        play.record(ToolFinished(result(call, f"by {call.call_id}")))
    play.run()
    assert [r.text for r in play.results()] == ["by a", "by b", "by c"]


def test_no_more_calls_are_under_way_than_allowed():
    play = Play(spec(limits=Limits(parallel_tools=2)))
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "look"), ("c", "look"))))
    action = play.next()
    assert isinstance(action, CallTools)
    assert [call.call_id for call in action.calls] == ["a", "b"]
    play.record(*(call.started() for call in action.calls))
    assert play.next() == Await(calls=("a", "b"))
    play.record(ToolFinished(result(action.calls[1])))
    following = play.next()
    assert isinstance(following, CallTools)
    assert [call.call_id for call in following.calls] == ["c"]


def test_while_the_model_thinks_the_kernel_waits_for_it():
    play = Play(spec())
    assert isinstance(play.next(), AskModel)
    assert play.next() == Await(model=True)


def test_a_failed_tool_is_told_to_the_model_and_the_run_goes_on():
    play = Play(spec(), [asks(("c1", "look")), says("sorry")], tool=lambda call: ToolFinished(failure(call)))
    play.run()
    assert play.results()[0].error is not None
    assert isinstance(play.state.ended, RunSucceeded)


def test_the_first_tool_result_is_the_answer_when_the_agent_stops_on_it():
    behaviour = spec(tool_use_behavior="stop_on_first_tool")
    play = Play(behaviour, [asks(("c1", "look"), text="I look")], tool=lambda c: ToolFinished(result(c, "found it")))
    play.run()
    assert play.state.ended == RunSucceeded("found it", None, 1, 1, Usage(10, 5, cost_usd=0.01))


def test_the_first_of_several_results_is_the_answer():
    play = Play(spec(tool_use_behavior="stop_on_first_tool"), [asks(("a", "look"), ("b", "save"))])
    play.tool = lambda call: ToolFinished(result(call, call.name))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "look"


def test_a_failed_tool_does_not_end_the_run():
    play = Play(spec(), [asks(("a", "look")), says("no luck")])
    play.tool = lambda call: ToolFinished(failure(call), ends_run=True)
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "no luck"


def test_a_failed_tool_is_no_answer_for_an_agent_that_stops_on_the_first():
    behaviour = spec(tool_use_behavior="stop_on_first_tool")
    play = Play(behaviour, [asks(("c1", "look")), says("no luck")], tool=lambda call: ToolFinished(failure(call)))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "no luck"


def test_a_tool_can_end_the_run_with_its_result():
    play = Play(
        spec(),
        [asks(("a", "look"), ("b", "save"))],
        tool=lambda c: ToolFinished(result(c, c.name), ends_run=c.name == "save"),
    )
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "save"


def test_what_a_delegated_run_spent_counts_for_this_one():
    play = Play(
        spec(),
        [asks(("a", "look")), says("x")],
        tool=lambda c: ToolFinished(result(c), usage=Usage(100, 50, cost_usd=1.0)),
    )
    play.run()
    assert play.state.spent.tokens == 150 + 30
    assert play.state.spent.cost_usd == 1.02


def test_an_answer_that_is_a_picture_is_an_answer():
    picture = ModelResponse(Message("assistant", (Media("image/png", data="aGk="),)))
    play = Play(spec(), [picture])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


# --- inputs


def test_a_steering_input_is_taken_after_the_results_of_the_step():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"))))
    play.record(InputReceived("i1", user("rather use the blue one")))
    play.run()
    assert [message.role for message in play.asked[0].request.messages] == ["user", "assistant", "tool", "user"]
    assert play.asked[0].request.messages == tuple(play.state.transcript[:-1])


def test_an_input_that_comes_before_the_run_finishes_is_answered():
    play = Play(spec(), [says("second answer")])
    play.record(StepStarted(1))
    play.record(InputReceived("i1", user("one more thing")))
    play.record(ModelResponded(1, says("first answer")))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "second answer"
    assert play.state.transcript[-2] == user("one more thing")


def test_a_followup_waits_until_the_run_would_finish():
    play = Play(spec(), [asks(("a", "look")), says("first"), says("second")])
    play.record(InputReceived("i1", user("and then?"), "followup"))
    play.run()
    assert [user("and then?") in action.request.messages for action in play.asked] == [False, False, True]


def test_an_input_is_not_answered_beyond_the_budget_and_the_answer_stands():
    play = Play(spec(limits=Limits(max_steps=1)))
    play.record(StepStarted(1), InputReceived("i1", user("late")), ModelResponded(1, says("answer")))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert [given.input_id for given in play.state.inputs] == ["i1"]


def test_an_interrupt_skips_what_has_not_started_and_waits_for_what_has():
    play = Play(spec(limits=Limits(parallel_tools=1)), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "save"), ("b", "pay"))))
    action = play.next()
    assert isinstance(action, CallTools)
    play.record(action.calls[0].started())
    play.record(InputReceived("i1", user("stop that"), "interrupt"))
    assert play.next() == Await(calls=("a",))
    play.record(ToolFinished(result(action.calls[0])))
    play.run()
    assert [r.error.code if r.error else "ok" for r in play.results()] == ["ok", "interrupted"]
    assert [finished.synthetic for finished in play.all(ToolFinished)] == ["interrupted", None]
    assert play.asked[0].request.messages[-1] == user("stop that")


def test_an_interrupt_while_the_model_thinks_skips_the_calls_it_asks_for():
    play = Play(spec(), [says("done")])
    play.record(StepStarted(1), InputReceived("i1", user("no"), "interrupt"), ModelResponded(1, asks(("a", "pay"))))
    play.run()
    assert play.started == []
    assert isinstance(play.state.ended, RunSucceeded)


def test_an_interrupt_holds_for_one_step():
    play = Play(spec(), [asks(("b", "look")), says("done")])
    play.record(StepStarted(1), InputReceived("i1", user("no"), "interrupt"), ModelResponded(1, asks(("a", "pay"))))
    play.run()
    assert [call.call_id for call in play.started] == ["b"]


def test_an_answer_that_was_followed_by_an_input_is_not_the_answer_of_the_run():
    play = Play(spec(), [asks(("a", "look")), says("second")])
    play.record(StepStarted(1), InputReceived("i1", user("wait")), ModelResponded(1, says("first")))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "second"


# --- history, fork, compaction


def test_a_run_goes_on_from_the_history_it_is_given():
    past = (
        user("before"),
        Message("assistant", (ToolCall("c1", "look"),)),
        Message("tool", (result("c1", name="look"),)),
    )
    play = Play(spec(), [asks(("c1", "look")), says("x")], history=past)
    play.run()
    assert play.asked[0].request.messages == (*past, user("go"))
    assert play.started[0].call_id == "c1-2"


@pytest.mark.parametrize(("fork", "ended"), [(Fork("r0", 9), RunSucceeded), (None, RunFailed)])
def test_what_a_fork_inherits_counts_for_its_contract_and_an_old_conversation_does_not(fork, ended):
    past = (Message("assistant", (ToolCall("c1", "look"),)), Message("tool", (result("c1", name="look"),)))
    owed = spec(contract=Contract(("look",)), repairs=Repairs(outputs=0))
    created = RunCreated("clerk", "s", (user("go"),), history="sha256:1", fork=fork)
    answered = ModelResponded(1, says("done"))
    state = fold(owed, "r1", enumerate([created, RunClaimed(1), StepStarted(1), answered]), past)
    while not isinstance(action := decide(state), Stop):
        for event in action.events:
            apply(state, event, 9.0)
    assert isinstance(action.terminal, ended)


def test_the_history_counts_for_the_size_of_the_first_request():
    play = Play(spec(limits=Limits(max_tokens=100)), history=(user("x" * 800),))
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert play.state.ended.reason == "tokens"


def test_after_a_compaction_the_next_request_is_as_small_as_it_is():
    play = Play(spec(limits=Limits(max_tokens=200)), [asks(("a", "look"), usage=Usage(90, 10)), says("done")])
    play.ask(play.next())
    play.call(play.next())
    play.record(SessionCompacted(3, user("summary")))
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_fork_starts_from_messages_in_which_every_call_is_answered():
    play = Play(spec())
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"))))
    assert play.state.settled_messages() == (user("go"),)
    action = play.next()
    assert isinstance(action, CallTools)
    play.call(action)
    assert len(play.state.settled_messages()) == 3


def test_a_compaction_replaces_what_is_sent_and_keeps_the_rest():
    play = Play(spec(), [asks(("a", "look")), says("done")])
    play.ask(play.next())
    play.call(play.next())
    play.record(SessionCompacted(1, user("summary")))
    play.run()
    assert play.asked[1].request.messages[0] == user("summary")
    assert [message.role for message in play.asked[1].request.messages] == ["user", "assistant", "tool"]


def test_a_new_state_has_nothing_of_the_old_one():
    one, two = State(spec(), "a"), State(spec(), "b")
    one.transcript.append(user("x"))
    one.call_ids.add("c")
    assert two.transcript == []
    assert not two.call_ids
    assert RunCreated("a", "b").definitions == {}


def test_a_model_that_pauses_goes_on_without_a_word_and_nothing_of_its_answer_is_lost():
    play = Play(spec(), [says("First, ", stop="pause"), says("", stop="pause"), says("then.")])
    play.run()
    assert play.state.ended == RunSucceeded("First, then.", None, 3, 0, Usage(30, 15, cost_usd=0.03))
    assert play.state.transcript == [
        user("go"),
        Message("assistant", (Text("First, "),)),
        Message("assistant", (Text("then."),)),
    ]


def test_a_model_that_does_nothing_but_pause_is_stopped():
    play = Play(spec(limits=Limits(max_steps=500)), [says("", stop="pause")] * 100)
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert (play.state.ended.code, play.state.ended.reason) == ("budget_exceeded", "steps")
    assert "paused in one answer 20 times" in play.state.ended.message
    assert play.state.spent.steps == MOST_PAUSES
    pauses = [says("", stop="pause")] * (MOST_PAUSES - 1)
    steady = [*pauses, asks(("c", "look")), *pauses, says("42")]
    play = Play(spec(limits=Limits(max_steps=500)), steady)
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_model_that_paused_is_told_nothing_about_its_budget():
    play = Play(spec(budget_notes=True), [says("So, ", stop="pause"), says("then.")])
    play.run()
    asked = [action.request.messages[-1].role for action in play.asked]
    assert asked == ["user", "assistant"]


def test_what_a_model_said_in_a_pause_before_a_call_is_not_part_of_its_answer():
    play = Play(spec(), [says("Let me see. ", stop="pause"), asks(("c1", "look")), says("42")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.state.ended.output == "42"


def test_a_refusal_says_what_the_provider_says_of_it():
    refused = ModelResponse(Message("assistant", (Text("No."),)), stop="refusal", detail="refused (cyber)")
    play = Play(spec(), [refused])
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert play.state.ended.message == "refused (cyber)"


@pytest.mark.parametrize(
    ("choice", "answers", "sent"),
    [
        ("required", [says("no"), says("42")], ["required"]),
        ("required", [asks(("c1", "look")), says("42")], ["required", "auto"]),
        ("required", [asks(("c1", "missing")), asks(("c2", "look")), says("42")], ["required", "required", "auto"]),
        ("save", [asks(("c1", "look")), asks(("c2", "save")), says("42")], ["save", "save", "auto"]),
        ("unheard", [asks(("c1", "look")), says("42")], ["auto", "auto"]),
        ("none", [says("42")], ["none"]),
    ],
)
def test_a_call_is_forced_until_it_was_made(choice: str, answers: list[ModelResponse], sent: list[str]):
    asked: list[str] = []

    def heard(answer: ModelResponse):
        def respond(action: AskModel) -> ModelResponse:
            asked.append(action.request.settings.tool_choice)
            return answer

        return respond

    Play(spec(settings=ModelSettings(tool_choice=choice)), [heard(answer) for answer in answers]).run()
    assert asked == sent
