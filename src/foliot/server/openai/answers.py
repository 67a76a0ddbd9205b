"""How answers leave: whole, or in pieces as they come. And what becomes of the work when the client hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, aclosing
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.cancellation import stop_tasks
from foliot.errors import FoliotError, Unavailable
from foliot.server.auth.identity import Caller
from foliot.server.openai.errors import BadRequest, error_document
from foliot.server.runs.background import StartedTurn
from foliot.server.streams.pieces import Piece
from foliot.server.streams.sse import frame
from foliot.server.streams.streams import Streams

log = logging.getLogger(__name__)

HANG_UP_HEADER: Final = "x-foliot-on-disconnect"
DONE: Final = b"data: [DONE]\n\n"
HUNG_UP: Final = "the client hung up"
OnHangUp: TypeAlias = Literal["cancel", "continue"]
_encode: Final = msgspec.json.Encoder().encode


class HungUp(FoliotError):
    """The client has disconnected and does not read the answer."""

    code, http = "hung_up", 499


def on_hang_up(request: Request, *, otherwise: OnHangUp) -> OnHangUp:
    """Returns what the client wants for its work when it disconnects. Raises `BadRequest`."""
    word = request.headers.get(HANG_UP_HEADER, otherwise).strip().lower()
    if word not in ("cancel", "continue"):
        raise BadRequest(f"{HANG_UP_HEADER} is cancel or continue", param=HANG_UP_HEADER)
    return word


async def collect(
    request: Request,
    engagement: StartedTurn,
    take: Callable[[Piece], Any],
    *,
    hang_up: OnHangUp,
    closing: asyncio.Event,
) -> None:
    """Hear the work to its end, while client and server stay. Raises `HungUp`, `Unavailable`, what the work raises."""

    async def listen() -> None:
        async for piece in engagement.pieces():
            take(piece)

    work, left = asyncio.create_task(listen()), asyncio.create_task(_left(request))
    stopping = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait({work, left, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        elif stopping.done():
            hint = f"run {engagement.id} is gone on with elsewhere, or by asking again with the same idempotency key"
            raise Unavailable("this server is stopping", hint=hint)
        else:
            if hang_up == "cancel":
                await engagement.cancel(HUNG_UP)
            raise HungUp(HUNG_UP)
    finally:
        await stop_tasks(work, left, stopping)


class AnswerStream:
    """One answer in pieces. `told` gives what is sent for a piece; `end` comes after the last one, `failed` instead."""

    def __init__(
        self,
        engagement: StartedTurn,
        told: Callable[[Piece], Iterable[bytes]],
        *,
        begin: Iterable[bytes] = (),
        end: bytes = b"",
        failed: Callable[[FoliotError], bytes],
        hang_up: OnHangUp,
        streams: Streams,
        closing: asyncio.Event,
    ) -> None:
        self._engagement = engagement
        self._told = told
        self._begin = begin
        self._end = end
        self._failed = failed
        self._hang_up = hang_up
        self._streams = streams
        self._closing = closing
        self._cancelling: set[asyncio.Task[None]] = set()

    def response(self, caller: Caller, slot: AbstractContextManager[Any], headers: dict[str, str]) -> Response:
        """Sends it to the caller, in the place among their streams that `slot` holds."""
        response = self._streams.respond(caller, self._frames(), slot=slot, told=self._failed)
        response.headers.update(headers)
        return response

    async def _frames(self) -> AsyncGenerator[bytes]:
        over = False
        pieces = cast("AsyncGenerator[Piece]", self._engagement.pieces())
        try:
            async with aclosing(
                frames_of(pieces, self._told, begin=self._begin, end=self._end, failed=self._failed)
            ) as frames:
                async for chunk in frames:
                    yield chunk
            over = True
        finally:
            # A server that stops is not a client that leaves: somebody else goes on with the run.
            if not over and self._hang_up == "cancel" and not self._closing.is_set():
                self._leave()

    def _leave(self) -> None:
        """Cancel the work in a task of its own: the one that is here is being cancelled itself."""

        async def cancel() -> None:
            with contextlib.suppress(FoliotError):
                await self._engagement.cancel(HUNG_UP)

        task = asyncio.create_task(cancel())
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)


async def frames_of(
    pieces: AsyncGenerator[Piece],
    told: Callable[[Piece], Iterable[bytes]],
    *,
    begin: Iterable[bytes] = (),
    end: bytes = b"",
    failed: Callable[[FoliotError], bytes],
) -> AsyncGenerator[bytes]:
    """Yields the frames of these pieces. An error on the way is sent in these clients' format, as the last frame."""
    try:
        for chunk in begin:
            yield chunk
        async with aclosing(pieces):
            async for piece in pieces:
                for chunk in told(piece):
                    yield chunk
        if end:
            yield end
    except FoliotError as error:
        yield failed(error)


def error_frame(error: FoliotError) -> bytes:
    """An error in the midst of a stream of chunks."""
    return data_frame({"error": error_document(error)})


def error_event(error: FoliotError) -> bytes:
    """An error in the midst of a stream of events, in both forms that clients know: flat, and with a member `error`."""
    told = error_document(error)
    # Whoever goes on behind its number hears too much, and not too little.
    return frame("error", {**told, "type": "error", "sequence_number": 0, "error": told})


def data_frame(document: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % _encode(document)


def event_frame(document: dict[str, Any]) -> bytes:
    return frame(document["type"], document)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
