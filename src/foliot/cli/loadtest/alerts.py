"""Whether the tasks of a store look healthy: rules over counts, each with a threshold and how bad it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from foliot.cli.loadtest.gates import percentile
from foliot.work.story.telling import TaskStory

Severity: TypeAlias = Literal["warning", "critical"]
SHOWN: Final = 10
TOO_FEW: Final = "insufficient_sample"


class Rules(Struct, frozen=True):
    """A rule fires when its figure reaches the threshold; 0 turns it off."""

    min_tasks: int = 20
    require_any_task_succeeded: bool = True
    retry_storm_total: float = 100
    retry_storm_rate: float = 2.0
    deadletter_growth_total: float = 20
    deadletter_growth_rate: float = 0.10
    in_flight_max: float = 200
    latency_p95_ms_max: float = 120_000


PROFILES: Final[Mapping[str, Rules]] = {"default": Rules(), "ci": Rules(min_tasks=10, latency_p95_ms_max=300_000)}


class Violation(Struct, frozen=True):
    code: str
    severity: Severity
    message: str


class Sample(Struct, frozen=True):
    """What the rules need to know of one task."""

    name: str
    phase: str
    retries: int
    dead_messages: int
    in_flight: int
    p95_ms: float


def sample(story: TaskStory, now: float) -> Sample:
    """`p95_ms` is over the messages of the task: from being sent to their end, or until now."""
    worked = [each for each in story.messages.values() if each.run is not None or each.ended is not None]
    return Sample(
        story.info.name,
        story.info.phase,
        retries=sum(max(0, each.attempts - 1) for each in worked) + max(0, story.info.attempt - 1),
        dead_messages=sum(each.phase == "dead_letter" for each in worked),
        in_flight=len(story.live),
        p95_ms=round(percentile([each.seconds(now) * 1000 for each in worked], 0.95), 2),
    )


def aggregate(samples: Iterable[Sample]) -> dict[str, Any]:
    found = list(samples)
    tasks = len(found)
    retries = sum(each.retries for each in found)
    dead = sum(each.phase == "dead_lettered" for each in found)
    return {
        "tasks": tasks,
        "succeeded_tasks": sum(each.phase == "succeeded" for each in found),
        "failed_tasks": sum(each.phase in ("failed", "cancelled") for each in found),
        "deadletter_tasks": dead,
        "retry_count_total": retries,
        "deadletters_total": sum(each.dead_messages for each in found),
        "in_flight_total": sum(each.in_flight for each in found),
        "latency_p95_ms_max": max((each.p95_ms for each in found), default=0.0),
        "retry_rate_per_task": round(retries / tasks, 4) if tasks else 0.0,
        "deadletter_task_rate": round(dead / tasks, 4) if tasks else 0.0,
    }


def check(rules: Rules, totals: Mapping[str, Any]) -> list[Violation]:
    """What is wrong. Too few tasks say nothing either way: then that is all that is told."""
    if rules.min_tasks and totals["tasks"] < rules.min_tasks:
        text = f"{totals['tasks']} tasks are too few to tell anything; at least {rules.min_tasks} are needed"
        return [Violation(TOO_FEW, "warning", text)]
    found: list[Violation] = []
    if rules.require_any_task_succeeded and not totals["succeeded_tasks"]:
        found.append(Violation("no_success", "critical", f"not one of {totals['tasks']} tasks has succeeded"))
    thresholds: tuple[tuple[str, Severity, str, float], ...] = (
        ("retry_storm_total", "critical", "retry_count_total", rules.retry_storm_total),
        ("retry_storm_rate", "critical", "retry_rate_per_task", rules.retry_storm_rate),
        ("deadletter_growth_total", "critical", "deadletters_total", rules.deadletter_growth_total),
        ("deadletter_growth_rate", "critical", "deadletter_task_rate", rules.deadletter_growth_rate),
        ("in_flight_high", "warning", "in_flight_total", rules.in_flight_max),
        ("latency_p95_high", "warning", "latency_p95_ms_max", rules.latency_p95_ms_max),
    )
    for code, severity, figure, threshold in thresholds:
        if threshold and totals[figure] >= threshold:
            found.append(Violation(code, severity, f"{figure} is {totals[figure]:g}, and {threshold:g} is too much"))
    return found
