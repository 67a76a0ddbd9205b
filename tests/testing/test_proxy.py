"""The proxy of the tests breaks a connection in each of its ways, and heals when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from simulators.proxy import Proxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that repeats what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended = asyncio.Event()
        self.url = ""
        self.clients: list[asyncio.StreamWriter] = []

    async def reached(self, proxy: Proxy) -> Ends:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        self.clients.append(writer)
        return reader, writer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                self.heard += data
                writer.write(data)
        self.ended.set()
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield echo
    server.close()
    for writer in echo.clients:
        writer.transport.abort()


async def ask(ends: Ends, text: bytes) -> bytes:
    ends[1].write(text)
    async with asyncio.timeout(60):
        return await ends[0].readexactly(len(text))


async def test_it_passes_bytes_and_ends_both_ways(echo: Echo) -> None:
    with Proxy(echo.url) as proxy:
        ends = await echo.reached(proxy)
        assert await ask(ends, b"hello") == b"hello"
        ends[1].close()
        await asyncio.wait_for(echo.ended.wait(), 60)


async def test_dropping_resets_what_is_open_and_what_is_new(echo: Echo) -> None:
    with Proxy(echo.url) as proxy:
        ends = await echo.reached(proxy)
        await ask(ends, b"hello")
        proxy.drop()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await ask(ends, b"hello")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await ask(await echo.reached(proxy), b"hello")
        proxy.pass_through()
        assert await ask(await echo.reached(proxy), b"again") == b"again"


async def test_silence_swallows_without_a_word_and_a_silent_connection_stays_so(echo: Echo) -> None:
    with Proxy(echo.url) as proxy:
        ends = await echo.reached(proxy)
        await ask(ends, b"before")
        proxy.silence()
        ends[1].write(b"into the void")
        await proxy.swallowed()
        proxy.pass_through()
        ends[1].write(b"after")
        await proxy.swallowed()
        assert not ends[0].at_eof()
        assert echo.heard == b"before"
        assert await ask(await echo.reached(proxy), b"new") == b"new"
        ends[1].close()
        assert await ask(await echo.reached(proxy), b"newer") == b"newer"
        assert not echo.ended.is_set(), "the server is not told that a silent client has gone"


async def test_one_direction_alone_can_be_lost(echo: Echo) -> None:
    with Proxy(echo.url) as proxy:
        proxy.swallow("answers")
        ends = await echo.reached(proxy)
        ends[1].write(b"heard, but not answered")
        await proxy.swallowed()
        assert echo.heard == b"heard, but not answered"
        proxy.swallow("requests")
        other = await echo.reached(proxy)
        other[1].write(b"never heard")
        await proxy.swallowed()
        assert b"never" not in echo.heard


async def test_a_commit_passes_and_its_answer_does_not(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy:
        connection = await asyncpg.connect(proxy.url)
        await connection.execute("CREATE TABLE kept (n int)")
        proxy.cut_after()
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        await connection.execute("INSERT INTO kept VALUES (1)")
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            await connection.execute("COMMIT")
        await proxy.cut()
        connection = await asyncpg.connect(proxy.url)
        assert await connection.fetchval("SELECT n FROM kept") == 1
        await connection.close()


async def test_a_delay_keeps_the_order(echo: Echo) -> None:
    with Proxy(echo.url) as proxy:
        proxy.delay(0.01)
        ends = await echo.reached(proxy)
        assert b"".join([await ask(ends, b"%d" % number) for number in range(3)]) == b"012"
