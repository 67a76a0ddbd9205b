"""Appends of many runs are written together; one that may not be written takes no other with it."""

from __future__ import annotations

import asyncio
import os

import pytest

from foliot.store.journal.base import Entry, JournalConflict, Lease, LeaseLost, NewRun, StoreSetBack
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.stored_events import LARGE
from foliot.store.open import open_database

RUNS = 40  # more than are written in one statement


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def journal(request, tmp_path):
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = await open_database(url)
    yield SqlJournal(database)
    await database.close()


def entry(seq: int, data: bytes = b"{}") -> Entry:
    return Entry(seq, float(seq), "step.started", data)


@pytest.fixture
async def leases(journal) -> list[Lease]:
    made = [NewRun(f"r{number:02}", "default", "clerk", "sha256:0", 1.0) for number in range(RUNS)]
    return await asyncio.gather(*(journal.create(each, [entry(1)], worker="w", lease_until=1e10) for each in made))


async def lengths(journal, leases: list[Lease]) -> list[int]:
    return [len(await journal.read(lease.run_id)) for lease in leases]


async def test_all_of_them_are_there_in_order(journal, leases) -> None:
    for seq in (2, 4, 6):
        await asyncio.gather(*(journal.append(lease, [entry(seq), entry(seq + 1)]) for lease in leases))
    for lease in leases:
        assert [(each.seq, each.at) for each in await journal.read(lease.run_id)] == [
            (seq, float(seq)) for seq in range(1, 8)
        ]


async def test_whoever_lost_its_lease_is_told_and_the_others_are_written(journal, leases) -> None:
    lost, *held = leases
    await journal.claim(lost.run_id, worker="another", now=2e10, until=3e10)
    outcomes = await asyncio.gather(*(journal.append(each, [entry(2)]) for each in leases), return_exceptions=True)
    assert isinstance(outcomes[0], LeaseLost)
    assert outcomes[1:] == [None] * len(held)
    assert await lengths(journal, leases) == [1] + [2] * len(held)


async def test_whoever_is_behind_is_told_and_the_others_are_written(journal, leases) -> None:
    await journal.append(leases[0], [entry(2)])
    outcomes = await asyncio.gather(*(journal.append(each, [entry(2)]) for each in leases), return_exceptions=True)
    assert isinstance(outcomes[0], JournalConflict)
    assert outcomes[1:] == [None] * (RUNS - 1)
    assert await lengths(journal, leases) == [2] * RUNS


async def test_events_with_a_gap_between_them_are_refused(journal, leases) -> None:
    outcomes = await asyncio.gather(
        journal.append(leases[0], [entry(2), entry(4)]),
        *(journal.append(each, [entry(2)]) for each in leases[1:]),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], JournalConflict)
    assert outcomes[1:] == [None] * (RUNS - 1)
    assert await lengths(journal, leases) == [1] + [2] * (RUNS - 1)


async def test_a_large_event_among_small_ones_is_stored_as_content_and_read_back_whole(journal, leases) -> None:
    large = os.urandom(LARGE + 1)
    first, *others = leases
    await asyncio.gather(
        journal.append(first, [entry(2, large)]), *(journal.append(each, [entry(2, b"small")]) for each in others)
    )
    assert (await journal.read(first.run_id))[1].data == large
    assert (await journal.read(others[0].run_id))[1].data == b"small"


async def test_one_that_stands_alone_is_told_too(journal, leases) -> None:
    await journal.append(leases[0], [entry(2)])
    with pytest.raises(JournalConflict):
        await journal.append(leases[0], [entry(2)])
    with pytest.raises(StoreSetBack):  # nobody else can have taken away what the holder knows of
        await journal.append(leases[0], [entry(5)])
    await journal.append(leases[0], [entry(3)])
    assert (await lengths(journal, leases))[0] == 3
