"""Server-sent events: a stream of frames that a client can take up again where it broke off.

The id of a frame is a cursor: whoever reconnects with it as `Last-Event-ID` gets what comes behind it, each once. A
client that reads slowly holds up only its own stream: nothing is gathered for it here, because what it will read next
is in the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foliot.common.cancellation import stop_tasks
from foliot.errors import FoliotError, Unavailable
from foliot.server.errors import TooMany
from foliot.server.http.problems import problem_of

HEARTBEAT: Final = 15.0
KEEP_ALIVE: Final = b": keep-alive\n\n"
# Browsers come back by themselves, after so many milliseconds.
CLOSING: Final = b": this server stops; go on at the next one\nretry: 1000\n\n"
_AGAIN: Final = "ask again; with the same idempotency key the work under way is gone on with"
# Who reads nothing does not hear that the server stops.
FAREWELL_WITHIN: Final = 2.0
_encode: Final = msgspec.json.Encoder().encode


def frame(event: str, data: Any, cursor: str | int | None = None) -> bytes:
    """One event. A cursor has no line break in it."""
    head = b"" if cursor is None else b"id: %s\n" % str(cursor).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (head, event.encode(), _encode(data))


class Slots:
    """How many streams each caller has open here. More than `most` are refused; 0 is any number."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, caller: str) -> Generator[None]:
        """One stream, for as long as the block takes. Raises `TooMany`."""
        if self.most and self._open[caller] >= self.most:
            raise TooMany(
                f"{self.most} streams are open already",
                hint="close one, or raise max_streams on the server",
                retry_after=5,
            )
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    @property
    def open(self) -> int:
        return self._open.total()


class EventStream(Response):
    """Sends frames until they end, the client leaves, or the server stops; with signs of life in between.

    A `FoliotError` on the way is told as an event `error` with the problem as its data, and ends the stream. With
    `slots` it is one of those that the caller may have; one too many is refused with `TooMany` instead of begun. With
    `slot` its place is held already, and is let go when it ends. `still` is asked again and again while it lasts, and
    raises when the caller may no longer have it; `told` is how that is said. With `whole` a stream that the server does
    not send to its end is a failure too: whoever reads must not take half of it for all.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        *,
        closing: asyncio.Event,
        heartbeat: float = HEARTBEAT,
        slots: Slots | None = None,
        caller: str = "",
        slot: AbstractContextManager[Any] | None = None,
        still: Callable[[Scope], Awaitable[None]] | None = None,
        told: Callable[[FoliotError], bytes] | None = None,
        whole: bool = False,
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no", "Cache-Control": "no-cache, no-transform"})
        del self.headers["content-length"]
        self._frames = frames
        self._closing = closing
        self._heartbeat = heartbeat
        self._slot = slot or (nullcontext() if slots is None else slots.hold(caller))
        self._still = still
        self._told = told or _told
        self._whole = whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._run(scope, receive, _Line(send))

    async def _run(self, scope: Scope, receive: Receive, line: _Line) -> None:
        await line.put(KEEP_ALIVE)  # it is on
        work = asyncio.create_task(self._write(line))
        ends = [asyncio.create_task(_left(receive)), asyncio.create_task(self._closing.wait())]
        farewell = self._told(Unavailable("this server stops before the end", hint=_AGAIN)) if self._whole else CLOSING
        try:
            await self._beat({work, *ends}, line, scope)
        except FoliotError as error:
            farewell = self._told(error)
        finally:
            await stop_tasks(work, *ends)
        if work.done() and not work.cancelled() and (error := work.exception()) is not None:
            raise error
        if not ends[0].done() or ends[0].cancelled():
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_WITHIN):
                    if work.cancelled():
                        await line.put(farewell)
                    await line.end()

    async def _beat(self, ends: set[asyncio.Task[Any]], line: _Line, scope: Scope) -> None:
        """Sends signs of life until one of these has ended. Only they need a task, because they may have to wait.

        Looking twice as often as silence may last means that it never lasts longer. Raises what `still` raises.
        """
        beat: asyncio.Task[None] | None = None
        try:
            while True:
                done, _ = await asyncio.wait(ends, timeout=self._heartbeat / 2, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return
                if line.is_quiet() and (beat is None or beat.done()):
                    beat = asyncio.create_task(line.put(KEEP_ALIVE))
                if self._still is not None:
                    with suppress(Unavailable):  # nobody is sent away because the store is away
                        await self._still(scope)
        finally:
            await stop_tasks(beat)

    async def _write(self, line: _Line) -> None:
        async with aclosing(self._frames) as frames:
            try:
                async for chunk in frames:
                    await line.put(chunk)
            except FoliotError as error:
                await line.put(self._told(error))


class _Line:
    """The way out, for one at a time. A client that does not read lets whoever puts wait."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        self._used = False

    async def put(self, data: bytes) -> None:
        async with self._lock:
            self._used = True
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        async with self._lock:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def is_quiet(self) -> bool:
        """Whether nothing was sent, or is being sent, since this was asked last."""
        used, self._used = self._used, self._lock.locked()
        return not used


def _told(error: FoliotError) -> bytes:
    return b"event: error\ndata: %s\n\n" % bytes(problem_of(error).body)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
