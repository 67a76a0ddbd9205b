"""The services that the stages of the pipeline use. The builder of a pipeline passes those it has."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from foliot.tools.governance.layers import Profile
from foliot.tools.governance.rules import FixedRules, RuleSource
from foliot.tools.pipeline.approval import ApprovalGrants
from foliot.tools.pipeline.breaker import Circuits, CircuitSource
from foliot.tools.pipeline.budget import PipelineBudgets
from foliot.tools.pipeline.limiter import Limiter, LocalLimiter
from foliot.tools.pipeline.preconditions import HasSecret
from foliot.tools.pipeline.record import Recorder
from foliot.tools.pipeline.results import LIMIT, Masker, StoreBlob


@dataclass(frozen=True, slots=True)
class Parts:
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
    masker: Masker | None = None
    store_blob: StoreBlob | None = None
    recorders: tuple[Recorder, ...] = ()
    result_limit: int = LIMIT
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
