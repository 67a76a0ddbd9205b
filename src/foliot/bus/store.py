"""The transport over any database, for processes that share nothing else: every commit is a ring.

Who commits with this transport rings its own process at once. Commits of others are heard through the database, and
because most of them make nothing due, they ring seldom: the first at once, then no more than one in a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from foliot.bus.base import Ticket
from foliot.bus.local import LocalDelivery, LocalQueue
from foliot.common.cancellation import stop_tasks
from foliot.errors import FoliotError
from foliot.store.base import Database

log = logging.getLogger(__name__)

# So many looks into the database are owed at most, however many commits were heard.
MOST_RINGS: Final = 64
_PACE: Final = 0.03
_LOOK_AGAIN: Final = 60.0
_AFTER_ERROR: Final = 1.0


class StoreTransport:
    """Deliveries have no ticket. Belongs to one event loop; the database is not closed with it."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time, pace: float = _PACE) -> None:
        self._database = database
        self._clock = clock
        self._pace = pace
        self._tray = LocalQueue(most_rings=MOST_RINGS)
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        """The commit has told the other processes already; this one need not wait until it hears of it."""
        now = self._clock()
        if due := sum(ticket.due_at <= now for ticket in tickets):
            self._tray.ring(due)
        for ticket in tickets:
            if ticket.due_at > now:
                self._tray.put(None, delay=ticket.due_at - now)

    async def receive(self, *, want: int, timeout: float) -> Sequence[LocalDelivery]:
        if self._watcher is None and not self._closed:
            self._watcher = asyncio.create_task(self._watch())
        return [LocalDelivery(ticket, self._tray) for ticket in await self._tray.take(want=want, timeout=timeout)]

    async def close(self) -> None:
        self._closed = True
        self._tray.close()
        if self._watcher is not None:
            await stop_tasks(self._watcher)

    async def _watch(self) -> None:
        seen: object = None
        while True:
            try:
                # The first mark differs from none: whatever was committed before anyone watched rings too.
                if (mark := self._database.change_mark()) != seen:
                    seen = mark
                    self._tray.ring()
                await asyncio.sleep(self._pace)
                await self._database.wait_for_change(seen, timeout=_LOOK_AGAIN)
            except FoliotError as error:
                # The worker looks by itself meanwhile, and reports what is wrong with the database.
                log.debug("changes of the database cannot be heard: %s", error)
                await asyncio.sleep(_AFTER_ERROR)
