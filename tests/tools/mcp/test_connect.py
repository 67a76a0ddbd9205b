"""Connections as a deployment has them: secrets from the store, credentials, and the guard on what is reached."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foliot.catalog.mcp import opened_connections
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from foliot.tools.base import ToolPolicyInvalid, ToolSecretMissing
from tests.tools.mcp.conftest import real_fences, spec_of


def secret(name: str, value: str) -> Put:
    data = {"value": base64.b64encode(value.encode()).decode()}
    return Put({"kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "spec": {"data": data}})


def settings(tmp_path: Path, **environ: str) -> Any:
    given = {f"FOLIOT_{name.upper()}": value for name, value in environ.items()}
    return load_settings({"home": str(tmp_path / "home")}, given)


async def test_a_stored_secret_reaches_the_environment_of_a_server_without_a_fence(store, tmp_path):
    await store.write([secret("api", "sesame-123")])
    server = spec_of("sample", "stdio", env=[{"name": "TOKEN", "secretRef": "api"}], isolation="none")
    allowed, environ = settings(tmp_path, mcp_commands=sys.executable), {"PATH": os.environ["PATH"]}
    async with (
        real_fences() as fences,
        opened_connections(store, allowed, environ=environ, fences=fences) as connections,
    ):
        found = (await connections.call(server, "environment", {})).structured_content
    assert found["TOKEN"] == "sesame-123"


async def test_a_secret_of_another_namespace_is_out_of_reach(store, tmp_path):
    server = spec_of("sample", "stdio", env=[{"name": "TOKEN", "secretRef": "team-b/api"}])
    async with (
        real_fences() as fences,
        opened_connections(store, settings(tmp_path), allow=[sys.executable], fences=fences) as connections,
    ):
        with pytest.raises(ToolSecretMissing, match="a Secret of namespace 'team-b'"):
            await connections.tools(server)


async def test_loopback_is_reached_only_when_it_is_allowed_and_with_the_credentials(store, tmp_path):
    await store.write([secret("token", "sesame-123")])
    shown: list[str | None] = []

    async def refuse(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization"))
        return web.Response(status=403)

    app = web.Application()
    app.router.add_post("/mcp", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    auth = {"profile": "bearer", "secretRef": "token"}
    server = spec_of("web", endpoint=f"http://127.0.0.1:{port}/mcp", auth=auth)
    try:
        async with opened_connections(store, settings(tmp_path)) as connections:
            with pytest.raises(ToolPolicyInvalid, match="may not connect"):
                await connections.tools(server)
        assert shown == []
        allowed = settings(tmp_path, outbound_allow="127.0.0.1")
        async with opened_connections(store, allowed) as connections:
            with pytest.raises(Exception, match="HTTP 403"):
                await connections.tools(server)
        assert set(shown) == {"Bearer sesame-123"}
    finally:
        await runner.cleanup()
