"""The execution contract, repeats of a call, and the output schema."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import ToolSpec
from foliot.kernel.run.actions import CallTools, Wait
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.events import (
    EQUALITY,
    ApprovalDecided,
    ApprovalRequested,
    ContractViolated,
    InputReceived,
    ModelResponded,
    OutputRejected,
    RunFailed,
    RunSucceeded,
    StepStarted,
    ToolFinished,
    ToolStarted,
    UnknownDecided,
)
from foliot.kernel.run.rules import refusal
from foliot.kernel.run.spec import Contract, Repairs, ToolRule
from tests.kernel.play import TOOLS, Play, asks, failure, result, says, spec, user


def owes(*tools: str, markers: tuple[str, ...] = (), observe: bool = False, **changes: object):
    contract = Contract(tools, markers, "observe" if observe else "fail")
    return spec(contract=contract, **changes)


# --- required tools and markers


def test_a_contract_that_is_kept_changes_nothing():
    play = Play(owes("look", "pay", markers=("TOTAL",)), [asks(("a", "pay")), asks(("b", "look")), says("TOTAL 3")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.all(ContractViolated) == []


def test_an_answer_without_the_required_tools_is_sent_back_first():
    play = Play(owes("look"), [says("no need"), asks(("a", "look")), says("done")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.all(OutputRejected)[0].problems == ("look",)
    assert "look" in play.asked[1].request.messages[-1].text


def test_an_answer_that_stays_without_the_required_tools_is_a_violation():
    play = Play(owes("look", repairs=Repairs(outputs=1)), [says("no"), says("no")])
    play.run()
    assert isinstance(play.state.ended, RunFailed)
    assert play.state.ended.code == "contract_violation"
    assert [violated.rule for violated in play.all(ContractViolated)] == ["required_tools"]


def test_a_required_tool_must_have_succeeded():
    play = Play(owes("look", repairs=Repairs(outputs=0)), [asks(("a", "look")), says("done")])
    play.tool = lambda call: ToolFinished(failure(call))
    play.run()
    assert play.state.ended.code == "contract_violation"


def test_missing_markers_are_a_violation_and_no_silent_success():
    play = Play(owes(markers=("TOTAL", "EUR"), repairs=Repairs(outputs=1)), [says("TOTAL 3"), says("EUR 3")])
    play.run()
    assert play.state.ended.code == "contract_violation"
    assert "'TOTAL'" in play.state.ended.message


def test_a_model_is_not_sent_back_when_no_step_is_left():
    play = Play(owes("look", limits=Limits(max_steps=1)), [says("no")])
    play.run()
    assert play.state.ended.code == "contract_violation"
    assert play.all(OutputRejected) == []


def test_under_observe_the_violations_are_recorded_and_the_run_succeeds():
    play = Play(owes("look", markers=("TOTAL",), observe=True), [says("no")], equality=EQUALITY)
    play.run()
    assert play.all(OutputRejected) == []  # no answer is sent back, so watching costs no question
    assert [(v.rule, v.observed) for v in play.all(ContractViolated)] == [("required_tools", True), ("markers", True)]
    assert isinstance(play.state.ended, RunSucceeded)


# --- undeclared tools


def test_a_tool_that_the_contract_does_not_name_is_not_run():
    play = Play(owes("look"), [asks(("a", "pay"), ("b", "look"))])
    play.run()
    assert play.started == []
    assert play.state.ended.code == "contract_violation"
    assert len(play.results()) == 2


def test_under_observe_a_tool_that_the_contract_does_not_name_is_run():
    play = Play(owes("look", observe=True), [asks(("a", "pay"), ("b", "look")), says("done")])
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]
    assert [(v.rule, v.call_id) for v in play.all(ContractViolated)] == [("undeclared_tool", "a")]
    assert isinstance(play.state.ended, RunSucceeded)


def test_a_call_that_breaks_the_contract_cannot_be_started():
    play = Play(owes("look"))
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "pay"))))
    assert refusal(play.state, ToolStarted("a", "pay", "r1/a")) is not None


# --- repeats


def repeating(*arguments: str, tool: str = "save", **changes: object) -> Play:
    answers = [asks((f"c{n}", tool, text)) for n, text in enumerate(arguments)]
    play = Play(spec(**{"duplicates": "short_circuit", **changes}), [*answers, says("done")])
    play.run()
    return play


def test_repeats_are_run_unless_the_spec_says_otherwise():
    assert len(repeating("{}", "{}", duplicates="allow").started) == 2


def test_an_equal_call_is_answered_with_the_earlier_result():
    play = repeating('{"a":1,"b":2}', '{"b": 2, "a": 1}')
    assert len(play.started) == 1
    assert play.results()[1].text.startswith("ok")
    assert "not run again" in play.results()[1].text
    assert play.results()[1].error is None
    assert play.all(ToolFinished)[1].synthetic == "duplicate"


def test_other_arguments_are_another_call():
    assert len(repeating('{"a":1}', '{"a":2}').started) == 2


RUN = ToolRule(ToolSpec("run"), "once", repeats=True)


def test_a_tool_whose_calls_mean_something_else_each_time_is_run_each_time():
    play = repeating("{}", "{}", tool="run", tools=(*TOOLS, RUN))
    assert len(play.started) == 2
    assert all(event.synthetic is None for event in play.all(ToolFinished))


def test_equal_calls_of_such_a_tool_in_one_step_are_both_made():
    play = Play(spec(duplicates="short_circuit", tools=(RUN,)), [asks(("a", "run"), ("b", "run")), says("done")])
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]


def test_an_agent_that_denies_repeats_denies_them_of_every_tool():
    answers = [asks(("a", "run")), asks(("b", "run")), says("done")]
    play = Play(spec(duplicates="deny", tools=(RUN,)), answers, equality=EQUALITY)
    play.run()
    assert len(play.started) == 1
    assert play.results()[1].error.reason == "duplicate_call"


def test_a_repeat_of_what_may_have_acted_is_held_for_such_a_tool_too():
    play = Play(
        spec(duplicates="short_circuit", tools=(RUN,), limits=Limits(parallel_tools=1)),
        [asks(("a", "run"), ("b", "run")), says("done")],
    )
    play.ask(play.next())
    play.record(play.next().calls[0].started())
    play.crash()
    assert isinstance(play.run(), Wait)
    assert play.started == []
    play.record(UnknownDecided("a", "happened", by="ann"))
    play.run()
    assert [call.call_id for call in play.started] == ["b"]


def test_a_failed_call_may_be_made_again():
    play = Play(spec(duplicates="short_circuit"), [asks(("a", "save")), asks(("b", "save")), says("done")])
    play.tool = lambda call: ToolFinished(failure(call))
    play.run()
    assert len(play.started) == 2


def test_a_third_equal_call_says_once_that_it_was_not_run():
    play = repeating("{}", "{}", "{}")
    assert play.results()[2].text.count("not run again") == 1


def test_a_reading_tool_is_asked_again_after_something_may_have_changed():
    answers = [asks(("a", "look")), asks(("b", "look")), asks(("c", "save")), asks(("d", "look")), says("done")]
    play = Play(spec(duplicates="short_circuit"), answers)
    play.run()
    assert [call.call_id for call in play.started] == ["a", "c", "d"]


def test_what_was_read_while_something_changed_is_read_again():
    play = Play(spec(duplicates="short_circuit"), [asks(("c", "look")), says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "look"), ("b", "save"))))
    look, save = play.next().calls
    play.record(look.started(), save.started())
    play.record(ToolFinished(result(save)), ToolFinished(result(look, "as it was before")))
    play.run()
    assert [call.call_id for call in play.started] == ["c"]


def test_a_change_that_a_person_confirmed_after_a_crash_is_a_change():
    play = Play(spec(duplicates="short_circuit"), [asks(("a", "look")), asks(("b", "pay")), asks(("c", "look"))])
    play.ask(play.next())
    play.call(play.next())
    play.ask(play.next())
    play.record(play.next().calls[0].started())
    play.crash()
    assert isinstance(play.run(), Wait)
    play.record(UnknownDecided("b", "happened", by="ann"))
    play.ask(play.next())
    action = play.next()
    assert isinstance(action, CallTools)
    assert [call.call_id for call in action.calls] == ["c"]


def test_a_call_that_was_refused_has_changed_nothing():
    play = Play(
        spec(duplicates="short_circuit"), [asks(("a", "look")), asks(("b", "pay")), asks(("c", "look")), says("x")]
    )
    tool = play.tool
    play.tool = lambda call: ApprovalRequested("b", "ap", "pay", "d") if call.name == "pay" else tool(call)
    play.run()
    play.record(ApprovalDecided("b", "deny"))
    play.run()
    assert [call.call_id for call in play.started] == ["a"]


def test_a_tool_with_effects_is_not_repeated_whatever_happened_since():
    answers = [asks(("a", "save")), asks(("b", "pay")), asks(("c", "save")), says("done")]
    play = Play(spec(duplicates="short_circuit"), answers)
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]


def test_an_old_result_does_not_stand_in_for_a_call_that_just_failed():
    answers = [asks(("a", "look")), asks(("b", "save")), asks(("c", "look"), ("d", "look")), says("done")]
    play = Play(spec(duplicates="short_circuit"), answers)
    play.tool = lambda call: ToolFinished(failure(call) if call.call_id == "c" else result(call))
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b", "c", "d"]


def test_a_repeat_that_was_skipped_by_an_interrupt_breaks_nothing():
    play = Play(owes("save", duplicates="deny"), [says("done")])
    play.record(StepStarted(1), ModelResponded(1, asks(("a", "save"), ("b", "save"), ("c", "save", '{"x":1}'))))
    action = play.next()
    play.record(*(call.started() for call in action.calls), InputReceived("i1", user("stop"), "interrupt"))
    play.next()
    play.record(ToolFinished(result(action.calls[0])))
    play.next()
    play.record(ToolFinished(result(action.calls[1])))
    play.run()
    assert play.all(ContractViolated) == []
    assert isinstance(play.state.ended, RunSucceeded)


def test_equal_calls_of_one_step_are_made_one_after_the_other():
    play = Play(spec(duplicates="short_circuit"), [asks(("a", "pay"), ("b", "pay"), ("c", "pay")), says("done")])
    play.run()
    assert [call.call_id for call in play.started] == ["a"]
    assert [r.call_id for r in play.results()] == ["a", "b", "c"]


def test_the_second_of_two_equal_calls_is_made_when_the_first_fails():
    play = Play(spec(duplicates="short_circuit"), [asks(("a", "pay"), ("b", "pay"), ("c", "pay")), says("done")])
    play.tool = lambda call: ToolFinished(failure(call) if call.call_id == "a" else result(call))
    play.run()
    assert [call.call_id for call in play.started] == ["a", "b"]


def test_a_call_whose_equal_was_edited_by_a_person_is_made():
    play = Play(spec(duplicates="short_circuit"), [asks(("a", "pay"), ("b", "pay")), says("done")])
    play.tool = lambda c: ToolFinished(result(c)) if c.grant else ApprovalRequested(c.call_id, c.call_id, "pay", "d")
    play.run()
    play.record(ApprovalDecided("a", "edit", arguments='{"x":1}'))
    play.run()
    play.record(ApprovalDecided("b", "approve"))
    play.run()
    assert [(call.call_id, call.arguments) for call in play.started] == [("a", '{"x":1}'), ("b", "{}")]
    assert isinstance(play.state.ended, RunSucceeded)


def test_denied_repeats_violate_a_contract():
    play = Play(owes("save", duplicates="deny"), [asks(("a", "save")), asks(("b", "save"))])
    play.run()
    assert len(play.started) == 1
    assert play.state.ended.code == "contract_violation"
    assert play.all(ContractViolated)[0].rule == "duplicate_call"


@pytest.mark.parametrize("answers", [[asks(("a", "save"), ("b", "save"))], [asks(("a", "save")), asks(("b", "save"))]])
def test_denied_repeats_are_skipped_under_observe(answers):
    play = Play(owes("save", duplicates="deny", observe=True), [*answers, says("done")])
    play.run()
    assert [call.call_id for call in play.started] == ["a"]
    assert play.results()[1].error.code == "runtime_policy_invalid"
    assert isinstance(play.state.ended, RunSucceeded)


def test_without_a_contract_denied_repeats_are_refused_and_the_run_goes_on():
    answers = [asks(("c0", "save")), asks(("c1", "save")), says("done")]
    play = Play(spec(duplicates="deny"), answers, equality=EQUALITY)
    play.run()
    assert len(play.started) == 1
    assert play.results()[1].error.reason == "duplicate_call"
    assert isinstance(play.state.ended, RunSucceeded)


# --- the output schema

SCHEMA = {"type": "object"}


def test_an_answer_of_the_wanted_shape_is_the_value_of_the_run():
    play = Play(spec(output_schema=SCHEMA), [says("[1]")])
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert (play.state.ended.output, play.state.ended.value) == ("[1]", [1])
    assert play.asked[0].request.output_schema == SCHEMA


def test_an_answer_of_another_shape_is_sent_back():
    play = Play(spec(output_schema=SCHEMA), [says("bad"), says("good")], check=lambda text: text == "good")
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert play.asked[1].request.messages[-1].text == "not like that"


def test_an_answer_that_never_fits_fails_the_run():
    play = Play(spec(output_schema=SCHEMA, repairs=Repairs(outputs=2)), [says("bad")] * 5, check=lambda text: False)
    play.run()
    assert play.state.ended.code == "schema_mismatch"
    assert "bad" in play.state.ended.message
    assert len(play.asked) == 3


def test_the_answer_is_checked_again_after_a_crash_between_check_and_end():
    play = Play(spec(output_schema=SCHEMA), [says("[1]")])
    play.ask(play.next())
    play.crash()
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert len(play.asked) == 1


def test_a_tool_result_that_ends_the_run_is_held_against_the_contract():
    play = Play(
        owes("look", "pay", tool_use_behavior="stop_on_first_tool"),
        [asks(("a", "look")), asks(("b", "pay")), says("x")],
    )
    play.run()
    assert isinstance(play.state.ended, RunSucceeded)
    assert [call.name for call in play.started] == ["look", "pay"]
