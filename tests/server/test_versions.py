"""Nobody writes over what they have not seen: two servers with one store, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime import Runtime
from foliot.server.access.auth import Anonymous
from foliot.server.app import create_app
from foliot.settings import load_settings
from foliot.store.base import Document

PATH = "/v1/model-endpoints"
ONE = f"{PATH}/local"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of two servers, each with connections of its own."""
    store = {} if request.param == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    settings = load_settings({"home": str(tmp_path), **store}, {})
    async with AsyncExitStack() as stack:
        clients: list[httpx.AsyncClient] = []
        for _ in range(2):
            runtime = await stack.enter_async_context(Runtime(settings=settings))
            transport = httpx.ASGITransport(create_app(runtime, settings=settings, auth=Anonymous()))
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
            clients.append(await stack.enter_async_context(client))
        yield clients


async def made(http: httpx.AsyncClient, **spec: Any) -> Document:
    body = {"metadata": {"name": "local"}, "spec": {"provider": "mock", "default_model": "m", **spec}}
    answer = await http.post(PATH, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def labelled(name: str, **metadata: str) -> Document:
    return {"metadata": {"labels": {name: "yes"}, **metadata}}


async def test_a_patch_that_names_a_version_is_refused_when_it_has_passed(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    old = (await made(http))["metadata"]["resourceVersion"]
    await made(other, base_url="http://127.0.0.1:1")

    refused = [
        await http.patch(ONE, json=labelled("a", resourceVersion=old)),
        await http.patch(ONE, json=labelled("a", resource_version=old)),
        await http.patch(ONE, json=labelled("a", resourceVersion=old), params={"dryRun": "true"}),
        await http.patch(ONE, json=labelled("a"), headers={"If-Match": f'"{old}"'}),
        await http.put(ONE, json=await declared(http, resourceVersion=old)),
        await http.post(PATH, json=await declared(http, resourceVersion=old)),
        await http.put(f"{ONE}/status", json={"metadata": {"resourceVersion": old}, "status": {"phase": "Ready"}}),
        await http.post("/v1/apply", json=await declared(http, resourceVersion=old)),
    ]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(409, "conflict")] * len(refused)
    deleted = await http.delete(ONE, headers={"If-Match": f'"{old}"'})
    assert deleted.status_code == 412
    stored = (await http.get(ONE)).json()
    assert stored["spec"]["base_url"] == "http://127.0.0.1:1"
    assert not stored["metadata"].get("labels")


async def declared(http: httpx.AsyncClient, **metadata: str) -> Document:
    document = (await http.get(ONE)).json()
    return {**document, "metadata": {**document["metadata"], **metadata}, "spec": {"provider": "mock"}}


async def test_a_patch_at_the_current_version_is_stored(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    version = (await made(http))["metadata"]["resourceVersion"]

    answer = await other.patch(ONE, json=labelled("a", resourceVersion=version))

    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["labels"] == {"a": "yes"}


async def test_what_is_no_version_matches_nothing(servers: list[httpx.AsyncClient]) -> None:
    http, _ = servers
    await made(http)
    for word in ("any", "present", "absent", "1.0"):
        answers = [
            await http.patch(ONE, json=labelled("a", resourceVersion=word)),
            await http.put(ONE, json=await declared(http, resourceVersion=word)),
            await http.put(ONE, json=await declared(http, resourceVersion=""), headers={"If-Match": word}),
            await http.put(f"{ONE}/status", json={"phase": "Ready"}, headers={"If-Match": word}),
            await http.delete(ONE, headers={"If-Match": word}),
        ]
        assert [each.status_code in (409, 412, 422) for each in answers] == [True] * 5, [each.text for each in answers]
    assert (await http.get(ONE)).json()["spec"]["default_model"] == "m"


async def test_patches_without_a_version_are_all_kept(servers: list[httpx.AsyncClient]) -> None:
    await made(servers[0])
    names = [f"n{number}" for number in range(24)]

    answers = await asyncio.gather(
        *(servers[number % 2].patch(ONE, json=labelled(name)) for number, name in enumerate(names))
    )

    assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
    assert sorted((await servers[1].get(ONE)).json()["metadata"]["labels"]) == sorted(names)


async def test_patches_of_one_spec_are_all_kept(servers: list[httpx.AsyncClient]) -> None:
    """Each is judged by what it is merged onto, and takes its turn when another one was faster."""
    await made(servers[0], options={"begun": "1"})
    names = [f"o{number}" for number in range(16)]

    answers = await asyncio.gather(
        *(servers[number % 2].patch(ONE, json={"spec": {"options": {name: "1"}}}) for number, name in enumerate(names))
    )

    assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
    assert sorted((await servers[1].get(ONE)).json()["spec"]["options"]) == sorted(["begun", *names])
