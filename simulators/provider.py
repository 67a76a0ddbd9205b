"""A provider on loopback that plays answers in the real wire formats, and misbehaves on purpose.

For tests and benchmarks of whatever speaks to a model over HTTP: Foliot's gateways, a vendor's SDK, your own client.
The format follows from the path that is asked. It is a plain socket server, because a real HTTP library would refuse
to send most of the faults.

    async with WireServer([ModelResponse(...), Play(fault=Fault("status", status=429))]) as server:
        gateway = OpenAIChatGateway(GatewayConfig("openai", base_url=f"{server.url}/v1"))
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from foliot.kernel.messages import ModelResponse
from simulators.provider_formats import WireFormat, format_of

FaultKind: TypeAlias = Literal[
    "status",  # a refusal: `status`, `headers`, `body`
    "slow_status",  # a refusal whose body never comes
    "garbage",  # 200 with bytes that are no JSON
    "truncated",  # half of a body, honestly announced; a stream that ends after `after` frames
    "lost",  # the connection ends before what was announced
    "reset",  # the connection is reset, before the answer or after `after` frames
    "hang",  # nothing at all, until the client gives up
    "stall",  # `after` frames (or half a body), then nothing
    "linger",  # a whole stream whose connection is never ended
    "drip",  # one byte at a time, for ever
    "html",  # 200 with a web page
    "wrong_type",  # 200 with a picture
    "huge",  # `size` bytes of JSON
    "empty",  # 200 with no body
    "error_event",  # `after` frames, then the provider's error event
    "error_body",  # 200 with an error instead of an answer
    "not_http",  # bytes that are no HTTP
]

_KEPT = 64


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b'{"error": {"message": "on purpose", "type": "server_error"}}'
    after: int = 2
    size: int = 50_000_000


@dataclass(frozen=True, slots=True)
class Play:
    """One answer. `pieces` is into how many frames its text is cut when the client asked for a stream.

    `pause` is the time between two frames; without one, the network may deliver many of them together. `kind` is what
    a stream is called in the place of its own type, as proxies do.
    """

    response: ModelResponse | None = None
    pieces: int = 4
    pause: float = 0.0
    fault: Fault | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """The request of a client."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])


Script: TypeAlias = Sequence[Play | ModelResponse] | Callable[[WireRequest], Play | ModelResponse]


class WireServer:
    """Plays the script in order, the last answer again and again; or asks a function for each answer.

    `requests` is what was asked, `connections` how often a client connected; `dropped` is set when a client goes away
    while it is being kept waiting.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._plays = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._encoded: dict[tuple[int, int, str, bool], tuple[ModelResponse | None, list[bytes]]] = {}
        self.requests: list[WireRequest] = []
        self.connections = 0
        self.dropped = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> WireServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**26)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                if not await self._answer(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.dropped.set()
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _next(self, request: WireRequest) -> Play:
        if callable(self._script):
            play = self._script(request)
        else:
            play = self._script[min(self._plays, len(self._script) - 1)]
        self._plays += 1
        return play if isinstance(play, Play) else Play(play)

    async def _answer(self, request: WireRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Play one answer; False when the connection is not to be used again."""
        wire = format_of(request.path)
        if wire is None:
            body = b'{"error": {"message": "no such path", "type": "not_found_error"}}'
            await _send(writer, body, status=404)
            return True
        play = self._next(request)
        stream = b'"stream":true' in request.body.replace(b" ", b"") or "streamGenerate" in request.path
        if play.fault is not None:
            return await _Trouble(self, play, wire, stream, reader, writer).play(play.fault)
        frames = self._frames(play, wire, stream)
        if stream:
            await _send_stream(writer, wire, frames, pause=play.pause, kind=play.kind)
        else:
            await _send(writer, frames[0])
        return True

    def _frames(self, play: Play, wire: WireFormat, stream: bool) -> list[bytes]:
        # Kept, so that in a benchmark the server's own work does not drown the client's. The response is kept too: an
        # id alone could be that of a later one.
        key = (id(play.response), play.pieces, wire.name, stream)
        kept, frames = self._encoded.get(key, (None, []))
        if kept is None or kept is not play.response:
            if len(self._encoded) >= _KEPT:
                self._encoded.clear()
            frames = encoded(play, wire, stream)
            self._encoded[key] = (play.response, frames)
        return frames


def encoded(play: Play, wire: WireFormat, stream: bool) -> list[bytes]:
    """The frames of the answer, or its one body."""
    assert play.response is not None, "a play without a fault needs a response"
    return wire.frames(play.response, play.pieces) if stream else [msgspec.json.encode(wire.body(play.response))]


async def _read(reader: asyncio.StreamReader) -> WireRequest | None:
    """One request; None when the client closed the connection between two."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return WireRequest(first.split(" ")[1], headers, body)


def _head(status: int, kind: str, length: int | None, extra: Mapping[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Played", f"Content-Type: {kind}"]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    lines += [f"{name}: {value}" for name, value in (extra or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _send(
    writer: asyncio.StreamWriter,
    body: bytes,
    *,
    status: int = 200,
    kind: str = "application/json",
    headers: Mapping[str, str] | None = None,
    length: int | None = None,
) -> None:
    writer.write(_head(status, kind, len(body) if length is None else length, headers) + body)
    await writer.drain()


async def _send_stream(
    writer: asyncio.StreamWriter,
    wire: WireFormat,
    frames: list[bytes],
    *,
    end: bool = True,
    pause: float = 0.0,
    kind: str = "",
) -> None:
    writer.write(_head(200, kind or wire.stream_type, None))
    for frame in frames:
        writer.write(_chunk(frame))
        await writer.drain()
        await asyncio.sleep(pause)  # each frame its own write, as a model's tokens are
    if end:
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class _Trouble:
    """Plays one fault. Each method returns whether the connection may be used again."""

    def __init__(
        self,
        server: WireServer,
        play: Play,
        wire: WireFormat,
        stream: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._server = server
        self._wire = wire
        self._stream = stream
        self._reader = reader
        self._writer = writer
        self._frames = encoded(play, wire, stream) if play.response is not None else [b"{}"]

    async def play(self, fault: Fault) -> bool:
        return await getattr(self, f"_{fault.kind}")(fault)

    async def _status(self, fault: Fault) -> bool:
        await _send(self._writer, fault.body, status=fault.status, headers=fault.headers)
        return True

    async def _slow_status(self, fault: Fault) -> bool:
        self._writer.write(_head(fault.status, "application/json", 1000, fault.headers))
        return await self._wait_for_client()

    async def _garbage(self, fault: Fault) -> bool:
        body = b"data: \xff\xfe not json\n\n" if self._stream else b"\xff\xfe not json"
        await _send(self._writer, body, kind=self._wire.stream_type if self._stream else "application/json")
        return True

    async def _truncated(self, fault: Fault) -> bool:
        if self._stream:
            await _send_stream(self._writer, self._wire, self._frames[: fault.after])
        else:
            await _send(self._writer, self._half())
        return True

    async def _lost(self, fault: Fault) -> bool:
        await self._begin(fault)
        return False

    async def _reset(self, fault: Fault) -> bool:
        if fault.after:
            await self._begin(fault)
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        return False

    async def _hang(self, fault: Fault) -> bool:
        return await self._wait_for_client()

    async def _stall(self, fault: Fault) -> bool:
        await self._begin(fault)
        return await self._wait_for_client()

    async def _linger(self, fault: Fault) -> bool:
        await _send_stream(self._writer, self._wire, self._frames, end=False)
        return await self._wait_for_client()

    async def _drip(self, fault: Fault) -> bool:
        whole = b"".join(self._frames)
        self._writer.write(_head(200, self._wire.stream_type if self._stream else "application/json", None))
        while True:
            for place in range(len(whole) // 2):
                self._writer.write(_chunk(whole[place : place + 1]))
                await self._writer.drain()
                await asyncio.sleep(0.002)
            whole = b": still here\n" if self._stream else b"          "

    async def _html(self, fault: Fault) -> bool:
        page = b"<!doctype html><html><head><title>Sign in</title></head><body>Please sign in</body></html>"
        await _send(self._writer, page, kind="text/html; charset=utf-8")
        return True

    async def _wrong_type(self, fault: Fault) -> bool:
        await _send(self._writer, b"\x89PNG", kind="image/png")
        return True

    async def _huge(self, fault: Fault) -> bool:
        block = b"a" * 65536
        kind = self._wire.stream_type if self._stream else "application/json"
        self._writer.write(_head(200, kind, None) + _chunk(b'data: {"id": "' if self._stream else b'{"id": "'))
        for _ in range(fault.size // len(block)):
            self._writer.write(_chunk(block))
            await self._writer.drain()
        self._writer.write(_chunk(b'"}') + b"0\r\n\r\n")
        await self._writer.drain()
        return True

    async def _empty(self, fault: Fault) -> bool:
        await _send(self._writer, b"", kind=self._wire.stream_type if self._stream else "application/json")
        return True

    async def _error_event(self, fault: Fault) -> bool:
        frames = [*self._frames[: fault.after], self._wire.error("the engine broke")]
        await _send_stream(self._writer, self._wire, frames)
        return True

    async def _error_body(self, fault: Fault) -> bool:
        await _send(self._writer, fault.body)
        return True

    async def _not_http(self, fault: Fault) -> bool:
        self._writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await self._writer.drain()
        return False

    def _half(self) -> bytes:
        body = self._frames[0]
        return body[: len(body) // 2]

    async def _begin(self, fault: Fault) -> None:
        """Send a part of what is announced."""
        if self._stream:
            await _send_stream(self._writer, self._wire, self._frames[: fault.after], end=False)
        else:
            await _send(self._writer, self._half(), length=len(self._frames[0]))

    async def _wait_for_client(self) -> bool:
        with suppress(ConnectionError):
            await self._reader.read(1)
        self._server.dropped.set()
        return False
