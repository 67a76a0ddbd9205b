"""Thousands of worlds in which everything goes wrong, and the engine keeps its promises in each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foliot.errors import UsageError
from foliot.kernel.run.events import ToolStarted, UnknownDecided
from simulators.engine.__main__ import main
from simulators.engine.history import Noted, Stored
from simulators.engine.profiles import PROFILES, profile_for
from simulators.engine.simulation import simulate

ROOT = Path(__file__).parents[2]
SEEDS_PER_TEST = 100


@pytest.mark.parametrize("start", range(0, 1000, SEEDS_PER_TEST))
def test_every_promise_is_kept_in_every_world(start: int) -> None:
    for seed in range(start, start + SEEDS_PER_TEST):
        report = simulate(seed)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_process_may_die_at_any_single_point(seed: int) -> None:
    """One world, killed at each of its points in turn: before and after every write, question and effect."""
    calm = replace(PROFILES["calm"], runs=1, workers=1)
    points = simulate(seed, calm).occasions
    assert points > 10
    for point in range(1, points + 1):
        report = simulate(seed, replace(calm, crash_at=(point,)))
        assert report.ok, report


def test_the_worlds_are_as_rough_as_they_are_meant_to_be() -> None:
    """Otherwise keeping the promises would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(600):
        for item in simulate(seed).history.items:
            if isinstance(item, Noted):
                seen[" ".join(item.text.split()[:4])] += 1
            elif isinstance(item, Stored):
                for event in item.events:
                    if isinstance(event, UnknownDecided):
                        seen[f"decided {event.decision}"] += 1
                    elif isinstance(event, ToolStarted) and event.attempt > 1:
                        seen["started again"] += 1
    for what in ("create", "claim", "append", "renew", "an answer", "an effect"):
        for when in ("before", "after"):
            assert seen[f"CRASH {when} {what}"], f"nobody died {when} {what}"
    for expected in (
        "decided happened",
        "decided run",
        "decided fail",
        "started again",
        "refused append: lease_lost",
        "refused append: signals_pending",
        "disk fails before append",
        "disk fails after append",
        "awake again",
        "STOP before append",
    ):
        assert seen[expected], f"never seen: {expected}"


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_world(profile: str) -> None:
    first, second = simulate(7, profile), simulate(7, profile)
    assert first.digest == second.digest
    assert first.history.lines() == second.history.lines()
    assert first.digest != simulate(8, profile).digest


def test_a_seed_gives_the_same_world_in_another_process_with_other_hashes() -> None:
    code = (
        "from simulators.engine.simulation import simulate\n"
        "print(' '.join(simulate(seed).digest for seed in range(25)))"
    )

    def digests(hash_seed: str) -> str:
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environ, check=True, capture_output=True, text=True
        ).stdout

    here = " ".join(simulate(seed).digest for seed in range(25)) + "\n"
    assert digests("1") == digests("2") == here


def test_the_command_line_plays_one_seed_and_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--profile", "crashes", "-v"]) == 0
    shown = capsys.readouterr().out
    assert "every promise was kept" in shown
    assert "replay: python -m simulators.engine --seed 3 --profile crashes -v" in shown
    assert simulate(3, "crashes").digest in shown


def test_the_command_line_plays_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "4", "--start", "10"]) == 0
    assert "4 seeds from 10, profile any: 0 broken" in capsys.readouterr().out


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        profile_for(1, "gentle")
    assert "crashes" in (caught.value.hint or "")
