"""What every ledger of budgets must do. Subclass it and give a `ledger` fixture."""

from __future__ import annotations

import asyncio

from foliot.store.ledger.budgets import (
    REMEMBER_SECONDS,
    Amount,
    Balance,
    BudgetAccount,
    Ceiling,
    PaidAct,
    SqlBudgetLedger,
)

DAY = BudgetAccount("default", "day", "2026-11-16")
TEAM = BudgetAccount("default", "team", "total")


def ceiling(account: BudgetAccount = DAY, micros: int | None = 100, tokens: int | None = None) -> Ceiling:
    return Ceiling(account, micros, tokens)


async def reserve(
    ledger: SqlBudgetLedger,
    act: str,
    micros: int,
    *ceilings: Ceiling,
    run: str = "r",
    holder: str = "me",
    now: float = 1.0,
    tokens: int = 0,
    until: float = 61.0,
) -> list[str]:
    """The budgets without room."""
    short = await ledger.reserve(
        PaidAct(run, act), ceilings or (ceiling(),), Amount(micros, tokens), holder=holder, now=now, until=until
    )
    return [each.ceiling.account.budget for each in short]


async def balance(ledger: SqlBudgetLedger, account: BudgetAccount = DAY) -> Balance:
    return (await ledger.balances([account]))[account]


class BudgetLedgerConformance:
    async def test_an_estimate_is_held_and_what_was_spent_takes_its_place(self, ledger: SqlBudgetLedger) -> None:
        assert await reserve(ledger, "a", 60, tokens=7) == []
        assert await balance(ledger) == Balance(Amount(), Amount(60, 7))
        moved = await ledger.settle(PaidAct("r", "a"), Amount(41, 5), now=2.0)
        assert moved == {DAY.key: (Balance(Amount(), Amount(60, 7)), Balance(Amount(41, 5), Amount()))}
        assert await balance(ledger) == Balance(Amount(41, 5), Amount())

    async def test_what_does_not_fit_is_held_in_no_account(self, ledger: SqlBudgetLedger) -> None:
        both = (ceiling(DAY, 100), ceiling(TEAM, 50))
        assert await reserve(ledger, "a", 51, *both) == ["team"]
        assert await balance(ledger) == await balance(ledger, TEAM) == Balance()
        assert await reserve(ledger, "a", 50, *both) == []
        assert await reserve(ledger, "b", 1, *both) == ["team"]
        assert await reserve(ledger, "b", 51, *both) == ["day", "team"]
        assert (await balance(ledger)).reserved == Amount(50)

    async def test_the_limit_can_be_used_up_to_the_last_millionth(self, ledger: SqlBudgetLedger) -> None:
        assert await reserve(ledger, "a", 100) == []
        assert await reserve(ledger, "b", 1) == ["day"]
        assert await reserve(ledger, "c", 0) == []

    async def test_tokens_are_limited_too(self, ledger: SqlBudgetLedger) -> None:
        limit = ceiling(DAY, None, 10)
        assert await reserve(ledger, "a", 10**12, limit, tokens=10) == []
        assert await reserve(ledger, "b", 0, limit, tokens=1) == ["day"]

    async def test_reserving_the_same_act_twice_holds_it_once(self, ledger: SqlBudgetLedger) -> None:
        assert await reserve(ledger, "a", 60) == []
        assert await reserve(ledger, "a", 60) == []
        assert (await balance(ledger)).reserved == Amount(60)
        same = [reserve(ledger, "b", 10) for _ in range(20)]
        assert await asyncio.gather(*same) == [[]] * 20
        assert (await balance(ledger)).reserved == Amount(70)

    async def test_settling_or_releasing_twice_changes_nothing(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "a", 60)
        outcomes = await asyncio.gather(*(ledger.settle(PaidAct("r", "a"), Amount(5), now=2.0) for _ in range(10)))
        assert sum(bool(outcome) for outcome in outcomes) == 1
        assert await ledger.release(PaidAct("r", "a"), now=3.0) is False
        assert await reserve(ledger, "a", 60) == []
        assert await balance(ledger) == Balance(Amount(5))
        assert await ledger.settle(PaidAct("r", "never"), Amount(5), now=2.0) == {}

    async def test_a_released_act_cost_nothing_and_can_be_reserved_again(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "a", 60)
        assert await ledger.release(PaidAct("r", "a"), now=2.0) is True
        assert await balance(ledger) == Balance()
        assert await reserve(ledger, "a", 30, holder="other") == []
        assert (await balance(ledger)).reserved == Amount(30)

    async def test_what_outlived_its_process_is_given_back_when_room_is_needed(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "a", 60, run="dead", until=10.0)
        assert await reserve(ledger, "b", 60, now=9.0) == ["day"]
        assert await reserve(ledger, "b", 60, now=11.0) == []
        assert await balance(ledger) == Balance(Amount(), Amount(60))

    async def test_a_living_process_keeps_what_it_holds(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "a", 60, run="r1", holder="alive", until=10.0)
        await reserve(ledger, "a", 20, run="r2", holder="dead", until=10.0)
        await reserve(ledger, "b", 5, run="r1", holder="alive", until=10.0)  # which it has forgotten
        assert (
            await ledger.renew("alive", [PaidAct("r1", "a"), PaidAct("r2", "a"), PaidAct("r3", "b")], until=50.0) == 1
        )
        assert await ledger.sweep(now=20.0) == 2
        assert await balance(ledger) == Balance(Amount(), Amount(60))

    async def test_what_a_process_held_is_given_back_as_soon_as_it_is_known_to_be_dead(
        self, ledger: SqlBudgetLedger
    ) -> None:
        await reserve(ledger, "a", 60, holder="dead")
        await reserve(ledger, "b", 10, run="other", holder="alive")
        assert sorted(await ledger.holders()) == ["alive", "dead"]
        assert await ledger.give_back(["dead"], now=2.0) == 1
        assert await balance(ledger) == Balance(Amount(), Amount(10))

    async def test_whoever_goes_on_with_a_run_gives_back_what_the_last_one_left(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "step/1/1", 90, holder="dead")
        assert await reserve(ledger, "step/1/2", 90, holder="next") == []
        assert await balance(ledger) == Balance(Amount(), Amount(90))

    async def test_money_that_was_spent_after_its_hold_was_given_back_is_charged(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "a", 60, until=10.0)
        await ledger.sweep(now=20.0)
        await reserve(ledger, "b", 100, run="other", now=20.0)
        assert await ledger.settle(PaidAct("r", "a"), Amount(55), now=21.0)
        assert await balance(ledger) == Balance(Amount(55), Amount(100))
        assert await ledger.settle(PaidAct("r", "a"), Amount(55), now=21.0) == {}

    async def test_settled_acts_are_forgotten_after_a_while_and_held_ones_are_not(
        self, ledger: SqlBudgetLedger
    ) -> None:
        await reserve(ledger, "a", 1)
        await ledger.settle(PaidAct("r", "a"), Amount(1), now=2.0)
        await reserve(ledger, "b", 1, until=1e9)
        await ledger.sweep(now=REMEMBER_SECONDS + 3.0)
        assert await reserve(ledger, "a", 1) == []  # unknown again, so it is held
        assert (await balance(ledger)).reserved == Amount(2)

    async def test_accounts_are_listed_with_the_last_used_first(self, ledger: SqlBudgetLedger) -> None:
        await reserve(ledger, "a", 1, ceiling(TEAM, 5), now=1.0)
        await reserve(ledger, "b", 2, ceiling(DAY, 5), now=2.0)
        found = await ledger.list("default")
        assert [(each.account, each.balance.reserved.micros) for each in found] == [(DAY, 2), (TEAM, 1)]
        assert [each.account for each in await ledger.list("default", budget="team")] == [TEAM]
        assert await ledger.list("elsewhere") == []

    async def test_a_hundred_at_once_never_pass_the_limit(self, ledger: SqlBudgetLedger) -> None:
        outcomes = await asyncio.gather(
            *(reserve(ledger, f"a{n}", 7, ceiling(DAY, 100), ceiling(TEAM, 90), run=f"r{n}") for n in range(100))
        )
        assert sum(not short for short in outcomes) == 90 // 7
        assert (await balance(ledger, TEAM)).taken == Amount(84)
