"""A PostgreSQL that goes silent without a word: every wait ends, the pool heals, and nobody keeps a lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import asyncpg
import pytest

from foliot.common.waits import Waits
from foliot.errors import Unavailable
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.transaction import Tx, run
from simulators.proxy import Proxy

T = TypeVar("T")

WAITS = Waits(lease=6.0)
# Far more than any bound here, for a busy machine; without bounds nothing would ever end.
ENDS = 60.0


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: Proxy) -> AsyncIterator[PostgresDatabase]:
    opened = await PostgresDatabase.open(proxy.url, WAITS)
    yield opened
    await asyncio.wait_for(opened.close(), ENDS)


def put(name: str, text: str) -> Tx[int]:
    return (yield from run("setting_put", name=name, value=text))


async def test_reads_and_writes_end_and_the_pool_heals(database: PostgresDatabase, proxy: Proxy) -> None:
    await patiently(lambda: database.write(put, "a", "before"))
    proxy.silence()
    waits = [database.write(put, f"n{number}", "x") for number in range(200)]
    waits += [asyncio.ensure_future(database.read("setting_get", name="a")) for _ in range(20)]
    async with asyncio.timeout(ENDS):
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    proxy.pass_through()
    assert await patiently(lambda: database.read("setting_get", name="a")) == [{"value": "before"}]


async def test_a_caller_that_gives_up_does_not_wait_for_a_silent_server(
    database: PostgresDatabase, proxy: Proxy
) -> None:
    """As the health of a server does; it hung, because the driver waits for the server to hear of it."""
    await patiently(lambda: database.read("setting_get", name="a"))
    proxy.silence()
    reading = asyncio.ensure_future(database.read("setting_get", name="a"))
    await proxy.swallowed()
    reading.cancel()
    await asyncio.wait({reading}, timeout=WAITS.attempt / 4)
    assert reading.cancelled()


async def test_it_can_be_closed_in_silence(proxy: Proxy) -> None:
    database = await PostgresDatabase.open(proxy.url, WAITS)
    listening = asyncio.ensure_future(database.wait_for_change(database.change_mark(), timeout=ENDS))
    await patiently(lambda: database.write(put, "a", "1"))
    proxy.silence()
    waits = [database.write(put, "a", "2"), asyncio.ensure_future(database.read("setting_get", name="a")), listening]
    await proxy.swallowed()
    await asyncio.wait_for(database.close(), ENDS)
    await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), ENDS)


@pytest.mark.parametrize("silently", [False, True])
async def test_a_commit_whose_answer_is_lost_is_told_so_and_not_repeated(
    database: PostgresDatabase, proxy: Proxy, silently: bool
) -> None:
    runs = 0

    def counted() -> Tx[None]:
        nonlocal runs
        runs += 1
        yield from run("setting_put", name="a", value=str(runs))

    proxy.cut_after(silently=silently)
    with pytest.raises(Unavailable, match="may or may not be stored"):
        await asyncio.wait_for(database.write(counted), ENDS)
    assert await patiently(lambda: database.read("setting_get", name="a")) == [{"value": "1"}]
    assert runs == 1


async def test_a_client_that_is_gone_without_a_word_keeps_no_lock(
    database: PostgresDatabase, proxy: Proxy, postgres_url: str
) -> None:
    await patiently(lambda: database.write(put, "a", "before"))

    def cut_off() -> Tx[None]:
        yield from run("setting_put", name="a", value="half")
        proxy.silence()  # the lock is taken, and no more is heard of whoever took it
        yield from run("setting_put", name="b", value="half")

    with pytest.raises(Unavailable):
        await asyncio.wait_for(database.write(cut_off), ENDS)
    direct = await asyncpg.connect(postgres_url)
    try:
        await asyncio.wait_for(direct.execute("UPDATE setting SET value = 'theirs' WHERE name = 'a'"), ENDS)
        assert await direct.fetchval("SELECT value FROM setting WHERE name = 'a'") == "theirs"
        assert await direct.fetchval("SELECT COUNT(*) FROM setting WHERE name = 'b'") == 0
    finally:
        await direct.close()


async def test_what_the_operator_has_set_lower_stays(postgres_url: str) -> None:
    database = await PostgresDatabase.open(f"{postgres_url}?statement_timeout=700", WAITS)
    try:
        async with database._connections.hold() as connection:  # pyright: ignore[reportPrivateUsage]
            assert await connection.fetchval("SHOW statement_timeout") == "700ms"
            assert await connection.fetchval("SHOW lock_timeout") == "600ms"
    finally:
        await database.close()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What is asked of a server that speaks. On a busy machine that may take longer than the bounds of these tests."""
    async with asyncio.timeout(ENDS):
        while True:
            try:
                return await ask()
            except Unavailable:
                continue


@pytest.mark.parametrize("lease", [6.0, 30.0, 3600.0])
def test_whoever_comes_to_an_end_does_so_well_within_a_lease(lease: float) -> None:
    waits = Waits(lease)
    assert waits.inquiry < waits.child < waits.stop <= min(lease / 4, 5.0)
