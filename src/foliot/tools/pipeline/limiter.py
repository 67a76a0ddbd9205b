"""How often tools may be called: windows, token buckets and places, shared by all calls of a process.

A window that slides keeps the promise: never more than `requests` in any `per`. The bucket spreads them: never more
than the burst at once, and then one by one.

The protocol is asynchronous although this implementation never waits for anything but its turn: the state of several
workers lives in a store, and nothing here may have to change for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foliot.common.buckets import Rate
from foliot.resources.rates import SlidingWindow
from foliot.tools.base import Invocation, RateLimit, ToolDefinition, ToolRateLimited
from foliot.tools.governance.rules import Rules, Verdict
from foliot.tools.pipeline.running import CallProgress, Handler


class Limiter(Protocol):
    async def wait_for(self, key: str, limit: RateLimit) -> float:
        """About how many seconds a call would wait for its turn. Takes nothing."""
        ...

    async def enter(self, key: str, limit: RateLimit, *, within: float) -> None:
        """Take a place, first come first served. Raises `ToolRateLimited` when there is none `within` seconds."""
        ...

    async def leave(self, key: str, limit: RateLimit) -> None:
        """Give the place back. What was taken from the rate is used up."""
        ...


@dataclass(slots=True)
class _Line:
    """The callers under one key. `full_at` is its token bucket."""

    full_at: float
    window: SlidingWindow = field(default_factory=SlidingWindow)
    inside: int = 0
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)


class LocalLimiter:
    """One process. `clock` need not be the time of day; it must not go backwards."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lines: dict[str, _Line] = {}

    async def wait_for(self, key: str, limit: RateLimit) -> float:
        line = self._line(key)
        return self._lacking(line, limit, ahead=line.waiting)

    async def enter(self, key: str, limit: RateLimit, *, within: float) -> None:
        line = self._line(key)
        if not line.waiting and self._take(line, limit):
            return
        if (wait := self._lacking(line, limit, ahead=line.waiting)) > within:
            raise too_often(key, wait)
        line.waiting += 1
        try:
            async with asyncio.timeout(within), line.turn:
                while not self._take(line, limit):
                    if (wait := self._lacking(line, limit)) > 0:
                        await self._sleep(wait)
                    else:
                        line.freed.clear()
                        await line.freed.wait()
        except TimeoutError:
            raise too_often(key, max(1.0, self._lacking(line, limit))) from None
        finally:
            line.waiting -= 1

    async def leave(self, key: str, limit: RateLimit) -> None:
        line = self._line(key)
        line.inside -= 1
        line.freed.set()

    def _line(self, key: str) -> _Line:
        if (line := self._lines.get(key)) is None:
            line = self._lines[key] = _Line(self._clock())
        return line

    def _take(self, line: _Line, limit: RateLimit) -> bool:
        if limit.concurrency is not None and line.inside >= limit.concurrency:
            return False
        now = self._clock()
        if self._wait(line, limit, now):
            return False
        line.full_at = _rate(limit).taken(line.full_at, now)
        if limit.requests is not None:
            line.window.add(limit.per, now)
        line.inside += 1
        return True

    def _lacking(self, line: _Line, limit: RateLimit, *, ahead: int = 0) -> float:
        """Seconds until there are enough tokens for those ahead and one more."""
        wait = self._wait(line, limit, self._clock(), ahead=ahead)
        # A hair more than exact, so that who slept this long does not find 0.9999999 of a token.
        return wait + 1e-6 if wait else 0.0

    def _wait(self, line: _Line, limit: RateLimit, now: float, *, ahead: int = 0) -> float:
        wait = _rate(limit).wait(line.full_at, now, ahead=ahead)
        if limit.requests is None:
            return wait
        return max(wait, line.window.wait(limit.requests, limit.per, now, ahead=ahead))


def _rate(limit: RateLimit) -> Rate:
    """The rate as it is declared now: it may have changed since the last call."""
    each = limit.per / limit.requests if limit.requests else 0.0
    return Rate(each, float(limit.burst or limit.requests or 1))


def too_often(key: str, wait: float) -> ToolRateLimited:
    """The refusal of a call for which there is no place in time."""
    tool = key.rpartition("/")[2]
    again = f"; there is room again in {wait:.3g} s" if wait else ""
    error = ToolRateLimited(
        f'tool "{tool}" rate limit exceeded{again}', layer="rate", retry_after_ms=round(wait * 1000)
    )
    error.retry_after = wait
    return error


# --- rate ------------------------------------------------------------------------------------------------------------

# How often and how many at once: looked at before a call is started, taken when it acts.

# The longest wait for a turn of a tool that has no time limit of its own.
LONGEST_WAIT = 30.0


class RateGate:
    """Refuses a call that would wait too long for its turn. Takes nothing: the call may still have to be asked for."""

    layer = "rate"

    def __init__(self, definition: ToolDefinition, limit: RateLimit, limiter: Limiter) -> None:
        self._key = rate_key(definition)
        self._limit = limit
        self._limiter = limiter
        self._longest = definition.timeout or LONGEST_WAIT

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        wait = await self._limiter.wait_for(self._key, self._limit)
        if wait > self._longest:
            raise too_often(self._key, wait)


class RateStage:
    """Waits for its turn, and gives its place back whatever happens. The wait is not part of the tool's own time."""

    def __init__(self, definition: ToolDefinition, limit: RateLimit, limiter: Limiter) -> None:
        self._key = rate_key(definition)
        self._limit = limit
        self._limiter = limiter
        self._longest = definition.timeout or LONGEST_WAIT

    async def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Any:
        await self._limiter.enter(self._key, self._limit, within=self._longest)
        try:
            await running.check_right()
            return await next(call, running)
        finally:
            await self._limiter.leave(self._key, self._limit)


def rate_key(definition: ToolDefinition) -> str:
    return f"{definition.namespace}/{definition.name}"
