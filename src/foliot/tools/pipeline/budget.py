"""Is there money left for this call? Looked at before consent is asked for, taken last, settled when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from foliot.tools.base import Invocation, ToolDefinition, ToolDenied, ToolError
from foliot.tools.governance.rules import Rules, Verdict
from foliot.tools.pipeline.running import Handler, Running

NO_ROOM = "budget_exceeded"


class ToolOverBudget(ToolDenied):
    """There is no room in a budget. `details` say which (`rule`), how it stands and when to look again (`until`).

    A run need not take this for an answer: it can wait for room, and start the call then.
    """

    kind = NO_ROOM


class Payment(Protocol):
    """The reservation for one call."""

    async def settle(self, times: int) -> None:
        """The call is over, and acted this often. Never raises."""
        ...

    def settle_later(self, times: int) -> None:
        """The same without waiting, for a call that is being stopped."""
        ...


class PipelineBudgets(Protocol):
    """Limits that go beyond one run: over all that a run delegated, over an agent, a user, a tenant, a month."""

    async def look(self, call: Invocation, definition: ToolDefinition) -> None:
        """Raises `ToolOverBudget` when there is no room for the call. Takes nothing."""
        ...

    async def reserve(self, call: Invocation, definition: ToolDefinition) -> None:
        """Keep room for the call until it is paid for. Raises `ToolOverBudget`."""
        ...

    def payment(self, call: Invocation) -> Payment | None:
        """Hands over the reservation for this call, once; None when there is none."""
        ...


class BudgetGate:
    """Stands before consent: nobody is asked about a call that could not be paid for."""

    layer = "budget"

    def __init__(self, definition: ToolDefinition, budgets: PipelineBudgets) -> None:
        self._definition = definition
        self._budgets = budgets

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        await self._budgets.look(call, self._definition)


class BudgetHold:
    """The last gate: the call is allowed, and nothing but its start lies between this and the backend."""

    layer = "budget"

    def __init__(self, definition: ToolDefinition, budgets: PipelineBudgets) -> None:
        self._definition = definition
        self._budgets = budgets

    def look(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        """The gate before consent has looked."""

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        await self._budgets.reserve(call, self._definition)


class Pay:
    """The outermost stage: every attempt that may have acted is paid for, whatever came of it."""

    def __init__(self, budgets: PipelineBudgets) -> None:
        self._budgets = budgets

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        payment = self._budgets.payment(call)
        if payment is None:
            return await next(call, running)
        try:
            value = await next(call, running)
        except asyncio.CancelledError:
            payment.settle_later(_acted(running) + 1)
            raise
        except ToolError as error:
            await payment.settle(_acted(running) + (not error.before_effect))
            raise
        await payment.settle(_acted(running) + 1)
        return value


def _acted(running: Running) -> int:
    """How many of the attempts that failed and were repeated may have acted."""
    return sum(not failure.before_effect for failure in running.failures)
