from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.cursors import read_cursor, write_cursor
from foliot.common.pages import read_all, read_pages
from foliot.errors import InvalidInput
from foliot.store.base import Filter
from foliot.store.resources.cursors import CursorPlace, issue, resolve


@dataclass
class Page:
    items: list[int]
    cursor: str | None


class Numbers:
    """A list that is asked in pages, and counts how often."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[tuple[int, str | None]] = []

    async def list(self, least: int, *, limit: int = 3, cursor: str | None = None) -> Page:
        self.asked.append((limit, cursor))
        begin = read_cursor(cursor, int, kind="number") if cursor else least
        end = min(begin + limit, self.count)
        return Page(list(range(begin, end)), write_cursor(end, kind="number") if end < self.count else None)


@given(count=st.integers(0, 40), least=st.integers(0, 5), limit=st.integers(1, 7))
async def test_every_item_is_read_once_and_in_order(count: int, least: int, limit: int) -> None:
    numbers = Numbers(count)
    assert await read_all(numbers.list, least, limit=limit) == list(range(least, count))
    assert {asked for asked, _ in numbers.asked} == {limit}
    assert len(numbers.asked) == max(1, -(-(count - least) // limit))


async def test_whoever_stops_reading_asks_for_no_further_page() -> None:
    numbers = Numbers(100)
    async for page in read_pages(numbers.list, 0):
        if 4 in page.items:
            break
    assert len(numbers.asked) == 2


PLACES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner, max_size=4)
)


@given(PLACES, st.sampled_from(["", "task", "doubt"]))
def test_a_cursor_is_read_back_and_fits_into_an_address(place: object, kind: str) -> None:
    cursor = write_cursor(place, kind=kind)
    assert read_cursor(cursor, object, kind=kind) == place
    assert not set(cursor) & set("+/=&?# ")


@pytest.mark.parametrize(
    ("cursor", "type", "kind", "place"),
    [
        ("WyJhIiw3LCJjaGVjayJd", tuple[str, int, str], "", ("a", 7, "check")),
        ("WzEsbnVsbF0", tuple[int, str | None], "", (1, None)),
        ("WzMsInIxIix7InIyIjo0fV0", tuple[int, str, dict[str, int]], "", (3, "r1", {"r2": 4})),
        ("dGFzazo0Mg", int, "task", 42),
        ("ZG91YnQ6WzEuNSwiciIsImMiXQ", tuple[float, str, str], "doubt", (1.5, "r", "c")),
    ],
)
def test_cursors_of_earlier_releases_are_read(cursor: str, type: type[object], kind: str, place: object) -> None:
    assert read_cursor(cursor, type, kind=kind) == place


@pytest.mark.parametrize("cursor", ["", "x", "!", "dGFzazoiYSI", "ZG91YnQ6NDI", "é", "a" * 5])
def test_any_other_text_is_refused_with_what_to_do(cursor: str) -> None:
    with pytest.raises(InvalidInput, match="does not belong to this list") as caught:
        read_cursor(cursor, int, kind="task")
    assert "first page" in (caught.value.hint or "")


def test_a_cursor_of_resources_that_an_earlier_release_issued_is_read_for_its_own_list_alone() -> None:
    issued = "WyJBZ2VudC9kZWZhdWx0L2EiLDcsIjg1MmI4NTg0ZTM4OGUzMjA0ZDFhY2Uw"
    issued += "MSJd"
    place = CursorPlace("Agent/default/a", 7)
    assert resolve(issued, Filter("Agent", "default")) == place
    assert issue(place, Filter("Agent", "default")) == issued
    with pytest.raises(InvalidInput, match="does not belong"):
        resolve(issued, Filter("Agent", "other"))
