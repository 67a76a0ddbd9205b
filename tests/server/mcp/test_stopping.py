"""A server that stops while MCP clients are connected."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from mcp import Client
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings

Serve = Callable[[Starlette], AbstractAsyncContextManager[str]]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_connections_end_and_runs_are_left_for_others(
    runtime: Runtime, settings: Settings, serve: Serve, mode: Any
) -> None:
    async def talk(url: str) -> None:
        async with Client(f"{url}/mcp", mode=mode) as client:
            await client.call_tool("agent-slow", {"message": "hold"})

    async with serve(create_app(runtime, settings=settings, auth=Anonymous())) as url:
        talking = asyncio.create_task(talk(url))
        async with asyncio.timeout(60):
            while "mcp_tools" not in sys.modules:
                await asyncio.sleep(0.01)
            tools: Any = sys.modules["mcp_tools"]
            await tools.holding.wait()
    talking.cancel()
    await asyncio.gather(talking, return_exceptions=True)
    (info,) = await runtime.inside.runs.journal.list()

    assert info.phase == "pending"
    tools.release.set()
    assert (await runtime.resume(info.id)).output == "It was held."
