from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Reasoning,
    Text,
    ToolCall,
    ToolFailure,
    ToolResult,
    ToolSpec,
)
from foliot.models.config import GatewayConfig
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.wire.anthropic import OUTPUT_TOOL, AnthropicWire, MessagesOptions
from foliot.models.wire.base import Unsendable, WireError
from foliot.models.wire.values import CallIds
from simulators.provider import Play, WireServer

MARK = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}


def ask(*messages: Message, model: str = "claude-sonnet-5", **changes: Any) -> ModelRequest:
    return ModelRequest(model, messages or (Message("user", (Text("hi"),)),), **changes)


def build(request: ModelRequest, **options: Any) -> dict[str, Any]:
    wire = AnthropicWire(MessagesOptions(**{"cache": "off", **options}))
    return json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=False)))


def parse(*blocks: dict[str, Any], reason: str = "end_turn") -> ModelResponse:
    request = ask(tools=(ToolSpec("memory.write"),))
    wire = AnthropicWire()
    body = {"type": "message", "id": "i", "model": "m", "content": blocks, "stop_reason": reason, "usage": {}}
    return wire.parse(json.dumps(body).encode(), wire.names(request), CallIds(request, lambda: b""))


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_turns_alternate_and_results_come_first_in_their_turn() -> None:
    body = build(
        ask(
            Message("user", (Text("a"),)),
            Message("user", (Text("b"),)),
            Message("assistant", (Text("c"), ToolCall("t1", "memory.write", '{"k": 1}'), ToolCall("t2", "x", "oops"))),
            Message("tool", (ToolResult("t1", "memory.write", (Text("done"),)),)),
            Message("user", (Text("meanwhile"),)),
            Message("tool", (ToolResult("t2", "x", (Text("bad"),), ToolFailure("e", "r", "bad")),)),
            tools=(ToolSpec("memory.write"), ToolSpec("x")),
        )
    )
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "memory_write", "input": {"k": 1}},
                {"type": "tool_use", "id": "t2", "name": "x", "input": {"input": "oops"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "done"}]},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "bad"}],
                    "is_error": True,
                },
                {"type": "text", "text": "meanwhile"},
            ],
        },
    ]


def test_blank_texts_are_left_out_because_they_are_refused() -> None:
    body = build(ask(Message("user", (Text("a"), Text("  "))), Message("assistant", (Text(""),)), system=" "))
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert "system" not in body


def test_system_messages_join_the_system_text_in_blocks_of_their_own() -> None:
    body = build(ask(Message("system", (Text("two"),)), Message("user", (Text("hi"),)), system="one"))
    assert [block["text"] for block in body["system"]] == ["one", "two"]


def test_thinking_goes_back_unchanged_and_foreign_reasoning_stays_away() -> None:
    thought = (
        Reasoning("step", signature="sig"),
        Reasoning(opaque="anthropic.redacted:ZGF0YQ=="),
        Reasoning("another provider's", opaque='openai.responses:{"id":"rs"}'),
        Text("so"),
    )
    body = build(ask(Message("user", (Text("hi"),)), Message("assistant", thought)))
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "step", "signature": "sig"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "text", "text": "so"},
    ]


def test_thinking_survives_the_way_there_and_back() -> None:
    blocks = [
        {"type": "thinking", "thinking": "step", "signature": "sig"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "text", "text": "so"},
    ]
    answer = parse(*blocks)
    assert build(ask(Message("user", (Text("hi"),)), answer.message))["messages"][1]["content"] == blocks


def test_caching_is_asked_for_after_the_stable_prefix_and_the_last_user_turn() -> None:
    messages = (Message("user", (Text("a"),)), Message("assistant", (Text("b"),)), Message("user", (Text("c"),)))
    body = build(ask(*messages, system="s", tools=(ToolSpec("t"),)), cache="5m")
    assert body["system"][0]["cache_control"] == MARK
    assert body["messages"][2]["content"][-1]["cache_control"] == MARK
    assert body["messages"][0]["content"][-1]["cache_control"] == MARK
    assert json.dumps(body).count("cache_control") == 3

    bare = build(ask(*messages, tools=(ToolSpec("b"), ToolSpec("a"))), cache="1h")
    assert [("cache_control" in tool) for tool in bare["tools"]] == [False, True]
    assert bare["tools"][-1]["cache_control"] == {**MARK, "ttl": "1h"}


def test_caching_does_not_mark_the_shared_fallback_schema_or_the_callers_data() -> None:
    tools = (ToolSpec("t", schema={"type": "object", "properties": {}}),)
    first = build(ask(tools=tools), cache="5m")
    assert build(ask(tools=tools), cache="5m") == first
    assert tools[0].schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("media", "block"),
    [
        (
            Media("image/png", data="aQ=="),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="}},
        ),
        (Media("image/png", url="https://x/i"), {"type": "image", "source": {"type": "url", "url": "https://x/i"}}),
        (
            Media("application/pdf", url="https://x/a", name="a"),
            {"type": "document", "source": {"type": "url", "url": "https://x/a"}, "title": "a"},
        ),
        (
            Media("text/csv", data="YSxi"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}},
        ),
    ],
)
def test_media_stand_in_questions_and_in_results(media: Media, block: dict[str, Any]) -> None:
    body = build(ask(Message("user", (media,)), Message("tool", (ToolResult("t", "x", (media,)),))))
    content = body["messages"][0]["content"]
    assert content[1] == block
    assert content[0]["content"] == [block]


def test_media_without_a_place_are_refused() -> None:
    with pytest.raises(Unsendable, match="video/mp4"):
        build(ask(Message("user", (Media("video/mp4", data="AA=="),))))


@pytest.mark.parametrize(
    ("model", "sampled"),
    [
        ("claude-3-7-sonnet-latest", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-sonnet-4-6", True),
        ("claude-opus-4-7", False),
        ("claude-opus-4-10", False),
        ("claude-sonnet-5-5", False),
        ("kimi-k2", True),
    ],
)
def test_a_temperature_is_sent_only_to_models_that_take_one(model: str, sampled: bool) -> None:
    body = build(ask(model=model, settings=ModelSettings(temperature=0.2, top_p=0.9)))
    assert body.get("temperature") == (0.2 if sampled else None)
    assert "top_p" not in body  # never both
    assert "temperature" not in build(ask(model=model, settings=ModelSettings(temperature=0.2)), sampling="off")


def test_the_new_api_version_takes_no_temperature_from_anyone() -> None:
    config = GatewayConfig("anthropic", options={"anthropic_version": "2026-10-21"})
    assert MessagesOptions.from_config(config).sampling == "off"


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-sonnet-5", {"type": "adaptive"}),
        ("claude-opus-4-6", {"type": "adaptive"}),
        ("claude-sonnet-4-5-20250929", {"type": "enabled", "budget_tokens": 8192}),
        ("claude-opus-4-20250514", {"type": "enabled", "budget_tokens": 8192}),
        ("claude-3-7-sonnet-20250219", {"type": "enabled", "budget_tokens": 8192}),
    ],
)
def test_effort_becomes_what_the_model_understands(model: str, thinking: dict[str, Any]) -> None:
    body = build(ask(model=model, settings=ModelSettings(reasoning_effort="medium", temperature=0.3)))
    assert body["thinking"] == thinking
    if thinking["type"] == "adaptive":
        assert body["output_config"] == {"effort": "medium"}
    else:
        assert body["max_tokens"] > thinking["budget_tokens"]
        assert "temperature" not in body


def test_a_budget_stays_below_the_limit_the_caller_set() -> None:
    small = ModelSettings(reasoning_effort="high", max_output_tokens=4000)
    assert build(ask(settings=small), thinking="budget")["thinking"]["budget_tokens"] == 2000
    tiny = ModelSettings(reasoning_effort="high", max_output_tokens=500)
    assert "thinking" not in build(ask(settings=tiny), thinking="budget")


def test_a_forced_call_goes_before_thinking() -> None:
    settings = ModelSettings(reasoning_effort="high", tool_choice="required")
    body = build(ask(model="claude-sonnet-4-5", settings=settings, tools=(ToolSpec("t"),)))
    assert body["tool_choice"] == {"type": "any"}
    assert "thinking" not in body
    for model in ("claude-opus-4-6", "claude-sonnet-4-6", "claude-opus-4-7"):
        body = build(ask(model=model, settings=settings, tools=(ToolSpec("t"),)))
        assert (body["tool_choice"], body.get("thinking"), body.get("output_config")) == ({"type": "any"}, None, None)
    for effort in (settings, ModelSettings(tool_choice="t")):  # it thinks unless told otherwise
        body = build(ask(model="claude-sonnet-5", settings=effort, tools=(ToolSpec("t"),)))
        assert body["tool_choice"]["type"] in ("any", "tool")
        assert body["thinking"] == {"type": "disabled"}
    body = build(ask(model="claude-opus-5-5", settings=settings, tools=(ToolSpec("t"),)))
    assert (body["tool_choice"], body["thinking"]) == ({"type": "auto"}, {"type": "adaptive"})


@pytest.mark.parametrize("model", ["claude-opus-4-20250514", "claude-opus-4-6", "claude-opus-4-7", "claude-sonnet-5"])
@pytest.mark.parametrize("tools", [(), (ToolSpec("t"),)])
def test_a_model_that_thinks_is_asked_in_words_to_answer_by_a_call(model: str, tools: tuple[ToolSpec, ...]) -> None:
    """No dialect says this schema, so the answer is a call. Nobody asked to force it, so thinking goes on."""
    open_ended = {"type": "object", "additionalProperties": {"type": "integer"}}
    request = ask(model=model, output_schema=open_ended, tools=tools, settings=ModelSettings(reasoning_effort="high"))
    body = build(request)
    assert body["tool_choice"]["type"] == "auto"
    assert body["thinking"]["type"] in ("enabled", "adaptive")
    assert OUTPUT_TOOL in body["system"][-1]["text"]
    last = msgspec.structs.replace(request, settings=ModelSettings(reasoning_effort="high", tool_choice="none"))
    if tools:  # the last step: no other tool may be called
        body = build(last)
        assert body["tool_choice"] == {"type": "tool", "name": OUTPUT_TOOL}
        assert body.get("thinking", {}).get("type") in (None, "disabled")


@pytest.mark.parametrize(
    ("model", "effort", "sent", "most", "told"),
    [
        ("claude-sonnet-4-5", "high", 16_384, 24_576, ""),
        ("claude-sonnet-4-5", "max", 49_152, 57_344, ""),
        ("claude-opus-4-1", "max", 23_808, 32_000, "23,808 tokens to think instead of 49,152"),
    ],
)
def test_a_budget_for_thinking_is_whole_or_told(model: str, effort: Any, sent: int, most: int, told: str) -> None:
    notes: list[str] = []
    wire = AnthropicWire()
    request = ask(model=model, settings=ModelSettings(reasoning_effort=effort))
    body = wire.build_body(request, wire.names(request), stream=False, notes=notes)
    assert (body["thinking"]["budget_tokens"], body["max_tokens"]) == (sent, most)
    assert len(notes) == bool(told)
    assert told in "".join(notes)


def test_a_schema_for_the_answer_is_native_and_closed() -> None:
    body = build(ask(output_schema=SCHEMA))
    assert body["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "(minimum: 1)"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }


def test_for_older_models_the_answer_is_a_forced_call_and_comes_back_as_text() -> None:
    body = build(ask(model="claude-3-5-haiku-latest", output_schema=SCHEMA))
    assert body["tool_choice"] == {"type": "tool", "name": OUTPUT_TOOL}
    answer = parse({"type": "tool_use", "id": "t", "name": OUTPUT_TOOL, "input": {"a": 3}}, reason="tool_use")
    assert json.loads(answer.message.text) == {"a": 3}
    assert answer.message.calls == ()
    assert answer.stop == "end"


@pytest.mark.parametrize("value", ["many", "1.5"])
def test_a_limit_that_is_no_number_is_a_configuration_error(value: str) -> None:
    with pytest.raises(InvalidInput, match="max_tokens"):
        AnthropicGateway(GatewayConfig("anthropic", options={"max_tokens": value}))


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
    ],
)
def test_stop_reasons(reason: str, stop: str) -> None:
    assert parse({"type": "text", "text": "x"}, reason=reason).stop == stop


def test_blocks_of_server_tools_are_not_the_runs_calls() -> None:
    answer = parse(
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "text", "text": "x"}
    )
    assert answer.message.calls == ()
    assert answer.message.text == "x"


def test_arguments_are_kept_as_the_model_wrote_them() -> None:
    block = b'{"type":"tool_use","id":"t","name":"memory_write","input":{"b": 1,  "a":2}}'
    raw = b'{"type":"message","stop_reason":"tool_use","content":[' + block + b"]}"
    request = ask(tools=(ToolSpec("memory.write"),))
    wire = AnthropicWire()
    answer = wire.parse(raw, wire.names(request), CallIds(request, lambda: b""))
    assert answer.message.calls == (ToolCall("t", "memory.write", '{"b": 1,  "a":2}'),)


def test_a_piece_of_a_block_that_never_began_is_garbage() -> None:
    request = ask()
    wire = AnthropicWire()
    assembler = wire.assembler(wire.names(request), CallIds(request, lambda: b""))
    with pytest.raises(WireError):
        assembler.feed(b'{"type":"content_block_delta","index":4,"delta":{"type":"text_delta","text":"x"}}')


async def test_the_final_answer_as_a_call_streams_as_text() -> None:
    given = ModelResponse(
        Message("assistant", (ToolCall("t", OUTPUT_TOOL, '{"a": 12345}'),)), stop="tool_calls", model="m", id="i"
    )
    async with WireServer([Play(given)]) as server:
        config = GatewayConfig("anthropic", f"{server.url}/v1", "ak-1", options={"structured_output": "tool"})
        gateway = AnthropicGateway(config)
        deltas: list[Any] = []
        answer = await gateway.respond(ask(output_schema=SCHEMA), on_delta=deltas.append)
        await gateway.close()
    assert answer.message.text == "".join(delta.text for delta in deltas) == '{"a": 12345}'
    sent = server.requests[0]
    assert sent.path == "/v1/messages"
    assert sent.headers["x-api-key"] == "ak-1"
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert sent.json["max_tokens"] == 8192


def test_two_blocks_with_one_number_are_two_blocks() -> None:
    wire = AnthropicWire()
    request = ask()
    names = wire.names(request)
    assembler = wire.assembler(names, CallIds(request, lambda: b""))
    for number, text in enumerate(("one", "two")):
        call = {"type": "tool_use", "id": f"c{number}", "name": "t", "input": {}}
        piece = {"type": "input_json_delta", "partial_json": f'{{"x":"{text}"}}'}
        if number == 0:
            assembler.feed(msgspec.json.encode({"type": "message_start", "message": {"id": "i"}}))
        assembler.feed(msgspec.json.encode({"type": "content_block_start", "index": 0, "content_block": call}))
        assembler.feed(msgspec.json.encode({"type": "content_block_delta", "index": 0, "delta": piece}))
    assembler.feed(b'{"type":"message_delta","delta":{"stop_reason":"tool_use"}}')
    assembler.feed(b'{"type":"message_stop"}')
    assert [call.arguments for call in assembler.finish().message.calls] == ['{"x":"one"}', '{"x":"two"}']


def test_a_budget_for_thinking_is_not_given_in_the_middle_of_calls_that_were_made_without() -> None:
    """A run that fell back to here goes on with its calls; the API refuses to begin thinking between them."""
    settings = ModelSettings(reasoning_effort="medium")
    result = Message("tool", (ToolResult("c", "t", (Text("ok"),)),))

    def thinks(model: str, *made: Reasoning) -> bool:
        call = Message("assistant", (*made, ToolCall("c", "t")))
        return "thinking" in build(ask(Message("user", (Text("hi"),)), call, result, model=model, settings=settings))

    signed = Reasoning("step", signature="sig")
    foreign = Reasoning("step", signature="sig", opaque='{"provider_name":"google-vertex"}')
    assert thinks("claude-sonnet-4-5", signed)
    assert not thinks("claude-sonnet-4-5")
    assert not thinks("claude-sonnet-4-5", foreign)
    assert thinks("claude-opus-4-6")
