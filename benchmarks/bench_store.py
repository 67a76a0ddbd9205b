"""What the store costs: `python benchmarks/bench_store.py [--postgres URL]`.

Everything is measured in one run, beside a bare loop on the same disk, because absolute numbers of a shared machine
mean little. The aims: group commit close to the bare loop, page 1,000 within twice of page 1, and a bounded worst wait
when eight processes write to one file.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from verdict import Verdict

from foliot.store.base import Database, Filter, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.selectors import parse_labels
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.transaction import Tx, run

VERDICT = Verdict()

TEXT = "x" * 100
PROCESSES = 8
WRITES_EACH = 100
# "Close to the bare loop", when so many write that they share commits; and the longest wait of a writer, in seconds.
CLOSE = 4.0
LONGEST_WAIT = 10.0


def line(what: str, result: str) -> None:
    print(f"{what:<64} {result:>34}", flush=True)


def put_setting(name: str) -> Tx[int]:
    return (yield from run("setting_put", name=name, value=TEXT))


def bare_loop(path: Path, batch: int, total: int) -> float:
    """Seconds for one transaction of one upsert, `batch` of them under each commit, without any of our code."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    upsert = (
        "INSERT INTO setting (name, value) VALUES (:name, :value) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    start = time.perf_counter()
    for first in range(0, total, batch):
        connection.execute("BEGIN IMMEDIATE")
        for number in range(first, first + batch):
            connection.execute("SAVEPOINT body")
            connection.execute(upsert, {"name": f"n{number}", "value": TEXT})
            connection.execute("RELEASE body")
        connection.execute("COMMIT")
    seconds = time.perf_counter() - start
    connection.close()
    return seconds / total


async def concurrent_writes(database: Database, writers: int, total: int) -> tuple[float, float]:
    """Seconds of wall time and of CPU for one write."""

    async def lane(number: int) -> None:
        for n in range(total // writers):
            await database.write(put_setting, f"w{writers}-{number}-{n}")

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(lane(number) for number in range(writers)))
    return (time.perf_counter() - start) / total, (time.process_time() - cpu) / total


async def group_commit(folder: Path, database: Database, what: str) -> None:
    for writers in (1, 10, 100, 1000):
        total = 200 if writers == 1 else 4000 if writers == 10 else 20_000
        if what == "PostgreSQL":
            total = max(writers, total // 10)
        each, cpu = await concurrent_writes(database, writers, total)
        shown = f"{each * 1e6:7.0f} µs each ({cpu * 1e6:4.0f} CPU)"
        if what == "SQLite":
            bare = bare_loop(folder / f"bare{writers}.db", min(writers, 256), total)
            shown += f", bare {bare * 1e6:5.0f}"
            if writers >= 100:
                VERDICT.hold(f"durable writes, {writers:,} at once, beside bare", each / bare, "times", most=CLOSE)
        line(f"{what}: durable writes, {writers:,} at once", shown)


def agents(count: int, start: int = 0) -> list[Put]:
    spec = {"model": "scripted/echo", "prompt": "You are a clerk. " * 10, "tools": ["a", "b"], "limits": {"steps": 10}}
    return [
        Put(
            {
                "apiVersion": "foliot.dev/v1",
                "kind": "Agent",
                "metadata": {"name": f"n{n:06}", "namespace": "default", "labels": {"app": f"app{n % 100}"}},
                "spec": spec,
            }
        )
        for n in range(start, start + count)
    ]


async def timed(repeat: int, action: Callable[[], Any]) -> float:
    """The median of several runs, in milliseconds."""
    taken: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        await action()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


async def resources(database: Database, what: str, count: int) -> None:
    store = SqlResourceStore(database, lambda: keyring_from_text("00" * 32))
    batch = agents(1000)
    line(f"{what}: apply 1,000 new resources in one batch", f"{await timed(1, lambda: store.write(batch)):.0f} ms")
    line(f"{what}: apply the same 1,000 again (unchanged)", f"{await timed(3, lambda: store.write(batch)):.0f} ms")
    for start in range(1000, count, 1000):
        await store.write(agents(1000, start))
    filter, size = Filter("Agent"), count // 1000
    cursor = None
    for _ in range(999):
        cursor = (await store.list(filter, limit=size, cursor=cursor)).cursor
    first = await timed(21, lambda: store.list(filter, limit=size))
    last = await timed(21, lambda: store.list(filter, limit=size, cursor=cursor))
    VERDICT.hold(f"{what}: page 1,000 beside page 1", last / first, "times", most=2)
    line(f"{what}: page 1 of {count:,}; page 1,000", f"{first:.2f} ms; {last:.2f} ms ({last / first:.2f}×)")
    chosen = Filter("Agent", labels=parse_labels("app=app7"))
    label = await timed(5, lambda: store.list(chosen, limit=100))
    line(f"{what}: page of 100 by a label of one in a hundred", f"{label:.2f} ms")


def one_of_many(path: str, number: int, start: Any, results: Any) -> None:
    async def work() -> list[float]:
        database = await open_database(path)
        start.wait(120)
        waits: list[float] = []
        for n in range(WRITES_EACH):
            began = time.perf_counter()
            await database.write(put_setting, f"p{number}-{n}")
            waits.append(time.perf_counter() - began)
        await database.close()
        return waits

    results.put(asyncio.run(work()))


def eight_processes(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    arguments = (str(folder / "eight.db"),)
    children = [context.Process(target=one_of_many, args=(*arguments, n, start, results)) for n in range(PROCESSES)]
    for child in children:
        child.start()
    began = time.perf_counter()
    start.set()
    waits = sorted(wait for _ in children for wait in results.get(timeout=300))
    seconds = time.perf_counter() - began
    for child in children:
        child.join()
    VERDICT.hold(f"the worst wait of {PROCESSES} processes", waits[-1], "s", most=LONGEST_WAIT)
    shown = f"p50 {waits[len(waits) // 2] * 1e3:.0f} ms, worst {waits[-1] * 1e3:.0f} ms"
    line(f"SQLite: {PROCESSES} processes write one file, {len(waits):,} writes in {seconds:.1f} s", shown)


async def main(postgres: str | None, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="foliot-bench-") as name:
        folder = Path(name)
        database = await open_database(str(folder / "foliot.db"))
        await group_commit(folder, database, "SQLite")
        reads = await timed(5, lambda: read_many(database))
        line("SQLite: point reads on the event loop", f"{reads:.1f} µs each")
        await resources(database, "SQLite", count)
        await database.close()
        await asyncio.to_thread(eight_processes, folder)
        if postgres is not None:
            database = await open_database(postgres)
            await group_commit(folder, database, "PostgreSQL")
            await resources(database, "PostgreSQL", count)
            await database.close()


async def read_many(database: Database) -> None:
    for _ in range(1000):
        await database.read("feed_bounds")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the store costs.")
    parser.add_argument("--postgres", metavar="URL", help="an empty database to measure as well")
    parser.add_argument("--count", type=int, default=100_000, help="resources to page through")
    given = parser.parse_args()
    asyncio.run(main(given.postgres, given.count))
    raise SystemExit(VERDICT.end())
