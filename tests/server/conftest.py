from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings, load_settings
from tests.taking_missing import TAKES_MISSING


@dataclass
class Event:
    name: str
    id: str | None
    data: Any


class Stream:
    """`await stream.next()` is the next event, within a bound."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self, within: float = 60.0) -> Event:
        async with asyncio.timeout(within):
            name, cursor = "", None
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    cursor = value
                elif field == "data":
                    return Event(name, cursor, json.loads(value))
        raise EOFError("the stream ended")


@asynccontextmanager
async def _streaming(
    http: httpx.AsyncClient, path: str, *, after: str | None = None, **query: str
) -> AsyncIterator[Stream]:
    headers = {"Last-Event-ID": after} if after is not None else {}
    async with http.stream("GET", path, params=query, headers=headers) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


Streaming = Callable[..., AbstractAsyncContextManager[Stream]]


@pytest.fixture
def streaming() -> Streaming:
    """Opens a stream of server-sent events: `async with streaming(http, path, after=id) as stream`."""
    return _streaming


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path)}, {})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as runtime:
        yield runtime


@pytest.fixture
async def app(runtime: Runtime, settings: Settings) -> Starlette:
    return create_app(runtime, settings=settings, auth=Anonymous())


@pytest.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """A client that talks to the application in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", event_hooks=TAKES_MISSING) as client:
        yield client
