"""A TCP proxy on loopback that breaks a network in the ways that networks break, at the word of a test.

    with Proxy(postgres_url) as proxy:
        database = await open_database(proxy.url)   # the same URL, through the proxy
        proxy.silence()                             # nothing arrives any more, and nobody is told

A connection that has lost bytes never passes again, as behind a router that forgot it: not even its end is told to
the other side, so a server goes on serving a client that is gone. `pass_through` therefore heals only new connections.

The proxy lives on a thread of its own: it goes on while the event loop of a test is blocked, and is controlled from any
thread. Its methods return when the new mode holds.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from foliot.dev.service import HOST, ServiceError

Direction: TypeAlias = Literal["requests", "answers"]

CHUNK: Final = 65_536
# As PostgreSQL's protocol ends a statement: READ COMMITTED is not meant.
COMMIT: Final = b"COMMIT\0"
_BOTH: Final[frozenset[Direction]] = frozenset(("requests", "answers"))
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: closing sends a reset and no FIN


@dataclass(frozen=True, slots=True)
class _Mode:
    refused: bool = False
    delay: float = 0.0
    swallowed: frozenset[Direction] = frozenset()
    marker: bytes = b""
    silently: bool = False


@dataclass(eq=False, slots=True)
class _Link:
    """One client's connection and the one to the server behind it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    lost: set[Direction] = field(default_factory=set[Direction])
    cutting: bool = False
    tail: bytes = b""

    def close(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.close()

    def abort(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()


class Proxy:
    """Stands before the server that `url` names (`postgresql://`, `nats://`, `http://`). A context manager."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        ports = {"postgresql": 5432, "postgres": 5432, "nats": 4222, "http": 80}
        port = parts.port or ports.get(parts.scheme)
        if port is None:
            raise ServiceError(f"a proxy cannot stand before a {parts.scheme!r} address without a port")
        self._target = (parts.hostname or HOST, port)
        self._parts = parts
        self._mode = _Mode()
        self._links: set[_Link] = set()
        self._swallowed = 0
        self._cuts = 0
        self._accepted = 0
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="foliot-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()

        async def listen() -> None:
            self._server = await asyncio.start_server(self._serve, HOST, 0)
            self.port = self._server.sockets[0].getsockname()[1]

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            if self._server is not None:
                self._server.close()
            await asyncio.sleep(0.01)  # whoever was accepted at this moment is a link in a later turn of the loop
            for link in list(self._links):
                link.abort()
            pumps = asyncio.all_tasks() - {asyncio.current_task()}
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await asyncio.sleep(0.01)  # and sockets are closed in one

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        """The URL that the proxy was made with, with its own address in place of the server's."""
        user, at, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}{at}{HOST}:{self.port}"))

    @property
    def accepted(self) -> int:
        """How many connections were made to the proxy so far."""
        return self._accepted

    # --- modes -----------------------------------------------------------------------------------------------------

    def pass_through(self) -> None:
        """Pass everything on. Connections that have lost bytes stay as they are."""
        self._change(_Mode())

    def drop(self) -> None:
        """Reset every connection, and each new one as soon as it is made."""
        self._change(_Mode(refused=True))

    def reset(self) -> None:
        """Reset every connection that is open, and leave the mode as it is."""
        self._change(self._mode, reset=True)

    def delay(self, seconds: float) -> None:
        """Pass each piece on after this long."""
        self._change(_Mode(delay=seconds))

    def silence(self) -> None:
        """Accept connections and bytes, and pass nothing on, in neither direction; also where one is open already."""
        self._change(_Mode(swallowed=_BOTH))

    def swallow(self, direction: Direction) -> None:
        """Lose what goes in one direction: `requests` to the server, or its `answers`."""
        self._change(_Mode(swallowed=frozenset((direction,))))

    def cut_after(self, marker: bytes = COMMIT, *, silently: bool = False) -> None:
        """Pass the next request that holds `marker`, and when its answer comes cut the connection instead.

        The server has then done what was asked, and the client cannot know. With `silently` the connection is not
        reset: the answer, and all that follows, is swallowed. Once; afterwards everything passes.
        """
        self._change(_Mode(marker=marker, silently=silently))

    # --- what a test waits for -------------------------------------------------------------------------------------

    async def swallowed(self, *, timeout: float = 30.0) -> None:
        """Return when at least one byte was swallowed since the mode was set. Raises `TimeoutError`."""
        await self._until(lambda: self._swallowed > 0, timeout)

    async def cut(self, *, timeout: float = 30.0) -> None:
        """Return when `cut_after` has cut a connection. Raises `TimeoutError`."""
        await self._until(lambda: self._cuts > 0, timeout)

    async def reconnected(self, *, timeout: float = 30.0) -> None:
        """Return when a connection was made since the mode was set. Raises `TimeoutError`."""
        before = self._accepted_before
        await self._until(lambda: self._accepted > before, timeout)

    _accepted_before = 0

    async def _until(self, holds: Callable[[], bool], timeout: float) -> None:
        def wait() -> bool:
            with self._news:
                return self._news.wait_for(holds, timeout)

        if not await asyncio.to_thread(wait):
            raise TimeoutError("the proxy did not see what the test waits for")

    # --- on the thread of the proxy --------------------------------------------------------------------------------

    def _change(self, mode: _Mode, *, reset: bool = False) -> None:
        async def change() -> None:
            self._mode = mode
            self._swallowed = self._cuts = 0
            self._accepted_before = self._accepted
            for link in list(self._links):
                if mode.refused or reset:
                    link.abort()
                # What is lost is lost from now on, although no byte may come before the mode changes again.
                link.lost |= mode.swallowed

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(10)

    def _tell(self, *, swallowed: int = 0, cuts: int = 0, accepted: int = 0) -> None:
        with self._news:
            self._swallowed += swallowed
            self._cuts += cuts
            self._accepted += accepted
            self._news.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer, lost=set(self._mode.swallowed))
        self._links.add(link)
        self._tell(accepted=1)
        try:
            if self._mode.refused:
                return link.abort()
            try:
                from_server, link.server = await asyncio.open_connection(*self._target)
            except OSError:
                return link.abort()  # the server is away
            if self._mode.refused:
                return link.abort()
            requests = asyncio.create_task(self._pump(link, reader, link.server, "requests"))
            answers = asyncio.create_task(self._pump(link, from_server, link.client, "answers"))
            await asyncio.wait((requests, answers))
            link.close()
        except asyncio.CancelledError:
            link.abort()  # not raised: the server of the streams would report it as an error
        finally:
            self._links.discard(link)

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                if self._mode.delay:
                    await asyncio.sleep(self._mode.delay)
                if direction == "requests":
                    self._look_for_marker(link, data)
                elif link.cutting:
                    self._cut(link, data)
                if direction in link.lost:
                    self._tell(swallowed=len(data))
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass  # one side has ended the connection
        if link.lost:
            # The other side is not told either. It waits for as long as it likes, or until the proxy ends.
            await asyncio.Event().wait()
        with suppress(OSError, RuntimeError):  # it may be closed already
            writer.write_eof()
            await writer.drain()

    def _look_for_marker(self, link: _Link, data: bytes) -> None:
        marker = self._mode.marker
        if marker:
            seen = link.tail + data  # a marker may come in two pieces
            link.tail = seen[-len(marker) + 1 :] if len(marker) > 1 else b""
            if marker in seen:
                link.cutting = True

    def _cut(self, link: _Link, data: bytes) -> None:
        if not self._mode.marker:
            link.cutting = False  # another connection was cut already, or the mode has changed
            return
        silently, self._mode = self._mode.silently, _Mode()
        link.lost |= _BOTH
        self._tell(cuts=1, swallowed=len(data))
        if not silently:
            link.abort()
