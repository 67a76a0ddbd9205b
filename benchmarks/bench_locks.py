"""Writers that lock the same rows on PostgreSQL: what they do together against what one kind does alone.

    python benchmarks/bench_locks.py [--seconds 3] [--callers 32]

Two processes on one database, each with many callers, so that their writes share transactions. `budgets`: acts are
reserved and settled in 4 accounts, of one or two of them each. `declare`: a resource is replaced and recorded; `post`:
a run is stored and recorded; `both` is one process of each kind, and `mixed` both kinds in both. Then the same over
HTTP, in one `foliot server`: PATCH of eight resources, POST of tasks, and both at once. Deadlocks are counted by the
server. The aim: none, and together at least half the rate of each kind alone.

The PostgreSQL is one of its own, as the tests use; FOLIOT_BENCH_POSTGRES names another (a database that may be filled).
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
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import asyncpg
from bench_server import MANY, foliot, prepare, running
from http_load import Load, Order, put_load
from verdict import Verdict

from foliot.dev.session import ServiceSession
from foliot.errors import FoliotError
from foliot.store.audit.log import append_records
from foliot.store.base import Put, Written
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.budgets import Amount, BudgetAccount, Ceiling, PaidAct, SqlBudgetLedger
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.resources.database import SqlResourceStore
from foliot.store.transaction import Tx

VERDICT = Verdict()

ACCOUNTS = [BudgetAccount("default", f"b{number}", "all") for number in range(4)]


def no_secrets() -> Any:
    raise AssertionError("nothing here is secret")


def recorded(moment: str) -> dict[str, Any]:
    names = ("namespace", "agent", "tool", "run_id", "call_id", "outcome")
    return {"at": time.time(), "moment": moment, **dict.fromkeys(names, "x")}


class Caller:
    """One caller of each kind: a coroutine function that writes once."""

    def __init__(self, database: PostgresDatabase, number: str) -> None:
        self._database = database
        self._number = number
        self._count = 0
        self._chance = random.Random(number)
        self._ledger = SqlBudgetLedger(database)
        self._journal = SqlJournal(database)
        self._store = SqlResourceStore(database, no_secrets)

    async def budgets(self) -> None:
        self._count += 1
        act, now = PaidAct(self._number, str(self._count)), time.time()
        chosen = self._chance.sample(ACCOUNTS, self._chance.choice((1, 2)))
        ceilings = [Ceiling(account, 2**60) for account in chosen]
        await self._ledger.reserve(act, ceilings, Amount(1, 1), holder="h", now=now, until=now + 60)
        await self._ledger.settle(act, Amount(1, 1), now=now)

    async def declare(self) -> None:
        self._count += 1

        def in_transaction(written: Any) -> Tx[None]:
            assert isinstance(written[0], Written)
            yield from append_records([recorded("resource")])

        document = {
            "kind": "Agent",
            "metadata": {"name": f"a-{self._number}", "namespace": "default"},
            "spec": {"prompt": str(self._count)},
        }
        await self._store.write([Put(document)], in_transaction=in_transaction)

    async def post(self) -> None:
        self._count += 1

        def in_transaction() -> Tx[None]:
            yield from append_records([recorded("run")])

        run_id = f"{self._number}-{self._count}-{time.time_ns()}"
        new = NewRun(run_id, "default", "writer", "sha256:0", time.time(), content={"sha256:0": b"spec"})
        await self._journal.create(new, [Entry(1, time.time(), "run.created", b"{}")], in_transaction=in_transaction)


async def work(url: str, kinds: list[str], callers: int, seconds: float) -> None:
    """One process: says how often each kind was done, and how long 99 of 100 took."""
    database = await PostgresDatabase.open(url)
    end = time.monotonic() + seconds
    took: dict[str, list[float]] = {kind: [] for kind in kinds}

    async def call(kind: str, write: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.random() / 100)  # so that no two transactions are shared in the same order
            began = time.monotonic()
            try:
                await write()
            except FoliotError as error:
                print("failed:", error.message, file=sys.stderr)
                continue
            took[kind].append(time.monotonic() - began)

    made = [(kinds[n % len(kinds)], Caller(database, f"{os.getpid()}-{n}")) for n in range(callers)]
    await asyncio.gather(*(call(kind, getattr(caller, kind)) for kind, caller in made))
    await database.close()
    for kind, times in took.items():
        print(kind, len(times), sorted(times)[len(times) * 99 // 100] if times else 0.0)


def together(url: str, processes: list[str], options: argparse.Namespace) -> dict[str, tuple[int, float]]:
    command = [sys.executable, __file__, "--url", url, f"--seconds={options.seconds}", f"--callers={options.callers}"]
    running = [subprocess.Popen([*command, "--kinds", kinds], stdout=subprocess.PIPE, text=True) for kinds in processes]
    found: dict[str, tuple[int, float]] = {}
    for process in running:
        for line in process.communicate()[0].splitlines():
            kind, count, slowest = line.split()
            before, late = found.get(kind, (0, 0.0))
            found[kind] = (before + int(count), max(late, float(slowest)))
    return found


async def deadlocks(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        return await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    finally:
        await connection.close()


async def migrate(url: str) -> None:
    await (await PostgresDatabase.open(url)).close()


# What two kinds of work together may at least do of what each does alone.
LEAST_SHARE = 0.5


def over_http(url: str, options: argparse.Namespace) -> None:
    """PATCH and POST in one server, each alone and both at once."""
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "FOLIOT_HOME": home, "FOLIOT_STORE": url, "FOLIOT_LOG_LEVEL": "error"}
        environ["FOLIOT_REQUEST_RATE"] = MANY
        token = json.loads(foliot(environ, "tokens", "create", "bench", "--admin", "-o", "json"))["token"]
        with running([sys.executable, "-m", "foliot.cli", "server", "--port", "0"], environ) as (address, _):
            prepare(address, token)
            orders = _http_orders(address, token)
            for each in orders.values():
                put_load(each[0], connections=1, seconds=1)  # everything is loaded
            alone: dict[str, int] = {}
            for kinds in (["PATCH"], ["POST"], ["PATCH", "POST"]):
                before = asyncio.run(deadlocks(url))
                found = _put_loads({kind: orders[kind] for kind in kinds}, options)
                met = asyncio.run(deadlocks(url)) - before
                for kind, loads in found.items():
                    count, slowest = sum(each.requests for each in loads), max(each.p99 for each in loads)
                    refused = sum(each.refused for each in loads)
                    alone.setdefault(kind, count)
                    ratio = f"{count / max(alone[kind], 1):5.2f} of alone" if len(kinds) > 1 else ""
                    rate, remark = count / options.seconds, f"   {refused} REFUSED" if refused else ""
                    times = f"{rate:8.0f}/s   p99 {slowest:7.3f} s"
                    VERDICT.hold(f"deadlocks, http {' and '.join(kinds)}", met, most=0)
                    if ratio:
                        VERDICT.hold(f"{kind} over http, beside alone", count / max(alone[kind], 1), least=LEAST_SHARE)
                    print(f"http     {kind:8} {times}   {met:4} deadlocks   {ratio}{remark}")


def _http_orders(address: str, token: str) -> dict[str, list[Order]]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    labels = json.dumps({"metadata": {"labels": {"weight": "@"}}})
    task = json.dumps({"metadata": {"name": "t-@"}, "spec": {"system": "desk", "input": {"topic": "a number"}}})
    return {
        "PATCH": [Order(f"{address}/v1/model-endpoints/e-{n}", "PATCH", headers, labels) for n in range(8)],
        "POST": [Order(f"{address}/v1/tasks", "POST", headers, task)],
    }


def _put_loads(orders: dict[str, list[Order]], options: argparse.Namespace) -> dict[str, list[Load]]:
    with ThreadPoolExecutor() as pool:
        under_way = {
            kind: [
                pool.submit(put_load, each, connections=max(1, options.callers // len(some)), seconds=options.seconds)
                for each in some
            ]
            for kind, some in orders.items()
        }
        return {kind: [each.result() for each in some] for kind, some in under_way.items()}


@contextmanager
def database() -> Generator[str]:
    if named := os.environ.get("FOLIOT_BENCH_POSTGRES"):
        yield named
        return
    session = ServiceSession.begin()
    try:
        with session.database() as url:
            yield url
    finally:
        session.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--kinds", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url:
        asyncio.run(work(options.url, options.kinds.split(","), options.callers, options.seconds))
        return 0
    rounds = {
        "budgets": ["budgets", "budgets"],
        "declare": ["declare"],
        "post": ["post"],
        "both": ["declare", "post"],
        "mixed": ["declare,post", "declare,post"],
    }
    alone: dict[str, int] = {}
    with database() as url:
        asyncio.run(migrate(url))
        for name, processes in rounds.items():
            before = asyncio.run(deadlocks(url))
            found = together(url, processes, options)
            met = asyncio.run(deadlocks(url)) - before
            for kind, (count, slowest) in found.items():
                alone.setdefault(kind, count)
                ratio = f"{count / max(alone[kind], 1):5.2f} of alone" if name in ("both", "mixed") else ""
                rate = count / options.seconds
                VERDICT.hold(f"deadlocks, {name}", met, most=0)
                if ratio:
                    VERDICT.hold(f"{kind} in {name}, beside alone", count / max(alone[kind], 1), least=LEAST_SHARE)
                print(f"{name:8} {kind:8} {rate:8.0f}/s   p99 {slowest:7.3f} s   {met:4} deadlocks   {ratio}")
        over_http(url, options)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
