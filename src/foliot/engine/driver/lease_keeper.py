"""Keeps the leases of all runs that this process drives, and brings them what was signalled from elsewhere.

One write renews every lease and one read finds every signal, however many runs there are. A store that does not answer
is asked again at the next look: each lease has its own end, and each driver sees to it (appends.py). So is a single
lease whose row somebody keeps locked. Of a run that has ended or waits nothing is renewed while its calls come to their
end: it is not this process's any more, and may be deleted.

A driver belongs to one claim, a run under one epoch. A process that lost a run and claims it again has two drivers of
it for a while: the older one is told to stop before the newer one begins, and is remembered until all that it had under
way has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.engine.base import Clock
from foliot.engine.driver.driver import Driver
from foliot.errors import FoliotError
from foliot.store.journal.base import Journal, StoreSetBack
from foliot.store.journal.cancelling import ends_with_parent

log = logging.getLogger(__name__)

# How soon a cancellation or decision from another process is noticed.
LOOK_EVERY = 0.5

# What one driver drives: the id of a run, and the epoch of the lease.
Claim: TypeAlias = tuple[str, int]


class LeaseKeeper:
    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        lease_seconds: float,
        set_back: Callable[[StoreSetBack], Awaitable[None]] | None = None,
    ) -> None:
        """`set_back` is told when the store knows less than what is renewed."""
        self._journal = journal
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._waits = Waits(lease_seconds)
        self._set_back = set_back
        self._drivers: dict[str, Driver] = {}  # of each run the newest claim: what is renewed, and hears signals
        self._below: dict[str, set[str]] = {}  # of each run those that it has started and that are driven here
        self._orphans: dict[Claim, Driver] = {}  # claims that are lost, and have not come to their end
        self._passed_by: set[str] = set()  # runs that the last renewal could not get at
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._renewed_at = self._until = 0.0
        self._troubled = False

    def take(self, driver: Driver) -> None:
        """Renews the lease of the driver's run and delivers its signals, until `leave`.

        Of two claims of one run the older one is lost, whichever came here first. A run below one that is ending is
        cancelled, before it begins anything.
        """
        run_id = driver.lease.run_id
        if (parent := driver.parent) and (above := self._drivers.get(parent)) is not None:
            self._below.setdefault(parent, set()).add(run_id)
            if above.is_ending:
                driver.deliver(ends_with_parent(run_id, self._clock()))
        other = self._drivers.get(run_id)
        if other is None or other.lease.epoch <= driver.lease.epoch:
            self._drivers[run_id] = driver
            older, newer = other, driver
        else:
            older, newer = driver, other
        if older is not None and older is not newer:
            self._orphans[_claim(older)] = older
            older.lose(f"this process claimed run {run_id} again, under epoch {newer.lease.epoch}")
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._renewed_at, self._until = loop.time(), self._clock() + self._lease_seconds
            self._task = loop.create_task(self._watch())

    def leave(self, driver: Driver) -> None:
        """Keeps the driver no longer; what it has under way is remembered until it ends."""
        run_id = driver.lease.run_id
        if self._drivers.get(run_id) is driver:
            del self._drivers[run_id]
            if (below := self._below.get(driver.parent)) is not None:
                below.discard(run_id)
                if not below:
                    del self._below[driver.parent]
        if rest := driver.under_way():
            self._outlast(driver, rest)
        else:
            self._orphans.pop(_claim(driver), None)
            self._ended.set()

    def _outlast(self, driver: Driver, rest: Sequence[asyncio.Task[None]]) -> None:
        """Remember a driver that has ended for as long as calls of it have not."""
        self._orphans[_claim(driver)] = driver

        def ended(_: asyncio.Task[None]) -> None:
            if not driver.under_way():
                self._orphans.pop(_claim(driver), None)
                self._ended.set()

        for task in rest:
            task.add_done_callback(ended)

    async def stand_alone(self, driver: Driver) -> None:
        """Wait until older drivers of the same run in this process have ended, and say what does not end in time."""
        run_id = driver.lease.run_id
        try:
            async with asyncio.timeout(self._waits.stop):
                while self.orphans(run_id):
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            for orphan in self.orphans(run_id):
                log.warning(
                    "run %s is taken up again under epoch %d while this process has not ended epoch %d of it: "
                    "still under way: %s",
                    run_id,
                    driver.lease.epoch,
                    orphan.lease.epoch,
                    ", ".join(sorted(task.get_name() for task in orphan.under_way())) or "its last write",
                )

    def orphans(self, run_id: str) -> list[Driver]:
        """Drivers of lost claims of the run that have not come to their end in this process."""
        if not self._orphans:
            return []
        return [driver for (run, _), driver in self._orphans.items() if run == run_id]

    def driver(self, run_id: str) -> Driver | None:
        return self._drivers.get(run_id)

    def below(self, run_id: str) -> list[Driver]:
        """The drivers of the runs that a run has started, as far as they are driven here."""
        return [driver for each in self._below.get(run_id, ()) if (driver := self._drivers.get(each)) is not None]

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
                await self._try("renew leases", self._renew_all)
            elif self._passed_by:
                await self._try("renew leases", self._renew_rest)
            await self._try("look for signals", self.deliver_signals)

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            # Said once, not at every look. If it does not pass the leases run out, and the drivers stop.
            expected = isinstance(error, FoliotError)
            level = logging.DEBUG if self._troubled else logging.WARNING
            log.log(level, "could not %s: %s", what, error, exc_info=None if expected else error)
            self._troubled = True
        else:
            self._troubled = False

    async def _renew_all(self) -> None:
        began, until = asyncio.get_running_loop().time(), self._clock() + self._lease_seconds
        await self._renew(self._drivers, until, began)
        self._renewed_at, self._until = began, until

    async def _renew_rest(self) -> None:
        began, until = asyncio.get_running_loop().time(), self._clock() + self._lease_seconds
        await self._renew(self._passed_by, until, began)

    async def _renew(self, run_ids: Iterable[str], until: float, began: float) -> None:
        drivers = {run_id: self._drivers[run_id] for run_id in run_ids if self._is_kept(run_id)}
        if not drivers:
            self._passed_by = set()
            return
        try:
            renewal = await self._journal.renew([driver.lease for driver in drivers.values()], until=until)
        except StoreSetBack as error:
            for driver in drivers.values():
                driver.lose(error.message)
            if self._set_back is not None:
                await self._set_back(error)
            return
        self._passed_by = set(renewal.passed_by)
        for run_id, driver in drivers.items():
            if run_id in renewal.lost:
                driver.lose()
            elif run_id not in renewal.passed_by:
                driver.renewed(until, began + self._lease_seconds)

    def _is_kept(self, run_id: str) -> bool:
        driver = self._drivers.get(run_id)
        return driver is not None and not driver.is_over

    async def deliver_signals(self) -> None:
        """Have each run that is driven here hear what is stored for it."""
        kept = [run_id for run_id in self._drivers if self._is_kept(run_id)]
        for signal in await self._journal.signals(kept):
            driver = self._drivers.get(signal.run_id)
            if driver is None:
                continue
            try:
                driver.deliver(signal)
            except Exception as error:  # one run's fault must not keep the others from hearing, nor hang its own
                driver.fail(error)


def _claim(driver: Driver) -> Claim:
    return driver.lease.run_id, driver.lease.epoch
