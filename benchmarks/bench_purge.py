"""Forgetting tasks that are over: what one costs at 1k, 10k and 100k, and how large the store is afterwards.

    python benchmarks/bench_purge.py [OTHER] [--sizes 1000,10000] [--postgres]

A task of a system of three agents is done once for real; its rows are copied under new keys until there are so many.
Half a thousand tasks that are not old stay. `OTHER` is the root of another checkout: then each size is done by both,
in turns. CPU time is that of the process; for PostgreSQL also that of its server, by its processes. `longest` is the
longest time for which one transaction of the purge kept others waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from verdict import Verdict

VERDICT = Verdict()

CHILD = "--child"
SIZES = "1000,10000,100000"
KEPT = 500
AT_ONCE = 20
# Keys of copies are so far apart: a task has fewer runs.
APART = 10
AIM = 200.0
# Columns that make a copy another one, by table: keys are moved on, texts have a number behind them.
KEYS = {
    "task": ("key",),
    "task_event": ("task",),
    "task_run": ("task",),
    "run": ("key",),
    "event": ("run",),
    "blob_use": ("run",),
}
TEXTS = {"task": ("uid", "name"), "task_run": ("run_id",), "run": ("id",)}
TIMES = {"task": ("created_at", "updated_at", "started_at", "ended_at"), "run": ("created_at", "updated_at")}
OLD = 90 * 86_400.0


async def made(url: str, home: Path) -> None:
    """Do one task for real."""
    from foliot.cli.loadtest.load import SYSTEM, baseline
    from foliot.resources.reader import parse_text
    from foliot.runtime.local.groups import opened_store
    from foliot.runtime.runtime import Runtime
    from foliot.settings.settings import load_settings
    from foliot.store.queue.placement import Offer
    from foliot.work.tasks.base import Command

    settings = load_settings({"home": str(home), "store": url}, {})
    bundle = parse_text(json.dumps({"kind": "List", "items": baseline("bench", timeout="1s")}), "bench.json")
    bundle.raise_for_errors()
    async with opened_store(settings) as store:
        await store.resources.apply([item.document for item in bundle.items])
    async with Runtime(settings=settings) as runtime:
        worker: Any = runtime.inside.tasking.worker(Offer("bench", runtime.inside.runs.worker, capacity=8))
        working = asyncio.create_task(worker.run())
        service = runtime.inside.tasking.tasks
        task = (await service.accept(Command("system", SYSTEM, namespace="bench", name="t", message="clocks"))).task
        async with asyncio.timeout(60):
            while (await service.get("bench", task.name)).phase != "succeeded":  # noqa: ASYNC110  # any version can
                await asyncio.sleep(0.02)
        worker.drain()
        await working


def columns_copied(table: str, columns: list[str]) -> str:
    told: list[str] = []
    for name in columns:
        if name in KEYS.get(table, ()):
            told.append(f"t.{name} + n.i * {APART}")
        elif name in TEXTS.get(table, ()):
            told.append(f"t.{name} || '-' || n.i")
        elif name in TIMES.get(table, ()):
            told.append(f"t.{name} - CASE WHEN n.i <= :old THEN {OLD} ELSE 0 END")
        else:
            told.append(f"t.{name}")
    return ", ".join(told)


def fill_sqlite(path: Path, size: int) -> None:
    import apsw

    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -400000; PRAGMA temp_store = MEMORY")
    texts: list[str] = []
    for table in KEYS:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"CREATE TEMP TABLE t_{table} AS SELECT * FROM {table}")
        texts.append(
            "WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {columns_copied(table, columns)} FROM n, t_{table} AS t"
        )
    # Some of each table at a time, as work does it: so rows of one time stand near each other in the file.
    for first in range(1, size + KEPT + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, size + KEPT)
        with connection:
            for text in texts:
                connection.execute(text, {"first": first, "last": last, "old": size})
    # A store that grows does so itself; its statistics must not be those of one task.
    connection.execute("ANALYZE")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def fill_postgres(url: str, size: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    for table in KEYS:
        found = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position", table
        )
        columns = [row[0] for row in found]
        await connection.execute(f"CREATE TEMP TABLE t_{table} AS SELECT * FROM {table}")
        copied = columns_copied(table, columns).replace(":old", str(size))
        await connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {copied} "
            f"FROM generate_series(1, {size + KEPT}) AS n (i), t_{table} AS t"
        )
    await connection.execute("ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()


def server_cpu(postmaster: int) -> float:
    """The CPU seconds of a PostgreSQL server: of its processes, and of those that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def child(url: str, size: int, postmaster: int) -> None:
    """Fill a store and purge it with the packages of this checkout; prints one line of JSON."""
    from foliot.store.open import open_database
    from foliot.store.resources.database import SqlResourceStore
    from foliot.work.housekeeping import Forgotten, Housekeeper, Retention

    sqlite = not url.startswith("postgres")
    path = Path(url)
    with tempfile.TemporaryDirectory(prefix="foliot-bench-") as home:
        await made(url, path.parent if sqlite else Path(home))
    if sqlite:
        fill_sqlite(path, size)
    else:
        await fill_postgres(url, size)
    database: Any = await open_database(url)
    full = (await database.size()).total
    longest, statements, transactions = 0.0, 0, 0
    write = database.write

    def timed(body: Any, /, *given: Any, **named: Any) -> Any:
        nonlocal transactions
        transactions += 1

        def counted(*given: Any, **named: Any) -> Any:
            nonlocal statements, longest
            begun = time.perf_counter()
            inner = body(*given, **named)
            result = None
            try:
                while True:
                    statement = inner.send(result)
                    statements += len(statement.params) if statement.want == "many" else 1
                    result = yield statement
            except StopIteration as end:
                longest = max(longest, time.perf_counter() - begun)
                return end.value

        return write(counted, *given, **named)

    database.write = timed
    found = Forgotten()
    resources: Any = SqlResourceStore(database, lambda: None)
    keeper = Housekeeper(database, resources, Retention(audit=None))
    served = server_cpu(postmaster) if postmaster else 0.0
    begun, wall = time.process_time(), time.perf_counter()
    await keeper.forget(found, time.time())
    cpu, took = time.process_time() - begun, time.perf_counter() - wall
    served = server_cpu(postmaster) - served if postmaster else 0.0
    left = sum(row["tasks"] for row in await database.read("task_phases"))
    size_after = (await database.size()).total
    await database.close()
    if sqlite:
        size_after = os.stat(path).st_size
    told = {
        "tasks": found.tasks,
        "runs": found.runs,
        "cpu_us": 1e6 * cpu / size,
        "server_us": 1e6 * served / size,
        "per_second": found.tasks / took,
        "statements": statements,
        "transactions": transactions,
        "longest_ms": 1e3 * longest,
        "full_mb": full / 1e6,
        "left_mb": size_after / 1e6,
        "left": left,
    }
    print(json.dumps(told), flush=True)


def asked(root: Path, url: str, size: int, postmaster: int = 0) -> dict[str, Any]:
    environ = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, str(Path(__file__).resolve()), CHILD, url, str(size), str(postmaster)]
    done = subprocess.run(command, env=environ, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{root}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(root: Path, size: int, postgres: bool) -> dict[str, Any]:
    if not postgres:
        with tempfile.TemporaryDirectory(prefix="foliot-bench-") as folder:
            return asked(root, str(Path(folder) / "foliot.db"), size)
    from foliot.dev.session import ServiceSession

    session = ServiceSession.begin()
    try:
        with session.private_postgres() as server:
            return asked(root, server.url, size, server.pid or 0)
    finally:
        session.end()


def main() -> int:
    parser = argparse.ArgumentParser(description="What forgetting tasks costs.")
    parser.add_argument("other", type=Path, nargs="?", help="the root of another checkout")
    parser.add_argument("--sizes", default=SIZES, help="how many old tasks, with commas between")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server that is started for it")
    given = parser.parse_args()
    roots = {"here": Path(__file__).resolve().parent.parent}
    if given.other is not None:
        roots = {"other": given.other.resolve(), **roots}
    print(
        f"{'old tasks':>10} {'checkout':<9}{'CPU µs/task':>12}{'server µs':>11}{'tasks/s':>9}{'transactions':>14}"
        f"{'statements/task':>17}{'longest':>11}{'full':>10}{'left':>9}"
    )
    for size in map(int, given.sizes.split(",")):
        for name, root in roots.items():
            told = measured(root, size, given.postgres)
            if (told["tasks"], told["left"]) != (size, KEPT + 1):
                raise SystemExit(f"{name} has forgotten {told['tasks']} tasks and left {told['left']}")
            print(
                f"{size:>10,} {name:<9}{told['cpu_us']:>12.0f}{told['server_us']:>11.0f}{told['per_second']:>9.0f}"
                f"{told['transactions']:>14,}{told['statements'] / size:>17.2f}{told['longest_ms']:>8.0f} ms"
                f"{told['full_mb']:>7.0f} MB{told['left_mb']:>6.0f} MB",
                flush=True,
            )
            if name == "here" and not given.postgres:
                VERDICT.hold(f"a task of {size:,} on SQLite", told["cpu_us"], "µs of CPU", most=AIM)
    return VERDICT.end()


if __name__ == "__main__":
    if CHILD in sys.argv:
        asyncio.run(child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        raise SystemExit(main())
