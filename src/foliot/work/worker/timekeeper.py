"""The timekeeper: looks for tasks whose time has come, for as long as a worker or a server lives.

Nothing happens to such a task by itself: its time is over, a join has waited long enough, or nobody began it in time.
Any number of processes may look at once, because what is due is decided under the lock of the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from foliot.errors import FoliotError
from foliot.kernel.backoff import backoff

log = logging.getLogger(__name__)

# Does what is due of tasks although nothing happened to them, and says when it must be called next, if it knows.
Timers: TypeAlias = Callable[[float], Awaitable[float | None]]

LOOK_FOR_TIMERS = 5.0


class Timekeeper:
    """`await timekeeper.run()` works until it is cancelled. `trouble` is told what it could not do, and why."""

    def __init__(
        self, timers: Timers, *, clock: Callable[[], float], trouble: Callable[[str, Exception], None] | None = None
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._trouble = trouble or _warn

    async def run(self) -> None:
        """Looks for timers until cancelled. A store that does not answer is asked again."""
        late = 0  # how often in a row there was something left that should have been dealt with
        while True:
            wait = LOOK_FOR_TIMERS
            try:
                due = await self._timers(self._clock())
            except Exception as error:
                self._trouble("look for timers", error)
            else:
                left = wait if due is None else due - self._clock()
                late = late + 1 if left <= 0 else 0
                # What cannot be dealt with must not be tried all the time.
                wait = min(max(left, backoff(late + 1, 0.05, wait)), wait)
            await asyncio.sleep(wait)


def _warn(what: str, error: Exception) -> None:
    if isinstance(error, FoliotError):
        log.warning("could not %s, and goes on trying: %s", what, error.message)
    else:
        log.error("could not %s, which is a bug", what, exc_info=error)
