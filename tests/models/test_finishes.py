"""Why an answer ended: each reason of each format, read from a body and from a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec
import pytest

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text
from foliot.models.base import ModelGarbage
from foliot.models.routing.router import Router
from foliot.models.wire import finishes
from foliot.models.wire.anthropic import AnthropicWire
from foliot.models.wire.base import Wire, WireError
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.ollama import OllamaWire
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire
from foliot.models.wire.values import CallIds

ASK = ModelRequest("m", (Message("user", (Text("hi"),)),))
SAID = "half a sentence"


def chat(reason: str | None) -> tuple[Any, list[Any]]:
    def choice(key: str, said: Any) -> Any:
        return {"choices": [{"index": 0, key: said, "finish_reason": reason if said or key == "delta" else None}]}

    return choice("message", {"content": SAID}), [
        {"choices": [{"index": 0, "delta": {"content": SAID}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]


def responses(reason: str | None) -> tuple[Any, list[Any]]:
    body: dict[str, Any] = {
        "status": reason,
        "output": [{"type": "message", "content": [{"type": "output_text", "text": SAID}]}],
    }
    if reason in ("max_output_tokens", "max_messages", "content_filter", "steered", "unheard_of"):
        body |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return body, [{"type": "response.incomplete", "response": body}]


def messages(reason: str | None) -> tuple[Any, list[Any]]:
    body = {"type": "message", "content": [{"type": "text", "text": SAID}], "stop_reason": reason}
    return body, [
        {"type": "message_start", "message": {"type": "message", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": SAID}},
        {"type": "message_delta", "delta": {"stop_reason": reason}},
        {"type": "message_stop"},
    ]


def gemini(reason: str | None) -> tuple[Any, list[Any]]:
    body = {"candidates": [{"content": {"parts": [{"text": SAID}]}, "finishReason": reason}]}
    return body, [body]


def ollama(reason: str | None) -> tuple[Any, list[Any]]:
    body = {"message": {"content": SAID}, "done": True, "done_reason": reason}
    return body, [body]


FORMATS: dict[str, tuple[Wire, Mapping[str, str], Callable[[str | None], tuple[Any, list[Any]]]]] = {
    "chat": (OpenAIChatWire(), finishes.CHAT, chat),
    "responses": (OpenAIResponsesWire(), finishes.RESPONSES, responses),
    "messages": (AnthropicWire(), finishes.MESSAGES, messages),
    "gemini": (GeminiWire(), finishes.GEMINI, gemini),
    "ollama": (OllamaWire(), finishes.OLLAMA, ollama),
}
REASONS = [(name, reason) for name, (_, table, _) in FORMATS.items() for reason in (*table, "unheard_of")]


def readings(name: str, reason: str | None) -> list[Callable[[], ModelResponse]]:
    wire, _, write = FORMATS[name]
    body, events = write(reason)

    def context() -> tuple[Any, CallIds]:
        return wire.names(ASK), CallIds(ASK, lambda: b"")

    def whole() -> ModelResponse:
        return wire.parse(msgspec.json.encode(body), *context())

    def streamed() -> ModelResponse:
        assembler = wire.assembler(*context())
        for event in events:
            assembler.feed(msgspec.json.encode(event))
        return assembler.finish()

    return [whole, streamed]


@pytest.mark.parametrize(("name", "reason"), REASONS)
def test_a_reason_means_what_its_table_says(name: str, reason: str) -> None:
    finish = FORMATS[name][1].get(reason, "failure")
    for read in readings(name, reason):
        if finish == "failure":
            with pytest.raises(Exception, match=r"broke off|reported an error"):
                read()
            continue
        got = read()
        assert got.message.text == SAID
        cut = "pause" if reason == "pause_turn" else "length"
        assert got.stop == {"end": "end", "cut": cut, "refusal": "refusal"}[finish]


@pytest.mark.parametrize("name", ["messages", "gemini"])
def test_an_answer_that_says_no_reason_is_not_taken_for_a_whole_one(name: str) -> None:
    for read in readings(name, None):
        with pytest.raises(WireError):
            read()


def test_the_tables_know_every_reason_of_the_official_sdks() -> None:
    openai = pytest.importorskip("openai.types.chat.chat_completion")
    anthropic = pytest.importorskip("anthropic.types")
    google = pytest.importorskip("google.genai.types")
    from openai.types.responses import response, response_status

    assert set(get_args(openai.Choice.model_fields["finish_reason"].annotation)) <= set(finishes.CHAT)
    assert set(get_args(anthropic.StopReason)) == set(finishes.MESSAGES)
    assert {each.value for each in google.FinishReason} == set(finishes.GEMINI)
    reasons = get_args(get_args(response.IncompleteDetails.model_fields["reason"].annotation)[0])
    assert {*reasons, *get_args(response_status.ResponseStatus)} - {"incomplete"} == set(finishes.RESPONSES)


async def test_a_gateway_of_somebody_else_that_knows_no_reason_has_failed() -> None:
    from foliot.models.config import GatewayConfig
    from foliot.models.registry import Provider, ProviderRegistry
    from foliot.models.routing.endpoints import EndpointConfig

    class Odd:
        async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
            return ModelResponse(Message("assistant", (Text(SAID),)), stop="other")

        async def close(self) -> None: ...

    registry = ProviderRegistry([Provider("odd", lambda config: Odd(), requires_api_key=False)])
    endpoint = EndpointConfig("e", GatewayConfig("odd", model="m"))
    router = Router(lambda ref: endpoint, registry=registry)
    with pytest.raises(ModelGarbage, match="broke off"):
        await router.respond("e", ASK)
    await router.close()
