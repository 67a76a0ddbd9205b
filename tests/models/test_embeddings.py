"""Texts to vectors: the official SDKs ask the same server the same thing, and hear the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from foliot.kernel.messages import Usage
from foliot.models.base import ModelError, ModelGarbage, ModelRequestError
from foliot.models.config import GatewayConfig
from foliot.models.registry import default_registry
from foliot.models.routing.endpoints import EndpointConfig
from foliot.models.routing.pricing import PriceBook, Pricing
from foliot.models.routing.router import Router
from tests.tools.web_service import serving

openai = pytest.importorskip("openai")
genai = pytest.importorskip("google.genai")


def vector(text: str) -> list[float]:
    return [float(len(text)), 0.5, -1.0]


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer as the three providers do; OpenAI's rows come backwards, as it may send them."""
    body: dict[str, Any] = await request.json()
    if request.path.endswith("/embeddings"):
        rows = [{"object": "embedding", "index": n, "embedding": vector(text)} for n, text in enumerate(body["input"])]
        count = {"prompt_tokens": len(body["input"]) * 3, "total_tokens": len(body["input"]) * 3}
        return web.json_response({"object": "list", "data": rows[::-1], "model": body["model"], "usage": count})
    if request.path.endswith(":batchEmbedContents"):
        texts = [each["content"]["parts"][0]["text"] for each in body["requests"]]
        return web.json_response({"embeddings": [{"values": vector(text)} for text in texts]})
    assert request.path == "/api/embed"
    found = [vector(text) for text in body["input"]]
    return web.json_response({"model": body["model"], "embeddings": found, "prompt_eval_count": 7})


async def embedded(provider: str, url: str, texts: list[str], **settings: Any) -> Any:
    gateway: Any = default_registry().build(GatewayConfig(provider, base_url=url, api_key="key-1", model="e"))
    try:
        return await gateway.embed(texts, **settings)
    finally:
        await gateway.close()


@pytest.mark.parametrize(
    ("provider", "path", "tokens", "source"),
    [
        ("openai", "/v1", 6, "provider"),
        ("openai-responses", "/v1", 6, "provider"),
        ("mistral", "/v1", 6, "provider"),
        ("azure-openai", "", 6, "provider"),
        ("gemini", "/v1beta", None, "estimated"),
        ("ollama", "", 7, "provider"),
    ],
)
async def test_each_text_gets_its_vector(provider: str, path: str, tokens: int | None, source: str) -> None:
    async with serving(answer) as service:
        got = await embedded(provider, service.url.rstrip("/") + path, ["ab", "abcd"])
    assert got.vectors == ((2.0, 0.5, -1.0), (4.0, 0.5, -1.0))
    assert got.usage.source == source
    assert got.usage.input_tokens == tokens if tokens else got.usage.input_tokens > 0
    assert (got.model, got.provider) == ("e", provider)


async def test_the_official_sdk_asks_the_same_and_hears_the_same() -> None:
    async with serving(answer) as service:
        url = service.url.rstrip("/") + "/v1"
        got = await embedded("openai", url, ["ab", "abcd"], dimensions=3)
        async with openai.AsyncOpenAI(base_url=url, api_key="key-1", max_retries=0) as client:
            theirs = await client.embeddings.create(
                model="e", input=["ab", "abcd"], dimensions=3, encoding_format="float"
            )
    by_place = sorted(theirs.data, key=lambda row: row.index)
    assert [list(each) for each in got.vectors] == [row.embedding for row in by_place]
    assert got.usage.input_tokens == theirs.usage.prompt_tokens
    ours, sdk = (json.loads(body) for body in service.bodies)
    assert ours == {name: value for name, value in sdk.items() if name != "encoding_format"}
    assert service.requests[0].path == service.requests[1].path


async def test_many_texts_take_several_requests_and_keep_their_order() -> None:
    texts = ["x" * n for n in range(1, 251)]
    async with serving(answer) as service:
        got = await embedded("openai", service.url.rstrip("/") + "/v1", texts)
        none = await embedded("openai", service.url.rstrip("/") + "/v1", [])
    assert [each[0] for each in got.vectors] == [float(n) for n in range(1, 251)]
    assert len(service.requests) == 3
    assert got.usage.input_tokens == 750
    assert none.vectors == ()


@pytest.mark.parametrize("provider", ["anthropic", "groq", "vertex"])
async def test_a_provider_without_embeddings_says_so_before_it_is_asked(provider: str) -> None:
    with pytest.raises(ModelRequestError, match="has no embeddings"):
        await embedded(provider, "http://127.0.0.1:9/v1", ["a"])


@pytest.mark.parametrize(
    "body",
    [
        {"data": []},
        {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"object": "list"},
        [],
    ],
)
async def test_an_answer_without_a_vector_for_each_text_is_garbage(body: Any) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    async with serving(odd) as service:
        with pytest.raises(ModelGarbage) as caught:
            await embedded("openai", service.url.rstrip("/") + "/v1", ["a"])
    assert "key-1" not in str(caught.value)


async def test_an_error_instead_of_vectors_is_the_provider_s() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model", "type": "invalid_request_error"}})

    async with serving(refuse) as service:
        with pytest.raises(ModelError, match="no such model"):
            await embedded("openai", service.url.rstrip("/") + "/v1", ["a"])


async def test_the_router_says_what_embeddings_cost() -> None:
    async with serving(answer) as service:
        gateway = GatewayConfig("openai", base_url=service.url + "/v1", api_key="key-1")
        endpoint = EndpointConfig("default/e", gateway, pricing=Pricing(input=2.0, output=0.0))
        router = Router(lambda ref: endpoint)
        try:
            got = await router.embed("default/e", ["ab", "abcd"], model="e")
        finally:
            await router.close()
    assert got.usage.cost_usd == pytest.approx(6 * 2.0 / 1_000_000)
    assert PriceBook().cost("openai", "text-embedding-3-small", Usage(1_000_000)) == pytest.approx(0.02)
