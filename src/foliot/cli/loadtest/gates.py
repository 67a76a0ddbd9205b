"""What a load test must reach: gates, the profiles that fill them in, and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

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


class Verdict(Struct, frozen=True):
    passed: bool
    violations: list[str]


def judge(gates: Gates, summary: Mapping[str, Any], metrics: Mapping[str, Any]) -> Verdict:
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
    return Verdict(not violations, violations)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
