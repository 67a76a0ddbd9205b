"""One worker process and two, on PostgreSQL and NATS JetStream: `python benchmarks/bench_workers.py [--tasks N]`.

Tasks of three agents in a line. The model takes 100 ms to answer, which few real ones do so fast: workers are there
to wait for models side by side, and each has eight places. The same tasks are then done with a model that answers at
once, where the two cores of a small machine (shared with PostgreSQL, NATS and the bench itself) are the bound.

The aim: two workers give at least 1.8 times the throughput of one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from verdict import Verdict

from foliot import Runtime
from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres
from foliot.dev.session import ServiceSession
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command

VERDICT = Verdict()

AIM = 1.8
PLACES = 8
AGENTS = ("plan", "find", "write")
FOLIOT = str(Path(sys.executable).with_name("foliot"))


def documents(delay: str) -> list[dict[str, Any]]:
    script = {"turns": [{"say": "{agent} has done it"}], "loop": True, "after": delay}
    endpoint = {"provider": "scripted", "default_model": "scripted", "script": script}
    raw = [
        {"kind": "ModelEndpoint", "metadata": {"name": "script"}, "spec": endpoint},
        *({"kind": "Agent", "metadata": {"name": name}, "spec": {"model_ref": "script"}} for name in AGENTS),
        {"kind": "AgentSystem", "metadata": {"name": "line"}, "spec": {"agents": list(AGENTS)}},
    ]
    made = [validate_document(each)[0] for each in raw]
    return [each for each in made if each is not None]


async def measure(environ: dict[str, str], workers: int, tasks: int, prefix: str) -> float:
    """Tasks per second, from the first ticket to the last end, with everything accepted before workers begin."""
    async with Runtime(settings=load_settings({}, environ)) as runtime:
        service = runtime.inside.tasking.tasks
        await asyncio.gather(
            *(service.accept(Command("system", "line", name=f"{prefix}{n}", message="go")) for n in range(tasks))
        )
        crew = [
            await asyncio.create_subprocess_exec(
                FOLIOT,
                "worker",
                "--name",
                f"{prefix}w{number}",
                "--capacity",
                str(PLACES),
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number in range(workers)
        ]
        try:
            done = already = await ended(runtime)
            while done - already < tasks // 10:  # processes are up, pools are warm
                await asyncio.sleep(0.02)
                done = await ended(runtime)
            begun, first = time.perf_counter(), done
            while done - already < tasks:
                await asyncio.sleep(0.02)
                done = await ended(runtime)
            return (done - first) / (time.perf_counter() - begun)
        finally:
            for worker in crew:
                worker.terminate()
            await asyncio.gather(*(worker.wait() for worker in crew))


async def ended(runtime: Runtime) -> int:
    rows = await runtime.inside.tasking.database.read("task_phases")
    return sum(row["tasks"] for row in rows if row["phase"] in ENDED)


async def declare(environ: dict[str, str], delay: str) -> None:
    async with Runtime(settings=load_settings({}, environ)) as runtime:
        resources = runtime.inside.resources
        await resources.write([Put(document) for document in documents(delay)])


async def bench(environ: dict[str, str], tasks: int) -> float:
    print(f"{'model':<14}{'1 worker':>12}{'2 workers':>12}{'ratio':>8}   tasks a second, {PLACES} places each")
    ratios: dict[str, float] = {}
    for delay in ("100ms", "0s"):
        await declare(environ, delay)
        rates = {
            workers: max([await measure(environ, workers, tasks, f"t{delay}-{workers}-{turn}-") for turn in range(2)])
            for workers in (1, 2)
        }
        ratios[delay] = rates[2] / rates[1]
        what = "answers at once" if delay == "0s" else f"takes {delay}"
        print(f"{what:<14}{rates[1]:>12.1f}{rates[2]:>12.1f}{ratios[delay]:>8.2f}", flush=True)
    return ratios["100ms"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=300)
    options = parser.parse_args()
    session = ServiceSession.begin()
    try:
        postgres = Postgres(session.folder / "durable", owner=session.owner).start()
        nats = Nats(session.folder / "jetstream", owner=session.owner).start()
        with tempfile.TemporaryDirectory() as home:
            environ = {
                **os.environ,
                "FOLIOT_STORE": postgres.url,
                "FOLIOT_NATS": nats.url,
                "FOLIOT_HOME": home,
            }
            ratio = asyncio.run(bench(environ, options.tasks))
    finally:
        session.end()
    print(f"two workers give {ratio:.2f} times one (aim {AIM})")
    VERDICT.hold("two workers beside one", ratio, "times", least=AIM)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
