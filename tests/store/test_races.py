"""Two transactions at once on PostgreSQL, statement by statement: what each may and may not do behind the other's back.

The bodies are the store's own. `Stepper` drives one on a connection of its own as far as the test says, so the order of
statements is the test's and not the scheduler's; "waits" is what the server itself says of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from foliot.errors import Conflict
from foliot.kernel.run.spec import digest
from foliot.store import tasks
from foliot.store.journal import database as journals
from foliot.store.journal import purge as journal_purge
from foliot.store.journal.base import Entry, Lease, NewRun, Signal, SignalsPending
from foliot.store.journal.database import SqlJournal
from foliot.store.postgres.database import PostgresDatabase, _execute
from foliot.store.queue import queue
from foliot.store.queue.queue import QueueItem, enqueue
from foliot.store.tasks import NewTask, TaskChange
from foliot.store.transaction import Tx, run

SPEC = digest(b"spec")
NOW = 1000.0
OLD = NewRun("old", "default", "writer", SPEC, 1.0, content={SPEC: b"spec"})
FIRST = [Entry(1, 1.0, "run.created", b"{}")]


class Stepper:
    """One body on one connection. `upto` runs it until it is about to do a statement; `end` to its end and commits."""

    def __init__(self, connection: asyncpg.Connection, watch: asyncpg.Connection) -> None:
        self._connection = connection
        self._watch = watch
        self._next: Any = None
        self.ended: list[Any] = []

    async def begin(self, body: Callable[..., Tx[Any]], *args: Any, **kwargs: Any) -> None:
        await self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self._body = body(*args, **kwargs)
        self._advance(lambda: next(self._body))

    def _advance(self, step: Callable[[], Any]) -> None:
        try:
            self._next = step()
        except StopIteration as end:
            self._next = None
            self.ended.append(end.value)

    async def upto(self, name: str | None) -> None:
        """Do statements until the next one is `name`; with None all of them."""
        while self._next is not None and self._next.name != name:
            result = await _execute(self._connection, self._next)
            self._advance(lambda result=result: self._body.send(result))
        assert name is None or self._next is not None, f"the body has no statement {name}"

    async def end(self) -> Any:
        try:
            await self.upto(None)
        except BaseException:
            await self._connection.execute("ROLLBACK")
            raise
        await self._connection.execute("COMMIT")
        return self.ended[0]

    async def waits(self) -> None:
        """Return when the server has the connection waiting for a lock."""
        pid = self._connection.get_server_pid()
        async with asyncio.timeout(60):
            while not await self._watch.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid):
                await asyncio.sleep(0)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    opened = await PostgresDatabase.open(postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def steppers(database: PostgresDatabase, postgres_url: str) -> AsyncIterator[tuple[Stepper, Stepper]]:
    first, second, watch = [await asyncpg.connect(postgres_url) for _ in range(3)]
    yield Stepper(first, watch), Stepper(second, watch)
    for connection in (first, second, watch):
        connection.terminate()


async def held(database: PostgresDatabase, run_id: str, *, queued: bool = True) -> Lease:
    """A run of a task that somebody holds."""
    new = NewRun(run_id, "default", "writer", SPEC, NOW, content={SPEC: b"spec"})
    lease = await SqlJournal(database).create(new, [Entry(1, NOW, "run.created", b"{}")], worker="w", lease_until=2e9)
    assert lease is not None
    if not queued:
        return lease
    item = QueueItem(lease.key, run_id, 1, "default", "writer", "", "", 0, NOW)
    await database.write(enqueue, [item])
    await database.write(queue.hold, lease.key, 2e9)
    return Lease(run_id, lease.key, lease.epoch, lease.worker, lease.until, queued=True)


def parked(lease: Lease) -> tuple[Any, ...]:
    return journals._let_go, lease, [Entry(2, NOW, "run.waits", b"{}")], "waiting", None, (), (), None, None


def told(run_id: str) -> tuple[Any, ...]:
    return journals._signal, Signal("s", run_id, NOW, "cancel.requested", b"{}"), None, None


async def due_at(database: PostgresDatabase, run_id: str) -> list[str]:
    return [row["run_id"] for row in await database.read("queue_due", run_ids=f'["{run_id}"]', now=NOW)]


async def test_a_run_that_parks_first_is_woken_by_the_signal(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper]
) -> None:
    parking, telling = steppers
    await parking.begin(*parked(await held(database, "r")))
    await parking.upto("queue_let_go")  # it has looked for signals, and found none
    await telling.begin(*told("r"))
    signalled = asyncio.create_task(telling.end())
    await telling.waits()
    await parking.end()
    await signalled
    assert await due_at(database, "r") == ["r"]


async def test_a_run_does_not_park_beside_a_signal_that_was_first(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper]
) -> None:
    parking, telling = steppers
    await telling.begin(*told("r"))
    lease = await held(database, "r")
    await telling.upto("signal_add")
    await parking.begin(*parked(lease))
    let_go = asyncio.create_task(parking.end())
    await parking.waits()
    await telling.end()
    with pytest.raises(SignalsPending):
        await let_go


@pytest.mark.parametrize("queued", [False, True])
async def test_a_run_is_given_back_while_an_append_of_its_holder_is_still_under_way(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper], queued: bool
) -> None:
    """Whoever is closed in the middle of a run no longer waits for what was being written, and gives the run back."""
    writing, leaving = steppers
    lease = await held(database, "r", queued=queued)
    await writing.begin(journals._append, lease, [Entry(2, NOW, "input.received", b"{}")], None, None, ())
    await writing.upto("event_add")
    body = (journals._let_go, lease, [], "pending", None, (), (), None, None)
    await leaving.begin(*body if queued else (journals._append, lease, [], "pending", None, ()))
    left = asyncio.create_task(leaving.end())
    await leaving.waits()
    await writing.end()
    await left
    info = await SqlJournal(database).get("r")
    assert (info.phase, info.worker) == ("pending", None)


async def test_whatever_waits_unheard_is_made_due(database: PostgresDatabase) -> None:
    lease = await held(database, "r")
    await database.write(queue.let_go, lease.key, None)
    await database.write(run, "signal_add", id="s", run_id="r", at=NOW, type="x", data=b"{}")
    assert await queue.wake_unheard(database, NOW) == 1
    assert await due_at(database, "r") == ["r"]
    assert await queue.wake_unheard(database, NOW) == 0


# --- purge -------------------------------------------------------------------------------------------------------


async def left_behind(database: PostgresDatabase) -> None:
    """The definition of a run that was forgotten: old, and nobody's."""
    journal = SqlJournal(database)
    lease = await journal.create(OLD, FIRST, worker="w", lease_until=2.0)
    assert lease is not None
    await journal.append(lease, [Entry(2, 2.0, "run.ended", b"{}")], phase="succeeded")
    await journal.forget("old")
    await database.write(journal_purge._purge_pins, [1])


def created(run_id: str) -> tuple[Any, ...]:
    new = NewRun(run_id, "default", "writer", SPEC, NOW, content={SPEC: b"spec"})
    return journals.create_runs, [(new, [Entry(1, NOW, "run.created", b"{}")])], NOW


async def test_a_definition_that_is_purged_while_a_run_begins_with_it_is_stored_again(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper]
) -> None:
    purging, creating = steppers
    await left_behind(database)
    await purging.begin(journal_purge._purge_content, [SPEC], NOW)
    await purging.upto("purge_held")
    await creating.begin(*created("new"))
    begun = asyncio.create_task(creating.end())
    await creating.waits()
    assert await purging.end() == 1
    await begun
    assert await SqlJournal(database).get_blob(SPEC) == b"spec"
    assert await SqlJournal(database).purge(ended_before=NOW) == 0
    assert await SqlJournal(database).get_blob(SPEC) == b"spec"


async def test_a_pin_that_a_run_begins_with_is_not_purged(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper]
) -> None:
    purging, creating = steppers
    await database.write(*created("old"))
    await database.write(run, "purge_runs", keys='["1"]')
    await creating.begin(*created("new"))
    await creating.upto("event_add")
    await purging.begin(journal_purge._purge_pins, [1])
    assert await purging.end() == 0
    await creating.end()
    assert (await SqlJournal(database).get("new")).spec == SPEC


@pytest.mark.parametrize("upto", ["event_add", None])
async def test_a_definition_that_a_run_begins_with_is_not_purged(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper], upto: str | None
) -> None:
    purging, creating = steppers
    await left_behind(database)
    await creating.begin(*created("new"))
    await creating.upto(upto)
    await purging.begin(journal_purge._purge_content, [SPEC], NOW)
    assert await purging.end() == 0
    await creating.end()
    assert await SqlJournal(database).get_blob(SPEC) == b"spec"


async def test_content_that_is_used_again_is_young_again(database: PostgresDatabase) -> None:
    digest = await SqlJournal(database, clock=lambda: 1.0).put_blob(b"kept")
    await SqlJournal(database, clock=lambda: NOW).put_blob(b"kept")
    await SqlJournal(database).purge(ended_before=NOW - 1)
    assert await SqlJournal(database).get_blob(digest) == b"kept"


async def test_a_run_owns_what_its_history_names(database: PostgresDatabase) -> None:
    journal = SqlJournal(database, clock=lambda: 1.0)
    digest = await journal.put_blob(b"a long result")
    told = f'[{{"text": "the whole is kept as {digest}"}}]'.encode()
    new = NewRun("r", "default", "writer", SPEC, 1.0, content={SPEC: b"spec", "sha256:1": told})
    await journal.create(new, FIRST)
    await journal.purge(ended_before=NOW)
    assert await journal.get_blob(digest) == b"a long result"


async def ended_task(database: PostgresDatabase) -> int:
    new = NewTask("u", "default", "t", "Agent", "writer", None, "", 0, "", "", "", {}, "{}", "p", b"", {}, None, 1.0)

    def body() -> Tx[int]:
        key = yield from tasks.add_task(new, [])
        assert key is not None
        row = yield from tasks.lock(key)
        yield from tasks.change(row, TaskChange("failed", 1, b"", {}, None, None, 2.0, [("x", b"{}")]), 2.0)
        return key

    return await database.write(body)


def requeue(key: int) -> Tx[None]:
    row = yield from tasks.lock(key)
    yield from tasks.change(row, TaskChange("queued", 2, b"", {}, None, None, None, [("x", b"{}")]), NOW)


async def test_a_task_that_is_requeued_is_not_purged(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper]
) -> None:
    asking, purging = steppers
    key = await ended_task(database)
    await asking.begin(requeue, key)
    await asking.upto("task_event_add")
    await purging.begin(tasks.purge_ended, [key], NOW)
    assert (await purging.end()).tasks == 0
    await asking.end()
    assert (await database.read("task_by_key", key=key)) != []


async def test_a_task_that_is_purged_is_not_requeued(
    database: PostgresDatabase, steppers: tuple[Stepper, Stepper]
) -> None:
    asking, purging = steppers
    key = await ended_task(database)
    await purging.begin(tasks.purge_ended, [key], NOW)
    await purging.upto("task_delete")
    await asking.begin(requeue, key)
    asked = asyncio.create_task(asking.end())
    await asking.waits()
    assert (await purging.end()).tasks == 1
    with pytest.raises(Conflict, match="deleted"):
        await asked
