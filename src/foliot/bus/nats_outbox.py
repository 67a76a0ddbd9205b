"""Tickets on their way to JetStream: kept until the server has them, many at a time, and never in anybody's way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from foliot.bus.base import Ticket
from foliot.stopping import stop_tasks

log = logging.getLogger(__name__)

MOST: Final = 10_000
_WINDOW: Final = 256
_BACKOFF: Final = (0.05, 2.0)


class Outbox:
    """`send` brings tickets to the server and returns those that arrived; it does not raise.

    When too many wait the oldest are dropped: a ticket is permission to look, and the others are permission enough.
    """

    def __init__(self, send: Callable[[Sequence[Ticket]], Awaitable[Iterable[Ticket]]], *, most: int = MOST) -> None:
        self._send = send
        self._most = most
        self._waiting: dict[str, Ticket] = {}
        self._sender: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._full = False

    def add(self, tickets: Sequence[Ticket]) -> None:
        """Never waits."""
        for ticket in tickets:
            if len(self._waiting) >= self._most:
                del self._waiting[next(iter(self._waiting))]
                if not self._full:
                    log.warning("more than %d tickets wait for NATS: workers find the work by themselves", self._most)
                self._full = True
            self._waiting[ticket.id] = ticket
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.create_task(self._run())

    def hurry(self) -> None:
        """The server is there again: do not wait any longer before the next try."""
        self._hurry.set()

    async def close(self, *, patience: float) -> int:
        """Let the rest go out, for so many seconds; the number of those that did not."""
        if self._sender is not None and not self._sender.done():
            self._hurry.set()
            await asyncio.wait((self._sender,), timeout=patience)
            await stop_tasks(self._sender, again=0.5)
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    async def _run(self) -> None:
        first, longest = _BACKOFF
        wait = first
        while self._waiting:
            self._hurry.clear()
            arrived = list(await self._send(list(islice(self._waiting.values(), _WINDOW))))
            for ticket in arrived:
                if self._waiting.get(ticket.id) is ticket:  # not one that was published again meanwhile
                    del self._waiting[ticket.id]
            if arrived:
                wait, self._full = first, False
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()
            wait = min(wait * 2, longest)
