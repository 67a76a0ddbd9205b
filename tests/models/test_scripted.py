from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Delta,
    Message,
    ModelRequest,
    ModelResponse,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolFailure,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.models.base import ModelError, ModelGarbage, ModelRateLimited, ModelRequestError
from foliot.models.config import GatewayConfig
from foliot.models.registry import default_registry
from foliot.models.scripted.model import ScriptedModel, build
from foliot.models.scripted.script import FAILURES


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def result(call: ToolCall, text: str, *, failed: bool = False) -> Message:
    error = ToolFailure("x", "y", text) if failed else None
    return Message("tool", (ToolResult(call.id, call.name, (Text(text),), error),))


async def ask(model: ScriptedModel, *messages: Message, **more: Any) -> ModelResponse:
    return await model.respond(ModelRequest("m", messages, **more))


async def converse(model: ScriptedModel, first: str, results: list[str], **more: Any) -> list[Message]:
    """A run with made-up tool results, until the model calls no tool."""
    messages = [user(first)]
    for text in [*results, ""]:
        messages.append((await ask(model, *messages, **more)).message)
        if not messages[-1].calls:
            return messages
        messages.extend(result(call, text) for call in messages[-1].calls)
    return messages


async def test_each_answer_plays_the_next_turn_with_the_names_filled_in():
    model = ScriptedModel([{"call": {"search": {"query": "{input}", "n": 3}}}, {"say": "step {step}: {last_result}"}])

    transcript = await converse(model, "otters", ["they hold hands"])

    assert transcript[1].calls == (ToolCall("call_1_1", "search", '{"query":"otters","n":3}'),)
    assert transcript[-1].text == "step 2: they hold hands"


async def test_another_process_plays_the_turn_that_the_first_would_have_played():
    script = [{"call": {"a": None}}, {"when": {"result": "bad"}, "say": "sorry"}, {"call": "b"}, {"say": "done"}]
    whole = await converse(ScriptedModel(script), "go", ["fine", "fine"])

    for cut in (i for i, message in enumerate(whole) if message.role == "assistant"):
        resumed = await ask(ScriptedModel(script), *whole[:cut])
        assert resumed.message == whole[cut]


async def test_a_turn_whose_condition_does_not_hold_is_skipped_for_good():
    script = yaml.safe_load("""
    - call: {lookup: {id: 7}}
    - when: {failed: true}
      say: I could not look it up.
    - when: {result: [gold, silver], not: {called: refund}}
      call: {refund: {id: 7}}
    - say: All done.
    """)
    assert (await converse(ScriptedModel(script), "x", ["GOLD member", "ok"]))[-1].text == "All done."
    assert len(await converse(ScriptedModel(script), "x", ["bronze"])) == 4
    call = ToolCall("call_1_1", "lookup")
    failed = await ask(ScriptedModel(script), user("x"), Message("assistant", (call,)), result(call, "no", failed=True))
    assert failed.message.text == "I could not look it up."


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"input": "REFUND"}, True),
        ({"input": "invoice"}, False),
        ({"system": "clerk"}, True),
        ({"agent": "Till"}, True),
        ({"model": ["m", "n"]}, True),
        ({"tool": "pay"}, True),
        ({"called": "pay"}, False),
        ({"step": 1}, True),
        ({"step": 2}, False),
        ({"failed": False}, True),
        ({"any": [{"input": "x"}, {"input": "refund"}]}, True),
        ({"input": "refund", "called": "pay"}, False),
        ({"last_tool": "pay"}, False),
    ],
)
async def test_conditions_look_at_the_request_alone(condition: dict[str, Any], holds: bool):
    model = ScriptedModel([{"when": condition, "say": "yes"}, "no"])

    answer = await ask(
        model, user("a refund, please"), system="You are a Clerk", agent="till", tools=(ToolSpec("pay"),)
    )

    assert answer.message.text == ("yes" if holds else "no")


async def test_the_number_of_an_answer_is_counted_in_a_script_that_branches_too():
    script = [{"call": "a"}, {"when": {"step": 9}, "say": "never"}, {"when": {"step": 2}, "say": "answer {step}"}]
    assert (await converse(ScriptedModel(script), "x", ["ok"]))[-1].text == "answer 2"


async def test_parallel_calls_keep_their_order_and_get_ids_that_stay_unique_after_compaction():
    model = ScriptedModel({"turns": [{"call": ["a", {"b": {}, "c": {}}, {"tool": "d", "id": "mine"}]}], "loop": True})
    compacted = (user("summary"), Message("assistant", (ToolCall("call_9_1", "a"),)))

    first = await ask(model, user("x"))
    later = await ask(model, *compacted)

    assert [(c.id, c.name) for c in first.message.calls] == [
        ("call_1_1", "a"),
        ("call_1_2", "b"),
        ("call_1_3", "c"),
        ("mine", "d"),
    ]
    assert later.message.calls[0].id == "call_10_1"


async def test_arguments_given_as_a_text_are_sent_as_they_are_even_when_broken():
    answer = await ask(ScriptedModel([{"call": {"tool": "a", "args": '{"oops'}}]), user("x"))
    assert answer.message.calls[0].arguments == '{"oops'
    assert answer.stop == "tool_calls"


async def test_texts_in_braces_that_are_no_names_survive_and_nothing_is_evaluated():
    model = ScriptedModel([{"say": 'code {x} {{input}} {input.__class__} {"a": 1} {{{input}}} {input}'}])
    answer = await ask(model, user("{system}"), system="secret")
    assert answer.message.text == 'code {x} {input} {input.__class__} {"a": 1} {{input}} {system}'


async def test_a_mapping_is_said_as_json():
    answer = await ask(ScriptedModel([{"say": {"answer": "{input}", "n": [1, "{step}"]}}]), user("hi"))
    assert answer.message.text == '{"answer":"hi","n":[1,"1"]}'


async def test_when_the_turns_have_run_out_the_script_says_so():
    with pytest.raises(ModelRequestError, match="no turn 2") as caught:
        await ask(ScriptedModel(["only"]), user("x"), Message("assistant", (Text("only"),)))
    assert not caught.value.retryable


async def test_otherwise_loop_and_count_decide_what_comes_after_the_last_turn():
    said = (user("a"), Message("assistant", (Text("1"),)), user("b"))
    assert (await ask(ScriptedModel({"turns": ["1"], "otherwise": "rest"}), *said)).message.text == "rest"
    assert (await ask(ScriptedModel({"turns": ["1", "2"], "loop": True}), *said)).message.text == "2"
    assert (await ask(ScriptedModel({"turns": ["1"], "loop": True}), *said)).message.text == "1"
    assert (await ask(ScriptedModel({"turns": ["1", "2"], "count": "input"}), *said)).message.text == "1"
    looping = {"turns": [{"when": {"input": "zzz"}, "say": "never"}, "1"], "loop": True}
    assert (await ask(ScriptedModel(looping), *said)).message.text == "1"


async def test_one_script_serves_several_agents():
    model = ScriptedModel(
        [
            {"match": {"agent": "planner"}, "turns": ["plan"]},
            {"match": {"system": "You write"}, "turns": ["prose"]},
            {"turns": ["else"]},
        ]
    )
    assert (await ask(model, user("x"), agent="planner")).message.text == "plan"
    assert (await ask(model, user("x"), system="you WRITE well")).message.text == "prose"
    assert (await ask(model, user("x"))).message.text == "else"
    with pytest.raises(ModelRequestError, match="no `match` holds"):
        await ask(ScriptedModel([{"match": {"agent": "a"}, "turns": ["x"]}]), user("x"))


async def test_a_failure_with_times_passes_after_that_many_tries_and_is_counted_per_transcript():
    model = ScriptedModel([{"fail": "rate_limit", "times": 2, "retry_after": "3s", "say": "at last"}])

    for _ in range(2):
        with pytest.raises(ModelRateLimited) as caught:
            await ask(model, user("x"))
        assert caught.value.retry_after == 3.0
        assert caught.value.status == 429
    with pytest.raises(ModelRateLimited):
        await ask(model, user("another"))

    assert (await ask(model, user("x"))).message.text == "at last"
    with pytest.raises(ModelRateLimited):  # played once: a new run with the same words starts over
        await ask(model, user("x"))


@pytest.mark.parametrize("kind", FAILURES)
async def test_every_kind_of_failure_is_the_error_of_that_kind(kind: str):
    with pytest.raises(ModelError) as caught:
        await ask(ScriptedModel([{"fail": kind}]), user("x"))
    assert caught.value.kind == kind
    assert caught.value.provider == "scripted"


async def test_a_stream_adds_up_to_the_finished_message():
    deltas: list[Delta] = []
    model = ScriptedModel([{"think": "hmm, hmm", "say": "one two three", "call": {"f": {"a": 1}, "g": {}}, "chunk": 4}])

    answer = await model.respond(ModelRequest("m", (user("x"),)), on_delta=deltas.append)

    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == answer.message.text == "one two three"
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == "hmm, hmm"
    for index, call in enumerate(answer.message.calls):
        pieces = [d for d in deltas if isinstance(d, ToolCallDelta) and d.index == index]
        assert "".join(d.arguments for d in pieces) == call.arguments
        assert {(d.id, d.name) for d in pieces} == {(call.id, call.name)}
    assert answer.message.parts[0] == Reasoning("hmm, hmm")


async def test_a_slow_turn_waits_before_it_answers_and_between_pieces():
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    model = ScriptedModel([{"say": "abcdef", "after": "200ms", "chunk": 2, "pace": "20ms"}], sleep=sleep)
    await model.respond(ModelRequest("m", (user("x"),)), on_delta=lambda _: None)
    assert waits == pytest.approx([0.2, 0.02, 0.02])


async def test_a_stream_can_break_in_the_middle():
    deltas: list[Delta] = []
    model = ScriptedModel([{"say": "a long answer", "fail": "garbage", "fail_at": 6, "chunk": 3}])
    with pytest.raises(ModelGarbage):
        await model.respond(ModelRequest("m", (user("x"),)), on_delta=deltas.append)
    assert deltas == [TextDelta("a l"), TextDelta("ong")]


async def test_cancelling_stops_a_slow_answer():
    task = asyncio.create_task(ask(ScriptedModel([{"say": "x", "after": "1h"}]), user("x")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_usage_is_what_the_script_says_or_the_same_estimate_every_time():
    told = await ask(ScriptedModel([{"say": "x", "usage": {"input_tokens": 9, "output_tokens": 2}}]), user("x"))
    one = await ask(ScriptedModel(["hello there"]), user("x" * 400))
    two = await ask(ScriptedModel(["hello there"]), user("x" * 400))
    assert told.usage == Usage(9, 2)
    assert one.usage == two.usage
    assert one.usage.source == "estimated"
    assert one.usage.input_tokens >= 100
    assert one.usage.cost_usd is None


async def test_stop_reasons_can_be_played():
    assert (await ask(ScriptedModel([{"say": "x", "stop": "length"}]), user("x"))).stop == "length"
    assert (await ask(ScriptedModel(["x"]), user("x"))).stop == "end"


async def _later(request: ModelRequest) -> str:
    await asyncio.sleep(0)
    return "later " + request.messages[-1].text


@pytest.mark.parametrize(
    ("function", "text", "calls"),
    [
        (lambda r: "hi " + r.messages[-1].text, "hi x", ()),
        (_later, "later x", ()),
        (lambda r: {"say": "{input}", "call": "f"}, "{input}", (ToolCall("call_1_1", "f"),)),
        (lambda r: [ToolCall("a", "f"), ToolCall("b", "g")], "", (ToolCall("a", "f"), ToolCall("b", "g"))),
        (lambda r: [{"f": {"n": 1}}, "g"], "", (ToolCall("call_1_1", "f", '{"n":1}'), ToolCall("call_1_2", "g"))),
        (lambda r: ToolCall("a", "f"), "", (ToolCall("a", "f"),)),
        (lambda r: Message("assistant", (Text("m"),)), "m", ()),
        (lambda r: ModelResponse(Message("assistant", (Text("r"),))), "r", ()),
    ],
)
async def test_a_function_may_answer_in_many_forms(function: Any, text: str, calls: tuple[ToolCall, ...]):
    answer = await ask(ScriptedModel(function), user("x"))
    assert answer.message.text == text
    assert answer.message.calls == calls


@pytest.mark.parametrize("function", [lambda r: 1 / 0, lambda r: 42, lambda r: {"sya": "x"}, lambda r: None])
async def test_whatever_a_function_does_wrong_becomes_a_model_error(function: Any):
    with pytest.raises(ModelRequestError):
        await ask(ScriptedModel(function), user("x"))


async def test_a_function_may_raise_a_model_error_of_its_own():
    def function(request: ModelRequest) -> str:
        raise ModelRateLimited("slow down", retry_after=4)

    with pytest.raises(ModelRateLimited, match="slow down"):
        await ask(ScriptedModel(function), user("x"))


async def test_the_mock_script_tries_a_tool_that_fits_and_then_answers():
    model = default_registry().build(GatewayConfig(provider="mock"))
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string"}, "k": {"type": "integer", "minimum": 2}, "o": {"type": "string"}},
        "required": ["q", "k"],
    }
    tools = (ToolSpec("first"), ToolSpec("web_search", schema=schema))

    transcript = await converse(model, "search for otters", ["found"], tools=tools)

    assert transcript[1].calls[0].name == "web_search"
    assert transcript[1].calls[0].arguments == '{"q":"search for otters","k":2}'
    assert transcript[-1].text == "model=m step=2"
    assert (await ask(model, user("hello"), tools=tools)).message.calls[0].name == "first"
    assert (await ask(model, user("hello"))).message.text == "model=m step=1"


async def test_the_mock_script_answers_in_the_asked_shape():
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "t": {"enum": ["a", "b"]}},
        "required": ["ok", "t"],
    }
    answer = await ask(ScriptedModel("mock"), user("x"), output_schema=schema)
    assert answer.message.text == '{"ok":true,"t":"a"}'


async def test_the_echo_script_says_the_input_back():
    assert (await ask(ScriptedModel("echo"), user("ping"))).message.text == "ping"


def test_an_endpoint_without_a_script_is_told_what_to_add():
    with pytest.raises(InvalidInput, match="needs a script") as caught:
        build(GatewayConfig(provider="scripted"))
    assert caught.value.hint
    with pytest.raises(InvalidInput, match="no script is called 'mok'"):
        ScriptedModel("mok")


async def test_a_hundred_runs_share_one_model_without_mixing_their_turns():
    script = [{"call": {"a": {"who": "{first_input}"}}, "repeat": 3}, {"say": "bye {first_input}"}]
    model = ScriptedModel(script)

    transcripts = await asyncio.gather(*(converse(model, f"run{n}", ["ok"] * 3) for n in range(100)))

    for n, transcript in enumerate(transcripts):
        assert transcript[-1].text == f"bye run{n}"
        assert [call.id for message in transcript for call in message.calls] == ["call_1_1", "call_2_1", "call_3_1"]
