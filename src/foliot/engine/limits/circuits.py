"""Circuits over all processes of a store: what one finds out about a tool, others know within `STALE_AFTER` seconds.

Failures in a row are counted over all of them, and one process at a time tries a tool that was left alone. Only tools
in trouble have a row, so as long as all are well a process reads an empty table every two seconds in which it calls
tools, and writes nothing.

It fails open: when the store does not answer, this process goes by what it knows. A circuit protects a tool from
useless calls; it is no permission, and a store that is slow must not make every tool look broken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.engine.driver.process import identity
from foliot.errors import FoliotError
from foliot.store.ledger.tool_limits import SqlLimits, Trouble
from foliot.tools.base import ToolDefinition
from foliot.tools.pipeline.breaker import FAILURES, SECONDS, circuit_key, circuit_open

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
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._loose: set[asyncio.Task[None]] = set()

    def of(self, definition: ToolDefinition, clock: Callable[[], float]) -> SharedCircuit:
        return SharedCircuit(self, circuit_key(definition), definition.name)

    def of_model(self, key: str) -> SharedCircuit:
        """The circuit of a model endpoint: its key says which."""
        return SharedCircuit(self, key, key)

    @property
    def fresh(self) -> bool:
        return 0 <= self.clock() - self._read_at < STALE_AFTER

    @property
    def read_just_now(self) -> bool:
        """Whether another look would only keep the store busy: a tool in trouble may be called very often."""
        return 0 <= self.clock() - self._read_at < LOOK_AGAIN_AFTER

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
        self._read_at = now

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
        pool = self._pool
        return pool.fresh and self._key not in pool.known

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
