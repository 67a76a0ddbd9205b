"""The revision of the store is known without asking the database again, and is never older than the question."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foliot.store.base import Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sqlite.database import SqliteDatabase


def memory(name: str) -> Put:
    return Put({"apiVersion": "foliot.dev/v1", "kind": "Memory", "metadata": {"name": name, "namespace": "default"}})


def no_keys() -> Any:
    raise AssertionError("no secret is written here")


@pytest.fixture
async def database(tmp_path):
    opened = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield opened
    await opened.close()


class Counted:
    """A database that counts reads."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.reads = 0
        self.looks = 0
        self.write = database.write

    def version(self) -> Any:
        self.looks += 1
        return self._database.version()

    async def read(self, name: str, /, **params: Any) -> Any:
        self.reads += 1
        return await self._database.read(name, **params)


async def test_it_is_read_once_for_as_long_as_nobody_commits(database) -> None:
    counted = Counted(database)
    store = SqlResourceStore(counted, no_keys)
    assert [await store.revision() for _ in range(5)] == [0] * 5
    assert counted.reads == 1


async def test_all_who_ask_in_one_turn_share_a_look_and_the_next_turn_has_its_own(database) -> None:
    counted = Counted(database)
    store = SqlResourceStore(counted, no_keys)
    for turn in (1, 2, 3):
        assert await asyncio.gather(*(store.revision() for _ in range(10))) == [0] * 10
        assert counted.looks == turn


async def test_whoever_is_woken_from_outside_in_the_same_turn_of_the_loop_looks_again(database) -> None:
    """A look is forgotten before anything has its turn that was put in line after it."""
    store = SqlResourceStore(database, no_keys)
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    committed = asyncio.Event()

    async def told() -> int:
        await woken
        return await store.revision()

    waits = asyncio.create_task(told())
    await asyncio.sleep(0)
    assert await store.revision() == 0
    writes = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(_write_elsewhere(database.path))))
    writes.add_done_callback(lambda _: (committed.set(), woken.set_result(None)))
    while not committed.is_set():
        assert await store.revision() in (0, 1)
        await asyncio.sleep(0)
    assert await waits == 1


async def _write_elsewhere(path) -> None:
    other = await SqliteDatabase.open(path)
    try:
        await SqlResourceStore(other, no_keys).write([memory("m1")])
    finally:
        await other.close()


async def test_a_change_of_another_process_is_seen_by_the_next_question(database) -> None:
    store = SqlResourceStore(database, no_keys)
    other = await SqliteDatabase.open(database.path)
    elsewhere = SqlResourceStore(other, no_keys)
    try:
        for number in range(1, 6):
            await elsewhere.write([memory(f"m{number}")])
            assert await store.revision() == number
    finally:
        await other.close()


async def test_a_change_of_this_process_is_seen_by_the_next_question(database) -> None:
    store = SqlResourceStore(database, no_keys)
    for number in range(1, 6):
        await store.write([memory(f"m{number}")])
        assert await store.revision() == number


async def test_each_thread_compares_with_what_it_saw_itself(database) -> None:
    store = SqlResourceStore(database, no_keys)
    assert await store.revision() == 0
    await store.write([memory("m1")])
    assert await asyncio.to_thread(lambda: asyncio.run(store.revision())) == 1
    await store.write([memory("m2")])
    assert await store.revision() == 2
    assert await asyncio.to_thread(lambda: asyncio.run(store.revision())) == 2


class Remote:
    """A database far away: a read takes until the test lets it go, and answers with what was true when it began."""

    def __init__(self) -> None:
        self.revision = 0
        self.begun: list[asyncio.Future[None]] = []

    def version(self) -> None:
        return None

    async def read(self, name: str, /, **params: Any) -> list[dict[str, int]]:
        found = self.revision
        gate = asyncio.get_running_loop().create_future()
        self.begun.append(gate)
        await gate
        return [{"revision": found}]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_ask_while_a_round_trip_is_under_way_share_the_next_one() -> None:
    remote = Remote()
    store = SqlResourceStore(remote, no_keys)
    first = asyncio.create_task(store.revision())
    await settled()
    remote.revision = 1
    others = [asyncio.create_task(store.revision()) for _ in range(20)]
    await settled()
    assert len(remote.begun) == 1, (
        "nobody is answered by a question that is older than his own, and none is asked twice"
    )
    remote.begun[0].set_result(None)
    await settled()
    assert len(remote.begun) == 2
    remote.begun[1].set_result(None)

    assert await first == 0
    assert set(await asyncio.gather(*others)) == {1}


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    remote = Remote()
    store = SqlResourceStore(remote, no_keys)
    gives_up, stays = asyncio.create_task(store.revision()), asyncio.create_task(store.revision())
    await settled()
    gives_up.cancel()
    await settled()
    remote.begun[0].set_result(None)
    assert await stays == 0
    assert gives_up.cancelled()


async def test_a_look_that_fails_is_told_to_all_who_asked_and_the_next_one_is_made_anew() -> None:
    remote = Remote()
    store = SqlResourceStore(remote, no_keys)
    askers = [asyncio.create_task(store.revision()) for _ in range(3)]
    await settled()
    later = asyncio.create_task(store.revision())
    await settled()
    remote.begun[0].set_exception(OSError("away"))
    assert [type(each) for each in await asyncio.gather(*askers, return_exceptions=True)] == [OSError] * 3
    await settled()
    remote.begun[1].set_result(None)
    assert await later == 0


async def test_who_was_answered_looks_up_the_rest_of_his_turn_without_another_look_and_nobody_else_does() -> None:
    remote = Remote()
    store = SqlResourceStore(remote, no_keys)
    at_hand: list[tuple[str, int | None]] = []

    async def asker() -> None:
        await store.revision()
        at_hand.append(("asker", store.revision_at_hand()))
        await asyncio.sleep(0)
        at_hand.append(("asker, a turn later", store.revision_at_hand()))

    async def busy() -> None:
        while len(at_hand) < 2:
            if (seen := store.revision_at_hand()) is not None:
                at_hand.append(("another", seen))
            await asyncio.sleep(0)

    asking, others = asyncio.create_task(asker()), [asyncio.create_task(busy()) for _ in range(3)]
    await settled()
    remote.begun[0].set_result(None)
    await asyncio.gather(asking, *others)

    assert at_hand == [("asker", 0), ("asker, a turn later", None)]
    assert len(remote.begun) == 1
