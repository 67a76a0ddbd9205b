"""From the events of the tasks to the figures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from foliot.cli.loadtest.driving import FAULTS, Outcome
from foliot.cli.loadtest.gates import percentile
from foliot.kernel import events as e
from foliot.kernel import task_events as t
from foliot.work.base import TaskInfo
from foliot.work.story.happenings import Happening, RunHappening, TaskHappening


class Measured(Struct, frozen=True):
    """One task that was created. Times in milliseconds; None for what has not happened."""

    name: str
    phase: str
    queue_ms: float | None
    duration_ms: float | None
    accepted_at: float
    ended_at: float | None
    retries: int
    takeovers: int
    requeues: int
    dead_messages: int


def measure(info: TaskInfo, happenings: Iterable[Happening]) -> Measured:
    """A claim that follows neither the birth of a run nor a retry, a wait or a hand-back is a takeover."""
    accepted, ended, first_step = info.created_at, info.ended_at, None
    retries = takeovers = requeues = dead = 0
    under_way: set[str] = set()
    for happening in happenings:
        if isinstance(happening, TaskHappening):
            requeues += isinstance(happening.fact, t.TaskRequeued)
            dead += isinstance(happening.fact, t.MessageEnded) and happening.fact.outcome == "failed"
            continue
        match happening.fact:
            case e.RunClaimed(epoch=epoch):
                takeovers += happening.run_id in under_way or (epoch > 1 and _is_first(happening))
                under_way.add(happening.run_id)
            case e.RunRetried():
                retries += 1
                under_way.discard(happening.run_id)
            case e.RunWaiting():
                under_way.discard(happening.run_id)
            case e.StepStarted() if first_step is None:
                first_step = happening.at
            case _:
                pass
    return Measured(
        info.name,
        info.phase,
        None if first_step is None else max(0.0, first_step - accepted) * 1000,
        None if ended is None else max(0.0, ended - accepted) * 1000,
        accepted,
        ended,
        retries,
        takeovers,
        requeues,
        dead,
    )


def _is_first(happening: RunHappening) -> bool:
    """Whether nothing but its birth is recorded of the run before: a holder that died at once left no trace."""
    return happening.seq == 2


def summary_of(outcomes: Sequence[Outcome], measured: Sequence[Measured], timed_out: int) -> dict[str, Any]:
    phases = Counter(each.phase for each in measured)
    refused_on_purpose = [each for each in outcomes if each.fault == "invalid_system"]
    injected = {
        f"injected_{fault}": sum(each.fault == fault and each.injected for each in outcomes) for fault in FAULTS
    }
    return {
        "requested": len(outcomes),
        "created": sum(each.created for each in outcomes),
        "refused": sum(bool(each.refused) for each in refused_on_purpose),
        "create_errors": sum(not each.created and each.fault != "invalid_system" for each in outcomes),
        "timed_out": timed_out,
        "succeeded": phases["succeeded"],
        "failed": phases["failed"] + phases["cancelled"],
        "deadletter": phases["dead_lettered"],
        **injected,
        "injection_errors": sum(each.fault == "invalid_system" and each.created for each in outcomes),
        "total_task_retry": sum(each.requeues for each in measured),
        "total_message_retry": sum(each.retries for each in measured),
        "total_message_deadletters": sum(each.dead_messages for each in measured),
        "total_takeovers": sum(each.takeovers for each in measured),
    }


def metrics_of(summary: dict[str, Any], measured: Sequence[Measured]) -> dict[str, Any]:
    """Rates are shares of what has ended."""
    ended = [each for each in measured if each.ended_at is not None]
    terminal = len(ended)
    durations = [each.duration_ms for each in ended if each.duration_ms is not None]
    queues = [each.queue_ms for each in measured if each.queue_ms is not None]
    took = max((each.ended_at or 0.0 for each in ended), default=0.0) - min((m.accepted_at for m in ended), default=0.0)

    def rate(key: str) -> float:
        return round(summary[key] / terminal, 4) if terminal else 0.0

    return {
        "terminal": terminal,
        "success_rate": rate("succeeded"),
        "deadletter_rate": rate("deadletter"),
        "failed_rate": rate("failed"),
        "duration_p50_ms": round(percentile(durations, 0.5), 2),
        "duration_p95_ms": round(percentile(durations, 0.95), 2),
        "duration_max_ms": round(max(durations, default=0.0), 2),
        "queue_p50_ms": round(percentile(queues, 0.5), 2),
        "queue_p99_ms": round(percentile(queues, 0.99), 2),
        "seconds": round(took, 3),
        "tasks_per_second": round(terminal / took, 2) if took > 0 else 0.0,
        "retry_total": summary["total_task_retry"] + summary["total_message_retry"],
    }


def slowest(measured: Sequence[Measured], count: int = 5) -> list[dict[str, Any]]:
    """The slowest tasks, slowest first."""
    ended = [each for each in measured if each.duration_ms is not None]
    ended.sort(key=lambda each: each.duration_ms or 0.0, reverse=True)
    return [
        {"task": each.name, "phase": each.phase, "duration_ms": round(each.duration_ms or 0.0, 2)}
        for each in ended[:count]
    ]
