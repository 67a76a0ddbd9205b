"""The keys of a list over all namespaces: what is rare is read whole, and what is frequent is not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from foliot.store import key_pages
from foliot.store.base import Database
from foliot.store.key_pages import NEWEST, KeySource, key_source, matching_keys


class Keys:
    """A database with the keys 1 to 1,000, in ten namespaces in turns; what was read is written down."""

    def __init__(self, **held: set[int]) -> None:
        self.held = held
        self.reads: list[str] = []

    async def read(self, name: str, /, **given: Any) -> list[dict[str, int]]:
        self.reads.append(name)
        if name == "matching":
            asked = {int(each) for each in given["keys"].strip("[]").replace('"', "").split(",")}
            return [{"key": key} for key in asked if all(key in keys for keys in self.held.values())]
        if name == "everything":
            found = [key for key in range(1000, 0, -1) if key < given["before"]]
            return [{"key": key} for key in found[: given["count"]]]
        base = name.removesuffix("_everywhere").removesuffix("_any_order")
        found = sorted((key for key in self.held[base] if key < given["before"]), reverse=True)
        return [{"key": key} for key in found[: given["count"]]]


async def listed(keys: Keys, *filters: str, count: int = 5, before: int = NEWEST) -> list[int]:
    walks = [[KeySource("everything", {})], *([key_source(each, {})] for each in filters)]
    database = cast("Database", keys)
    return await matching_keys(database, walks, KeySource("matching", {}), before=before, count=count)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_pages, "FIRST_STRIDE", 8)
    monkeypatch.setattr(key_pages, "LONGEST_STRIDE", 16)
    monkeypatch.setattr(key_pages, "RARE", 20)


async def test_what_is_frequent_is_met_among_the_newest() -> None:
    keys = Keys(agent={key for key in range(1001) if key % 2})
    assert await listed(keys, "agent", count=3) == [999, 997, 995]
    assert keys.reads == ["everything", "matching"]


async def test_what_is_rare_is_read_whole_and_no_namespace_is_looked_into() -> None:
    keys = Keys(agent=set(range(1, 500)), phase={3, 7, 400})
    assert await listed(keys, "agent", "phase") == [400, 7, 3]
    assert not any(name.endswith("_everywhere") for name in keys.reads)


async def test_of_two_that_are_frequent_and_old_each_is_looked_for_in_the_namespaces_in_turn() -> None:
    keys = Keys(agent=set(range(1, 500)), phase=set(range(1, 300)))
    assert await listed(keys, "agent", "phase", count=4) == [299, 298, 297, 296]
    assert {"agent_everywhere", "phase_everywhere"} <= set(keys.reads)


@pytest.mark.parametrize("rare", [{1}, set(range(1, 21)), set(range(1, 22)), set(range(1, 60))])
async def test_pages_hold_all_of_it_once_whether_it_is_rare_or_not(rare: set[int]) -> None:
    keys = Keys(phase=rare)
    found: list[int] = []
    while page := await listed(keys, "phase", before=found[-1] if found else NEWEST):
        found += page
    assert found == sorted(rare, reverse=True)
