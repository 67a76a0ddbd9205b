"""Payments for tool calls with a price: implements the pipeline's `Budgets` with the budgets of this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from foliot.engine.budgets.declared import Payer
from foliot.engine.budgets.service import BudgetService, Estimate, Hold
from foliot.engine.budgets.shortage import Shortage
from foliot.errors import NotFound
from foliot.kernel.messages import ToolFailure
from foliot.kernel.run.events import BudgetExceeded
from foliot.store.journal.base import Journal, RunInfo
from foliot.store.ledger.budgets import Amount, PaidAct
from foliot.tools.base import Caller, Invocation, ToolDefinition
from foliot.tools.pipeline.gates import NO_ROOM, ToolOverBudget

# --- lineage ---------------------------------------------------------------------------------------------------------

# Who pays for a run, by what is stored of it and of the runs that delegated to it.

# More than delegation allows. A chain that is longer is a circle in a damaged store.
LONGEST: Final = 50


async def payer_of(journal: Journal, run_id: str, *, namespace: str, agent: str, user: str = "") -> Payer:
    """The payer of a run. Labels are the run's own and those it has inherited.

    `user` is that of the run's identity, which delegates have from the run above them. Labels say nothing of it: they
    can be chosen.
    """
    agents = [agent] if agent else []
    labels: dict[str, str] = {}
    top: RunInfo | None = None
    above: str | None = run_id
    for _ in range(LONGEST):
        if not above:
            break
        try:
            top = await journal.get(above)
        except NotFound:
            break
        if top.id != run_id:
            agents.append(top.agent)
        labels = {**top.labels, **labels}
        above = top.parent if top.is_child else None
    return Payer(namespace, run_id if top is None else top.id, tuple(agents), user, labels)


# --- calls -----------------------------------------------------------------------------------------------------------

KNOWN_PAYERS: Final = 1000
_Key: TypeAlias = tuple[str, str, int]


class CallBudgets:
    """Reserves and settles payments for tool calls. The payer of a run does not change, so it is looked up once."""

    def __init__(self, service: BudgetService, journal: Journal) -> None:
        self._service = service
        self._journal = journal
        self._payers: OrderedDict[str, Payer] = OrderedDict()
        self._held: dict[_Key, CallPayment] = {}

    async def look(self, call: Invocation, definition: ToolDefinition) -> None:
        short = await self._service.look(call.namespace, self._payer(call), _estimate(definition))
        if short is not None:
            raise over_budget(short)

    async def look_at_model(self, caller: Caller) -> None:
        """Whether anything at all is left for a question to a model. Raises `ToolOverBudget`."""
        asked = Invocation("", "", "", {}, "", caller)
        least = Estimate(Amount(0, 1), caller.model)
        short = await self._service.look(caller.namespace, self._payer(asked), least)
        if short is not None:
            raise over_budget(short)

    async def reserve(self, call: Invocation, definition: ToolDefinition) -> None:
        act = PaidAct(call.run_id, f"call/{call.call_id}/{call.attempt}")
        hold = await self._service.reserve(call.namespace, act, self._payer(call), _later(_estimate(definition)))
        if isinstance(hold, Shortage):
            raise over_budget(hold)
        if hold is not None:
            self._held[_key(call)] = CallPayment(self._service, hold, definition.price)

    def payment(self, call: Invocation) -> CallPayment | None:
        return self._held.pop(_key(call), None)

    def forget(self, run_id: str) -> None:
        """The run is let go: what it reserved for calls that were never made is free again."""
        for key in [key for key in self._held if key[0] == run_id]:
            self._held.pop(key).let_go()

    def _payer(self, call: Invocation) -> Callable[[], Awaitable[Payer]]:
        async def look_up() -> Payer:
            if (known := self._payers.get(call.run_id)) is not None:
                return known
            caller = call.caller
            payer = await payer_of(
                self._journal, call.run_id, namespace=caller.namespace, agent=caller.agent, user=caller.user
            )
            if call.run_id:
                self._payers[call.run_id] = payer
                if len(self._payers) > KNOWN_PAYERS:
                    self._payers.popitem(last=False)
            return payer

        return look_up


class CallPayment:
    """A `Payment`."""

    def __init__(self, service: BudgetService, hold: Hold, price: int) -> None:
        self._service = service
        self._hold = hold
        self._price = price

    async def settle(self, times: int) -> None:
        await self._service.settle(self._hold, Amount(self._price * times))

    def settle_later(self, times: int) -> None:
        self._service.settle_later(self._hold, Amount(self._price * times))

    def let_go(self) -> None:
        self._service.let_go(self._hold)


def over_budget(short: Shortage) -> ToolOverBudget:
    return ToolOverBudget(
        short.message,
        hint=f"raise the limit of Budget/{short.budget}, or wait",
        layer="budget",
        rule=f"Budget/{short.budget}",
        budget=short.budget,
        limit=short.limit,
        used=short.used,
        allowed=short.allowed,
        then=short.then,
        until=short.until,
        basis=short.basis,
    )


def shortage_of(call_id: str, failure: ToolFailure | None) -> BudgetExceeded | None:
    """The fact that a refused call is about, when it was refused for want of room; see `over_budget`."""
    if failure is None or failure.kind != NO_ROOM:
        return None
    said = failure.details
    return BudgetExceeded(
        limit="tokens" if said.get("limit") == "tokens" else "cost_usd",
        used=said.get("used", 0),
        allowed=said.get("allowed", 0),
        message=failure.message,
        then="fail" if said.get("then") == "fail" else "pause",
        budget=str(said.get("budget", "")),
        until=said.get("until"),
        call_id=call_id,
        basis=str(said.get("basis", "")),
    )


def _estimate(definition: ToolDefinition) -> Estimate:
    """Every attempt that is allowed may cost the price."""
    return Estimate(Amount(definition.price * definition.retry.max_attempts), definition.name)


def _later(estimate: Estimate) -> Callable[[], Awaitable[Estimate]]:
    async def given() -> Estimate:
        return estimate

    return given


def _key(call: Invocation) -> _Key:
    return (call.run_id, call.call_id, call.attempt)
