"""What people look at, with 1,000 to 100,000 stored tasks: `python benchmarks/bench_sizes.py [--store postgres]`.

One task is done and others are left queued, and their rows are copied in bulk: so many tasks with a run each, of which
a fifth is queued, and as many records of the audit log. What is rare (failed and waiting tasks, a label, an agent, a
tool) was stored first: whoever walks along everything finds it last. Then each thing is asked for, over HTTP within
this process, and two figures are shown for each size, both in time of the processor, which a busy machine changes
little: of a call, threads and the processes of PostgreSQL included; and of the longest step of the event loop
meanwhile: for so long nobody else was answered, and no lease renewed.

The aim: 100 times as much stored makes no call slower than 3 times, and no step longer than 25 ms. What is shown grows
with the number of steps for a trace: that is given for itself, a step.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import apsw
import httpx2 as httpx
import msgspec
from processes import cpu_seconds
from verdict import Verdict

from foliot import Agent, Runtime, ScriptedModel
from foliot.dev.session import ServiceSession
from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall, ToolResult, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run.codec import encode, type_of
from foliot.resources.validate import validate_document
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.server.auth.identity import Caller, granted
from foliot.server.streams.task_watch import all_tasks_frames
from foliot.server.tasks.list import Wanted
from foliot.settings.settings import load_settings
from foliot.store.base import Filter, Put
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.chain import first_link, link_of
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command

VERDICT = Verdict()

SIZES = (1_000, 10_000, 100_000)
STEPS = (1_000, 3_000)
TIMES = 20
SLOWER = 3.0
LONGEST_MS = 25.0
# Copies have keys from here on. What is rare is among the first of them.
FIRST = 1_000
RARE = 20
ADMIN = Caller("admin", "anonymous", granted(["*"], ["admin"]))

CALLS: Mapping[str, str] = {
    "runs": "/v1/runs?limit=50",
    "runs of a namespace": "/v1/runs?limit=50&namespace=default",
    "runs of an agent": "/v1/runs?limit=50&agent=rare",
    "runs that failed": "/v1/runs?limit=50&phase=failed",
    "tasks": "/v1/tasks?limit=50",
    "tasks that are queued": "/v1/tasks?limit=50&phase=queued",
    "tasks that wait": "/v1/tasks?limit=50&phase=waiting",
    "tasks that failed": "/v1/tasks?limit=50&phase=failed",
    "tasks of a target": "/v1/tasks?limit=50&target=rare",
    "tasks of a label": "/v1/tasks?limit=50&labelSelector=team%3Drare",
    "tasks of a lane": "/v1/tasks?limit=50&lane=rare",
    "failed, of a frequent label": "/v1/tasks?limit=50&phase=failed&labelSelector=all%3D1",
    "four filters, of a namespace": "/v1/tasks?limit=50&namespace=default&phase=failed&lane=rare&target=rare"
    "&labelSelector=all%3D1",
    "failed runs of an agent": "/v1/runs?limit=50&agent=rare&phase=failed",
    "records of a tool": "/v1/audit?limit=50&tool=rare",
}

# For each table, which column of a copy is not as in the row that is copied; `i` counts the copies.
ENDED: dict[str, dict[str, str]] = {
    "task": {
        "key": "i",
        "uid": "'done-' || i",
        "name": "'done-' || i",
        "phase": "CASE WHEN i % {every} < {rare} AND i < {first} + {rare} THEN 'failed' ELSE 'succeeded' END",
        "target": "CASE WHEN i < {first} + {rare} THEN 'rare' ELSE target END",
        "lane": "CASE WHEN i < {first} + {rare} THEN 'rare' ELSE 'main' END",
        "labels": 'CASE WHEN i < {first} + {rare} THEN \'{"all":"1","team":"rare"}\' ELSE \'{"all":"1"}\' END',
    },
    "task_run": {"task": "i", "run_id": "'done-' || i"},
    "run": {
        "key": "i",
        "id": "'done-' || i",
        "root": "NULL",
        "agent": "CASE WHEN i < {first} + {rare} THEN 'rare' ELSE agent END",
        "phase": "CASE WHEN i < {first} + {rare} THEN 'failed' ELSE 'succeeded' END",
    },
}
QUEUED: dict[str, dict[str, str]] = {
    "task": {"key": "i", "uid": "'queued-' || i", "name": "'queued-' || i"},
    "task_run": {"task": "i", "run_id": "'queued-' || i"},
    "run": {"key": "i", "id": "'queued-' || i", "root": "NULL"},
    "queue": {"run": "i", "run_id": "'queued-' || i", "task": "i"},
    "event": {"run": "i", "link": "NULL"},  # which a journal of an older version does not have
}


class Bulk:
    """Copies rows within the database."""

    def __init__(self, execute: Callable[[str], Awaitable[list[Any]]], *, is_postgres: bool) -> None:
        self._execute = execute
        self._is_postgres = is_postgres

    async def fill(self, size: int, done: int, queued: int) -> None:
        """Make copies of a task that is done and of one that is queued (their keys), and as many audit records."""
        begin, count = FIRST, size * 4 // 5
        await self._copy(ENDED, done, begin, count)
        begin += count
        await self._copy(QUEUED, queued, begin, size - count)
        # Some of the first of them wait for a person.
        waits = f"key >= {begin} AND key < {begin + RARE}"
        summary = '{"waiting":{"reason":"input","until":null}}'
        await self._execute(f"UPDATE run SET phase = 'waiting', epoch = 2, summary = '{summary}' WHERE {waits}")
        parked = ", let_go = 1" if "let_go" in await self._columns("queue") else ""
        await self._execute(f"UPDATE queue SET due_at = NULL{parked} WHERE {waits.replace('key', 'run')}")
        await self._execute(
            f"{_numbers(1, size)} INSERT INTO audit (seq, at, moment, namespace, agent, tool, run_id, call_id, "
            "outcome, data, hash) SELECT i, 1.0 * i, 'finished', 'default', 'clerk', "
            f"CASE WHEN i <= {RARE} THEN 'rare' ELSE 'look' END, 'done-' || i, 'c' || i, 'ok', "
            '\'{"at":1,"moment":"finished","namespace":"default"}\', \'\' FROM n'
        )
        if self._is_postgres:
            for table, column in (("task", "key"), ("run", "key")):
                sequence = f"pg_get_serial_sequence('{table}', '{column}')"
                await self._execute(f"SELECT setval({sequence}, (SELECT MAX({column}) FROM {table}))")
            await self._execute("VACUUM ANALYZE")

    async def _copy(self, tables: Mapping[str, Mapping[str, str]], key: int, begin: int, count: int) -> None:
        found = await self._execute(f"SELECT run_id FROM task_run WHERE task = {key} LIMIT 1")
        run_id = found[0][0]
        chosen = {
            "task": f"key = {key}",
            "task_run": f"run_id = '{run_id}'",
            "run": f"id = '{run_id}'",
            "queue": f"run_id = '{run_id}'",
            "event": f"run = (SELECT r.key FROM run AS r WHERE r.id = '{run_id}')",
        }
        words = {"{first}": str(FIRST), "{rare}": str(RARE), "{every}": "1000"}
        for table, changed in tables.items():
            values: dict[str, str] = {}
            for column in await self._columns(table):
                text = changed.get(column, f'"{column}"')
                for word, value in words.items():
                    text = text.replace(word, value)
                values[column] = text
            columns = ", ".join(f'"{column}"' for column in values)
            await self._execute(
                f"{_numbers(begin, begin + count - 1)} INSERT INTO {table} ({columns}) "
                f"SELECT {', '.join(values.values())} FROM {table}, n WHERE {chosen[table]}"
            )

    async def _columns(self, table: str) -> list[str]:
        if self._is_postgres:
            asked = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND "
            return [row[0] for row in await self._execute(f"{asked} table_name = '{table}'")]
        return [row[1] for row in await self._execute(f"PRAGMA table_info({table})")]


def _numbers(first: int, last: int) -> str:
    return f"WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"


@asynccontextmanager
async def bulk(store: str) -> AsyncGenerator[Bulk]:
    if not store.startswith("postgres"):
        connection: Any = apsw.Connection(store)
        connection.execute("PRAGMA synchronous = OFF")

        async def on_sqlite(statement: str) -> list[Any]:
            return connection.execute(statement).fetchall()

        yield Bulk(on_sqlite, is_postgres=False)
        connection.close()
        return
    import asyncpg

    client: Any = await asyncpg.connect(store)
    yield Bulk(client.fetch, is_postgres=True)
    await client.close()


Clock = Callable[[], Awaitable[float]]
Call = Callable[[], Coroutine[Any, Any, None]]


class Steps:
    longest = 0.0


@contextmanager
def watched() -> Iterator[Steps]:
    """Measures the longest step of the event loop of this thread, in time of the processor."""
    found = Steps()
    run = asyncio.Handle._run  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    gc.freeze()

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        found.longest = max(found.longest, time.thread_time() - began)

    asyncio.Handle._run = measured  # pyright: ignore[reportPrivateUsage]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # pyright: ignore[reportPrivateUsage]


async def timed(
    call: Callable[[], Coroutine[Any, Any, None]], worked: Clock, times: int = TIMES
) -> tuple[float, float]:
    """Milliseconds of the processor for a call, and for the longest step: of the call in which that was shortest."""
    stopped = float("inf")
    began = await worked()
    for _ in range(times):
        with watched() as steps:
            await asyncio.ensure_future(call())  # in steps of its own, all of which are over and counted
        stopped = min(stopped, steps.longest * 1e3)
    return (await worked() - began) / times * 1e3, stopped


@asynccontextmanager
async def clock_of(store: str) -> AsyncGenerator[Clock]:
    """Gives a function that tells the time of the processor: of this process and of those of PostgreSQL for it."""
    if not store.startswith("postgres"):

        async def here() -> float:
            return time.process_time()

        yield here
        return
    import asyncpg

    client: Any = await asyncpg.connect(store)
    asked = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    async def here_and_there() -> float:
        return time.process_time() + sum(cpu_seconds(row["pid"]) for row in await client.fetch(asked))

    yield here_and_there
    await client.close()


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert made is not None, problems
    return made


async def at_size(size: int, folder: Path, store: str) -> dict[str, tuple[float, float]]:
    settings = load_settings({"home": str(folder), "store": store}, {})
    async with Runtime(settings=settings) as runtime, clock_of(store) as worked:
        await runtime.inside.resources.write(
            [
                Put(document("ModelEndpoint", "brain", {"provider": "mock", "default_model": "m"})),
                Put(document("Agent", "clerk", {"model_ref": "brain", "prompt": "Work."})),
            ]
        )
        tasks = runtime.inside.tasking.tasks
        done = await tasks.accept(Command("agent", "clerk", name="first", message="go"))
        worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=1), grace=0, once=True)
        await worker.run()
        queued = await tasks.accept(Command("agent", "clerk", name="second", message="go"))
        async with bulk(store) as copies:
            await copies.fill(size, done.task.key, queued.task.key)
        app = create_app(runtime, settings=settings, auth=Anonymous())
        transport = httpx.ASGITransport(app)
        found: dict[str, tuple[float, float]] = {}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for name, path in CALLS.items():

                async def ask(path: str = path) -> None:
                    answer = await client.get(path)
                    assert answer.status_code == 200, answer.text
                    items = next(value for value in answer.json().values() if isinstance(value, list))
                    assert len(items) >= RARE, (path, len(items))

                await ask()
                found[name] = await timed(ask, worked)

        async def find() -> None:
            assert (await tasks.find("default", "first")).phase == "succeeded"

        async def find_by_end() -> None:
            assert (await tasks.find("default", f"ed-{FIRST + size - 1}")).phase == "queued"

        async def begin_watch() -> None:
            frames = all_tasks_frames(app.state.services, ADMIN, Wanted(Filter("Task")), None)
            async for each in frames:
                if b"event: bookmark" in each:
                    break
            await frames.aclose()

        found["task by its name"] = await timed(find, worked)
        found["task by the end of its name"] = await timed(find_by_end, worked)
        found["watch of tasks begins, again"] = await timed(begin_watch, worked, 3)
    return found


def journal_of(run_id: str, created: Entry, steps: int) -> list[Entry]:
    """The events of a run with so many steps, each with a call of a tool."""
    events: list[e.Event] = []
    for step in range(1, steps + 1):
        call = f"c{step}"
        asked = Message("assistant", (ToolCall(call, "look", f'{{"page":{step}}}'),))
        events += [
            e.StepStarted(step),
            e.ModelResponded(step, ModelResponse(asked, Usage(10, 5, cost_usd=0.5), model="m"), 0.5),
            e.ToolStarted(call, "look", f"r/{call}"),
            e.ToolFinished(ToolResult(call, "look", (Text("seen"),)), 0.1),
        ]
    link, entries = first_link(run_id), [created]
    entries += [Entry(seq, 2.0, type_of(each), encode(each)) for seq, each in enumerate(events, 2)]
    for place, entry in enumerate(entries):
        link = link_of(link, entry.seq, entry.at, entry.type, entry.data)
        entries[place] = msgspec.structs.replace(entry, link=link)
    return entries


async def traces(folder: Path, store: str) -> dict[int, tuple[float, float]]:
    found: dict[int, tuple[float, float]] = {}
    settings = load_settings({"home": str(folder), "store": store}, {})
    async with Runtime(settings=settings) as runtime, clock_of(store) as worked:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        journal = runtime.inside.runs.journal
        short = await runtime.run(Agent("walker", model=ScriptedModel([{"say": "done"}])), "go")
        info, (created, *_) = await journal.get(short.run_id), await journal.read(short.run_id)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for steps in STEPS:
                new = NewRun(f"long-{steps}", info.namespace, info.agent, info.spec, 1.0)
                await journal.create(new, journal_of(new.id, created, steps))

                async def ask(run_id: str = new.id) -> None:
                    answer = await client.get(f"/v1/runs/{run_id}/trace")
                    assert answer.status_code == 200, answer.text

                await ask()
                found[steps] = await timed(ask, worked, 5)
    return found


@contextmanager
def stores(is_postgres: bool) -> Iterator[Callable[[Path], Any]]:
    """Gives a function that makes a new store for a folder."""
    if not is_postgres:
        yield lambda folder: nullcontext(str(folder / "foliot.db"))
        return
    session = ServiceSession.begin()
    try:
        yield lambda _: session.database()
    finally:
        session.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="leave out larger sizes")
    given = parser.parse_args()
    sizes = [size for size in SIZES if size <= given.largest]
    found: dict[int, dict[str, tuple[float, float]]] = {}
    with stores(given.store == "postgres") as store_in:
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="foliot-bench-") as folder, store_in(Path(folder)) as store:
                found[size] = asyncio.run(at_size(size, Path(folder), store))
        with tempfile.TemporaryDirectory(prefix="foliot-bench-") as folder, store_in(Path(folder)) as store:
            of_steps = asyncio.run(traces(Path(folder), store))
    heads = "".join(f"{f'{size:,}':>18}" for size in sizes)
    print(f"{given.store:<30}{heads}{'ratio':>8}   ms: call / longest step of the loop")
    for name in found[sizes[0]]:
        ratio = found[sizes[-1]][name][0] / found[sizes[0]][name][0]
        longest = max(found[size][name][1] for size in sizes)
        cells = "".join(f"{found[size][name][0]:>10.1f} /{found[size][name][1]:>6.1f}" for size in sizes)
        print(f"{name:<30}{cells}{ratio:>8.2f}")
        VERDICT.hold(f"{name}, {sizes[-1]:,} beside {sizes[0]:,}", ratio, "times", most=SLOWER)
        VERDICT.hold(f"{name}, the longest step", longest, "ms", most=LONGEST_MS)
    for steps, (took, stopped) in of_steps.items():
        told = f"trace of {steps:,} steps"
        print(f"{told:<30}{took:>10.1f} /{stopped:>6.1f}   {took / steps * 1e3:.0f} µs a step")
        VERDICT.hold(f"{told}, the longest step", stopped, "ms", most=LONGEST_MS)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
