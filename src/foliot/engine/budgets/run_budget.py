"""The spending of one run: each model call is reserved for before it starts, and settled after it ends.

fact = await purse.ask(action, ask)      # ask() is awaited only when there is room
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from foliot.engine.base import Clock
from foliot.engine.budgets.calls import CallBudgets, payer_of
from foliot.engine.budgets.declared import BudgetRule, DeclaredBudgets, Payer
from foliot.engine.budgets.service import BudgetListener, BudgetService, Estimate, Hold
from foliot.engine.budgets.shortage import Shortage
from foliot.engine.budgets.wakeups import PausedSweep, may_go_on
from foliot.engine.driver.effects import not_answered
from foliot.errors import FoliotError
from foliot.kernel.messages import ModelRequest, Usage
from foliot.kernel.run.actions import AskModel
from foliot.kernel.run.events import BudgetExceeded, ModelDelayed, ModelFailed, ModelResponded, StepStarted
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.models.base import ModelError
from foliot.models.routing.usage import UsageQuote, account
from foliot.resources.amounts import micros_of_cost
from foliot.store.base import Database, ResourceStore
from foliot.store.journal.base import Journal
from foliot.store.ledger.budgets import Amount, PaidAct, SqlBudgetLedger

log = logging.getLogger(__name__)

# The answer that a budget reserves for where nothing bounds it and the budget is large; see `Estimate.within`.
LONG_OUTPUT: Final = 16_384

Asked: TypeAlias = ModelResponded | ModelFailed | ModelDelayed
HoldAgain: TypeAlias = Callable[[PaidAct], Awaitable[Hold | Shortage | None]]
Answer = TypeVar("Answer", bound=ModelResponded | ModelFailed | ModelDelayed | BudgetExceeded)


class Quote(Protocol):
    async def __call__(self, spec: RunSpec, request: ModelRequest) -> UsageQuote:
        """The most that a request is expected to take, over all models that may answer it. Raises `FoliotError`.

        The cost is None when the price of any of them is not known.
        """
        ...


class RunBudget:
    """Made for each run that is driven; looks up who pays only when there are budgets."""

    __slots__ = ("_calls", "_journal", "_payer", "_quote", "_service", "_state")

    def __init__(
        self, service: BudgetService, journal: Journal, quote: Quote, calls: CallBudgets, state: State
    ) -> None:
        self._service = service
        self._journal = journal
        self._quote = quote
        self._calls = calls
        self._state = state
        self._payer: Payer | None = None

    @property
    def is_free(self) -> bool:
        """Whether it is known that no budget says anything about this run now."""
        return self._service.declared.none(self._state.spec.namespace)

    async def ask(
        self,
        action: AskModel,
        ask: Callable[[], Awaitable[Asked]],
        *,
        spec: RunSpec | None = None,
        name: str = "",
    ) -> Asked | BudgetExceeded:
        """Reserves, awaits `ask` and settles; returns its outcome, or why nothing was asked.

        A question beside the steps of the run has a `name` of its own, and the `spec` that it is asked by.
        Raises only what `ask` raises.
        """
        act = PaidAct(self._state.run_id, name or f"step/{action.step}/{_attempt(action)}")
        spec = spec or self._state.spec
        await self._charge_lost(action, "")

        async def estimate() -> Estimate:
            usage = await self._quote(spec, action.request)
            longer = None
            if usage.output_tokens < LONG_OUTPUT and action.request.settings.max_output_tokens is None:
                long = replace(action.request.settings, max_output_tokens=LONG_OUTPUT)
                longer = _estimated(await self._quote(spec, replace(action.request, settings=long)), spec.model)
            return _estimated(usage, spec.model, longer)

        try:
            hold = await self._service.reserve(spec.namespace, act, self.payer, estimate)
        except ModelError as error:
            return not_answered(
                action.step, error
            )  # it would not answer either: there is no such endpoint, for example
        except FoliotError as error:
            # Without knowing that there is room nothing is asked; the kernel tries again after a while.
            message = f"the budgets of namespace {spec.namespace!r} cannot be checked: {error.message}"
            return ModelFailed(action.step, "budget", message, retryable=True)
        if isinstance(hold, Shortage):
            return hold.fact()
        if hold is None:
            return await ask()

        async def hold_again(act: PaidAct) -> Hold | Shortage | None:
            return await self._service.reserve(spec.namespace, act, self.payer, estimate)

        return await self._paid(hold, ask, hold_again)

    async def ask_within(
        self,
        limits: Sequence[BudgetRule],
        action: AskModel,
        ask: Callable[[], Awaitable[Asked | BudgetExceeded]],
        *,
        name: str = "",
    ) -> Asked | BudgetExceeded:
        """Asks like `ask`, within token limits of the task or run tree that the run belongs to."""
        state = self._state
        root = state.created.root if state.created is not None else ""
        work = Payer(state.spec.namespace, root or state.run_id, (state.spec.agent,))
        act = PaidAct(state.run_id, f"{name or f'step/{action.step}/{_attempt(action)}'}/work")

        await self._charge_lost(action, "/work")

        async def reserve(act: PaidAct) -> Hold | Shortage:
            return await self._service.reserve_in(limits, act, work, Estimate(Amount(0, 1), state.spec.model))

        try:
            hold = await reserve(act)
        except FoliotError as error:
            message = f"the tokens of this work cannot be counted: {error.message}"
            return ModelFailed(action.step, "budget", message, retryable=True)
        return hold.fact() if isinstance(hold, Shortage) else await self._paid(hold, ask, reserve)

    async def _charge_lost(self, action: AskModel, kind: str) -> None:
        """Charge attempts whose process ended before it could settle them: what they held is given back."""
        paying, attempt = account(), _attempt(action)
        for back, usage in enumerate(() if paying is None else paying.lost, 1):
            act = PaidAct(self._state.run_id, f"step/{action.step}/{attempt - back}{kind}")
            await self._service.charge(act, _amount(usage) or Amount(0, usage.total_tokens))

    def close(self) -> None:
        """The run is let go. Returns at once."""
        self._calls.forget(self._state.run_id)

    async def payer(self) -> Payer:
        if self._payer is None:
            spec = self._state.spec
            self._payer = await payer_of(
                self._journal,
                self._state.run_id,
                namespace=spec.namespace,
                agent=spec.agent,
                user=self._state.identity.user,
            )
        return self._payer

    async def _paid(self, hold: Hold, ask: Callable[[], Awaitable[Answer]], reserve: HoldAgain) -> Answer:
        payment = _Payment(self._service, hold, reserve)
        paying = account()
        if paying is not None:
            paying.checks += (payment.goes_on,)
            payment.bind(hold)
        try:
            fact = await ask()
        except asyncio.CancelledError:
            payment.cut(Usage() if paying is None else paying.usage)
            raise
        if isinstance(fact, ModelResponded):
            await payment.settle(fact.response.usage, expected=True)
        elif isinstance(fact, ModelFailed) or (isinstance(fact, ModelDelayed) and fact.usage.total_tokens):
            await payment.settle(fact.usage)
        else:
            payment.let_go()  # it was not asked
        return fact


class _Payment:
    """Pays for the attempts at one answer, one after the other: each is reserved for, and settled when it is over."""

    def __init__(self, service: BudgetService, hold: Hold, reserve: HoldAgain) -> None:
        self._service = service
        self._hold: Hold | None = hold
        self._first = hold
        self._reserve = reserve
        self._attempts = 1
        # What processes used that ended before is charged already, each to its own act.
        lost = [_amount(usage) or Amount(0, usage.total_tokens) for usage in getattr(account(), "lost", ())]
        self._settled = Amount(sum(each.micros for each in lost), sum(each.tokens for each in lost))

    def bind(self, hold: Hold) -> None:
        """Let an answer have no more tokens than are reserved for it."""
        paying, output = account(), hold.estimate.output
        if paying is not None and output:
            names = ", ".join(repr(each) for each in dict.fromkeys(rule.name for rule in hold.accounts.values()))
            paying.bound(f"what Budget {names} reserves for an answer", output)

    async def goes_on(self, used: Usage) -> bool:
        """Pay for an attempt that failed; and whether there is room for the next one."""
        hold, self._hold = self._hold, None
        if hold is None:
            return True
        paid = _amount(used) or _unpriced(hold, used)
        await self._service.settle(hold, paid)
        self._settled = Amount(self._settled.micros + paid.micros, self._settled.tokens + paid.tokens)
        self._attempts += 1
        try:
            held = await self._reserve(PaidAct(self._first.act.run_id, f"{self._first.act.name}/{self._attempts}"))
        except FoliotError:
            return False
        if isinstance(held, Shortage):
            return False
        self._hold = held
        if held is not None:
            self.bind(held)
        return True

    async def settle(self, used: Usage, *, expected: bool = False) -> None:
        """The last attempt is over. `expected`: it gave the answer; otherwise `used` is that of all attempts."""
        if self._hold is None:
            return
        if expected:
            await self._service.settle(self._hold, _amount(used) or _unpriced(self._hold, used))
        else:
            await self._service.settle(self._hold, self._rest(used))

    def cut(self, used: Usage) -> None:
        """Settles a question that was abandoned; `used` is the known usage of its attempts."""
        if self._hold is None:
            return
        rest = self._rest(used)
        if rest.tokens or rest.micros:
            self._service.settle_later(self._hold, rest)
        else:
            self._service.let_go(self._hold)

    def let_go(self) -> None:
        if self._hold is not None:
            self._service.let_go(self._hold)

    def _rest(self, used: Usage) -> Amount:
        whole = _amount(used) or Amount(0, used.total_tokens)
        micros, tokens = whole.micros - self._settled.micros, whole.tokens - self._settled.tokens
        return Amount(max(0, micros), max(0, tokens))


def _estimated(usage: UsageQuote, model: str, longer: Estimate | None = None) -> Estimate:
    amount = _amount(usage) or Amount(0, usage.total_tokens)
    return Estimate(amount, usage.unpriced or model, usage.cost_usd is not None, usage.output_tokens, longer)


def _attempt(action: AskModel) -> int:
    return next((event.attempt for event in action.events if isinstance(event, StepStarted)), 1)


def _amount(usage: Usage) -> Amount | None:
    """Converts usage to an amount; None when its price is not known."""
    return None if usage.cost_usd is None else Amount(micros_of_cost(usage.cost_usd), usage.total_tokens)


def _unpriced(hold: Hold, usage: Usage) -> Amount:
    """An answer without a price where one was expected: it cost what was reserved for it. Unknown is not free."""
    return Amount(hold.estimate.amount.micros, usage.total_tokens)


# --- opening ---------------------------------------------------------------------------------------------------------

# The budgets of one process, put together: what runs and tool calls spend, and what lets paused runs go on.


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

    def purse(self, state: State) -> RunBudget:
        return RunBudget(self._service, self._journal, self._quote, self.calls, state)

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
    told: BudgetListener | None = None,
) -> RunBudgets:
    declared = DeclaredBudgets(resources, clock=clock)
    service = BudgetService(SqlBudgetLedger(database), declared, clock=clock, told=told)
    return RunBudgets(service, journal, quote, PausedSweep(database, journal, declared, clock=clock))
