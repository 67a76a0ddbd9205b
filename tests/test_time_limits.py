"""A test that hangs ends its run at the limit, named, however it hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HANGS = {
    "with the alarm blocked": """
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        threading.Event().wait()
    """,
    "while it catches everything": """
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                pass
    """,
    "in C, and lets no other thread go on": """
        ctypes.PyDLL(None).sleep(3600)
    """,
    "stopped": """
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
    "in its teardown, after it has failed": """
        request.addfinalizer(threading.Event().wait)
        assert False
    """,
}
HEAD = "import ctypes, os, signal, threading, time\n\ndef test_before(): pass\n\ndef test_after(): pass\n"


ALONE = ("in C, and lets no other thread go on", "in its teardown, after it has failed")


def run_pytest(folder: Path, workers: str) -> subprocess.CompletedProcess[str]:
    words = [workers, "-q", "--timeout=3", "-p", "tests.conftest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-c", str(ROOT / "pyproject.toml"), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("how", ALONE)
def test_a_process_that_hangs_is_killed_at_the_limit_of_its_test(tmp_path: Path, how: str) -> None:
    (tmp_path / "test_it.py").write_text(f"{HEAD}\ndef test_hangs(request):{HANGS[how]}")
    done = run_pytest(tmp_path, "-n0")
    assert done.returncode == -signal.SIGABRT
    assert "test_it.py::test_hangs has taken longer than its time limit" in done.stderr
    assert "most recent call first" in done.stderr, "the threads are printed"


def test_a_worker_that_hangs_is_killed_and_the_others_go_on(tmp_path: Path) -> None:
    tests = [f"\ndef test_hangs_{number}(request):{body}" for number, body in enumerate(HANGS.values())]
    (tmp_path / "test_it.py").write_text(HEAD + "\n".join(tests))
    done = run_pytest(tmp_path, "-n2")
    assert done.returncode == 1
    for number in range(len(HANGS)):
        assert f"test_it.py::test_hangs_{number} has taken longer than its time limit" in done.stderr
        assert f"crashed while running 'test_it.py::test_hangs_{number}'" in done.stdout.replace(f"{tmp_path}/", "")
    assert "2 passed" in done.stdout
