"""A small internet on the loopback: names that only the broker resolves, and servers that keep what they heard."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from foliot.sandbox.egress.authority import SessionAuthority
from foliot.sandbox.egress.broker import Broker
from foliot.sandbox.egress.rules import EgressRecord, EgressRule
from foliot.tools.outbound.guard import Guard, Outbound

Answer = Callable[[bytes, bytes], bytes]


def page(text: bytes = b"hello", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(text), b"Connection: close", *headers, b"", text]
    return b"\r\n".join(lines)


class World:
    """`heard` are the heads of all requests that reached a server; `records` what the broker said of them."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[bytes] = []
        self.bodies: list[bytes] = []
        self.records: list[EgressRecord] = []
        self.asked: list[str] = []
        self.revealed: list[str] = []
        self.values = {"token": "real-" + "5ecret" * 3, "other": "real-other-value"}
        self.authority = SessionAuthority()
        self.authorities = folder / "authorities.pem"
        self.authorities.write_bytes(self.authority.certificate)
        self.guard = Guard(Outbound(allow_hosts=["*.test"]), lookup=self._lookup)
        self._servers: list[asyncio.Server] = []
        self._recorded = asyncio.Event()

    async def _lookup(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host == "nowhere.test":
            raise OSError("no such name")
        return ["169.254.169.254"] if host == "metadata.test" else ["127.0.0.1"]

    async def _reveal(self, name: str) -> str:
        self.revealed.append(name)
        return self.values[name]

    def _record(self, record: EgressRecord) -> None:
        self.records.append(record)
        self._recorded.set()

    async def until_recorded(self, count: int) -> None:
        """Wait until the broker has recorded so many exchanges: a client may be done with one before the broker is."""
        while len(self.records) < count:
            self._recorded.clear()
            await asyncio.wait_for(self._recorded.wait(), 60)

    async def serve(self, answer: Answer | None = None, *, tls: str = "", host: str = "127.0.0.1") -> int:
        """Start a server, with TLS as the host `tls`; its port."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.heard.append(head)
                body = b""
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        body = await reader.readexactly(int(line.split(b":")[1]))
                if b"transfer-encoding: chunked" in head.lower():
                    body = await reader.readuntil(b"0\r\n\r\n")
                self.bodies.append(body)
                writer.write(answer(head, body) if answer else page())
                await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        context = self.authority.context(tls) if tls else None
        if context is not None:
            context.sni_callback = None  # a server that answers for any name, as most do
        server = await asyncio.start_server(connected, host, 0, ssl=context, limit=1 << 26)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    def broker(self, *rules: EgressRule, **more: Any) -> Broker:
        return Broker(
            rules,
            resolve=self.guard.addresses,
            record=more.pop("record", self._record),
            reveal=more.pop("reveal", self._reveal),
            authorities=str(self.authorities),
            **more,
        )

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        return [(record.method, record.verdict, record.reason) for record in self.records]

    async def close(self) -> None:
        for server in self._servers:
            server.close()


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    try:
        yield world
    finally:
        await world.close()


async def say(broker: Broker, data: bytes, *, more: bool = False) -> bytes:
    """Send bytes to the broker, and nothing else than these; all that it answered until it closed."""
    reader, writer = await asyncio.open_unix_connection(broker.socket_path)
    writer.write(data)
    if not more:
        writer.write_eof()
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(65536):
            answer += piece
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


async def over_tls(broker: Broker, place: str, data: bytes, *, ask: str, trust: bytes) -> bytes:
    """CONNECT to a place, open TLS for the name `ask`, send bytes; all that was answered. Raises `ssl.SSLError`."""
    context = ssl.create_default_context(cadata=trust.decode())
    reader, writer = await asyncio.open_unix_connection(broker.socket_path)
    try:
        writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        first = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in first:
            return first + await reader.read()
        await writer.start_tls(context, server_hostname=ask)
        writer.write(data)
        answer = b""
        while piece := await reader.read(65536):
            answer += piece
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def bundle(broker: Broker) -> bytes:
    """The certificates that the fence trusts."""
    (source,) = (mount.source for mount in broker.mounts if mount.target.endswith("ca.pem"))
    return Path(source).read_bytes()
