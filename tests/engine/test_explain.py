"""Why, in plain words: each story from the journal of a run that really ran, where one can be made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.common.durations import duration
from foliot.common.process import identity
from foliot.common.text import one_line, visible
from foliot.engine.explain import amounts
from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import Explanation, RunLiveness, explain
from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall, ToolSpec, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run.spec import RunSpec, ToolRule
from foliot.tools.pipeline.attempt import GOES_ON


@tool(effect="read")
async def search(query: str) -> str:
    """Search."""
    if query == "bad":
        raise ValueError("the index is broken")
    return "nothing"


async def why(script, **spec) -> Explanation:
    agent = Agent("clerk", model=ScriptedModel(script), tools=[search], **spec)
    async with Runtime("memory:") as runtime:
        result = await runtime.run(agent, "Find it", check=False)
        info, state = await runtime.inside.runs.load(result.run_id)
        trace = trace_of(result.run_id, await runtime.inside.runs.facts(result.run_id))
        return explain(trace, RunLiveness(info.phase), state.spec, trace.last_at)


async def test_a_run_out_of_steps_names_what_used_them_up() -> None:
    told = await why([{"call": {"search": {"query": "x"}}, "repeat": 9}], limits={"max_steps": 3})

    assert told.headline == "It failed."
    verdict, last, habit = told.chain
    assert verdict == "budget_exceeded: the limit of 3 steps is reached"
    assert last == "step 3 of 3 still asked for search"
    assert habit == 'the model called search 3 times, always with query="x"'
    assert [hint.command.split()[1] for hint in told.next] == ["trace", "fork"]


async def test_failing_calls_are_part_of_the_chain() -> None:
    told = await why([{"call": {"search": {"query": "bad"}}, "repeat": 9}], limits={"max_steps": 2})

    assert "2 failed, the last one with" in told.chain[-1]
    assert "the index is broken" in told.chain[-1]
    assert any("search failed" in line for line in told.way)


async def test_a_model_that_cannot_be_asked_comes_with_advice() -> None:
    told = await why([{"fail": "auth"}])

    assert told.chain[0].startswith("model_failed:")
    assert "asked once by scripted: auth once" in told.chain[1]
    assert "secret" in told.chain[2]


async def test_answers_sent_back_are_the_chain_of_a_schema_mismatch() -> None:
    told = await why([{"say": "no json", "repeat": 5}], output={"type": "object"})

    assert told.chain[0].startswith("schema_mismatch: the answer does not fit")
    assert any(line.startswith("step 3: the answer was refused") for line in told.chain)  # nobody was asked again
    assert sum("was sent back" in line for line in told.chain) == 2
    assert sum("was sent back" in line for line in told.way) == 2
    assert told.chain[-1] == "the last answer was: no json"


async def test_calls_that_cannot_be_run_are_the_chain_of_exhausted_repairs() -> None:
    told = await why([{"call": {"teleport": {}}, "repeat": 9}])

    assert told.chain[0].startswith("invalid_tool_calls:")
    assert "there is no tool named 'teleport'" in told.chain[1]


async def test_a_price_that_nobody_knows_is_the_reason() -> None:
    told = await why([{"call": {"search": {"query": "x"}}, "repeat": 3}], limits={"max_cost_usd": 1})

    assert told.chain[0].startswith("budget_exceeded: the limit of 1")
    assert "no price is known for python:default/clerk" in told.chain[1]


async def test_tokens_name_the_dearest_steps() -> None:
    script = [{"call": {"search": {"query": "x"}}, "usage": {"input_tokens": 40, "output_tokens": 20}, "repeat": 9}]
    told = await why(script, limits={"max_tokens": 150})

    assert told.chain[0].startswith("budget_exceeded: ")
    assert "step 1 took 60" in told.chain[1]


async def test_success_says_what_it_answered_and_what_it_cost() -> None:
    script = [
        {"call": {"search": {"query": "x"}}, "usage": {"input_tokens": 100, "output_tokens": 10}},
        {"say": "Here.", "usage": {"input_tokens": 300, "output_tokens": 30}},
    ]
    told = await why(script)

    assert told.headline == "It succeeded after 2 steps and 1 tool call."
    assert told.chain == ["it answered: Here."]
    assert told.cost[0] == "440 tokens (400 in, 40 out), no price is known"
    assert told.cost[1] == "step 2: 330 tokens (75 %)"


async def test_repeated_calls_are_told_on_the_way() -> None:
    call = {"search": {"query": "x"}}
    told = await why([{"call": call}, {"call": call}, {"say": "done"}], execution={})

    assert any("asked for again with the same arguments" in line for line in told.way)


PAY = RunSpec("clerk", "m", tools=(ToolRule(ToolSpec("pay"), "once"),))


def paying(*after, worker: str = "vm.boot/4711/1") -> Explanation:
    call = ToolCall("c1", "pay", '{"amount": 5}')
    response = ModelResponse(Message("assistant", (call,)), Usage(10, 5, cost_usd=0.01), model="m")
    facts = [
        (100.0, e.RunCreated("clerk", "sha256:x", (Message("user", (Text("pay"),)),))),
        (100.0, e.RunClaimed(1, worker, 1)),
        (100.0, e.StepStarted(1)),
        (101.0, e.ModelResponded(1, response, 1.0)),
        (101.0, e.ToolStarted("c1", "pay", "k")),
        *after,
    ]
    phase, holder = ("running", "gone") if not after else ("waiting", "nobody")
    return explain(trace_of("r1", facts), RunLiveness(phase, holder), PAY, 160.0)


def test_an_ambiguous_payment_says_what_to_type() -> None:
    told = paying(
        (130.0, e.RunClaimed(2, "vm.boot/4712/1", 2)), (130.0, e.RunWaiting("unknown_effect", "person", ("c1",)))
    )

    assert told.headline == "It waits for a person to decide, since 30.0s ago."
    assert told.chain[0] == "nobody knows whether pay took effect: amount=5"
    assert [hint.command for hint in told.next] == [
        "foliot settle r1 c1 happened",
        "foliot settle r1 c1 run",
        "foliot settle r1 c1 fail",
    ]


LATE = "the tool 'pay' took longer than 3 s" + GOES_ON


def test_a_call_that_outlasted_its_time_can_act_only_while_its_process_lives() -> None:
    def told(worker: str, until: float | None = None) -> list[str]:
        unknown = e.ToolUnknown("c1", "timeout", LATE, until, seconds=3.0)
        waits = e.RunWaiting("unknown_effect", "person", ("c1",))
        return paying((104.0, unknown), (104.0, waits), worker=worker).chain

    alive, dead = identity(), identity().rpartition("/")[0] + "/1"  # a process of this number, begun another time

    assert told(alive)[1:3] == [LATE, "nobody can say until when it might still act"]
    assert told(alive, 104.0)[2] == "what made the call has ended; only what it had sent by then can still take effect"
    assert told(dead)[1] == "the tool 'pay' took longer than 3 s and went on when it was told to stop"
    assert told(dead)[2].endswith("made the call and has ended: nothing of it can act any more")


@pytest.mark.parametrize("task", ["", "default/t1"])
def test_a_run_that_waits_for_a_budget_says_who_goes_on_with_it(task: str) -> None:
    facts = [
        (100.0, e.RunCreated("clerk", "sha256:x", task=task)),
        (100.0, e.RunClaimed(1, "vm.boot/4711/1", 1)),
        (100.0, e.RunWaiting("budget", "budget", message="no room")),
    ]

    told = explain(trace_of("r1", facts), RunLiveness("waiting"), PAY, 107.0)

    assert ("`foliot resume r1` goes on with it" in told.chain[-1]) == (not task)
    assert (told.chain[-1] == "it goes on when the limit is raised") == bool(task)


def test_an_interrupted_payment_warns_before_it_is_taken_up() -> None:
    told = paying()

    assert told.headline == "It was interrupted 59.0s ago, and nobody drives it now."
    assert told.chain[0] == "process 4711 on vm is gone; it was calling pay (0ms)"
    assert "you will be asked whether it took effect" in told.chain[-1]
    assert told.next[0].command == "foliot resume r1"


def test_a_decision_that_ended_a_run_is_its_cause() -> None:
    told = paying(
        (130.0, e.RunClaimed(2, "vm.boot/4712/1", 2)),
        (130.0, e.RunWaiting("unknown_effect", "person", ("c1",))),
        (140.0, e.RunClaimed(3, "vm.boot/4713/1", 3)),
        (140.0, e.UnknownDecided("c1", "fail", "ann", "ask the bank")),
        (140.0, e.RunFailed("unknown_effect", "decided", "ask the bank")),
    )

    assert told.chain[0] == "unknown_effect: ask the bank"
    assert told.chain[1] == "decision: end the run (ask the bank), by ann"


def test_a_run_at_work_says_what_it_does() -> None:
    facts = [
        (100.0, e.RunCreated("clerk", "sha256:x")),
        (100.0, e.RunClaimed(1, "vm.boot/4711/1", 1)),
        (100.0, e.StepStarted(1)),
    ]

    told = explain(trace_of("r1", facts), RunLiveness("running", "alive"), PAY, 107.0)

    assert told.headline == "It is at work: asking the model for step 1 (7.0s)."
    assert told.chain == ["held by process 4711 on vm"]


def test_a_step_that_nobody_has_answered_yet_is_no_other_model() -> None:
    answer = ModelResponse(Message("assistant", (Text("hm"),)), Usage(10, 5), model="m")
    facts = [
        (100.0, e.RunCreated("clerk", "sha256:x")),
        (100.0, e.RunClaimed(1, "vm.boot/4711/1", 1)),
        (100.0, e.StepStarted(1)),
        (101.0, e.ModelResponded(1, answer, 1.0)),
        (101.0, e.StepStarted(2)),
    ]

    told = explain(trace_of("r1", facts), RunLiveness("running", "alive"), PAY, 107.0)

    assert told.cost == ["15 tokens (10 in, 5 out), no price is known"]


def test_a_model_that_is_asked_again_later_says_when() -> None:
    facts = [
        (100.0, e.RunCreated("clerk", "sha256:x")),
        (100.0, e.RunClaimed(1, "vm/1/1", 1)),
        (100.0, e.StepStarted(1)),
        (101.0, e.ModelFailed(1, "overloaded", "busy", retryable=True)),
        (101.0, e.RunWaiting("model_retry", "timer", until=161.0, message="the model failed 1 times")),
    ]

    told = explain(trace_of("r1", facts), RunLiveness("waiting"), PAY, 131.0)

    assert told.headline == "It waits for the model; it is asked again in 30.0s."
    assert told.chain[-1] == "overloaded: busy"


def test_an_approval_names_the_call() -> None:
    told = paying((102.0, e.RunWaiting("approval", "person", ("c1",), until=200.0, message="pay needs an approval")))

    assert told.headline == "It waits for an approval of pay, since 58.0s ago."
    assert "pay amount=5" in told.chain


def test_a_dead_letter_names_the_attempts() -> None:
    told = paying(
        (110.0, e.RunRetried(1, "lost", "the machine went away")),
        (120.0, e.RunDeadLettered("attempts", "too many attempts")),
    )

    assert told.chain == ["given up after 1 attempt: too many attempts", "attempt 1 broke down: the machine went away"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (0.0124, "12ms"),
        (0.0996, "0.1s"),
        (3.21, "3.2s"),
        (65, "1m05s"),
        (7800, "2h10m"),
        (90000, "1d1h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(None, "$?"), (0, "$0"), (0.00042, "$0.000420"), (0.0312, "$0.0312"), (1234.5, "$1,234.50")]
)
def test_money(usd: float | None, text: str) -> None:
    assert amounts.money(usd) == text


def test_arguments_are_shown_as_pairs_and_broken_ones_as_they_are() -> None:
    assert amounts.arguments('{"a": 1, "b": "x y"}', 80) == 'a=1 b="x y"'
    assert amounts.arguments("{nonsense", 80) == "{nonsense"
    assert amounts.arguments("", 80) == ""
    assert amounts.arguments('{"a": "' + "x" * 100 + '"}', 20) == 'a="' + "x" * 16 + "…"


@given(st.text())
def test_no_text_can_steer_a_terminal(text: str) -> None:
    assert not any(ord(char) < 32 and char not in "\n\t" for char in visible(text))
    line = one_line(text, 40)
    assert len(line) <= 40
    assert line.isprintable() or not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line)
