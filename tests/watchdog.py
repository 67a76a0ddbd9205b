"""Kills a process of pytest whose test takes longer than it may: `watchdog.py PID`, told of tests on standard input.

Started by time_limits.py, without the packages of the tests.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

# How long a process may take to print its threads before it is killed.
PRINTS_WITHIN = 5.0


def watch(pid: int) -> None:
    """Reads "<seconds> <test>", or an empty line for the end of one, until the input ends."""
    name, ends, rest = "", float("inf"), b""
    while True:
        left = None if ends == float("inf") else max(0.0, ends - time.monotonic())
        if not select.select([0], [], [], left)[0]:
            end(pid, name)
            return
        if not (read := os.read(0, 65536)):
            return
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            seconds, _, name = line.decode().partition(" ")
            ends = time.monotonic() + float(seconds) if seconds else float("inf")


def end(pid: int, name: str) -> None:
    os.write(2, f"\n{name} has taken longer than its time limit, and its process is killed.\n".encode())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGABRT)  # pytest's faulthandler prints all threads then
        if not select.select([0], [], [], PRINTS_WITHIN)[0] or os.read(0, 1):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
