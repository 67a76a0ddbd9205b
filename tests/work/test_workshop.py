"""Hundreds of workshops in which everything goes wrong, and the promises about tasks hold in each."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foliot.errors import UsageError
from foliot.store import queries
from foliot.store.queue import queue
from simulators.engine.history import Noted
from simulators.workshop.process import Colleague
from simulators.workshop.profiles import PROFILES, profile_for
from simulators.workshop.simulation import simulate

SEEDS_PER_TEST = 30


@pytest.mark.parametrize("start", range(0, 600, SEEDS_PER_TEST))
def test_every_promise_is_kept_in_every_workshop(start: int) -> None:
    for seed in range(start, start + SEEDS_PER_TEST):
        report = simulate(seed)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)


def test_a_worker_may_die_at_any_single_point() -> None:
    """One workshop, and a crash at each of its points in turn."""
    calm = replace(PROFILES["calm"], tasks=1, workers=1)
    points = simulate(3, calm).occasions
    assert points > 20
    for point in range(1, points + 1):
        report = simulate(3, replace(calm, crash_at=(point,)))
        assert report.ok, report


def test_the_same_seed_plays_the_same_workshop() -> None:
    assert simulate(11).digest == simulate(11).digest
    assert simulate(11).digest != simulate(12).digest


def test_the_workshops_are_as_rough_as_they_are_meant_to_be() -> None:
    """Otherwise keeping the promises would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        for item in simulate(seed).history.items:
            if isinstance(item, Noted):
                seen[item.text.split()[0]] += 1
                seen[" ".join(item.text.split()[:3])] += 1
    for expected in ("CRASH", "PAUSE", "STOP", "CUT", "CLOCK", "disk"):
        assert seen[expected], f"nothing of the kind {expected}"
    for expected in ("CRASH before publishing", "CRASH before an", "CRASH after _let_go", "CRASH before take"):
        assert seen[expected], f"nobody died there: {expected}"


def _caught(profile: str = "any", seeds: int = 80) -> bool:
    return any(not simulate(seed, profile).ok for seed in range(seeds))


def test_a_task_that_is_not_told_of_its_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling outside the transaction that ends the run loses tasks."""

    def forgets(self, state):
        return None

    monkeypatch.setattr("foliot.work.tasks.settlement.TaskSettlement.settle", forgets)
    assert _caught("calm", 2)


def test_a_queue_that_forgets_a_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def drops(key, due_at):
        yield from queue.remove(key)

    monkeypatch.setattr(queue, "let_go", drops)
    assert _caught("crashes")


# Worlds in which the code of its day broke a promise; and in how many at most a lock that is left out must be missed.
LOST_WAKE_UPS = (2, 11, 26)
WITHOUT_A_LOCK = 60


@pytest.mark.parametrize("seed", LOST_WAKE_UPS)
def test_a_run_that_goes_to_rest_hears_what_is_said_in_that_moment(seed: int) -> None:
    """Transactions are interleaved here, as PostgreSQL does it."""
    report = simulate(seed, "crowds")
    assert report.ok, report
    assert report.digest == simulate(seed, "crowds").digest


def test_a_signal_beside_a_run_that_goes_to_rest_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock on the run's row neither sees the other."""
    monkeypatch.setitem(queries.load(), "run_lock", queries.load()["run_lock"].replace("/*for_update*/", ""))
    worlds = (simulate(seed, "crowds") for seed in range(WITHOUT_A_LOCK))
    assert any("rests with a signal that nobody will take" in str(report) for report in worlds)


def test_leases_that_go_by_the_clocks_of_machines_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With clocks up to five minutes off, runs would be stolen from workers that live."""
    monkeypatch.setattr(Colleague, "lease_clock", Colleague.clock)
    assert _caught("clocks", 20)


def test_an_unknown_profile_is_told() -> None:
    with pytest.raises(UsageError, match="no workshop profile"):
        profile_for(1, "gentle")


def test_the_command_replays_a_seed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simulators.workshop", "--seed", "5", "--profile", "crashes"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "every promise was kept" in done.stdout
