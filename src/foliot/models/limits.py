"""One rate limiter for each key at a provider, shared by all runs of the process.

A provider counts requests and tokens per key, so the limit belongs to the key and not to a run or an endpoint: two
endpoints with the same key stand in the same line. The line is first come, first served. Each of two token buckets
(requests, tokens) refills evenly and holds ten seconds' worth, so a burst is short; a request that is larger than its
bucket passes when the bucket is full and leaves a debt, so the average holds. When a provider says Retry-After, the
whole line waits.

The first in line waits by itself and then lets the next one up. There is no background task, and whoever is cancelled
just leaves the line. A limiter belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from foliot.errors import InvalidInput
from foliot.models.base import ModelRateLimited

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
_N = TypeVar("_N", int, float)

_BURST_SECONDS: Final = 10.0
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit. Raises `InvalidInput` for a limit under which nothing could ever pass.

    `burst` is how many requests may come at once after a quiet time; ten seconds' worth when it is not given.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrency: int | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "concurrency", "burst"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} must be above 0, not {value!r}", hint="leave it out for no limit")

    def strictest(self, other: Limits) -> Limits:
        return Limits(
            _least(self.requests_per_minute, other.requests_per_minute),
            _least(self.tokens_per_minute, other.tokens_per_minute),
            _least(self.concurrency, other.concurrency),
            _least(self.burst, other.burst),
        )


def _least(one: _N | None, other: _N | None) -> _N | None:
    return other if one is None else one if other is None else min(one, other)


NO_LIMITS: Final = Limits()


class _Bucket:
    """Refills at `per_minute`; may go below zero, which is a debt that later requests wait for."""

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, now: float) -> None:
        self.rate = self.capacity = 0.0
        self._level = float("inf")  # full, whatever full will mean
        self._at = now

    def change(self, per_minute: float, burst: float | None) -> None:
        self.rate = per_minute / 60.0
        self.capacity = max(1.0, self.rate * _BURST_SECONDS if burst is None else burst)
        self._level = min(self._level, self.capacity)

    def delay(self, amount: float, now: float) -> float:
        """Seconds until `amount` may pass; 0 when it may pass now."""
        self._refill(now)
        missing = min(amount, self.capacity) - self._level
        return missing / self.rate if missing > _ROUNDING else 0.0

    def take(self, amount: float, now: float) -> None:
        self._refill(now)
        self._level = min(self.capacity, self._level - amount)

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.capacity, self._level + (now - self._at) * self.rate)
            self._at = now


class Permit:
    """Leave to make one call. `release` must be called once the call is over, however it ended."""

    __slots__ = ("_limiter", "_reserved")

    def __init__(self, limiter: RateLimiter, reserved: int) -> None:
        self._limiter: RateLimiter | None = limiter
        self._reserved = reserved

    def release(self, used_tokens: int | None = None) -> None:
        """Make room for the next; `used_tokens` replaces the estimate. A second call does nothing."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter._release(self._reserved, used_tokens)  # pyright: ignore[reportPrivateUsage]  # two halves of one thing


class RateLimiter:
    """The line of one provider key. `clock` and `sleep` are given by whoever wants to control time."""

    def __init__(
        self, limits: Limits = NO_LIMITS, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._requests: _Bucket | None = None
        self._tokens: _Bucket | None = None
        self._concurrency: int | None = None
        self._active = 0
        self._paused_until = float("-inf")
        self._line: deque[asyncio.Future[None]] = deque()
        self._room: asyncio.Future[None] | None = None
        self.change(limits)

    @property
    def active(self) -> int:
        return self._active

    @property
    def waiting(self) -> int:
        return len(self._line)

    def change(self, limits: Limits) -> None:
        """New limits for those who pass from now on; what was used already still counts."""
        now = self._clock()
        self._requests = _changed(self._requests, limits.requests_per_minute, limits.burst, now)
        self._tokens = _changed(self._tokens, limits.tokens_per_minute, None, now)
        self._concurrency = limits.concurrency
        self._make_room()

    def pause(self, seconds: float) -> None:
        """Let nobody pass for `seconds`: the provider asked for it. A longer pause that runs already stays."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    async def acquire(self, tokens: int = 0, *, max_wait: float | None = None) -> Permit:
        """Wait for a turn. Raises `ModelRateLimited` when it is known to come later than `max_wait` seconds from now.

        Waiting for a call in progress to end (concurrency) has no known end and is not bounded by `max_wait`.
        """
        give_up = None if max_wait is None else self._clock() + max_wait
        if self._line:
            await self._queue(give_up)
        elif self._delay(tokens) > 0 or self._full():
            self._line.append(asyncio.get_running_loop().create_future())
        else:
            return self._pass(tokens)
        try:
            await self._wait_as_first(tokens, give_up)
            return self._pass(tokens)
        finally:
            self._leave(self._line[0])

    async def _queue(self, give_up: float | None) -> None:
        """Stand at the end of the line until this one is first."""
        if give_up is not None and (over := self._paused_until - give_up) > 0:
            raise self._too_long(over + give_up - self._clock())
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            self._leave(ticket)
            raise

    async def _wait_as_first(self, tokens: int, give_up: float | None) -> None:
        while True:
            if self._full():
                self._room = asyncio.get_running_loop().create_future()
                await self._room
                continue
            delay = self._delay(tokens)
            if delay <= 0:
                return
            if give_up is not None and self._clock() + delay > give_up:
                raise self._too_long(delay)
            await self._sleep(delay)

    def _leave(self, ticket: asyncio.Future[None]) -> None:
        was_first = self._line[0] is ticket
        self._line.remove(ticket)
        if was_first:
            self._room = None
            if self._line and not self._line[0].done():
                self._line[0].set_result(None)

    def _delay(self, tokens: int) -> float:
        now = self._clock()
        delay = max(0.0, self._paused_until - now)
        if self._requests is not None:
            delay = max(delay, self._requests.delay(1, now))
        if self._tokens is not None:
            delay = max(delay, self._tokens.delay(tokens, now))
        return delay

    def _full(self) -> bool:
        return self._concurrency is not None and self._active >= self._concurrency

    def _pass(self, tokens: int) -> Permit:
        now = self._clock()
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(tokens, now)
        self._active += 1
        return Permit(self, tokens)

    def _release(self, reserved: int, used: int | None) -> None:
        self._active -= 1
        if used is not None and self._tokens is not None:
            self._tokens.take(used - reserved, self._clock())
        self._make_room()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done() and not self._full():
            self._room.set_result(None)

    def _too_long(self, delay: float) -> ModelRateLimited:
        return ModelRateLimited(
            f"the rate limit of this key leaves no room for the next {delay:.1f} seconds",
            retry_after=delay,
            hint="raise the endpoint's limits, or add a fallback",
        )


def _changed(bucket: _Bucket | None, per_minute: float | None, burst: float | None, now: float) -> _Bucket | None:
    if per_minute is None:
        return None
    bucket = bucket or _Bucket(now)
    bucket.change(per_minute, burst)
    return bucket


class LimiterPool:
    """The limiters of a process by provider key. Endpoints that share a key share its line and its strictest limits."""

    def __init__(self, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._limiters: dict[str, RateLimiter] = {}
        self._wanted: dict[str, dict[str, Limits]] = {}

    def limiter(self, key: str, endpoint: str, limits: Limits) -> RateLimiter:
        """The limiter of `key`, holding to what every endpoint on this key wants."""
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = RateLimiter(limits, clock=self._clock, sleep=self._sleep)
            self._wanted[key] = {endpoint: limits}
            return limiter
        wanted = self._wanted[key]
        if wanted.get(endpoint) != limits:
            wanted[endpoint] = limits
            effective = Limits()
            for each in wanted.values():
                effective = effective.strictest(each)
            limiter.change(effective)
        return limiter

    def forget(self, key: str, endpoint: str) -> None:
        """`endpoint` no longer uses `key`; the limiter goes when nobody does and nobody is in its line."""
        wanted = self._wanted.get(key)
        if wanted is None:
            return
        wanted.pop(endpoint, None)
        limiter = self._limiters[key]
        if not wanted and not limiter.active and not limiter.waiting:
            del self._limiters[key], self._wanted[key]
