"""Documents ranked and recordings written down: judged by the official SDK where there is one, and by its rules."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from foliot.kernel.messages import Usage
from foliot.models.base import ModelError, ModelGarbage, ModelRateLimited, ModelRequestError, ModelRequestTooLarge
from foliot.models.cells import SILENCE
from foliot.models.config import GatewayConfig
from foliot.models.profiles import provider_facts, providers_with
from foliot.models.registry import default_registry
from foliot.models.routing.endpoints import EndpointConfig
from foliot.models.routing.pricing import PriceBook, Pricing, Sold
from foliot.models.routing.router import Router
from foliot.models.routing.usage import cut_usage
from foliot.models.wire.transcription import form
from tests.models.obeying import Obeying, form_of
from tests.tools.web_service import Handler, serving

openai = pytest.importorskip("openai")

DOCUMENTS = ["Bread is baked.", "Oslo is the capital of Norway.", "Norway is long."]
QUERY = "What is the capital of Norway?"
PATHS = {"gemini": "/v1beta", "vertex": "/v1beta", "azure-openai": ""}


def below(provider: str) -> str:
    return urlsplit(provider_facts(provider).get("address", "")).path or PATHS.get(provider, "/v1")


async def serve(provider: str, method: str, answer: Handler, *given: Any, **named: Any) -> tuple[Any, Any]:
    async with serving(answer) as service:
        url = service.url + below(provider)
        gateway: Any = default_registry().build(GatewayConfig(provider, base_url=url, api_key="key-1", model="m"))
        try:
            return await getattr(gateway, method)(*given, **named), service
        finally:
            await gateway.close()


def saying(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return answer


# --- ranking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", providers_with("rerank"))
async def test_the_best_documents_come_first(provider: str) -> None:
    got, service = await serve(provider, "rerank", Obeying(provider, "openai-chat"), QUERY, DOCUMENTS, top_n=2)
    assert [each.index for each in got.ranking] == [1, 2]
    assert got.ranking[0].score > got.ranking[1].score
    assert (got.model, got.provider) == ("m", provider)
    assert got.usage.input_tokens > 0
    assert (got.searches, got.usage.source) == ((1, "estimated") if provider == "cohere" else (0, "provider"))
    assert service.requests[0].headers["Authorization"] == "Bearer key-1"


async def test_without_a_number_all_are_ranked_and_none_asks_nobody() -> None:
    answer = Obeying("vllm", "openai-chat")
    got, service = await serve("vllm", "rerank", answer, QUERY, DOCUMENTS)
    assert sorted(each.index for each in got.ranking) == [0, 1, 2]
    assert set(json.loads(service.bodies[0])) == {"model", "query", "documents"}
    none, service = await serve("vllm", "rerank", answer, QUERY, [])
    assert (none.ranking, none.usage, service.requests) == ((), Usage(), [])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"results": []},
        {"results": [{"index": 0, "relevance_score": 0.5}]},
        {"results": [{"index": 7, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.5}]},
        {"results": [{"index": -1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.5}]},
        {"results": [{"index": 0, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.4}]},
        {"results": [{"index": 0}, {"index": 1}]},
        {"results": [{"index": 0, "relevance_score": "high"}, {"index": 1, "relevance_score": 1}]},
        {"results": "none"},
        [1],
    ],
)
async def test_a_ranking_that_does_not_rank_is_garbage(body: Any) -> None:
    with pytest.raises(ModelGarbage) as caught:
        await serve("vllm", "rerank", saying(body), QUERY, DOCUMENTS, top_n=2)
    assert "key-1" not in str(caught.value)


async def test_a_server_that_ranks_more_than_asked_is_cut() -> None:
    rows = [{"index": n, "score": n / 10} for n in range(3)]
    got, _ = await serve("vllm", "rerank", saying({"results": rows}), QUERY, DOCUMENTS, top_n=1)
    assert [each.index for each in got.ranking] == [2]


# --- recordings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", providers_with("transcription"))
async def test_a_recording_is_written_down(provider: str) -> None:
    wire = {"gemini": "gemini", "vertex": "gemini", "azure-openai": "azure-openai"}.get(provider, "openai-chat")
    got, service = await serve(provider, "transcribe", Obeying(provider, wire), SILENCE)
    assert got.text == "tick tock"
    assert got.provider == provider
    assert got.usage.total_tokens > 0
    assert got.seconds == (1.0 if provider in ("groq", "mistral") else 0.0)
    if provider == "azure-openai":
        assert service.requests[0].path == "/openai/deployments/m/audio/transcriptions"


async def test_the_official_sdk_sends_the_same_form_and_hears_the_same() -> None:
    answer = Obeying("openai", "openai-chat")
    async with serving(answer) as service:
        config = GatewayConfig("openai", base_url=service.url + "/v1", api_key="key-1")
        gateway: Any = default_registry().build(config)
        words = {"model": "whisper-1", "language": "en", "prompt": 'Names: "Åse",\r\n--and Grímur'}
        got = await gateway.transcribe(SILENCE, **words)
        await gateway.close()
        async with openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="key-1", max_retries=0) as client:
            theirs = await client.audio.transcriptions.create(file=("audio.wav", SILENCE, "audio/wav"), **words)
    ours, sdk = (
        form_of(request.headers["Content-Type"], body)
        for request, body in zip(service.requests, service.bodies, strict=True)
    )
    assert ours == sdk
    assert [each.path for each in service.requests] == ["/v1/audio/transcriptions"] * 2
    assert got.text == theirs.text
    assert (got.usage.input_tokens, got.usage.output_tokens) == (theirs.usage.input_tokens, theirs.usage.output_tokens)
    assert got.audio_tokens == theirs.usage.input_token_details.audio_tokens


@pytest.mark.parametrize(
    ("head", "ending"),
    [
        (SILENCE, "wav"),
        (b"ID3\x04aaaa", "mp3"),
        (b"\xff\xfb\x90\x00", "mp3"),
        (b"\x00\x00\x00\x20ftypM4A ", "m4a"),
        (b"OggS\x00", "ogg"),
        (b"fLaC\x00", "flac"),
        (b"\x1aE\xdf\xa3\x01", "webm"),
    ],
)
async def test_the_kind_of_a_recording_is_known_by_its_first_bytes(head: bytes, ending: str) -> None:
    _, service = await serve("vllm", "transcribe", saying({"text": ""}), head)
    assert form_of(service.requests[0].headers["Content-Type"], service.bodies[0])["file"][0] == f"audio.{ending}"


def test_a_form_keeps_what_it_is_given() -> None:
    audio = bytes(range(256)) * 4
    body, kind = form({"model": "m", "prompt": 'a "b"\r\n--x', "language": ""}, audio, "audio/ogg", "ab12")
    assert form_of(kind, body) == {"model": "m", "prompt": 'a "b"\r\n--x', "file": ("audio.ogg", "audio/ogg", audio)}


@pytest.mark.parametrize(
    ("audio", "kind"), [(b"", ""), (b"hello world", ""), (SILENCE, "text/plain"), (SILENCE, 'audio/wav"\r\nX: 1')]
)
async def test_what_is_no_recording_is_not_sent(audio: bytes, kind: str) -> None:
    with pytest.raises(ModelRequestError, match="no recording of a kind"):
        await serve("vllm", "transcribe", saying({"text": "x"}), audio, media_type=kind)


@pytest.mark.parametrize("body", [{}, {"text": None}, {"text": 1}, "words", {"text": "x", "usage": []}])
async def test_a_transcript_without_a_text_is_garbage(body: Any) -> None:
    with pytest.raises(ModelGarbage):
        await serve("vllm", "transcribe", saying(body), SILENCE)


async def test_a_gemini_transcript_that_was_cut_is_no_transcript() -> None:
    cut = {"candidates": [{"content": {"parts": [{"text": "tick"}]}, "finishReason": "MAX_TOKENS"}]}
    with pytest.raises(ModelGarbage, match="whole recording"):
        await serve("gemini", "transcribe", saying(cut), SILENCE)


# --- what both have in common ------------------------------------------------------------------------------------

CALLS: list[tuple[str, tuple[Any, ...]]] = [("rerank", (QUERY, DOCUMENTS)), ("transcribe", (SILENCE,))]


@pytest.mark.parametrize(("method", "given"), CALLS)
async def test_a_provider_without_it_says_so_and_names_some_that_have_it(method: str, given: Any) -> None:
    for provider in ("anthropic", "bedrock", "deepseek", "ollama"):
        with pytest.raises(ModelRequestError, match=f"{provider}' has no") as caught:
            await serve(provider, method, saying({}), *given)
        assert "openrouter" in (caught.value.hint or "")


@pytest.mark.parametrize(("method", "given"), CALLS)
async def test_refusals_are_read_as_those_of_answers(method: str, given: Any) -> None:
    with pytest.raises(ModelRateLimited) as caught:
        await serve("vllm", method, saying({"error": {"message": "slow"}}, 429, {"Retry-After": "7"}), *given)
    assert caught.value.retry_after == 7
    with pytest.raises(ModelError, match="no such model"):
        await serve("vllm", method, saying({"error": {"message": "no such model"}}), *given)
    with pytest.raises(ModelRequestTooLarge):
        await serve("vllm", method, saying({"detail": "too big"}, 413), *given)


async def test_too_much_is_not_sent() -> None:
    with pytest.raises(ModelRequestTooLarge, match="1,001 documents"):
        await serve("vllm", "rerank", saying({}), QUERY, ["x"] * 1001)
    with pytest.raises(ModelRequestTooLarge, match="26,214,401 bytes"):
        await serve("vllm", "transcribe", saying({}), bytes(25 * 1024 * 1024 + 1))
    with pytest.raises(ModelRequestError, match="top_n"):
        await serve("vllm", "rerank", saying({}), QUERY, DOCUMENTS, top_n=0)


async def test_those_who_sell_no_answers_are_not_asked_for_one() -> None:
    from foliot.kernel.messages import Message, ModelRequest, Text

    with pytest.raises(ModelRequestError, match="'voyage' sells embeddings and rankings"):
        await serve("voyage", "respond", saying({}), ModelRequest("m", (Message("user", (Text("hi"),)),)))


async def test_the_router_says_what_they_cost() -> None:
    async def priced(provider: str, pricing: Pricing | None, method: str, *given: Any, model: str) -> Any:
        async with serving(Obeying(provider, "openai-chat")) as service:
            gateway = GatewayConfig(provider, base_url=service.url + below(provider), api_key="key-1")
            router = Router(lambda ref: EndpointConfig("default/e", gateway, pricing=pricing))
            try:
                return await getattr(router, method)("default/e", *given, model=model)
            finally:
                await router.close()

    pricing = Pricing(0.0, 0.0, search=0.002, audio_hour=0.36)
    ranked = await priced("cohere", pricing, "rerank", QUERY, DOCUMENTS, model="r")
    assert ranked.usage.cost_usd == pytest.approx(0.002)
    heard = await priced("groq", pricing, "transcribe", SILENCE, model="w")
    assert heard.usage.cost_usd == pytest.approx(0.0001)
    book = PriceBook()
    assert book.cost("groq", "whisper-large-v3-turbo", Usage(0, 5), sold=Sold(audio_seconds=3600)) == pytest.approx(
        0.04
    )
    tokens = book.cost("openai", "gpt-4o-mini-transcribe", Usage(1000, 0), sold=Sold(audio_tokens=1000))
    assert tokens == pytest.approx(0.003)


async def test_a_gateway_of_strangers_without_it_is_told_by_the_router() -> None:
    gateway = GatewayConfig("mock")
    router = Router(lambda ref: EndpointConfig("default/m", gateway))
    try:
        for method, given in CALLS:
            with pytest.raises(ModelRequestError, match="'mock' has no"):
                await getattr(router, method)("default/m", *given)
    finally:
        await router.close()


async def test_cancelling_ends_the_request() -> None:
    asked = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(serve("vllm", "rerank", never, QUERY, DOCUMENTS))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert cut_usage(caught.value).total_tokens == 0
