"""Something that another server says, kept for a while: asked for by one at a time, and not too often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from foliot.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


class Kept(Generic[T]):
    """`ask` is called when what is kept is `old` seconds old or not enough, at most once in `pause` seconds.

    While the other server is away, what was kept before does, until it is `longest` seconds old.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        old: float,
        pause: float,
        clock: Callable[[], float],
        longest: float = float("inf"),
    ) -> None:
        self._ask = ask
        self._old = old
        self._pause = pause
        self._longest = longest
        self._clock = clock
        self._asking = asyncio.Lock()
        self._value: T | None = None
        self._at = 0.0
        self._asked_at: float | None = None

    async def get(self, enough: Callable[[T], bool] = lambda _: True) -> T:
        """What is kept; newly asked for when that may be more. Raises `Unavailable` when there is nothing."""
        if (value := self._fresh(enough)) is not None:
            return value
        async with self._asking:
            if (value := self._fresh(enough)) is not None:
                return value
            now = self._clock()
            if self._asked_at is not None and now - self._asked_at < self._pause:
                if (value := self._usable(now)) is None:
                    raise Unavailable("the other server did not answer a moment ago", hint="try again")
                return value
            self._asked_at = now
            try:
                self._value, self._at = await self._ask(), now
            except Unavailable as error:
                if (value := self._usable(now)) is None:
                    raise
                log.warning("what was known before is used: %s", error.message)
                return value
            return self._value

    def _usable(self, now: float) -> T | None:
        return self._value if now - self._at < self._longest else None

    def _fresh(self, enough: Callable[[T], bool]) -> T | None:
        value = self._value
        return value if value is not None and self._clock() - self._at < self._old and enough(value) else None
