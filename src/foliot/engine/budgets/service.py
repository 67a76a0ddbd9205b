"""The budgets of one process: reserves before an act, settles after it, and keeps what is held while it lives.

It fails closed: a budget that cannot be checked lets nothing begin. Where no budget applies, that is known from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from msgspec.structs import replace

from foliot.common.cancellation import stop_tasks
from foliot.common.process import identity, is_gone
from foliot.engine.audit.words import BudgetOutcome
from foliot.engine.base import Clock
from foliot.engine.budgets.declared import BudgetRule, DeclaredBudgets, Payer
from foliot.engine.budgets.shortage import Shortage, crossed, passing, unpriced, worst_of
from foliot.errors import FoliotError
from foliot.store.ledger.budgets import (
    HOLD_SECONDS,
    Amount,
    Balance,
    Ceiling,
    PaidAct,
    Short,
    SqlBudgetLedger,
    has_room,
)

log = logging.getLogger(__name__)

CLOSE_WITHIN: Final = 5.0
# How long an act waits in place for others to settle, when there would be room but for what they hold; and how often it
# looks when they are in other processes. Afterwards its run is let go, and looks again after a while.
PATIENCE: Final = 10.0
LOOK_EVERY: Final = 0.5
# A long answer is reserved for where a budget is worth so many of them: where it is not, few would close it for all.
AT_A_TIME: Final = 16
SWEEP_EVERY: Final = 3600.0
# The pauses before what could not be written is tried again: each twice the last one.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0


class BudgetListener(Protocol):
    """Hears of hard stops and of warnings. Must return at once and must not raise."""

    def __call__(self, payer: Payer, act: PaidAct, outcome: BudgetOutcome, budget: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """The highest cost expected of an act. `priced` is False when its price is unknown; `what` names it for people.

    `output` is how long an answer is in it, in tokens. `longer` is reserved instead where budgets are large beside it.
    """

    amount: Amount
    what: str
    priced: bool = True
    output: int = 0
    longer: Estimate | None = None

    def within(self, rules: Sequence[BudgetRule]) -> Estimate:
        """The longer one, if each of these budgets has room for many of it at a time."""
        if self.longer is None:
            return self
        micros, tokens = self.longer.amount.micros * AT_A_TIME, self.longer.amount.tokens * AT_A_TIME
        large = all((rule.micros or micros) >= micros and (rule.tokens or tokens) >= tokens for rule in rules)
        return self.longer if large else self


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A reservation that was made, with all it takes to settle it."""

    act: PaidAct
    payer: Payer
    estimate: Estimate
    accounts: dict[str, BudgetRule]


class BudgetService:
    """Belongs to one event loop; `close` it before the database."""

    def __init__(
        self,
        ledger: SqlBudgetLedger,
        declared: DeclaredBudgets,
        *,
        clock: Clock,
        holder: str | None = None,
        is_gone: Callable[[str | None], bool] = is_gone,
        told: BudgetListener | None = None,
        hold_seconds: float = HOLD_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        self.declared = declared
        self.clock = clock
        self._ledger = ledger
        self._holder = holder or identity()
        self._is_gone = is_gone
        self._told = told
        self._hold_seconds = hold_seconds
        self._patience = patience
        self._held: set[Hold] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._loose: set[asyncio.Task[Any]] = set()
        self._releases: dict[PaidAct, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()
        self._swept_at = float("-inf")
        self._freed = asyncio.Event()
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def reserve(
        self,
        namespace: str,
        act: PaidAct,
        payer: Callable[[], Awaitable[Payer]],
        estimate: Callable[[], Awaitable[Estimate]],
    ) -> Hold | Shortage | None:
        """Room for the act in every budget that applies to the payer; None when none does. Raises `FoliotError`.

        `payer` and `estimate` are asked only where there are budgets.
        """
        rules = await self.declared.of(namespace)
        if not rules:
            return None
        who = await payer()
        rules = [rule for rule in rules if rule.applies(who)]
        if not rules:
            return None
        wanted = await estimate()
        if (longer := wanted.within(rules)) is not wanted:
            hold = await self._try(rules, act, who, longer, patient=False)
            if isinstance(hold, Hold):
                return hold
        hold = await self._try(rules, act, who, wanted)
        if isinstance(hold, Hold):
            return hold
        # Nobody is refused by what was read a moment ago. The basis is taken first: what changes after that makes
        # another one, and whoever sweeps up paused runs sees it.
        basis = await self.declared.basis(namespace)
        rules = [rule for rule in await self.declared.of(namespace, anew=True) if rule.applies(who)]
        if not rules:
            return None
        hold = await self._try(rules, act, who, await estimate(), patient=False)
        return hold if isinstance(hold, Hold) else self._refused(replace(hold, basis=basis), act, who)

    async def reserve_in(
        self, rules: Sequence[BudgetRule], act: PaidAct, who: Payer, wanted: Estimate
    ) -> Hold | Shortage:
        """Room for the act in all of these. Raises `FoliotError`."""
        hold = await self._try(rules, act, who, wanted)
        return hold if isinstance(hold, Hold) else self._refused(hold, act, who)

    async def _try(
        self, rules: Sequence[BudgetRule], act: PaidAct, who: Payer, wanted: Estimate, *, patient: bool = True
    ) -> Hold | Shortage:
        now = self.clock()
        if (short := self._unpriced(rules, wanted)) is None:
            accounts = {ceiling.account.key: (rule, ceiling) for rule in rules for ceiling in rule.ceilings(who, now)}
            if (earlier := self._releases.pop(act, None)) is not None:
                earlier.cancel()  # or it would give back what is held from now on
            try:
                without = await self._hold(act, [ceiling for _, ceiling in accounts.values()], wanted.amount, patient)
            except BaseException:
                self._release_later(act)  # it may be held although nobody was told so
                raise
            now = self.clock()
            if not without:
                hold = Hold(act, who, wanted, {key: rule for key, (rule, _) in accounts.items()})
                self._keep(hold)
                return hold
            found = [(accounts[each.ceiling.account.key][0], each) for each in without]
            short = worst_of(found, wanted.amount, now)
        return short

    def _refused(self, short: Shortage, act: PaidAct, who: Payer) -> Shortage:
        if self._told is not None:
            self._told(who, act, "paused" if short.then == "pause" else "stopped", short.budget, short.message)
        return short

    async def look(self, namespace: str, payer: Callable[[], Awaitable[Payer]], wanted: Estimate) -> Shortage | None:
        """Whether there is room now. Takes nothing, and what others hold for a while does not count."""
        rules = await self.declared.of(namespace)
        if not rules:
            return None
        who = await payer()
        if await self._look_in(rules, who, wanted) is None:
            return None
        basis = await self.declared.basis(namespace)
        short = await self._look_in(await self.declared.of(namespace, anew=True), who, wanted)
        return None if short is None else replace(short, basis=basis)

    async def _look_in(self, rules: Sequence[BudgetRule], who: Payer, wanted: Estimate) -> Shortage | None:
        now = self.clock()
        ceilings = [(rule, each) for rule in rules if rule.applies(who) for each in rule.ceilings(who, now)]
        balances = await self._ledger.balances([each.account for _, each in ceilings])
        found = [
            (rule, Short(each, balances[each.account]))
            for rule, each in ceilings
            if not has_room(each, Balance(balances[each.account].spent), wanted.amount)
        ]
        return worst_of(found, wanted.amount, now) if found else None

    async def charge(self, act: PaidAct, amount: Amount) -> None:
        """Charge an act that another process held and never settled; once, however often it is asked. Never raises."""
        try:
            await self._ledger.settle(act, amount, now=self.clock())
        except FoliotError as error:
            log.warning("what %s cost is not charged: %s", act.name, error)

    def settle_later(self, hold: Hold, actual: Amount) -> None:
        """`settle` without waiting, for whoever is being stopped."""
        self._later(self.settle(hold, actual))

    async def settle(self, hold: Hold, actual: Amount | None) -> None:
        """The act is over. `actual` is None when its cost is not known: then it cost what was reserved.

        Never raises: what cannot be written now is tried again while the process lives, and whoever is stopped here
        leaves it to be written.
        """
        await asyncio.shield(self._later(self._settle(hold, hold.estimate.amount if actual is None else actual)))

    async def _settle(self, hold: Hold, amount: Amount) -> None:
        try:
            await self._settle_now(hold, amount)
        except FoliotError as error:
            log.warning("what %s cost cannot be settled yet: %s", hold.act.name, error)
            self._later(self._settle_again(hold, amount))

    async def _settle_now(self, hold: Hold, amount: Amount) -> None:
        moved = await self._ledger.settle(hold.act, amount, now=self.clock())
        self._held.discard(hold)  # not before: it is renewed for as long as it stands
        self._freed.set()
        for key, (before, after) in moved.items():
            rule = hold.accounts.get(key)
            if rule is None or (percent := crossed(rule, before, after)) is None:
                continue
            message = f"{percent} % of budget {rule.name!r} are spent"
            log.warning("%s (namespace %s)", message, rule.namespace)
            if self._told is not None:
                self._told(hold.payer, hold.act, "warned", rule.name, message)

    def let_go(self, hold: Hold) -> None:
        """The act did not happen, or nobody will know what it cost. Returns at once, for whoever is being stopped."""
        self._held.discard(hold)
        self._release_later(hold.act)

    async def close(self) -> None:
        """Finish what is on its way, for a few seconds at most. What is still held then is given back by others."""
        self._closing.set()
        if self._keeping is not None:
            await stop_tasks(self._keeping)
        until = time.monotonic() + CLOSE_WITHIN
        while self._loose and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._loose, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await stop_tasks(*self._loose)

    # --- how it is done ------------------------------------------------------------------------------------------

    def _unpriced(self, rules: Sequence[BudgetRule], wanted: Estimate) -> Shortage | None:
        if wanted.priced:
            return None
        strict = (rule for rule in rules if rule.micros is not None and rule.unpriced == "refuse")
        rule = next(strict, None)
        return None if rule is None else unpriced(rule, wanted.what)

    async def _hold(self, act: PaidAct, ceilings: list[Ceiling], amount: Amount, patient: bool) -> list[Short]:
        short = await self._reserve(act, ceilings, amount)
        if not short:
            return []
        # Before anybody waits: has a process died on this machine that still holds something?
        gone = [holder for holder in await self._ledger.holders() if self._is_gone(holder)]
        if gone and await self._ledger.give_back(gone, now=self.clock()):
            short = await self._reserve(act, ceilings, amount)
        wait = patient and passing(short, amount)
        return await self._wait_in_line(act, ceilings, amount, short) if wait else short

    async def _wait_in_line(
        self, act: PaidAct, ceilings: list[Ceiling], amount: Amount, short: list[Short]
    ) -> list[Short]:
        """Wait for others to settle. Only the first in line looks: if a thousand did, none of them would be sooner."""
        key = short[0].ceiling.account.key
        line = self._lines.setdefault(key, asyncio.Lock())
        give_up = time.monotonic() + self._patience
        try:
            await asyncio.wait_for(line.acquire(), self._patience)
        except TimeoutError:
            return short
        try:
            while (left := give_up - time.monotonic()) > 0:
                self._freed.clear()  # before looking: who settles meanwhile is not missed
                short = await self._reserve(act, ceilings, amount)
                if not passing(short, amount):
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), min(left, LOOK_EVERY))
            return short
        finally:
            line.release()

    async def _reserve(self, act: PaidAct, ceilings: list[Ceiling], amount: Amount) -> list[Short]:
        now = self.clock()
        return await self._ledger.reserve(
            act, ceilings, amount, holder=self._holder, now=now, until=now + self._hold_seconds
        )

    def _keep(self, hold: Hold) -> None:
        """Keeps a reservation alive, so that it is not taken for a dead process's."""
        self._held.add(hold)
        if self.clock() - self._swept_at >= SWEEP_EVERY:
            self._swept_at = self.clock()
            self._later(self._sweep())
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self._hold_seconds / 3)
            now = self.clock()
            # Only these: what nobody here knows of, whyever it stands in the store, must come to its end.
            acts = [hold.act for hold in self._held]
            try:
                if acts:
                    await self._ledger.renew(self._holder, acts, until=now + self._hold_seconds)
            except FoliotError as error:
                log.warning("reservations could not be renewed: %s", error)

    async def _sweep(self) -> None:
        try:
            await self._ledger.sweep(now=self.clock())
        except FoliotError as error:
            log.warning("old reservations could not be swept up: %s", error)

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)
        return task

    async def _settle_again(self, hold: Hold, amount: Amount) -> None:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                return await self._settle_now(hold, amount)
            except FoliotError:
                pause = min(2 * pause, LONGEST_PAUSE)

    def _release_later(self, act: PaidAct) -> None:
        task = self._releases[act] = self._later(self._release(act))

        def over(_: object) -> None:
            if self._releases.get(act) is task:
                del self._releases[act]

        task.add_done_callback(over)

    async def _release(self, act: PaidAct) -> None:
        """Releases a reservation, retrying until it is written, or found where the store never said whether it was
        made.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                if await self._ledger.release(act, now=self.clock()) is not None:
                    break
            except FoliotError as error:
                if pause == FIRST_PAUSE:
                    log.warning("what was reserved for %s cannot be given back yet: %s", act.name, error)
                await asyncio.sleep(pause)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause)
                if self._closing.is_set():
                    break  # if it is stored after all, it comes to its end with nobody to renew it
            pause = min(2 * pause, LONGEST_PAUSE)
        self._freed.set()
