"""The shared limits of one process, put together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.common.process import identity, is_gone
from foliot.engine.base import Clock
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.run.events import RunResumed
from foliot.models.routing.limits import PASS, ModelTurn
from foliot.resources.rates import Declarer, RateLimits
from foliot.store.base import Database
from foliot.store.journal.base import Journal
from foliot.store.ledger.model_limits import SqlModelLimits
from foliot.store.ledger.tool_limits import LeaseRequest, SqlLimits, ToolRate, Trouble
from foliot.tools.base import RateLimit, ToolDefinition, ToolRateLimited
from foliot.tools.pipeline.breaker import FAILURES, SECONDS, circuit_key, circuit_open
from foliot.tools.pipeline.limiter import too_often

# --- circuits --------------------------------------------------------------------------------------------------------

# Circuits over all processes of a store: what one finds out about a tool, others know within `STALE_AFTER` seconds.
#
# Failures in a row are counted over all of them, and one process at a time tries a tool that was left alone. Only
# tools in trouble have a row, so as long as all are well a process reads an empty table every two seconds in which it
# calls tools, and writes nothing.
#
# It fails open: when the store does not answer, this process goes by what it knows. A circuit protects a tool from
# useless calls; it is no permission, and a store that is slow must not make every tool look broken.

log = logging.getLogger(__name__)

STALE_AFTER: Final = 2.0
# A call that would be refused looks again, but not more often than this.
LOOK_AGAIN_AFTER: Final = 0.1
# How long a process may try before another one may. One that dies while it tries is waited for that long.
PROBE_SECONDS: Final = 60.0
CLOSE_WITHIN: Final = 5.0


class SharedCircuits:
    """A `CircuitSource`. Belongs to one event loop; `close` it before the database. `clock` is the time of day."""

    def __init__(
        self,
        limits: SqlLimits,
        *,
        clock: Callable[[], float] = time.time,
        holder: str | None = None,
        failures: int = FAILURES,
        seconds: float = SECONDS,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.holder = holder or identity()
        self.failures = failures
        self.seconds = seconds
        self.known: dict[str, Trouble] = {}
        self.read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._loose: set[asyncio.Task[None]] = set()

    def of(self, definition: ToolDefinition, clock: Callable[[], float]) -> SharedCircuit:
        return SharedCircuit(self, circuit_key(definition), definition.name)

    def of_model(self, key: str) -> SharedCircuit:
        """The circuit of a model endpoint: its key says which."""
        return SharedCircuit(self, key, key)

    @property
    def fresh(self) -> bool:
        return 0 <= self.clock() - self.read_at < STALE_AFTER

    @property
    def read_just_now(self) -> bool:
        """Whether another look would only keep the store busy: a tool in trouble may be called very often."""
        return 0 <= self.clock() - self.read_at < LOOK_AGAIN_AFTER

    async def refresh(self) -> None:
        """Read what others found out, once for all who ask at the same time. Never raises."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        now = self.clock()
        try:
            self.known = await self.limits.troubles()
        except FoliotError as error:
            log.warning("what other processes know of tools cannot be read: %s", error)
        self.read_at = now

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    async def close(self) -> None:
        tasks = {*self._loose, *((self._reading,) if self._reading is not None else ())}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_WITHIN)
            await stop_tasks(*late)


class SharedCircuit:
    __slots__ = ("_key", "_name", "_pool")

    def __init__(self, pool: SharedCircuits, key: str, name: str) -> None:
        self._pool = pool
        self._key = key
        self._name = name

    @property
    def calm(self) -> bool:
        pool = self._pool  # as `fresh` says it, without a call: this is asked twice for every call of a tool
        return self._key not in pool.known and 0 <= pool.clock() - pool.read_at < STALE_AFTER

    async def enter(self) -> bool:
        pool = self._pool
        if not pool.fresh:
            await pool.refresh()
        trouble = pool.known.get(self._key)
        if trouble is not None and trouble.opened_at is not None and not pool.read_just_now:
            await pool.refresh()  # nobody is refused by what was known a moment ago
            trouble = pool.known.get(self._key)
        if trouble is None or trouble.opened_at is None:
            return False
        now = pool.clock()
        left = trouble.opened_at + pool.seconds - now
        if left <= 0 and await self._may_try(trouble.opened_at, now):
            return True
        raise circuit_open(self._name, trouble.failures, max(left, 1.0))

    async def failed(self) -> None:
        pool = self._pool
        try:
            trouble = await pool.limits.failed(self._key, most=pool.failures, now=pool.clock())
        except FoliotError as error:
            log.warning("other processes do not hear that %s failed: %s", self._key, error)
            before = pool.known.get(self._key, Trouble(0, None))
            failures = before.failures + 1
            trouble = Trouble(failures, pool.clock() if failures >= pool.failures else before.opened_at)
        pool.known[self._key] = trouble

    async def well(self) -> None:
        pool = self._pool
        if self._key not in pool.known:
            return
        del pool.known[self._key]
        try:
            await pool.limits.well(self._key)
        except FoliotError as error:
            log.warning("other processes do not hear that %s is well again: %s", self._key, error)

    def broken_off(self) -> None:
        self._pool.later(self._unprobe())

    async def _may_try(self, opened_at: float, now: float) -> bool:
        pool = self._pool
        try:
            return await pool.limits.probe(self._key, pool.holder, opened_at, now=now, until=now + PROBE_SECONDS)
        except FoliotError as error:
            log.warning("nobody can be asked whether %s may be tried: %s", self._key, error)
            return True

    async def _unprobe(self) -> None:
        try:
            await self._pool.limits.unprobe(self._key, self._pool.holder)
        except FoliotError as error:
            log.warning("%s is tried again in a minute: %s", self._key, error)


# --- models ----------------------------------------------------------------------------------------------------------

# Turns at models over all processes of a store: see models/routing/limits.py for what they are.
#
# Each turn is one small transaction, and one more when the call is over and its tokens are known, or calls at a time
# are counted. Where nobody declares a limit for a key and model, and its provider wants no pause, nothing is written:
# which lines are held is read every `STALE_AFTER` seconds in which models are asked. It fails closed: a limit that
# cannot be checked lets nobody pass, and whoever asks comes back in a moment.

# A call under way is kept for so long when nobody renews it, because its process died.
CALL_SECONDS: Final = 60.0
# When a store does not answer, this much later.
LOOK_AGAIN: Final = 1.0
# So late it is heard that another process declares a limit, or was told to pause, for a key that has had neither.


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
        self, key: str, asker: str, limits: RateLimits, tokens: int, *, queue: bool, by: Declarer | None = None
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


# --- tools -----------------------------------------------------------------------------------------------------------

# A `Limiter` over all processes of a store.
#
# Rates are exact: tokens are leased from a row in small batches, and what is leased counts as being in the bucket and
# in the window, so in any span of its length no more calls are made than `requests`. A busy process leases ahead, up
# to a second's worth or a quarter of the burst, and touches the database that rarely; one call now and then costs one
# write. What was leased and not used within a second goes back.
#
# Calls at a time are rows that belong to a process. They are kept alive while it lives; when it dies, they end after
# `PLACE_SECONDS`, or at once when it was on this machine. A place that somebody of the same process waits for, or
# wants within a moment, is handed over without the database.
#
# It fails closed: a limit that cannot be checked refuses the call with an error that may be tried again, because a
# limit is most often a promise to somebody else. Times are those of the processes' clocks, which should agree to a
# second.

LEASE_SECONDS: Final = 1.0
PLACE_SECONDS: Final = 30.0
# How often a place is looked for while other processes have all of them.
LOOK_EVERY: Final = (0.02, 0.5)
# How long a place that nobody uses is kept for the next call of this process.
IDLE_SECONDS: Final = 0.05
# What the store may take on top of the wait for a turn.
STORE_SECONDS: Final = 5.0


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
        wish = LeaseRequest(
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
    return ToolRate(limit.requests, limit.per, limit.burst or limit.requests)


def _unchecked(key: str, error: FoliotError) -> ToolRateLimited:
    tool = key.rpartition("/")[2]
    refused = ToolRateLimited(
        f'the limits of tool "{tool}" cannot be checked: {error.message}', layer="rate", retry_after_ms=1000
    )
    refused.retry_after = 1.0
    return refused


# --- open ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limiting:
    """`close` it before the database."""

    limiter: SharedLimiter
    circuits: SharedCircuits
    turns: SharedTurns

    async def close(self) -> None:
        await self.limiter.close()
        await self.turns.close()
        await self.circuits.close()


def open_limiting(database: Database, *, clock: Clock, journal: Journal | None = None) -> Limiting:
    """The limits on tools and models that all processes on this database keep to together.

    In the `journal` runs are told that their turn at a model came earlier than expected.
    """
    limits = SqlLimits(database)

    async def wake(run_id: str) -> None:
        if journal is not None:
            with suppress(Conflict, NotFound):  # it has ended meanwhile
                await journal.signal(signal(run_id, RunResumed("timer"), clock()))

    turns = SharedTurns(SqlModelLimits(database), clock=clock, wake=wake)
    return Limiting(SharedLimiter(limits, clock=clock), SharedCircuits(limits, clock=clock), turns)
