"""The vendors' own SDKs as judges: they and our gateways read the same bytes and must find the same answer there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

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
    Usage,
)
from foliot.models.config import GatewayConfig
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.gateways.gemini import GeminiGateway
from foliot.models.gateways.openai import OpenAIChatGateway, OpenAIResponsesGateway
from foliot.models.wire.anthropic import AnthropicWire, MessagesOptions
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire
from simulators.provider import Play, WireServer

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

USAGE = Usage(input_tokens=120, output_tokens=45, cache_read_tokens=64, cache_write_tokens=16, reasoning_tokens=9)
CALLS = (
    ToolCall("call_a", "get_weather", '{"city":"Zürich","days":[1,2,3]}'),
    ToolCall("call_b", "get_time", '{"zone": "Europe/Zurich"}'),
)
TOOLS = (ToolSpec("get_weather", "Weather", {"type": "object", "properties": {"city": {"type": "string"}}}),)
ASK = ModelRequest("m", (Message("user", (Text("hello"),)),), system="Be brief.", tools=TOOLS)


def answer(*parts: Any, stop: Any = "end") -> ModelResponse:
    return ModelResponse(Message("assistant", parts), usage=USAGE, stop=stop, model="m-1", id="id_1")


TEXT = answer(Text("Grüezi, 你好 and hello — a longer sentence to be cut."))
TOOLED = answer(Text("I look it up."), *CALLS, stop="tool_calls")
SHORT = answer(Text("It was cut"), stop="length")
THOUGHT = answer(Reasoning("Let me think.", signature="c2ln"), Text("Done."))


async def ours(factory: Any, server: WireServer, base: str, *, stream: bool) -> tuple[ModelResponse, list[Any]]:
    gateway = factory(GatewayConfig("judged", base_url=f"{server.url}{base}", api_key="key-1"))
    deltas: list[Any] = []
    try:
        return await gateway.respond(ASK, on_delta=deltas.append if stream else None), deltas
    finally:
        await gateway.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("given", [TEXT, TOOLED, SHORT], ids=["text", "tools", "length"])
async def test_openai_chat_reads_what_the_official_sdk_reads(given: ModelResponse, stream: bool) -> None:
    async with WireServer([Play(given, pieces=7)]) as server:
        got, _ = await ours(OpenAIChatGateway, server, "/v1", stream=stream)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key-1", max_retries=0) as client:
            messages = [{"role": "user", "content": "hello"}]
            if stream:
                async with client.chat.completions.stream(
                    model="m", messages=messages, stream_options={"include_usage": True}
                ) as events:
                    async for _ in events:
                        pass
                    try:
                        theirs = await events.get_final_completion()
                    except openai.LengthFinishReasonError as error:
                        theirs = error.completion
            else:
                theirs = await client.chat.completions.create(model="m", messages=messages)

    choice = theirs.choices[0]
    assert got.message.text == (choice.message.content or "")
    assert [(c.id, c.name, c.arguments) for c in got.message.calls] == [
        (c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()
    ]
    assert {"end": "stop", "tool_calls": "tool_calls", "length": "length"}[got.stop] == choice.finish_reason
    assert (got.id, got.model) == (theirs.id, theirs.model)
    usage = theirs.usage
    assert got.usage == Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.prompt_tokens_details.cached_tokens,
        cache_write_tokens=usage.prompt_tokens_details.cache_write_tokens,
        reasoning_tokens=usage.completion_tokens_details.reasoning_tokens,
    )
    assert got == ModelResponse(given.message, given.usage, given.stop, given.model, "judged", given.id)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("given", [TEXT, TOOLED, SHORT, THOUGHT], ids=["text", "tools", "length", "reasoning"])
async def test_openai_responses_reads_what_the_official_sdk_reads(given: ModelResponse, stream: bool) -> None:
    async with WireServer([Play(given, pieces=7)]) as server:
        got, _ = await ours(OpenAIResponsesGateway, server, "/v1", stream=stream)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key-1", max_retries=0) as client:
            if stream:
                theirs = None
                async for event in await client.responses.create(model="m", input="hello", stream=True):
                    if event.type in ("response.completed", "response.incomplete"):
                        theirs = event.response
                assert theirs is not None
            else:
                theirs = await client.responses.create(model="m", input="hello")

    assert got.message.text == theirs.output_text
    assert [(c.id, c.name, c.arguments) for c in got.message.calls] == [
        (item.call_id, item.name, item.arguments) for item in theirs.output if item.type == "function_call"
    ]
    assert [part.text for part in got.message.parts if isinstance(part, Reasoning)] == [
        "".join(summary.text for summary in item.summary) for item in theirs.output if item.type == "reasoning"
    ]
    assert (got.stop == "length") == (theirs.status == "incomplete")
    assert got.usage == Usage(
        input_tokens=theirs.usage.input_tokens,
        output_tokens=theirs.usage.output_tokens,
        cache_read_tokens=theirs.usage.input_tokens_details.cached_tokens,
        cache_write_tokens=theirs.usage.input_tokens_details.cache_write_tokens,
        reasoning_tokens=theirs.usage.output_tokens_details.reasoning_tokens,
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("given", [TEXT, TOOLED, SHORT, THOUGHT], ids=["text", "tools", "length", "thinking"])
async def test_anthropic_reads_what_the_official_sdk_reads(given: ModelResponse, stream: bool) -> None:
    async with WireServer([Play(given, pieces=7)]) as server:
        got, _ = await ours(AnthropicGateway, server, "/v1", stream=stream)
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="key-1", max_retries=0) as client:
            question = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
            if stream:
                async with client.messages.stream(**question) as events:
                    theirs = await events.get_final_message()
            else:
                theirs = await client.messages.create(**question)

    parts: list[Any] = []
    for block in theirs.content:
        if block.type == "text":
            parts.append(("text", block.text))
        elif block.type == "thinking":
            parts.append(("thinking", block.thinking, block.signature))
        else:
            parts.append(("call", block.id, block.name, block.input))
    mine: list[Any] = []
    for part in got.message.parts:
        if isinstance(part, Text):
            mine.append(("text", part.text))
        elif isinstance(part, Reasoning):
            mine.append(("thinking", part.text, part.signature))
        elif isinstance(part, ToolCall):
            mine.append(("call", part.id, part.name, json.loads(part.arguments)))
    assert mine == parts
    reasons = {"end": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    assert reasons[got.stop] == theirs.stop_reason
    usage = theirs.usage
    total = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert (got.usage.input_tokens, got.usage.output_tokens) == (total, usage.output_tokens)
    assert got.usage == given.usage
    assert (got.id, got.model) == (theirs.id, theirs.model)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")  # the SDK's own affair
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("given", [TEXT, TOOLED, SHORT, THOUGHT], ids=["text", "tools", "length", "thinking"])
async def test_gemini_reads_what_the_official_sdk_reads(given: ModelResponse, stream: bool) -> None:
    genai = pytest.importorskip("google.genai")
    async with WireServer([Play(given, pieces=7)]) as server:
        got, _ = await ours(GeminiGateway, server, "/v1beta", stream=stream)
        options = genai.types.HttpOptions(base_url=server.url, api_version="v1beta")
        async with genai.Client(api_key="key-1", http_options=options).aio as client:
            if stream:
                answers = [
                    one async for one in await client.models.generate_content_stream(model="m", contents="hello")
                ]
            else:
                answers = [await client.models.generate_content(model="m", contents="hello")]

    parts = [part for one in answers for part in one.candidates[0].content.parts or ()]
    assert got.message.text == "".join(part.text for part in parts if part.text and not part.thought)
    thought = "".join(part.text for part in got.message.parts if isinstance(part, Reasoning))
    assert thought == "".join(part.text for part in parts if part.text and part.thought)
    assert [(c.name, json.loads(c.arguments)) for c in got.message.calls] == [
        (part.function_call.name, part.function_call.args) for part in parts if part.function_call
    ]
    last = answers[-1]
    reasons = {"end": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}
    assert reasons[got.stop] == last.candidates[0].finish_reason.value
    usage = last.usage_metadata
    assert got.usage.input_tokens == usage.prompt_token_count
    assert got.usage.output_tokens == usage.candidates_token_count + usage.thoughts_token_count
    assert got.usage.cache_read_tokens == usage.cached_content_token_count
    assert got.usage.reasoning_tokens == usage.thoughts_token_count


# ── the other direction: is what we send what the SDK's own types describe? ─────────────────────────────────────────

IMAGE = Media("image/png", data="iVBORw0KGgo=")
FULL = ModelRequest(
    "m",
    (
        Message("system", (Text("One more rule."),)),
        Message("user", (Text("What is this?"), IMAGE, Media("application/pdf", data="JVBERi0=", name="a.pdf"))),
        Message(
            "assistant",
            (
                Reasoning("Let me see.", signature="c2ln"),
                Reasoning(opaque="anthropic.redacted:ZGF0YQ=="),
                Reasoning("Hm.", opaque='openai.responses:{"id":"rs_1","encrypted_content":"enc"}'),
                Text("I ask."),
                ToolCall("call_1", "memory.write", "not json"),
                ToolCall("call_2", "search", '{"q": "x"}', "gemini.call:c2ln"),
            ),
        ),
        Message(
            "tool",
            (
                ToolResult("call_1", "memory.write", (Text("no"),), ToolFailure("failed", "r", "no")),
                ToolResult("call_2", "search", (Text("found"), IMAGE)),
            ),
        ),
        Message("user", (Text("Go on."),)),
    ),
    system="Be brief.",
    tools=(
        ToolSpec("memory.write", "Write."),
        ToolSpec("search", "Search.", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}),
    ),
    output_schema={"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
    settings=ModelSettings(
        max_output_tokens=20000, temperature=0.5, top_p=0.9, stop=("END",), reasoning_effort="low", seed=None
    ),
)


def built(wire: Any, *, stream: bool) -> dict[str, Any]:
    return json.loads(json.dumps(wire.build_body(FULL, wire.names(FULL), stream=stream)))


def judged(kind: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Validate strictly against a TypedDict and return what was recognised."""
    return TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_requests_are_what_the_sdk_types_describe(stream: bool) -> None:
    from openai.types.chat import completion_create_params as params

    body = built(OpenAIChatWire(), stream=stream)
    kind = params.CompletionCreateParamsStreaming if stream else params.CompletionCreateParamsNonStreaming
    assert set(judged(kind, body)) == set(body)


@pytest.mark.parametrize("stream", [False, True])
def test_responses_requests_are_what_the_sdk_types_describe(stream: bool) -> None:
    from openai.types.responses import response_create_params as params

    body = built(OpenAIResponsesWire(), stream=stream)
    kind = params.ResponseCreateParamsStreaming if stream else params.ResponseCreateParamsNonStreaming
    assert set(judged(kind, body)) == set(body)


@pytest.mark.parametrize("stream", [False, True])
def test_messages_requests_are_what_the_sdk_types_describe(stream: bool) -> None:
    from anthropic.types import message_create_params as params

    body = built(AnthropicWire(MessagesOptions(sampling="off")), stream=stream)
    kind = params.MessageCreateParamsStreaming if stream else params.MessageCreateParamsNonStreaming
    assert set(judged(kind, body)) == set(body)


def test_gemini_requests_are_what_the_sdk_types_describe() -> None:
    types = pytest.importorskip("google.genai.types")
    body = built(GeminiWire(), stream=False)
    for content in [*body["contents"], body["systemInstruction"]]:
        types.Content.model_validate(content)  # extra fields are refused
    for tool in body["tools"]:
        types.Tool.model_validate(tool)
    types.ToolConfig.model_validate(body["toolConfig"])
    types.GenerationConfig.model_validate(body["generationConfig"])
