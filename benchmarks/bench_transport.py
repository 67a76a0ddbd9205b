"""How long a waiting worker in another process sleeps on: `python benchmarks/bench_transport.py [--rounds 200]`.

A second process waits for deliveries and notes when one comes; the first commits, publishes, and notes when it did. The
clock is the machine's monotonic one, the same for both. PostgreSQL and NATS are private servers, NATS with a sync for
every message. Also: what an idle worker asks of PostgreSQL, and how many tickets a second go through JetStream.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from verdict import Verdict

from foliot.bus.base import Ticket, Transport
from foliot.bus.local import LocalTransport
from foliot.bus.open import open_transport
from foliot.dev.session import ServiceSession
from foliot.settings.settings import load_settings
from foliot.store.base import Database
from foliot.store.open import open_database
from foliot.store.transaction import Tx, run

VERDICT = Verdict()

IDLE_SECONDS = 5.0
TICKETS = 5000
# Milliseconds at the median. SQLite has no way to tell other processes: they look every 50 ms.
AIMS = {"in process": 1.0, "SQLite file": 60.0, "PostgreSQL": 10.0, "NATS JetStream": 10.0}


class Place(NamedTuple):
    store: str
    nats: str


def line(what: str, result: str) -> None:
    print(f"{what:<58} {result:>40}", flush=True)


def ticket(number: int | str) -> Ticket:
    return Ticket(id=f"bench-{number}", run_id=f"run-{number}", namespace="default", agent="clerk")


def commit_something(name: str) -> Tx[int]:
    return (yield from run("setting_put", name=name, value="x"))


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[tuple[Database, Transport]]:
    with tempfile.TemporaryDirectory() as home:
        environ = {"FOLIOT_HOME": home, "FOLIOT_STORE": place.store, "FOLIOT_NATS": place.nats}
        settings = load_settings({}, environ)
        database = await open_database(settings.store)
        transport = await open_transport(settings, database)
        try:
            yield database, transport
        finally:
            await transport.close()
            await database.close()


async def note_arrivals(place: Place) -> None:
    """The other process: a line for every time it was woken."""
    async with opened(place) as (_, transport):
        while True:
            got = await transport.receive(want=1, timeout=3600)
            print(time.monotonic_ns(), flush=True)
            for each in got:
                await each.done()


async def between_processes(place: Place, rounds: int) -> list[float]:
    """Milliseconds from publishing to being woken."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--note", place.store, place.nats, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    times: list[float] = []
    try:
        async with opened(place) as (database, transport):
            for number in range(-10, rounds):
                await quiet(process.stdout)
                await database.write(commit_something, f"n{number}")
                published = time.monotonic_ns()
                await transport.publish([ticket(number)])
                woken = int(await asyncio.wait_for(process.stdout.readline(), 30))
                if number >= 0:
                    times.append((woken - published) / 1e6)
    finally:
        process.kill()
        await process.wait()
    return times


async def quiet(stream: asyncio.StreamReader) -> None:
    """Until the other process waits again, and was not woken for something else."""
    while True:
        try:
            async with asyncio.timeout(0.15):
                await stream.readline()
        except TimeoutError:
            return


async def in_process(rounds: int) -> list[float]:
    transport = LocalTransport()
    times: list[float] = []
    for number in range(rounds):
        waiting = asyncio.create_task(transport.receive(want=1, timeout=30))
        await asyncio.sleep(0)
        published = time.monotonic_ns()
        await transport.publish([ticket(number)])
        await waiting
        times.append((time.monotonic_ns() - published) / 1e6)
    return times


async def asked_while_idle(place: Place) -> float:
    """Transactions a second that PostgreSQL counts while one worker waits."""
    import asyncpg

    connection: Any = await asyncpg.connect(place.store)
    count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"

    async def counted() -> int:
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return await connection.fetchval(count)

    async with opened(place) as (_, transport):
        while await transport.receive(want=10, timeout=1.0):
            pass
        before = await counted()
        waiting = asyncio.create_task(transport.receive(want=1, timeout=60))
        await asyncio.sleep(IDLE_SECONDS)
        after = await counted()
        waiting.cancel()
        await asyncio.wait([waiting])
    await connection.close()
    return max(0, after - before - 2) / IDLE_SECONDS  # two are our own


async def tickets_a_second(place: Place) -> float:
    async with opened(place) as (_, transport):
        begun = time.monotonic()
        await transport.publish([ticket(f"flood-{number}") for number in range(TICKETS)])
        done = 0
        while done < TICKETS:
            got = await transport.receive(want=100, timeout=10)
            for each in got:
                await each.done()
            done += len(got)
        return TICKETS / (time.monotonic() - begun)


async def measure(rounds: int, session: ServiceSession, stack: ExitStack) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    postgres = Place(stack.enter_context(session.database()), "")
    nats = Place(postgres.store, stack.enter_context(session.nats(account=0, accounts=1)))
    for name, place in (
        ("in process", None),
        ("SQLite file", Place(f"sqlite:///{folder / 'foliot.db'}", "")),
        ("PostgreSQL", postgres),
        ("NATS JetStream", nats),
    ):
        times = await (in_process(rounds) if place is None else between_processes(place, rounds))
        median, worst = statistics.median(times), statistics.quantiles(times, n=100)[98]
        VERDICT.hold(f"publish to woken, {name}, p50", median, "ms", most=AIMS[name])
        line(f"publish to woken, {name}", f"p50 {median:.2f} ms, p99 {worst:.2f} ms (aim {AIMS[name]:g})")
    idle = await asked_while_idle(postgres)
    VERDICT.hold("what an idle worker asks of PostgreSQL", idle, "a second", most=1.0)
    line("what an idle worker asks of PostgreSQL", f"{idle:.1f} a second (aim below 1)")
    line("tickets through JetStream, published to done", f"{await tickets_a_second(nats):,.0f} a second")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--note", nargs=2, metavar=("STORE", "NATS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.note:
        asyncio.run(note_arrivals(Place(*arguments.note)))
        return 0
    session = ServiceSession.begin()
    try:
        with ExitStack() as stack:
            asyncio.run(measure(arguments.rounds, session, stack))
            return VERDICT.end()
    finally:
        session.end()


if __name__ == "__main__":
    raise SystemExit(main())
