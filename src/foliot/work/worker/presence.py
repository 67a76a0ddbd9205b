"""Being known as a worker: registering, signs of life, and seeing to what dead neighbours left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from foliot.errors import FoliotError
from foliot.store.base import Database
from foliot.store.incarnation import note_set_back, store_life
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import Beat, Phase, beat, bury, others, register

log = logging.getLogger(__name__)


class Complaints:
    """Says once that the store does not answer, not at every try; and when it answers again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._troubled = False

    def trouble(self, what: str, error: Exception) -> None:
        if not isinstance(error, FoliotError):
            log.error("worker %s could not %s, which is a bug", self._name, what, exc_info=error)
        elif not self._troubled:
            self._troubled = True
            log.warning("worker %s could not %s, and goes on trying: %s", self._name, what, error.message)

    def well(self) -> None:
        if self._troubled:
            self._troubled = False
            log.warning("worker %s: the store answers again", self._name)


class Presence:
    """One worker in the list of workers. Nothing here raises because the store does not answer."""

    def __init__(
        self,
        db: Database,
        offer: Offer,
        complaints: Complaints,
        *,
        clock: Callable[[], float],
        lease_clock: Callable[[], float] | None = None,
        wall: Callable[[], float] | None = None,
        is_gone: Callable[[str | None], bool],
    ) -> None:
        self._db = db
        self._offer = offer
        self._complaints = complaints
        self._clock = clock
        self._lease_clock = lease_clock or clock
        self._wall = wall
        self._last: Beat | None = None
        self.incarnation = ""  # of the store that this worker registered with
        self.set_back = ""  # what was found, when the store is older than it was
        self._is_gone = is_gone
        self._neighbours: set[str] = set()

    async def begin(self) -> bool:
        """Register, in place of a dead process of the same name whose runs are then free at once. False: try again."""
        try:
            self.incarnation = (await store_life(self._db)).incarnation
            self._neighbours = await others(self._db, self._offer)  # one that is dying may lose its name to this one
            freed = await register(self._db, self._offer, now=self._clock(), is_gone=self._is_gone)
        except FoliotError as error:
            self._complaints.trouble("register", error)
            return False
        self._complaints.well()
        log.info("worker %s is ready; %d runs of dead processes are free again", self._offer.name, freed)
        return True

    async def say(self, phase: Phase) -> bool:
        """A sign of life. False when another process has the name now."""
        try:
            off = 0.0 if self._wall is None else self._wall() - self._lease_clock()
            beat_now = await beat(self._db, self._offer, now=self._clock(), phase=phase, clock_off=off)
            if beat_now is None:
                return False
            await self._compare(beat_now)
        except FoliotError as error:
            self._complaints.trouble("send a heartbeat", error)
        return True

    async def _compare(self, found: Beat) -> None:
        """Checks that this is still the same store as the last time, and no older."""
        last, self._last = self._last, found
        if last is None or (found.incarnation == last.incarnation and found.beats > last.beats):
            return
        if found.incarnation != last.incarnation:
            self.set_back = "it is another store than before, such as one that was put back from a backup"
        else:
            self.set_back = (
                f"worker {self._offer.name} gave sign of life {last.beats}, and the store has {found.beats - 1}"
            )
        await self.note_set_back(self.set_back)

    async def note_set_back(self, what: str) -> None:
        """Keep it that the store is older than it was. What is said of it here ends the worker."""
        self.set_back = what
        try:
            await note_set_back(self._db, what, clock=self._clock)
        except FoliotError as error:
            self._complaints.trouble("note that the store went back in time", error)

    async def bury(self, look: Literal["nobody", "workers", "holders"]) -> bool:
        """Set free what dead processes of this machine held; whether there was anything.

        `look` says what the store is asked first: nothing, so that those met before are judged; who works; or also who
        holds runs under no name of a worker, which costs more with each run that is held.
        """
        try:
            if look == "holders":
                self._neighbours = await others(self._db, self._offer)
            elif look == "workers":
                self._neighbours |= await others(self._db, self._offer, holders=False)
            dead = {each for each in self._neighbours if self._is_gone(each)}
            freed = await bury(self._db, self._offer, now=self._clock(), is_gone=self._is_gone, known=dead)
        except FoliotError as error:
            self._complaints.trouble("look for dead neighbours", error)
            return False
        self._neighbours -= dead
        if freed:
            log.info("worker %s: %d runs of processes that have died are free again", self._offer.name, freed)
        return freed > 0


async def sleep_unless(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but not on when the event is set."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
