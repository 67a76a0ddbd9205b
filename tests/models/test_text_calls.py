"""Calls written as text: read where an endpoint asks for it, and never made of an honest answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Reasoning, Text, ToolCall, ToolSpec
from foliot.models.config import GatewayConfig
from foliot.models.gateways.ollama import OllamaGateway
from foliot.models.gateways.openai import OpenAIChatGateway
from foliot.models.wire.text_calls import with_text_calls
from foliot.models.wire.values import CallIds
from simulators.provider import WireServer

TOOLS = (ToolSpec("Search"), ToolSpec("files/read"))
REQUEST = ModelRequest("m", (Message("user", (Text("go"),)),), tools=TOOLS)


def read(text: str, *others: Any) -> ModelResponse:
    answer = ModelResponse(Message("assistant", (*others, Text(text))))
    return with_text_calls(answer, TOOLS, CallIds(REQUEST, lambda: b"seed"))


def called(text: str) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in read(text).message.calls]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"tool": "search", "input": "clocks"}', [("Search", {"input": "clocks"})]),
        ('{"name": " SEARCH ", "input": "{\\"q\\": 1}"}', [("Search", {"q": 1})]),
        ('{"name": "search", "arguments": {"z": 1, "a": 2}}', [("Search", {"z": 1, "a": 2})]),
        ('```json\n{"tool": "search", "input": ""}\n```', [("Search", {})]),
        (
            '{"tool_calls": [{"function": {"name": "search", "arguments": {}}}, {"name": "files/read", "input": "x"}]}',
            [("Search", {}), ("files/read", {"input": "x"})],
        ),
        ('{"tools": [{"tool": "search", "input": "a"}, {"tool": "gone", "input": "b"}]}',
         [("Search", {"input": "a"}), ("gone", {"input": "b"})]),
        ("I look it up.\nTool: search Input: old clocks", [("Search", {"input": "old clocks"})]),
        ("so I use tool = files/read\ntool: search", [("files/read", {})]),
    ],
)  # fmt: skip
def test_what_names_an_offered_tool_is_a_call(text: str, calls: list[tuple[str, Any]]) -> None:
    assert called(text) == calls
    assert read(text).stop == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "input": "a person"}',  # an answer that is JSON
        '{"name": "search"}',  # nothing is handed to it
        "The best one is this tool: hammer",
        "Use the search tool: it is good.",
        '["search"]',
        "[" * 5000,
        "",
    ],
)
def test_an_honest_answer_stays_one(text: str) -> None:
    answer = read(text)
    assert answer.message.calls == ()
    assert answer.message.text == text


def test_a_proper_call_is_believed_and_the_text_beside_it_is_text() -> None:
    call = ToolCall("c1", "Search", "{}")
    assert read('{"tool": "search", "input": "x"}', call).message.calls == (call,)


def test_what_is_nothing_but_calls_is_not_said_twice_and_thoughts_stay() -> None:
    thought = Reasoning("hm", "sig")
    assert [type(part) for part in read('{"tool": "search", "input": "x"}', thought).message.parts] == [
        Reasoning,
        ToolCall,
    ]
    assert [type(part) for part in read("now\ntool: search", thought).message.parts] == [Reasoning, Text, ToolCall]


@settings(max_examples=100, derandomize=True)
@given(st.text(max_size=60))
def test_any_text_gives_an_answer_and_only_offered_tools_make_calls(text: str) -> None:
    calls = called(text)
    assert not calls or any(name in ("Search", "files/read") for name, _ in calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["native", "text"])
@pytest.mark.parametrize("gateway", [OpenAIChatGateway, OllamaGateway])
async def test_an_endpoint_must_ask_for_it(gateway: Any, how: str, stream: bool) -> None:
    said = ModelResponse(Message("assistant", (Text('{"tool": "search", "input": "x"}'),)))
    async with WireServer([said]) as server:
        made = gateway(GatewayConfig("openai-compatible", base_url=f"{server.url}/v1", options={"tool_calls": how}))
        answer = await made.respond(REQUEST, on_delta=(lambda delta: None) if stream else None)
        await made.close()
    assert [call.name for call in answer.message.calls] == (["Search"] if how == "text" else [])
