"""What a run costs besides its steps, on SQLite: claim, load, assemble, settle. Here and in another checkout.

    python benchmarks/bench_runs.py [/another/checkout] [--rounds 15] [--tasks 100] [--places 64]

A worker does tasks of one agent that gives one answer, and of one that gives eleven (ten of them call a tool). Small
rounds of the two alternate, so that each pair meets the same machine; a pair gives the cost of a step and what is left
of a run when its one step is taken away, and the median of all pairs is printed with the middle half of them. CPU time
of the process, the writer's thread included. Accepting the tasks is not part of it. The calls of Python functions are
counted in a round of their own: they are the same on every machine and under every load.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Final, NamedTuple

from bench_postgres import HERE, STEPS, Side
from verdict import Verdict

VERDICT = Verdict()

AIM_MS: Final = 0.25


class Pair(NamedTuple):
    """CPU time in ms: of a run of one answer, of one step, and of a run besides its steps."""

    whole: float
    step: float
    rest: float


def pair_of(short: float, long: float) -> Pair:
    step = (long - short) / STEPS
    return Pair(short, step, short - step)


def measured(sides: dict[str, Side], tasks: int, rounds: int) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {name: [] for name in sides}
    for side in sides.values():
        for what in ("short", "long"):
            side.ask(what, 20)  # imports, compiled schemas, prepared statements
    for number in range(rounds):
        for name in sorted(sides, reverse=number % 2 == 1):
            short, long = (sides[name].ask(what, tasks)["work"] for what in ("short", "long"))
            found[name].append(pair_of(short, long))
    return found


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a run costs besides its steps, on SQLite.")
    parser.add_argument("other", type=Path, nargs="?", help="the root of another checkout, to compare with")
    parser.add_argument("--tasks", type=int, default=100, help="of a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--places", type=int, default=64, help="of the worker")
    given = parser.parse_args()
    roots = {"here": HERE.parent.resolve()}
    if given.other is not None:
        if not (given.other / "src" / "foliot").is_dir():
            raise SystemExit(f"{given.other} is no checkout of Foliot: it has no src/foliot")
        roots = {"other": given.other.resolve(), **roots}
    sides = {name: Side(root, "", given.places) for name, root in roots.items()}
    try:
        found = measured(sides, given.tasks, given.rounds)
        calls = {
            name: pair_of(*(side.ask(what, given.tasks)["python"] for what in ("calls:short", "calls:long")))
            for name, side in sides.items()
        }
    finally:
        for side in sides.values():
            side.close()
    print(f"{given.rounds} pairs of rounds of {given.tasks} tasks; CPU ms: median (middle half)\n")
    print(f"{'':<32}{''.join(f'{name:>24}' for name in roots)}")
    rows = {"run of one answer": "whole", "step of a longer run": "step", "run besides its steps": "rest"}
    for title, field in rows.items():
        cells = "".join(f"{spread([getattr(each, field) for each in found[name]]):>24}" for name in roots)
        print(f"{title:<32}{cells}")
    for title, field in rows.items():
        cells = "".join(f"{getattr(calls[name], field):>24.0f}" for name in roots)
        print(f"{title + ', calls':<32}{cells}")
    rest = statistics.median(each.rest for each in found["here"])
    VERDICT.hold("a run besides its steps", rest, "ms", most=AIM_MS)
    print(f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.")
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
