"""What the streams of one server share: what they read, and how many each caller may have open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Scope

from foliot.server.errors import Unauthenticated
from foliot.server.streams.feed import Feed
from foliot.server.streams.signs import Signs
from foliot.server.streams.sse import EventStream, Slots
from foliot.server.streams.task_feed import TaskFeed
from foliot.store.base import Database

if TYPE_CHECKING:
    from foliot.server.access.identity import Caller
    from foliot.server.context import Authenticator


class Streams:
    """Made with the server. What follows the store does so only while somebody reads."""

    def __init__(self, database: Database, closing: asyncio.Event, auth: Authenticator, *, most: int) -> None:
        self.feed = Feed(database)
        self.signs = Signs(database)
        self.tasks = TaskFeed(database)
        self.slots = Slots(most)
        self._closing = closing
        self._auth = auth

    def respond(self, caller: Caller, frames: AsyncGenerator[bytes]) -> EventStream:
        """These frames as the answer to a request. It is one of the streams that the caller may have, and lasts no
        longer than what lets the caller in."""
        still = partial(self.check, caller)
        return EventStream(frames, closing=self._closing, slots=self.slots, caller=caller.name, still=still)

    async def check(self, caller: Caller, scope: Scope) -> None:
        """Raises `Unauthenticated` when the token or session is no longer good, or stands for other rights by now."""
        if (await self._auth.identify(scope)).grants != caller.grants:
            raise Unauthenticated("your rights have changed", hint="connect again")
