"""Where two transactions may differ from both of their orders, and why that is right."""

from __future__ import annotations

from typing import Final, NamedTuple

from foliot.testing.pairs.play import Finding


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
