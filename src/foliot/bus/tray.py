"""What waits to be taken in this process: tickets, rings, and those that are for later.

A *ring* is a ticket without a name: something is due. Memory is bounded whatever is put in: tickets beyond a number
become rings, rings are a count, and of those for later the nearest are kept. What is forgotten here is found in the
database.

Nothing runs in the background: whoever takes also watches the clock. Safe to use from any thread and event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import suppress
from typing import TypeAlias

from foliot.bus.base import Ticket
from foliot.bus.later import Later

MOST_TICKETS = 4096
Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Tray:
    """First in, first out. `most_rings` bounds how many rings are owed, however many were put in."""

    def __init__(self, *, most_tickets: int = MOST_TICKETS, most_rings: int | None = None) -> None:
        self._most_tickets = most_tickets
        self._most_rings = most_rings
        self._lock = threading.Lock()
        self._tickets: dict[str, Ticket] = {}
        self._rings = 0
        self._later = Later()
        self._waiting: set[Waiter] = set()
        self._closed = False

    def put(self, ticket: Ticket | None, *, delay: float = 0.0) -> None:
        """To be taken after `delay` seconds; None is a ring. A ticket that is waiting already is not there twice."""
        with self._lock:
            if delay <= 0:
                self._add(ticket)
            elif not self._closed:
                self._later.push(ticket, delay=delay)
        self._wake()

    def ring(self, count: int = 1) -> None:
        """Something is due, about so often."""
        with self._lock:
            self._add_rings(count)
        self._wake()

    async def take(self, *, want: int, timeout: float) -> list[Ticket | None]:
        """Up to `want` as soon as there is one; none after `timeout` seconds, or when the tray is closed."""
        deadline = time.monotonic() + timeout
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                now = time.monotonic()
                for ticket in self._later.pop_due(now):
                    self._add(ticket)
                taken = self._pick(want)
                if taken or self._closed or now >= deadline:
                    return taken
                until = min(deadline, self._later.next_at or deadline)
                alarm = loop.create_future()
                self._waiting.add((loop, alarm))
            timer = loop.call_later(until - now, _set, alarm)
            try:
                await alarm
            finally:
                timer.cancel()
                with self._lock:
                    self._waiting.discard((loop, alarm))

    def close(self) -> bool:
        """Nothing is taken any more, and who waits returns. Whether something was still to be taken."""
        with self._lock:
            left = bool(self._tickets or self._rings or self._later)
            self._closed = True
            self._tickets.clear()
            self._later.clear()
            self._rings = 0
        self._wake()
        return left

    @property
    def next_at(self) -> float | None:
        """When the nearest of those for later is due, by `time.monotonic`."""
        with self._lock:
            return self._later.next_at

    def __len__(self) -> int:
        """How many things are remembered, which is bounded."""
        with self._lock:
            return len(self._tickets) + len(self._later) + (self._rings > 0)

    def _add(self, ticket: Ticket | None) -> None:
        if self._closed:
            return
        if ticket is not None and (ticket.id in self._tickets or len(self._tickets) < self._most_tickets):
            self._tickets[ticket.id] = ticket
        else:
            self._add_rings(1)

    def _add_rings(self, count: int) -> None:
        if not self._closed:
            rings = self._rings + count
            self._rings = rings if self._most_rings is None else min(rings, self._most_rings)

    def _pick(self, want: int) -> list[Ticket | None]:
        taken: list[Ticket | None] = [self._tickets.pop(id) for id in list(itertools.islice(self._tickets, want))]
        rings = min(self._rings, want - len(taken))
        self._rings -= rings
        return taken + [None] * rings

    def _wake(self) -> None:
        """Everyone: those for whom nothing is left wait again. A process has few receivers."""
        with self._lock:
            waiting = list(self._waiting)
        for loop, alarm in waiting:
            if _is_running(loop):
                _set(alarm)
            else:
                with suppress(RuntimeError):  # its loop was closed with it
                    loop.call_soon_threadsafe(_set, alarm)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _set(alarm: asyncio.Future[None]) -> None:
    if not alarm.done():
        alarm.set_result(None)


class Handed:
    """A `Delivery` out of a tray: what is not said to be done is not given to anybody by itself, as a process that
    has it dies together with its tray."""

    def __init__(self, ticket: Ticket | None, tray: Tray) -> None:
        self._ticket = ticket
        self._tray = tray
        self.settled = False

    @property
    def ticket(self) -> Ticket | None:
        return self._ticket

    async def done(self) -> None:
        self.settled = True

    async def again(self, *, delay: float) -> None:
        if not self.settled:
            self.settled = True
            self._tray.put(self._ticket, delay=delay)

    async def extend(self) -> None:
        pass
