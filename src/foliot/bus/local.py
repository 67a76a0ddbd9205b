"""The transport within one process: a tray, and nothing that can be away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from foliot.bus.base import Ticket
from foliot.bus.tray import Handed, Tray


class LocalTransport:
    """Every ticket goes to one of the receivers, of whatever thread. What waits when the process ends is forgotten."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tray = Tray()

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        now = self._clock()
        for ticket in tickets:
            self._tray.put(ticket, delay=ticket.due_at - now)

    async def receive(self, *, want: int, timeout: float) -> Sequence[Handed]:
        return [Handed(ticket, self._tray) for ticket in await self._tray.take(want=want, timeout=timeout)]

    async def close(self) -> None:
        self._tray.close()
