"""What the streams of one server share: what they read, and how many each caller may have open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from foliot.errors import FoliotError, Unavailable
from foliot.server.errors import Unauthenticated
from foliot.server.streams.feed import Feed
from foliot.server.streams.signs import Signs
from foliot.server.streams.sse import HEARTBEAT, EventStream, Slots
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
        self.heartbeat = HEARTBEAT
        self._closing = closing
        self._auth = auth

    def hold(self, caller: Caller) -> AbstractContextManager[None]:
        """One of the streams that the caller may have, for as long as the block takes. Raises `TooMany`."""
        return self.slots.hold(caller.name)

    def respond(
        self,
        caller: Caller,
        frames: AsyncGenerator[bytes],
        *,
        slot: AbstractContextManager[Any] | None = None,
        told: Callable[[FoliotError], bytes] | None = None,
    ) -> EventStream:
        """These frames as the answer to a request. It is one of the streams that the caller may have, and lasts no
        longer than what lets the caller in. `slot` is what `hold` gave, `told` how clients read an error, also that the
        server stopped before the last frame."""
        return EventStream(
            frames,
            closing=self._closing,
            heartbeat=self.heartbeat,
            slot=slot or self.hold(caller),
            still=partial(self.check, caller),
            told=told,
            whole=told is not None,
        )

    async def last(self, caller: Caller, scope: Scope, ends: set[asyncio.Task[Any]]) -> None:
        """Return when one of these tasks has ended. Raises `Unauthenticated` when the caller may no longer wait."""
        while True:
            timeout = self.heartbeat / 2
            done, _ = await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            with suppress(Unavailable):  # nobody is sent away because the store is away
                await self.check(caller, scope)

    async def check(self, caller: Caller, scope: Scope) -> None:
        """Raises `Unauthenticated` when the token or session is no longer good, or stands for other rights by now."""
        if (await self._auth.identify(scope)).grants != caller.grants:
            raise Unauthenticated("your rights have changed", hint="connect again")
