from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from foliot.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth import Anonymous
from foliot.settings import Settings, load_settings

Browse = Callable[[FastAPI], httpx.AsyncClient]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path)}, {})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as runtime:
        yield runtime


@pytest.fixture
async def app(runtime: Runtime, settings: Settings) -> FastAPI:
    return create_app(runtime, settings=settings, auth=Anonymous())


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client that talks to the application in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
