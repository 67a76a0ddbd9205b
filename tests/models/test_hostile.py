"""A provider that sends whatever it likes: the call ends with an answer or a typed error, and without the key.

`test_faults.py` plays the faults that `simulators/provider.py` offers; here are the rarer ones, written by hand.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Delta,
    Message,
    ModelRequest,
    ModelResponse,
    Text,
    TextDelta,
    ToolCall,
    ToolSpec,
    Usage,
)
from foliot.models.base import ModelError, ModelGarbage, ModelOverloaded, ModelRequestError
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.gateways.gemini import GeminiGateway
from foliot.models.gateways.http import HttpGateway
from foliot.models.gateways.ollama import OllamaGateway
from foliot.models.gateways.openai import OpenAIChatGateway, OpenAIResponsesGateway
from foliot.models.routing.endpoints import EndpointConfig
from foliot.models.routing.router import Router
from simulators.provider import Fault, Play, WireServer
from tests.loop_watch import watched_steps

KEY = "sk-very-secret-key"
ASK = ModelRequest("m", (Message("user", (Text("hello"),)),))
GATEWAYS: list[type[HttpGateway]] = [
    OpenAIChatGateway, OpenAIResponsesGateway, AnthropicGateway, GeminiGateway, OllamaGateway,
]  # fmt: skip
every_gateway = pytest.mark.parametrize("gateway", GATEWAYS)
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def http(body: bytes, kind: str = "application/json", *, status: str = "200 OK", more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + body


def sse(body: bytes) -> bytes:
    return http(body, "text/event-stream")


def answer(**more: Any) -> bytes:
    said = {"message": {"content": "hi"}, "finish_reason": "stop"}
    return msgspec.json.encode({"id": "1", "model": "m", "choices": [said], **more})


PIECE = b'{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}'


class Raw:
    """Sends the same bytes to whoever asks; `asked` are the heads of the questions."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.url = ""


@asynccontextmanager
async def raw(sent: bytes, until: asyncio.Event | None = None) -> AsyncIterator[Raw]:
    """The connection is ended when all is sent; with `until`, when that has happened too."""
    made = Raw()
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            made.asked.append(head)
            writer.write(sent)
            await writer.drain()
            if until is not None:
                await asyncio.wait_for(until.wait(), 60)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def ask(
    sent: bytes,
    gateway: type[HttpGateway] = OpenAIChatGateway,
    *,
    stream: bool = False,
    lost: bool = False,
    **config: Any,
) -> ModelResponse:
    """What the gateway makes of `sent`. With `lost`, the connection ends only after a piece of it was shown."""
    shown = asyncio.Event()
    async with raw(sent, shown if lost else None) as server:
        limits = Timeouts(connect=10, idle=20, total=30)
        speaker = gateway(GatewayConfig("p", base_url=server.url, api_key=KEY, timeouts=limits, **config))
        try:
            return await asyncio.wait_for(
                speaker.respond(ASK, on_delta=(lambda _: shown.set()) if stream else None), 40
            )
        finally:
            await speaker.close()


async def test_an_answer_of_millions_of_values_is_garbage_and_holds_nobody() -> None:
    many = b'{"choices":[' + b"[]," * 2_000_000 + b"1]}"
    with watched_steps() as steps, pytest.raises(ModelGarbage, match="more than 250,000 values"):
        await ask(http(many), OpenAIChatGateway)
    assert steps.longest < 1.0, f"one step of the event loop took {steps.longest:.2f} s"


@every_gateway
@both_ways
async def test_an_answer_nested_without_end_is_garbage(gateway: type[HttpGateway], stream: bool) -> None:
    deep = b'{"error":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    lines = "application/x-ndjson" if gateway is OllamaGateway else "text/event-stream"
    framed = deep + b"\n" if gateway is OllamaGateway else b"data: " + deep + b"\n\n"
    with pytest.raises(ModelGarbage, match="nested too deeply"):
        await ask(http(framed, lines) if stream else http(deep), gateway, stream=stream)


async def test_a_refusal_nested_without_end_is_still_that_refusal() -> None:
    with pytest.raises(ModelOverloaded) as caught:
        await ask(http(b"[" * 30_000 + b"]" * 30_000, status="500 Sorry"))
    assert caught.value.status == 500
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + PIECE + b"\n\ndata: [DONE] \n\n",
        b"data: " + PIECE + b"\n\ndata: [DONE]\n\ndata: bye\n\n",
        b"data: " + PIECE + b"\n\ndata: [DONE]\n\n<html>half a page",
        b"data: \n\ndata:\n\ndata: " + PIECE + b"\n\ndata:   \n\ndata: [DONE]\n\n",
        b"\xef\xbb\xbfdata: " + PIECE + b"\n\ndata: [DONE]\n\n",
        b"\r\r: hello\rdata:" + PIECE + b"\r\rdata:[DONE]\r\r",
    ],
    ids=["blank", "more", "page", "heartbeat", "mark", "returns"],
)
async def test_a_complete_answer_is_not_lost_to_noise_around_it(stream: bytes) -> None:
    assert (await ask(sse(stream), stream=True)).message.text == "hi"


async def test_an_anthropic_stream_may_end_like_one_of_openai() -> None:
    events = (
        {"type": "message_start", "message": {"id": "x", "model": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi", "name": None}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "text": None}},
    )
    data = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    for end in (
        b'data: {"type":"message_stop"}\n\ndata: [DONE]\n\n',
        b'data: [DONE]\n\ndata: {"type":"message_stop"}\n\n',
    ):
        got = await ask(sse(data + end), AnthropicGateway, stream=True)
        assert (got.message.text, got.stop) == ("hi", "end")


@pytest.mark.parametrize(
    "stream", [b"data: [DONE]\n\n", b'data: {"object":"progress","message":"no"}\n\ndata: [DONE]\n\n']
)
async def test_a_stream_that_only_says_that_it_is_done_is_no_answer(stream: bytes) -> None:
    with pytest.raises(ModelGarbage):
        await ask(sse(stream), stream=True)


@pytest.mark.parametrize(
    ("gateway", "last", "more"),
    [
        (OpenAIChatGateway, PIECE, b'data: {"choices":[],"usa'),
        (GeminiGateway, b'{"candidates":[{"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}]}', b""),
    ],
)
async def test_an_answer_that_was_complete_is_kept_when_the_connection_is_lost_after_it(
    gateway: type[HttpGateway], last: bytes, more: bytes
) -> None:
    whole = sse(b"data: " + last + b"\n\n" + more + b" " * 99)
    got = await ask(whole[:-99], gateway, stream=True, lost=True)
    assert (got.message.text, got.stop) == ("hi", "end")
    with pytest.raises(ModelOverloaded):
        await ask(whole[:-99].replace(b"STOP", b"").replace(b"stop", b""), gateway, stream=True, lost=True)


async def test_a_line_of_five_megabytes_is_read() -> None:
    long = "x" * 5_000_000
    line = msgspec.json.encode({"choices": [{"delta": {"content": long}, "finish_reason": "stop"}]})
    assert (await ask(sse(b"data: " + line + b"\n\ndata: [DONE]\n\n"), stream=True)).message.text == long


@both_ways
async def test_a_compressed_bomb_goes_off_in_nobodys_memory(stream: bool) -> None:
    bomb = gzip.compress(b" " * 30_000_000)
    packed = http(bomb, "text/event-stream" if stream else "application/json", more="Content-Encoding: gzip\r\n")
    with pytest.raises(ModelGarbage, match="sent more than"):
        await ask(packed, stream=stream, max_response_bytes=1_000_000)


async def test_a_redirect_is_not_followed_and_the_key_stays_here() -> None:
    async with raw(http(answer())) as elsewhere:
        with pytest.raises(ModelRequestError) as caught:
            await ask(http(b"", status="307 Over there", more=f"Location: {elsewhere.url}/v1\r\n"))
        assert elsewhere.asked == []
    assert "redirects are not followed" in str(caught.value.hint)


async def test_what_nobody_counted_is_estimated_and_never_free() -> None:
    for body in (answer(), answer(usage=None), answer(usage={"prompt_tokens": -500, "completion_tokens": -9})):
        usage = (await ask(http(body))).usage
        assert (usage.source, usage.input_tokens > 0, usage.output_tokens > 0) == ("estimated", True, True)
    streamed = (await ask(sse(b"data: " + PIECE + b"\n\ndata: [DONE]\n\n"), stream=True)).usage
    assert (streamed.source, streamed.input_tokens > 0) == ("estimated", True)


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ({"prompt_tokens": 12.0, "completion_tokens": 5}, Usage(12, 5)),
        ({"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": -4}}, Usage(12, 5)),
        ({"prompt_tokens": 10**30, "completion_tokens": 5}, Usage(2**53 - 1, 5)),
    ],
)
async def test_counts_that_make_no_sense_can_still_be_added_up(counted: dict[str, Any], expected: Usage) -> None:
    body = json.dumps({**msgspec.json.decode(answer()), "usage": counted})  # it writes whole numbers of any size
    usage = (await ask(http(body.encode()))).usage
    assert usage == expected
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(usage), type=Usage) == expected


async def test_a_user_in_the_address_beside_a_key_is_refused_before_any_call() -> None:
    config = GatewayConfig("p", base_url="http://me:hidden-word@127.0.0.1:9", api_key=KEY)
    with pytest.raises(InvalidInput) as caught:
        OpenAIChatGateway(config)
    assert "hidden-word" not in f"{caught.value} {caught.value.hint}"
    AnthropicGateway(config)  # its key stands in a header of its own


@every_gateway
@pytest.mark.parametrize("schema", [{"allOf": [True]}, {"properties": [1]}, {"type": "array", "minItems": "two"}])
async def test_a_schema_that_is_none_never_ends_in_a_foreign_error(
    gateway: type[HttpGateway], schema: dict[str, Any]
) -> None:
    """Schemas come from strangers, by way of MCP: they are sent or refused, and what was refused says so."""
    request = msgspec.structs.replace(ASK, tools=(ToolSpec("t", schema=schema),), output_schema=schema)
    async with raw(http(b"{}")) as server:
        speaker = gateway(GatewayConfig("p", base_url=server.url, api_key=KEY))
        with pytest.raises((ModelGarbage, ModelRequestError)):
            await speaker.respond(request)
        await speaker.close()


@pytest.mark.parametrize(
    "sent",
    [
        http(b'{"error":{"message":"bad key sk-very-secret-key"}}', status="401 No"),
        http(b'{"error":{"message":"bad key sk-very-secret-key"}}'),
        b"HTTP/1.1 200 sk-very-secret-key\r\nContent-Length: sk-very-secret-key\r\n\r\n",
        http(b"sk-very-secret-key"),
        http(b"<html><title>sk-very-secret-key</title>", "text/html", status="502 Bad"),
        http(b"x", "text/html; sk-very-secret-key"),
    ],
    ids=["refused", "inside", "head", "garbage", "page", "type"],
)
async def test_a_provider_that_quotes_the_key_gets_it_into_no_error_and_no_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ModelError) as caught:
        await ask(sent)
    assert KEY not in f"{caught.value} {caught.value.details!r} {caught.value.hint}"
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (http(b"", status="407 Who are you"), ModelRequestError),
        (http(b"", status="503 Later"), ModelOverloaded),
        (b"not HTTP\r\n\r\n", ModelGarbage),
    ],
    ids=["refused", "away", "garbage"],
)
async def test_the_password_of_a_proxy_is_in_no_error(sent: bytes, expected: type[ModelError]) -> None:
    async with raw(sent) as proxy:
        way = proxy.url.replace("http://", "http://me:hidden-word@")
        gateway = OpenAIChatGateway(GatewayConfig("p", "https://model.invalid/v1", KEY, proxy=way))
        with pytest.raises(expected) as caught:
            await asyncio.wait_for(gateway.respond(ASK), 60)
        await gateway.close()
    assert b"proxy-authorization: basic " in proxy.asked[0].lower()
    assert "hidden-word" not in "".join(traceback.format_exception(caught.value.with_traceback(None)))


async def test_a_connection_lost_again_and_again_is_asked_again_until_it_holds() -> None:
    """The whole way, over real sockets: each try meets another trouble, and each of them may pass."""
    good = ModelResponse(
        Message("assistant", (Text("Here it is."), ToolCall("c", "t", "{}"))), Usage(5, 5), "tool_calls"
    )
    faults = [Fault("reset", after=0), Fault("reset", after=3), Fault("lost")]
    deltas: list[Delta] = []

    async with WireServer([*(Play(good, fault=fault) for fault in faults), Play(good)]) as server:
        config = GatewayConfig("openai", base_url=f"{server.url}/v1", api_key=KEY, model="m")
        router = Router(lambda ref: EndpointConfig(ref, config))
        for _ in faults:
            with pytest.raises(ModelError) as caught:
                await asyncio.wait_for(router.respond("main", ASK, on_delta=[].append), 60)
            assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)
        got = await asyncio.wait_for(router.respond("main", ASK, on_delta=deltas.append), 60)
        await router.close()
    assert got.message.parts == good.message.parts
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Here it is."
