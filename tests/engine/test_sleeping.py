"""A process that slept past its lease does nothing more when it wakes, and `why` says until when it might."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foliot import RunResult, Runtime
from foliot.store.journal.base import RunHeld
from tests.engine.sleeping_process import LEASE, clerk

PROCESS = Path(__file__).with_name("sleeping_process.py")
WITHIN = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def take_over(store: str, file: Path, which: str) -> RunResult:
    async with Runtime(store, lease_seconds=LEASE) as runtime:
        while True:
            try:
                return await runtime.resume("r1", agent=clerk(str(file), which), check=False)
            except RunHeld:
                await asyncio.sleep(0.05)


def why(store: str) -> str:
    words = [sys.executable, "-m", "foliot.cli", "why", "r1"]
    done = subprocess.run(words, env=os.environ | {"FOLIOT_STORE": store}, capture_output=True, text=True, check=True)
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
@pytest.mark.parametrize("which", ["coroutine", "function"])
def test_who_sleeps_in_a_call_does_not_go_on_with_it_when_another_has_the_run(which: str, tmp_path: Path) -> None:
    store, file = f"sqlite:///{tmp_path}/foliot.db", tmp_path / "acts"
    file.touch()
    words = [sys.executable, str(PROCESS), store, str(file), which]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as first:
        try:
            wait_until(lambda: "begun" in file.read_text() or first.poll() is not None)
            first.send_signal(signal.SIGSTOP)

            result = asyncio.run(take_over(store, file, which))

            assert result.waiting is not None
            assert result.waiting.reason == "unknown_effect"
            assert "is not known to have ended: it may still act" in why(store)
            first.send_signal(signal.SIGCONT)
            _, said = first.communicate(timeout=WITHIN)
        finally:
            first.kill()
    (tmp_path / "acts.go").touch()
    assert "gave up" in said
    assert file.read_text() == f"begun {first.pid}\n"
    assert "has ended: nothing of it can act any more" in why(store)
