"""How often tools may be called: token buckets and places, shared by all calls of a process.

The protocol is asynchronous although this implementation never waits for anything but its turn: the state of several
workers lives in a store, and nothing here may have to change for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foliot.tools.base import Invocation, RateLimit, ToolDefinition, ToolRateLimited
from foliot.tools.governance.rules import Rules, Verdict
from foliot.tools.pipeline.running import Handler, Running


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
class _Bucket:
    tokens: float
    at: float
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
        self._buckets: dict[str, _Bucket] = {}

    async def wait_for(self, key: str, limit: RateLimit) -> float:
        bucket = self._bucket(key, limit)
        return self._lacking(bucket, limit, ahead=bucket.waiting)

    async def enter(self, key: str, limit: RateLimit, *, within: float) -> None:
        bucket = self._bucket(key, limit)
        if not bucket.waiting and self._take(bucket, limit):
            return
        if (wait := self._lacking(bucket, limit, ahead=bucket.waiting)) > within:
            raise too_often(key, wait)
        bucket.waiting += 1
        try:
            async with asyncio.timeout(within), bucket.turn:
                while not self._take(bucket, limit):
                    if (wait := self._lacking(bucket, limit)) > 0:
                        await self._sleep(wait)
                    else:
                        bucket.freed.clear()
                        await bucket.freed.wait()
        except TimeoutError:
            raise too_often(key, max(1.0, self._lacking(bucket, limit))) from None
        finally:
            bucket.waiting -= 1

    async def leave(self, key: str, limit: RateLimit) -> None:
        bucket = self._bucket(key, limit)
        bucket.inside -= 1
        bucket.freed.set()

    def _bucket(self, key: str, limit: RateLimit) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(_size(limit)), self._clock())
        return bucket

    def _take(self, bucket: _Bucket, limit: RateLimit) -> bool:
        self._refill(bucket, limit)
        if limit.concurrency is not None and bucket.inside >= limit.concurrency:
            return False
        if limit.requests is not None:
            if bucket.tokens < 1.0:
                return False
            bucket.tokens -= 1.0
        bucket.inside += 1
        return True

    def _refill(self, bucket: _Bucket, limit: RateLimit) -> None:
        now = self._clock()
        if limit.requests is not None:
            bucket.tokens = min(_size(limit), bucket.tokens + (now - bucket.at) * limit.requests / limit.per)
        bucket.at = now

    def _lacking(self, bucket: _Bucket, limit: RateLimit, *, ahead: int = 0) -> float:
        """Seconds until there are enough tokens for those ahead and one more."""
        if limit.requests is None:
            return 0.0
        self._refill(bucket, limit)
        # A hair more than exact, so that who slept this long does not find 0.9999999 of a token.
        short = ahead + 1.0 - bucket.tokens
        return short * limit.per / limit.requests + 1e-6 if short > 0 else 0.0


def _size(limit: RateLimit) -> int:
    return limit.burst or limit.requests or 1


def too_often(key: str, wait: float) -> ToolRateLimited:
    """The refusal of a call for which there is no place in time."""
    tool = key.rpartition("/")[2]
    error = ToolRateLimited(f'tool "{tool}" rate limit exceeded', layer="rate", retry_after_ms=round(wait * 1000))
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

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        await self._limiter.enter(self._key, self._limit, within=self._longest)
        try:
            await running.check_right()
            return await next(call, running)
        finally:
            await self._limiter.leave(self._key, self._limit)


def rate_key(definition: ToolDefinition) -> str:
    return f"{definition.namespace}/{definition.name}"
