"""Of a stream whose pieces come in quick succession several are read at once, and no connection is left deaf."""

from __future__ import annotations

import array
import asyncio
import fcntl
import random
import socket
import ssl
import termios
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Text, Usage
from foliot.models.config import GatewayConfig
from foliot.models.gateways import connection
from foliot.models.gateways.connection import _MANY, _Gathering, _Pace, _wakes_when_lowered
from foliot.models.gateways.openai import OpenAIChatGateway
from simulators.provider import Play, WireServer
from tests.tools.web_service import self_signed

FOR_EVER = 1e9
WORDS = " ".join(f"word{number}" for number in range(60))
ANSWER = ModelResponse(Message("assistant", (Text(WORDS),)), Usage(9, 60), model="gpt-test", id="chatcmpl-1")
ASK = ModelRequest("gpt-test", (Message("user", (Text("Go on."),)),))

# --- how long pieces wait, by a clock of the tests --------------------------------------------------------------------


class _Reading:
    """Reads pieces that come at given times as `_Gathering` does; `waited` is how long each was held up."""

    def __init__(self, arrivals: Iterable[float], size: int = 100) -> None:
        self.arrivals = list(arrivals)
        self.sizes: list[int] = []
        self.waited: list[float] = []
        pace, now, wait, done = _Pace(0.0), 0.0, 0.0, 0
        while done < len(self.arrivals):
            now = max(now + wait, self.arrivals[done])
            came = [at for at in self.arrivals[done:] if at <= now]
            self.waited += [now - at for at in came]
            self.sizes.append(len(came))
            done += len(came)
            wait = pace.wait(len(came) * size, now)


def _steady(every: float, pieces: int) -> list[float]:
    return [every * (number + 1) for number in range(pieces)]


def test_quick_pieces_are_read_together_and_none_is_lost() -> None:
    reading = _Reading(_steady(0.002, 500))
    assert sum(reading.sizes) == 500
    assert max(reading.sizes) == 17
    assert len(reading.sizes) < 50, "about thirty times a second, and a few more in the beginning"


@pytest.mark.parametrize("every", [0.0001, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.009, 0.01])
def test_a_piece_of_a_steady_stream_waits_for_two_fifths_of_the_time_taken_and_for_the_next_one_at_most(
    every: float,
) -> None:
    reading = _Reading(_steady(every, 1000))
    for at, waited in zip(reading.arrivals, reading.waited, strict=True):
        assert waited <= 1 / 30 + 1e-9
        assert waited <= at * 2 / 5 + every + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_stream_no_piece_waits_longer_than_a_thirtieth_of_a_second_or_half_of_the_time_taken(
    seed: int,
) -> None:
    chance = random.Random(seed)
    at, arrivals = 0.0, list[float]()
    for _ in range(800):
        at += chance.choice([0.0, 0.0002, 0.001, 0.002, 0.008, 0.03, 0.3]) * chance.random()
        arrivals.append(at)
    reading = _Reading(arrivals)
    assert sum(reading.sizes) == 800
    for at, waited in zip(arrivals, reading.waited, strict=True):
        assert waited <= 1 / 30 + 1e-9
        assert waited <= (at + waited) / 2 + 1e-9


def test_the_first_pieces_are_not_held_up() -> None:
    reading = _Reading(_steady(0.002, 500))
    assert reading.sizes[:3] == [1] * 3
    assert max(reading.waited[:5]) <= 0.0025


@pytest.mark.parametrize("every", [0.017, 0.02, 0.05, 1.0])
def test_pieces_that_come_slowly_are_read_as_they_come(every: float) -> None:
    reading = _Reading(_steady(every, 50))
    assert reading.sizes == [1] * 50
    assert reading.waited == [0.0] * 50


def test_a_stream_that_slows_down_is_no_longer_held_up() -> None:
    quick = _steady(0.002, 200)
    reading = _Reading([*quick, *(quick[-1] + at for at in _steady(0.1, 20))])
    assert reading.waited[-19:] == [0.0] * 19


# --- on real connections --------------------------------------------------------------------------------------------


class _Stream:
    """A server whose answer goes on as a test says."""

    def __init__(self) -> None:
        self.url = ""
        self.tls: ssl.SSLContext | None = None
        self._writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._writers.put_nowait(writer)

    async def send(self, piece: bytes) -> None:
        if self._writer is None:
            self._writer = await self._writers.get()
        self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await self._writer.drain()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


@pytest.fixture(params=["http", "https"])
async def stream(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[_Stream]:
    stream = _Stream()
    shown = None
    if request.param == "https":
        shown = self_signed(tmp_path)
        stream.tls = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
    server = await asyncio.start_server(stream.serve, "127.0.0.1", 0, ssl=shown)
    stream.url = f"{request.param}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield stream
    stream.close()
    server.close()


@asynccontextmanager
async def _gathering(stream: _Stream, wait: float) -> AsyncIterator[tuple[_Gathering, socket.socket]]:
    """One that has read a first piece and lets the next ones gather for so long."""
    async with aiohttp.ClientSession() as session, session.get(stream.url, ssl=stream.tls or True) as response:
        gathering = _Gathering(response)
        assert gathering._socket is not None, "pieces gather where tests run"
        await stream.send(b"first")
        assert await gathering.read() == b"first"
        gathering._wait = wait
        yield gathering, gathering._socket


def _mark(end: socket.socket) -> int:
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


async def _begun(gathering: _Gathering) -> asyncio.Future[bytes]:
    reading = asyncio.ensure_future(gathering.read())
    await asyncio.sleep(0)
    return reading


async def _has_come(end: socket.socket) -> None:
    """Until bytes wait in the system's buffer, then a turn of the loop for whoever is woken by them."""
    count = array.array("i", [0])
    while not count[0]:
        await asyncio.sleep(0)
        fcntl.ioctl(end.fileno(), termios.FIONREAD, count)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_pieces_wait_in_the_buffer_and_wake_nobody(stream: _Stream) -> None:
    async with _gathering(stream, FOR_EVER) as (gathering, end):
        reading = await _begun(gathering)
        await stream.send(b"second")
        await _has_come(end)
        assert not reading.done()
        gathering._report_from(1)  # as the timer does
        assert (await reading).startswith(b"second")
        assert _mark(end) == 1


async def test_the_timer_ends_the_waiting_of_the_last_pieces(stream: _Stream) -> None:
    async with _gathering(stream, 0.001) as (gathering, end):
        reading = await _begun(gathering)
        await stream.send(b"second")
        assert await reading == b"second"
        assert _mark(end) == 1


async def test_many_bytes_are_read_before_the_timer(stream: _Stream) -> None:
    async with _gathering(stream, FOR_EVER) as (gathering, end):
        reading = await _begun(gathering)
        await stream.send(b"x" * 2 * _MANY)
        assert set(await reading) == set(b"x")
        assert _mark(end) == 1


async def test_a_broken_connection_is_heard_before_the_timer(stream: _Stream) -> None:
    async with _gathering(stream, FOR_EVER) as (gathering, _):
        reading = await _begun(gathering)
        stream.close()
        with pytest.raises(aiohttp.ClientError):
            await reading


async def test_whoever_is_cancelled_while_pieces_gather_leaves_the_connection_reading(stream: _Stream) -> None:
    async with _gathering(stream, FOR_EVER) as (gathering, end):
        reading = await _begun(gathering)
        assert _mark(end) > 1
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert _mark(end) == 1
        await stream.send(b"second")
        gathering._wait = 0.0
        assert await gathering.read() == b"second"


async def test_a_connection_that_was_closed_meanwhile_is_no_error(stream: _Stream) -> None:
    async with _gathering(stream, FOR_EVER) as (gathering, _):
        reading = await _begun(gathering)
        gathering._response.close()
        reading.cancel()
        with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
            await reading


async def _ask_thrice() -> int:
    async with WireServer([Play(ANSWER, pieces=60, pause=0.001)] * 3) as server:
        gateway = OpenAIChatGateway(GatewayConfig("openai", base_url=f"{server.url}/v1", api_key="k"))
        try:
            for _ in range(3):
                pieces: list[Any] = []
                answer = await gateway.respond(ASK, on_delta=pieces.append)
                assert answer.message.text == WORDS
                assert "".join(piece.text for piece in pieces) == WORDS
        finally:
            await gateway.close()
        return server.connections


async def test_the_connection_of_a_gathered_stream_serves_the_next_answer() -> None:
    assert await _ask_thrice() == 1


async def test_where_a_lowered_mark_wakes_nobody_pieces_are_read_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_GATHERS", False)
    assert await _ask_thrice() == 1


@pytest.mark.parametrize(
    ("platform", "release", "wakes"),
    [
        ("linux", "6.8.0-45-generic", True),
        ("linux", "4.18.0-553.el8_10.x86_64", True),
        ("linux", "4.17.19", False),
        ("linux", "4.4.0", False),  # what gVisor calls itself
        ("linux", "", False),
        ("darwin", "23.6.0", False),
    ],
)
def test_pieces_gather_only_where_a_lowered_mark_wakes_the_reader(platform: str, release: str, wakes: bool) -> None:
    assert _wakes_when_lowered(platform, release) is wakes
