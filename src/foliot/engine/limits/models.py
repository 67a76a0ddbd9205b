"""Turns at models over all processes of a store: see models/routing/limits.py for what they are.

Each turn is one small transaction, and one more when the call is over and its tokens are known, or calls at a time are
counted. Where nobody declares a limit for a key and model, and its provider wants no pause, nothing is written: which
lines are held is read every `STALE_AFTER` seconds in which models are asked. It fails closed: a limit that cannot be
checked lets nobody pass, and whoever asks comes back in a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from foliot.common.cancellation import stop_tasks
from foliot.engine.base import Clock
from foliot.errors import FoliotError
from foliot.models.routing.limits import PASS, ModelTurn
from foliot.resources.rates import Declarer, Limits
from foliot.store.ledger.model_limits import SqlModelLimits

log = logging.getLogger(__name__)

# A call under way is kept for so long when nobody renews it, because its process died.
CALL_SECONDS: Final = 60.0
# When a store does not answer, this much later.
LOOK_AGAIN: Final = 1.0
# So late it is heard that another process declares a limit, or was told to pause, for a key that has had neither.
STALE_AFTER: Final = 2.0


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
        self._held: set[str] = set()
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def is_free(self, key: str) -> bool:
        return self._is_fresh and key not in self._held

    @property
    def _is_fresh(self) -> bool:
        return 0 <= self._clock() - self._read_at < STALE_AFTER

    async def take(
        self, key: str, asker: str, limits: Limits, tokens: int, *, queue: bool, by: Declarer | None = None
    ) -> ModelTurn:
        if limits.none:
            if not self._is_fresh:
                await self._refresh()
            if key not in self._held:
                return PASS
        try:
            taken = await self._limits.take(
                key, asker, limits, tokens, queue=queue, clock=self._clock, kept=CALL_SECONDS, by=by
            )
        except FoliotError as error:
            log.warning("the limit of a model cannot be checked: %s", error.message)
            return ModelTurn(LOOK_AGAIN)
        if not limits.none:
            self._held.add(key)
        if taken.due > taken.now:
            return ModelTurn(taken.due - taken.now, taken.ahead, taken.bound, taken.limits)
        if taken.counted.calls:
            self._calls[key, asker] = self._calls.get((key, asker), 0) + 1
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.get_running_loop().create_task(self._renew())
        return ModelTurn(0.0, at=taken.now, counted=taken.counted)

    async def settle(self, key: str, asker: str, turn: ModelTurn, more: int) -> None:
        counted = turn.counted
        if counted.calls:
            self._calls.pop((key, asker), None)
        elif not counted.tokens or not more:
            return
        now = self._clock()
        try:
            first = await self._limits.settle(key, asker, counted, more=more, seconds=now - turn.at, now=now)
            if first and self.wake is not None:
                await self.wake(first)
        except FoliotError as error:
            log.warning("what a model has used is not counted: %s", error.message)

    async def pause(self, key: str, seconds: float) -> None:
        try:
            await self._limits.pause(key, self._clock() + seconds)
        except FoliotError as error:
            log.warning("other processes do not hear that a provider wants a pause: %s", error.message)
        self._held.add(key)  # afterwards: who looked meanwhile did not see it

    async def leave(self, asker: str) -> None:
        try:
            for each in await self._limits.leave(asker, now=self._clock()):
                if self.wake is not None:
                    await self.wake(each)
        except FoliotError as error:
            log.warning("a place in the line of a model stays until its turn has passed: %s", error.message)

    async def close(self) -> None:
        await stop_tasks(*(task for task in (self._keeping, self._reading) if task is not None))

    async def _refresh(self) -> None:
        """Read which lines are held, once for all who ask at the same time. Never raises."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        now = self._clock()
        try:
            self._held = set(await self._limits.held(now))
        except FoliotError as error:
            log.warning("what other processes know of the limits of models cannot be read: %s", error.message)
        self._read_at = now

    async def _renew(self) -> None:
        while self._calls:
            await asyncio.sleep(CALL_SECONDS / 3)
            try:
                await self._limits.renew(list(self._calls), until=self._clock() + CALL_SECONDS)
            except FoliotError as error:
                log.warning("calls of models could not be renewed: %s", error.message)
