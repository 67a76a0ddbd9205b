"""Being known as a worker: registering, signs of life, and seeing to what dead neighbours left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from foliot.errors import FoliotError
from foliot.store.base import Database
from foliot.store.placement import Offer
from foliot.store.workers import Phase, beat, bury, others, register

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
        is_gone: Callable[[str | None], bool],
    ) -> None:
        self._db = db
        self._offer = offer
        self._complaints = complaints
        self._clock = clock
        self._is_gone = is_gone
        self._neighbours: set[str] = set()

    async def begin(self) -> bool:
        """Register, in place of a dead process of the same name whose runs are then free at once. False: try again."""
        try:
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
            return await beat(self._db, self._offer, now=self._clock(), phase=phase)
        except FoliotError as error:
            self._complaints.trouble("send a heartbeat", error)
            return True

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
