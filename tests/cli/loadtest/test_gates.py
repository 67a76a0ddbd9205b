"""Gates, profiles and the figures they are held against."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.cli.loadtest.load import FAULTS, Load, share_out
from foliot.cli.loadtest.report import PROFILES, Gates, fill, judge, percentile
from foliot.errors import InvalidInput

SUMMARY = {"timed_out": 0, "total_takeovers": 0, "create_errors": 0, "injection_errors": 0}
METRICS = {
    "success_rate": 0.9,
    "deadletter_rate": 0.05,
    "failed_rate": 0.05,
    "retry_total": 0,
    "queue_p99_ms": 10.0,
    "tasks_per_second": 50.0,
}


def verdict(gates: Gates, summary: dict[str, Any] | None = None, **metrics: float) -> list[str]:
    judged = judge(gates, {**SUMMARY, **(summary or {})}, {**METRICS, **metrics})
    assert judged.passed == (not judged.violations)
    return judged.violations


def test_the_profiles_say_what_they_promise() -> None:
    assert PROFILES["default"] == Gates(0.90, 0.10, 0.10, 0.0, -1.0, -1.0)
    assert PROFILES["ci"] == Gates(0.85, 0.15, 0.15, 0.0, -1.0, -1.0)


def test_a_profile_fills_only_what_was_not_given() -> None:
    gates = fill("ci", {"min_success_rate": 0.5, "max_failed_rate": None})

    assert gates.min_success_rate == 0.5
    assert gates.max_failed_rate == 0.15
    assert fill(None, {}) == Gates()


def test_a_gate_that_is_met_exactly_is_met() -> None:
    assert verdict(Gates(min_success_rate=0.9, max_deadletter_rate=0.05, max_failed_rate=0.05)) == []


@pytest.mark.parametrize(
    ("gates", "summary", "metrics", "text"),
    [
        (Gates(min_success_rate=0.95), {}, {}, "success_rate is 0.9, and must be at least 0.95"),
        (Gates(max_deadletter_rate=0.0), {}, {}, "deadletter_rate is 0.05, and may be at most 0"),
        (Gates(max_failed_rate=0.01), {}, {}, "failed_rate is 0.05, and may be at most 0.01"),
        (Gates(), {"timed_out": 1}, {}, "timed_out is 1, and may be at most 0"),
        (Gates(min_retry_total=1), {}, {}, "retry_total is 0, and must be at least 1"),
        (Gates(min_takeover_events=2), {"total_takeovers": 1}, {}, "takeover_events is 1, and must be at least 2"),
        (Gates(max_queue_p99_ms=5), {}, {}, "queue_p99_ms is 10, and may be at most 5"),
        (Gates(min_throughput=300), {}, {}, "throughput is 50, and must be at least 300"),
        (Gates(), {"create_errors": 2}, {}, "2 tasks could not be created"),
        (Gates(), {"injection_errors": 1}, {}, "1 faults could not be injected"),
    ],
)
def test_every_gate_says_what_is_missing(gates: Gates, summary: dict, metrics: dict, text: str) -> None:
    assert verdict(gates, summary, **metrics) == [text]


def test_a_gate_of_minus_one_is_off() -> None:
    assert verdict(Gates(max_timed_out=-1), {"timed_out": 99}) == []


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_one_of_the_values_and_so_many_do_not_exceed_it(values: list[float], share: float) -> None:
    found = percentile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_nothing_has_a_percentile_of_zero() -> None:
    assert percentile([], 0.99) == 0.0


@given(st.integers(1, 300), st.lists(st.floats(0, 0.25), min_size=4, max_size=4), st.integers())
def test_faults_are_shared_out_as_the_rates_say_and_the_same_for_the_same_seed(
    tasks: int, rates: list[float], seed: int
) -> None:
    load = Load("x", tasks=tasks, rates=dict(zip(FAULTS, rates, strict=True)), seed=seed)
    try:
        plan = share_out(load)
    except InvalidInput:
        assert sum(round(rate * tasks) for rate in rates) > tasks
        return

    assert len(plan) == tasks
    assert [plan.count(fault) for fault in FAULTS] == [round(rate * tasks) for rate in rates]
    assert share_out(load) == plan


def test_rates_above_one_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 1"):
        share_out(Load("x", tasks=10, rates={"timeout_system": 0.6, "tool_failure": 0.6}))
