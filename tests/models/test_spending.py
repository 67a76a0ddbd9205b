"""What is paid for and gives no answer: counted as the provider counted it, and stopped when there is no room left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, ModelSettings, Text, Usage
from foliot.models.base import ModelError, ModelGarbage, ModelOverloaded, ModelTimeout
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.gateways.gemini import GeminiGateway
from foliot.models.gateways.ollama import OllamaGateway
from foliot.models.gateways.openai import OpenAIChatGateway, OpenAIResponsesGateway
from foliot.models.routing import usage as spending
from foliot.models.routing.endpoints import EndpointConfig
from foliot.models.routing.pricing import PriceBook, Pricing
from foliot.models.routing.router import Router
from foliot.models.wire.anthropic import counted_in_message
from foliot.models.wire.gemini import counted_in_gemini
from foliot.models.wire.openai_chat import counted_in_chat
from foliot.models.wire.openai_responses import counted_in_response
from simulators.provider import Fault, Play, WireServer

ASK = ModelRequest("m", (Message("user", (Text("hello"),)),))
LONG = " ".join(["a sentence that goes on"] * 40)
ANSWER = ModelResponse(
    Message("assistant", (Text(LONG),)), usage=Usage(input_tokens=200_000, output_tokens=400), model="m-1", id="id_1"
)
PATHS = {
    AnthropicGateway: "/v1",
    OpenAIChatGateway: "/v1",
    OpenAIResponsesGateway: "/v1",
    GeminiGateway: "/v1beta",
    OllamaGateway: "",
}


def opened(kind: Any, server: WireServer) -> Any:
    return kind(GatewayConfig("p", base_url=server.url + PATHS[kind], api_key="k", model="m"))


async def failure(kind: Any, play: Play, *, stream: bool = True) -> ModelError:
    async with WireServer([play]) as server:
        gateway = opened(kind, server)
        try:
            with pytest.raises(ModelError) as caught:
                await gateway.respond(ASK, on_delta=(lambda _: None) if stream else None)
        finally:
            await gateway.close()
    return caught.value


@pytest.mark.parametrize("fault", ["error_event", "truncated", "lost"])
@pytest.mark.parametrize("kind", list(PATHS), ids=lambda kind: kind.__name__)
async def test_a_stream_that_breaks_off_carries_what_it_has_used(kind: Any, fault: Any) -> None:
    used = (await failure(kind, Play(ANSWER, pieces=8, fault=Fault(fault, after=6)))).usage
    assert 40 < used.output_tokens <= 400, "some of the answer had been written"
    # Anthropic counts at the beginning, Gemini in every piece; the others at the end, so what they read is estimated.
    assert used.input_tokens == 200_000 if kind in (AnthropicGateway, GeminiGateway) else used.input_tokens > 0
    assert used.source == ("provider" if kind is GeminiGateway else "estimated")


@pytest.mark.parametrize("kind", list(PATHS), ids=lambda kind: kind.__name__)
async def test_an_attempt_that_never_began_costs_nothing(kind: Any) -> None:
    for fault in (Fault("status", status=503), Fault("empty"), Fault("reset", after=0)):
        assert (await failure(kind, Play(ANSWER, fault=fault))).usage == Usage()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", list(PATHS), ids=lambda kind: kind.__name__)
async def test_a_question_that_was_sent_and_not_answered_in_time_is_counted(kind: Any, stream: bool) -> None:
    async with WireServer([Play(ANSWER, fault=Fault("hang"))]) as server:
        waits = Timeouts(idle=0.2, total=0.2)
        gateway = kind(GatewayConfig("p", base_url=server.url + PATHS[kind], api_key="k", model="m", timeouts=waits))
        with pytest.raises(ModelTimeout) as caught:
            await gateway.respond(ASK, on_delta=(lambda _: None) if stream else None)
        await gateway.close()
    assert caught.value.usage.input_tokens > 0
    assert (caught.value.usage.output_tokens, caught.value.usage.source) == (0, "estimated")


async def test_a_cancelled_stream_carries_what_it_has_used() -> None:
    heard = asyncio.Event()
    async with WireServer([Play(ANSWER, pieces=8, fault=Fault("stall", after=6))]) as server:
        gateway = opened(AnthropicGateway, server)
        asking = asyncio.ensure_future(gateway.respond(ASK, on_delta=lambda _: heard.set()))
        await heard.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await asking
        await gateway.close()
    assert spending.cut_usage(caught.value).input_tokens == 200_000


COUNTED = [
    (counted_in_chat, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}, Usage(7, 2)),
    (counted_in_chat, {"error": {"message": "no"}, "usage": {"prompt_tokens": 7}}, Usage(7)),
    (counted_in_message, {"content": 5, "usage": {"input_tokens": 7, "output_tokens": 2}}, Usage(7, 2)),
    (counted_in_response, {"status": "failed", "usage": {"input_tokens": 7, "output_tokens": 2}}, Usage(7, 2)),
    (counted_in_gemini, {"candidates": 1, "usageMetadata": {"promptTokenCount": 7}}, Usage(7)),
]


@pytest.mark.parametrize(("read", "body", "wanted"), COUNTED)
def test_counts_are_read_out_of_a_body_that_is_no_answer(
    read: Callable[[bytes], Usage], body: dict[str, Any], wanted: Usage
) -> None:
    assert read(json.dumps(body).encode()) == wanted


def chat(**usage: Any) -> Usage:
    return counted_in_chat(json.dumps({"usage": usage, "service_tier": usage.pop("tier", None)}).encode())


def test_reasoning_that_is_counted_beside_the_completion_is_added() -> None:
    xai = chat(
        prompt_tokens=32, completion_tokens=9, total_tokens=135, completion_tokens_details={"reasoning_tokens": 94}
    )
    assert (xai.output_tokens, xai.reasoning_tokens, xai.total_tokens) == (103, 94, 135)
    openai = chat(
        prompt_tokens=32, completion_tokens=103, total_tokens=135, completion_tokens_details={"reasoning_tokens": 94}
    )
    assert (openai.output_tokens, openai.total_tokens) == (103, 135)


def test_a_price_that_the_provider_states_is_taken() -> None:
    assert chat(prompt_tokens=194, completion_tokens=2, cost=0.95).cost_usd == 0.95
    own_key = chat(prompt_tokens=1, cost=0.05, is_byok=True, cost_details={"upstream_inference_cost": 1.0})
    assert own_key.cost_usd == pytest.approx(1.05)
    assert chat(prompt_tokens=1, cost_in_usd_ticks=37_756_000).cost_usd == pytest.approx(0.0037756)
    assert chat(prompt_tokens=1, cost=-3).cost_usd is None


def test_what_a_price_depends_on_is_read() -> None:
    usage = counted_in_message(
        json.dumps(
            {
                "usage": {
                    "input_tokens": 10,
                    "output_tokens": 1,
                    "cache_creation_input_tokens": 300,
                    "cache_creation": {"ephemeral_1h_input_tokens": 200, "ephemeral_5m_input_tokens": 100},
                    "server_tool_use": {"web_search_requests": 3, "web_fetch_requests": 1},
                    "service_tier": "batch",
                }
            }
        ).encode()
    )
    assert (usage.input_tokens, usage.cache_write_tokens, usage.cache_write_1h_tokens) == (310, 300, 200)
    assert (usage.web_searches, usage.tier) == (3, "batch")
    response = {
        "service_tier": "flex",
        "output": [{"type": "web_search_call"}, {"type": "file_search_call"}, {"type": "message"}],
        "usage": {"input_tokens": 5, "output_tokens": 1},
    }
    read = counted_in_response(json.dumps(response).encode())
    assert (read.web_searches, read.file_searches, read.tier) == (1, 1, "flex")
    vertex = counted_in_gemini(b'{"usageMetadata": {"promptTokenCount": 5, "trafficType": "ON_DEMAND_PRIORITY"}}')
    assert vertex.tier == "priority"
    assert chat(prompt_tokens=1, tier="default").tier == ""


def test_tiers_long_caches_and_searches_have_their_price() -> None:
    book = PriceBook()

    def cost(provider: str, model: str, usage: Usage) -> float:
        found = book.cost(provider, model, usage)
        assert found is not None
        return found

    million = Usage(1_000_000)
    usual = cost("openai", "o3", million)
    assert cost("openai", "o3", replace(million, tier="flex")) == pytest.approx(usual / 2)
    assert cost("openai", "o3", replace(million, tier="priority")) > usual * 1.5
    small = Usage(100_000)
    sonnet = cost("anthropic", "claude-sonnet-4-5", small)
    assert cost("anthropic", "claude-sonnet-4-5", replace(small, tier="batch")) == pytest.approx(sonnet / 2)
    assert cost("anthropic", "claude-sonnet-4-5", replace(small, tier="priority")) == pytest.approx(sonnet)
    assert cost("gemini", "gemini-2.5-flash", replace(million, tier="flex")) == pytest.approx(
        cost("gemini", "gemini-2.5-flash", million) / 2
    )
    written = replace(small, cache_write_tokens=100_000)
    assert cost("anthropic", "claude-sonnet-4-5", written) == pytest.approx(sonnet * 1.25)
    hour = replace(written, cache_write_1h_tokens=100_000)
    assert cost("anthropic", "claude-sonnet-4-5", hour) == pytest.approx(sonnet * 2)
    searched = replace(small, web_searches=3)
    assert cost("anthropic", "claude-sonnet-4-5", searched) == pytest.approx(sonnet + 0.03)


def test_prices_of_an_endpoint_say_the_same_things() -> None:
    pricing = Pricing.read(
        {"input": 1, "output": 2, "cache_write": 3, "cache_write_1h": 4, "web_search": 0.5, "tiers": {"flex": 0.5}}
    )
    usage = Usage(1_000_000, 0, 0, 1_000_000, cache_write_1h_tokens=500_000, web_searches=2)
    assert pricing.cost(usage) == pytest.approx(1.5 + 2.0 + 1.0)
    assert pricing.cost(replace(usage, tier="flex")) == pytest.approx(1.75 + 1.0)


def routed(*servers: WireServer) -> Router:
    endpoints = {
        f"e{n}": EndpointConfig(
            f"e{n}",
            GatewayConfig("anthropic", base_url=f"{server.url}/v1", api_key="k", model="claude-sonnet-4-5"),
            pricing=Pricing(1.0, 1.0),
            fallbacks=("e1",) if n == 0 and len(servers) > 1 else (),
        )
        for n, server in enumerate(servers)
    }
    return Router(lambda ref: endpoints[ref])


BROKEN = Play(ANSWER, pieces=8, fault=Fault("error_event", after=6))


async def test_what_attempts_used_stands_on_the_account_of_whoever_asked() -> None:
    async with WireServer([BROKEN]) as server, WireServer([Play(ANSWER)]) as second:
        router = routed(server, second)
        account = spending.count()
        response = await router.respond("e0", ASK, on_delta=lambda _: None)
        await router.close()
    assert response.usage.input_tokens == 200_000
    assert account.usage.input_tokens == 200_000
    assert account.usage.cost_usd == pytest.approx(account.usage.total_tokens / 1e6)


@pytest.mark.parametrize("fallback", [False, True])
async def test_nobody_is_asked_again_without_room_for_it(fallback: bool) -> None:
    async with WireServer([BROKEN]) as first, WireServer([ANSWER]) as second:
        router = routed(first, second) if fallback else routed(first)
        account = spending.count()
        asked: list[Usage] = []

        async def has_room(usage: Usage) -> bool:
            asked.append(usage)
            return False

        account.checks += (has_room,)
        with pytest.raises(ModelError) as caught:
            await router.respond("e0", ASK, on_delta=lambda _: None)
        await router.close()
        assert len(first.requests) == len(asked) == 1
        assert not second.requests
    assert caught.value.spent_out
    assert caught.value.retryable
    assert account.usage.input_tokens == 200_000


@pytest.mark.parametrize("by", ["the request", "the endpoint"])
async def test_the_tier_that_was_asked_for_counts_where_the_provider_does_not_say(by: str) -> None:
    tier = {"service_tier": "flex"}
    request = replace(ASK, settings=ModelSettings(extra=tier if by == "the request" else {}))
    said = ModelResponse(Message("assistant", (Text("hi"),)), Usage(100, 10))
    async with WireServer([said]) as server:
        options = {} if by == "the request" else {"extra": tier}
        gateway = GatewayConfig("openai", f"{server.url}/v1", "k", model="m", options=options)
        endpoint = EndpointConfig("e", gateway, pricing=Pricing(1, 1, tiers={"flex": 0.5}))
        router = Router(lambda _: endpoint)
        usage = (await router.respond("e", request)).usage
        (quoted,) = await router.quote("e", request)
        await router.close()
    assert server.requests[0].json["service_tier"] == "flex"
    assert usage.cost_usd == pytest.approx(110 / 2e6)
    assert quoted.cost_usd == pytest.approx(quoted.total_tokens / 2e6)


def test_errors_without_a_count_say_so() -> None:
    for error in (ModelOverloaded("x"), ModelGarbage("y")):
        assert error.usage == Usage()
        assert not error.spent_out


# --- what is reserved --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "model", "settings", "most"),
    [
        ("anthropic", "claude-sonnet-4-5", ModelSettings(), 8192),
        ("anthropic", "claude-sonnet-4-5", ModelSettings(reasoning_effort="high"), 24_576),
        ("anthropic", "claude-sonnet-4-5", ModelSettings(max_output_tokens=500), 500),
        ("openai", "gpt-4o", ModelSettings(max_output_tokens=700), 700),
        ("openai", "gpt-4o", ModelSettings(), 4096),
        ("openai", "gpt-4o", ModelSettings(extra={"max_completion_tokens": 9000}), 9000),
        ("openai", "gpt-5", ModelSettings(reasoning_effort="high"), 4096 + 16_384),
        ("gemini", "gemini-2.5-pro", ModelSettings(max_output_tokens=3000), 3000),
    ],
)
async def test_what_is_quoted_is_what_is_asked_for(
    provider: str, model: str, settings: ModelSettings, most: int
) -> None:
    endpoint = EndpointConfig("e", GatewayConfig(provider, api_key="k", model=model), pricing=Pricing(0.0, 1.0))
    router = Router(lambda _: endpoint)
    (quote,) = await router.quote("e", replace(ASK, model=model, settings=settings))
    await router.close()
    assert quote.output_tokens == most
    assert quote.cost_usd == pytest.approx(most / 1e6)


@pytest.mark.parametrize(
    ("provider", "model", "effort", "bound", "sent"),
    [
        ("anthropic", "claude-sonnet-4-5", "high", 10_000, 10_000),  # 24,576 are asked for without
        ("anthropic", "claude-sonnet-4-5", None, 10_000, 8_192),
        ("openai", "gpt-4o", None, 10_000, 10_000),
        ("openai", "gpt-4o", None, 100_000, None),  # more than the model can
        ("openai-compatible", "who-knows", None, 10_000, 10_000),
        ("openai-compatible", "who-knows", None, 100_000, None),  # servers refuse more than fits their context
    ],
)
async def test_an_answer_is_bounded_by_what_is_left_for_it(
    provider: str, model: str, effort: Any, bound: int, sent: int | None
) -> None:
    async with WireServer([Play(ANSWER)]) as server:
        gateway = GatewayConfig(provider, base_url=f"{server.url}/v1", api_key="k", model=model)
        router = Router(lambda _: EndpointConfig("e", gateway))
        spending.count().bound("the team", bound)
        await router.respond("e", replace(ASK, model="", settings=ModelSettings(reasoning_effort=effort)))
        await router.close()
        body = server.requests[0].json
    assert next((body[name] for name in ("max_tokens", "max_completion_tokens") if name in body), None) == sent


async def test_a_question_that_alone_costs_too_much_is_not_asked() -> None:
    async with WireServer([Play(ANSWER)]) as server:
        router = routed(server)
        spending.count().max_cost = 1e-6
        with pytest.raises(ModelError, match="alone costs about") as caught:
            await router.respond("e0", ASK)
        await router.close()
        assert not server.requests
    assert caught.value.kind == "cost_usd"


async def test_every_answer_that_is_asked_for_is_reserved_for() -> None:
    endpoint = EndpointConfig("e", GatewayConfig("openai", api_key="k", model="gpt-4o"), pricing=Pricing(0.0, 1.0))
    router = Router(lambda _: endpoint)
    (quote,) = await router.quote("e", replace(ASK, settings=ModelSettings(max_output_tokens=100, extra={"n": 50})))
    await router.close()
    assert quote.output_tokens == 5_000


# --- caches that are asked for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "url", "asked"),
    [
        (OpenAIChatGateway, "https://api.openai.com/v1", "prompt_cache_key"),
        (OpenAIResponsesGateway, "https://api.openai.com/v1", "prompt_cache_key"),
        (OpenAIChatGateway, "https://api.mistral.ai/v1", "prompt_cache_key"),
        (OpenAIChatGateway, "https://openrouter.ai/api/v1", "cache_control"),
        (OpenAIChatGateway, "http://127.0.0.1:8000/v1", None),
    ],
)
def test_a_cache_is_asked_for_where_the_provider_wants_it(kind: Any, url: str, asked: str | None) -> None:
    def sent(gateway: Any, request: ModelRequest) -> dict[str, Any]:
        wire = gateway._wire
        return wire.build_body(request, wire.names(request), stream=False)

    first = replace(ASK, model="anthropic/claude-sonnet-5", system="Be brief.")
    later = replace(first, messages=(*first.messages, Message("assistant", (Text("Hi"),)), *ASK.messages))
    other = replace(first, messages=(Message("user", (Text("something else"),)),))
    gateway = kind(GatewayConfig("p", base_url=url, api_key="k"))
    bodies = [sent(gateway, request) for request in (first, later, other)]
    assert {"prompt_cache_key", "cache_control"} & set(bodies[0]) == ({asked} if asked else set())
    if asked == "prompt_cache_key":
        assert bodies[0][asked] == bodies[1][asked] != bodies[2][asked]
    off = kind(GatewayConfig("p", base_url=url, api_key="k", options={"cache": "off"}))
    assert not {"prompt_cache_key", "cache_control"} & set(sent(off, first))


# --- the vendors' own types as judges ------------------------------------------------------------------------------


def test_counts_are_those_that_the_official_types_hold() -> None:
    """Written by the SDKs' own types, as their servers would."""
    anthropic = pytest.importorskip("anthropic")
    openai = pytest.importorskip("openai")
    kept = anthropic.types.CacheCreation(ephemeral_1h_input_tokens=200, ephemeral_5m_input_tokens=100)
    searched = anthropic.types.ServerToolUsage(web_search_requests=3, web_fetch_requests=1)
    theirs = anthropic.types.Usage(
        input_tokens=10,
        output_tokens=4,
        cache_creation=kept,
        cache_creation_input_tokens=300,
        cache_read_input_tokens=50,
        server_tool_use=searched,
        service_tier="batch",
    )
    ours = counted_in_message(b'{"usage": %b}' % theirs.model_dump_json().encode())
    assert ours == Usage(360, 4, 50, 300, cache_write_1h_tokens=200, web_searches=3, tier="batch")
    from openai.types.completion_usage import CompletionTokensDetails, CompletionUsage, PromptTokensDetails

    assert openai.__version__
    counted = CompletionUsage(
        prompt_tokens=100,
        completion_tokens=40,
        total_tokens=140,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=64, cache_write_tokens=16),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=30),
    )
    ours = counted_in_chat(b'{"usage": %b, "service_tier": "flex"}' % counted.model_dump_json().encode())
    assert ours == Usage(100, 40, 64, 16, 30, tier="flex")


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        (Usage(10, 1, cache_read_tokens=10**12), Usage(10, 1, cache_read_tokens=10)),
        (Usage(-5, 7, cost_usd=-1000), Usage(0, 7)),
        (Usage(10, 2, cache_write_tokens=8, cache_read_tokens=6), Usage(10, 2, 6, 4)),
        (Usage(10, 2, reasoning_tokens=9, web_searches=-3), Usage(10, 2, reasoning_tokens=2)),
    ],
)
def test_counts_that_cannot_be_are_not_counted(said: Usage, counted: Usage) -> None:
    assert spending.possible(said) == counted
    assert spending.possible(counted) is counted
