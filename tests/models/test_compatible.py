"""Compatible servers as they are: no good-byes, wrong types, odd ids and indices, and addresses as people copy them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text
from foliot.models.base import ModelError, ModelGarbage
from foliot.models.config import GatewayConfig
from foliot.models.gateways.openai import AzureOpenAIGateway, OpenAIChatGateway
from foliot.models.registry import default_registry

ASK = ModelRequest("m", (Message("user", (Text("hello"),)),))


@asynccontextmanager
async def server(body: bytes, kind: str, *, stays_open: bool = False) -> AsyncIterator[tuple[str, list[str]]]:
    """Sends these bytes as this type. `stays_open`: the connection is never ended."""
    asked: list[str] = []
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split(" ")[1])
        length = next(int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:"))
        asked.append((await reader.readexactly(length)).decode())
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        if stays_open:
            held.append(writer)
        else:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked
    finally:
        for writer in held:
            writer.close()
        listening.close()
        await listening.wait_closed()


def sse(*chunks: Any, end: str = "") -> bytes:
    return ("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end).encode()


def piece(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USED = {"id": "x", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


async def ask(body: bytes, kind: str = "text/event-stream", *, stays_open: bool = False) -> ModelResponse:
    async with server(body, kind, stays_open=stays_open) as (url, _):
        gateway = OpenAIChatGateway(GatewayConfig("openai-compatible", base_url=f"{url}/v1"))
        try:
            async with asyncio.timeout(60):
                return await gateway.respond(ASK, on_delta=lambda _: None)
        finally:
            await gateway.close()


@pytest.mark.parametrize("counted", [True, False])
async def test_a_finish_reason_without_a_good_bye_ends_the_answer(counted: bool) -> None:
    frames = [piece(content="Hi"), piece("stop"), *([USED] if counted else [])]
    answer = await ask(sse(*frames), stays_open=True)
    assert answer.message.text == "Hi"
    assert answer.stop == "end"
    assert answer.usage.source == ("provider" if counted else "estimated")


async def test_without_a_finish_reason_it_was_cut() -> None:
    with pytest.raises(ModelGarbage, match="cut"):
        await ask(sse(piece(content="Hi")))


WHOLE = {"id": 7, "model": "m", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/html", "application/octet-stream"])
async def test_answers_are_known_by_what_they_hold(kind: str) -> None:
    streamed = await ask(sse(piece(content="Hi"), piece("stop"), end="data: [DONE]\n\n"), kind)
    whole = await ask(b"\n  " + json.dumps(WHOLE, indent=1).encode(), kind)
    assert streamed.message.text == whole.message.text == "Hi"


async def test_a_page_is_still_a_page() -> None:
    with pytest.raises(ModelGarbage, match="text/html"):
        await ask(b"<!doctype html><title>Sign in</title>", "text/html")


def call(index: Any = None, id: Any = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return piece(tool_calls=[{"index": index, "id": id, "type": "function", "function": function}])


ONE = [("look", '{"a":1}')]
TWO = [("look", '{"a":1}'), ("find", "{}")]
CALLS = {
    "an id for every piece": ([call(0, "a", "look", '{"a"'), call(0, "b", None, ":1}")], ONE),
    "an id for every piece, no index": ([call(None, "a", "look", '{"a"'), call(None, "b", "", ":1}")], ONE),
    "indices as texts": ([call("0", "a", "look", '{"a"'), call("0", None, None, ":1}"), call("1", "b", "find")], TWO),
    "numbers as ids": ([call(0, 11, "look", '{"a":1}'), call(1, 12, "find", "{}")], TWO),
    "every call is number 0": ([call(0, "a", "look", '{"a":1}'), call(0, "b", "find", "{}")], TWO),
    "neither ids nor indices": ([call(None, None, "look", '{"a":1}'), call(None, None, "find", "{}")], TWO),
    "the same id twice": ([call(0, "a", "look", '{"a":1}'), call(1, "a", "find", "{}")], TWO),
    "empty ids": ([call(0, "", "look", '{"a"'), call(0, "", None, ":1}")], ONE),
    "arguments as an object": ([call(0, "a", "look", {"a": 1})], ONE),
    "indices from 1": ([call(1, "a", "look", '{"a":1}'), call(2, "b", "find", "{}")], TWO),
    "one call of old": (
        [piece(function_call={"name": "look", "arguments": '{"a"'}), piece(function_call={"arguments": ":1}"})],
        ONE,
    ),
}


@pytest.mark.parametrize("how", CALLS)
async def test_calls_are_told_apart_however_they_are_numbered(how: str) -> None:
    frames, wanted = CALLS[how]
    answer = await ask(sse(*frames, piece("tool_calls"), end="data: [DONE]\n\n"))
    assert [(each.name, each.arguments.replace(" ", "")) for each in answer.message.calls] == wanted
    assert len({each.id for each in answer.message.calls}) == len(wanted)


async def test_an_error_that_is_an_object_of_its_own_is_read() -> None:
    error = {"object": "error", "message": "too many tokens in the batch", "type": "BadRequestError", "code": 400}
    with pytest.raises(ModelError, match="too many tokens in the batch"):
        await ask(sse(error))


ADDRESSES = [
    ("anthropic", "https://api.anthropic.com", "https://api.anthropic.com/v1"),
    ("anthropic", "https://proxy.example/anthropic", "https://proxy.example/anthropic/v1"),
    ("anthropic", "https://proxy.example/v1/messages", "https://proxy.example/v1"),
    ("anthropic", "https://proxy.example/v1/", "https://proxy.example/v1"),
    ("gemini", "https://generativelanguage.googleapis.com", "https://generativelanguage.googleapis.com/v1beta"),
    ("gemini", "https://g.example/v1/projects/p", "https://g.example/v1/projects/p"),
    ("openai", "https://api.openai.com", "https://api.openai.com/v1"),
    ("openai", "https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
    ("openai", "https://gateway.example/tenant/a", "https://gateway.example/tenant/a"),
    ("groq", "https://api.groq.com", "https://api.groq.com/openai/v1"),
    ("mistral", "https://api.mistral.ai", "https://api.mistral.ai/v1"),
    ("openrouter", "https://openrouter.ai", "https://openrouter.ai/api/v1"),
    ("vllm", "http://gpu:8000", "http://gpu:8000/v1"),
    ("lmstudio", "http://127.0.0.1:1234", "http://127.0.0.1:1234/v1"),
    ("ollama", "http://127.0.0.1:11434/api", "http://127.0.0.1:11434"),
    ("ollama", "http://127.0.0.1:11434/v1", "http://127.0.0.1:11434"),
    ("openai-compatible", "http://host:9/anything", "http://host:9/anything"),
    ("openai", "", "https://api.openai.com/v1"),
]


@pytest.mark.parametrize(("provider", "said", "meant"), ADDRESSES)
def test_an_address_is_meant_as_the_sdk_would_read_it(provider: str, said: str, meant: str) -> None:
    assert default_registry().find(provider).address(said) == meant


OLD = "/openai/deployments/{}/chat/completions?api-version=2024-10-21"
AZURE = [
    ("", {}, OLD.format("m"), "m"),
    ("", {"deployment": "mine"}, OLD.format("mine"), "m"),
    ("/openai", {}, OLD.format("m"), "m"),
    ("/openai/deployments/mine", {}, OLD.format("mine"), "m"),
    ("/openai/v1", {}, "/openai/v1/chat/completions", "m"),
    ("/openai/v1/", {"deployment": "mine"}, "/openai/v1/chat/completions", "mine"),
    ("", {"api_version": "v1"}, "/openai/v1/chat/completions", "m"),
    ("", {"api_version": "preview"}, "/openai/v1/chat/completions?api-version=preview", "m"),
]


@pytest.mark.parametrize(("path", "options", "asked", "model"), AZURE)
async def test_azure_is_asked_at_either_of_its_addresses(
    path: str, options: dict[str, Any], asked: str, model: str
) -> None:
    async with server(json.dumps(WHOLE).encode(), "application/json") as (url, got):
        config = GatewayConfig("azure-openai", base_url=url + path, api_key="k", model="m", options=options)
        gateway = AzureOpenAIGateway(config)
        await gateway.respond(ASK)
        await gateway.close()
    assert got[0] == asked
    assert json.loads(got[1])["model"] == model
