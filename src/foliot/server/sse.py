"""Server-sent events: a stream of frames that a client can take up again where it broke off.

The id of a frame is a cursor: whoever reconnects with it as `Last-Event-ID` gets what comes behind it, each once. A
client that reads slowly holds up only its own stream: nothing is gathered for it here, because what it will read next
is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foliot.errors import FoliotError
from foliot.server.problems import problem_of
from foliot.stopping import stop_tasks

HEARTBEAT: Final = 15.0
KEEP_ALIVE: Final = b": keep-alive\n\n"
_encode: Final = msgspec.json.Encoder().encode


def frame(event: str, data: Any, cursor: str | int | None = None) -> bytes:
    """One event. A cursor has no line break in it."""
    head = b"" if cursor is None else b"id: %s\n" % str(cursor).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (head, event.encode(), _encode(data))


class EventStream(Response):
    """Sends frames until they end, the client leaves, or the server stops; with signs of life in between.

    A `FoliotError` on the way is told as an event `error` with the problem as its data, and ends the stream.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes], *, closing: asyncio.Event, heartbeat: float = HEARTBEAT) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no", "Cache-Control": "no-cache, no-transform"})
        del self.headers["content-length"]
        self._frames = frames
        self._closing = closing
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        work = asyncio.create_task(self._write(send))
        ends = [asyncio.create_task(_left(receive)), asyncio.create_task(self._closing.wait())]
        try:
            await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop_tasks(work, *ends)
        if work.done() and not work.cancelled() and (error := work.exception()) is not None:
            raise error
        if not ends[0].done() or ends[0].cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            try:
                async for chunk in beating(frames, self._heartbeat):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except FoliotError as error:
                told = b"event: error\ndata: %s\n\n" % bytes(problem_of(error).body)
                await send({"type": "http.response.body", "body": told, "more_body": True})


async def beating(frames: AsyncIterator[bytes], every: float) -> AsyncIterator[bytes]:
    """The frames, and a comment whenever none came for so long. The first comment comes at once: it is on."""
    yield KEEP_ALIVE
    pending: asyncio.Task[bytes] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(frames))  # pyright: ignore[reportArgumentType]  # a coroutine
            done, _ = await asyncio.wait({pending}, timeout=every)
            if not done:
                yield KEEP_ALIVE
                continue
            try:
                chunk = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            yield chunk
    finally:
        if pending is not None:
            await stop_tasks(pending)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
