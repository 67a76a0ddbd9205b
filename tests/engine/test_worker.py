"""Who holds a run, whether that process is gone, and how runs are named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from foliot.engine.ids import new_run_id
from foliot.engine.worker import _started, host, identity, is_gone


def test_this_process_is_not_gone() -> None:
    assert not is_gone(identity())
    assert is_gone(None)


def test_a_process_that_has_ended_is_gone() -> None:
    code = "from foliot.engine.worker import identity; print(identity())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert is_gone(child.stdout.strip())


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    assert is_gone(f"{host()}/{os.getpid()}/123456789")


@pytest.mark.parametrize("worker", ["", "w1", "elsewhere.1234/1/2", "a/b/c/d", f"{host()}/x/1"])
def test_in_doubt_a_worker_lives(worker: str) -> None:
    assert not is_gone(worker)


def test_a_process_of_someone_else_lives() -> None:
    assert not is_gone(f"{host()}/1/{_started(1)}")


def test_run_ids_sort_by_age_and_do_not_repeat() -> None:
    ids = [new_run_id(1_750_000_000.0 + number) for number in range(50)]
    assert ids == sorted(ids)
    assert len({new_run_id(1.0) for _ in range(1000)}) == 1000
    assert all(len(run_id) == 20 and not set(run_id) & set("ilou") for run_id in ids)
