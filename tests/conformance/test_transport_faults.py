"""What becomes of tickets when processes and servers die, freeze and come back. Everything here is real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from foliot.bus.base import Delivery, Transport
from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.bus.nats_stream import StreamPlan
from foliot.bus.postgres import PostgresTransport
from foliot.bus.store import StoreTransport
from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres
from foliot.store.open import open_database
from tests.conformance.transport_process import QUICK
from tests.conformance.transports import SOON, calm, gather, ticket

PROGRAM = Path(__file__).with_name("transport_process.py")


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def open_nats(opened: AsyncExitStack, url: str, plan: StreamPlan = QUICK) -> NatsTransport:
    transport = await NatsTransport.open(NatsLink(NatsOptions(url)), plan)
    opened.push_async_callback(transport.close)
    return transport


async def open_postgres(opened: AsyncExitStack, url: str) -> PostgresTransport:
    database = await open_database(url)
    opened.push_async_callback(database.close)
    transport = PostgresTransport(database)
    opened.push_async_callback(transport.close)
    return transport


@asynccontextmanager
async def worker_process(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), url, stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    try:
        assert await line(process) == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SOON):
        return (await process.stdout.readline()).decode().strip()


async def named(transport: Transport, *, want: int) -> list[Delivery]:
    return await gather(transport, want=want, names=True)


async def rung(transport: Transport) -> None:
    await gather(transport, want=1, names=False)


class TestWorkers:
    async def test_what_a_killed_process_held_goes_to_another(self, nats_url, opened) -> None:
        transport = await open_nats(opened, nats_url)
        async with worker_process(nats_url) as process:
            await transport.publish([ticket(1)])
            assert await line(process) == ticket(1).id
            process.kill()
            await process.wait()

        (again,) = await named(transport, want=1)
        assert again.ticket == ticket(1)

    @pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
    async def test_another_process_is_rung_and_its_death_disturbs_nobody(self, kind, request, tmp_path, opened) -> None:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path / 'foliot.db'}"
            database = await open_database(url)
            opened.push_async_callback(database.close)
            transport: Transport = StoreTransport(database)
            opened.push_async_callback(transport.close)
        else:
            url = request.getfixturevalue("postgres_url")
            transport = await open_postgres(opened, url)
        async with worker_process(url) as process:
            assert await line(process) == "ring"  # whatever was there before it came
            process.kill()
            await process.wait()
        await calm(transport)
        await transport.publish([ticket(1)])
        await rung(transport)

    async def test_a_process_that_says_it_is_still_at_it_keeps_its_ticket(self, nats_url, opened) -> None:
        holder, other = await open_nats(opened, nats_url), await open_nats(opened, nats_url)
        await holder.publish([ticket(1)])
        (held,) = await named(holder, want=1)
        for _ in range(8):  # twice as long as a silent one would keep it
            await held.extend()
            assert list(await other.receive(want=1, timeout=QUICK.ack_wait / 4)) == []
        (now_silent,) = await named(other, want=1)
        assert now_silent.ticket == ticket(1)

    async def test_tickets_that_come_to_someone_who_just_stopped_waiting_go_on(self, nats_url, opened) -> None:
        transport = await open_nats(opened, nats_url, StreamPlan(ack_wait=3600.0))
        chance = random.Random(7)
        got: set[str] = set()
        for number in range(200):
            waiting = asyncio.create_task(transport.receive(want=3, timeout=SOON))
            await transport.publish([ticket(number)])
            await asyncio.sleep(chance.uniform(0, 0.005))
            waiting.cancel()
            await asyncio.wait([waiting])
            for each in [] if waiting.cancelled() else waiting.result():
                assert each.ticket is not None
                got.add(each.ticket.id)
                await each.done()
        rest = await named(transport, want=200 - len(got))
        assert got | {each.ticket.id for each in rest} == {ticket(number).id for number in range(200)}

    async def test_closing_hands_back_what_is_not_done(self, nats_url, opened) -> None:
        patient = StreamPlan(ack_wait=3600.0)
        leaving, staying = await open_nats(opened, nats_url, patient), await open_nats(opened, nats_url, patient)
        await leaving.publish([ticket(number) for number in range(3)])
        done, *kept = await named(leaving, want=3)
        await done.done()
        await leaving.close()
        assert {each.ticket for each in await named(staying, want=2)} == {each.ticket for each in kept}

    async def test_tickets_that_were_just_published_are_sent_before_closing(self, nats_url, opened) -> None:
        brief, other = await open_nats(opened, nats_url), await open_nats(opened, nats_url)
        await brief.publish([ticket(number) for number in range(300)])
        await brief.close()
        assert len({each.ticket for each in await named(other, want=300)}) == 300

    async def test_over_postgresql_closing_rings_the_others_for_what_was_not_looked_for(
        self, postgres_url, opened
    ) -> None:
        leaving, staying = await open_postgres(opened, postgres_url), await open_postgres(opened, postgres_url)
        await calm(leaving)
        await calm(staying)
        await leaving.publish([ticket(1)])
        held = await gather(leaving, want=1, names=False)
        await calm(staying)
        await leaving.close()
        await rung(staying)
        await held[0].done()  # too late, and harmless


Fault = Callable[[Nats], Awaitable[None]]


async def restarted(server: Nats) -> None:
    await asyncio.to_thread(server.restart)


async def killed(server: Nats) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def frozen(server: Nats) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    await asyncio.sleep(1.0)  # the fault itself: for so long the server does not answer
    os.kill(server.pid, signal.SIGCONT)


async def emptied(server: Nats) -> None:
    await asyncio.to_thread(server.kill)
    shutil.rmtree(server.folder / "data")
    await asyncio.to_thread(server.start)


class TestNatsServer:
    @pytest.mark.parametrize("fault", [restarted, killed, frozen])
    async def test_tickets_before_during_and_after_a_fault_all_come(
        self, nats_service: Nats, opened, fault: Fault
    ) -> None:
        sender, receiver = await open_nats(opened, nats_service.url), await open_nats(opened, nats_service.url)
        await sender.publish([ticket(f"before-{number}") for number in range(50)])
        got: set[str] = set()

        async def work() -> None:
            while len(got) < 150:
                for each in await receiver.receive(want=10, timeout=1.0):
                    if each.ticket is not None:
                        got.add(each.ticket.id)
                    await each.done()

        working = asyncio.create_task(work())
        failing = asyncio.create_task(fault(nats_service))
        for number in range(50):
            await sender.publish([ticket(f"during-{number}")])
            await asyncio.sleep(0.01)
        await failing
        await sender.publish([ticket(f"after-{number}") for number in range(50)])

        async with asyncio.timeout(2 * SOON):
            await working
        assert got == {ticket(f"{when}-{number}").id for when in ("before", "during", "after") for number in range(50)}

    async def test_a_server_that_lost_everything_gets_its_stream_again_and_the_worker_a_ring(
        self, nats_service: Nats, opened
    ) -> None:
        sender, receiver = await open_nats(opened, nats_service.url), await open_nats(opened, nats_service.url)
        await sender.publish([ticket("lost")])
        (held,) = await named(receiver, want=1)
        await emptied(nats_service)
        await held.done()

        await rung(receiver)
        await sender.publish([ticket("later")])
        (got,) = await named(receiver, want=1)
        assert got.ticket == ticket("later")

    async def test_while_the_server_is_away_publishing_returns_and_memory_is_bounded(
        self, nats_service: Nats, opened
    ) -> None:
        transport = await open_nats(opened, nats_service.url)
        await asyncio.to_thread(nats_service.kill)
        for first in range(0, 30_000, 1000):
            await transport.publish([ticket(number) for number in range(first, first + 1000)])
        for number in range(30_000):
            await transport.publish([ticket(f"later-{number}", due_at=time.time() + 3600 + number)])
        assert transport.waiting <= 30_000
        assert list(await transport.receive(want=1, timeout=0.1)) == []

    async def test_a_server_that_comes_later_is_waited_for_in_the_background(self, nats_service: Nats, opened) -> None:
        url = nats_service.url
        await asyncio.to_thread(nats_service.stop)
        transport = await NatsTransport.open(NatsLink(NatsOptions(url)), QUICK, patience=0.1)
        opened.push_async_callback(transport.close)
        await transport.publish([ticket(1)])
        await asyncio.to_thread(nats_service.start)
        (got,) = await named(transport, want=1)
        assert got.ticket == ticket(1)

    async def test_closing_while_the_server_is_away_does_not_take_for_ever(self, nats_service: Nats) -> None:
        transport = await NatsTransport.open(NatsLink(NatsOptions(nats_service.url)), QUICK)
        await transport.publish([ticket(1)])
        (held,) = await named(transport, want=1)
        await asyncio.to_thread(nats_service.kill)
        async with asyncio.timeout(SOON):
            await transport.close()
        await held.done()


class TestPostgresServer:
    @pytest.mark.parametrize("polite", [True, False], ids=["restarted", "killed"])
    async def test_rings_go_on_after_the_server_was_away(self, postgres_service: Postgres, opened, polite) -> None:
        sender = await open_postgres(opened, postgres_service.url)
        receiver = await open_postgres(opened, postgres_service.url)
        await calm(receiver)
        await asyncio.to_thread(postgres_service.stop if polite else postgres_service.kill)
        await sender.publish([ticket("during")])
        assert list(await receiver.receive(want=1, timeout=0.1)) == []
        await asyncio.to_thread(postgres_service.start)

        await rung(receiver)  # it listens again, and may have missed something
        await calm(receiver)
        await sender.publish([ticket("after")])
        await rung(receiver)

    async def test_a_frozen_server_delays_rings_and_blocks_nobody(self, postgres_service: Postgres, opened) -> None:
        sender = await open_postgres(opened, postgres_service.url)
        receiver = await open_postgres(opened, postgres_service.url)
        await sender.publish([ticket("first")])
        await calm(receiver)
        stopped = stop_with_children(postgres_service.pid)
        try:
            async with asyncio.timeout(SOON):
                for number in range(1000):
                    await sender.publish([ticket(number)])
                assert list(await receiver.receive(want=1, timeout=0.1)) == []
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        await rung(receiver)


def stop_with_children(pid: int | None) -> list[int]:
    """Stop a process, which starts no more from then on, and those that it started; what ended by itself is left out.

    Who is stopped cannot end any more, so its number stays its own.
    """
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stopped = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGSTOP)
            stopped.append(int(child))
    return stopped
