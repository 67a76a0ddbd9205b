"""Providers that misbehave: whatever they do, a call ends with a typed error and leaves nothing open."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgspec
import pytest

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, ToolCall, Usage
from foliot.models.base import (
    ModelAuthError,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelRequestTooLarge,
    ModelTimeout,
)
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.gateways.gemini import GeminiGateway
from foliot.models.gateways.http import HttpGateway
from foliot.models.gateways.ollama import OllamaGateway
from foliot.models.gateways.openai import OpenAIChatGateway, OpenAIResponsesGateway
from simulators.provider import Fault, Play, WireServer
from simulators.provider_formats import format_of

KEY = "sk-very-secret-key"
ANSWER = ModelResponse(
    Message(
        "assistant", (Text("A sentence that is long enough to be cut."), ToolCall("call_1", "search", '{"q":"x"}'))
    ),
    usage=Usage(10, 5),
    stop="tool_calls",
    model="m",
    id="id",
)
ASK = ModelRequest("m", (Message("user", (Text("hello"),)),))
GATEWAYS: dict[str, tuple[type[HttpGateway], str]] = {
    "chat": (OpenAIChatGateway, "/v1"),
    "responses": (OpenAIResponsesGateway, "/v1"),
    "anthropic": (AnthropicGateway, "/v1"),
    "gemini": (GeminiGateway, "/v1beta"),
    "ollama": (OllamaGateway, ""),
}
every_gateway = pytest.mark.parametrize("kind", GATEWAYS)
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def make(kind: str, server: WireServer, **changes: Any) -> HttpGateway:
    factory, base = GATEWAYS[kind]
    settings: dict[str, Any] = {"api_key": KEY, "timeouts": Timeouts(connect=5, idle=5, total=20), **changes}
    return factory(GatewayConfig(kind, base_url=f"{server.url}{base}", **settings))


async def failure(kind: str, fault: Fault, *, stream: bool, **changes: Any) -> ModelError:
    """The error that a fault leads to; also checks what holds for all of them."""
    async with WireServer([Play(ANSWER, pieces=6, fault=fault)]) as server:
        gateway = make(kind, server, **changes)
        try:
            with pytest.raises(ModelError) as caught:
                await asyncio.wait_for(gateway.respond(ASK, on_delta=(lambda _: None) if stream else None), 60)
        finally:
            await gateway.close()
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.details)
    assert caught.value.provider == kind
    assert len(str(caught.value)) < 1000
    return caught.value


@every_gateway
@both_ways
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("garbage"), ModelGarbage),
        (Fault("truncated"), ModelGarbage),
        (Fault("empty"), ModelGarbage),
        (Fault("html"), ModelGarbage),
        (Fault("wrong_type"), ModelGarbage),
        (Fault("not_http"), ModelGarbage),
        (Fault("lost"), ModelOverloaded),
        (Fault("reset", after=0), ModelOverloaded),
        (Fault("reset", after=3), ModelOverloaded),
        (Fault("status", status=500), ModelOverloaded),
        (Fault("status", status=503), ModelOverloaded),
        (Fault("status", status=529), ModelOverloaded),
        (Fault("status", status=429), ModelRateLimited),
        (Fault("status", status=408), ModelTimeout),
    ],
    ids=lambda value: f"{value.kind}{value.status}" if isinstance(value, Fault) else value.kind,
)
async def test_trouble_that_may_pass_is_a_retryable_error_of_its_kind(
    kind: str, stream: bool, fault: Fault, expected: type[ModelError]
) -> None:
    error = await failure(kind, fault, stream=stream)
    assert type(error) is expected
    assert error.retryable


@both_ways
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ModelRequestError),
        (401, ModelAuthError),
        (403, ModelAuthError),
        (404, ModelRequestError),
        (413, ModelRequestTooLarge),
        (422, ModelRequestError),
        (301, ModelRequestError),
    ],
)
async def test_a_refusal_that_will_not_change_is_not_retryable(
    stream: bool, status: int, expected: type[ModelError]
) -> None:
    fault = Fault("status", status=status, headers={"Location": "http://127.0.0.1:9/elsewhere"})
    error = await failure("chat", fault, stream=stream)
    assert type(error) is expected
    assert not error.retryable
    assert error.status == status
    assert "on purpose" in str(error)


@every_gateway
async def test_an_error_event_in_the_middle_of_a_stream_is_a_typed_error(kind: str) -> None:
    error = await failure(kind, Fault("error_event"), stream=True)
    assert type(error) is ModelOverloaded
    assert "the engine broke" in str(error)


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic", "gemini", "ollama"])
async def test_an_error_inside_a_good_status_is_still_an_error(kind: str) -> None:
    body = b'{"error": {"message": "Slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}'
    error = await failure(kind, Fault("error_body", body=body), stream=False)
    assert type(error) is ModelRateLimited
    assert "Slow down" in str(error)


@every_gateway
@both_ways
async def test_an_answer_far_too_large_is_given_up_without_reading_it_all(kind: str, stream: bool) -> None:
    error = await failure(kind, Fault("huge", size=50_000_000), stream=stream, max_response_bytes=2_000_000)
    assert type(error) is ModelGarbage
    assert "2,000,000" in str(error)


async def test_fifty_megabytes_are_too_many_by_default() -> None:
    error = await failure("chat", Fault("huge", size=50_000_000), stream=False)
    assert type(error) is ModelGarbage


@every_gateway
@both_ways
async def test_a_provider_that_never_answers_is_a_timeout(kind: str, stream: bool) -> None:
    error = await failure(kind, Fault("hang"), stream=stream, timeouts=Timeouts(connect=5, idle=0.05, total=0.2))
    assert type(error) is ModelTimeout
    assert error.retryable


@both_ways
async def test_a_provider_that_stops_in_the_middle_is_a_timeout(stream: bool) -> None:
    limits = Timeouts(connect=5, idle=0.05, total=30 if stream else 0.2)
    error = await failure("anthropic", Fault("stall"), stream=stream, timeouts=limits)
    assert type(error) is ModelTimeout


@both_ways
async def test_a_drip_of_single_bytes_cannot_hold_a_call_beyond_its_total_time(stream: bool) -> None:
    error = await failure("chat", Fault("drip"), stream=stream, timeouts=Timeouts(connect=5, idle=5, total=0.3))
    assert type(error) is ModelTimeout


async def test_a_stream_that_goes_on_is_not_cut_by_the_total_time() -> None:
    async with WireServer([Play(ANSWER, pieces=30, pause=0.04)]) as server:
        gateway = make("chat", server, timeouts=Timeouts(connect=5, idle=5, total=0.6))
        started = asyncio.get_running_loop().time()
        answer = await gateway.respond(ASK, on_delta=lambda _: None)
        assert answer.message.text == ANSWER.message.text
        assert asyncio.get_running_loop().time() - started > 0.6  # or this test shows nothing
        await gateway.close()


async def test_a_provider_that_is_not_there_is_overloaded() -> None:
    async with WireServer([ANSWER]) as server:
        gateway = make("chat", server)
    with pytest.raises(ModelOverloaded, match="connection"):
        await gateway.respond(ASK)
    await gateway.close()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6m0s"}, None),
        ({}, None),
    ],
)
async def test_the_wait_that_a_provider_asks_for_is_on_the_error(
    headers: dict[str, str], seconds: float | None
) -> None:
    error = await failure("chat", Fault("status", status=429, headers=headers), stream=False)
    assert error.retry_after == seconds


async def test_a_key_that_a_provider_quotes_is_taken_out_of_the_error() -> None:
    body = f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'.encode()
    error = await failure("chat", Fault("status", status=401, body=body), stream=False)
    assert "Incorrect API key provided: ***" in str(error)


async def test_a_long_error_page_is_shortened_to_its_title() -> None:
    page = b"<html><head><title>502 Bad Gateway</title></head>" + b"<p>x</p>" * 100_000
    error = await failure("chat", Fault("status", status=502, body=page), stream=False)
    assert "502 Bad Gateway" in str(error)


@both_ways
async def test_cancelling_closes_the_connection(stream: bool) -> None:
    async with WireServer([Play(ANSWER, fault=Fault("stall", after=4))]) as server:
        gateway = make("chat", server)
        begun = asyncio.Event()
        call = asyncio.create_task(gateway.respond(ASK, on_delta=(lambda _: begun.set()) if stream else None))
        if stream:
            await asyncio.wait_for(begun.wait(), 60)
        else:
            while not server.requests:
                await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.dropped.wait(), 60)
        await gateway.close()


@pytest.mark.parametrize("own", [ValueError, ConnectionResetError, TimeoutError])
async def test_what_a_reader_of_deltas_raises_is_its_own_and_closes_the_connection(own: type[Exception]) -> None:
    """A reader whose own connection broke must not look like a provider's."""

    def refuse(_: Any) -> None:
        raise own("mine")

    async with WireServer([Play(ANSWER, fault=Fault("stall", after=4))]) as server:
        gateway = make("chat", server)
        with pytest.raises(own, match="mine"):
            await gateway.respond(ASK, on_delta=refuse)
        await asyncio.wait_for(server.dropped.wait(), 60)
        await gateway.close()


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic", "ollama"])
async def test_a_stream_that_is_complete_but_left_open_is_not_waited_for(kind: str) -> None:
    async with WireServer([Play(ANSWER, fault=Fault("linger"))]) as server:
        gateway = make(kind, server, timeouts=Timeouts(connect=5, idle=60, total=100))
        answer = await asyncio.wait_for(gateway.respond(ASK, on_delta=lambda _: None), 60)
        await gateway.close()
    assert answer.message.text == ANSWER.message.text


async def test_a_refusal_whose_body_never_comes_is_still_that_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.models.gateways.connection._ERROR_SECONDS", 0.05)
    error = await failure("chat", Fault("slow_status", status=401), stream=False)
    assert type(error) is ModelAuthError


async def test_after_a_fault_the_same_gateway_goes_on() -> None:
    script = [Play(ANSWER, fault=Fault("reset", after=0)), Play(ANSWER, fault=Fault("truncated")), Play(ANSWER)]
    async with WireServer(script) as server:
        gateway = make("chat", server)
        for _ in range(2):
            with pytest.raises(ModelError):
                await gateway.respond(ASK)
        assert (await gateway.respond(ASK)).message == ANSWER.message
        await gateway.close()


async def test_gateways_of_one_loop_share_a_session_and_reuse_its_connections() -> None:
    async with WireServer([ANSWER]) as server:
        first, second = make("chat", server), make("anthropic", server)
        for gateway in (first, second, first, second):
            await gateway.respond(ASK)
            await gateway.respond(ASK, on_delta=lambda _: None)
        assert server.connections == 1
        await first.close()
        await second.respond(ASK)  # the session lives as long as one gateway holds it
        await second.close()
        await second.close()


def test_a_gateway_may_be_used_by_one_loop_after_another() -> None:
    gateways: list[HttpGateway] = []

    async def once(port: int) -> int:
        server = WireServer([ANSWER])
        await server.start(port)
        if not gateways:
            gateways.append(make("chat", server))
        assert (await gateways[0].respond(ASK)).message == ANSWER.message
        await gateways[0].close()
        await server.close()
        return int(server.url.rsplit(":", 1)[1])

    asyncio.run(once(asyncio.run(once(0))))
    gc.collect()  # an unclosed session would be a warning, and warnings are errors here


async def test_a_server_that_ignores_stream_is_read_as_a_whole_answer() -> None:
    wire = format_of("/v1/chat/completions")
    assert wire is not None
    body = msgspec.json.encode(wire.body(ANSWER))
    async with WireServer([Play(fault=Fault("error_body", body=body))]) as server:
        gateway = make("chat", server)
        deltas: list[Any] = []
        response = await gateway.respond(ASK, on_delta=deltas.append)
        await gateway.close()
    assert response.message == ANSWER.message
    assert [type(delta).__name__ for delta in deltas] == ["TextDelta", "ToolCallDelta"]
