"""The shared limits of one process, put together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from foliot.engine.base import Clock
from foliot.engine.driver.signals import signal
from foliot.engine.limits.circuits import SharedCircuits
from foliot.engine.limits.models import SharedTurns
from foliot.engine.limits.tools import SharedLimiter
from foliot.errors import Conflict, NotFound
from foliot.kernel.run.events import RunResumed
from foliot.store.base import Database
from foliot.store.journal.base import Journal
from foliot.store.ledger.model_limits import SqlModelLimits
from foliot.store.ledger.tool_limits import SqlLimits


@dataclass(frozen=True, slots=True)
class Limiting:
    """`close` it before the database."""

    limiter: SharedLimiter
    circuits: SharedCircuits
    turns: SharedTurns

    async def close(self) -> None:
        await self.limiter.close()
        await self.turns.close()
        await self.circuits.close()


def open_limiting(database: Database, *, clock: Clock, journal: Journal | None = None) -> Limiting:
    """The limits on tools and models that all processes on this database keep to together.

    In the `journal` runs are told that their turn at a model came earlier than expected.
    """
    limits = SqlLimits(database)

    async def wake(run_id: str) -> None:
        if journal is not None:
            with suppress(Conflict, NotFound):  # it has ended meanwhile
                await journal.signal(signal(run_id, RunResumed("timer"), clock()))

    turns = SharedTurns(SqlModelLimits(database), clock=clock, wake=wake)
    return Limiting(SharedLimiter(limits, clock=clock), SharedCircuits(limits, clock=clock), turns)
