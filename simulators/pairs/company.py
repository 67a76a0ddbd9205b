"""A seeded database, and the pairs that are played on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import combinations_with_replacement
from typing import Final, NamedTuple

from foliot.store.postgres.database import PostgresDatabase
from simulators.pairs.acts import ACTS, performed
from simulators.pairs.play import Finding, PairReport, Theatre
from simulators.pairs.seed import Seed, sow
from simulators.pairs.stage import Stage

# --- allowances ------------------------------------------------------------------------------------------------------

# Where two transactions may differ from both of their orders, and why that is right.


class Allowance(NamedTuple):
    """Findings of a kind, in pairs of acts whose names begin so."""

    one: str
    other: str
    kind: str
    reason: str


ALLOWANCES: Final = (
    Allowance(
        "worker.claim",
        "",
        "anomaly",
        "a claim passes over rows that others have locked: it takes what is left, and comes again",
    ),
    Allowance(
        "run.renew",
        "",
        "anomaly",
        "a renewal passes over rows that others have locked, and comes again long before the lease ends",
    ),
    Allowance(
        "budget.reserve",
        "budget.give-back",
        "anomaly",
        "what a process that is taken for dead holds from this moment on is given back when its time is over",
    ),
    Allowance(
        "budget.reserve.takeover",
        "budget.reserve.takeover",
        "anomaly",
        "of two that take over a run at once the last one holds its act; the fence of the run decides who goes on",
    ),
    Allowance(
        "run.purge",
        "task.requeue",
        "serial",
        "what the runs may have done is read before: those that are forgotten in between are not missed",
    ),
    Allowance(
        "run.purge",
        "task.purge",
        "anomaly",
        "a task whose runs are being forgotten at this moment is forgotten at the next purge",
    ),
)


def expected(pair: tuple[str, str], finding: Finding) -> str | None:
    """Why this finding is none, if it is."""
    for each in ALLOWANCES:
        for one, other in (pair, pair[::-1]):
            if each.kind == finding.kind and one.startswith(each.one) and other.startswith(each.other):
                return each.reason
    return None


# --- company ---------------------------------------------------------------------------------------------------------


class Company:
    """A seeded stage and its theatre."""

    def __init__(self, stage: Stage, theatre: Theatre, seed: Seed) -> None:
        self.stage = stage
        self.theatre = theatre
        self._seed = seed

    async def pairs(self, *only: str) -> list[tuple[str, str]]:
        """All pairs that meet; with `only`, of acts whose names begin so."""
        names = [name for name in ACTS if not only or name.startswith(only)]
        found: list[tuple[str, str]] = []
        for one, other in combinations_with_replacement(names, 2):
            mine = await self.theatre.footprint(one, performed(one, self._seed))
            if mine.meets(await self.theatre.footprint(other, performed(other, self._seed))):
                found.append((one, other))
        return found

    async def explore(self, pair: tuple[str, str], *, switches: int = 2, most: int = 200) -> PairReport:
        """Explores a pair like `Theatre.explore`, and leaves out the findings that are expected of it."""
        acts = (performed(pair[0], self._seed), performed(pair[1], self._seed))
        report = await self.theatre.explore(pair, acts, switches=switches, most=most)
        report.findings = [each for each in report.findings if not expected(pair, each)]
        return report

    async def bodies(self) -> set[str]:
        """The names of all transactions that the acts play, each alone."""
        found: set[str] = set()
        for name in ACTS:
            found |= (await self.theatre.solo(performed(name, self._seed))).bodies[0]
        return found


@asynccontextmanager
async def company(url: str) -> AsyncGenerator[Company]:
    """Opens a company on an empty database that nobody else uses."""
    database = await PostgresDatabase.open(url)
    try:
        seed = await sow(database)
    finally:
        await database.close()
    stage = await Stage.set_up(url)
    theatre = await Theatre.open(stage)
    try:
        yield Company(stage, theatre, seed)
    finally:
        await theatre.close()
        await stage.close()


def line(report: PairReport) -> str:
    """One row of the table."""
    found = ", ".join(report.kinds) or "none"
    return f"{' × '.join(report.names):60} {report.serial:5} {report.plays:6}{'+' if report.cut_off else ' '} {found}"
