"""The transport over a database that says no more than that something was committed."""

from __future__ import annotations

from foliot.bus.store import StoreTransport
from foliot.store.sqlite.database import SqliteDatabase
from tests.conformance.claims import add


async def test_a_commit_during_the_pause_rings_although_others_have_read_it(tmp_path) -> None:
    mine, theirs = [await SqliteDatabase.open(tmp_path / "foliot.db") for _ in range(2)]
    transport = StoreTransport(mine, pace=0.5)
    assert await transport.receive(want=1, timeout=20.0)  # what was there before anyone watched
    await add(theirs, "r1")
    assert await transport.receive(want=1, timeout=20.0)  # and now it pauses
    await add(theirs, "r2")
    await mine.read("queue_depth", now=0.0)
    assert await transport.receive(want=1, timeout=10.0)
    await transport.close()
    await mine.close()
    await theirs.close()
