"""A `Limiter` over all processes of a store.

Rates are exact: tokens are leased from a row in small batches, and what is leased counts as being in the bucket, so in
any span of time no more calls are made than the burst and what flowed in. A busy process leases ahead, up to a second's
worth or a quarter of the burst, and touches the database that rarely; one call now and then costs one write. What was
leased and not used within a second goes back.

Calls at a time are rows that belong to a process. They are kept alive while it lives; when it dies, they end after
`PLACE_SECONDS`, or at once when it was on this machine. A place that somebody of the same process waits for, or wants
within a moment, is handed over without the database.

It fails closed: a limit that cannot be checked refuses the call with an error that may be tried again, because a limit
is most often a promise to somebody else. Times are those of the processes' clocks, which should agree to a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.engine.driver.process import identity, is_gone
from foliot.errors import FoliotError
from foliot.store.ledger.tool_limits import SqlLimits, ToolRate, Wish
from foliot.tools.base import RateLimit, ToolRateLimited
from foliot.tools.pipeline.limiter import too_often

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 1.0
PLACE_SECONDS: Final = 30.0
# How often a place is looked for while other processes have all of them.
LOOK_EVERY: Final = (0.02, 0.5)
# How long a place that nobody uses is kept for the next call of this process.
IDLE_SECONDS: Final = 0.05
# What the store may take on top of the wait for a turn.
STORE_SECONDS: Final = 5.0
CLOSE_WITHIN: Final = 5.0


@dataclass(slots=True)
class _Line:
    """The state of one tool in this process. `free` are places that it holds and does not use."""

    limit: RateLimit | None = None
    tokens: int = 0
    lease_until: float = 0.0
    batch: int = 1
    empty_until: float = 0.0
    inside: list[int] = field(default_factory=list[int])
    free: list[int] = field(default_factory=list[int])
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)


class SharedLimiter:
    """Belongs to one event loop; `close` it before the database. `clock` is the time of day."""

    def __init__(
        self,
        limits: SqlLimits,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        holder: str | None = None,
        is_gone: Callable[[str | None], bool] = is_gone,
        place_seconds: float = PLACE_SECONDS,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._holder = holder or identity()
        self._is_gone = is_gone
        self._place_seconds = place_seconds
        self._lines: dict[str, _Line] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._keeping: asyncio.Task[None] | None = None
        self._loose: set[asyncio.Task[None]] = set()

    async def wait_for(self, key: str, limit: RateLimit) -> float:
        """From what this process knows, without asking the store: a call that is let through still waits its turn."""
        line = self._line(key)
        if line.limit != limit:
            line.limit, line.empty_until = limit, 0.0  # what is known was found out under another limit
        now = self._clock()
        if limit.requests is None or (line.tokens > line.waiting and now < line.lease_until):
            return 0.0
        return max(0.0, line.empty_until - now) + line.waiting * limit.per / limit.requests

    async def enter(self, key: str, limit: RateLimit, *, within: float) -> None:
        line = self._line(key)
        if not line.waiting and self._take(line, limit):
            return
        line.waiting += 1
        try:
            async with asyncio.timeout(within + STORE_SECONDS), line.turn:
                await self._wait(key, line, limit, self._clock() + within)
        except TimeoutError:
            raise too_often(key, max(1.0, line.empty_until - self._clock())) from None
        except FoliotError as error:
            if isinstance(error, ToolRateLimited):
                raise
            raise _unchecked(key, error) from error
        finally:
            line.waiting -= 1
            if line.free and not line.waiting:
                # Whoever they were kept for did not wait so long.
                asyncio.get_running_loop().call_later(IDLE_SECONDS, self._idle, key, line.free[0])

    async def leave(self, key: str, limit: RateLimit) -> None:
        line = self._line(key)
        if not line.inside:
            return  # no places are counted
        number = line.inside.pop()
        line.free.append(number)
        line.freed.set()
        if not line.waiting:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._idle, key, number)

    async def close(self) -> None:
        """Give back what is held, for a few seconds at most."""
        self._closed = True
        if self._keeping is not None:
            await stop_tasks(self._keeping)
        for key, line in self._lines.items():
            if line.free:
                self._later(self._give_back(key, line.free))
        if self._loose:
            _, late = await asyncio.wait(self._loose, timeout=CLOSE_WITHIN)
            await stop_tasks(*late)

    # --- how it is done ------------------------------------------------------------------------------------------

    def _line(self, key: str) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        return line

    def _take(self, line: _Line, limit: RateLimit) -> bool:
        """Go in with what is here: a leased token, and a place where one is needed."""
        if limit.requests is not None and (line.tokens < 1 or self._clock() >= line.lease_until):
            return False
        if limit.concurrency is not None:
            if not line.free:
                return False
            line.inside.append(line.free.pop())
        if limit.requests is not None:
            line.tokens -= 1
        return True

    async def _wait(self, key: str, line: _Line, limit: RateLimit, give_up: float) -> None:
        """The first in line asks the store, and waits until it may go in."""
        pause = LOOK_EVERY[0]
        looked = False
        while not self._take(line, limit):
            line.freed.clear()
            wait = await self._ask(key, line, limit)
            if wait is None:
                continue
            if wait > 0:
                if self._clock() + wait > give_up:
                    raise too_often(key, wait)
                await self._sleep(wait)
                continue
            if not looked:
                looked = True
                if await self._bury(key):
                    continue
            if (left := give_up - self._clock()) <= 0:
                raise too_often(key, 1.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(line.freed.wait(), min(pause, left))
            pause = min(2 * pause, LOOK_EVERY[1])

    async def _ask(self, key: str, line: _Line, limit: RateLimit) -> float | None:
        """Ask for tokens and a place. None: they are here now. 0: no place is free. Else seconds to the next token."""
        now = self._clock()
        fresh = now < line.lease_until
        needs_tokens = limit.requests is not None and not (line.tokens and fresh)
        needs_place = limit.concurrency is not None and not line.free
        wanted = self._batch(line, limit, now) if needs_tokens else 0
        number = next(self._numbers)
        wish = Wish(
            key,
            self._holder,
            rate=_rate(limit) if needs_tokens else None,
            tokens=wanted,
            unused=line.tokens if needs_tokens else 0,
            most=limit.concurrency if needs_place else None,
            number=number,
        )
        grant = await self._limits.ask(
            wish, now=now, lease_until=now + LEASE_SECONDS, place_until=now + self._place_seconds
        )
        if needs_tokens:
            line.tokens, line.lease_until = grant.tokens, now + LEASE_SECONDS
            line.empty_until = now + grant.wait
        if needs_place and grant.placed:
            line.free.append(number)
            self._keep()
        if needs_tokens and not grant.tokens and grant.wait:
            return grant.wait + 1e-6  # a hair more, so that who slept this long does not find 0.9999999 of a token
        return None if grant.placed else 0.0

    def _batch(self, line: _Line, limit: RateLimit, now: float) -> int:
        """Twice as many as last time when those were used up within their second, half as many when some were not."""
        rate = _rate(limit)
        most = max(1, min(rate.size // 4, int(rate.per_second * LEASE_SECONDS)))
        if line.lease_until:
            line.batch = line.batch * 2 if now < line.lease_until else line.batch // 2 if line.tokens else line.batch
        line.batch = max(1, min(line.batch, most))
        return max(line.batch, min(line.waiting, most))

    async def _bury(self, key: str) -> bool:
        """Free the places of processes of this machine that have died; whether there were any."""
        gone = [holder for holder in await self._limits.holders(key) if self._is_gone(holder)]
        if gone:
            await self._limits.forget(gone)
        return bool(gone)

    def _keep(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while places := self._places():
            await asyncio.sleep(self._place_seconds / 3)
            try:
                if places := self._places():
                    await self._limits.renew(self._holder, places, until=self._clock() + self._place_seconds)
            except FoliotError as error:
                log.warning("places of tools could not be renewed: %s", error)

    def _places(self) -> list[tuple[str, int]]:
        return [(key, number) for key, line in self._lines.items() for number in (*line.inside, *line.free)]

    def _idle(self, key: str, number: int) -> None:
        line = self._lines[key]
        if not self._closed and not line.waiting and number in line.free:
            places, line.free = line.free, []
            self._later(self._give_back(key, places))

    async def _give_back(self, key: str, numbers: list[int]) -> None:
        try:
            await self._limits.leave(key, self._holder, numbers)
        except FoliotError as error:
            log.warning("a place of %s is given back when it runs out: %s", key, error)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)


def _rate(limit: RateLimit) -> ToolRate:
    assert limit.requests is not None, "asked only where there is one"
    return ToolRate(limit.requests / limit.per, limit.burst or limit.requests)


def _unchecked(key: str, error: FoliotError) -> ToolRateLimited:
    tool = key.rpartition("/")[2]
    refused = ToolRateLimited(
        f'the limits of tool "{tool}" cannot be checked: {error.message}', layer="rate", retry_after_ms=1000
    )
    refused.retry_after = 1.0
    return refused
