"""What the queue costs: `python benchmarks/bench_queue.py [--finished 1000000] [--postgres URL | --no-postgres]`.

A turn is what a worker does over and over: claim as many runs as it has places, and complete them. It is measured in
turns with the bare database doing the same statements without any of our code, in the same store; then with more and
more runs queued, and with more and more tasks finished. What counts is the time that a fifth of the turns kept within:
the machine is shared, and what disturbs it only ever makes a turn longer.

The aims: at least half the rate of the bare database; 100,000 queued runs cost no more than half as much again as ten;
and so do a million finished tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import apsw
from verdict import Verdict

from foliot.dev.session import ServiceSession
from foliot.errors import FoliotError
from foliot.store import queries
from foliot.store.base import Database
from foliot.store.journal.base import Entry
from foliot.store.journal.database import SqlJournal
from foliot.store.open import open_database
from foliot.store.queue.claims import EACH, LOOKED_AT, claim
from foliot.store.queue.placement import Offer
from foliot.store.queue.queue import QueueItem

VERDICT = Verdict()

NOW = 1e9
UNTIL = NOW + 30
PLACES = 8
WARM_UP, TURNS = 6, 80
NEEDED = (WARM_UP + TURNS) * PLACES
LINES = 4
LEAST_SHARE = 0.5
MOST_GROWTH = 1.5
WORKER = "bench/1/1"

MANY = "WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "
RUNS = (
    "INSERT INTO run (key, id, namespace, agent, phase, epoch, last_seq, created_at, updated_at, labels, summary, pin)"
    " SELECT i, 'run-' || CAST(i AS TEXT), 'default', 'clerk', '{phase}', 0, 1, 1, 1, '{{}}', '{{}}', 1"
    " FROM n"
)
EVENTS = "INSERT INTO event (run, seq, at, type, data, link) SELECT i, 1, 1, 'run.created', {blob}, {blob} FROM n"
TASKS = (
    "INSERT INTO task (key, uid, namespace, name, target_kind, target, digest, phase, revision, attempt, priority,"
    " lane, spawned_by, parent, labels, command, plan, graph, summary, created_at, updated_at, ended_at)"
    " SELECT i, 'uid-' || CAST(i AS TEXT), 'default', 'task-' || CAST(i AS TEXT), 'agent', 'clerk', 'd',"
    " 'succeeded', 3, 1, 10, '', '', '', '{{}}', '{{}}', 'sha256:01', {blob}, '{{}}', 1, 2, 2 FROM n"
)
QUEUE = (
    "INSERT INTO queue (run, run_id, task, namespace, agent, lane, class, priority, line, due_at, held, max_running,"
    " requirements) SELECT i, 'run-' || CAST(i AS TEXT), i, 'default', 'clerk', '{lane}', 'c', 10, '{line}', i, 0, 0,"
    " '{{}}' FROM n"
)


class BareSqlite:
    """A driver without any of our code but the texts of the queries; so is the next."""

    blob = "x'7b7d'"

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA busy_timeout = 30000")
        self._texts = queries.load()

    async def script(self, text: str) -> None:
        self._connection.execute(text)

    async def turn(self) -> int:
        def ask(name: str, **params: Any) -> list[Any]:
            return connection.execute(texts[name], params).fetchall()

        connection, texts = self._connection, self._texts
        lines = ask("queue_lines", after="", now=NOW, count=LOOKED_AT, each=EACH)
        ask("bound_list")
        connection.execute("BEGIN IMMEDIATE")
        found: list[Any] = []
        for line in lines:
            count = PLACES // LINES if len(lines) == LINES else PLACES - len(found)
            found += ask("queue_take", line=line[0], now=NOW, count=count)
        claims = [{"key": row[0], "epoch": 1, "worker": WORKER, "until": UNTIL, "now": NOW} for row in found]
        connection.executemany(texts["queue_claim"], claims)
        connection.executemany(texts["queue_hold"], [{"run": row[0], "until": UNTIL} for row in found])
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        for row in found:
            for name, params in completion(row[0], row[1]):
                connection.execute(texts[name], params)
        connection.execute("COMMIT")
        return len(found)

    async def close(self) -> None:
        self._connection.close()


class BarePostgres:
    blob = "CAST('{}' AS bytea)"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def script(self, text: str) -> None:
        await self._connection.execute(text)

    async def turn(self) -> int:
        async def ask(name: str, **params: Any) -> list[Any]:
            text, names = queries.load_for_postgres(name)
            return await connection.fetch(text, *[params[each] for each in names])

        async def each(name: str, sets: list[dict[str, Any]]) -> None:
            text, names = queries.load_for_postgres(name)
            await connection.executemany(text, [[params[name] for name in names] for params in sets])

        connection = self._connection
        lines = await ask("queue_lines", after="", now=NOW, count=LOOKED_AT, each=EACH)
        await ask("bound_list")
        found: list[Any] = []
        async with connection.transaction():
            for line in lines:
                count = PLACES // LINES if len(lines) == LINES else PLACES - len(found)
                found += await ask("queue_take", line=line[0], now=NOW, count=count)
            claims = [{"key": row[0], "epoch": 1, "worker": WORKER, "until": UNTIL, "now": NOW} for row in found]
            await each("queue_claim", claims)
            await each("queue_hold", [{"run": row[0], "until": UNTIL} for row in found])
        async with connection.transaction():
            for row in found:
                for name, params in completion(row[0], row[1]):
                    await ask(name, **params)
        return len(found)

    async def close(self) -> None:
        await self._connection.close()


def completion(key: int, run_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The statements that end a run."""
    release = {"key": key, "epoch": 1, "after": 1, "last": 2, "phase": "succeeded", "at": NOW, "summary": "{}"}
    event = {"run": key, "seq": 2, "at": NOW, "type": "run.succeeded", "data": b"{}", "blob": None}
    return [
        ("run_release", release),
        ("event_add", event),
        ("purge_signals", {"id": run_id}),
        ("queue_remove", {"run": key}),
    ]


class Store:
    """One store, with runs put in wholesale."""

    def __init__(self, name: str, db: Database, bare: BareSqlite | BarePostgres) -> None:
        self.name = name
        self.db = db
        self.bare = bare
        self._last = 0
        self._journal = SqlJournal(db)
        self._offer = Offer("bench", WORKER, capacity=PLACES)

    async def turn(self) -> int:
        """Claim and complete, as a worker does; how many runs."""
        found = await claim(self.db, self._offer, want=PLACES, now=NOW, until=UNTIL)
        ended = [Entry(2, NOW, "run.succeeded", b"{}")]
        await asyncio.gather(
            *(self._journal.append(lease, ended, phase="succeeded", summary={}) for lease in found.leases)
        )
        return len(found.leases)

    async def fill(self, queued: int) -> None:
        """So many queued runs more, in a few lines."""
        for number in range(LINES):
            item = QueueItem(0, "", 0, "default", "clerk", f"lane{number}", "c", 10, 0.0)
            span = self._span(-(-queued // LINES))
            await self.bare.script(span + RUNS.format(phase="pending"))
            await self.bare.script(span + EVENTS.format(blob=self.bare.blob))
            await self.bare.script(span + QUEUE.format(lane=item.lane, line=item.line))

    async def finish(self, count: int) -> None:
        """So many finished tasks more."""
        span = self._span(count)
        await self.bare.script(span + RUNS.format(phase="succeeded"))
        await self.bare.script(span + EVENTS.format(blob=self.bare.blob))
        await self.bare.script(span + TASKS.format(blob=self.bare.blob))

    async def settle(self) -> None:
        """What a database does by and by, now: so that it is not done in the middle of a measurement."""
        await self.bare.script("PRAGMA wal_checkpoint(TRUNCATE)" if self.name == "SQLite" else "VACUUM ANALYZE")

    def _span(self, count: int) -> str:
        first, self._last = self._last + 1, self._last + count
        return MANY.format(first=first, last=self._last)


async def per_run(*turns: Callable[[], Awaitable[int]]) -> list[float]:
    """Seconds for one run of each sort of turn: what a fifth of many turns, taken in turn, kept within."""
    taken: list[list[float]] = [[] for _ in turns]
    order = list(zip(turns, taken, strict=True))
    for _ in range(WARM_UP + TURNS):
        order.append(order.pop(0))  # whoever comes behind another's fsync is not always the same
        for turn, seconds in order:
            start = time.perf_counter()
            count = await turn()
            if count != PLACES:
                raise SystemExit(f"a turn did {count} runs instead of {PLACES}: nothing was measured")
            seconds.append((time.perf_counter() - start) / count)
    return [statistics.quantiles(seconds, n=5)[0] for seconds in (each[WARM_UP:] for each in taken)]


def line(what: str, result: str, met: bool) -> None:
    print(f"{what:<58} {result:>44}   {'' if met else 'MISSED'}", flush=True)


class Opener(Protocol):
    """Makes empty stores of one sort."""

    name: str

    async def open(self, stack: contextlib.AsyncExitStack) -> Store: ...


class OnSqlite:
    name = "SQLite"

    async def open(self, stack: contextlib.AsyncExitStack) -> Store:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="foliot-bench-"))
        path = Path(folder) / "foliot.db"
        db = await open_database(str(path))
        stack.push_async_callback(db.close)
        bare = BareSqlite(path)
        stack.push_async_callback(bare.close)
        return Store(self.name, db, bare)


class OnPostgres:
    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self, stack: contextlib.AsyncExitStack) -> Store:
        import asyncpg

        name = f"bench_{secrets.token_hex(6)}"
        admin = await asyncpg.connect(self._url)
        stack.push_async_callback(admin.close)
        await admin.execute(f"CREATE DATABASE {name}")
        stack.push_async_callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
        url = urlsplit(self._url)._replace(path=f"/{name}").geturl()
        db = await open_database(url)
        stack.push_async_callback(db.close)
        bare = BarePostgres(await asyncpg.connect(url))
        stack.push_async_callback(bare.close)
        return Store(self.name, db, bare)


async def against_bare(opener: Opener) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ours, theirs = await opener.open(stack), await opener.open(stack)
        for store in (ours, theirs):
            await store.fill(NEEDED)
            await store.settle()
        each, bare = await per_run(ours.turn, theirs.bare.turn)
    shown = f"{1 / each:,.0f} runs/s, bare {1 / bare:,.0f} ({bare / each:.2f})"
    what = f"{opener.name}: claim {PLACES} runs and complete them"
    line(what, shown, VERDICT.hold(what, bare / each, "of the bare rate", least=LEAST_SHARE))


async def as_it_grows(opener: Opener, what: str, sizes: Sequence[int], grow: Callable[[Store, int], Any]) -> None:
    """The same turns, taken in turn on stores of different sizes."""
    async with contextlib.AsyncExitStack() as stack:
        stores = [await opener.open(stack) for _ in sizes]
        for store, size in zip(stores, sizes, strict=True):
            await grow(store, size)
            await store.fill(NEEDED)
            await store.settle()
        costs = await per_run(*(store.turn for store in stores))
    for size, cost in zip(sizes, costs, strict=True):
        growth = cost / costs[0]
        shown = f"{cost * 1e6:.0f} µs a run ({growth:.2f}×)"
        told = f"{opener.name}: the same with {size:,} {what}"
        line(told, shown, VERDICT.hold(told, growth, "times", most=MOST_GROWTH))


async def measure(opener: Opener, finished: int) -> None:
    await against_bare(opener)
    await as_it_grows(opener, "more queued", (10, 10_000, 100_000), Store.fill)
    await as_it_grows(opener, "tasks finished", (1_000, finished), Store.finish)


def measure_postgres(url: str | None, finished: int) -> None:
    """On the server that was named, else on one of our own, with fsync."""
    if url is not None:
        return asyncio.run(measure(OnPostgres(url), finished))
    session = ServiceSession.begin()
    try:
        with session.private_postgres() as server:
            asyncio.run(measure(OnPostgres(server.url), finished))
    except FoliotError as error:
        print(f"PostgreSQL was not measured: {error.message}")
    finally:
        session.end()


def main() -> int:
    parser = argparse.ArgumentParser(description="What claiming and completing runs costs.")
    parser.add_argument("--finished", type=int, default=1_000_000, help="finished tasks in the store, at the end")
    parser.add_argument(
        "--postgres", metavar="URL", help="where databases may be made; a server is started when none is named"
    )
    parser.add_argument("--no-postgres", action="store_true")
    given = parser.parse_args()
    asyncio.run(measure(OnSqlite(), given.finished))
    if not given.no_postgres:
        measure_postgres(given.postgres, given.finished)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
