"""Keeps the leases of all runs that this process drives, and brings them what was signalled from elsewhere.

One write renews every lease and one read finds every signal, however many runs there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
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
        self._renewed_at = 0.0

    @contextmanager
    def keep(self, driver: Driver) -> Generator[None]:
        """While this lasts, the lease of the driver's run is renewed and its signals are delivered."""
        run_id = driver.lease.run_id
        self._drivers[run_id] = driver
        if self._task is None or self._task.done():
            self._renewed_at = self._clock()
            self._task = asyncio.get_running_loop().create_task(self._watch())
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
        while True:
            await asyncio.sleep(min(LOOK_EVERY, self._lease_seconds / 3))
            if not self._drivers:
                continue
            try:
                await self._deliver_signals()
                if self._clock() - self._renewed_at >= self._lease_seconds / 3:
                    await self._renew()
            except FoliotError as error:
                # The next look may succeed. If not, the lease runs out, and the database refuses what comes after it.
                log.warning("leases could not be renewed: %s", error)

    async def _renew(self) -> None:
        now = self._clock()
        drivers = dict(self._drivers)
        lost = await self._journal.renew([driver.lease for driver in drivers.values()], until=now + self._lease_seconds)
        self._renewed_at = now
        for run_id, driver in drivers.items():
            if run_id not in lost:
                driver.renewed(now + self._lease_seconds)
            elif self._drivers.get(run_id) is driver:
                driver.lose()

    async def _deliver_signals(self) -> None:
        for signal in await self._journal.signals(list(self._drivers)):
            driver = self._drivers.get(signal.run_id)
            if driver is not None:
                driver.deliver(signal)
