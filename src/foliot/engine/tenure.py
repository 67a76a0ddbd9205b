"""How long a lease is this process's own, by clocks that nobody else has to agree with.

Two clocks, because each is blind to something. The wall clock is the one that others judge the lease by, and it may be
set. The loop's clock is never set, and stands still while the machine is suspended. What both allow is certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from foliot.engine.base import Clock

# A timer that goes off later than this part of a lease did not find the process awake.
SLEPT: Final = 0.1


class Tenure:
    """One lease: until when it is in force, and an alarm for the moment in which it is over."""

    __slots__ = ("_alarm", "_clock", "_ends", "_lapsed", "_loop", "_seconds", "until")

    def __init__(self, until: float, *, clock: Clock, seconds: float) -> None:
        """`seconds` is how long a lease lasts when it is new: never is more than that believed to be left."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._seconds = seconds
        self._alarm: asyncio.TimerHandle | None = None
        self._lapsed: Callable[[bool], None] | None = None
        self.until = until
        self._ends = self._loop.time() + min(until - clock(), seconds)

    def renewed(self, until: float, ends: float) -> None:
        """The lease lasts until then, by the wall clock and by the loop's, both reckoned from before it was asked for.

        An answer that comes late shortens nothing.
        """
        if ends >= self._ends:
            self.until, self._ends = until, ends

    def in_force(self) -> bool:
        """Whether the lease is certainly this process's own."""
        return self._clock() < self.until and self._loop.time() < self._ends

    def left(self) -> float:
        """For how many seconds something may still be tried under it, whatever was done to the wall clock."""
        return self._ends - self._loop.time()

    def watch(self, lapsed: Callable[[bool], None]) -> None:
        """Call `lapsed` when the lease ends without having been renewed.

        With True when this process was asleep then, and so nobody can have tried to renew it.
        """
        self._lapsed = lapsed
        self._alarm = self._loop.call_at(self._ends, self._ring)

    def close(self) -> None:
        """Watch no longer."""
        self._lapsed = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        """Renewals do not move the alarm, they are far more frequent: it looks when it goes off."""
        late = self._loop.time() - self._ends
        if self._lapsed is None:
            return
        if late < 0:
            self._alarm = self._loop.call_at(self._ends, self._ring)
        else:
            self._alarm = None
            self._lapsed(late > self._seconds * SLEPT)
