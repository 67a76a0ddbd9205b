"""From the events of the tasks to the figures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from foliot.cli.loadtest.load import FAULTS, LoadOutcome
from foliot.kernel.graph import events as t
from foliot.kernel.run import events as e
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.events import Happening, RunHappening, TaskHappening

# --- gates -----------------------------------------------------------------------------------------------------------

# What a load test must reach: gates, the profiles that fill them in, and the verdict. Pure.

OFF: Final = -1.0


class Gates(Struct, frozen=True):
    """A gate of -1 is off; of the rates and `min_success_rate`, 0 as a minimum lets everything through."""

    min_success_rate: float = 0.0
    max_deadletter_rate: float = OFF
    max_failed_rate: float = OFF
    max_timed_out: float = 0.0
    min_retry_total: float = OFF
    min_takeover_events: float = OFF
    max_queue_p99_ms: float = OFF
    min_throughput: float = OFF


PROFILES: Final[Mapping[str, Gates]] = {
    "default": Gates(min_success_rate=0.90, max_deadletter_rate=0.10, max_failed_rate=0.10),
    "ci": Gates(min_success_rate=0.85, max_deadletter_rate=0.15, max_failed_rate=0.15),
}


def fill(profile: str | None, given: Mapping[str, float | None]) -> Gates:
    """The gates of a profile, with what was given on the command line instead."""
    base = PROFILES[profile] if profile else Gates()
    chosen = {name: value for name, value in given.items() if value is not None}
    return Gates(**{**{name: getattr(base, name) for name in Gates.__struct_fields__}, **chosen})


class GateVerdict(Struct, frozen=True):
    passed: bool
    violations: list[str]


def judge(gates: Gates, summary: Mapping[str, Any], metrics: Mapping[str, Any]) -> GateVerdict:
    """Every gate that is not reached, in a sentence each."""
    measured: Sequence[tuple[str, float, bool]] = (
        ("success_rate", metrics["success_rate"], True),
        ("deadletter_rate", metrics["deadletter_rate"], False),
        ("failed_rate", metrics["failed_rate"], False),
        ("timed_out", summary["timed_out"], False),
        ("retry_total", metrics["retry_total"], True),
        ("takeover_events", summary["total_takeovers"], True),
        ("queue_p99_ms", metrics["queue_p99_ms"], False),
        ("throughput", metrics["tasks_per_second"], True),
    )
    violations: list[str] = []
    for name, value, is_minimum in measured:
        gate: float = getattr(gates, f"{'min' if is_minimum else 'max'}_{name}")
        if gate < 0:
            continue
        if is_minimum and value < gate:
            violations.append(f"{name} is {value:g}, and must be at least {gate:g}")
        elif not is_minimum and value > gate:
            violations.append(f"{name} is {value:g}, and may be at most {gate:g}")
    if summary["create_errors"]:
        violations.append(f"{summary['create_errors']} tasks could not be created")
    if summary["injection_errors"]:
        violations.append(f"{summary['injection_errors']} faults could not be injected")
    return GateVerdict(not violations, violations)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


# --- measuring -------------------------------------------------------------------------------------------------------


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


def summary_of(outcomes: Sequence[LoadOutcome], measured: Sequence[Measured], timed_out: int) -> dict[str, Any]:
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
