"""Conversations in simulated worlds: every input answered once, in order, whatever befalls whom."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from foliot.kernel.inbox import AfterTurn, Waiting
from foliot.sessions import keeper
from foliot.store.sessions import database
from simulators.talks.simulation import PROFILES, simulate

MOST_POINTS = 40
SEEDS = 100 if os.environ.get("FOLIOT_CHAOS") else 20


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_input_is_answered_once_and_in_order(profile: str) -> None:
    for seed in range(SEEDS):
        report = simulate(seed, profile)
        assert report.ok, str(report)


def test_a_process_may_die_at_any_single_point() -> None:
    """One world, killed at each of its points in turn: before and after every write, question and effect."""
    calm = replace(PROFILES["calm"], workers=1)
    points = simulate(3, calm).occasions
    assert points > 10
    for point in range(1, min(points, MOST_POINTS) + 1):
        report = simulate(3, replace(calm, crash_at=(point,)))
        assert report.ok, str(report)


def test_a_seed_is_played_the_same_way_again() -> None:
    first, again = simulate(7, "rough"), simulate(7, "rough")
    assert first.digest == again.digest
    assert first.command == "python -m simulators.talks --seed 7 --profile rough -v"


def broken(profile: str) -> list[str]:
    """Returns what was found wrong in the first world that breaks, of some."""
    for seed in range(30):
        if (report := simulate(seed, profile)).violations:
            return report.violations
    return []


def test_inputs_that_nobody_gives_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(offered: Sequence[Waiting], taken: frozenset[int]) -> AfterTurn:
        return AfterTurn()

    monkeypatch.setattr(database, "after_turn", forgets)
    assert broken("calm") != []


def test_what_is_left_by_dead_processes_is_noticed_if_nobody_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blind(self: keeper.TurnKeeper, *, patience: float = 0.0) -> list[str]:
        return []

    monkeypatch.setattr(keeper.TurnKeeper, "sweep", blind)
    assert broken("crashes") != []
