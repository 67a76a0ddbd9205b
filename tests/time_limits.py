"""The time limit of tests: at its end the process of the test is killed, whatever it is doing.

pytest-timeout says how long each test may take, setup and teardown included. Its own alarm raises an exception, which
a test can block, catch, or never come to (in C, or under a tracer), and a teardown that hangs has no alarm any more. So
another process waits (watchdog.py): it names the test, has all threads print where they are, and kills. Under xdist the
test is reported as failed and another worker goes on; without, the run ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pytest_timeout import is_debugging

WATCHDOG = Path(__file__).with_name("watchdog.py")


class TimeLimits:
    """A plugin of pytest. The watchdog is started with the first test, and ends with this one's."""

    def __init__(self) -> None:
        """Must be called while pytest is configured: what programs print is captured later."""
        self._stderr = os.dup(2)
        self._process: subprocess.Popen[bytes] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        if not is_debugging():
            self._tell(f"{settings.timeout} {item.nodeid}")
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool:
        """It also comes when a test has failed: then the teardown is still to be watched."""
        if item.config.getoption("usepdb"):
            self._tell("")
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._tell("")

    def pytest_enter_pdb(self) -> None:
        self._tell("")

    def _tell(self, line: str) -> None:
        if self._process is None:
            if not line:
                return
            command = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid())]
            # A group of its own: Ctrl-C is for the tests.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._stderr, process_group=0)
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), line.replace("\n", " ").encode(errors="replace") + b"\n")

    def pytest_unconfigure(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        os.close(self._stderr)
