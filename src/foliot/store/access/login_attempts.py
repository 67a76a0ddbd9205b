"""How often somebody may try to log in, counted in the store: for all servers on it together.

Each attempt pushes a subject's clock forward by an interval; who is too far ahead of the real one has to wait. One
statement decides and counts, so attempts at the same moment cannot slip through together.
"""

from __future__ import annotations

from typing import NamedTuple

from foliot.store.base import Database
from foliot.store.transaction import run


class Pace(NamedTuple):
    """So many attempts at once, then one for each `interval` seconds."""

    burst: int
    interval: float


class SqlLoginAttempts:
    """On either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def charge(self, subject: str, pace: Pace, *, now: float) -> float:
        """Count an attempt. 0 when it may be made; else the seconds to wait, and nothing is counted."""
        allowed = now + (pace.burst - 1) * pace.interval
        counted = await self._db.write(
            run,
            "attempt_charge",
            subject=subject,
            now=now,
            fresh=now + pace.interval,
            interval=pace.interval,
            allowed=allowed,
        )
        if counted:
            return 0.0
        found = await self._db.read("attempt_get", subject=subject)
        return max(found[0]["busy_until"] - allowed, 0.001) if found else pace.interval

    async def refund(self, subject: str, pace: Pace) -> None:
        """The attempt was a good one: it does not count."""
        await self._db.write(run, "attempt_refund", subject=subject, interval=pace.interval)

    async def prune(self, *, now: float) -> int:
        """Forget subjects that need not wait; the number of them."""
        return await self._db.write(run, "attempt_prune", now=now)
