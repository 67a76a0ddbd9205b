"""What `foliot wait --for` takes for true: phases, conditions, and the words for an end."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.cli.commands.wait import parse_condition


def in_phase(phase: str | None) -> dict[str, Any]:
    return {"kind": "Agent", "metadata": {"name": "x"}, "status": {} if phase is None else {"phase": phase}}


@pytest.mark.parametrize(
    ("condition", "phases"),
    [
        ("condition=Complete", {"Succeeded", "Ready", None}),
        ("condition=Ready", {"Ready", None}),
        ("condition=Failed", {"Failed", "DeadLetter", "Error"}),
        ("condition=Running", {"Running"}),
        ("phase=Running", {"Running"}),
    ],
)
def test_a_condition_holds_in_the_phases_that_it_means(condition: str, phases: set[str | None]) -> None:
    holds = parse_condition(condition)
    every = ("Pending", "Running", "Succeeded", "Ready", "Failed", "DeadLetter", "Error", None)
    assert {phase for phase in every if holds(in_phase(phase))} == phases
    assert not holds(None)


def test_a_condition_of_the_status_comes_before_the_phase() -> None:
    holds = parse_condition("condition=Ready=False")
    assert holds({"status": {"phase": "Ready", "conditions": [{"type": "Ready", "status": "False"}]}})
    assert not holds({"status": {"phase": "Ready"}})
