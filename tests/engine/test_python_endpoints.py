"""A model's endpoint in Python: the same checks as a manifest's, and the same path to the provider."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from foliot import Agent, ModelEndpoint, Runtime
from foliot.errors import FoliotError, UsageError
from foliot.resources.problems import ManifestError
from tests.models.obeying import Obeying
from tests.tools.web_service import serving

pytest.importorskip("openai")


async def test_an_agent_asks_the_endpoint_with_its_key_address_and_price() -> None:
    async with serving(Obeying("openai", "openai-chat")) as service:
        url = service.url + "/v1"
        endpoint = ModelEndpoint(
            "openai-compatible", "m", base_url=url, api_key="key-9", pricing={"input": 1, "output": 2}
        )
        async with Runtime("memory:") as rt:
            got = await rt.run(Agent("clerk", model=endpoint), "Reply with the single word: ready")
            other = ModelEndpoint("vllm", "other", base_url=url, api_key="key-9")
            more = await rt.run(Agent("clerk", model=other), "Reply with the single word: ready")
            vectors = await rt.inside.models.embed(endpoint, ["a", "bb"])
    assert (got.output, more.output) == ("ready", "ready")
    assert got.usage.cost_usd == pytest.approx((120 + 2 * 20) / 1_000_000)
    assert len(vectors.vectors) == 2
    assert {request.headers["Authorization"] for request in service.requests} == {"Bearer key-9"}
    assert "key-9" not in repr(endpoint) + repr(endpoint.document)


async def test_the_limit_of_the_endpoint_holds() -> None:
    under_way = most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await obeying(request)
        finally:
            under_way -= 1

    obeying = Obeying("openai", "openai-chat")
    async with serving(answer) as service:
        endpoint = ModelEndpoint(
            "openai-compatible", "m", base_url=service.url + "/v1", rate_limit={"requests": 1, "per": "1h"}
        )
        async with Runtime("memory:") as rt:
            await rt.inside.models.embed(endpoint, ["a"])
            with pytest.raises(FoliotError, match="allows 1 request"):
                await rt.inside.models.embed(endpoint, ["b"])
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"provider": "openai-compatible", "default_model": "m"}, "spec.base_url is required"),
        ({"provider": "openai"}, "spec.default_model is required"),
        ({"provider": "openai", "default_model": "m", "base_url": "ftp://x"}, "must be a URL"),
        ({"provider": "openai", "default_model": "m", "rate_limit": {"request": 4}}, "did you mean requests"),
        ({"provider": "openai", "default_model": "m", "pricing": {"input": 1}}, "spec.pricing.output is required"),
    ],
)
def test_mistakes_are_told_as_for_a_manifest(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        ModelEndpoint(**given)
    assert said in f"{caught.value} {caught.value.hint} {caught.value.details}"


def test_words_of_other_frameworks_lead_to_ours() -> None:
    with pytest.raises(UsageError) as caught:
        ModelEndpoint("openai", model="gpt-5")
    assert "default_model" in (caught.value.hint or "")


async def test_a_model_written_with_a_slash_is_told_how_it_is_written_here() -> None:
    async with Runtime("memory:") as rt:
        with pytest.raises(FoliotError) as caught:
            await rt.run(Agent("clerk", model="openai/gpt-5"), "hello")
    assert "openai:gpt-5" in (caught.value.hint or "")
