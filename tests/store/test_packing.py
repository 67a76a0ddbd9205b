"""Events at rest: fewer bytes than their JSON, and the same bytes when they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import NotFound
from foliot.kernel.graph.events import TaskAccepted, encode_fact
from foliot.kernel.messages import Message, ModelResponse, Text
from foliot.kernel.run.codec import encode
from foliot.kernel.run.events import ModelResponded, RunCreated, StepStarted
from foliot.kernel.run.spec import digest
from foliot.store.base import Database
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.chain import check, first_link, link_of
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.packing import LONG_EVENT, MOST, packed, pin_of, unpacked
from foliot.store.open import open_database
from foliot.store.queries import load, load_for_postgres
from foliot.store.tasks import NewTask, add_task, fact_of
from foliot.store.transaction import Statement, Tx

SPEC = b'{"agent":"clerk","model":"scripted"}'
PROSE = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 12


def created(text: str = "hello", agent: str = "clerk", spec: bytes = SPEC) -> bytes:
    said = (Message("user", (Text(text),)),)
    return encode(RunCreated(agent, digest(spec), said, definitions={f"Agent/{agent}": digest(b"definition")}))


def answered(text: str) -> bytes:
    return encode(ModelResponded(1, ModelResponse(Message("assistant", (Text(text),)))))


# --- the bytes -------------------------------------------------------------------------------------------------------

types = st.sampled_from(["run.created", "tool.started", "x"]) | st.text(max_size=20)


@given(types, st.binary(max_size=2000), st.binary(max_size=300))
def test_whatever_is_packed_comes_back_byte_for_byte(type: str, event: bytes, pin: bytes) -> None:
    assert unpacked(type, packed(type, event, pin), pin) == event


@given(types, st.binary(max_size=60), st.integers(0, 3 * LONG_EVENT))
def test_what_looks_packed_already_comes_back_as_it_was(type: str, event: bytes, size: int) -> None:
    for sign in (b"\x00", b"\x01", b"\x02", b"\x03", b",", b"}", b"{", b'{"type":"%b"' % type.encode(errors="replace")):
        whole = sign + event + b"x" * size
        assert unpacked(type, packed(type, whole)) == whole


@pytest.mark.parametrize("size", [LONG_EVENT, 4096, 5000, 32 * 1024])
def test_long_events_of_every_length_come_back(size: int) -> None:
    event = answered((PROSE * 100)[:size])

    assert len(packed("model.responded", event)) < len(event) / 2
    assert unpacked("model.responded", packed("model.responded", event)) == event


def test_an_event_that_is_stored_as_it_is_is_read_as_it_stands() -> None:
    assert unpacked("run.created", created()) == created()
    assert unpacked("model.responded", answered(PROSE)) == answered(PROSE)


def test_the_facts_of_a_step_are_not_deflated() -> None:
    assert packed("step.started", encode(StepStarted(1))) == b',"step":1}'


@given(st.binary(max_size=200))
def test_bytes_that_were_changed_are_never_an_error(changed: bytes) -> None:
    for sign in (b"\x01", b"\x02", b"\x03"):
        assert isinstance(unpacked("model.responded", sign + changed, pin_of(created())), bytes)


def test_runs_of_a_definition_have_one_pin_and_others_another() -> None:
    assert pin_of(created("hello")) == pin_of(created("something else"))
    assert pin_of(created()) != pin_of(created(agent="other")) != b""
    assert pin_of(b"not JSON") == b""


@given(st.text())
def test_texts_that_look_like_fields_change_nothing(text: str) -> None:
    for said in (text, ',"namespace":"x"', '"input":', ',"definitions":{}', "}" + text, "\0" + text):
        event = created(said)
        assert pin_of(event) == pin_of(created())
        assert unpacked("run.created", packed("run.created", event, pin_of(event)), pin_of(event)) == event


def test_a_first_event_is_stored_without_what_all_runs_of_its_definition_say() -> None:
    for event in (created(), created(PROSE)):
        assert digest(SPEC).encode() not in packed("run.created", event, pin_of(event))
    assert len(packed("run.created", created(), pin_of(created()))) < len(created()) - 2 * len(digest(SPEC))


# --- the store -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = await open_database(url)
    yield database
    await database.close()


@pytest.fixture
def look(database: Database, monkeypatch: pytest.MonkeyPatch):
    """Runs a statement that no part of Foliot has."""

    async def look(text: str, **params: object):
        for queries in (load(), load("postgres")):
            monkeypatch.setitem(queries, "look", text)
        load_for_postgres.cache_clear()

        def body():
            return (yield Statement("look", params, "rows"))

        found = await database.write(body)
        load_for_postgres.cache_clear()
        return found

    return look


async def begin(journal: SqlJournal, id: str, text: str = "hello", spec: bytes = SPEC, content: bool = True) -> None:
    data = created(text, spec=spec)
    link = link_of(first_link(id), 1, 1.0, "run.created", data)
    run = NewRun(id, "default", "clerk", digest(spec), 1.0, content={digest(spec): spec} if content else {})
    lease = await journal.create(run, [Entry(1, 1.0, "run.created", data, link)], worker="w", lease_until=1e10)
    assert lease is not None
    data = answered(PROSE)
    entry = Entry(2, 2.0, "model.responded", data, link_of(link, 2, 2.0, "model.responded", data))
    await journal.append(lease, [entry])
    end = encode(StepStarted(1))
    last = Entry(3, 3.0, "step.started", end, link_of(entry.link, 3, 3.0, "step.started", end))
    await journal.append(lease, [last], phase="succeeded", summary={})


async def test_stored_events_are_shorter_and_their_links_hold(database: Database, look) -> None:
    journal = SqlJournal(database)
    await begin(journal, "one")
    await begin(journal, "two", "something else")

    entries = await journal.read("two")
    assert [entry.data for entry in entries] == [created("something else"), answered(PROSE), encode(StepStarted(1))]
    assert check("two", entries).changed == 0
    sizes = [len(row["data"]) for row in await look("SELECT data FROM event ORDER BY run DESC, seq LIMIT 3")]
    assert sizes[0] < len(entries[0].data) / 3
    assert sizes[1] < len(entries[1].data) / 3
    assert (await journal.get("two")).spec == digest(SPEC)
    assert len(await look("SELECT key FROM run_pin")) == 1
    assert await look("SELECT digest FROM blob_use") == []


async def test_a_changed_byte_in_a_packed_event_is_named(database: Database, look) -> None:
    journal = SqlJournal(database)
    await begin(journal, "one")
    for seq in (1, 2):
        (row,) = await look("SELECT data FROM event WHERE seq = :seq", seq=seq)
        for place in (0, 1, len(row["data"]) // 2, len(row["data"]) - 1):
            changed = bytearray(row["data"])
            changed[place] ^= 0x11
            await look("UPDATE event SET data = :data WHERE seq = :seq RETURNING seq", data=bytes(changed), seq=seq)
            assert check("one", await journal.read("one")).changed == seq
        await look("UPDATE event SET data = :data WHERE seq = :seq RETURNING seq", data=row["data"], seq=seq)


async def test_a_changed_pin_is_named_by_the_runs_that_have_it(database: Database, look) -> None:
    journal = SqlJournal(database)
    await begin(journal, "one")

    await look("UPDATE run_pin SET data = :data RETURNING key", data=pin_of(created(agent="other")))

    assert check("one", await journal.read("one")).changed == 1


async def test_a_spec_stays_with_its_last_run_and_goes_with_it(database: Database, look) -> None:
    journal = SqlJournal(database, clock=lambda: 100.0)
    await begin(journal, "one")
    await begin(journal, "two")
    await begin(journal, "other", spec=b'{"other":true}')
    await journal.forget("one")
    await journal.purge_content(before=1000.0)
    assert await journal.get_blob(digest(SPEC), run_id="two") == SPEC
    with pytest.raises(NotFound):
        await journal.get_blob(digest(SPEC), run_id="other")

    await journal.forget("two")
    await journal.purge_content(before=1000.0)

    with pytest.raises(NotFound):
        await journal.get_blob(digest(SPEC))
    assert await journal.get_blob(digest(b'{"other":true}'), run_id="other") == b'{"other":true}'
    assert len(await look("SELECT key FROM run_pin")) == 1
    await begin(journal, "again")
    assert (await journal.read("again"))[0].data == created()
    assert await journal.get_blob(digest(SPEC), run_id="again") == SPEC


async def test_pins_are_looked_through_outside_of_transactions_and_forgotten_in_portions(
    database: Database, look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request with instructions of its own makes one: there may be as many as runs."""
    monkeypatch.setattr("foliot.store.journal.purge.PINS_AT_ONCE", 3)
    journal = SqlJournal(database)
    specs = [b'{"number":%d}' % number for number in range(14)]
    for number, spec in enumerate(specs):
        await begin(journal, f"run-{number}", spec=spec)
    kept = {1, 5, 6, 13}
    for number in set(range(14)) - kept:
        await look("DELETE FROM run WHERE id = :id RETURNING id", id=f"run-{number}")
    forgotten: list[int] = []
    write = database.write

    def counted(body: Any, /, *args: Any, **kwargs: Any) -> Any:
        if body.__name__ == "_purge_pins":
            forgotten.append(len(args[0]))
        return write(body, *args, **kwargs)

    monkeypatch.setattr(database, "write", counted)
    await journal.purge_content(before=0.0)

    assert len(await look("SELECT key FROM run_pin")) == len(kept)
    assert forgotten == [2, 2, 2, 3, 1]
    for number in kept:
        assert (await journal.read(f"run-{number}"))[0].data == created(spec=specs[number])


async def test_a_spec_that_no_earlier_run_brought_along_is_stored(database: Database) -> None:
    journal = SqlJournal(database)
    await begin(journal, "without", content=False)
    await begin(journal, "with")

    assert await journal.get_blob(digest(SPEC), run_id="with") == SPEC


async def test_many_who_begin_runs_of_a_new_definition_at_once_share_its_pin(database: Database, look) -> None:
    journal = SqlJournal(database)

    await asyncio.gather(*(begin(journal, f"run-{n}") for n in range(20)))

    assert len(await look("SELECT key FROM run_pin")) == 1
    for number in range(20):
        assert check(f"run-{number}", await journal.read(f"run-{number}")).changed == 0


def task_with(facts: list[tuple[str, bytes]]) -> Tx[int | None]:
    new = NewTask(
        uid="u1", namespace="a", name="job", target_kind="agent", target="desk", idempotency_key=None, digest="",
        priority=2, lane="", spawned_by="", parent="", labels={}, command="{}", plan="", graph=b"", summary={},
        timer_at=None, now=1.0,
    )  # fmt: skip
    return (yield from add_task(new, facts))


async def test_events_of_tasks_take_less_room_and_are_read_as_they_were(database: Database) -> None:
    facts: list[tuple[str, bytes]] = [
        ("task.accepted", encode_fact(TaskAccepted(message="go"))),
        ("task.accepted", encode_fact(TaskAccepted(message=PROSE))),
        ("task.accepted", encode_fact(TaskAccepted(message="x" * (MOST + 1)))),
    ]
    await database.write(task_with, facts)

    rows = await database.read("task_event_read", namespace="a", name="job", after=0, count=10)

    assert [fact_of(row) for row in rows] == [data for _, data in facts]
    assert len(rows[0]["data"]) < len(facts[0][1])
    assert len(rows[1]["data"]) < len(facts[1][1]) / 3
