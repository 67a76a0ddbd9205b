"""How soon an idle worker begins with a task that was just posted: `python benchmarks/bench_start.py [--posts 500]`.

From the moment before the request is sent to `run.claimed` in the journal of the task's first run, both by the clock of
this machine. Posts come one at a time, after pauses that have nothing to do with any rhythm of the worker. Measured in
one process (`foliot up`) and in two (`foliot server` and `foliot worker`), on SQLite, on PostgreSQL, and with NATS.

The aim: 99 of 100 within 50 ms on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_server import MANY, foliot, running, send
from verdict import Verdict

from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres
from foliot.dev.session import ServiceSession
from foliot.store.base import Database
from foliot.store.journal.database import SqlJournal
from foliot.store.open import open_database

VERDICT = Verdict()

AIM = 0.050
LONGEST_PAUSE = 0.4
FOLIOT = [sys.executable, "-m", "foliot.cli"]
SCRIPT = {"turns": [{"say": "done"}], "loop": True}
DECLARED = {
    "/v1/model-endpoints": {
        "metadata": {"name": "script"},
        "spec": {"provider": "scripted", "default_model": "scripted", "script": SCRIPT},
    },
    "/v1/agents": {"metadata": {"name": "writer"}, "spec": {"model_ref": "script", "prompt": "You write."}},
    "/v1/agent-systems": {"metadata": {"name": "desk"}, "spec": {"agents": ["writer"]}},
}


async def began_at(database: Database, name: str) -> float:
    """When the first run of the task was claimed, once it was. Looks often, and has no part in the beginning."""
    journal = SqlJournal(database)
    while True:
        for run in await journal.list(limit=4):
            if run.labels.get("foliot.dev/task") == name:
                for entry in await journal.read(run.id, limit=4):
                    if entry.type == "run.claimed":
                        return entry.at
        await asyncio.sleep(0.02)


async def measure(
    url: str, token: str, database: Database, posts: int, prefix: str, chance: random.Random
) -> list[float]:
    taken: list[float] = []
    for number in range(posts):
        await asyncio.sleep(chance.uniform(0.0, LONGEST_PAUSE))
        name = f"{prefix}-{number}"
        before = time.time()
        document = {"metadata": {"name": name}, "spec": {"system": "desk", "input": {"topic": "a number"}}}
        await asyncio.to_thread(send, url, token, "/v1/tasks", document)
        taken.append(await began_at(database, name) - before)
    return sorted(taken)


async def bench(what: str, environ: dict[str, str], posts: int, *, apart: bool) -> float:
    token = json.loads(foliot(environ, "tokens", "create", f"bench-{apart:d}", "--admin", "-o", "json"))["token"]
    words = [*FOLIOT, "server" if apart else "up", "--port", "0"]
    with running(words, environ) as (url, _):
        for path, document in DECLARED.items():
            send(url, token, path, document)
        worker = None
        if apart:
            worker = await asyncio.create_subprocess_exec(*FOLIOT, "worker", env=environ, stderr=subprocess.DEVNULL)
        database = await open_database(environ["FOLIOT_STORE"])
        try:
            await measure(url, token, database, 3, f"warm{apart:d}", random.Random(1))
            taken = await measure(url, token, database, posts, "apart" if apart else "one", random.Random(2))
        finally:
            await database.close()
            if worker is not None:
                worker.terminate()
                await worker.wait()
    p50, p99, worst = taken[len(taken) // 2], taken[int(len(taken) * 0.99)], taken[-1]
    print(f"{what:<34}{p50 * 1e3:>9.1f}{p99 * 1e3:>9.1f}{worst * 1e3:>9.1f}   {posts} posts", flush=True)
    return p99


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posts", type=int, default=500)
    parser.add_argument("--only", choices=("sqlite", "postgres", "nats"), action="append")
    options = parser.parse_args()
    chosen = options.only or ["sqlite", "postgres", "nats"]
    session = ServiceSession.begin()
    print(f"{'ms until a posted task begins':<34}{'p50':>9}{'p99':>9}{'max':>9}")
    try:
        postgres = Postgres(session.folder / "durable", owner=session.owner).start() if "postgres" in chosen else None
        nats = Nats(session.folder / "jetstream", owner=session.owner).start() if "nats" in chosen else None
        for sort in chosen:
            for apart in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    home = Path(folder)
                    environ = {key: value for key, value in os.environ.items() if not key.startswith("FOLIOT_")}
                    environ |= {"FOLIOT_HOME": folder, "FOLIOT_STORE": str(home / "foliot.db")}
                    environ |= {"FOLIOT_REQUEST_RATE": MANY, "FOLIOT_LOG_LEVEL": "warning"}
                    if sort == "postgres":
                        assert postgres is not None
                        environ["FOLIOT_STORE"] = postgres.url
                    if nats is not None and sort == "nats":
                        environ["FOLIOT_NATS"] = nats.url
                    what = f"{sort}, {'server and worker' if apart else 'foliot up'}"
                    p99 = await bench(what, environ, options.posts, apart=apart)
                    VERDICT.hold(f"{what}: p99", p99, "s", most=AIM)
    finally:
        session.end()
    return VERDICT.end()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
