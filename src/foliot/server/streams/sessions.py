"""Sessions as streams: what happens in them, turn after turn, behind the place that a client has read up to.

The id of a frame is the place of its event. Pieces of answers have none: they are for show, and a client that comes
back gets the whole text instead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from foliot.server.context import Services
from foliot.server.streams.sse import frame
from foliot.sessions.chat_events import ChatEvent, ChatPlace, read_place
from foliot.store.sessions.base import Session

CHAT: Final = "chat"
# Behind every fact that a run can have.
_END: Final = 10**15 - 1


async def session_frames(services: Services, session: Session, after: str) -> AsyncGenerator[bytes]:
    """Everything that happens in a session behind a place, or from the turn at work on."""
    if not after and not session.turn:
        # Who is cut off before anything happened must come back to what happens next, and not to what comes later.
        for turn in await services.runtime.inside.sessions.store.turns(session, limit=1):
            yield b"id: %s\nevent: bookmark\ndata: {}\n\n" % str(ChatPlace(turn.run_id, _END)).encode()
    async with aclosing(services.runtime.inside.chat.watch(session.id, identity=None, after=after)) as events:
        async for event in events:
            yield _frame(event)


async def answer_frames(
    services: Services, session: Session, seq: int, after: ChatPlace | None, *, pauses: bool
) -> AsyncGenerator[bytes]:
    """The turn that answers an input, behind a place of it, and then the end of the stream."""
    chat = services.runtime.inside.chat
    async with aclosing(chat.answers(session.id, seq, identity=None, pauses=pauses)) as events:
        async for event in events:
            if not _was_read(after, event):
                yield _frame(event)
    yield frame("end", {"type": "end", "session": session.id})


def _frame(event: ChatEvent) -> bytes:
    return frame(CHAT, event, event.place or None)


def _was_read(after: ChatPlace | None, event: ChatEvent) -> bool:
    if after is None or not event.place:
        return False
    place = read_place(event.place)
    return place.run == after.run and after.covers(place.seq, place.part or 0)
