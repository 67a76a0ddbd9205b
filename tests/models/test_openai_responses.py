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
from foliot.models.gateways.openai import OpenAIResponsesGateway
from foliot.models.wire.base import ProviderFault, WireError
from foliot.models.wire.openai_responses import OpenAIResponsesWire, ResponsesOptions
from foliot.models.wire.values import CallIds
from simulators.provider import WireServer


def ask(*messages: Message, model: str = "gpt-5", **changes: Any) -> ModelRequest:
    return ModelRequest(model, messages or (Message("user", (Text("hi"),)),), **changes)


def build(request: ModelRequest, **options: Any) -> dict[str, Any]:
    wire = OpenAIResponsesWire(ResponsesOptions(**options))
    return json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=False)))


def reader() -> tuple[Any, CallIds]:
    request = ask(tools=(ToolSpec("memory.write"),))
    return OpenAIResponsesWire().names(request), CallIds(request, lambda: b"seed")


def parse(**body: Any) -> ModelResponse:
    return OpenAIResponsesWire().parse(json.dumps({"id": "r", "model": "m", **body}).encode(), *reader())


def assemble(*events: dict[str, Any]) -> tuple[ModelResponse, list[Any]]:
    assembler = OpenAIResponsesWire().assembler(*reader())
    deltas: list[Any] = []
    for event in events:
        deltas.extend(assembler.feed(json.dumps(event).encode()))
    return assembler.finish(), deltas


def test_the_whole_conversation_is_sent_as_items_and_nothing_is_stored() -> None:
    kept = 'openai.responses:{"id":"rs_1","encrypted_content":"enc"}'
    body = build(
        ask(
            Message("user", (Text("hi"), Media("image/png", url="https://x/i"))),
            Message("assistant", (Reasoning("hm", opaque=kept), Text("I ask."), ToolCall("c1", "memory.write", "{"))),
            Message("tool", (ToolResult("c1", "memory.write", (), ToolFailure("e", "r", "broken")),)),
            system="Be brief.",
            tools=(ToolSpec("memory.write"),),
        )
    )
    assert body["store"] is False
    assert body["instructions"] == "Be brief."
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["input"] == [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "image_url": "https://x/i", "detail": "auto"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "encrypted_content": "enc",
            "summary": [{"type": "summary_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": "I ask."},
        {"type": "function_call", "call_id": "c1", "name": "memory_write", "arguments": '{"input":"{"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "broken"},
    ]


def test_reasoning_that_cannot_go_back_is_left_out() -> None:
    thoughts = (Reasoning("plain"), Reasoning("signed", signature="anthropic"), Text("ok"))
    assert [item["type"] for item in build(ask(Message("assistant", thoughts)))["input"]] == ["message"]


def test_results_may_hold_pictures_and_files() -> None:
    result = ToolResult(
        "c1", "t", (Text("see"), Media("image/png", data="aQ=="), Media("application/pdf", data="aQ=="))
    )
    output = build(ask(Message("tool", (result,))))["input"][0]["output"]
    assert [piece["type"] for piece in output] == ["input_text", "input_image", "input_file"]
    assert output[2]["filename"] == "file.pdf"


@pytest.mark.parametrize(
    ("model", "effort", "asked"),
    [
        ("gpt-5-mini", None, True),
        ("o3", None, True),
        ("openai/gpt-5", None, True),
        ("gpt-4.1", None, False),
        ("gpt-5-chat-latest", None, False),
        ("gpt-4.1", "low", False),
    ],
)
def test_encrypted_reasoning_is_asked_of_models_that_reason(model: str, effort: Any, asked: bool) -> None:
    assert ("include" in build(ask(model=model, settings=ModelSettings(reasoning_effort=effort)))) is asked


def test_a_schema_becomes_the_format_of_the_text() -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert build(ask(output_schema=schema))["text"]["format"] == {
        "type": "json_schema", "name": "answer", "schema": schema, "strict": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        ({"status": "completed", "output": []}, "end"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "output": []}, "refusal"),
        (
            {
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}],
            },
            "refusal",
        ),
    ],
)
def test_stop_reasons(body: dict[str, Any], stop: str) -> None:
    assert parse(**body).stop == stop


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
def test_an_answer_that_is_not_finished_is_garbage(status: str) -> None:
    with pytest.raises(WireError, match=status):
        parse(status=status, output=[])


def test_a_failed_answer_is_the_providers_error() -> None:
    with pytest.raises(ProviderFault):
        parse(status="failed", error={"code": "server_error", "message": "oops"}, output=[])


def test_a_generated_picture_is_media() -> None:
    item = {"type": "image_generation_call", "id": "ig", "result": "aW1n", "output_format": "webp"}
    assert parse(status="completed", output=[item]).message.parts == (Media("image/webp", data="aW1n"),)


def test_a_proxy_that_empties_the_last_event_is_forgiven() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "memory_write", "arguments": '{"a":1}'}
    got, deltas = assemble(
        {"type": "response.output_item.added", "output_index": 1, "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a":1}'},
        {"type": "response.output_item.done", "output_index": 1, "item": item},
        {"type": "response.completed", "response": {"id": "r", "model": "m", "status": "completed", "output": []}},
    )
    assert got.message.calls == (ToolCall("c1", "memory.write", '{"a":1}'),)
    assert got.stop == "tool_calls"
    assert {delta.id for delta in deltas} == {"c1"}


async def test_the_gateway_posts_to_responses() -> None:
    answer = ModelResponse(Message("assistant", (Text("ok"),)), model="m", id="r")
    async with WireServer([answer]) as server:
        gateway = OpenAIResponsesGateway(GatewayConfig("openai", f"{server.url}/v1", "sk-1"))
        assert (await gateway.respond(ask())).message.text == "ok"
        await gateway.close()
    assert server.requests[0].path == "/v1/responses"
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize("given", [None, {}, "", "{}"])
def test_a_call_without_arguments_is_one_with_none(given: Any) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "memory_write", "arguments": given}
    whole = parse(status="completed", output=[call])
    body = {"id": "r", "model": "m", "status": "completed", "output": [call]}
    streamed, deltas = assemble(
        {"type": "response.output_item.added", "output_index": 0, "item": call},
        {"type": "response.completed", "response": body},
    )
    assert [each.message.calls[0].arguments for each in (whole, streamed)] == ["{}", "{}"]
    assert deltas[0].name == "memory.write"


@pytest.mark.parametrize("texts", [[], ["one"], ["one", "two"], ["a\n\nb", "", "c"], ["", ""]])
def test_the_summaries_of_a_thought_go_back_as_many_as_they_came(texts: list[str]) -> None:
    summary = [{"type": "summary_text", "text": text} for text in texts]
    item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "enc"}
    answer = parse(status="completed", output=[item, {"type": "message", "content": []}])
    (sent, *_) = build(ask(answer.message))["input"]
    assert sent == item
