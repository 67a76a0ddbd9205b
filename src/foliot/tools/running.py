"""What one call carries with it through the stages around its backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from foliot.tools.base import Invocation, MayAct, OnOutput, ToolCancelled, ToolError


class Running:
    """`failures` are those of the attempts before the last: one entry for each time the call was tried again."""

    __slots__ = ("_may_act", "failures", "on_output")

    def __init__(self, on_output: OnOutput | None = None, may_act: MayAct | None = None) -> None:
        self.on_output = on_output
        self._may_act = may_act
        self.failures: list[ToolError] = []

    @property
    def attempts(self) -> int:
        return len(self.failures) + 1

    async def check_right(self) -> None:
        """For a stage that has waited. Raises `ToolCancelled` when the caller may not act any more.

        A machine that was suspended meanwhile wakes up with its work in other hands.
        """
        if self._may_act is not None and not await self._may_act():
            raise ToolCancelled("the run is in other hands by now; the tool was not called (again)")


Handler: TypeAlias = Callable[[Invocation, Running], Awaitable[Any]]
