"""Every transport under the same suite. What happens when servers die is in test_transport_faults.py."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, given, settings

from foliot.bus.local import LocalTransport
from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.bus.nats_stream import StreamPlan
from foliot.bus.postgres import PostgresTransport
from foliot.bus.store import StoreTransport
from foliot.store.journal.database import SqlJournal
from foliot.store.open import open_database
from tests.conformance.journal import entry, new_run
from tests.conformance.transports import TransportConformance, check_history, histories


class LocalPlace:
    """One transport for all: there is no other process."""

    names, exact, flood = True, True, 10_000

    def __init__(self) -> None:
        self.transport = LocalTransport()

    async def open(self):
        return self.transport

    async def tell(self, transport, tickets) -> None:
        await transport.publish(tickets)


class DatabasePlace:
    """Each transport on a database that was opened for it alone, as in a process of its own."""

    names, flood = False, 10_000

    def __init__(self, url: str, make, stack: AsyncExitStack, *, exact: bool) -> None:
        self._url = url
        self._make = make
        self._stack = stack
        self._databases = {}
        self._runs = 0
        self.exact = exact

    async def open(self):
        database = await open_database(self._url)
        self._stack.push_async_callback(database.close)
        transport = self._make(database)
        self._stack.push_async_callback(transport.close)
        self._databases[transport] = database
        return transport

    async def tell(self, transport, tickets) -> None:
        journal = SqlJournal(self._databases[transport], clock=lambda: 0.0)
        self._runs += 1
        await journal.create(new_run(f"run-{self._runs}"), [entry(1)])
        await transport.publish(tickets)


class NatsPlace:
    """Each transport on a connection of its own, all on one stream. Each message is synced to the disk."""

    names, exact, flood = True, True, 500

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def open(self, plan: StreamPlan | None = None):
        transport = await NatsTransport.open(NatsLink(NatsOptions(self._url)), plan)
        self._stack.push_async_callback(transport.close)
        return transport

    async def tell(self, transport, tickets) -> None:
        await transport.publish(tickets)


class TestLocal(TransportConformance):
    @pytest.fixture
    async def place(self):
        place = LocalPlace()
        yield place
        await place.transport.close()

    @settings(deadline=None)
    @given(histories)
    def test_whatever_happens_each_ticket_comes_until_it_is_done(self, history) -> None:
        asyncio.run(check_history(LocalTransport(), history, prefix="p"))


class TestSqlite(TransportConformance):
    @pytest.fixture
    async def place(self, tmp_path):
        async with AsyncExitStack() as stack:
            yield DatabasePlace(f"sqlite:///{tmp_path / 'foliot.db'}", StoreTransport, stack, exact=False)


class TestPostgres(TransportConformance):
    @pytest.fixture
    async def place(self, postgres_url):
        async with AsyncExitStack() as stack:
            yield DatabasePlace(postgres_url, PostgresTransport, stack, exact=True)


class TestNats(TransportConformance):
    @pytest.fixture
    async def place(self, nats_url):
        async with AsyncExitStack() as stack:
            yield NatsPlace(nats_url, stack)

    @settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(history=histories)
    def test_whatever_happens_each_ticket_comes_until_it_is_done(self, nats_url, history) -> None:
        name = secrets.token_hex(4)

        async def check() -> None:
            async with AsyncExitStack() as stack:
                plan = StreamPlan(stream=f"S{name}", prefix=f"p{name}")
                transport = await NatsPlace(nats_url, stack).open(plan)
                await check_history(transport, history, prefix=name)

        asyncio.run(check())
