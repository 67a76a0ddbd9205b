"""How often and how many at once: looked at before a call is started, taken when it acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foliot.tools.base import Invocation, RateLimit, ToolDefinition
from foliot.tools.limiter import Limiter, too_often
from foliot.tools.rules import Rules
from foliot.tools.running import Handler, Running
from foliot.tools.verdict import Verdict

# The longest wait for a turn of a tool that has no time limit of its own.
LONGEST_WAIT = 30.0


class RateGate:
    """Refuses a call that would wait too long for its turn. Takes nothing: the call may still have to be asked for."""

    layer = "rate"

    def __init__(self, definition: ToolDefinition, limit: RateLimit, limiter: Limiter) -> None:
        self._key = rate_key(definition)
        self._limit = limit
        self._limiter = limiter
        self._longest = definition.timeout or LONGEST_WAIT

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        wait = await self._limiter.wait_for(self._key, self._limit)
        if wait > self._longest:
            raise too_often(self._key, wait)


class RateStage:
    """Waits for its turn, and gives its place back whatever happens. The wait is not part of the tool's own time."""

    def __init__(self, definition: ToolDefinition, limit: RateLimit, limiter: Limiter) -> None:
        self._key = rate_key(definition)
        self._limit = limit
        self._limiter = limiter
        self._longest = definition.timeout or LONGEST_WAIT

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        await self._limiter.enter(self._key, self._limit, within=self._longest)
        try:
            await running.check_right()
            return await next(call, running)
        finally:
            await self._limiter.leave(self._key, self._limit)


def rate_key(definition: ToolDefinition) -> str:
    return f"{definition.namespace}/{definition.name}"
