from __future__ import annotations

import base64
import json
from typing import Any

import pytest

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
from foliot.models.base import ModelRequestError
from foliot.models.config import GatewayConfig
from foliot.models.gateways.openai import AzureOpenAIGateway, OpenAIChatGateway
from foliot.models.wire.base import Unsendable
from foliot.models.wire.openai_chat import ChatOptions, OpenAIChatWire
from foliot.models.wire.values import CallIds
from simulators.provider import WireServer

IMAGE = Media("image/png", data="aW1n")
ANSWER = ModelResponse(Message("assistant", (Text("ok"),)), model="m", id="x")


def ask(*messages: Message, **changes: Any) -> ModelRequest:
    return ModelRequest("m", messages or (Message("user", (Text("hi"),)),), **changes)


def build(request: ModelRequest, options: ChatOptions | None = None, *, stream: bool = False) -> dict[str, Any]:
    wire = OpenAIChatWire(options)
    return json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=stream)))


def assemble(*events: Any) -> tuple[ModelResponse, list[Any]]:
    request = ask(tools=(ToolSpec("memory.write"),))
    wire = OpenAIChatWire()
    assembler = wire.assembler(wire.names(request), CallIds(request, lambda: b"seed"))
    deltas: list[Any] = []
    for event in events:
        deltas.extend(assembler.feed(event if isinstance(event, bytes) else json.dumps(event).encode()))
    return assembler.finish(), deltas


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def call(arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {key: fields.pop(key) for key in ("name",) if key in fields}
    if arguments is not None:
        function["arguments"] = arguments
    return chunk({"tool_calls": [{**fields, "function": function}]})


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_conversation_keeps_roles_ids_and_order() -> None:
    body = build(
        ask(
            Message("user", (Text("hi"),)),
            Message("assistant", (Reasoning("hm"), Text("I ask."), ToolCall("c1", "memory.write", '{"k": 1}'))),
            Message("tool", (ToolResult("c1", "memory.write", (Text("done"),)),)),
            Message("system", (Text("Be quick."),)),
            system="Be brief.",
            tools=(ToolSpec("memory.write"),),
        )
    )
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I ask.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "memory_write", "arguments": '{"k": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "system", "content": "Be quick."},
    ]
    assert body["tool_choice"] == "auto"


def test_a_failed_call_without_content_says_its_message() -> None:
    failed = ToolResult("c1", "t", (), ToolFailure("timeout", "slow", "took too long"))
    body = build(ask(Message("tool", (failed,))))
    assert body["messages"][0]["content"] == "took too long"


def test_pictures_from_tools_follow_after_all_results() -> None:
    body = build(
        ask(
            Message("tool", (ToolResult("c1", "shot", (Text("see"), IMAGE)),)),
            Message("tool", (ToolResult("c2", "other", (Text("fine"),)),)),
        )
    )
    assert [message["role"] for message in body["messages"]] == ["tool", "tool", "user"]
    assert body["messages"][2]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,aW1n"},
    }


@pytest.mark.parametrize(
    ("media", "sent"),
    [
        (Media("image/jpeg", url="https://x/y.jpg"), {"type": "image_url", "image_url": {"url": "https://x/y.jpg"}}),
        (Media("audio/wav", data="AA=="), {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        (Media("text/plain", data="aGVsbG8="), {"type": "text", "text": "hello"}),
        (
            Media("application/pdf", data="AA==", name="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
        ),
    ],
)
def test_each_kind_of_media_has_its_place(media: Media, sent: dict[str, Any]) -> None:
    assert build(ask(Message("user", (media,))))["messages"][0]["content"] == [sent]


@pytest.mark.parametrize(
    "media",
    [
        Media("application/pdf", url="https://x/a.pdf"),
        Media("image/png", blob="sha256:0"),
        Media("audio/ogg", data="AA=="),
    ],
)
def test_media_that_cannot_be_sent_is_said_and_not_dropped(media: Media) -> None:
    with pytest.raises(Unsendable):
        build(ask(Message("user", (media,))))


def test_settings_reach_the_body_and_extra_goes_in_as_it_is() -> None:
    settings = ModelSettings(
        max_output_tokens=7, temperature=0.0, top_p=0.5, stop=("END",), seed=3, reasoning_effort="low",
        tool_choice="required", extra={"service_tier": "flex"},
    )  # fmt: skip
    body = build(ask(settings=settings, tools=(ToolSpec("t"),)), stream=True)
    assert {key: body[key] for key in body if key not in ("messages", "tools", "model")} == {
        "max_completion_tokens": 7, "temperature": 0.0, "top_p": 0.5, "stop": ["END"], "seed": 3,
        "reasoning_effort": "low", "tool_choice": "required", "service_tier": "flex", "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


WORD = {"type": "string"}
CLOSED = {"type": "object", "properties": {"a": WORD}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "properties": {"a": {"type": "integer", "minimum": 1}}}, True),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": {"type": "object"}}}}, False),
    ],
)
def test_a_schema_is_strict_only_when_openai_can_hold_the_model_to_it(schema: dict[str, Any], strict: bool) -> None:
    given = build(ask(output_schema=schema))["response_format"]["json_schema"]
    assert given == {"name": "answer", "schema": schema, "strict": strict}


@pytest.mark.parametrize(
    ("url", "field", "replay"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens", "none"),
        ("https://openrouter.ai/api/v1", "max_tokens", "reasoning_details"),
        ("https://api.deepseek.com", "max_tokens", "reasoning_content"),
        ("http://localhost:8000/v1", "max_tokens", "none"),
    ],
)
def test_the_accent_is_guessed_by_the_host(url: str, field: str, replay: str) -> None:
    options = ChatOptions.from_config(GatewayConfig("x"), url)
    assert (options.max_tokens_field, options.reasoning_replay) == (field, replay)


def test_every_accent_can_be_chosen() -> None:
    given = {
        "include_usage": "false",
        "tool_choice": False,
        "system_role": "developer",
        "max_tokens_field": "max_tokens",
    }
    options = ChatOptions.from_config(GatewayConfig("x", options=given), "https://api.openai.com/v1")
    settings = ModelSettings(max_output_tokens=5)
    body = build(ask(system="s", tools=(ToolSpec("t"),), settings=settings), options, stream=True)
    assert body["messages"][0]["role"] == "developer"
    assert body["max_tokens"] == 5
    assert "tool_choice" not in body
    assert "stream_options" not in body


def test_reasoning_goes_back_only_where_it_is_wanted() -> None:
    details, _ = assemble(
        chunk(
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Let me "}], "reasoning": "Let me "}
        ),
        chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "think", "signature": "s"}]}),
        chunk({"content": "ok"}, "stop"),
    )
    said = ask(details.message)
    assert "reasoning" not in json.dumps(build(said))
    kept = build(said, ChatOptions(reasoning_replay="reasoning_details"))["messages"][0]["reasoning_details"]
    assert kept == [{"type": "reasoning.text", "index": 0, "text": "Let me think", "signature": "s"}]
    assert (
        build(said, ChatOptions(reasoning_replay="reasoning_content"))["messages"][0]["reasoning_content"] == "Let me "
    )


@pytest.mark.parametrize(
    ("given_id", "nine", "kept"),
    [
        ("functions.search:0", False, True),
        ("call_abc", False, True),
        ("x" * 41, False, False),
        ("aB3dE6gH9", True, True),
        ("call_abc", True, False),
    ],
)
def test_an_id_goes_back_as_it_came_unless_the_server_refuses_it(given_id: str, nine: bool, kept: bool) -> None:
    history = (
        Message("assistant", (ToolCall(given_id, "t", "{}"),)),
        Message("tool", (ToolResult(given_id, "t", (Text("ok"),)),)),
    )
    first, second = build(ask(*history), ChatOptions(nine_ids=nine))["messages"]
    assert first["tool_calls"][0]["id"] == second["tool_call_id"]
    assert (second["tool_call_id"] == given_id) is kept
    assert len(second["tool_call_id"]) == 9 if nine else len(second["tool_call_id"]) <= 40


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parallel_calls_written_in_turns_are_kept_apart() -> None:
    got, deltas = assemble(
        call("", index=0, id="a", name="memory_write"),
        call("", index=1, id="b", name="search"),
        call('{"x"', index=0),
        call('{"y"', index=1),
        call(": 1}", index=0),
        call(": 2}", index=1),
        chunk({}, "tool_calls"),
        b"[DONE]",
    )
    assert got.message.calls == (ToolCall("a", "memory.write", '{"x": 1}'), ToolCall("b", "search", '{"y": 2}'))
    assert [delta.index for delta in deltas] == [0, 1, 0, 1, 0, 1]


def test_calls_without_an_index_are_told_apart_by_id() -> None:
    got, _ = assemble(
        call('{"a":', id="a", name="x"), call("1}"), call('{"b":2}', id="b", name="y"), chunk({}, "tool_calls")
    )
    assert [(c.id, c.arguments) for c in got.message.calls] == [("a", '{"a":1}'), ("b", '{"b":2}')]


def test_calls_without_index_and_id_begin_with_a_name() -> None:
    got, _ = assemble(call("{}", name="x"), call('{"b":', name="y"), call("2}"), chunk({}, "stop"))
    assert [(c.name, c.arguments) for c in got.message.calls] == [("x", "{}"), ("y", '{"b":2}')]
    assert len({c.id for c in got.message.calls}) == 2
    assert got.stop == "tool_calls"


def test_a_server_that_numbers_every_call_zero_is_understood() -> None:
    got, _ = assemble(call("{}", index=0, id="a", name="x"), call("{}", index=0, id="b", name="y"), chunk({}, "stop"))
    assert [c.id for c in got.message.calls] == ["a", "b"]


def test_arguments_sent_as_an_object_are_read_as_their_text() -> None:
    piece = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "x", "arguments": {"a": [1]}}}]}
    got, _ = assemble(chunk(piece, "tool_calls"))
    assert json.loads(got.message.calls[0].arguments) == {"a": [1]}


@pytest.mark.parametrize("end", [[chunk({}, "stop")], [b"[DONE]"], [chunk({}, "stop"), b"[DONE]"]])
def test_either_a_reason_or_done_ends_an_answer(end: list[Any]) -> None:
    got, _ = assemble(chunk({"content": "ok"}), *end)
    assert (got.message.text, got.stop) == ("ok", "end")


def test_usage_is_found_wherever_it_comes() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}
    got, _ = assemble(chunk({"content": "ok"}, "stop"), {"choices": [], "usage": usage}, b"[DONE]")
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.cache_read_tokens) == (9, 2, 4)


def test_a_refusal_is_text_with_its_own_reason() -> None:
    got, _ = assemble(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"))
    assert (got.message.text, got.stop) == ("I cannot.", "refusal")


def test_pictures_that_a_model_returns_are_media() -> None:
    images = [{"type": "image_url", "image_url": {"url": "data:image/webp;base64,aW1n"}}]
    got, _ = assemble(chunk({"content": "see", "images": images}), chunk({}, "stop"))
    assert got.message.parts == (Text("see"), Media("image/webp", data="aW1n"))


def test_typed_pieces_of_content_are_text_and_reasoning() -> None:
    pieces = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "ok"}]
    got, _ = assemble(chunk({"content": pieces}), chunk({}, "stop"))
    assert got.message.parts == (Reasoning("hm"), Text("ok"))


def test_the_pieces_of_a_whole_answer_stand_on_lines_of_their_own() -> None:
    request = ask()
    wire = OpenAIChatWire()
    pieces = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = json.dumps({"choices": [{"message": {"content": pieces}, "finish_reason": "stop"}]}).encode()
    answer = wire.parse(body, wire.names(request), CallIds(request, lambda: b""))
    assert answer.message.text == "one\ntwo"


# ── over a socket ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_request_carries_key_and_headers() -> None:
    async with WireServer([ANSWER]) as server:
        config = GatewayConfig(
            "openai", f"{server.url}/v1/", "sk-1", "default-model", {"organization": "org"}, headers={"X-Title": "t"}
        )
        gateway = OpenAIChatGateway(config)
        response = await gateway.respond(ModelRequest("", (Message("user", (Text("hi"),)),)))
        await gateway.close()
    sent = server.requests[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == "Bearer sk-1"
    assert sent.headers["openai-organization"] == "org"
    assert sent.headers["x-title"] == "t"
    assert sent.json["model"] == "default-model"
    assert response.provider == "openai"


async def test_a_request_without_any_model_is_refused_before_it_is_sent() -> None:
    gateway = OpenAIChatGateway(GatewayConfig("openai", api_key="k"))
    with pytest.raises(ModelRequestError, match="no model"):
        await gateway.respond(ModelRequest("", ()))


async def test_what_cannot_be_sent_is_a_request_error() -> None:
    gateway = OpenAIChatGateway(GatewayConfig("openai", api_key="k"))
    for part in (Media("image/png", blob="sha256:0"), Text("\ud800")):
        with pytest.raises(ModelRequestError, match="cannot be sent"):
            await gateway.respond(ask(Message("user", (part,))))


async def test_azure_puts_the_deployment_into_the_address() -> None:
    async with WireServer([ANSWER]) as server:
        options = {"deployment": "my deployment/x", "api_version": "2025-01-01"}
        gateway = AzureOpenAIGateway(GatewayConfig("azure-openai", server.url, "az-key", options=options))
        await gateway.respond(ModelRequest("", (Message("user", (Text("hi"),)),)))
        await gateway.close()
    sent = server.requests[0]
    assert sent.path == "/openai/deployments/my%20deployment%2Fx/chat/completions?api-version=2025-01-01"
    assert sent.headers["api-key"] == "az-key"
    assert "authorization" not in sent.headers
    assert sent.json["model"] == "my deployment/x"


async def test_a_proxy_is_used_when_the_endpoint_names_one() -> None:
    async with WireServer([ANSWER]) as proxy:
        for way in (proxy.url, proxy.url.replace("//", "//me:p%40ss@")):
            gateway = OpenAIChatGateway(GatewayConfig("openai", "http://model.invalid/v1", "sk-1", proxy=way))
            assert (await gateway.respond(ask())).message.text == "ok"
            await gateway.close()
    assert proxy.requests[0].path == "http://model.invalid/v1/chat/completions"
    shown = [request.headers.get("proxy-authorization") for request in proxy.requests]
    assert shown == [None, f"Basic {base64.b64encode(b'me:p@ss').decode()}"]
