"""Which slots of a schedule make a task now, and which never will. Pure: all that it looks at is given.

missed: skip   the newest slot, if it is not later than the deadline; the others are left out
missed: last   the newest slot, however late; the others are left out
missed: all    the newest `limit` slots, however late, oldest first; those before them are left out
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from foliot.work.triggers.slots import Timing, delay_of

Missed: TypeAlias = Literal["skip", "last", "all"]

# A slot that is left out gets a row that says so. After a long silence there may be millions: the newest get one each.
LEFT_OUT_ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What a schedule says about being late. Times in seconds."""

    missed: Missed = "skip"
    limit: int = 10
    deadline: float = 300.0
    jitter: float = 0.0


class Verdict(NamedTuple):
    """`reason` is blank for a slot that makes a task."""

    slot: int
    reason: str = ""

    @property
    def fires(self) -> bool:
        return not self.reason


def verdicts(timing: Timing, rule: CatchUp, uid: str, *, after: float, now: float) -> list[Verdict]:
    """What becomes of the slots behind `after` that are due at `now`, oldest first."""
    wanted = rule.limit if rule.missed == "all" else 1
    found = timing.newest(after, now, wanted + LEFT_OUT_ROWS + 1)
    due = list(found.slots)
    if due and start_of(timing, rule, uid, due[-1]) > now:
        due.pop()  # only the newest can still be waiting for its delay: it ends before the next slot
    if len(due) > wanted + LEFT_OUT_ROWS:
        due = due[-(wanted + LEFT_OUT_ROWS) :]
        more = True
    else:
        more = found.more
    judged = [Verdict(slot, "missed") for slot in due[:-wanted]] + [Verdict(slot) for slot in due[-wanted:]]
    if rule.missed == "skip" and judged and now - start_of(timing, rule, uid, due[-1]) > rule.deadline:
        judged[-1] = Verdict(due[-1], "missed_deadline")
    if more and judged:
        judged[0] = Verdict(judged[0].slot, "missed, and others before it")
    return judged


def start_of(timing: Timing, rule: CatchUp, uid: str, slot: int) -> float:
    """When the task of a slot is to be made."""
    return slot + delay_of(uid, slot, rule.jitter, timing.after(slot) if rule.jitter else None)


def next_start(timing: Timing, rule: CatchUp, uid: str, *, after: float) -> tuple[int, float] | None:
    """The first slot whose start is behind `after`, and that start; None when there will be none."""
    slot = timing.after(after - rule.jitter if rule.jitter else after)
    while slot is not None:
        if (start := start_of(timing, rule, uid, slot)) > after:
            return slot, start
        slot = timing.after(slot)
    return None


def first_after(timing: Timing, *, created: float, deadline: float) -> float:
    """From where on the slots of a new schedule count: from its making, and the last one before it if still in time."""
    before = timing.newest(created - deadline - 1, created, 1).slots
    return before[-1] - 1 if before else created
