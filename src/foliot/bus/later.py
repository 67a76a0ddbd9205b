"""Tickets that are not due yet, nearest first, in bounded memory.

Of too many, those that are furthest away are forgotten: the database knows them, and a worker looks by itself from
time to time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final

from foliot.bus.base import Ticket

MOST: Final = 10_000


class Later:
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
        """Those whose time has come, in the order of their times."""
        due: list[Ticket | None] = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due

    @property
    def next_at(self) -> float | None:
        """When the nearest is due, by `time.monotonic`."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)


class AlarmClock:
    """Calls `due` with tickets when their time has come. One timer for all of them, on the event loop that sets it."""

    def __init__(self, due: Callable[[Sequence[Ticket]], None]) -> None:
        self._due = due
        self._later = Later()
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
