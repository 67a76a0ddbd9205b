"""What a change does to the cost of a step: this checkout and another one, in turns, in one run.

    git worktree add /somewhere/else HEAD~1
    python benchmarks/compare_steps.py /somewhere/else [--level 100] [--rounds 20] [--store memory:]

Rounds of the two alternate, so that whatever else the machine does meets both; what is printed is the median over the
pairs, and the smallest of all rounds. CPU time is that of the process per step, `loop` of it on the event loop's
thread and `writer` on all others. The calls of functions per step, in Python and in C, are counted in a round of their
own: they are the same on every machine and under every load.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIGURES = ("cpu", "loop", "writer", "wall")
CHILD = "--child"


class Side:
    """One checkout: a process that does a round whenever it is told to."""

    def __init__(self, root: Path, store: str) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'benchmarks' / 'peers'}", "BENCH_STORE": store}
        command = [sys.executable, str(Path(__file__).resolve()), CHILD]
        self._process = subprocess.Popen(
            command, env=environ, cwd=tempfile.gettempdir(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.rounds: list[dict[str, float]] = []

    def ask(self, what: str, level: int) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {level}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("one of the two has ended; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def child() -> None:
    """Do the rounds that are asked for on standard input, with the packages of one checkout."""
    from harness import STEPS
    from with_foliot import opened

    async with opened() as run:

        async def together(level: int) -> None:
            made = await asyncio.gather(*(run() for _ in range(level)))
            assert made == [STEPS] * level, "a run did not make all of its calls: nothing was measured"

        await together(3)  # imports, compiled schemas, prepared statements
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, level = line.split()
            steps = int(level) * STEPS
            found = await (_counted if what == "count" else _timed)(together(int(level)), steps)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


async def _timed(work: Any, steps: int) -> dict[str, float]:
    gc.collect()
    wall, cpu, loop = time.perf_counter(), time.process_time(), time.thread_time()
    await work
    wall, cpu, loop = time.perf_counter() - wall, time.process_time() - cpu, time.thread_time() - loop
    found = {"wall": wall, "cpu": cpu, "loop": loop, "writer": cpu - loop}
    return {name: seconds / steps * 1e6 for name, seconds in found.items()}


async def _counted(work: Any, steps: int) -> dict[str, float]:
    calls = {"call": 0, "c_call": 0}

    def heard(frame: object, event: str, argument: object) -> None:
        if event in calls:
            calls[event] += 1

    sys.setprofile(heard)
    try:
        await work
    finally:
        sys.setprofile(None)
    return {"python": calls["call"] / steps, "c": calls["c_call"] / steps}


def compare(here: Side, other: Side, level: int, rounds: int) -> None:
    for number in range(rounds):
        for side in (here, other) if number % 2 else (other, here):
            side.rounds.append(side.ask("time", level))
    print(f"{level} concurrent runs, {rounds} rounds; µs per step: median (smallest)\n")
    print(f"{'':<8}{'other':>18}{'here':>18}{'here / other':>15}")
    for name in FIGURES:
        cells = [[each[name] for each in side.rounds] for side in (other, here)]
        shown = "".join(f"{f'{statistics.median(each):.0f} ({min(each):.0f})':>18}" for each in cells)
        ratio = statistics.median(b / a for a, b in zip(*cells, strict=True)) if min(cells[0]) > 1 else 1.0
        print(f"{name:<8}{shown}{ratio:>15.3f}")
    counts = [side.ask("count", level) for side in (other, here)]
    for kind, what in (("python", "calls"), ("c", "C calls")):
        was, now = (each[kind] for each in counts)
        print(f"{what:<8}{was:>18.0f}{now:>18.0f}{now / was:>15.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a step in two checkouts, in turns.")
    parser.add_argument("other", type=Path, help="the root of the other checkout")
    parser.add_argument("--level", type=int, default=100, help="concurrent runs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--store", default="", help="memory:, a PostgreSQL URL; by default a new SQLite file")
    given = parser.parse_args()
    if not (given.other / "src" / "foliot").is_dir():
        raise SystemExit(f"{given.other} is no checkout of Foliot: it has no src/foliot")
    sides = Side(HERE.parent.resolve(), given.store), Side(given.other.resolve(), given.store)
    try:
        compare(*sides, given.level, given.rounds)
    finally:
        for side in sides:
            side.close()
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    if CHILD in sys.argv:
        asyncio.run(child())
    else:
        main()
