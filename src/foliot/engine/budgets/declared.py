"""Budgets as they are declared: to whom each applies, and in which account its spending is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from foliot.engine.definition.references import list_all
from foliot.resources.amounts import micros_of_text
from foliot.store.base import Document, Filter, ResourceStore
from foliot.store.ledger.budgets import AccountStatement, Amount, Balance, BudgetAccount, Ceiling, SqlBudgetLedger

# --- windows ---------------------------------------------------------------------------------------------------------

# Spans of time that budgets count in. Days, weeks and months begin at midnight where the budget says so.

Window: TypeAlias = Literal["run", "day", "week", "month", "total"]


class BudgetPeriod(NamedTuple):
    """The name of a span, unique among those of its window; and when it ends, in seconds since 1970, if it does."""

    period: str
    until: float | None


def span_of(window: Window, zone: str, now: float, root: str) -> BudgetPeriod:
    """The span that `now` is in. `root` is the run whose spending counts when each run has a span of its own."""
    match window:
        case "run":
            return BudgetPeriod(f"run:{root}", None)
        case "total":
            return BudgetPeriod("total", None)
        case _:
            return _calendar(window, zone, now)


def _calendar(window: Literal["day", "week", "month"], zone: str, now: float) -> BudgetPeriod:
    place = _zone(zone)
    today = datetime.fromtimestamp(now, place).date()
    if window == "day":
        name, following = today.isoformat(), today + timedelta(days=1)
    elif window == "week":
        year, week, weekday = today.isocalendar()
        name, following = f"{year}-W{week:02}", today + timedelta(days=8 - weekday)
    else:
        name = f"{today.year}-{today.month:02}"
        following = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return BudgetPeriod(name, datetime(following.year, following.month, following.day, tzinfo=place).timestamp())


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # It was known where it was declared. Without its rules here, a day that is off by hours beats no budget at all.
        return UTC


# --- declared --------------------------------------------------------------------------------------------------------

EACH: Final = "*"
# How long what was read is believed without looking again: at most one look a second, however many steps there are.
FRESH_FOR: Final = 1.0


@dataclass(frozen=True, slots=True)
class Payer:
    """The account that pays. `agents` are the one at work and those that delegated to it, nearest first.

    `root` is the run that all of them belong to: what is delegated is spent by whoever delegates.
    """

    namespace: str
    root: str
    agents: tuple[str, ...] = ()
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """One Budget. None is no limit."""

    namespace: str
    name: str
    window: Window = "total"
    time_zone: str = "UTC"
    micros: int | None = None
    tokens: int | None = None
    agent: str = ""
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    warn: tuple[int, ...] = ()
    on_exceeded: Literal["pause", "fail"] = "pause"
    unpriced: Literal["refuse", "allow"] = "refuse"

    def applies(self, payer: Payer) -> bool:
        """A budget for each user does not apply where nobody knows the user, and the same for agents."""
        if self.agent == EACH:
            agent = bool(payer.agents)
        else:
            agent = not self.agent or self.agent in payer.agents
        user = bool(payer.user) if self.user == EACH else not self.user or self.user == payer.user
        return agent and user and all(payer.labels.get(key) == value for key, value in self.labels.items())

    def span(self, now: float, root: str = "") -> BudgetPeriod:
        return span_of(self.window, self.time_zone, now, root)

    def ceilings(self, payer: Payer, now: float) -> list[Ceiling]:
        """The accounts that this payer's spending goes to now, and what they may come to.

        With a budget for each agent that is one for the agent at work and one for each that delegated to it.
        """
        period = self.span(now, payer.root).period
        user = [f"user={payer.user}"] if self.user == EACH else []
        payers = [",".join(user)]
        if self.agent == EACH:
            payers = [",".join((f"agent={agent}", *user)) for agent in dict.fromkeys(payer.agents)]
        return [
            Ceiling(BudgetAccount(self.namespace, self.name, period, each), self.micros, self.tokens) for each in payers
        ]


def budget_rule(document: Mapping[str, Any]) -> BudgetRule:
    """The rule in a normalised Budget document."""
    metadata, spec = document["metadata"], document["spec"]
    scope, limit = spec.get("scope", {}), spec["limit"]
    amount = limit.get("amount")
    return BudgetRule(
        namespace=metadata.get("namespace", "default"),
        name=metadata["name"],
        window=spec.get("window", "total"),
        time_zone=spec.get("time_zone", "UTC"),
        micros=None if amount is None else micros_of_text(amount),
        tokens=limit.get("tokens"),
        agent=scope.get("agent", ""),
        user=scope.get("user", ""),
        labels=scope.get("labels", {}),
        warn=tuple(spec.get("warn", ())),
        on_exceeded=spec.get("on_exceeded", "pause"),
        unpriced=spec.get("unpriced", "refuse"),
    )


class DeclaredBudgets:
    """The budgets of the resource store.

    A narrower one holds from at most `FRESH_FOR` seconds later on, a wider one at once: nobody is refused by what was
    read earlier.
    """

    def __init__(self, store: ResourceStore, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, int, tuple[BudgetRule, ...]]] = {}
        self._bases: dict[str, tuple[int, str]] = {}

    def none(self, namespace: str) -> bool:
        """Whether it is known, without looking, that the namespace has no budgets."""
        known = self._known.get(namespace)
        return known is not None and not known[2] and 0 <= self._clock() - known[0] < FRESH_FOR

    async def of(self, namespace: str, *, anew: bool = False) -> tuple[BudgetRule, ...]:
        """All budgets of a namespace, by name; mostly from memory. `anew` looks whether they changed this moment."""
        now = self._clock()
        known = self._known.get(namespace)
        if known is not None and not anew and 0 <= now - known[0] < FRESH_FOR:
            return known[2]
        revision = await self._store.revision()
        if known is not None and known[1] == revision:
            rules = known[2]
        else:
            rules = tuple(
                budget_rule(document) for document in await list_all(self._store, Filter("Budget", namespace))
            )
        self._known[namespace] = (now, revision, rules)
        return rules

    async def basis(self, namespace: str) -> str:
        """A digest of what decides whether there is room: the budgets of the namespace, and the prices of its models.

        Whoever takes it before an act is refused can tell later whether asking again could end otherwise.
        """
        revision = await self._store.revision()
        known = self._bases.get(namespace)
        if known is None or known[0] != revision:
            found = [
                (document["kind"], document["metadata"]["name"], document.get("spec", {}))
                for kind in ("Budget", "ModelEndpoint")
                for document in await list_all(self._store, Filter(kind, namespace))
            ]
            known = revision, blake2b(msgspec.json.encode(found, order="sorted"), digest_size=8).hexdigest()
            self._bases[namespace] = known
        return known[1]


# --- report ----------------------------------------------------------------------------------------------------------

# How budgets stand, for people: every budget with its accounts of the current window.


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """One account of one budget. `left` is None where nothing is limited."""

    rule: BudgetRule
    account: BudgetAccount
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


async def standings(
    ledger: SqlBudgetLedger, document: Document, *, now: float, limit: int = 1000
) -> list[BudgetStanding]:
    """The accounts of a budget in its current window, the last used first.

    One that nobody has spent from yet has one empty account, unless each payer has an account of its own.
    """
    rule = budget_rule(document)
    period = "" if rule.window == "run" else rule.span(now).period
    found: list[AccountStatement] = await ledger.list(rule.namespace, budget=rule.name, period=period, limit=limit)
    if not found and EACH not in (rule.agent, rule.user) and rule.window != "run":
        return [BudgetStanding(rule, BudgetAccount(rule.namespace, rule.name, period), Balance())]
    return [BudgetStanding(rule, each.account, each.balance) for each in found]
