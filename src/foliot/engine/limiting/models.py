"""Turns at models over all processes of a store: see models/limits.py for what they are.

Each turn is one small transaction, and one more when the call is over and its tokens are known, or calls at a time are
counted; endpoints without a limit never touch the store. It fails closed: a limit that cannot be checked lets nobody
pass, and whoever asks comes back in a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from foliot.engine.base import Clock
from foliot.errors import FoliotError
from foliot.models.limits import Turn
from foliot.resources.rates import Limits
from foliot.stopping import stop_tasks
from foliot.store.model_limits import SqlModelLimits

log = logging.getLogger(__name__)

# A call under way is kept for so long when nobody renews it, because its process died.
CALL_SECONDS: Final = 60.0
# When a store does not answer, this much later.
LOOK_AGAIN: Final = 1.0


class SharedTurns:
    """`Turns` in the store. Belongs to one event loop; `close` it before the database.

    `wake` tells a run that its turn came earlier than expected. `clock` is the time of day.
    """

    def __init__(
        self, limits: SqlModelLimits, *, clock: Clock, wake: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        self._limits = limits
        self._clock = clock
        self.wake = wake
        self._calls: dict[tuple[str, str], int] = {}
        self._keeping: asyncio.Task[None] | None = None

    async def take(self, key: str, asker: str, limits: Limits, tokens: int, *, queue: bool) -> Turn:
        try:
            taken = await self._limits.take(
                key, asker, limits, tokens, queue=queue, clock=self._clock, kept=CALL_SECONDS
            )
        except FoliotError as error:
            log.warning("the limit of a model cannot be checked: %s", error.message)
            return Turn(LOOK_AGAIN)
        if taken.due > taken.now:
            return Turn(taken.due - taken.now, taken.ahead, taken.bound)
        if limits.concurrency is not None:
            self._calls[key, asker] = self._calls.get((key, asker), 0) + 1
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.get_running_loop().create_task(self._renew())
        return Turn(0.0, slot=taken.slot, at=taken.now)

    async def settle(self, key: str, asker: str, turn: Turn, limits: Limits, more: int) -> None:
        self._calls.pop((key, asker), None)
        if limits.concurrency is None and (limits.tokens is None or not more):
            return
        now = self._clock()
        try:
            first = await self._limits.settle(
                key, asker, limits, slot=turn.slot, more=more, seconds=now - turn.at, now=now
            )
            if first and self.wake is not None:
                await self.wake(first)
        except FoliotError as error:
            log.warning("what a model has used is not counted: %s", error.message)

    async def pause(self, key: str, seconds: float) -> None:
        try:
            await self._limits.pause(key, self._clock() + seconds)
        except FoliotError as error:
            log.warning("other processes do not hear that a provider wants a pause: %s", error.message)

    async def leave(self, asker: str) -> None:
        try:
            await self._limits.leave(asker)
        except FoliotError as error:
            log.warning("a place in the line of a model stays until its turn has passed: %s", error.message)

    async def close(self) -> None:
        if self._keeping is not None:
            await stop_tasks(self._keeping)

    async def _renew(self) -> None:
        while self._calls:
            await asyncio.sleep(CALL_SECONDS / 3)
            try:
                await self._limits.renew(list(self._calls), until=self._clock() + CALL_SECONDS)
            except FoliotError as error:
                log.warning("calls of models could not be renewed: %s", error.message)
