"""The shared limits of one process, put together."""

from __future__ import annotations

from dataclasses import dataclass

from foliot.engine.base import Clock
from foliot.engine.limiting.circuits import SharedCircuits
from foliot.engine.limiting.limiter import SharedLimiter
from foliot.store.base import Database
from foliot.store.limits import SqlLimits


@dataclass(frozen=True, slots=True)
class Limiting:
    """`close` it before the database."""

    limiter: SharedLimiter
    circuits: SharedCircuits

    async def close(self) -> None:
        await self.limiter.close()
        await self.circuits.close()


def open_limiting(database: Database, *, clock: Clock) -> Limiting:
    """The limits on tools that all processes on this database keep to together."""
    limits = SqlLimits(database)
    return Limiting(SharedLimiter(limits, clock=clock), SharedCircuits(limits, clock=clock))
