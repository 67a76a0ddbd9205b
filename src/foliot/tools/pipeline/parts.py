"""The services that the stages of the pipeline use. The builder of a pipeline passes those it has."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from foliot.kernel.messages import Usage
from foliot.kernel.run.budget import Spent
from foliot.tools.governance.layers import Profile
from foliot.tools.governance.rules import FixedRules, RuleSource
from foliot.tools.pipeline.breaker import Circuits, CircuitSource
from foliot.tools.pipeline.gates import ApprovalGrants, HasSecret, PipelineBudgets
from foliot.tools.pipeline.limiter import Limiter, LocalLimiter
from foliot.tools.pipeline.record import Recorder
from foliot.tools.pipeline.results import LIMIT, ResultMasker, StoreBlob


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """`limiter` and `circuits` hold the state of all tools of a process: pipelines that share tools share them.

    `clock` is the time of day in seconds since 1970. `result_limit` is in bytes.
    """

    rules: RuleSource = field(default_factory=FixedRules)
    grants: ApprovalGrants | None = None
    profile: Profile = field(default_factory=Profile)
    limiter: Limiter = field(default_factory=LocalLimiter)
    circuits: CircuitSource = field(default_factory=Circuits)
    budgets: PipelineBudgets | None = None
    has_secret: HasSecret | None = None
    masker: ResultMasker | None = None
    store_blob: StoreBlob | None = None
    recorders: tuple[Recorder, ...] = ()
    result_limit: int = LIMIT
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


# --- spending --------------------------------------------------------------------------------------------------------

# The spending of a call besides its time: tokens and money of the runs that it delegated.
#
# A tool says so with `spend`, from wherever in the call it is; whoever makes the call collects it around it. So it is
# counted whether the call succeeds, fails or is cut off.


class Spending:
    """`runs` is the newest account of each run that one call has delegated."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: dict[str, Usage] = {}

    def note(self, run_id: str, usage: Usage) -> None:
        self.runs[run_id] = usage

    @property
    def usage(self) -> Usage | None:
        """The sum; None when nothing was spent."""
        if not self.runs:
            return None
        total = Spent()
        for usage in self.runs.values():
            total.add(usage)
        return total.usage()


_current: ContextVar[Spending | None] = ContextVar("foliot_spending", default=None)


def count() -> Spending:
    """Collect from now on what is spent in this task, and in those that it starts."""
    spending = Spending()
    _current.set(spending)
    return spending


def spend(run_id: str, usage: Usage) -> None:
    """Account for all that a run has spent up to now. Said again of the same run, the newer account replaces."""
    if (spending := _current.get()) is not None:
        spending.note(run_id, usage)


def spent() -> Usage | None:
    """Returns the spending of the current call so far; None when there is none, or when nobody counts it."""
    spending = _current.get()
    return spending.usage if spending is not None and spending.runs else None
