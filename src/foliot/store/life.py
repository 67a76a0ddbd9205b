"""Which store this is, and whether it went back in time: by a failover to an old replica, or a backup put back.

What was done after the moment it went back to, it does not know: effects happened that no journal tells of, and would
happen again. So whoever holds something newer than the store knows says so, and stops: a worker whose signs of life are
ahead, a holder whose epoch or last event is. What was found is kept for `foliot doctor`.

Written by:  work/presence.py and engine/runs.py, who find it; incarnation.py begins a new one.
Read by:     cli/doctor/store.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from foliot.store.base import Database
from foliot.store.transaction import Tx, run

log = logging.getLogger(__name__)


class StoreLife(Struct, frozen=True):
    """`set_back_at` is when a process last found the store older than what it had seen; `set_back` says what."""

    incarnation: str
    set_back_at: float | None = None
    set_back: str = ""


async def store_life(db: Database) -> StoreLife:
    (row,) = await db.read("life_get")
    return StoreLife(**row)


async def note_set_back(db: Database, what: str, *, clock: Callable[[], float]) -> None:
    """Say that the store is older than it was, loudly, and keep it."""
    log.error("THE STORE WENT BACK IN TIME: %s. What was done since may be done again; see `foliot doctor`", what)
    await db.write(_note, what, clock())


def _note(what: str, now: float) -> Tx[int]:
    return (yield from run("life_set_back", what=what, now=now))
