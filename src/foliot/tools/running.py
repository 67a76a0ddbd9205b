"""What one call carries with it through the stages around its backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from foliot.tools.base import Invocation, OnOutput, ToolError


class Running:
    """`failures` are those of the attempts before the last: one entry for each time the call was tried again."""

    __slots__ = ("failures", "on_output")

    def __init__(self, on_output: OnOutput | None = None) -> None:
        self.on_output = on_output
        self.failures: list[ToolError] = []

    @property
    def attempts(self) -> int:
        return len(self.failures) + 1


Handler: TypeAlias = Callable[[Invocation, Running], Awaitable[Any]]
