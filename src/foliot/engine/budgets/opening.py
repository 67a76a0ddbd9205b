"""The budgets of one process, put together: what runs and tool calls spend, and what lets paused runs go on."""

from __future__ import annotations

from foliot.engine.base import Clock
from foliot.engine.budgets.calls import CallBudgets
from foliot.engine.budgets.declared import DeclaredBudgets
from foliot.engine.budgets.purse import Purse, Quote
from foliot.engine.budgets.service import BudgetService, Told
from foliot.engine.budgets.waking import PausedSweep, may_go_on
from foliot.kernel.state import State
from foliot.store.base import Database, ResourceStore
from foliot.store.budgets import SqlBudgetLedger
from foliot.store.runs import Journal


class RunBudgets:
    """`calls` is for the tool pipeline; a `purse` for each run that is driven. `close` it before the database.

    `declared` are the budgets as this process knows them; `sweep` finds runs that wait although a budget has changed.
    """

    def __init__(
        self, service: BudgetService, journal: Journal, quote: Quote, sweep: PausedSweep | None = None
    ) -> None:
        self.calls = CallBudgets(service, journal)
        self.declared = service.declared
        self._service = service
        self._journal = journal
        self._quote = quote
        self.sweep = sweep

    def purse(self, state: State) -> Purse:
        return Purse(self._service, self._journal, self._quote, self.calls, state)

    async def may_go_on(self, state: State) -> bool:
        """Whether a run that waits for a budget should look again before its time."""
        return await may_go_on(self.declared, state)

    async def close(self) -> None:
        await self._service.close()


def open_budgets(
    database: Database,
    resources: ResourceStore,
    journal: Journal,
    *,
    quote: Quote,
    clock: Clock,
    told: Told | None = None,
) -> RunBudgets:
    declared = DeclaredBudgets(resources, clock=clock)
    service = BudgetService(SqlBudgetLedger(database), declared, clock=clock, told=told)
    return RunBudgets(service, journal, quote, PausedSweep(database, journal, declared, clock=clock))
