"""The ledger of budgets: what may be spent is reserved before, and what was spent is settled after.

An act (one question to a model, one call of a tool) reserves its estimate in every account that it is paid from, all or
none. When it is over, the estimate is taken back and what it really cost is added, in one transaction. So `spent` and
`reserved` together never pass the limit that the reservation was checked against, however many processes there are,
as long as no act costs more than it reserved.

Written by:  engine/budgets/run_budget.py.
Read by:     `foliot budgets`, and whoever decides whether a paused run can go on.
Invariant:   `reserved` of an account is the sum over the acts that are held and name it. A reservation belongs to a
             process and has an end; when the process dies it is given back. An act is named by (run, act): reserving,
             settling or releasing it a second time changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from foliot.errors import Unavailable
from foliot.store.base import Database
from foliot.store.portions import forget_old
from foliot.store.transaction import Row, Tx, many, one, rows, run

HOLD_SECONDS: Final = 60.0
# How long it is remembered that an act was settled. Longer than anyone could come back and settle it again.
REMEMBER_SECONDS: Final = 7 * 86400.0
SWEPT_AT_ONCE: Final = 500
_SEPARATOR: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """One budget of one payer in one span of time. `payer` is empty when all share the budget."""

    namespace: str
    budget: str
    period: str
    payer: str = ""

    @property
    def key(self) -> str:
        return _SEPARATOR.join((self.namespace, self.budget, self.payer, self.period))


@dataclass(frozen=True, slots=True)
class Amount:
    """Money in millionths of a US dollar, and tokens."""

    micros: int = 0
    tokens: int = 0


NOTHING: Final = Amount()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limit of an account; None is no limit."""

    account: BudgetAccount
    micros: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """How an account stands."""

    spent: Amount = Amount()
    reserved: Amount = Amount()

    @property
    def taken(self) -> Amount:
        return Amount(self.spent.micros + self.reserved.micros, self.spent.tokens + self.reserved.tokens)


@dataclass(frozen=True, slots=True)
class PaidAct:
    """The act that is paid for: `name` is unique within its run, such as `step/3/1` or `call/abc/1`."""

    run_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Short:
    """An account without room, as it stood when it was asked."""

    ceiling: Ceiling
    balance: Balance


@dataclass(frozen=True, slots=True)
class AccountStatement:
    """An account as it is listed."""

    account: BudgetAccount
    balance: Balance
    updated_at: float


class SqlBudgetLedger:
    """The ledger of budgets, on either database; any number of processes share it."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._reserving: dict[PaidAct, asyncio.Future[list[Short]]] = {}
        self._releasing: dict[PaidAct, asyncio.Future[bool]] = {}
        self._unanswered: dict[PaidAct, float] = {}  # may be held, or yet be stored as held, until then

    async def reserve(
        self,
        act: PaidAct,
        ceilings: Sequence[Ceiling],
        estimate: Amount,
        *,
        holder: str,
        now: float,
        until: float,
    ) -> list[Short]:
        """Hold the estimate in all of these accounts; or in none, when any has no room: then those without room.

        An act that is held or settled already is not held again. What earlier holders of the run left behind is given
        back first, and so is what outlived its process. Whoever is cancelled here, or told that the store does not
        answer, does not know whether it is held: `release` sees to that.
        """
        if (releasing := self._releasing.get(act)) is not None:
            await asyncio.wait([releasing])  # or it would give back what is held from now on
        reserving = asyncio.ensure_future(self._reserve(act, ceilings, estimate, holder, now, until))
        self._reserving[act] = reserving

        def over(done: asyncio.Future[list[Short]]) -> None:
            if self._reserving.get(act) is done:
                del self._reserving[act]
            if done.cancelled() or isinstance(done.exception(), Unavailable):
                self._unanswered[act] = until
            else:
                self._unanswered.pop(act, None)

        reserving.add_done_callback(over)
        return await asyncio.shield(reserving)

    async def _reserve(
        self, act: PaidAct, ceilings: Sequence[Ceiling], estimate: Amount, holder: str, now: float, until: float
    ) -> list[Short]:
        while (short := await self._db.write(_reserve, act, ceilings, estimate, holder, now, until)) is None:
            await self._db.write(_open, ceilings, now)
        return short

    async def settle(self, act: PaidAct, actual: Amount, *, now: float) -> dict[str, tuple[Balance, Balance]]:
        """The act is over and cost this much. Each account by its key, before and after; none the second time.

        An act whose hold was given back meanwhile is charged all the same: the money is gone.
        """
        return await self._db.write(_settle, act, actual, now)

    async def release(self, act: PaidAct, *, now: float) -> bool | None:
        """The act cost nothing. False when it was not held.

        None when it is not held yet but may be in a moment, because its reservation was never answered: to be asked
        again, until that would be over anyway.
        """
        if (reserving := self._reserving.get(act)) is not None:
            await asyncio.wait([reserving])
        releasing = asyncio.ensure_future(self._db.write(_release, act, now))
        self._releasing[act] = releasing
        releasing.add_done_callback(lambda _: self._releasing.pop(act, None))
        released = await asyncio.shield(releasing)
        if not released and self._unanswered.get(act, now) > now:
            return None
        self._unanswered.pop(act, None)
        return released

    async def renew(self, holder: str, acts: Iterable[PaidAct], *, until: float) -> int:
        """Keep what a living process holds for these acts; the number of holds."""
        return await self._db.write(_renew, holder, sorted({_SEPARATOR.join((a.run_id, a.name)) for a in acts}), until)

    async def give_back(self, holders: Iterable[str], *, now: float) -> int:
        """Release everything that these processes hold: they have died. The number of holds."""
        return await self._db.write(_give_back, tuple(holders), now)

    async def sweep(self, *, now: float) -> int:
        """Give back what outlived its process, and forget what was settled long ago."""
        ended = await self._db.write(_sweep, now)
        for state in ("settled", "released"):
            await forget_old(self._db, "budget_hold_forget", state=state, before=now - REMEMBER_SECONDS)
        return ended

    async def holders(self) -> list[str]:
        return [row["holder"] for row in await self._db.read("budget_holders")]

    async def balances(self, accounts: Sequence[BudgetAccount]) -> dict[BudgetAccount, Balance]:
        """How these accounts stand; one that nobody has used yet is empty."""
        found = await self._db.read("budget_read", keys=_keys(account.key for account in accounts))
        by_key = {row["key"]: _balance(row) for row in found}
        return {account: by_key.get(account.key, Balance()) for account in accounts}

    async def list(
        self, namespace: str, *, budget: str = "", period: str = "", limit: int = 1000
    ) -> list[AccountStatement]:
        """The accounts of a namespace, the last used first."""
        found = await self._db.read("budget_list", namespace=namespace, budget=budget, period=period, count=limit)
        return [
            AccountStatement(
                BudgetAccount(row["namespace"], row["budget"], row["period"], row["payer"]),
                _balance(row),
                row["updated_at"],
            )
            for row in found
        ]


# --- transactions ------------------------------------------------------------------------------------------------


def _reserve(
    act: PaidAct, ceilings: Sequence[Ceiling], estimate: Amount, holder: str, now: float, until: float
) -> Tx[list[Short] | None]:
    """Reserves as `SqlBudgetLedger.reserve` promises; returns None when an account must be opened first."""
    known = yield from one("budget_hold_get", run_id=act.run_id, act=act.name)
    if known is not None and known["state"] != "released":
        return []
    keys = [ceiling.account.key for ceiling in ceilings]
    left = yield from rows("budget_hold_of_run", run_id=act.run_id, holder=holder)
    yield from _undo(left, now, also=keys)
    standing = yield from _turn(ceilings)
    if standing is None:
        return None
    short = _short(ceilings, standing, estimate)
    if short:
        over = yield from rows("budget_hold_over", now=now, count=SWEPT_AT_ONCE)
        if over and (yield from _undo_if_free(over, keys, now)):
            standing = yield from _turn(ceilings)
            short = _short(ceilings, standing or {}, estimate)
    if short:
        return short
    added = yield from run(
        "budget_hold_add",
        run_id=act.run_id,
        act=act.name,
        holder=holder,
        until=until,
        amount=estimate.micros,
        tokens=estimate.tokens,
        accounts=_keys(sorted(keys)),
    )
    if added:  # the same act may have been reserved a moment ago, and is then held already
        yield from many("budget_move", [_move(key, now, reserved=estimate) for key in sorted(keys)])
    return []


def _turn(ceilings: Sequence[Ceiling]) -> Tx[dict[str, Balance] | None]:
    """The accounts, nobody else's until the transaction ends; None when one of them is new."""
    keys = {ceiling.account.key for ceiling in ceilings}
    found = yield from rows("budget_turn", keys=_keys(sorted(keys)))
    return {row["key"]: _balance(row) for row in found} if len(found) == len(keys) else None


def _open(ceilings: Sequence[Ceiling], now: float) -> Tx[None]:
    """Open the accounts that are new, in the order of their keys.

    In a transaction of its own: whoever had locked one of them and then made another that comes before it would wait
    for somebody who waits for the first.
    """
    accounts = sorted((ceiling.account for ceiling in ceilings), key=lambda account: account.key)
    yield from many("budget_open", [_opened(account, now) for account in accounts])


def _short(ceilings: Sequence[Ceiling], standing: Mapping[str, Balance], estimate: Amount) -> list[Short]:
    short: list[Short] = []
    for ceiling in ceilings:
        balance = standing[ceiling.account.key]
        if not has_room(ceiling, balance, estimate):
            short.append(Short(ceiling, balance))
    return short


def has_room(ceiling: Ceiling, balance: Balance, estimate: Amount) -> bool:
    """Whether the estimate fits under the ceiling. What costs nothing fits as long as the ceiling is not passed."""
    taken = balance.taken
    money = ceiling.micros is None or taken.micros + estimate.micros <= ceiling.micros
    return money and (ceiling.tokens is None or taken.tokens + estimate.tokens <= ceiling.tokens)


def _settle(act: PaidAct, actual: Amount, now: float) -> Tx[dict[str, tuple[Balance, Balance]]]:
    hold = yield from one("budget_hold_get", run_id=act.run_id, act=act.name)
    if hold is None or hold["state"] == "settled":
        return {}
    before = {row["key"]: _balance(row) for row in (yield from rows("budget_turn", keys=hold["accounts"]))}
    ended = yield from one("budget_hold_end", run_id=act.run_id, act=act.name, state="settled", now=now)
    held = NOTHING if ended is None else Amount(ended["amount"], ended["tokens"])
    if ended is None:
        # Given back meanwhile, by someone who took this process for dead; or settled, and then there is nothing to do.
        ended = yield from one("budget_hold_late", run_id=act.run_id, act=act.name, now=now)
    if ended is None:
        return {}
    keys = _accounts(ended)
    taken_back = Amount(-held.micros, -held.tokens)
    yield from many("budget_move", [_move(key, now, spent=actual, reserved=taken_back) for key in keys])
    return {key: (before[key], _moved(before[key], actual, taken_back)) for key in keys if key in before}


def _release(act: PaidAct, now: float) -> Tx[bool]:
    hold = yield from one("budget_hold_get", run_id=act.run_id, act=act.name)
    if hold is None or hold["state"] != "held":
        return False
    return bool((yield from _undo([hold], now)))


def _renew(holder: str, acts: Sequence[str], until: float) -> Tx[int]:
    return (yield from run("budget_hold_renew", holder=holder, acts=_keys(acts), between=_SEPARATOR, until=until))


def _give_back(holders: tuple[str, ...], now: float) -> Tx[int]:
    held: list[Row] = []
    for holder in sorted(holders):
        held += yield from rows("budget_hold_of_holder", holder=holder)
    return (yield from _undo(held, now))


def _sweep(now: float) -> Tx[int]:
    over = yield from rows("budget_hold_over", now=now, count=SWEPT_AT_ONCE)
    return (yield from _undo(over, now, end="budget_hold_lapse"))


def _undo(holds: Sequence[Row], now: float, also: Sequence[str] = (), end: str = "budget_hold_end") -> Tx[int]:
    """Give holds back; how many of them nobody else had ended.

    All their accounts are taken in one order first, with those that are needed next (`also`).
    """
    if not holds:
        return 0
    keys = sorted({key for hold in holds for key in _accounts(hold)}.union(also))
    yield from rows("budget_turn", keys=_keys(keys))
    return (yield from _end(holds, now, end))


def _undo_if_free(holds: Sequence[Row], mine: Sequence[str], now: float) -> Tx[int]:
    """Give back those of these holds that are over and whose accounts nobody else has; how many.

    `mine` are locked already.
    """
    others = {key for hold in holds for key in _accounts(hold)}.difference(mine)
    had = set(mine)
    if others:
        had.update(row["key"] for row in (yield from rows("budget_turn_if_free", keys=_keys(sorted(others)))))
    free = [hold for hold in holds if had.issuperset(_accounts(hold))]
    return (yield from _end(free, now, "budget_hold_lapse"))


def _end(holds: Sequence[Row], now: float, end: str) -> Tx[int]:
    count = 0
    for hold in sorted(holds, key=lambda hold: (hold["run_id"], hold["act"])):
        ended = yield from one(end, run_id=hold["run_id"], act=hold["act"], state="released", now=now)
        if ended is not None:  # somebody else may have been faster, or its holder may live after all
            count += 1
            back = Amount(-ended["amount"], -ended["tokens"])
            yield from many("budget_move", [_move(key, now, reserved=back) for key in _accounts(ended)])
    return count


def _opened(account: BudgetAccount, now: float) -> dict[str, Any]:
    return {
        "key": account.key,
        "namespace": account.namespace,
        "budget": account.budget,
        "payer": account.payer,
        "period": account.period,
        "now": now,
    }


def _move(key: str, now: float, *, spent: Amount = NOTHING, reserved: Amount = NOTHING) -> dict[str, Any]:
    return {
        "key": key,
        "spent": spent.micros,
        "reserved": reserved.micros,
        "spent_tokens": spent.tokens,
        "reserved_tokens": reserved.tokens,
        "now": now,
    }


def _moved(balance: Balance, spent: Amount, reserved: Amount) -> Balance:
    return Balance(
        Amount(balance.spent.micros + spent.micros, balance.spent.tokens + spent.tokens),
        Amount(balance.reserved.micros + reserved.micros, balance.reserved.tokens + reserved.tokens),
    )


def _balance(row: Row) -> Balance:
    return Balance(Amount(row["spent"], row["spent_tokens"]), Amount(row["reserved"], row["reserved_tokens"]))


def _accounts(hold: Row) -> list[str]:
    return msgspec.json.decode(hold["accounts"], type=list[str])


def _keys(keys: Iterable[str]) -> str:
    return msgspec.json.encode(list(keys)).decode()
