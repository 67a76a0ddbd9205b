"""What a change does to the cost of a step: this checkout and another one, in turns, in one run.

    git worktree add /somewhere/else HEAD~1
    python benchmarks/compare_steps.py /somewhere/else [--level 100] [--rounds 20] [--store memory:]

Rounds of the two alternate, so that whatever else the machine does meets both; what is printed is the median over the
pairs, and the smallest of all rounds. CPU time is that of the process per step, `loop` of it on the event loop's
thread and `writer` on all others. On SQLite the bare loop with a group-committed journal (`peers/bare.py`) takes its
turn too: `here / floor` is how far above it a step is. The calls of functions per step, in Python and in C, are counted
in a round of their own: they are the same on every machine and under every load.
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

    def __init__(self, root: Path, store: str, *, floor: bool = False) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'benchmarks' / 'peers'}", "BENCH_STORE": store}
        environ["BENCH_FLOOR"] = "1" if floor else ""
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

    if os.environ["BENCH_FLOOR"]:
        from bare import durable as opened
    else:
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


def compare(here: Side, other: Side, floor: Side | None, level: int, rounds: int) -> None:
    sides = (here, other) if floor is None else (here, other, floor)
    for number in range(rounds):
        for side in sides if number % 2 else sides[::-1]:
            side.rounds.append(side.ask("time", level))
    print(f"{level} concurrent runs, {rounds} rounds; µs per step: median (smallest)\n")
    above = "" if floor is None else f"{'floor':>18}{'here / floor':>15}"
    print(f"{'':<8}{'other':>18}{'here':>18}{'here / other':>15}{above}")
    for name in FIGURES:
        now, was, least = ([each[name] for each in side.rounds] for side in (here, other, floor or other))
        above = "" if floor is None else f"{_shown(least):>18}{_ratio(now, least):>15.3f}"
        print(f"{name:<8}{_shown(was):>18}{_shown(now):>18}{_ratio(now, was):>15.3f}{above}")
    counts = [side.ask("count", level) for side in (other, here)]
    for kind, what in (("python", "calls"), ("c", "C calls")):
        was, now = (each[kind] for each in counts)
        print(f"{what:<8}{was:>18.0f}{now:>18.0f}{now / was:>15.3f}")


def _shown(rounds: list[float]) -> str:
    return f"{statistics.median(rounds):.0f} ({min(rounds):.0f})"


def _ratio(now: list[float], was: list[float]) -> float:
    """The median of the ratios of neighbours; 1 where there is next to nothing to compare with."""
    return statistics.median(b / a for a, b in zip(was, now, strict=True)) if min(was) > 1 else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a step in two checkouts, in turns.")
    parser.add_argument("other", type=Path, help="the root of the other checkout")
    parser.add_argument("--level", type=int, default=100, help="concurrent runs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--store", default="", help="memory:, a PostgreSQL URL; by default a new SQLite file")
    given = parser.parse_args()
    if not (given.other / "src" / "foliot").is_dir():
        raise SystemExit(f"{given.other} is no checkout of Foliot: it has no src/foliot")
    root = HERE.parent.resolve()
    here, other = Side(root, given.store), Side(given.other.resolve(), given.store)
    floor = Side(root, "", floor=True) if not given.store else None
    try:
        compare(here, other, floor, given.level, given.rounds)
    finally:
        for side in (here, other, floor):
            if side is not None:
                side.close()
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    if CHILD in sys.argv:
        asyncio.run(child())
    else:
        main()
