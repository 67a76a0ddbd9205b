"""The tables, pinned: a change here is a change of what the store accepts."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.graph import lifecycle as life


def table(rows: str) -> dict[str, frozenset[str]]:
    """`queued: running, failed` on each line."""
    parts = [line.strip().partition(":") for line in rows.strip().splitlines()]
    return {old: frozenset(new.replace(",", " ").split()) for old, _, new in parts}


@pytest.mark.parametrize(
    ("actual", "phases", "rows"),
    [
        (
            life.TASKS,
            life.TaskPhase,
            """
            queued: running, waiting, succeeded, failed, cancelled, dead_lettered
            running: waiting, succeeded, failed, cancelled, dead_lettered
            waiting: running, succeeded, failed, cancelled, dead_lettered
            succeeded:
            failed: queued
            cancelled: queued
            dead_lettered: queued
            """,
        ),
        (
            life.RUNS,
            life.RunPhase,
            """
            pending: running, waiting, failed, cancelled
            running: pending, waiting, succeeded, failed, cancelled
            waiting: pending, running, failed, cancelled
            succeeded:
            failed:
            cancelled:
            """,
        ),
        (
            life.MESSAGES,
            life.MessagePhase,
            """
            waiting: succeeded, cancelled
            queued: running, cancelled, dead_letter
            running: queued, retry_pending, succeeded, dead_letter, cancelled
            retry_pending: running, cancelled, dead_letter
            succeeded:
            dead_letter:
            cancelled:
            """,
        ),
        (
            life.APPROVALS,
            life.ApprovalPhase,
            """
            pending: approved, denied, expired
            approved: used, expired
            denied:
            expired:
            used:
            """,
        ),
        (
            life.WORKERS,
            life.WorkerPhase,
            """
            ready: draining, not_ready
            draining: not_ready, ready
            not_ready: ready, draining
            """,
        ),
        (
            life.SLOTS,
            life.SlotPhase,
            """
            due: fired, skipped
            fired:
            skipped:
            """,
        ),
    ],
    ids=["task", "run", "message", "approval", "worker", "slot"],
)
def test_the_table_is_the_one_that_was_agreed(actual: Any, phases: Any, rows: str):
    assert actual == table(rows)
    assert set(actual) == set(get_args(phases))
    assert frozenset().union(*actual.values()) <= set(actual)


def test_the_phases_of_runs_are_those_of_the_store():
    from foliot.store.journal.base import Phase

    assert get_args(life.RunPhase) == get_args(Phase)


def test_to_stay_is_always_allowed():
    assert life.may(life.TASKS, "succeeded", "succeeded")
    assert not life.may(life.TASKS, "succeeded", "running")


def test_a_change_that_is_not_allowed_says_what_is():
    life.check(life.SLOTS, "due", "fired")
    with pytest.raises(IllegalEvent, match="task a/b is failed and cannot become running; it could become queued"):
        life.check(life.TASKS, "failed", "running", "task a/b")
    with pytest.raises(IllegalEvent, match="nothing: this is an end"):
        life.check(life.RUNS, "failed", "running")


def test_every_phase_of_a_task_has_its_word_in_the_api():
    assert dict(life.API_PHASES) == {
        "queued": "Pending",
        "running": "Running",
        "waiting": "WaitingApproval",
        "succeeded": "Succeeded",
        "failed": "Failed",
        "cancelled": "Cancelled",
        "dead_lettered": "DeadLetter",
    }
    assert set(life.API_PHASES.values()) == set(get_args(life.ApiPhase))


def test_only_what_has_ended_can_be_archived():
    assert [phase for phase in life.TASK_PHASES if life.may_archive(phase)] == [
        "succeeded",
        "failed",
        "cancelled",
        "dead_lettered",
    ]
    assert [phase for phase in life.TASK_PHASES if life.ended(life.TASKS, phase)] == [
        "succeeded",
        "failed",
        "cancelled",
        "dead_lettered",
    ]
    assert life.ended(life.SLOTS, "fired")
    assert not life.ended(life.WORKERS, "draining")
