from __future__ import annotations

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
from foliot.models.config import GatewayConfig
from foliot.models.gateways.ollama import OllamaGateway
from foliot.models.wire.base import Unsendable
from foliot.models.wire.ollama import OllamaOptions, OllamaWire
from foliot.models.wire.values import CallIds, is_own_id
from simulators.provider import Fault, Play, WireServer


def ask(*messages: Message, **changes: Any) -> ModelRequest:
    return ModelRequest("llama", messages or (Message("user", (Text("hi"),)),), **changes)


def build(request: ModelRequest, options: OllamaOptions | None = None) -> dict[str, Any]:
    wire = OllamaWire(options)
    return json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=True)))


def test_a_whole_conversation() -> None:
    body = build(
        ask(
            Message("user", (Text("look"), Media("image/png", data="aQ=="), Media("text/plain", data="IGhlcmU="))),
            Message("assistant", (Reasoning("hm"), ToolCall("c1", "memory.write", "plain text"))),
            Message("tool", (ToolResult("c1", "memory.write", (), ToolFailure("e", "r", "bad")),)),
            system="Be brief.",
            tools=(ToolSpec("memory.write"),),
        )
    )
    assert body["stream"] is True
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "look here", "images": ["aQ=="]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": "memory_write", "arguments": {"input": "plain text"}}}],
        },
        {"role": "tool", "content": "bad", "tool_name": "memory_write"},
    ]


def test_knobs_stand_under_options() -> None:
    settings = ModelSettings(
        max_output_tokens=5, temperature=0.0, top_p=0.5, stop=("X",), seed=1, reasoning_effort="minimal"
    )
    options = OllamaOptions.from_config(GatewayConfig("ollama", options={"keep_alive": "-1", "num_ctx": "8192"}))
    body = build(ask(settings=settings, output_schema={"type": "object"}), options)
    assert body["options"] == {
        "num_ctx": 8192, "num_predict": 5, "temperature": 0.0, "top_p": 0.5, "stop": ["X"], "seed": 1,
    }  # fmt: skip
    assert body["keep_alive"] == -1
    assert body["think"] == "low"
    assert body["format"] == {"type": "object"}
    assert build(ask(), OllamaOptions(keep_alive="5m", think="off"))["keep_alive"] == "5m"


def test_without_a_choice_tools_are_simply_not_offered() -> None:
    assert "tools" not in build(ask(tools=(ToolSpec("t"),), settings=ModelSettings(tool_choice="none")))


@pytest.mark.parametrize("media", [Media("image/png", url="https://x"), Media("application/pdf", data="AA==")])
def test_media_without_a_place_are_refused(media: Media) -> None:
    with pytest.raises(Unsendable):
        build(ask(Message("user", (media,))))


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/json", "text/plain"])
async def test_thinking_text_and_calls_stream_line_by_line(kind: str) -> None:
    given = ModelResponse(
        Message("assistant", (Reasoning("hm, let me see"), Text("I ask."), ToolCall("", "search", '{"q":"x"}'))),
        stop="tool_calls",
        model="llama",
    )
    async with WireServer([Play(given, kind=kind)]) as server:
        gateway = OllamaGateway(GatewayConfig("ollama", server.url))
        deltas: list[Any] = []
        answer = await gateway.respond(ask(tools=(ToolSpec("search"),)), on_delta=deltas.append)
        again = await gateway.respond(ask(tools=(ToolSpec("search"),)), on_delta=deltas.append)
        await gateway.close()
    assert answer.message.parts[:2] == given.message.parts[:2]
    assert answer.message.calls[0].arguments == '{"q":"x"}'
    assert is_own_id(answer.message.calls[0].id)
    assert answer == again
    assert len(deltas) > 6
    assert server.requests[0].path == "/api/chat"
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("indent", [None, 2])
async def test_a_server_that_answers_a_stream_with_one_object_is_read(indent: int | None) -> None:
    said = {"role": "assistant", "content": "I ask."}
    body = json.dumps({"model": "m", "message": said, "done": True, "done_reason": "stop"}, indent=indent).encode()
    async with WireServer([Play(fault=Fault("status", status=200, body=body))]) as server:
        gateway = OllamaGateway(GatewayConfig("ollama", server.url))
        deltas: list[Any] = []
        answer = await gateway.respond(ask(), on_delta=deltas.append)
        await gateway.close()
    assert (answer.message.text, [each.text for each in deltas]) == ("I ask.", ["I ask."])


def test_arguments_that_come_as_a_string_are_read() -> None:
    request = ask(tools=(ToolSpec("t"),))
    wire = OllamaWire()
    said = {"tool_calls": [{"function": {"name": "t", "arguments": '{"a": 1}'}}]}
    body = json.dumps({"model": "m", "message": said, "done": True, "done_reason": "stop"}).encode()
    answer = wire.parse(body, wire.names(request), CallIds(request, lambda: b""))
    assert answer.message.calls[0].arguments == '{"a": 1}'
    assert answer.stop == "tool_calls"
