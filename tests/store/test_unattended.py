"""Which runs could go on without anybody driving them, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.store.base import Database
from foliot.store.journal.base import Entry, Lease, NewRun, Signal
from foliot.store.journal.database import SqlJournal
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.queue.queue import PAGE, unattended
from foliot.store.sqlite.database import SqliteDatabase

NOW = 1000.0


class Shop:
    """Makes runs as they are left by those who drove them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.journal = SqlJournal(database)

    async def held(self, run_id: str, *, until: float, worker: str = "alive", **more: object) -> Lease:
        namespace = str(more.pop("namespace", "default"))
        run = NewRun(run_id, namespace, "writer", "sha256:0", NOW, **more)  # type: ignore[arg-type]  # of the test
        first = [Entry(1, NOW, "run.created", b"{}")]
        lease = await self.journal.create(run, first, worker=worker, lease_until=until)
        assert lease is not None
        return lease

    async def waiting(self, run_id: str, until: float | None) -> None:
        lease = await self.held(run_id, until=NOW + 60)
        asked = {"reason": "approval", "owner": "person", "until": until}
        await self.journal.append(lease, [], phase="waiting", summary={"steps": 1, "waiting": asked})

    async def found(self, *namespaces: str) -> list[str]:
        found = await unattended(
            self._database, now=NOW, is_gone=lambda worker: worker == "dead", namespaces=namespaces
        )
        return [each.run_id for each in found]


class Unattended:
    """What both databases must find. Subclass it and give a `shop`."""

    async def test_a_run_is_found_when_it_was_let_go_or_its_holder_is_gone(self, shop: Shop) -> None:
        await shop.held("driven", until=NOW + 60)
        await shop.held("late", until=NOW - 1)
        await shop.held("orphaned", until=NOW + 60, worker="dead")
        await shop.journal.append(await shop.held("let-go", until=NOW + 60), [], phase="pending")
        await shop.journal.append(await shop.held("over", until=NOW + 60), [], phase="succeeded")

        assert await shop.found() == ["late", "orphaned", "let-go"]

    async def test_a_run_that_waits_is_found_when_its_time_has_come_or_it_was_told_something(self, shop: Shop) -> None:
        await shop.waiting("for-ever", None)
        await shop.waiting("for-later", NOW + 1)
        await shop.waiting("until-now", NOW)
        await shop.waiting("told", None)
        await shop.journal.signal(Signal("s1", "told", NOW, "run.cancel_requested", b"{}"))

        assert await shop.found() == ["until-now", "told"]

    async def test_what_a_run_delegated_is_its_parents_to_go_on_with_and_a_fork_is_not(self, shop: Shop) -> None:
        await shop.held("child", until=NOW - 1, parent="boss")
        await shop.held("fork", until=NOW - 1, parent="boss", parent_seq=3)

        assert await shop.found() == ["fork"]

    async def test_only_those_of_the_namespaces_asked_for_are_found(self, shop: Shop) -> None:
        for name in ("a", "b", "c"):
            await shop.held(f"in-{name}", until=NOW - 1, namespace=name)

        assert await shop.found("a", "c") == ["in-a", "in-c"]

    async def test_more_than_a_page_of_them_are_found_oldest_first(self, shop: Shop) -> None:
        names = [f"r{number}" for number in range(PAGE + 3)]
        for name in names:
            await shop.held(name, until=NOW - 1)

        assert await shop.found() == names


class TestSqlite(Unattended):
    @pytest.fixture
    async def shop(self, tmp_path: Path) -> AsyncIterator[Shop]:
        database = await SqliteDatabase.open(tmp_path / "foliot.db")
        yield Shop(database)
        await database.close()


class TestPostgres(Unattended):
    @pytest.fixture
    async def shop(self, postgres_url: str) -> AsyncIterator[Shop]:
        database = await PostgresDatabase.open(postgres_url)
        yield Shop(database)
        await database.close()
