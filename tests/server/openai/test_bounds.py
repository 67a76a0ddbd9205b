"""Streams of answers are streams as any other: counted for their caller, and no longer than the caller may."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.settings.settings import Settings, load_settings
from foliot.store.access.tokens import SqlTokens

WITHIN = 60.0
ORDERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "slow", "messages": [{"role": "user", "content": "hold"}], "stream": True},
    "/v1/responses": {"model": "slow", "input": "hold", "stream": True},
}


@dataclass
class Site:
    http: httpx.AsyncClient
    tokens: SqlTokens
    id: str


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path), "max_streams": "1"}, {})


@pytest.fixture
async def site(
    runtime: Runtime, settings: Settings, serve: Callable[[Starlette], AbstractAsyncContextManager[str]]
) -> AsyncIterator[Site]:
    database = runtime.inside.tasking.database
    tokens, auth = SqlTokens(database), TokenAuth(database, local=False)
    info, text = await tokens.create("ann", namespaces=["default"], roles=["operator"], now=time.time())
    app = create_app(runtime, settings=settings, auth=auth)
    app.state.services.streams.heartbeat = 0.05
    headers = {"Authorization": f"Bearer {text}"}
    async with serve(app) as url, httpx.AsyncClient(base_url=url, headers=headers, timeout=WITHIN) as http:
        yield Site(http, tokens, info.id)
        if (tools := sys.modules.get("openai_tools")) is not None:
            tools.release.set()
    await auth.close()


async def at_work() -> None:
    """Until `hold` is."""
    async with asyncio.timeout(WITHIN):
        while "openai_tools" not in sys.modules:
            await asyncio.sleep(0.01)
        await sys.modules["openai_tools"].holding.wait()


@pytest.mark.parametrize("path", ORDERS)
async def test_one_too_many_is_refused_before_anything_is_begun(path: str, site: Site, runtime: Runtime) -> None:
    async with site.http.stream("POST", path, json=ORDERS[path]) as first:
        assert first.status_code == 200
        await at_work()
        refused = [await site.http.post(each, json=order) for each, order in ORDERS.items()]
        watch = await site.http.get("/v1/agents/watch")

        assert [answer.status_code for answer in (*refused, watch)] == [429, 429, 429]
        assert "streams are open" in refused[0].json()["error"]["message"]
        assert len(await runtime.inside.runs.journal.list()) == 1
        whole = await site.http.post(path, json={**ORDERS[path], "model": "echo", "stream": False})
        assert whole.status_code == 200, "an answer that comes whole is no stream"

        sys.modules["openai_tools"].release.set()
        await first.aread()
    async with site.http.stream("POST", path, json={**ORDERS[path], "model": "echo"}) as next_one:
        assert next_one.status_code == 200, "its place is free again"
        assert b"You" in await next_one.aread()


@pytest.mark.parametrize("path", ORDERS)
async def test_a_request_that_begins_nothing_holds_no_place(path: str, site: Site) -> None:
    for _ in range(3):
        wrong = await site.http.post(path, json={**ORDERS[path], "model": "nobody"})
        assert wrong.status_code == 404


@pytest.mark.parametrize("path", ORDERS)
async def test_a_stream_ends_with_the_token_that_opened_it(path: str, site: Site) -> None:
    async with asyncio.timeout(WITHIN):
        async with site.http.stream("POST", path, json=ORDERS[path]) as answer:
            assert answer.status_code == 200
            await at_work()
            await site.tokens.revoke(site.id, now=time.time())
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]

    told = json.loads(lines[-1].removeprefix("data: "))
    assert told["error"]["code"] == "unauthenticated", told
