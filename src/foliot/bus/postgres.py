"""The transport over PostgreSQL alone: a notice to every process that something is due.

A notice carries a count and who sent it, not the tickets: each process that hears it may look, and SKIP LOCKED in the
database sees to it that each run is taken once. Notices travel on a channel of their own, so an idle worker is not
woken by the commits of those that are busy. Tickets for later wait in the process that published them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakSet

from foliot.bus.base import Ticket
from foliot.bus.local import AlarmClock, LocalDelivery, LocalQueue
from foliot.bus.store import MOST_RINGS
from foliot.store.base import Notices

CHANNEL: Final = "foliot_work"


class PostgresTransport:
    """Deliveries have no ticket. Belongs to the event loop of the database, which is not closed with it."""

    def __init__(self, database: Notices, *, clock: Callable[[], float] = time.time, channel: str = CHANNEL) -> None:
        self._database = database
        self._clock = clock
        self._channel = channel
        self._name = secrets.token_hex(6)
        self._tray = LocalQueue(most_rings=MOST_RINGS)
        self._alarms = AlarmClock(self._due)
        self._handed: WeakSet[LocalDelivery] = WeakSet()
        self._stop: Callable[[], None] | None = None
        self._closed = False

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        """Returns before the notice is sent: a lost one only costs time."""
        now = self._clock()
        for ticket in tickets:
            if ticket.due_at > now:
                self._alarms.set(ticket, delay=ticket.due_at - now)
        self._due([ticket for ticket in tickets if ticket.due_at <= now])

    async def receive(self, *, want: int, timeout: float) -> Sequence[LocalDelivery]:
        if self._stop is None and not self._closed:
            self._stop = self._database.listen(self._channel, self._hear)
        handed = [LocalDelivery(ticket, self._tray) for ticket in await self._tray.take(want=want, timeout=timeout)]
        self._handed.update(handed)
        return handed

    async def close(self) -> None:
        """Others hear that there may be something which this process was told of and has not looked for."""
        if self._closed:
            return
        self._closed = True
        if self._stop is not None:
            self._stop()
        self._alarms.close()
        if self._tray.close() or any(not each.settled for each in self._handed):
            self._tell_others(1)

    def _due(self, tickets: Sequence[Ticket]) -> None:
        if tickets and not self._closed:
            self._tray.ring(len(tickets))
            self._tell_others(len(tickets))

    def _tell_others(self, count: int) -> None:
        self._database.post(self._channel, f"{self._name} {count}", urgent=True)

    def _hear(self, payload: str | None) -> None:
        sender, _, count = (payload or "").partition(" ")
        if sender != self._name:  # this process rang itself when it published
            self._tray.ring(min(int(count), MOST_RINGS) if count.isdecimal() else 1)
