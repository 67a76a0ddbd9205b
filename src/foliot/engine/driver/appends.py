"""Appends that outlive an outage of the store: tried again for as long as the lease can still be ours.

An append whose answer never came may be stored or not. So before it is tried again the journal is read: events that
are ours, byte for byte, at the place where they belong, are the answer. While the epoch is ours nobody else can have
written there, and the fence of the append itself refuses whatever was overtaken after the look.

A database that is away for a moment so costs that moment. What had taken effect has its result recorded, and no person
is asked about a call whose outcome this process knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from foliot.engine.base import Clock
from foliot.errors import NotFound, Unavailable
from foliot.kernel.backoff import backoff, share_of
from foliot.kernel.run.codec import NAMES, encode
from foliot.kernel.run.events import Event, RunClaimed
from foliot.kernel.run.loop import apply
from foliot.kernel.run.state import State
from foliot.store.journal.base import Entry, Journal, JournalConflict, Lease, LeaseLost, Phase
from foliot.store.journal.chain import first_link, link_of

# --- tenure ----------------------------------------------------------------------------------------------------------

# How long a lease is this process's own, by clocks that nobody else has to agree with.
#
# Two clocks, because each is blind to something. The wall clock is the one that others judge the lease by, and it may
# be set. The loop's clock is never set, and stands still while the machine is suspended. What both allow is certain.

# A timer that goes off later than this part of a lease did not find the process awake.
SLEPT: Final = 0.1


class LeaseClock:
    """One lease: until when it is in force, and an alarm for the moment in which it is over."""

    __slots__ = ("_alarm", "_clock", "_ends", "_lapsed", "_loop", "_seconds", "until")

    def __init__(self, until: float, *, clock: Clock, seconds: float) -> None:
        """`seconds` is how long a lease lasts when it is new: never is more than that believed to be left."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._seconds = seconds
        self._alarm: asyncio.TimerHandle | None = None
        self._lapsed: Callable[[bool], None] | None = None
        self.until = until
        self._ends = self._loop.time() + min(until - clock(), seconds)

    def renewed(self, until: float, ends: float) -> None:
        """The lease lasts until then, by the wall clock and by the loop's, both reckoned from before it was asked for.

        An answer that comes late shortens nothing.
        """
        if ends >= self._ends:
            self.until, self._ends = until, ends

    def in_force(self) -> bool:
        """Whether the lease is certainly this process's own."""
        return self._clock() < self.until and self._loop.time() < self._ends

    def left(self) -> float:
        """The seconds for which the lease may still be used, whatever was done to the wall clock."""
        return self._ends - self._loop.time()

    def watch(self, lapsed: Callable[[bool], None]) -> None:
        """Call `lapsed` when the lease ends without having been renewed.

        With True when this process was asleep then, and so nobody can have tried to renew it.
        """
        self._lapsed = lapsed
        self._alarm = self._loop.call_at(self._ends, self._ring)

    def close(self) -> None:
        """Watch no longer."""
        self._lapsed = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        """Renewals do not move the alarm, they are far more frequent: it looks when it goes off."""
        late = self._loop.time() - self._ends
        if self._lapsed is None:
            return
        if late < 0:
            self._alarm = self._loop.call_at(self._ends, self._ring)
        else:
            self._alarm = None
            self._lapsed(late > self._seconds * SLEPT)


# --- appending -------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

T = TypeVar("T")
Verdict: TypeAlias = Literal["stored", "absent", "lost", "conflict"]
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


def claimed(state: State, lease: Lease) -> RunClaimed:
    """Returns the fact with which an attempt under this lease begins."""
    released = lease.released and state.epoch > 0
    return RunClaimed(state.next_attempt, lease.worker, lease.epoch, lease.name, released)


def recorded(state: State, event: Event, at: float) -> Entry:
    """Fold a fact in; what is to be appended of it. Raises `Unencodable`, `IllegalEvent`: then nothing is folded."""
    data = encode(event)
    seq = apply(state, event, at).seq
    name = NAMES[type(event)]
    state.link = link = link_of(state.link or first_link(state.run_id), seq, at, name, data)
    return Entry(seq, at, name, data, link)


def entry_of(state: State, event: Event, at: float) -> Entry:
    """Returns the entry of a fact that is folded in only once it is stored. Raises `Unencodable`."""
    data, name, seq = encode(event), NAMES[type(event)], state.seq + 1
    return Entry(seq, at, name, data, link_of(state.link or first_link(state.run_id), seq, at, name, data))


def judge(lease: Lease, entries: Sequence[Entry], *, lets_go: bool, epoch: int, found: Sequence[Entry]) -> Verdict:
    """Judges whether an append under this lease was stored.

    `epoch` is the run's, and `found` are the events at the place of `entries`, read in this order: then "absent" means
    that it may be tried again, and "lost" that it never will be stored. `lets_go`: it gives the lease back, so a new
    epoch is what it brings about itself.
    """
    if entries and list(found) == list(entries):
        return "stored" if lets_go or epoch == lease.epoch else "lost"
    if epoch != lease.epoch:
        return "lost"
    return "conflict" if found else "absent"


def pause_before(attempt: int, run_id: str) -> float:
    """How long to wait before the attempt with this number, from 1: longer each time, and not the same for all runs."""
    return backoff(attempt, FIRST_PAUSE, LONGEST_PAUSE, jitter="equal", share=share_of(f"{run_id}/{attempt}"))


async def append_again(
    append: Callable[[], Awaitable[None]],
    error: Unavailable,
    *,
    journal: Journal,
    lease: Lease,
    entries: Sequence[Entry],
    phase: Phase | None,
    tenure: LeaseClock,
) -> None:
    """Bring an append to an end that has failed with `error`. `append` does the same once more.

    Raises what `append` raises, and `error` or the latest of its kind when the lease ends first.
    """
    lets_go = phase not in (None, "running")

    async def look() -> Verdict:
        try:
            info = await journal.get(lease.run_id)
        except NotFound:
            return "lost"
        found = await journal.read(lease.run_id, after=entries[0].seq - 1, limit=len(entries)) if entries else ()
        # An epoch that a store gave again, to another worker, is not ours.
        epoch = info.epoch if info.worker == lease.worker or info.epoch != lease.epoch else info.epoch + 1
        return judge(lease, entries, lets_go=lets_go, epoch=epoch, found=found)

    async def attempt() -> None:
        verdict = await look()
        if verdict == "absent":
            try:
                return await append()
            except (LeaseLost, JournalConflict) as refused:
                # The earlier attempt may have been stored between the look and this one.
                verdict = await look()
                if verdict == "absent":
                    raise refused
        if verdict == "lost":
            raise LeaseLost(f"run {lease.run_id} is no longer held by {lease.worker}")
        if verdict == "conflict":
            raise JournalConflict(f"others have written to run {lease.run_id} under the lease of {lease.worker}")
        return None

    log.info("run %s: an append is tried again until the lease ends: %s", lease.run_id, error.message)
    await persist(attempt, error, run_id=lease.run_id, tenure=tenure)


async def persist(attempt: Callable[[], Awaitable[T]], error: Unavailable, *, run_id: str, tenure: LeaseClock) -> T:
    """Do again what failed with `error`, after a pause each time, until it does not or the lease ends.

    Raises the latest `Unavailable` then, at once one that will not pass, and anything else that `attempt` raises.
    """
    tries = 0
    while error.retryable and (left := tenure.left()) > 0:
        tries += 1
        await asyncio.sleep(min(pause_before(tries, run_id), left))
        try:
            return await attempt()
        except Unavailable as again:
            error = again
    raise error
