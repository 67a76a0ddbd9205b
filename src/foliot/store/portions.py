"""Portions of a long piece of work on a store, such as a purge: transactions that keep nobody waiting for long.

How much one transaction can do depends on the disk and on what else is done meanwhile. So each portion is as large as
the one before it showed to be right.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from foliot.store.base import Database
from foliot.store.transaction import run

# The longest that one portion should take, in seconds: a small part of any lease. Where one writes at a time all others
# wait meanwhile; where only the rows are locked that are forgotten, nobody does, and small portions would cost more.
TAKES_AT_MOST: Final = 0.1
TAKES_AT_MOST_BESIDE_OTHERS: Final = 1.0
FIRST: Final = 100
LEAST: Final = 50
MOST: Final = 2000
# So many old rows are forgotten by a transaction that adds one: more than come, and too few to keep anybody waiting.
FORGOTTEN_AT_ONCE: Final = 20
# After so many, what was freed is given back. To cut a free page off a file, SQLite looks for it among all free pages:
# each costs more where there are many (200 µs for what one of 100,000 tasks had, instead of 50).
PAUSE_AFTER: Final = 4000


class Ended(NamedTuple):
    """A place among what has ended, in the order of its end: the next portion begins behind it."""

    at: float = 0.0
    key: int = 0


class Portions:
    """The size of the next portion, from how long the last one took, which should be `takes_at_most` seconds.

    `pause` is what is done now and then between.
    """

    def __init__(
        self,
        pause: Callable[[], Awaitable[None]] | None = None,
        *,
        takes_at_most: float = TAKES_AT_MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._takes_at_most = takes_at_most
        self._clock = clock
        self._began = 0.0
        self._done = 0
        self.size = FIRST

    def begin(self) -> None:
        self._began = self._clock()

    async def end(self, done: int) -> None:
        """So many were stored. Half of the time is left free: the next portion may be slower."""
        took = self._clock() - self._began
        self._done += done
        if self._pause is not None and self._done >= PAUSE_AFTER:
            self._done = 0
            await self._pause()
        fitting = self.size * self._takes_at_most / 2 / took if took > 0 else MOST
        self.size = int(max(LEAST, min(fitting, 2 * self.size, MOST)))


async def forget_old(database: Database, query: str, **params: Any) -> int:
    """Runs a query that deletes at most about `:count` rows until there are no more; how many rows it deleted."""
    gone, portions = 0, Portions()
    while True:
        portions.begin()
        done = await database.write(run, query, count=portions.size, **params)
        gone += done
        if done < portions.size:
            return gone
        await portions.end(done)
