"""Runs that wait for a budget, and what makes them go on: time, a changed budget, or somebody who takes them up."""

from __future__ import annotations

from typing import Final

from foliot.engine.base import Clock
from foliot.engine.budgets.declared import BudgetRule, DeclaredBudgets
from foliot.engine.signals import signal
from foliot.errors import Conflict, NotFound
from foliot.kernel.events import BudgetExceeded, RunResumed, RunWaiting
from foliot.kernel.state import State
from foliot.resources.money import MICRO
from foliot.store.runs import Journal, RunInfo

PAGE: Final = 200
# A process that drives a run sleeps through a wait of this length; a longer one it leaves to others.
SHORT_WAIT: Final = 60.0


def is_short(waiting: RunWaiting, now: float) -> bool:
    """Whether it is worth staying: for a timer, or where others have reserved what is missing and will settle soon."""
    if waiting.owner == "timer":
        return True
    return waiting.reason == "budget" and waiting.until is not None and waiting.until - now <= SHORT_WAIT


async def may_go_on(declared: DeclaredBudgets, state: State) -> bool:
    """Whether a paused run should look again before its time: its budget was raised, or is not there any more."""
    if state.paused is None:
        return False
    rules = await declared.of(state.spec.namespace, anew=True)
    return is_wider(next((rule for rule in rules if rule.name == state.paused.budget), None), state.paused)


def is_wider(rule: BudgetRule | None, short: BudgetExceeded) -> bool:
    """Whether the budget allows more than when it had no room."""
    if rule is None:
        return True
    if short.limit == "tokens":
        return rule.tokens is None or rule.tokens > short.allowed
    return rule.micros is None or rule.micros / MICRO > short.allowed


async def paused_runs(journal: Journal, namespace: str) -> list[RunInfo]:
    """The runs of a namespace that wait for a budget, newest first."""
    found: list[RunInfo] = []
    before: str | None = None
    while page := await journal.list(namespace=namespace, phases=("waiting",), limit=PAGE, before=before):
        found += [info for info in page if info.summary.get("waiting", {}).get("reason") == "budget"]
        before = page[-1].id
    return found


async def wake_paused(journal: Journal, namespace: str, *, clock: Clock) -> int:
    """A budget of the namespace was changed: let the runs that wait for one look again. The number of them.

    Each is told by a signal, so that whoever is free takes it up; here or on another machine.
    """
    woken = 0
    for info in await paused_runs(journal, namespace):
        try:
            await journal.signal(signal(info.id, RunResumed("budget"), clock()))
            woken += 1
        except (Conflict, NotFound):
            continue  # it has ended meanwhile
    return woken
