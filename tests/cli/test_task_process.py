"""`foliot task run` as a process among others: Ctrl-C, workers elsewhere, and workers that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SLOW = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: first}
      turns: [{say: "first on {input}"}]
    - match: {agent: second}
      turns: [{say: "second on {input}", after: AFTER}]
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: first}
spec: {model_ref: brain, prompt: Go.}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: second}
spec: {model_ref: brain, prompt: Go.}
---
apiVersion: foliot.dev/v1
kind: AgentSystem
metadata: {name: duo}
spec: {agents: [first, second]}
"""


class Shell:
    """Commands as processes on one store; whatever still runs in the end is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")} | {
            "FOLIOT_HOME": str(folder / "home"),
            "PYTHONWARNINGS": "ignore",
        }
        self._started: list[subprocess.Popen[str]] = []

    def manifest(self, after: str) -> Path:
        path = self.folder / "duo.yaml"
        path.write_text(SLOW.replace("AFTER", after))
        return path

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-m", "foliot.cli", *map(str, words)],
            env=self._environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(started)
        return started

    def done(self, *words: str | Path) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=110)
        return process.returncode, out, err

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def until(process: subprocess.Popen[str], test: Callable[[str], bool]) -> None:
    """Read what it says on stderr until a line of which the test holds."""
    assert process.stderr is not None
    seen: list[str] = []
    for line in process.stderr:
        seen.append(line)
        if test(line):
            return
    raise AssertionError(f"it ended before: {''.join(seen)}")


def test_ctrl_c_cancels_the_task_and_everything_under_way(shell: Shell) -> None:
    following = shell.start("task", "run", shell.manifest("60s"), "x", "--name", "job")
    until(following, lambda line: "second: step 1" in line)

    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=110)

    assert following.returncode == 130
    assert "the task was cancelled" in err
    code, out, _ = shell.done("task", "show", "job", "-o", "json")
    status = json.loads(out)["status"]
    assert (code, status["phase"]) == (0, "Cancelled")
    assert [message["phase"] for message in status["messages"]] == ["succeeded", "cancelled"]


def test_work_is_left_to_a_worker_that_is_alive_and_done_here_when_that_one_dies(shell: Shell) -> None:
    worker = shell.start("worker", "--name", "elsewhere")
    until(worker, lambda line: "elsewhere" in line)
    # Long enough for another command to start and look, on a machine that has other things to do.
    following = shell.start("task", "run", shell.manifest("8s"), "x", "--name", "job")
    until(following, lambda line: "second: step 1" in line)
    code, out, _ = shell.done("why", "job")
    assert code == 0
    assert "second is done by elsewhere" in out

    worker.kill()
    out, err = following.communicate(timeout=110)

    assert (following.returncode, out) == (0, "second on first on x\n"), err
    assert "second: taken by" in err
    assert "taken by elsewhere" not in err, "that is the name of the one which has died"
    workers = json.loads(shell.done("workers", "-o", "json")[1])["items"]
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in workers}
    assert phases["elsewhere"] == "lost", "it said no good-bye"
    assert "(attempt 2)" not in err, "a claim by another worker goes on with the same attempt"
