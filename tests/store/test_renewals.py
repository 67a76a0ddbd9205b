"""Many leases are prolonged in a few statements, and one that is lost, locked or deleted costs none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from foliot.store.base import Database
from foliot.store.journal.base import Entry, Lease, LeaseLost, NewRun, Renewal, RunHeld, StoreSetBack
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.leases import renew
from foliot.store.open import open_database
from foliot.store.postgres.database import PostgresDatabase
from tests.conformance.claims import add

FIRST = [Entry(1, 1.0, "run.created", b"{}")]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request: Any, tmp_path: Any) -> AsyncIterator[Database]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = await open_database(url)
    yield opened
    await opened.close()


@pytest.fixture
def journal(database: Database) -> SqlJournal:
    return SqlJournal(database)


async def born(journal: SqlJournal, run_id: str) -> Lease:
    new = NewRun(run_id, "default", "clerk", "sha256:0", 1.0)
    lease = await journal.create(new, FIRST, worker="w", lease_until=100.0)
    assert lease is not None
    return lease


async def ended(journal: SqlJournal, run_id: str, *, by: str) -> None:
    lease = await journal.claim(run_id, worker=by, now=150.0, until=180.0)
    await journal.append(lease, [Entry(2, 2.0, "run.cancelled", b"{}")], phase="cancelled")


async def test_a_deleted_run_is_lost_and_no_other(journal: SqlJournal) -> None:
    deleted, kept = await born(journal, "deleted"), await born(journal, "kept")
    await ended(journal, "deleted", by="another")
    await journal.forget("deleted")
    assert await journal.renew([deleted, kept], until=200.0) == Renewal({"deleted"})
    with pytest.raises(RunHeld):
        await journal.claim("kept", worker="w2", now=190.0, until=220.0)
    for entries in ([Entry(2, 2.0, "x", b"{}")], []):
        with pytest.raises(LeaseLost) as lost:
            await journal.append(deleted, entries, phase="pending")
        assert not isinstance(lost.value, StoreSetBack)


async def test_the_key_of_a_deleted_run_gives_nobody_another_run(journal: SqlJournal) -> None:
    """SQLite gives the highest key again: with the same worker and epoch nothing but the id tells the two apart."""
    old = await born(journal, "old")
    await ended(journal, "old", by="another")
    await journal.forget("old")
    new = await born(journal, "new")
    assert (await journal.renew([old], until=900.0)).lost == {"old"}
    with pytest.raises(LeaseLost):
        await journal.append(old, [], phase="pending")
    assert (await journal.get("new")).lease_until == 100.0
    await journal.append(new, [Entry(2, 2.0, "x", b"{}")])


@pytest.mark.services
@pytest.mark.parametrize("table", ["run WHERE id", "queue WHERE run_id"])
async def test_a_row_that_somebody_keeps_locked_costs_no_other(postgres_url: str, table: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    journal = SqlJournal(database)
    await add(database, "locked", "free", "taken")
    leases = [await journal.claim(name, worker="w", now=10.0, until=40.0) for name in ("locked", "free", "taken")]
    await journal.claim("taken", worker="another", now=50.0, until=90.0)
    client = await asyncpg.connect(postgres_url)
    try:
        async with client.transaction():
            await client.execute(f"SELECT 1 FROM {table} = 'locked' FOR UPDATE")
            # The server would wait 3 s for the lock, and then nothing of it all would be stored.
            passed_by = {"locked"} if table.startswith("run ") else set()
            assert await asyncio.wait_for(journal.renew(leases, until=90.0), 60) == Renewal({"taken"}, passed_by)
            assert (await journal.get("free")).lease_until == 90.0
        assert await journal.renew(leases, until=95.0) == Renewal({"taken"})
        assert (await journal.get("locked")).lease_until == 95.0
    finally:
        await client.close()
        await database.close()


@pytest.mark.services
async def test_a_locked_row_that_another_took_is_lost(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    journal = SqlJournal(database)
    lease = await born(journal, "r1")
    await journal.claim("r1", worker="another", now=150.0, until=180.0)
    client = await asyncpg.connect(postgres_url)
    try:
        async with client.transaction():
            await client.execute("SELECT 1 FROM run FOR UPDATE")
            assert await journal.renew([lease], until=190.0) == Renewal({"r1"})
    finally:
        await client.close()
        await database.close()


def test_a_thousand_leases_take_as_many_statements_as_one() -> None:
    leases = [Lease(f"r{key}", key, 1, "w", 100.0, queued=True) for key in range(1000)]
    held = [{"key": lease.key, "id": lease.run_id, "epoch": 1, "worker": "w", "last_seq": 1} for lease in leases]
    body = renew(leases, 200.0)
    done = [next(body).name, body.send(held).name, body.send(len(held)).name]
    assert done == ["run_renewable", "run_renew", "queue_prolong"]
    with pytest.raises(StopIteration) as end:
        body.send(len(held))
    assert end.value.value == Renewal()
