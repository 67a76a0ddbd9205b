"""Nobody continues the conversation of somebody else, by whatever way they ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens

CANARY = "the code is 4711"


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Ann and Bob of team-a, Mallory of team-b; each team has an agent that repeats all that it was told."""
    settings = load_settings({"home": str(tmp_path)}, {})
    async with Runtime(settings=settings) as runtime:
        database = runtime.inside.tasking.database
        auth = TokenAuth(database, local=True, settings=settings)
        app, tokens = create_app(runtime, settings=settings, auth=auth), SqlTokens(database)
        made: dict[str, httpx.AsyncClient] = {}
        for name, space in (("ann", "team-a"), ("bob", "team-a"), ("mallory", "team-b")):
            token = (await tokens.create(name, namespaces=(space,), roles=("admin",), now=time.time()))[1]
            headers = {"Authorization": f"Bearer {token}"}
            made[name] = httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://test", headers=headers, timeout=60
            )
        for name, space in (("ann", "team-a"), ("mallory", "team-b")):
            for path, spec in (
                ("model-endpoints", {"provider": "scripted", "script": {"otherwise": {"say": "{first_input}"}}}),
                ("agents", {"model_ref": "x"}),
            ):
                body = {"metadata": {"name": "x", "namespace": space}, "spec": spec}
                assert (await made[name].post(f"/v1/{path}", json=body)).status_code == 201
        yield made
        for client in made.values():
            await client.aclose()
        await auth.close()


async def begun(client: httpx.AsyncClient, *, namespace: str, **order: Any) -> httpx.Response:
    return await client.post("/v1/runs", params={"namespace": namespace}, json={"agent": "x", "input": "and?", **order})


async def test_a_run_continues_only_runs_of_its_own_user_and_namespace(callers: dict[str, httpx.AsyncClient]) -> None:
    ann = callers["ann"]
    first = await begun(ann, run_id="hers", namespace="team-a", input=CANARY)
    assert first.status_code < 300, first.text
    async with asyncio.timeout(60):
        while "succeeded" not in (await ann.get("/v1/runs/hers")).text.lower():
            await asyncio.sleep(0)

    for name, space in (("bob", "team-a"), ("mallory", "team-b"), ("mallory", "team-a")):
        answer = await begun(callers[name], run_id=f"{name}-{space}", namespace=space, after="hers")
        assert answer.status_code in (403, 404), answer.text
        assert CANARY not in answer.text
    own = await begun(ann, run_id="second", namespace="team-a", after="hers")
    assert own.status_code < 300, own.text
