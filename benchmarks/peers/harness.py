"""Measures one way of running the same agent. Every peer uses this file, and so does Foliot.

The agent takes ten steps: ten answers that each call one tool, then a final answer. The model is a function in the
process, so nothing is measured but the framework. Only the standard library is used here, because each peer lives in
an environment of its own.

A script gives `serve(name, run, …)` a coroutine function that does one whole run and says how many tool calls it made;
one line of JSON comes out on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import metadata

STEPS = 10
RunOnce = Callable[[], Awaitable[int]]
Opened = Callable[[], AbstractAsyncContextManager[RunOnce]]

LEVELS = (1, 10, 100, 1000)
ROUNDS = 3
ROUND_SECONDS = 0.3  # a shorter round is repeated within itself: a scheduler's tick must not show
LEVEL_SECONDS = 1.5  # no further round is begun after this
SKIP_SECONDS = 6.0  # a level above 100 whose one round would take longer is left out, unless all is asked for

QUESTION = "Look up every key, then say that you are done."
FOUND = "The value of the key is 42."
DONE = "Done."


def arguments(step: int) -> dict[str, str]:
    """Another key in every step: some frameworks answer a repeated call without making it."""
    return {"key": f"k{step}"}


def serve(name: str, opened: Opened, *, packages: Sequence[str] = (), durable: bool = False, note: str = "") -> None:
    """Measure what `opened` yields at every level, and print the line."""
    parser = argparse.ArgumentParser(description=f"Ten tool-calling steps with {name}.")
    parser.add_argument("--levels", default=",".join(map(str, LEVELS)), help="concurrent runs, separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--all", action="store_true", help="leave no level out, however long it takes")
    given, _ = parser.parse_known_args()
    levels = [int(level) for level in given.levels.split(",")]
    found = asyncio.run(_measure(opened, levels, given.rounds, given.all))
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in packages)
    line = {"name": name, "versions": versions, "durable": durable, "note": note, **found}
    sys.stdout.write(json.dumps(line) + "\n")


async def _measure(opened: Opened, levels: Sequence[int], rounds: int, everything: bool) -> dict[str, object]:
    wall: dict[str, float] = {}
    cpu: dict[str, float] = {}
    async with opened() as run:
        for _ in range(3):  # imports, compiled schemas, prepared statements
            await _checked(run)
        per_run = await _probe(run)
        for level in levels:
            if level > 100 and not everything and per_run * level > SKIP_SECONDS:
                continue
            times: list[tuple[float, float]] = []
            begun = time.perf_counter()
            repeats = max(1, math.ceil(ROUND_SECONDS / (per_run * level)))
            while len(times) < rounds and (not times or time.perf_counter() - begun < LEVEL_SECONDS):
                times.append(await _round(run, level, repeats))
                per_run = min(per_run, times[-1][0] * STEPS)
                repeats = max(1, math.ceil(ROUND_SECONDS / (per_run * level)))
            wall[str(level)] = statistics.median(each[0] for each in times) * 1e6
            cpu[str(level)] = statistics.median(each[1] for each in times) * 1e6
        kib = await _memory(run, min(100 if per_run < 0.01 else 20, max(levels)))  # tracing makes everything slower
    return {"wall_us": wall, "cpu_us": cpu, "kib_per_run": kib}


async def _checked(run: RunOnce) -> None:
    calls = await run()
    if calls != STEPS:
        raise SystemExit(f"a run made {calls} tool calls instead of {STEPS}: nothing was measured")


async def _probe(run: RunOnce) -> float:
    """About how many seconds one run takes."""
    begun = time.perf_counter()
    await _checked(run)
    return time.perf_counter() - begun


async def _round(run: RunOnce, lanes: int, repeats: int) -> tuple[float, float]:
    """Seconds of wall time and of CPU per step, with `lanes` runs at once."""

    async def lane() -> None:
        for _ in range(repeats):
            await _checked(run)

    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    steps = lanes * repeats * STEPS
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


async def _memory(run: RunOnce, lanes: int) -> float:
    """KiB of Python objects per run at the highest point of `lanes` concurrent ones."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await asyncio.gather(*(_checked(run) for _ in range(lanes)))
        return (tracemalloc.get_traced_memory()[1] - before) / lanes / 1024
    finally:
        tracemalloc.stop()


def always(run: RunOnce) -> Opened:
    """For what has nothing to open and close."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[RunOnce]:
        yield run

    return opened
