"""Is there anything left to spend on this call?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict


class Budgets(Protocol):
    """Limits that go beyond one run: over a task and all it delegated, over a tenant, over a month."""

    async def check(self, call: Invocation, definition: ToolDefinition) -> str | None:
        """Why there is nothing left for this call; None when there is."""
        ...


class Budget:
    layer = "budget"

    def __init__(self, definition: ToolDefinition, budgets: Budgets) -> None:
        self._definition = definition
        self._budgets = budgets

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        spent = await self._budgets.check(call, self._definition)
        if spent is not None:
            raise Verdict("deny", self.layer, spent).denial()
