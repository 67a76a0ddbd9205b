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
from zlib import crc32

from foliot.engine.tenure import Tenure
from foliot.errors import NotFound, Unavailable
from foliot.kernel.codec import NAMES, encode
from foliot.kernel.events import Event
from foliot.kernel.loop import apply
from foliot.kernel.state import State
from foliot.store.journal_chain import first_link, link_of
from foliot.store.runs import Entry, Journal, JournalConflict, Lease, LeaseLost, Phase

log = logging.getLogger(__name__)

T = TypeVar("T")
Verdict: TypeAlias = Literal["stored", "absent", "lost", "conflict"]
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


def recorded(state: State, event: Event, at: float) -> Entry:
    """Fold a fact in; what is to be appended of it. Raises `Unencodable`, `IllegalEvent`: then nothing is folded."""
    data = encode(event)
    seq = apply(state, event, at).seq
    name = NAMES[type(event)]
    state.link = link = link_of(state.link or first_link(state.run_id), seq, at, name, data)
    return Entry(seq, at, name, data, link)


def judge(lease: Lease, entries: Sequence[Entry], *, lets_go: bool, epoch: int, found: Sequence[Entry]) -> Verdict:
    """What became of an append under this lease.

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
    longest = min(FIRST_PAUSE * 2 ** min(attempt - 1, 16), LONGEST_PAUSE)
    return longest * (0.5 + crc32(f"{run_id}/{attempt}".encode()) / 2**33)


async def append_again(
    append: Callable[[], Awaitable[None]],
    error: Unavailable,
    *,
    journal: Journal,
    lease: Lease,
    entries: Sequence[Entry],
    phase: Phase | None,
    tenure: Tenure,
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


async def persist(attempt: Callable[[], Awaitable[T]], error: Unavailable, *, run_id: str, tenure: Tenure) -> T:
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
