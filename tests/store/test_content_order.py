"""Content that many add at once: in one order, whoever brings it, so that no two transactions wait for each other.

On PostgreSQL whoever adds a digest that another transaction is adding waits until that one ends. Here two processes
store the same new texts, specs and pins at the same moment, as they come and the other way round, together with the
rows of runs, folders, sessions and heads that belong to them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.run.spec import digest
from foliot.store.audit.log import append_records
from foliot.store.content import keep_content, keep_definitions
from foliot.store.folders import FolderChange, FolderKey, change_body
from foliot.store.journal.base import Entry, Lease, LockingBody, NewRun
from foliot.store.journal.database import SqlJournal, create_runs
from foliot.store.journal.stored_events import LARGE
from foliot.store.postgres.batches import BodyBatch, Part
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.queries import locks_of
from foliot.store.sessions.assets import Asset, SqlAssets
from foliot.store.sessions.base import NewSession, Place
from foliot.store.sessions.database import SqlSessions
from foliot.store.transaction import LOCK_ORDER, Statement, Tx, one, rows

NOW = 1000.0
ROUNDS = 6
CROWD = 32
WHO = dict.fromkeys(("namespace", "agent", "tool", "run_id", "call_id", "outcome"), "x")


def record() -> Tx[None]:
    yield from one("revision_lock")
    yield from append_records([{**WHO, "at": NOW, "moment": "x"}])


def some(prefix: str, number: int, count: int = 4) -> list[bytes]:
    """Contents that all members of a crowd store, in the one order or in the other."""
    found = [f"{prefix}-{each}".encode() for each in range(count)]
    return found if number % 2 else found[::-1]


def by_digest(contents: Sequence[bytes]) -> dict[str, bytes]:
    return {digest(each): each for each in contents}


def large(seq: int, text: bytes) -> Entry:
    """An event whose text stands apart."""
    return Entry(seq, NOW, "tool.finished", b'{"type":"tool.finished","text":"%b"}' % text.ljust(LARGE + 1, b"x"))


def created(name: str, spec: bytes) -> tuple[NewRun, list[Entry]]:
    new = NewRun(name, "default", "writer", digest(spec), NOW, content={digest(spec): spec})
    return new, [Entry(1, NOW, "run.created", b'{"type":"run.created","input":[]}')]


class Member:
    """One of a crowd: a run with files, a folder and a session of its own, and with content that all of them have."""

    def __init__(self, database: PostgresDatabase, place: str, number: int) -> None:
        self.database = database
        self.journal = SqlJournal(database)
        self.place = place
        self.number = number
        self.name = f"{place}-{number}"

    def of_all(self, what: str, count: int = 4) -> list[bytes]:
        return some(f"{self.place}-{what}", self.number, count)

    async def work(self) -> None:
        lease = await self.begin()
        await self.journal.append(lease, [large(2, self.of_all("a")[0]), large(3, self.of_all("a")[-1])])
        files = asyncio.gather(self.attach(), self.journal.put_blobs(self.of_all("files")))
        await self.keep_folder(lease)
        await files
        await self.end(lease)

    async def begin(self) -> Lease:
        told = by_digest(self.of_all("told"))
        spec = self.of_all("spec")[0]
        first = [Entry(1, NOW, "run.created", b'{"type":"run.created","input":[]}')]
        new = NewRun(self.name, "default", "writer", digest(spec), NOW, content={**told, digest(spec): spec})
        lease = await self.journal.create(new, first, worker="w", lease_until=2e9, in_transaction=record)
        assert lease is not None
        return lease

    async def attach(self) -> None:
        await SqlSessions(self.database).create(
            NewSession(self.name, Place("default", "writer", self.name, "x")), now=NOW
        )
        content = by_digest(self.of_all("files"))
        (first, *_) = content
        await SqlAssets(self.database).add(self.name, Asset(first, "a.txt", 1, "text/plain"), content, now=NOW)

    async def keep_folder(self, lease: Lease) -> None:
        content = by_digest(self.of_all("files"))
        key, tree = FolderKey("default", self.name), next(iter(content))
        change = FolderChange(key, "", "", tree, 1, 1, content.keys(), content, "life", self.name)
        entry = Entry(4, NOW, "folder.changed", b"{}")
        await self.journal.append(lease, [entry], in_transaction=change_body(change, NOW))

    async def end(self, lease: Lease) -> None:
        """Ends the run with a long answer; runs of new definitions follow, as in a task."""

        def locks() -> Tx[None]:
            yield from rows("task_lock", key=self.number)

        def then() -> Tx[None]:
            following = [
                created(f"{self.name}-{each}", spec) for each, spec in enumerate(self.of_all("next", 3), self.number)
            ]
            yield from create_runs(following, NOW, definitions=by_digest(self.of_all("plan", 2)))
            yield from record()

        entries = [large(5, self.of_all("b")[0]), large(6, self.of_all("b")[-1])]
        await self.journal.append(lease, entries, phase="succeeded", in_transaction=LockingBody(locks, then))


def put_in_a_batch(contents: set[int], definitions: set[int], key: int) -> Tx[int]:
    yield from rows("run_lock", keys=json.dumps([key]))
    yield from keep_content({f"{each}": b"" for each in contents}, NOW)
    yield from keep_definitions({f"{each}": b"" for each in definitions}, NOW)
    yield from one("revision_lock")
    return key


NAMES = st.sets(st.integers(0, 9), max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6))
def test_bodies_of_one_transaction_add_their_content_together_and_none_is_left_out(
    wanted: list[tuple[set[int], set[int]]],
) -> None:
    calls: list[list[Statement]] = []
    stored: set[str] = set()

    async def execute(_: Sequence[Part], statements: Sequence[Statement]) -> list[Any]:
        name = statements[0].name
        given: list[Any] = [each.params for each in statements]
        if name == "blob_hold":
            return [[{}] if params["digest"] in stored else [] for params in given]
        calls.append([*statements])
        if name in ("blob_put", "definition_put"):
            stored.update(row["digest"] for params in given for row in params)
        return [[] for _ in statements]

    bodies = [put_in_a_batch(*each, key) for key, each in enumerate(wanted)]
    assert asyncio.run(BodyBatch(execute).run(bodies)) == [*range(len(wanted))]
    names = [call[0].name for call in calls]
    for name in ("blob_put", "definition_put"):
        assert names.count(name) <= 1, "one statement for all of them, so that PostgreSQL adds them in order"
    levels = [locks.level for name in names if (locks := locks_of(name)) is not None]
    assert levels == sorted(levels)


def test_content_comes_behind_the_rows_of_a_transaction_and_before_the_heads() -> None:
    places = [LOCK_ORDER.index(level) for level in ("run", "content", "definition", "pin", "revision", "audit")]
    assert places == sorted(places)
    for name, level in (("blob_put", "content"), ("definition_put", "definition"), ("run_pin_add", "pin")):
        locks = locks_of(name)
        assert locks is not None
        assert (LOCK_ORDER[locks.level], locks.params) == (level, ("digest",))


# --- on a real PostgreSQL --------------------------------------------------------------------------------------------


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the transactions that were undone, by the error that undid them."""
    found: Counter[str] = Counter()
    transact = PostgresDatabase._transact

    async def watched(self: PostgresDatabase, batch: list[Any]) -> list[Any]:
        try:
            return await transact(self, batch)
        except Exception as error:
            found[type(error).__name__] += 1
            raise

    monkeypatch.setattr(PostgresDatabase, "_transact", watched)
    return found


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[list[PostgresDatabase]]:
    opened = [await PostgresDatabase.open(postgres_url) for _ in range(2)]
    yield opened
    for database in opened:
        await database.close()


async def test_a_crowd_that_adds_the_same_content_in_opposite_orders_meets_no_deadlock(
    databases: list[PostgresDatabase], undone: Counter[str]
) -> None:
    for place in range(ROUNDS):
        crowd = [Member(databases[number // 2 % 2], f"p{place}", number) for number in range(CROWD)]
        await asyncio.gather(*(member.work() for member in crowd))
    assert undone[asyncpg.DeadlockDetectedError.__name__] == 0, undone
    journal = SqlJournal(databases[0])
    for number in range(CROWD):
        name = f"p{ROUNDS - 1}-{number}"
        entries = await journal.read(name)
        assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]
        last = Member(databases[0], f"p{ROUNDS - 1}", number)
        assert entries[-1] == large(6, last.of_all("b")[-1])
        assert (await journal.get(f"{name}-{number}")).spec == digest(last.of_all("next", 3)[0])
