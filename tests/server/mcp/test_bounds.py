"""What MCP clients wait for is counted for their caller, and lasts no longer than the caller may."""

from __future__ import annotations

import asyncio
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
ACCEPT = {"Accept": "application/json, text/event-stream"}
CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "agent-slow", "arguments": {"message": "hold"}},
}
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
NOTICE: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@dataclass
class Site:
    http: httpx.AsyncClient
    tokens: SqlTokens
    id: str

    async def session(self) -> dict[str, str]:
        """The headers of a session of an earlier revision."""
        answer = await self.http.post("/mcp", json=HELLO, headers=ACCEPT)
        assert answer.status_code == 200, answer.text
        headers = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-06-18"}
        assert (await self.http.post("/mcp", json=NOTICE, headers=headers)).status_code == 202
        return headers


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
        if (tools := sys.modules.get("mcp_tools")) is not None:
            tools.release.set()
    await auth.close()


async def at_work() -> None:
    """Until `hold` is."""
    async with asyncio.timeout(WITHIN):
        while "mcp_tools" not in sys.modules:
            await asyncio.sleep(0.01)
        await sys.modules["mcp_tools"].holding.wait()


async def test_an_answer_that_is_waited_for_and_the_standing_stream_are_streams(site: Site) -> None:
    headers = await site.session()
    async with site.http.stream("POST", "/mcp", json=CALL, headers=headers) as call:
        assert call.status_code == 200
        await at_work()

        assert (await site.http.get("/mcp", headers=headers)).status_code == 429
        assert (await site.http.post("/mcp", json={**CALL, "id": 3}, headers=headers)).status_code == 429
        assert (await site.http.get("/v1/agents/watch")).status_code == 429
        assert (await site.http.post("/mcp", json=NOTICE, headers=headers)).status_code == 202, "nothing is waited for"

        sys.modules["mcp_tools"].release.set()
        assert b"It was held." in await call.aread()

    async with site.http.stream("GET", "/mcp", headers=headers) as standing:
        assert standing.status_code == 200
        assert (await site.http.post("/mcp", json=CALL, headers=headers)).status_code == 429


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_they_end_with_the_token_that_opened_them(method: str, site: Site) -> None:
    headers = await site.session()
    body = CALL if method == "POST" else None
    async with asyncio.timeout(WITHIN):
        async with site.http.stream(method, "/mcp", headers=headers, json=body) as stream:
            assert stream.status_code == 200
            if method == "POST":
                await at_work()
            await site.tokens.revoke(site.id, now=time.time())
            await stream.aread()  # which ends, and is not broken off

        assert (await site.http.get("/mcp", headers=headers)).status_code == 401


async def test_sessions_of_one_caller_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.server.mcp.http.MOST_OF_ONE", 3)
    opened = [await site.session() for _ in range(3)]

    refused = await site.http.post("/mcp", json=HELLO, headers=ACCEPT)
    still = await site.http.post("/mcp", json=NOTICE, headers=opened[0])
    ended = await site.http.delete("/mcp", headers=opened[0])

    assert (refused.status_code, still.status_code, ended.status_code) == (429, 202, 200)
    assert "3 sessions open" in refused.text
    await site.session()


async def test_a_session_that_nobody_uses_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.server.mcp.http.IDLE_SECONDS", 0.3)
    headers = await site.session()
    async with asyncio.timeout(WITHIN):
        while (await site.http.post("/mcp", json=NOTICE, headers=headers)).status_code != 404:
            await asyncio.sleep(0.4)
