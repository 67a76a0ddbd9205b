"""Runs that wait for a budget, and what makes them go on: time, a changed budget, or somebody who takes them up.

Whoever changes a budget wakes the runs that wait (`wake_paused`). A run that was refused just before and parks just
after is missed by that; so every process that takes up runs sweeps too (`PausedSweep`): a run that was refused by other
declarations than those of now is told to ask again.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

import msgspec

from foliot.engine.base import Clock
from foliot.engine.budgets.declared import DeclaredBudgets
from foliot.engine.driver.journal import signal
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.run.events import RunResumed, RunWaiting
from foliot.kernel.run.state import State
from foliot.store.base import Database, Key
from foliot.store.journal.base import Journal, RunInfo
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.model_limits import SqlModelLimits
from foliot.store.resources.documents import key_text
from foliot.store.transaction import Tx, run

log = logging.getLogger(__name__)

PAGE: Final = 200
# How often a process looks for runs that should ask again, and how many that wait it looks at each time.
SWEEP_EVERY: Final = 15.0
SWEPT_AT_ONCE: Final = 500
# A process that drives a run sleeps through a wait of this length; a longer one it leaves to others.
SHORT_WAIT: Final = 60.0


def is_short(waiting: RunWaiting, now: float) -> bool:
    """Whether it is worth staying: for a timer, or where others have reserved what is missing and will settle soon."""
    if waiting.owner == "timer":
        return True
    return waiting.reason == "budget" and waiting.until is not None and waiting.until - now <= SHORT_WAIT


async def may_go_on(declared: DeclaredBudgets, state: State) -> bool:
    """Whether a paused run should look again before its time: what it was refused by has changed."""
    return state.paused is not None and await declared.basis(state.spec.namespace) != state.paused.basis


async def paused_runs(journal: Journal, namespace: str) -> list[RunInfo]:
    """The runs of a namespace that wait for a budget, newest first."""
    found: list[RunInfo] = []
    before: int | None = None
    while page := await journal.list(namespace=namespace, phases=("waiting",), limit=PAGE, before=before):
        found += [info for info in page if info.summary.get("waiting", {}).get("reason") == "budget"]
        before = page[-1].key
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


async def models_changed(database: Database, namespace: str, *, clock: Clock) -> int:
    """A ModelEndpoint of the namespace, or a key, was written: let what waits because of the old one ask at once.

    Runs that wait for their model, runs that are tried again later, classes of runs that were held back. The number of
    runs that were told. Before that, limits are forgotten that a changed or deleted endpoint had declared.
    """
    journal, now = SqlJournal(database), clock()
    await forget_limits(database, namespace)
    told = await wake_paused(journal, namespace, clock=clock)
    after = ""
    while page := await database.read("run_waiting_for_model", namespace=namespace, after=after, count=PAGE):
        for row in page:
            with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
                await journal.signal(signal(row["id"], RunResumed("timer"), now))
                told += 1
        after = page[-1]["id"]
    await database.write(_hasten, namespace, now)
    return told


async def forget_limits(database: Database, namespace: str) -> None:
    """Drop what endpoints of the namespace declared for their keys, if it is not what is in the store now."""
    limits = SqlModelLimits(database)
    if not (noted := await limits.declarers(namespace)):
        return
    keys = [key_text(Key("ModelEndpoint", *endpoint.split("/", 1))) for endpoint, _ in noted]
    found = await database.read("resource_get_many", keys=msgspec.json.encode(keys).decode())
    versions: set[tuple[str, str]] = set()
    for row in found:
        meta: dict[str, Any] = msgspec.json.decode(row["document"], type=dict[str, Any])["metadata"]
        versions.add((f"{meta['namespace']}/{meta['name']}", f"{meta['uid']}.{meta['generation']}"))
    for endpoint, version in noted:
        if (endpoint, version) not in versions:
            await limits.forget(endpoint, version)


def _hasten(namespace: str, now: float) -> Tx[None]:
    yield from run("class_forget_namespace", namespace=namespace)
    yield from run("queue_hasten", namespace=namespace, now=now)


class PausedSweep:
    """Looks for runs that wait for a budget although what they were refused by has changed, a page at a time.

    A look reads at most `SWEPT_AT_ONCE` waiting runs, and goes on behind them at the next. A run is told once for each
    change: the id of the signal says which.
    """

    def __init__(self, database: Database, journal: Journal, declared: DeclaredBudgets, *, clock: Clock) -> None:
        self._database = database
        self._journal = journal
        self._declared = declared
        self._clock = clock
        self._after = ""
        self._looked_at = float("-inf")

    async def look_now_and_then(self) -> None:
        """Look, unless it was done a moment ago. Never raises: the next look finds what this one did not."""
        now = self._clock()
        if 0 <= now - self._looked_at < SWEEP_EVERY:
            return
        self._looked_at = now
        try:
            await self.look()
        except FoliotError as error:
            log.warning("runs that wait for a budget are looked for again: %s", error.message)

    async def look(self) -> list[str]:
        """Tell one page of paused runs to ask again where that may end otherwise; the ids of those."""
        found = await self._database.read("run_paused", after=self._after, count=SWEPT_AT_ONCE)
        self._after = found[-1]["id"] if len(found) == SWEPT_AT_ONCE else ""
        bases: dict[str, str] = {}
        woken: list[str] = []
        for row in found:
            namespace = row["namespace"]
            if namespace not in bases:
                bases[namespace] = await self._declared.basis(namespace)
            waiting: dict[str, Any] = msgspec.json.decode(row["summary"], type=dict[str, Any]).get("waiting") or {}
            if waiting.get("basis", "") == bases[namespace]:
                continue
            asked = signal(
                row["id"],
                RunResumed("budget"),
                self._clock(),
                signal_id=f"{row['id']}/budget/{bases[namespace]}",
            )
            try:
                await self._journal.signal(asked)
                woken.append(row["id"])
            except (Conflict, NotFound):
                continue  # it has ended meanwhile
        return woken
