"""What the stages of the pipeline need from around them. Whoever builds a pipeline gives what there is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from foliot.tools.limiter import Limiter, LocalLimiter
from foliot.tools.rules import FixedRules, RuleSource
from foliot.tools.stages.allow_list import Profile
from foliot.tools.stages.approval import Grants
from foliot.tools.stages.breaker import Circuits, CircuitSource
from foliot.tools.stages.budget import Budgets
from foliot.tools.stages.mask import Masker
from foliot.tools.stages.record import Recorder
from foliot.tools.stages.secrets import HasSecret
from foliot.tools.stages.truncate import LIMIT, StoreBlob


@dataclass(frozen=True, slots=True)
class Parts:
    """`limiter` and `circuits` hold the state of all tools of a process: pipelines that share tools share them.

    `clock` is the time of day in seconds since 1970. `result_limit` is in bytes.
    """

    rules: RuleSource = field(default_factory=FixedRules)
    grants: Grants | None = None
    profile: Profile = field(default_factory=Profile)
    limiter: Limiter = field(default_factory=LocalLimiter)
    circuits: CircuitSource = field(default_factory=Circuits)
    budgets: Budgets | None = None
    has_secret: HasSecret | None = None
    masker: Masker | None = None
    store_blob: StoreBlob | None = None
    recorders: tuple[Recorder, ...] = ()
    result_limit: int = LIMIT
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
