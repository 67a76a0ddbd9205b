"""How much work a function takes, in lines or calls of Python, counted in a process of its own.

A tracer in the process of a test is not safe: under one, CPython 3.11 may never come back from a signal, or from a
thread that waits for its turn, and the test's own time limit is such a signal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
# What the child is told: what it counts, and where it finds what it calls, with which arguments.
PROGRAM = "import sys; from tests.work_count import main; main(*sys.argv[1:])"


def count_work(
    event: Literal["line", "call"], prepare: Callable[..., Callable[[], Any]], *cases: Sequence[str | int]
) -> list[int]:
    """Returns for each case how many events happen in what `prepare` returns for it.

    `prepare` stands at the top of a module. What it does itself does not count.
    """
    words = (event, prepare.__module__, prepare.__name__, json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(event: str, module: str, name: str, cases: str) -> None:
    prepare = getattr(import_module(module), name)
    json.dump([count_events(event, prepare(*case)) for case in json.loads(cases)], sys.stdout)


def count_events(event: str, work: Callable[[], Any]) -> int:
    found = 0

    def trace(frame: FrameType, seen: str, _: Any) -> Any:
        nonlocal found
        found += seen == event
        return trace

    install = sys.settrace if event == "line" else sys.setprofile
    install(trace)
    try:
        work()
    finally:
        install(None)
    return found
