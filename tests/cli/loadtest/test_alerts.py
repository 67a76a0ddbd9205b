"""The rules that say whether the tasks of a store look healthy."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.cli.commands.alertcheck import PROFILES, AlertRules, Sample, aggregate, check

GOOD: dict[str, Any] = {
    "tasks": 20,
    "succeeded_tasks": 20,
    "retry_count_total": 0,
    "retry_rate_per_task": 0.0,
    "deadletters_total": 0,
    "deadletter_task_rate": 0.0,
    "in_flight_total": 0,
    "latency_p95_ms_max": 10.0,
}


def fired(rules: AlertRules = PROFILES["default"], **figures: float) -> list[tuple[str, str]]:
    return [(each.code, each.severity) for each in check(rules, {**GOOD, **figures})]


def test_a_healthy_store_fires_nothing() -> None:
    assert fired() == []


def test_too_few_tasks_say_nothing_else() -> None:
    assert fired(tasks=19, succeeded_tasks=0, deadletters_total=19) == [("insufficient_sample", "warning")]
    assert fired(PROFILES["ci"], tasks=10) == []


@pytest.mark.parametrize(
    ("figures", "code", "severity"),
    [
        ({"succeeded_tasks": 0}, "no_success", "critical"),
        ({"retry_count_total": 100}, "retry_storm_total", "critical"),
        ({"retry_rate_per_task": 2.0}, "retry_storm_rate", "critical"),
        ({"deadletters_total": 20}, "deadletter_growth_total", "critical"),
        ({"deadletter_task_rate": 0.1}, "deadletter_growth_rate", "critical"),
        ({"in_flight_total": 200}, "in_flight_high", "warning"),
        ({"latency_p95_ms_max": 120_000}, "latency_p95_high", "warning"),
    ],
)
def test_each_rule_fires_at_its_threshold(figures: dict[str, float], code: str, severity: str) -> None:
    assert fired(**figures) == [(code, severity)]
    assert fired(**{name: value * 0.99 for name, value in figures.items() if value}) == []


def test_zero_turns_a_rule_off() -> None:
    off = AlertRules(0, False, 0, 0, 0, 0, 0, 0)

    assert fired(off, tasks=0, succeeded_tasks=0, retry_count_total=9999, deadletters_total=9999) == []


def test_totals_are_the_sums_and_rates_of_the_tasks() -> None:
    totals = aggregate(
        [
            Sample("a", "succeeded", 3, 0, 0, 5.0),
            Sample("b", "dead_lettered", 1, 2, 0, 9.0),
            Sample("c", "running", 0, 0, 4, 1.0),
            Sample("d", "cancelled", 0, 0, 0, 0.0),
        ]
    )

    assert totals == {
        "tasks": 4,
        "succeeded_tasks": 1,
        "failed_tasks": 1,
        "deadletter_tasks": 1,
        "retry_count_total": 4,
        "deadletters_total": 2,
        "in_flight_total": 4,
        "latency_p95_ms_max": 9.0,
        "retry_rate_per_task": 1.0,
        "deadletter_task_rate": 0.25,
    }
    assert aggregate([])["retry_rate_per_task"] == 0.0
