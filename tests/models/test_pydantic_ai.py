from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Delta,
    Media,
    Message,
    ModelRequest,
    ModelSettings,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolFailure,
    ToolResult,
    ToolSpec,
)
from foliot.models.base import ModelAuthError, ModelError, ModelGarbage, ModelTimeout
from foliot.models.config import GatewayConfig
from foliot.models.registry import default_registry
from simulators.provider import Fault, Play, WireServer

pytest.importorskip("pydantic_ai")

from pydantic_ai import exceptions as theirs
from pydantic_ai import messages as their_messages
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel as CannedModel
from pydantic_ai.usage import RequestUsage

from foliot.models.gateways.pydantic_ai import PydanticAIGateway, build

SEARCH = ToolSpec("web.search", "Finds", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})


def ask(*messages: Message, **more: Any) -> ModelRequest:
    return ModelRequest("m", messages or (Message("user", (Text("hi"),)),), **more)


class Seen:
    """A Pydantic AI model that answers what it is told and keeps what it was asked."""

    def __init__(self, answer: their_messages.ModelResponse | Exception) -> None:
        self.messages: list[their_messages.ModelMessage] = []
        self.info: AgentInfo | None = None
        self._answer = answer
        self.gateway = PydanticAIGateway(FunctionModel(self._respond, model_name="seen"))

    async def _respond(
        self, messages: list[their_messages.ModelMessage], info: AgentInfo
    ) -> their_messages.ModelResponse:
        self.messages, self.info = messages, info
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def said(text: str) -> their_messages.ModelResponse:
    return their_messages.ModelResponse([their_messages.TextPart(text)])


async def test_a_model_calls_a_tool_by_foliots_name_and_then_answers():
    gateway = PydanticAIGateway(CannedModel(custom_output_text="done"))
    first = await gateway.respond(ask(tools=(SEARCH,)))
    call = first.message.calls[0]

    assert (call.name, first.stop) == ("web.search", "tool_calls")
    assert first.usage.input_tokens > 0

    history = (
        Message("user", (Text("hi"),)),
        first.message,
        Message("tool", (ToolResult(call.id, call.name, (Text("found"),)),)),
    )
    second = await gateway.respond(ask(*history, tools=(SEARCH,)))
    assert (second.message.text, second.stop) == ("done", "end")
    await gateway.close()


async def test_the_whole_transcript_is_translated():
    seen = Seen(said("ok"))
    picture = base64.b64encode(b"png").decode()
    await seen.gateway.respond(
        ask(
            Message(
                "user", (Text("look"), Media("image/png", data=picture), Media("image/jpeg", url="http://x/y.jpg"))
            ),
            Message(
                "assistant", (Reasoning("hmm", "sig"), Text("let me see"), ToolCall("c1", "web.search", '{"q":1}'))
            ),
            Message("tool", (ToolResult("c1", "web.search", (), ToolFailure("c", "r", "no net")),)),
            Message("user", (Text("go on"),)),
            system="Be brief.",
            tools=(SEARCH, ToolSpec("plain")),
            settings=ModelSettings(max_output_tokens=7, temperature=0.5, reasoning_effort="low"),
        )
    )

    question, answer, rest = seen.messages
    assert [type(part).__name__ for part in question.parts] == ["SystemPromptPart", "UserPromptPart"]
    content = question.parts[1].content
    assert content[0] == "look"
    assert (content[1].data, content[1].media_type) == (b"png", "image/png")
    assert content[2].url == "http://x/y.jpg"
    thought, text, call = answer.parts
    assert (thought.content, thought.signature, text.content) == ("hmm", "sig", "let me see")
    assert (call.tool_name, call.args, call.tool_call_id) == ("web_search", '{"q":1}', "c1")
    assert (rest.parts[0].tool_name, rest.parts[0].outcome) == ("web_search", "failed")
    assert "no net" in rest.parts[0].model_response_str()
    assert rest.parts[1].content == "go on"
    assert seen.info is not None
    assert [tool.name for tool in seen.info.function_tools] == ["plain", "web_search"]
    assert seen.info.model_settings is not None
    assert (seen.info.model_settings["max_tokens"], seen.info.model_settings["temperature"]) == (7, 0.5)
    await seen.gateway.close()


async def test_an_answer_comes_back_whole_and_what_belongs_to_the_provider_goes_back_to_it():
    answer = their_messages.ModelResponse(
        [
            their_messages.ThinkingPart("hmm", id="t1", signature="s", provider_name="p", provider_details={"k": 1}),
            their_messages.TextPart("text"),
            their_messages.ToolCallPart("web_search", {"q": "x"}, "c1", provider_details={"sig": "z"}),
        ],
        usage=RequestUsage(input_tokens=10, output_tokens=5, cache_read_tokens=4),
        model_name="real",
        provider_name="acme",
        provider_response_id="r1",
        finish_reason="tool_call",
    )
    seen = Seen(answer)
    got = await seen.gateway.respond(ask(tools=(SEARCH,)))

    assert got.message.text == "text"
    assert got.message.calls[0].arguments == '{"q":"x"}'
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.cache_read_tokens) == (10, 5, 4)
    assert (got.provider, got.id) == ("acme", "r1")

    await seen.gateway.respond(ask(Message("user", (Text("a"),)), got.message, Message("user", (Text("b"),))))
    thought, _, call = seen.messages[1].parts
    assert (thought.id, thought.provider_name, thought.provider_details) == ("t1", "p", {"k": 1})
    assert call.provider_details == {"sig": "z"}
    await seen.gateway.close()


async def test_a_stream_adds_up_to_the_finished_message():
    async def stream(messages: list[their_messages.ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="hm")}
        yield {0: DeltaThinkingPart(content="m")}
        yield "one "
        yield "two"
        yield {2: DeltaToolCall(name="web_search", json_args='{"q":', tool_call_id="c1")}
        yield {2: DeltaToolCall(json_args='"x"}')}

    deltas: list[Delta] = []
    gateway = PydanticAIGateway(FunctionModel(stream_function=stream))
    answer = await gateway.respond(ask(tools=(SEARCH,)), on_delta=deltas.append)

    assert answer.message.calls == (ToolCall("c1", "web.search", '{"q":"x"}'),)
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == answer.message.text == "one two"
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == "hmm"
    pieces = [d for d in deltas if isinstance(d, ToolCallDelta)]
    assert "".join(d.arguments for d in pieces) == '{"q":"x"}'
    assert {(d.index, d.id, d.name) for d in pieces} == {(0, "c1", "web.search")}
    await gateway.close()


async def test_a_model_that_cannot_stream_shows_its_answer_in_one_piece():
    class Mute(FunctionModel):
        def request_stream(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    deltas: list[Delta] = []
    gateway = PydanticAIGateway(Mute(lambda messages, info: said("whole")))
    answer = await gateway.respond(ask(), on_delta=deltas.append)
    assert deltas == [TextDelta("whole")]
    assert answer.message.text == "whole"
    await gateway.close()


async def test_the_wanted_shape_is_passed_on():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    seen = Seen(said('{"a":1}'))
    await seen.gateway.respond(ask(output_schema=schema))
    assert seen.info is not None
    asked = seen.info.model_request_parameters
    assert asked.output_mode == "native"
    assert asked.output_object is not None
    assert asked.output_object.json_schema["properties"] == schema["properties"]
    await seen.gateway.close()


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (theirs.ModelHTTPError(429, "m"), "rate_limit", True),
        (theirs.ModelHTTPError(500, "m"), "overloaded", True),
        (theirs.ModelHTTPError(401, "m"), "auth", False),
        (theirs.ModelHTTPError(400, "m"), "request", False),
        (theirs.ModelHTTPError(400, "m", {"message": "prompt is too long: 9 > 8"}), "context_overflow", False),
        (theirs.ModelHTTPError(403, "m", {"error": "you have run out of credits"}), "quota", False),
        (theirs.ModelHTTPError(413, "m"), "request_too_large", False),
        (theirs.ModelRateLimitError("m", "slow down"), "rate_limit", True),
        (theirs.ModelOverloadedError("m", "busy"), "overloaded", True),
        (theirs.UnexpectedModelBehavior("what"), "garbage", True),
        (theirs.UserError("no"), "request", False),
        (TimeoutError(), "timeout", True),
        (RuntimeError("boom"), "other", False),
    ],
)
async def test_every_error_becomes_a_model_error_of_its_kind(error: Exception, kind: str, retryable: bool):
    seen = Seen(error)
    with pytest.raises(ModelError) as caught:
        await seen.gateway.respond(ask())
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)
    await seen.gateway.close()


async def test_the_sdk_behind_a_model_tries_once():
    pytest.importorskip("openai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    fault = Fault("status", status=503)
    async with WireServer([Play(fault=fault) for _ in range(5)]) as server:
        model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="k"))
        gateway = PydanticAIGateway(model)
        for number in (1, 2):
            with pytest.raises(ModelError):
                await gateway.respond(ask(), on_delta=(lambda _: None) if number == 2 else None)
            assert len(server.requests) == number
        await gateway.close()


async def test_a_key_that_the_provider_quotes_is_taken_out_of_the_error():
    seen = Seen(theirs.ModelHTTPError(401, "m", {"message": "not this one: sk-very-secret-key"}))
    gateway = PydanticAIGateway(seen.gateway._model, hidden="sk-very-secret-key")
    with pytest.raises(ModelAuthError, match="not this one") as caught:
        await gateway.respond(ask())
    assert "sk-very-secret-key" not in str(caught.value)
    await gateway.close()


async def test_a_provider_that_never_answers_is_a_timeout():
    async def hang(messages: Any, info: Any) -> Any:
        await asyncio.Event().wait()

    gateway = PydanticAIGateway(FunctionModel(hang), total=0.05)
    with pytest.raises(ModelTimeout):
        await asyncio.wait_for(gateway.respond(ask()), 60)
    await gateway.close()


async def test_ids_that_were_used_before_and_arguments_that_are_no_json_are_made_good():
    again = their_messages.ToolCallPart("search", "{}", "call_0")
    seen = Seen(their_messages.ModelResponse([again]))
    history = (
        Message("user", (Text("hi"),)),
        Message("assistant", (ToolCall("call_0", "search", "not JSON"),)),
        Message("tool", (ToolResult("call_0", "search", (Text("what?"),)),)),
    )
    answer = await seen.gateway.respond(ModelRequest("m", history))
    assert answer.message.calls[0].id != "call_0"
    [sent] = [part for message in seen.messages for part in message.parts if part.part_kind == "tool-call"]
    assert sent.args_as_dict() == {"input": "not JSON"}
    await seen.gateway.close()


async def test_an_empty_answer_is_garbage():
    seen = Seen(their_messages.ModelResponse([]))
    with pytest.raises(ModelGarbage):
        await seen.gateway.respond(ask())
    await seen.gateway.close()


async def test_an_endpoint_names_its_model_behind_the_colon():
    gateway = default_registry().build(GatewayConfig("pydantic-ai:test"))
    assert (await gateway.respond(ask())).message.text
    await gateway.close()
    gateway = build(GatewayConfig("pydantic-ai", model="test"))
    assert (await gateway.respond(ask())).message.text
    await gateway.close()


@pytest.mark.parametrize("provider", ["pydantic-ai", "pydantic-ai:nonsense:x"])
def test_a_model_that_is_not_there_is_refused_at_once(provider: str):
    with pytest.raises(InvalidInput):
        build(GatewayConfig(provider))


def test_without_the_package_the_extra_to_install_is_named():
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from foliot.errors import InvalidInput\n"
        "from foliot.models.config import GatewayConfig\n"
        "from foliot.models.registry import default_registry\n"
        "try:\n    default_registry().build(GatewayConfig('pydantic-ai:test'))\n"
        "except InvalidInput as error:\n    print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "pip install 'foliot-runtime[pydantic-ai]'"
