"""No change to a chain of records goes unnoticed, whatever it is and wherever it is made."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from foliot.store.audit.chain import ChainHead, Check, Link, linked

ENTRIES = st.lists(
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=5), st.none()), max_size=3),
    min_size=1,
    max_size=8,
)


def chain(entries: list[dict]) -> tuple[list[Link], ChainHead]:
    links = [Link(seq, data, digest, {}) for seq, digest, data, _ in linked(entries, ChainHead())]
    return links, ChainHead(links[-1].seq, links[-1].hash)


def holds(links: list[Link], head: ChainHead | None, anchor: ChainHead | None = None) -> bool:
    check = Check(anchor)
    check.follow(links)
    return check.end(head) is None


@given(ENTRIES)
def test_what_was_written_holds_and_every_record_can_be_an_anchor(entries: list[dict]) -> None:
    links, head = chain(entries)
    assert holds(links, head)
    assert all(holds(links, head, ChainHead(link.seq, link.hash)) for link in links)


@given(ENTRIES, st.data())
def test_a_changed_character_is_found(entries: list[dict], data: st.DataObject) -> None:
    links, head = chain(entries)
    place = data.draw(st.integers(0, len(links) - 1))
    link = links[place]
    at = data.draw(st.integers(0, len(link.data) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda char: char != link.data[at]))
    links[place] = replace(link, data=link.data[:at] + other + link.data[at + 1 :])
    assert not holds(links, head)


@given(ENTRIES, st.data())
def test_a_missing_record_is_found(entries: list[dict], data: st.DataObject) -> None:
    links, head = chain(entries)
    del links[data.draw(st.integers(0, len(links) - 1))]
    assert not holds(links, head)


@given(ENTRIES.filter(lambda entries: len(entries) > 1), st.data())
def test_records_that_changed_places_are_found(entries: list[dict], data: st.DataObject) -> None:
    links, head = chain(entries)
    one, other = data.draw(
        st.lists(st.integers(0, len(links) - 1), min_size=2, max_size=2, unique=True).map(lambda found: tuple(found))
    )
    links[one], links[other] = replace(links[other], seq=links[one].seq), replace(links[one], seq=links[other].seq)
    assert not holds(links, head)


@given(ENTRIES, ENTRIES)
def test_another_chain_under_the_same_head_is_found(entries: list[dict], others: list[dict]) -> None:
    (links, head), (forged, forged_head) = chain(entries), chain(others)
    assert holds(forged, head) == (forged == links)
    # A chain that goes on behind the head that was noted is the same log, later.
    assert holds(forged, forged_head, head) == (forged[: len(links)] == links)
