"""A write whose answer is lost is asked again, and done once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import foliot.client.http as module
from foliot import Client
from foliot.errors import Unavailable

PASSED_ON = ("Authorization", "Idempotency-Key", "Content-Type", "If-Match")


class Lossy:
    """Stands between a client and a server, and loses the first answer to each write."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.keys: list[str | None] = []
        self._url = url
        self._session = session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        body = await request.read()
        async with self._session.request(
            request.method, f"{self._url}{request.rel_url}", data=body, headers=headers
        ) as answer:
            content = await answer.read()
        if request.method == "POST":
            self.keys.append(request.headers.get("Idempotency-Key"))
            if len(self.keys) == 1:
                assert request.transport is not None
                request.transport.abort()
        return web.Response(body=content, status=answer.status, content_type="application/json")


@pytest.fixture
async def lossy(site: Any) -> AsyncIterator[tuple[Lossy, str]]:
    async with aiohttp.ClientSession() as session:
        between = Lossy(site.url, session)
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", between.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        yield between, f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


async def test_a_grant_whose_answer_is_lost_is_given_once(
    lossy: tuple[Lossy, str], site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    between, url = lossy

    async with Client(url, token=await site.token()) as client:
        given = await client.approvals.grant("pay", by="ann", seconds=60.0, namespace="default")
        standing = await client.approvals.list(namespace="default")

    assert [each["metadata"]["name"] for each in standing] == [given["metadata"]["name"]]
    first, second = between.keys
    assert first
    assert first == second


async def test_what_went_wrong_is_told_and_not_that_its_outcome_is_unknown(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    token = await site.token()

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(site.runtime.inside.approvals, "grant", away)
    async with Client(site.url, token=token) as client:
        with pytest.raises(Unavailable):
            await client.approvals.grant("pay", by="ann", seconds=60.0, namespace="default")
