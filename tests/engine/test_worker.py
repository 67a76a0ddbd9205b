"""Who holds a run, whether that process is gone, and how runs are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from foliot.common.process import _stat, host, identity, in_words, is_gone, pid_namespace
from foliot.engine.driver.ids import new_run_id

PRINT_AND_WAIT = (
    "import sys; from foliot.common.process import identity; print(identity(), flush=True); sys.stdin.read()"
)
HERE = f"{host()}/{pid_namespace()}"


def test_this_process_is_not_gone() -> None:
    assert not is_gone(identity())
    assert is_gone(None)


def test_a_process_that_has_ended_is_gone() -> None:
    code = "from foliot.common.process import identity; print(identity())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert is_gone(child.stdout.strip())


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    assert is_gone(f"{HERE}/{os.getpid()}/123456789")


@pytest.mark.parametrize(
    "worker", ["", "w1", "elsewhere.1234/1/2", "a/b/c/d", f"{host()}/999999/1", f"{HERE}/x/1", f"{HERE}/{2**80}/1"]
)
def test_in_doubt_a_worker_lives(worker: str) -> None:
    assert not is_gone(worker)


def test_a_process_of_someone_else_lives() -> None:
    assert not is_gone(f"{HERE}/1/{_stat('1')[1]}")


def test_a_process_that_is_dead_and_not_reaped_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", PRINT_AND_WAIT], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    worker = child.stdout.readline().strip()
    assert not is_gone(worker)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody asks for its exit code
    assert _stat(str(child.pid))[0] == "Z"
    assert is_gone(worker)
    child.communicate()
    assert is_gone(worker)


@pytest.mark.parametrize("options", [["-pf"], ["-pf", "--mount-proc"]])
def test_a_process_of_another_pid_namespace_is_never_judged(options: list[str]) -> None:
    """Two containers with one host name: the number of a living process there is free here, and the other way round."""
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["-Ur"]), *options]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a PID namespace")
    say = f"print(identity(), is_gone({identity()!r}), flush=True)"
    code = f"import sys; from foliot.common.process import *; {say}; sys.stdin.read()"
    child = subprocess.Popen(
        [*unshare, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    there, judged = child.stdout.readline().split()
    assert judged == "False", "this process lives, and is not to be seen there"
    assert there.split("/")[2] == "1", "its number there is one that has another meaning here"
    assert there.split("/")[1] != pid_namespace()
    assert not is_gone(there)
    child.communicate()
    assert not is_gone(there), "only its lease decides"


def test_a_worker_is_told_in_words() -> None:
    assert in_words("web.1a2b/4026531836/4711/123") == "process 4711 on web"
    assert in_words("web.1a2b/4711/123") == "process 4711 on web", "as older versions wrote it"
    assert in_words("desk") == "desk"
    assert in_words("") == "another process"


def test_run_ids_sort_by_age_and_do_not_repeat() -> None:
    ids = [new_run_id(1_750_000_000.0 + number) for number in range(50)]
    assert ids == sorted(ids)
    assert len({new_run_id(1.0) for _ in range(1000)}) == 1000
    assert all(len(run_id) == 20 and not set(run_id) & set("ilou") for run_id in ids)
