"""Programs that are agents in tests, and what is counted of them. They run in the real fence, with the system's Python.

A program is Python code; `say`, `hear` and `start` speak JSON lines for it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from foliot import Agent
from foliot.kernel.run.events import ModelResponded
from foliot.runtime.runtime import Runtime

PRELUDE = """
import json, os, sys, time
def say(type, **fields):
    print(json.dumps(dict(type=type, **fields)), flush=True)
def hear():
    line = sys.stdin.readline()
    return json.loads(line) if line else None
"""


def program(code: str, mark: str = "runner-test") -> list[str]:
    """The command of a program. `mark` is seen in the list of processes, inside and outside."""
    return ["python3", "-c", f"{PRELUDE}{textwrap.dedent(code)}", mark]


def speaks_lines(code: str, *, mark: str = "runner-test", tools: Any = (), limits: Any = None, **runner: Any) -> Agent:
    spec = {"limits": limits} if limits else {}
    declared = {"command": program(code, mark), "protocol": "jsonl", **runner}
    return Agent("worker", runner=declared, tools=list(tools), **spec)


def alive(mark: str) -> int:
    """How many processes of this machine have the mark in their command line."""
    found = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += mark.encode() in words
    return found


async def answers_of(runtime: Runtime, run_id: str) -> list[ModelResponded]:
    return [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ModelResponded)]
