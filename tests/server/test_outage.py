"""A database that goes away and comes back under a server that stays."""

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
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens

PATH = "/v1/model-endpoints"
PATIENCE = 60.0


def endpoint(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"provider": "mock"}}


class Admin(httpx.AsyncClient):
    """Known to the server. `late` has a token that was never shown to it."""

    late: dict[str, str]


@pytest.fixture
async def http(postgres_service: Any, tmp_path: Path) -> AsyncIterator[Admin]:
    """An admin at a server on a PostgreSQL of the test's own."""
    settings = load_settings({"home": str(tmp_path), "store": postgres_service.url}, {})
    async with Runtime(settings=settings) as runtime:
        database = runtime.inside.tasking.database
        tokens = SqlTokens(database)
        now = time.time()
        _, used = await tokens.create("used", namespaces=["*"], roles=["admin"], now=now)
        _, late = await tokens.create("late", namespaces=["*"], roles=["admin"], now=now)
        auth = TokenAuth(database, local=True)
        app = create_app(runtime, settings=settings, auth=auth)
        async with (
            HttpServer(app, Listen("127.0.0.1", 0), grace=10) as server,
            Admin(base_url=server.url, timeout=PATIENCE, headers={"Authorization": f"Bearer {used}"}) as http,
        ):
            http.late = {"Authorization": f"Bearer {late}"}
            yield http
        await auth.close()


async def ready(http: Admin) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await http.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


async def names_behind(http: Admin, streaming: Any, revision: str, last: str) -> list[str]:
    """What a watch tells behind this revision up to the resource `last`, over as many streams as it takes."""
    told: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while last not in told:
            async with streaming(http, f"{PATH}/watch", after=revision) as stream:
                while last not in told:
                    try:
                        event = await stream.next(within=PATIENCE)
                    except EOFError:
                        break
                    revision = event.id or revision
                    if event.name == "resource":
                        told.append(event.data["resource"]["metadata"]["name"])
    return told


@pytest.mark.services
async def test_503_while_it_is_away_then_service_again_without_a_restart(
    postgres_service: Any, http: Admin, streaming: Any
) -> None:
    assert (await http.post(PATH, json=endpoint("before"))).status_code == 201
    listed = await http.get(PATH)
    revision = listed.json()["metadata"]["resourceVersion"]
    version = (await http.get(f"{PATH}/before")).headers["etag"]
    watching = asyncio.create_task(names_behind(http, streaming, revision, "after"))
    assert (await http.post(PATH, json=endpoint("between"))).status_code == 201

    await asyncio.to_thread(postgres_service.stop)

    requests = [
        ("GET", f"{PATH}/before", None, {}),
        ("GET", PATH, None, {}),
        ("GET", "/v1/tasks", None, {}),
        ("GET", f"{PATH}/watch", None, {"Last-Event-ID": revision}),
        ("POST", PATH, endpoint("lost"), {}),
        ("PUT", f"{PATH}/before", endpoint("before"), {"If-Match": version}),
        ("DELETE", f"{PATH}/before", None, {}),
        ("POST", "/v1/tasks/submit", {"target_kind": "agent", "target": "a", "message": "m"}, {}),
        # Whether somebody is known cannot be said now, which is not the same as that they are not.
        ("GET", f"{PATH}/before", None, http.late),
    ]
    answers = await asyncio.gather(
        *(http.request(method, path, json=body, headers=headers) for method, path, body, headers in requests)
    )
    for (method, path, *_), away in zip(requests, answers, strict=True):
        assert (away.status_code, away.json()["code"]) == (503, "unavailable"), (method, path, away.text)
        assert int(away.headers["retry-after"]) > 0
        assert "127.0.0.1" not in away.text, "where the store is concerns nobody"
    assert (await http.get("/livez")).status_code == 200
    assert (await http.get("/readyz")).status_code == 503

    await asyncio.to_thread(postgres_service.start)
    await ready(http)

    assert (await http.get(f"{PATH}/before")).headers["etag"] == version, "what was refused was not done"
    assert (await http.get(f"{PATH}/lost")).status_code == 404
    assert (await http.get(PATH, headers=http.late)).status_code == 200
    assert (await http.post(PATH, json=endpoint("after"))).status_code == 201
    assert await watching == ["between", "after"]


@pytest.mark.services
async def test_a_database_that_dies_again_and_again_loses_nothing_that_was_answered(
    postgres_service: Any, http: Admin
) -> None:
    kept: list[str] = []
    done = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            name = f"w{writer}-{number}"
            answer = await http.post(PATH, json=endpoint(name))
            assert answer.status_code in (201, 503), answer.text
            if answer.status_code == 201:
                kept.append(name)
            else:
                await asyncio.sleep(0.05)

    writers = [asyncio.create_task(write(number)) for number in range(3)]
    for _ in range(2):
        before = len(kept)
        async with asyncio.timeout(PATIENCE):
            while len(kept) < before + 5:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(postgres_service.kill)
        await asyncio.to_thread(postgres_service.start)
    await ready(http)
    done.set()
    await asyncio.gather(*writers)

    there = {each["metadata"]["name"] for each in (await http.get(PATH, params={"limit": 1000})).json()["items"]}
    assert set(kept) <= there
