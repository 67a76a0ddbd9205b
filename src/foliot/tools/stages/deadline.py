"""Bounds a whole call, with its retries and the waits between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from foliot.tools.base import Invocation
from foliot.tools.running import Handler, Running


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
