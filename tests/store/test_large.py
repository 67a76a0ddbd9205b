"""Large events: what is long in them is stored once, and they come back byte for byte."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import NotFound
from foliot.kernel.messages import Text, ToolResult
from foliot.kernel.run.codec import encode
from foliot.kernel.run.events import ToolFinished
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.stored_events import LARGE, LONG, joined, names_in, parted
from foliot.store.open import open_database

# Quotes, backslashes and characters of several bytes: whatever could move a cut.
DOCUMENT = 'He said "no \\ yes", and — 日本 — \u0001 went.\n' * 2000
texts = st.text() | st.sampled_from(["x" * LONG, "x" * (LONG - 1), DOCUMENT, '"' * LONG, "\\" * LONG])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_an_event_is_the_same_bytes_when_it_is_put_together(value: object) -> None:
    event = msgspec.json.encode(value)

    data, note, content = parted(event)

    assert joined(data, note, content) == event
    assert set(names_in(note)) == set(content)
    assert len(data) <= LARGE


def test_what_has_no_long_text_stands_apart_as_a_whole() -> None:
    event = msgspec.json.encode(["word"] * LARGE)

    data, note, content = parted(event)

    assert (data, list(content.values())) == (b"", [event])
    assert joined(data, note, content) == event


def test_notes_of_earlier_versions_are_a_digest_alone() -> None:
    assert names_in("sha256:aa") == ["sha256:aa"]
    assert joined(b"", "sha256:aa", {"sha256:aa": b"whole"}) == b"whole"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request, tmp_path):
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = await open_database(url)
    yield database
    await database.close()


async def test_a_document_that_ten_runs_read_is_stored_once_and_goes_with_the_last(database) -> None:
    journal = SqlJournal(database)
    written: dict[str, bytes] = {}
    for number in range(10):
        result = ToolResult(f"call-{number}", "read", (Text(DOCUMENT),))
        data = written[f"r{number}"] = encode(ToolFinished(result, seconds=number / 7))
        run = NewRun(f"r{number}", "default", "clerk", "sha256:0", 1.0)
        lease = await journal.create(run, [Entry(1, 1.0, "run.created", b"{}")], worker="w", lease_until=1e10)
        await journal.append(lease, [Entry(2, 2.0, "tool.finished", data)], phase="succeeded", summary={})

    (name,) = parted(written["r0"]).content
    assert len(await journal.get_blob(name)) > len(DOCUMENT)
    assert {run_id: (await journal.read(run_id, after=1))[0].data for run_id in written} == written
    assert all(parted(data).content.keys() == {name} for data in written.values())

    for run_id in [*written][:-1]:
        await journal.forget(run_id)
    await journal.purge(ended_before=1.5)  # none of them has ended then
    assert (await journal.read("r9", after=1))[0].data == written["r9"]
    await journal.purge(ended_before=10.0)
    with pytest.raises(NotFound):
        await journal.get_blob(name)
