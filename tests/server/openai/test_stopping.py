"""A server that stops while it answers: nothing is cancelled, and asking again brings the answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import pytest
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings

Serve = Callable[[Starlette], AbstractAsyncContextManager[str]]


async def holding() -> Any:
    """The tools, when `hold` is at work."""
    async with asyncio.timeout(60):
        while "openai_tools" not in sys.modules:
            await asyncio.sleep(0.01)
        tools: Any = sys.modules["openai_tools"]
        await tools.holding.wait()
    return tools


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_goes_on_under_another_server_with_the_same_key(
    runtime: Runtime, settings: Settings, serve: Serve, stream: bool
) -> None:
    order: dict[str, Any] = {
        "model": "slow",
        "messages": [{"role": "user", "content": "hold"}],
        "stream": stream,
        "extra_headers": {"Idempotency-Key": "k"},
    }

    async def ask(url: str) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            answer: Any = await client.chat.completions.create(**order)
            if not stream:
                return [answer.choices[0].message.content]
            return [chunk.choices[0].delta.content or "" async for chunk in answer]

    async with serve(create_app(runtime, settings=settings, auth=Anonymous())) as url:
        asking = asyncio.create_task(ask(url))
        tools = await holding()
    (broken,) = await asyncio.gather(asking, return_exceptions=True)
    (info,) = await runtime.inside.runs.journal.list()
    assert info.phase == "pending"
    assert isinstance(broken, openai.APIError if stream else openai.InternalServerError), "half is never taken for all"

    tools.release.set()
    async with serve(create_app(runtime, settings=settings, auth=Anonymous())) as url:
        assert "".join(await ask(url)) == "It was held."
    assert len(await runtime.inside.runs.journal.list()) == 1
