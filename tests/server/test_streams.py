"""Streams on a real socket: signs of life, slow readers, too many of them, and where they go on."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.errors import Unavailable
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous, TokenAuth
from foliot.server.context import Services
from foliot.server.errors import Unauthenticated
from foliot.server.http.serve import HttpServer, Listen
from foliot.server.streams.sse import CLOSING, EventStream, Slots
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Put

PATH = "/v1/model-endpoints/watch"
SOON = 60.0


@pytest.fixture
async def app(runtime: Runtime, settings: Settings) -> Starlette:
    return create_app(runtime, settings=dataclasses.replace(settings, max_streams=3), auth=Anonymous())


@pytest.fixture
async def server(app: Starlette) -> AsyncIterator[HttpServer]:
    async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=SOON) as client:
        yield client


def endpoint(name: str, model: str = "m") -> Put:
    metadata = {"name": name, "namespace": "default"}
    spec = {"provider": "mock", "default_model": model}
    return Put({"apiVersion": "foliot.dev/v1", "kind": "ModelEndpoint", "metadata": metadata, "spec": spec})


def services_of(app: Starlette) -> Services:
    return app.state.services


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_caller_has_only_so_many_streams_and_gets_one_back_by_leaving(
    http: httpx.AsyncClient, app: Starlette, streaming: Any
) -> None:
    slots = services_of(app).streams.slots
    async with streaming(http, PATH), streaming(http, "/v1/events/watch"):
        async with streaming(http, "/v1/tasks/watch"):
            refused = await http.get(PATH)
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            assert refused.headers["retry-after"]
            assert (await http.get("/v1/version")).status_code == 200
        await until(lambda: slots.open == 2)
        async with streaming(http, PATH) as stream:
            assert (await stream.next()).name == "bookmark"
    await until(lambda: slots.open == 0)


def test_callers_do_not_take_each_others_streams() -> None:
    slots = Slots(1)
    with slots.hold("a"), slots.hold("b"):
        assert slots.open == 2
    assert slots.open == 0


async def test_the_header_of_a_client_that_reconnects_beats_the_address(
    http: httpx.AsyncClient, runtime: Runtime, streaming: Any
) -> None:
    await runtime.inside.resources.write([endpoint("a"), endpoint("b"), endpoint("c")])
    listed = (await http.get("/v1/model-endpoints")).json()["items"]
    versions = [item["metadata"]["resourceVersion"] for item in listed]
    async with streaming(http, PATH, after=versions[1], resourceVersion=versions[0]) as stream:
        mark, event = await stream.next(), await stream.next()
    assert mark.id == versions[1]
    assert event.data["resource"]["metadata"]["name"] == "c"


async def test_a_server_that_stops_says_so_to_its_streams(app: Starlette) -> None:
    async with (
        HttpServer(app, Listen("127.0.0.1", 0)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SOON) as http,
        http.stream("GET", PATH) as response,
        asyncio.timeout(SOON),
    ):
        parts = response.aiter_bytes()
        await anext(parts)
        stopping = asyncio.create_task(server.__aexit__())
        rest = b"".join([part async for part in parts])
        assert rest.endswith(CLOSING)
        await stopping


async def test_a_client_that_reads_nothing_holds_up_nobody_and_costs_little(
    http: httpx.AsyncClient, app: Starlette, server: HttpServer, runtime: Runtime, streaming: Any
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b"bookmark"), SOON)

    async with streaming(http, PATH) as stream:
        await stream.next()
        for number in range(60):  # far more than sockets and buffers hold
            await runtime.inside.resources.write([endpoint("large", f"{number}" + "x" * 200_000)])
            event = await stream.next()
            assert event.data["resource"]["spec"]["default_model"].startswith(str(number))
    group = next(iter(services_of(app).streams.feed._groups.values()))  # pyright: ignore[reportPrivateUsage]  # what is held for it
    assert group.ring.floor > 0
    writer.transport.abort()


async def test_a_stream_that_breaks_off_in_the_middle_of_a_piece_goes_on_behind_its_last_whole_event(
    http: httpx.AsyncClient, runtime: Runtime, streaming: Any
) -> None:
    async with streaming(http, PATH) as stream, streaming(http, PATH) as steady:
        await stream.next()
        await steady.next()
        await runtime.inside.resources.write([endpoint(f"n{number:02}") for number in range(40)])
        last = [await stream.next() for _ in range(17)][-1]
        # The other one keeps the pieces where they are: the position is in the middle of one.
        async with streaming(http, PATH, after=last.id) as again:
            assert (await again.next()).name == "bookmark"
            names = [(await again.next()).data["resource"]["metadata"]["name"] for _ in range(23)]
    assert names == [f"n{number:02}" for number in range(17, 40)]


async def test_a_store_that_is_compacted_under_a_watch_ends_it_with_410(
    http: httpx.AsyncClient, app: Starlette, runtime: Runtime
) -> None:
    await runtime.inside.resources.write([endpoint(f"n{number}") for number in range(20)])

    async def frames() -> Any:
        from foliot.store.base import Filter

        async for data in services_of(app).streams.feed.frames(Filter(), 3):
            yield data

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    await runtime.inside.resources.compact(keep=2)
    async with asyncio.timeout(SOON):
        await EventStream(frames(), closing=asyncio.Event())({}, receive, send)
    assert b'"status":410' in b"".join(sent)
    assert (await http.get(PATH, headers={"Last-Event-ID": "3"})).status_code == 410


async def test_whoever_is_no_longer_let_in_is_told_and_the_stream_ends() -> None:
    asked = 0
    sent: list[bytes] = []

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def still(_: Any) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Unavailable("the store is away, which says nothing of the caller")
        if asked == 3:
            raise Unauthenticated("this token is not good")

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(silent(), closing=asyncio.Event(), heartbeat=0.002, still=still)  # type: ignore[arg-type]  # a generator
    async with asyncio.timeout(SOON):
        await stream({}, receive, send)

    assert asked == 3
    assert b'"status":401' in sent[-2]
    assert CLOSING not in sent


async def test_a_stream_is_held_by_what_let_its_caller_in(runtime: Runtime, settings: Settings) -> None:
    database = runtime.inside.tasking.database
    tokens, auth = SqlTokens(database), TokenAuth(database, local=True)
    streams = services_of(create_app(runtime, settings=settings, auth=auth)).streams
    info, text = await tokens.create("reader", namespaces=["default"], roles=["reader"], now=time.time())
    scope: dict[str, Any] = {"method": "GET", "headers": [(b"authorization", f"Bearer {text}".encode())]}
    caller = await auth.identify(scope)

    await streams.check(caller, scope)
    with pytest.raises(Unauthenticated, match="rights"):
        await streams.check(dataclasses.replace(caller, grants={}), scope)
    await tokens.revoke(info.id, now=time.time())
    with pytest.raises(Unauthenticated):
        await streams.check(caller, scope)
    await auth.close()
