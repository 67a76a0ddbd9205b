"""What a run costs that waits for a person: `python benchmarks/bench_waiting.py [--runs 10000]`.

Each run calls a `once` tool and loses its worker in the middle of it. Taken up again it cannot know whether the call
took effect, so it asks a person, and waits. What is counted is what the process holds while all of them wait: memory
beyond what it had before, threads, asyncio tasks, open files and sockets. The transcripts are on the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from verdict import Verdict

from foliot import Agent, Invocation, Runtime, ScriptedModel, tool

VERDICT = Verdict()

LIMIT_KIB = 10.0
AT_ONCE = 200
SCRIPT = [{"call": {"refund": {"order": "4711"}}}, {"say": "The money is on its way."}]


class Held(NamedTuple):
    """What this process holds at a moment."""

    kib: float
    threads: int
    tasks: int
    files: int


def held() -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    kib = pages * os.sysconf("SC_PAGE_SIZE") / 1024
    return Held(kib, threading.active_count(), len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))


class Desk:
    """An agent whose tool never returns, and who is told when it has begun."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Event] = {}

        @tool(effect="once", timeout=None)
        async def refund(order: str, call: Invocation) -> str:
            """Pay the price of an order back."""
            self._begun[call.run_id].set()
            await asyncio.Event().wait()
            return "never reached"

        prompt = "You are the refund desk. " * 20
        self.agent = Agent("desk", model=ScriptedModel(SCRIPT), prompt=prompt, tools=[refund])

    async def leave_waiting(self, runtime: Runtime) -> None:
        """One run, cut off in the middle of its call, taken up again, and now waiting."""
        run_id = runtime.inside.new_run_id()
        begun = self._begun[run_id] = asyncio.Event()
        driving = asyncio.create_task(runtime.run(self.agent, "Refund order 4711.", run_id=run_id))
        await asyncio.wait_for(begun.wait(), 30)
        driving.cancel()
        await asyncio.wait([driving])
        del self._begun[run_id]
        result = await runtime.resume(run_id)
        if result.phase != "waiting" or result.waiting is None or result.waiting.owner != "person":
            raise SystemExit(f"run {run_id} is {result.phase} and does not wait for a person: nothing was measured")


async def many(count: int, leave_one: Callable[[], Awaitable[None]]) -> None:
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(leave_one() for _ in range(min(AT_ONCE, count - first))))


async def measure(runs: int, store: Path) -> tuple[Held, Held, float, float]:
    desk = Desk()
    async with Runtime(store) as runtime:

        def leave_one() -> Awaitable[None]:
            return desk.leave_waiting(runtime)

        await many(2 * AT_ONCE, leave_one)  # the pools of the interpreter and the caches of the database are full now
        before, disk, begun = held(), size(store), time.perf_counter()
        await many(runs, leave_one)
        seconds = time.perf_counter() - begun
        waiting = len(await runtime.inside.runs.journal.list(phases=["waiting"], limit=runs + 1))
        if waiting < runs:
            raise SystemExit(f"only {waiting} of {runs} runs wait: nothing was measured")
        return before, held(), (size(store) - disk) / runs / 1024, seconds


def size(store: Path) -> int:
    return sum(file.stat().st_size for file in store.parent.iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description="What a run costs that waits for a person.")
    parser.add_argument("--runs", type=int, default=10_000)
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="foliot-bench-") as folder:
        before, after, disk, seconds = asyncio.run(measure(runs, Path(folder) / "foliot.db"))
    each = (after.kib - before.kib) / runs
    print(f"{runs:,} runs wait for a person ({seconds:.0f} s to get there, {disk:.1f} KiB of disk each)\n")
    print(f"{'held by the process':<22}{'before':>10}{'after':>10}{'each':>14}{'limit':>14}")
    print(f"{'memory (RSS), KiB':<22}{before.kib:>10,.0f}{after.kib:>10,.0f}{each:>14.2f}{LIMIT_KIB:>14.0f}")
    VERDICT.hold("a run that waits", each, "KiB", most=LIMIT_KIB)
    for name in ("threads", "tasks", "files"):
        had, has = getattr(before, name), getattr(after, name)
        VERDICT.hold(name, has, most=had + 2)  # a reader or a timer more, however many wait
        shown = {"threads": "threads", "tasks": "asyncio tasks", "files": "files and sockets"}[name]
        print(f"{shown:<22}{had:>10,}{has:>10,}{(has - had) / runs:>14.4f}{0:>14}")
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
