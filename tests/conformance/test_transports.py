"""Every transport under the same suite. What happens when servers die is in test_transport_faults.py."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings

from foliot.bus.local import LocalTransport
from foliot.bus.postgres import PostgresTransport
from foliot.bus.store import StoreTransport
from foliot.store.journal import SqlJournal
from foliot.store.open import open_database
from tests.conformance.journal import entry, new_run
from tests.conformance.transports import TransportConformance, check_history, histories


class LocalPlace:
    """One transport for all: there is no other process."""

    names, exact = True, True

    def __init__(self) -> None:
        self.transport = LocalTransport()

    async def open(self):
        return self.transport

    async def tell(self, transport, tickets) -> None:
        await transport.publish(tickets)


class DatabasePlace:
    """Each transport on a database that was opened for it alone, as in a process of its own."""

    names = False

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
