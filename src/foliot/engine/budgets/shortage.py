"""Shortages: which budget has no room, how it stands, and for how long. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct

from foliot.engine.budgets.declared import BudgetRule
from foliot.kernel.run.events import BudgetExceeded
from foliot.resources.amounts import MICRO, dollars
from foliot.store.ledger.budgets import Amount, Balance, BudgetAccount, Ceiling, Short, has_room

# Wakes the run a moment after midnight and not a moment before: clocks of workers differ.
AFTER_MIDNIGHT: Final = 1.0
# When to look again, where there would be room but for what others have reserved: they will settle for less.
SOON: Final = 15.0


class Shortage(Struct, frozen=True):
    """Why an act may not begin. `until` is when to look again; None: not before somebody raises the limit.

    `basis` is that of the declarations which refuse it (`DeclaredBudgets.basis`).
    """

    budget: str
    namespace: str
    limit: Literal["cost_usd", "tokens"]
    used: float
    allowed: float
    message: str
    then: Literal["pause", "fail"] = "pause"
    until: float | None = None
    basis: str = ""

    def fact(self, call_id: str | None = None) -> BudgetExceeded:
        return BudgetExceeded(
            limit=self.limit,
            used=self.used,
            allowed=self.allowed,
            message=self.message,
            then=self.then,
            budget=self.budget,
            until=self.until,
            call_id=call_id,
            basis=self.basis,
        )


def worst_of(short: Sequence[tuple[BudgetRule, Short]], estimate: Amount, now: float) -> Shortage:
    """Chooses the shortage to report among several: one that ends the run, else the one that lasts longest."""
    told = [shortage(rule, each, estimate, now) for rule, each in short]
    return max(told, key=lambda each: (each.then == "fail", math.inf if each.until is None else each.until))


def shortage(rule: BudgetRule, short: Short, estimate: Amount, now: float) -> Shortage:
    ceiling, balance = short.ceiling, short.balance
    in_money = ceiling.micros is not None and balance.taken.micros + estimate.micros > ceiling.micros
    limit = ceiling.micros if in_money else ceiling.tokens
    assert limit is not None, "what has no limit is never short"
    needed = estimate.micros if in_money else estimate.tokens
    taken = balance.taken.micros if in_money else balance.taken.tokens
    until = rule.span(now).until
    never = needed > limit
    again = None if until is None else until + AFTER_MIDNIGHT
    if never:
        again = None  # not even an empty budget has room: the next window would change nothing
    elif passing([short], estimate):
        again = now + SOON
    return Shortage(
        budget=rule.name,
        namespace=rule.namespace,
        limit="cost_usd" if in_money else "tokens",
        used=taken / MICRO if in_money else taken,
        allowed=limit / MICRO if in_money else limit,
        message=_message(rule, ceiling, balance, needed, in_money=in_money, never=never, until=until),
        then=rule.on_exceeded,
        until=again,
    )


def passing(short: Sequence[Short], estimate: Amount) -> bool:
    """Whether there would be room in all of these but for what is reserved: that will be settled before long."""

    def fits(each: Short) -> bool:
        return has_room(each.ceiling, Balance(each.balance.spent), estimate)

    return bool(short) and all(fits(each) for each in short)


def unpriced(rule: BudgetRule, what: str) -> Shortage:
    """A price that nobody knows has no room in a budget of money."""
    assert rule.micros is not None, "what does not count money needs no price"
    return Shortage(
        budget=rule.name,
        namespace=rule.namespace,
        limit="cost_usd",
        used=0,
        allowed=rule.micros / MICRO,
        message=f"budget {rule.name!r} counts money, and the price of {what} is not known: "
        "give that ModelEndpoint a `pricing`, or the budget `unpriced: allow`",
        then=rule.on_exceeded,
    )


def _message(
    rule: BudgetRule,
    ceiling: Ceiling,
    balance: Balance,
    needed: int,
    *,
    in_money: bool,
    never: bool,
    until: float | None,
) -> str:
    def said(amount: int) -> str:
        return dollars(amount) if in_money else f"{amount:,}"

    unit = "USD" if in_money else "tokens"
    spent = balance.spent.micros if in_money else balance.spent.tokens
    reserved = balance.reserved.micros if in_money else balance.reserved.tokens
    limit = (ceiling.micros if in_money else ceiling.tokens) or 0
    text = f"budget {rule.name!r}{_whose(ceiling.account)} has no room: {said(spent)} of {said(limit)} {unit} are spent"
    if reserved:
        text += f", {said(reserved)} reserved"
    text += f", and this may take {said(needed)}"
    if never:
        return f"{text}, more than the whole limit"
    return (
        text if until is None else f"{text}; it begins anew at {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC"
    )


def _whose(account: BudgetAccount) -> str:
    return f" ({account.payer.replace('=', ' ').replace(',', ', ')})" if account.payer else ""


def crossed(rule: BudgetRule, before: Balance, after: Balance) -> int | None:
    """The highest percentage at which a warning is wanted and that was passed just now."""

    def passed(percent: int) -> bool:
        money = (
            rule.micros is not None and before.spent.micros * 100 < percent * rule.micros <= after.spent.micros * 100
        )
        return money or (
            rule.tokens is not None and before.spent.tokens * 100 < percent * rule.tokens <= after.spent.tokens * 100
        )

    return max((percent for percent in rule.warn if passed(percent)), default=None)
