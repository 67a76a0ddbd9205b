"""On a real socket: streams, stopping, and callers that do not behave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.errors import Unavailable, UsageError
from foliot.runtime.runtime import Runtime
from foliot.server.http.serve import HttpServer, Listen, _bound
from foliot.server.streams.sse import KEEP_ALIVE, EventStream
from foliot.store.base import Delete, Key, Put

PATH = "/v1/model-endpoints/watch"


def endpoint(name: str, model: str = "m", space: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name, "namespace": space},
        "spec": {"provider": "mock", "default_model": model},
    }


@pytest.fixture
async def server(app: Starlette) -> AsyncIterator[HttpServer]:
    async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=110) as client:
        yield client


async def test_a_watch_begins_with_what_there_is_and_goes_on_with_what_comes(
    http: httpx.AsyncClient, runtime: Runtime, streaming: Any
) -> None:
    await runtime.inside.resources.write([Put(endpoint("old"))])
    async with streaming(http, PATH) as stream:
        first = await stream.next()
        mark = await stream.next()
        await runtime.inside.resources.write([Put(endpoint("new"))])
        await runtime.inside.resources.write([Put(endpoint("old", "other"))])
        await runtime.inside.resources.write([Delete(Key("ModelEndpoint", "default", "new"))])
        came = [await stream.next() for _ in range(3)]

    assert (first.name, first.id, first.data["type"]) == ("resource", None, "added")
    assert (mark.name, mark.data["resourceVersion"]) == ("bookmark", mark.id)
    told = [(each.data["type"], each.data["resource"]["metadata"]["name"]) for each in came]
    assert told == [("added", "new"), ("updated", "old"), ("deleted", "new")]
    assert came[1].id == came[1].data["resource"]["metadata"]["resourceVersion"]


async def test_a_watch_goes_on_behind_any_event_without_gap_or_repeat(
    http: httpx.AsyncClient, runtime: Runtime, streaming: Any
) -> None:
    async with streaming(http, PATH) as stream:
        await stream.next()
        for number in range(10):
            await runtime.inside.resources.write([Put(endpoint(f"e{number}"))])
        events = [await stream.next() for _ in range(10)]

    for position, event in enumerate(events[:-1]):
        async with streaming(http, PATH, after=event.id) as again:
            assert (await again.next()).name == "bookmark"
            rest = [await again.next() for _ in range(len(events) - position - 1)]
        assert rest == events[position + 1 :]


async def test_a_list_and_a_watch_meet_without_a_gap(http: httpx.AsyncClient, runtime: Runtime, streaming: Any) -> None:
    listed = (await http.get("/v1/model-endpoints")).json()
    await runtime.inside.resources.write([Put(endpoint("between"))])

    async with streaming(http, PATH, resourceVersion=listed["metadata"]["resourceVersion"]) as stream:
        await stream.next()
        assert (await stream.next()).data["resource"]["metadata"]["name"] == "between"


async def test_a_watch_of_all_kinds_can_be_narrowed_to_a_namespace(
    http: httpx.AsyncClient, runtime: Runtime, streaming: Any
) -> None:
    async with streaming(http, "/v1/resources/watch", namespace="b") as stream:
        await stream.next()
        await runtime.inside.resources.write([Put(endpoint("x", space="a")), Put(endpoint("y", space="b"))])
        assert (await stream.next()).data["resource"]["metadata"]["name"] == "y"


@pytest.mark.parametrize(("after", "status", "code"), [("999999", 410, "gone"), ("soon", 400, "invalid")])
async def test_a_place_that_is_no_place_is_refused_before_the_stream_begins(
    http: httpx.AsyncClient, after: str, status: int, code: str
) -> None:
    answer = await http.get(PATH, headers={"Last-Event-ID": after})

    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_server_that_stops_ends_its_streams_and_nobody_waits(app: Starlette, streaming: Any) -> None:
    async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
        http = httpx.AsyncClient(base_url=server.url, timeout=110)
        async with http, streaming(http, PATH) as stream:
            await stream.next()
            stopping = asyncio.create_task(server.__aexit__())
            with pytest.raises(EOFError):
                await stream.next()
            async with asyncio.timeout(60):
                await stopping


async def test_quiet_streams_give_signs_of_life() -> None:
    beats = asyncio.Semaphore(0)

    async def silent() -> AsyncGenerator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def send(message: Any) -> None:
        if message.get("body") == KEEP_ALIVE:
            beats.release()

    async def receive() -> Any:
        await asyncio.Event().wait()

    closing = asyncio.Event()
    answering = asyncio.create_task(EventStream(silent(), closing=closing, heartbeat=0.001)({}, receive, send))
    async with asyncio.timeout(60):
        for _ in range(3):
            await beats.acquire()
        closing.set()
        await answering


async def test_a_body_that_grows_beyond_the_limit_is_cut_off(http: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 65536

    answer = await http.post("/v1/agents", content=endless())

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_no_part_of_an_answer_waits_for_an_acknowledgement() -> None:
    with _bound(Listen("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_address_that_is_taken_is_said_in_words(app: Starlette, server: HttpServer) -> None:
    port = int(server.url.rpartition(":")[2])

    with pytest.raises(Unavailable, match="cannot listen"):
        await HttpServer(app, Listen("127.0.0.1", port)).__aenter__()


async def test_a_certificate_that_is_none_is_said_in_words(app: Starlette, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")

    with pytest.raises(UsageError, match="certificate"):
        await HttpServer(app, Listen("127.0.0.1", 0, tmp_path / "cert.pem", tmp_path / "cert.pem")).__aenter__()


@pytest.mark.parametrize("turns", range(1, 8))
async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    app: Starlette, turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A signal may come at any turn of the loop while the server starts."""
    before = asyncio.all_tasks()
    server = HttpServer(app, Listen("127.0.0.1", 0))
    starting = asyncio.create_task(server.__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        pass
    else:
        await server.__aexit__()

    assert [each for each in asyncio.all_tasks() - before if not each.done()] == []
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
