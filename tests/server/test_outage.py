"""A database that goes away and comes back under a server that stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth import Anonymous
from foliot.server.serving import HttpServer, Listen
from foliot.settings import load_settings

PATH = "/v1/model-endpoints"


def endpoint(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"provider": "mock"}}


@pytest.mark.services
async def test_503_while_it_is_away_then_service_again_without_a_restart(
    postgres_service: Any, tmp_path: Path, streaming: Any
) -> None:
    settings = load_settings({"home": str(tmp_path), "store": postgres_service.url}, {})
    async with Runtime(settings=settings) as runtime:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        async with (
            HttpServer(app, Listen("127.0.0.1", 0)) as server,
            httpx.AsyncClient(base_url=server.url, timeout=50) as http,
        ):
            assert (await http.post(PATH, json=endpoint("before"))).status_code == 201
            revision = (await http.get(PATH)).json()["metadata"]["resourceVersion"]

            await asyncio.to_thread(postgres_service.stop)

            away = await http.get(f"{PATH}/before")
            assert (away.status_code, away.json()["code"]) == (503, "unavailable")
            assert away.headers["retry-after"]
            assert (await http.get("/livez")).status_code == 200
            assert (await http.get("/readyz")).status_code == 503

            await asyncio.to_thread(postgres_service.start)

            async with asyncio.timeout(50):
                while (await http.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.05)
            assert (await http.get(f"{PATH}/before")).status_code == 200
            assert (await http.post(PATH, json=endpoint("after"))).status_code == 201
            async with streaming(http, f"{PATH}/watch", after=revision) as stream:
                await stream.next()
                assert (await stream.next()).data["resource"]["metadata"]["name"] == "after"
