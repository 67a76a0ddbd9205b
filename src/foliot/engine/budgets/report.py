"""How budgets stand, for people: every budget with its accounts of the current window."""

from __future__ import annotations

from dataclasses import dataclass

from foliot.engine.budgets.declared import EACH, BudgetRule, budget_rule
from foliot.store.base import Document
from foliot.store.ledger.budgets import Account, AccountStatement, Amount, Balance, SqlBudgetLedger


@dataclass(frozen=True, slots=True)
class Standing:
    """One account of one budget. `left` is None where nothing is limited."""

    rule: BudgetRule
    account: Account
    balance: Balance

    @property
    def left(self) -> Amount:
        """The amount that can still be reserved, never below zero; zero, too, where no such limit is set."""
        taken = self.balance.taken
        return Amount(
            max(0, (self.rule.micros or 0) - taken.micros),
            max(0, (self.rule.tokens or 0) - taken.tokens),
        )

    @property
    def percent(self) -> int:
        """How much of the limit is spent or reserved; of money and tokens the one that is nearer to its end."""
        taken = self.balance.taken
        shares = [
            100 * used // limit if limit else 100
            for used, limit in ((taken.micros, self.rule.micros), (taken.tokens, self.rule.tokens))
            if limit is not None
        ]
        return max(shares, default=0)


async def standings(ledger: SqlBudgetLedger, document: Document, *, now: float, limit: int = 1000) -> list[Standing]:
    """The accounts of a budget in its current window, the last used first.

    One that nobody has spent from yet has one empty account, unless each payer has an account of its own.
    """
    rule = budget_rule(document)
    period = "" if rule.window == "run" else rule.span(now).period
    found: list[AccountStatement] = await ledger.list(rule.namespace, budget=rule.name, period=period, limit=limit)
    if not found and EACH not in (rule.agent, rule.user) and rule.window != "run":
        return [Standing(rule, Account(rule.namespace, rule.name, period), Balance())]
    return [Standing(rule, each.account, each.balance) for each in found]
