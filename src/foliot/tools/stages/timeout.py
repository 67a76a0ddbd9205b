"""Bounds how long one call may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from foliot.tools.base import Invocation, ToolTimeout


class Timeout:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, call: Invocation, *, next: Callable[[Invocation], Awaitable[Any]]) -> Any:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await next(call)
        except TimeoutError:
            if not limit.expired():
                raise  # the tool's own, not ours
            raise ToolTimeout(f"the tool {call.tool!r} took longer than {self._seconds:g} s and was stopped") from None
