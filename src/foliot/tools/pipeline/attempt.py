"""Bounds one attempt: how long it may take, and how long it may be silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from foliot.tools.base import Invocation, ToolDefinition, ToolTimeout
from foliot.tools.pipeline.bounded import GRACE, BoundedWork, Scope
from foliot.tools.pipeline.running import Handler, Running, leave

# The end of what is said of a call that ran out of time and has not ended: true while its process lives.
GOES_ON: Final = " and goes on: it was told to stop and has not, so it may still act"


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
        right = running.may_act
        if seconds is None and self._idle is None and right is None:
            return await next(call, running)
        if seconds is not None and seconds <= 0:
            late = ToolTimeout(f"there is no time left to call {self._name!r}", timeout_scope=scope, forced=False)
            late.before_effect = True
            raise late
        running.left = []
        heard = running.on_output
        work = next(call, running) if heard is None else _late(next, call, running)
        bounded = BoundedWork(work, seconds=seconds, scope=scope, idle=self._idle, grace=self._grace, right=right)
        if heard is not None:
            running.on_output = bounded.listen(heard)
        try:
            value = await bounded
        finally:
            running.on_output = heard
            if bounded.left is not None:
                leave(call, bounded.left, self)
        if bounded.expired is not None:
            await running.end_processes(call)
            raise self._took_too_long(bounded, seconds, running.goes_on)
        return value

    def _bound(self, call: Invocation) -> tuple[float | None, Scope]:
        if call.deadline is None:
            return self._timeout, "attempt"
        left = call.deadline - self._clock()
        if self._timeout is not None and self._timeout < left:
            return self._timeout, "attempt"
        return left, "total"

    def _took_too_long(self, bounded: BoundedWork, seconds: float | None, goes_on: bool) -> ToolTimeout:
        if bounded.expired == "idle":
            said = f"the tool {self._name!r} was silent for more than {self._idle:g} s"
        else:
            said = f"the tool {self._name!r} took longer than {_in_words(bounded, seconds)} s"
        # That it was told to stop says nothing of what it has done by then, and of a server not even that it did.
        end = " and did not stop when it was told to" if bounded.forced else ""
        if goes_on:
            end = GOES_ON
        error = ToolTimeout(f"{said}{end}", timeout_scope=bounded.expired, forced=bounded.forced)
        if goes_on:
            error.still_running = error.details["still_running"] = True
        return error


def _in_words(bounded: BoundedWork, seconds: float | None) -> str:
    """The bound as somebody wrote it: of one for all attempts a moment was used before this attempt began."""
    assert seconds is not None, "it ran out"
    rough = bounded.expired == "total" and seconds > 0.5
    return f"{round(seconds, 1):g}" if rough else f"{seconds:.3g}"


async def _late(next: Handler, call: Invocation, running: Running) -> Any:
    """Calls `next` when it is awaited: only then is `running.on_output` the one that is listened to."""
    return await next(call, running)


# --- deadline --------------------------------------------------------------------------------------------------------

# Bounds a whole call, with its retries and the waits between them.


class Deadline:
    """Sets the time by which the call must be over; what stands inside keeps it. A deadline is never moved back."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        until = self._clock() + self._seconds
        if call.deadline is None or until < call.deadline:
            call = replace(call, deadline=until)
        return await next(call, running)
