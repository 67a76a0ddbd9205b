"""A byte that somebody changed in a stored journal is noticed by whoever folds it, on both databases."""

from __future__ import annotations

import random

import pytest

from foliot.store.journal.base import Entry
from foliot.store.journal.chain import JournalChanged, check, first_link, link_of
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.stored_events import LARGE
from foliot.store.open import open_database
from foliot.store.queries import load, load_for_postgres
from foliot.store.transaction import Statement
from foliot.tools.function import tool
from tests.engine.kit import Engine, calls, in_turn, says


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "x" * LARGE  # stands apart from its event


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def stored(request, tmp_path):
    """An ended run in a database, and the database."""
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = await open_database(url)
    engine = Engine(in_turn(calls("look"), says("done")), [look], journal=SqlJournal(database))
    await engine.run()
    yield engine, database
    await engine.close()
    await database.close()


async def change(database, monkeypatch, text: str, **params) -> None:
    """Do what an operator with a SQL prompt could do."""
    for queries in (load(), load("postgres")):
        monkeypatch.setitem(queries, "tampering", text)

    def body():
        return (yield Statement("tampering", params, "count"))

    load_for_postgres.cache_clear()  # another test may have left what it did under this name
    assert await database.write(body) == 1
    load_for_postgres.cache_clear()


async def test_every_event_has_a_link_and_all_of_them_hold(stored) -> None:
    engine, _ = stored
    entries = await engine.journal.read("r1")

    assert all(entry.link for entry in entries)
    assert check("r1", entries) == (entries[-1].link, 0)


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("UPDATE event SET data = :data WHERE seq = 3", 3),
        ("UPDATE event SET at = at + 1 WHERE seq = 2", 2),
        ("DELETE FROM event WHERE seq = 4", 4),
    ],
)
async def test_a_changed_event_is_named_by_load_trace_replay_and_fork(stored, monkeypatch, text: str, seq: int) -> None:
    engine, database = stored
    params = {"data": b'{"type":"step.started","step":2}'} if ":data" in text else {}
    await change(database, monkeypatch, text, **params)

    for look_at in (engine.runs.load("r1"), engine.runs.facts("r1")):
        with pytest.raises(JournalChanged, match=f"event {seq} is not what was recorded"):
            await look_at
    assert check("r1", await engine.journal.read("r1")).changed == seq


async def test_an_end_that_is_cut_off_is_missed_by_the_row_of_the_run(stored, monkeypatch) -> None:
    engine, database = stored
    count = len(await engine.journal.read("r1"))
    await change(database, monkeypatch, f"DELETE FROM event WHERE seq = {count}")

    for look_at in (engine.runs.load("r1"), engine.runs.facts("r1")):
        with pytest.raises(JournalChanged, match=f"event {count} is not what was recorded"):
            await look_at


async def test_content_that_stands_apart_is_covered_too(stored, monkeypatch) -> None:
    engine, database = stored
    finished = next(e for e in await engine.journal.read("r1") if e.type == "tool.finished")
    blob = (await database.read("event_read", id="r1", after=finished.seq - 1, count=1))[0]["blob"]
    digest = blob.split("@")[-1]
    await change(database, monkeypatch, "UPDATE blob SET data = :data WHERE digest = :digest", data=b"y", digest=digest)

    with pytest.raises(JournalChanged, match="under this digest"):
        await engine.runs.load("r1")


async def test_a_definition_that_was_changed_in_the_store_is_not_used(stored, monkeypatch) -> None:
    engine, database = stored
    digest = (await engine.journal.get("r1")).spec
    await change(
        database, monkeypatch, "UPDATE blob SET data = :data WHERE digest = :digest", data=b"{}", digest=digest
    )

    with pytest.raises(JournalChanged, match="is not what was recorded under this digest"):
        await engine.runs.load("r1")


@pytest.mark.parametrize("where", ["seq = 3", "seq >= 3"])
async def test_an_event_without_its_link_was_changed(stored, monkeypatch, where: str) -> None:
    """Also where all that follow lost theirs: nobody takes them for events that never had any."""
    engine, database = stored
    entries = await engine.journal.read("r1")
    for entry in entries[2 : 3 if where == "seq = 3" else None]:
        text = f"UPDATE event SET link = :link, at = at + 1 WHERE seq = {entry.seq}"
        await change(database, monkeypatch, text, link=b"")

    with pytest.raises(JournalChanged, match="event 3 "):
        await engine.runs.load("r1")


async def test_a_trusting_load_goes_on_from_what_is_stored(stored, monkeypatch) -> None:
    engine, database = stored
    await change(database, monkeypatch, "UPDATE event SET at = at + 1 WHERE seq = 2")

    _, state = await engine.runs.load("r1", trusting=True)

    assert state.link == (await engine.journal.read("r1"))[-1].link


def test_any_change_to_any_event_is_found() -> None:
    chance = random.Random(7)
    link, entries = first_link("r"), []
    for seq in range(1, 20):
        data = chance.randbytes(chance.randint(1, 60))
        link = link_of(link, seq, float(seq), "t", data)
        entries.append(Entry(seq, float(seq), "t", data, link))
    assert check("r", entries).changed == 0
    assert check("other", entries).changed == 1
    for _ in range(300):
        place = chance.randrange(len(entries))
        spoilt = list(entries)
        kind = chance.choice(("flip", "drop", "swap", "type", "double"))
        entry = spoilt[place]
        if kind == "flip":
            data = bytearray(entry.data)
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            spoilt[place] = Entry(entry.seq, entry.at, entry.type, bytes(data), entry.link)
        elif kind == "type":
            spoilt[place] = Entry(entry.seq, entry.at, "u", entry.data, entry.link)
        elif kind == "drop" and place < len(entries) - 1:  # the end is told by the run's row
            del spoilt[place]
        elif kind == "double":
            spoilt.insert(place, entry)
        elif kind == "swap" and place:
            spoilt[place - 1], spoilt[place] = spoilt[place], spoilt[place - 1]
        else:
            continue
        assert check("r", spoilt).changed, (kind, place)
