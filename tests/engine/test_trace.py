"""Journals as trees: of runs that really ran, and of what crashes and people do to them."""

from __future__ import annotations

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.explain.trace import CallTrace, Trace, total, trace_of
from foliot.kernel.messages import Message, ModelResponse, Reasoning, Text, ToolCall, ToolResult, Usage
from foliot.kernel.run import events as e


@tool(effect="read")
async def population(city: str) -> int:
    """How many people live in a city."""
    return {"Oslo": 717_000}[city]


async def traced(script, *, input: str = "Oslo?", **spec) -> Trace:
    agent = Agent("clerk", model=ScriptedModel(script), tools=[population], **spec)
    async with Runtime("memory:") as runtime:
        result = await runtime.run(agent, input, check=False)
        return trace_of(result.run_id, await runtime.inside.runs.facts(result.run_id))


async def test_a_run_is_steps_with_an_answer_and_calls() -> None:
    trace = await traced([{"say": "One moment.", "call": {"population": {"city": "Oslo"}}}, {"say": "{last_result}"}])

    assert (trace.agent, trace.input, len(trace.steps)) == ("clerk", "Oslo?", 2)
    first, second = trace.steps
    assert (first.text, first.usage.total_tokens > 0) == ("One moment.", True)
    (call,) = first.calls
    assert (call.name, call.arguments, call.result, call.ok) == ("population", '{"city":"Oslo"}', "717000", True)
    assert call.seconds is not None
    assert second.text == "717000"
    assert isinstance(trace.ended, e.RunSucceeded)
    assert trace.usage == trace.ended.usage
    assert trace.marks == []


def test_calls_without_ids_are_named_as_the_kernel_names_them() -> None:
    parts = (Reasoning("hm"), Text("One moment."), ToolCall("", "look", "{}"), ToolCall("", "look", "{}"))
    answer = e.ModelResponded(1, ModelResponse(Message("assistant", parts)))
    done = [e.ToolFinished(ToolResult(name, "look", (Text("ok"),))) for name in ("call_1_2", "call_1_3")]
    trace = trace_of("r", [(1.0, e.StepStarted(1)), (2.0, answer), *((3.0, each) for each in done)])

    assert [(call.id, call.result) for call in trace.calls] == [("call_1_2", "ok"), ("call_1_3", "ok")]


async def test_a_failed_call_keeps_its_error() -> None:
    trace = await traced([{"call": {"population": {"city": "Atlantis"}}}, {"say": "no"}])

    (call,) = trace.calls
    assert not call.ok
    assert call.error is not None
    assert "KeyError" in call.error.message


async def test_a_call_that_cannot_be_run_says_why_it_was_answered() -> None:
    trace = await traced([{"call": {"teleport": {}}}, {"say": "sorry"}])

    (call,) = trace.calls
    assert (call.starts, call.synthetic, call.ok) == ([], "invalid", False)


async def test_a_limit_is_a_mark_in_the_last_step() -> None:
    trace = await traced([{"call": {"population": {"city": "Oslo"}}, "repeat": 9}], limits={"max_steps": 2})

    (mark,) = trace.marks
    assert (mark.kind, mark.text) == ("budget", "the limit of 2 steps is reached")
    assert trace.steps[-1].marks == [mark]


async def test_an_answer_that_was_sent_back_is_a_mark() -> None:
    schema = {"type": "object", "required": ["people"]}
    trace = await traced([{"say": "many"}, {"say": '{"people": 7}'}], output=schema)

    (mark,) = trace.steps[0].marks
    assert mark.kind == "rejected"
    assert "schema" in mark.text


CREATED = (100.0, e.RunCreated("clerk", "sha256:x", (Message("user", (Text("hi"),)),)))
CLAIMED = (100.0, e.RunClaimed(1, "vm/1/1", 1))


def asked(step: int, *calls: ToolCall, say: str = "", at: float = 101.0):
    message = Message("assistant", (*((Text(say),) if say else ()), *calls))
    response = ModelResponse(message, Usage(10, 5, cost_usd=0.5), model="m")
    return [(at, e.StepStarted(step)), (at + 1, e.ModelResponded(step, response, 0.75))]


def test_a_crash_in_a_call_leaves_it_unknown_and_says_how_long_nobody_worked() -> None:
    facts = [
        CREATED,
        CLAIMED,
        *asked(1, ToolCall("c1", "pay", "{}")),
        (102.0, e.ToolStarted("c1", "pay", "k")),
        (112.0, e.RunClaimed(2, "vm/2/2", 2)),
        (112.0, e.RunWaiting("unknown_effect", "person", ("c1",), message="did it?")),
    ]

    trace = trace_of("r1", facts)

    (call,) = trace.calls
    assert call.unknown
    interrupted, waiting = trace.marks
    assert (interrupted.kind, interrupted.seconds) == ("interrupted", 10.0)
    assert "pay was under way" in interrupted.text
    assert (waiting.kind, trace.waiting_since, trace.idle) == ("waiting", 112.0, 10.0)


def test_taking_up_a_waiting_run_is_no_second_crash() -> None:
    facts = [
        CREATED,
        CLAIMED,
        *asked(1, ToolCall("c1", "pay", "{}")),
        (102.0, e.ToolStarted("c1", "pay", "k")),
        (103.0, e.RunClaimed(2, "vm/2/2", 2)),
        (103.0, e.RunWaiting("unknown_effect", "person", ("c1",))),
        (200.0, e.RunClaimed(3, "vm/3/3", 3)),
        (200.0, e.UnknownDecided("c1", "run", "ann")),
        (200.0, e.RunResumed("unknown_effect")),
        (200.0, e.ToolStarted("c1", "pay", "k", 2)),
        (201.0, e.ToolFinished(ToolResult("c1", "pay", (Text("paid"),)), 1.0)),
    ]

    trace = trace_of("r1", facts)

    assert [mark.kind for mark in trace.marks] == ["interrupted", "waiting", "decided"]
    assert trace.waited == 97.0
    assert trace.waiting is None
    (call,) = trace.calls
    assert (call.starts, call.unknown, call.ok) == ([102.0, 200.0], False, True)


def test_an_answer_lost_with_its_worker_is_told_from_the_one_that_came() -> None:
    facts = [CREATED, CLAIMED, (101.0, e.StepStarted(1)), (105.0, e.RunClaimed(2, "vm/2/2", 2)), *asked(1, say="hi")]

    (step,) = trace_of("r1", facts).steps

    assert [ask.lost for ask in step.asks] == [True, False]
    assert step.seconds == 0.75


def test_model_failures_belong_to_the_question_they_answer() -> None:
    facts = [
        CREATED,
        CLAIMED,
        (101.0, e.StepStarted(1)),
        (103.0, e.ModelFailed(1, "overloaded", "busy", retryable=True, status=529, provider="acme")),
        (103.0, e.RunWaiting("model_retry", "timer", until=105.0)),
        (105.0, e.RunResumed("timer")),
        (105.0, e.StepStarted(1, 2)),
        (106.0, e.ModelResponded(1, ModelResponse(Message("assistant", (Reasoning("hm"), Text("yes"))), Usage(1, 1)))),
    ]

    trace = trace_of("r1", facts)
    (step,) = trace.steps

    assert [(ask.error, ask.status, ask.seconds) for ask in step.asks] == [("overloaded", 529, 2.0), ("", None, 1.0)]
    assert (step.text, step.reasoning, trace.waited) == ("yes", "hm", 2.0)


def test_calls_with_one_id_are_told_apart_as_the_kernel_does() -> None:
    facts = [
        CREATED,
        CLAIMED,
        *asked(1, ToolCall("c", "look", "{}"), ToolCall("c", "look", '{"a": 1}')),
        (103.0, e.ToolFinished(ToolResult("c-2", "look", (Text("second"),)))),
    ]

    first, second = trace_of("r1", facts).calls

    assert (first.id, second.id) == ("c", "c-2")
    assert (first.ok, second.result) == (False, "second")


def test_what_happens_before_the_first_step_has_a_place() -> None:
    trace = trace_of("r1", [CREATED, CLAIMED, (101.0, e.CancelRequested("ann", "enough")), (101.0, e.RunCancelled())])

    assert [(mark.kind, mark.by) for mark in trace.before] == [("cancel", "ann")]
    assert isinstance(trace.ended, e.RunCancelled)


@pytest.mark.parametrize("length", range(7))
def test_a_run_under_way_has_a_trace_at_every_moment(length: int) -> None:
    facts = [
        CREATED,
        CLAIMED,
        *asked(1, ToolCall("c", "look", "{}")),
        (102.0, e.ToolStarted("c", "look", "k")),
        (103.0, e.ToolFinished(ToolResult("c", "look"))),
        (104.0, e.RunSucceeded("done")),
    ]

    trace = trace_of("r1", facts[:length])

    assert trace.events == length
    assert all(isinstance(item, CallTrace) for step in trace.steps for item in step.items)


def test_a_sum_with_an_unknown_price_has_no_price() -> None:
    assert total([Usage(1, 2, cost_usd=0.5), Usage(3, 4, cost_usd=0.25)]) == Usage(4, 6, cost_usd=0.75)
    assert total([Usage(1, 2, cost_usd=0.5), Usage(3, 4)]).cost_usd is None
    assert total([]) == Usage(cost_usd=0.0)


def test_a_further_attempt_is_no_worker_that_was_gone() -> None:
    facts: list[e.Event] = [
        e.RunCreated("clerk", ""),
        e.RunClaimed(1, "w1", 1),
        e.RunRetried(1, "garbage", "nobody can read that", 5.0),
        e.RunClaimed(2, "w2", 2),
    ]
    trace = trace_of("r1", [(float(at), fact) for at, fact in enumerate(facts)])
    assert trace.attempts == 2
    assert [mark.kind for mark in trace.marks] == ["retried"]
