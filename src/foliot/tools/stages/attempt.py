"""Bounds one attempt: how long it may take, and how long it may be silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foliot.tools.base import Invocation, ToolDefinition, ToolTimeout
from foliot.tools.bounded import GRACE, Bounded, Scope
from foliot.tools.running import Handler, Running


class Attempt:
    """Control comes back at the bound, whether or not the backend listens; nothing late is believed."""

    def __init__(self, definition: ToolDefinition, clock: Callable[[], float], *, grace: float = GRACE) -> None:
        self._name = definition.name
        self._timeout = definition.attempt_timeout
        self._idle = definition.idle_timeout
        self._clock = clock
        self._grace = grace

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        seconds, scope = self._bound(call)
        if seconds is None and self._idle is None:
            return await next(call, running)
        if seconds is not None and seconds <= 0:
            raise ToolTimeout(f"there is no time left to call {self._name!r}", timeout_scope=scope, forced=False)
        heard = running.on_output
        if heard is None:
            bounded = Bounded(next(call, running), seconds=seconds, scope=scope, idle=self._idle, grace=self._grace)
            value = await bounded
        else:
            bounded = Bounded(
                _late(next, call, running), seconds=seconds, scope=scope, idle=self._idle, grace=self._grace
            )
            running.on_output = bounded.listen(heard)
            try:
                value = await bounded
            finally:
                running.on_output = heard
        if bounded.expired is not None:
            raise self._took_too_long(bounded, seconds)
        return value

    def _bound(self, call: Invocation) -> tuple[float | None, Scope]:
        if call.deadline is None:
            return self._timeout, "attempt"
        left = call.deadline - self._clock()
        if self._timeout is not None and self._timeout < left:
            return self._timeout, "attempt"
        return left, "total"

    def _took_too_long(self, bounded: Bounded, seconds: float | None) -> ToolTimeout:
        if bounded.expired == "idle":
            said = f"the tool {self._name!r} was silent for more than {self._idle:g} s"
        else:
            said = f"the tool {self._name!r} took longer than {seconds:.3g} s"
        end = "did not stop when told to and was ended by force" if bounded.forced else "was stopped"
        return ToolTimeout(f"{said} and {end}", timeout_scope=bounded.expired, forced=bounded.forced)


async def _late(next: Handler, call: Invocation, running: Running) -> Any:
    """Calls `next` when it is awaited: only then is `running.on_output` the one that is listened to."""
    return await next(call, running)
