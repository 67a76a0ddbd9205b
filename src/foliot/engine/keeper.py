"""Keeps the leases of all runs that this process drives, and brings them what was signalled from elsewhere.

One write renews every lease and one read finds every signal, however many runs there are. A store that does not answer
is asked again at the next look: each lease has its own end, and each driver sees to it (tenure.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from foliot.engine.base import Clock
from foliot.engine.driver import Driver
from foliot.errors import FoliotError
from foliot.stopping import stop_tasks
from foliot.store.runs import Journal

log = logging.getLogger(__name__)

# How soon a cancellation or decision from another process is noticed.
LOOK_EVERY = 0.5


class Keeper:
    def __init__(self, journal: Journal, *, clock: Clock, lease_seconds: float) -> None:
        self._journal = journal
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._drivers: dict[str, Driver] = {}
        self._task: asyncio.Task[None] | None = None
        self._renewed_at = self._until = 0.0
        self._troubled = False

    @contextmanager
    def keep(self, driver: Driver) -> Generator[None]:
        """While this lasts, the lease of the driver's run is renewed and its signals are delivered."""
        run_id = driver.lease.run_id
        self._drivers[run_id] = driver
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._renewed_at, self._until = loop.time(), self._clock() + self._lease_seconds
            self._task = loop.create_task(self._watch())
        try:
            yield
        finally:
            if self._drivers.get(run_id) is driver:
                del self._drivers[run_id]

    def driver(self, run_id: str) -> Driver | None:
        return self._drivers.get(run_id)

    async def close(self) -> None:
        if self._task is not None:
            await stop_tasks(self._task)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(LOOK_EVERY, self._lease_seconds / 3))
            if not self._drivers:
                continue
            # By a clock that nobody sets; and by the other one, which goes on while the machine is suspended.
            if loop.time() - self._renewed_at >= self._lease_seconds / 3 or self._clock() >= self._until:
                await self._try("renew leases", self._renew)
            await self._try("look for signals", self._deliver_signals)

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except FoliotError as error:
            # Said once, not at every look. If it does not pass the leases run out, and the drivers stop.
            log.log(logging.DEBUG if self._troubled else logging.WARNING, "could not %s: %s", what, error)
            self._troubled = True
        else:
            self._troubled = False

    async def _renew(self) -> None:
        until = self._clock() + self._lease_seconds
        began = asyncio.get_running_loop().time()
        drivers = dict(self._drivers)
        lost = await self._journal.renew([driver.lease for driver in drivers.values()], until=until)
        self._renewed_at, self._until = began, until
        for run_id, driver in drivers.items():
            if run_id not in lost:
                driver.renewed(until, began + self._lease_seconds)
            elif self._drivers.get(run_id) is driver:
                driver.lose()

    async def _deliver_signals(self) -> None:
        for signal in await self._journal.signals(list(self._drivers)):
            driver = self._drivers.get(signal.run_id)
            if driver is not None:
                driver.deliver(signal)
