"""The queue of tickets within one process: those to be taken now, rings, and those for later.

A *ring* is a ticket without a name: something is due. Memory is bounded whatever is put in: tickets beyond a number
become rings, rings are a count, and of those for later the nearest are kept. What is forgotten here is found in the
database.

Nothing runs in the background: whoever takes also watches the clock. Safe to use from any thread and event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from foliot.bus.base import Ticket

# --- later -----------------------------------------------------------------------------------------------------------

# Tickets that are not due yet, nearest first, in bounded memory.
#
# Of too many, those that are furthest away are forgotten: the database knows them, and a worker looks by itself from
# time to time.

MOST: Final = 10_000


class DelayQueue:
    """A heap by time; None is a ring. The clock is monotonic: a jump of the wall clock moves nothing."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._heap: list[tuple[float, int, Ticket | None]] = []
        self._order = itertools.count()

    def push(self, ticket: Ticket | None, *, delay: float) -> None:
        heapq.heappush(self._heap, (time.monotonic() + delay, next(self._order), ticket))
        if len(self._heap) > 2 * self._most:  # so that keeping the nearest costs little for each
            self._heap = heapq.nsmallest(self._most, self._heap)  # sorted, so it is a heap

    def pop_due(self, now: float) -> list[Ticket | None]:
        """Return the tickets whose time has come, earliest first."""
        due: list[Ticket | None] = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due

    @property
    def next_at(self) -> float | None:
        """The due time of the nearest ticket, by `time.monotonic`."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)


class AlarmClock:
    """Calls `due` with tickets when their time has come. One timer for all of them, on the event loop that sets it."""

    def __init__(self, due: Callable[[Sequence[Ticket]], None]) -> None:
        self._due = due
        self._later = DelayQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def set(self, ticket: Ticket, *, delay: float) -> None:
        if not self._closed:
            self._later.push(ticket, delay=delay)
            self._wind()

    def close(self) -> bool:
        """Rings no more. Whether something was still to come."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        left = bool(self._later)
        self._later.clear()
        return left

    def __len__(self) -> int:
        return len(self._later)

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if (at := self._later.next_at) is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._go_off)

    def _go_off(self) -> None:
        due = [ticket for ticket in self._later.pop_due(time.monotonic()) if ticket is not None]
        self._wind()
        if due:
            self._due(due)


# --- tray ------------------------------------------------------------------------------------------------------------

MOST_TICKETS = 4096
Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class LocalQueue:
    """First in, first out. `most_rings` bounds how many rings are owed, however many were put in."""

    def __init__(self, *, most_tickets: int = MOST_TICKETS, most_rings: int | None = None) -> None:
        self._most_tickets = most_tickets
        self._most_rings = most_rings
        self._lock = threading.Lock()
        self._tickets: dict[str, Ticket] = {}
        self._rings = 0
        self._later = DelayQueue()
        self._waiting: set[Waiter] = set()
        self._closed = False

    def put(self, ticket: Ticket | None, *, delay: float = 0.0) -> None:
        """Adds a ticket to be taken after `delay` seconds; None is a ring.

        A ticket that waits already is not added twice.
        """
        with self._lock:
            if delay <= 0:
                self._add(ticket)
            elif not self._closed:
                self._later.push(ticket, delay=delay)
        self._wake()

    def ring(self, count: int = 1) -> None:
        """Rings: about `count` tickets are due."""
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
        """Closes the tray and wakes waiting callers. Returns whether something was still to be taken."""
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
        """The due time of the nearest delayed ticket, by `time.monotonic`."""
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


class LocalDelivery:
    """A `Delivery` out of a tray: what is not said to be done is not given to anybody by itself, as a process that
    has it dies together with its tray."""

    def __init__(self, ticket: Ticket | None, tray: LocalQueue) -> None:
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


# --- local -----------------------------------------------------------------------------------------------------------

# The transport within one process: a tray, and nothing that can be away.


class LocalTransport:
    """Every ticket goes to one of the receivers, of whatever thread. What waits when the process ends is forgotten."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tray = LocalQueue()

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        now = self._clock()
        for ticket in tickets:
            self._tray.put(ticket, delay=ticket.due_at - now)

    async def receive(self, *, want: int, timeout: float) -> Sequence[LocalDelivery]:
        return [LocalDelivery(ticket, self._tray) for ticket in await self._tray.take(want=want, timeout=timeout)]

    async def close(self) -> None:
        self._tray.close()
