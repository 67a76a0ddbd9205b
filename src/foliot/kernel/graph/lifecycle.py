"""The lives of tasks, runs, messages, approvals, workers and schedule slots: which state may follow which, as tables.

Every change of a state in the store is compare-and-set, and asks these tables first. A state that is not on the right
of any other is where a life begins; one with nothing on its right is where it ends.

A task ends once, and a bad end can be undone by a requeue: it is queued again, as a new attempt of the same task. What
follows within the same move starts from there (all that was missing may be done already, and then it succeeds).
Whether it is archived is not a state but a mark, because an archived task keeps the state it ended in: `may_archive`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from foliot.kernel.errors import IllegalEvent

TaskPhase: TypeAlias = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled", "dead_lettered"]
RunPhase: TypeAlias = Literal["pending", "running", "waiting", "succeeded", "failed", "cancelled"]
MessagePhase: TypeAlias = Literal[
    "waiting", "queued", "running", "retry_pending", "succeeded", "dead_letter", "cancelled"
]
ApprovalPhase: TypeAlias = Literal["pending", "approved", "denied", "expired", "used"]
WorkerPhase: TypeAlias = Literal["ready", "draining", "not_ready"]
SlotPhase: TypeAlias = Literal["due", "fired", "skipped"]

S = TypeVar("S", bound=str)
Table: TypeAlias = Mapping[S, frozenset[S]]

_TASK_ENDS: Final[frozenset[TaskPhase]] = frozenset({"succeeded", "failed", "cancelled", "dead_lettered"})

TASKS: Final[Table[TaskPhase]] = {
    "queued": frozenset({"running", "waiting", *_TASK_ENDS}),
    "running": frozenset({"waiting", *_TASK_ENDS}),
    "waiting": frozenset({"running", *_TASK_ENDS}),
    "succeeded": frozenset(),
    "failed": frozenset({"queued"}),
    "cancelled": frozenset({"queued"}),
    "dead_lettered": frozenset({"queued"}),
}

# A run goes back to pending when its worker hands it back, or when another attempt will follow.
RUNS: Final[Table[RunPhase]] = {
    "pending": frozenset({"running", "waiting", "failed", "cancelled"}),
    "running": frozenset({"pending", "waiting", "succeeded", "failed", "cancelled"}),
    "waiting": frozenset({"pending", "running", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

# A message waits at a join and is done when the join takes it, or it has a run and shares its life.
MESSAGES: Final[Table[MessagePhase]] = {
    "waiting": frozenset({"succeeded", "cancelled"}),
    "queued": frozenset({"running", "cancelled", "dead_letter"}),
    "running": frozenset({"queued", "retry_pending", "succeeded", "dead_letter", "cancelled"}),
    "retry_pending": frozenset({"running", "cancelled", "dead_letter"}),
    "succeeded": frozenset(),
    "dead_letter": frozenset(),
    "cancelled": frozenset(),
}

# A grant is single-use.
APPROVALS: Final[Table[ApprovalPhase]] = {
    "pending": frozenset({"approved", "denied", "expired"}),
    "approved": frozenset({"used", "expired"}),
    "denied": frozenset(),
    "expired": frozenset(),
    "used": frozenset(),
}

WORKERS: Final[Table[WorkerPhase]] = {
    "ready": frozenset({"draining", "not_ready"}),
    "draining": frozenset({"not_ready", "ready"}),
    "not_ready": frozenset({"ready", "draining"}),
}

# A slot of a schedule is decided once, whoever decides it.
SLOTS: Final[Table[SlotPhase]] = {
    "due": frozenset({"fired", "skipped"}),
    "fired": frozenset(),
    "skipped": frozenset(),
}

ApiPhase: TypeAlias = Literal["Pending", "Running", "WaitingApproval", "Succeeded", "Failed", "DeadLetter", "Cancelled"]
API_PHASES: Final[Mapping[TaskPhase, ApiPhase]] = {
    "queued": "Pending",
    "running": "Running",
    "waiting": "WaitingApproval",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
    "dead_lettered": "DeadLetter",
}
# The phase of a task that waits for something else than an approval: an answer, a budget, word on a lost call.
WAITING: Final = "Waiting"
TASK_PHASES: Final[tuple[TaskPhase, ...]] = get_args(TaskPhase)


def may(table: Table[S], old: S, new: S) -> bool:
    """Whether `new` may follow `old`. To stay where one is, is no change and is always allowed."""
    return old == new or new in table[old]


def check(table: Table[S], old: S, new: S, what: str = "it") -> None:
    """Raises `IllegalEvent`, naming `what` cannot change so, and what it could become."""
    if not may(table, old, new):
        could = ", ".join(sorted(table[old])) or "nothing: this is an end"
        raise IllegalEvent(f"{what} is {old} and cannot become {new}; it could become {could}")


def ended(table: Table[S], state: S) -> bool:
    """Whether nothing follows by itself. A task that ended badly has ended, although a requeue can revive it."""
    return not table[state] or (table is TASKS and state in _TASK_ENDS)


def may_archive(phase: TaskPhase) -> bool:
    """Only what has ended can be archived; what is requeued leaves the archive with it."""
    return phase in _TASK_ENDS
