"""What every resource store must do for those who watch it. Subclass it together with `ResourceStoreConformance`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foliot.errors import Gone, InvalidInput
from foliot.store.base import Database, Delete, Filter, Put, ResourceStore
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.selectors import parse_labels
from foliot.store.secrets.keyring import Keyring
from tests.conformance.resources import EVERYTHING, agent, key, put, take


class WatchConformance:
    async def test_a_watch_gives_what_was_and_what_comes_in_order(self, store: ResourceStore) -> None:
        await put(store, agent("a"), agent("b"))
        changes = store.watch(EVERYTHING, after=0)
        before = await take(changes, 2)
        coming = asyncio.create_task(take(changes, 3))
        await asyncio.sleep(0)
        await put(store, agent("a", spec={"x": 1}))
        await store.write([Delete(key("b")), Put(agent("c"))])
        seen = [*before, *await coming]
        assert [(change.revision, change.action, change.document["metadata"]["name"]) for change in seen] == [
            (1, "created", "a"),
            (2, "created", "b"),
            (3, "updated", "a"),
            (4, "deleted", "b"),
            (5, "created", "c"),
        ]
        assert seen[2].document == await store.get(key("a"))

    async def test_a_watch_can_go_on_from_any_version(self, store: ResourceStore) -> None:
        for n in range(6):
            await put(store, agent(spec={"n": n}))
        for after in range(6):
            changes = await take(store.watch(EVERYTHING, after=after), 6 - after)
            assert [change.revision for change in changes] == list(range(after + 1, 7))

    async def test_many_changes_come_in_order_whatever_the_window(
        self, store: ResourceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.store.resources.feed.WINDOW", 3)
        writing = asyncio.gather(*(put(store, agent(f"n{n}"), agent(f"m{n}")) for n in range(30)))
        changes = await take(store.watch(EVERYTHING, after=0), 60)
        await writing
        assert [change.revision for change in changes] == list(range(1, 61))
        assert [int(change.document["metadata"]["resourceVersion"]) for change in changes] == list(range(1, 61))

    async def test_writers_apart_from_each_other_share_one_order(
        self, store: ResourceStore, twin: Database, keyring: Keyring
    ) -> None:
        other = SqlResourceStore(twin, lambda: keyring)

        async def write(which: ResourceStore, letter: str) -> None:
            for n in range(40):
                await put(which, agent(f"{letter}{n}"), agent(letter, spec={"n": n}))

        writing = asyncio.gather(write(store, "a"), write(other, "b"), write(store, "c"), write(other, "d"))
        changes = await take(store.watch(EVERYTHING, after=0), 320)
        await writing
        assert [change.revision for change in changes] == list(range(1, 321))
        for letter in "abcd":
            mine = [change.document["spec"] for change in changes if change.document["metadata"]["name"] == letter]
            assert mine == [{"n": n} for n in range(40)]

    async def test_a_watch_shows_only_what_its_filter_lets_through(self, store: ResourceStore) -> None:
        tool = {"kind": "Tool", "metadata": {"name": "t", "namespace": "other"}, "spec": {}}
        await put(store, agent("a"), tool, agent("b", namespace="other"), agent("c"))
        assert [c.revision for c in await take(store.watch(Filter("Agent"), after=0), 3)] == [1, 3, 4]
        assert [c.revision for c in await take(store.watch(Filter(namespace="other"), after=0), 2)] == [2, 3]
        assert [c.revision for c in await take(store.watch(Filter("Agent", "other"), after=0), 1)] == [3]
        with pytest.raises(InvalidInput):
            store.watch(Filter(kind="a/b"), after=0)

    async def test_what_enters_or_leaves_a_selector_is_told_as_created_or_deleted(self, store: ResourceStore) -> None:
        await put(store, agent("never"))
        await put(store, agent("a", labels={"on": "yes"}))
        await put(store, agent("a", labels={"on": "yes"}, spec={"n": 1}))
        await put(store, agent("a", labels={"on": "no"}))
        await put(store, agent("a", labels={"on": "no"}, spec={"n": 2}))
        await put(store, agent("a", labels={"on": "yes"}))
        await store.write([Delete(key("never")), Delete(key("a"))])
        changes = await take(store.watch(Filter(labels=parse_labels("on=yes")), after=0), 5)
        assert [(change.revision, change.action) for change in changes] == [
            (2, "created"),
            (3, "updated"),
            (4, "deleted"),
            (6, "created"),
            (8, "deleted"),
        ]

    async def test_a_position_that_is_not_kept_is_gone(self, store: ResourceStore) -> None:
        await put(store, *(agent(f"n{n}") for n in range(10)))
        assert await store.compact(keep=4) == 6
        assert await store.compact(keep=4) == 0
        assert [c.revision for c in await take(store.watch(EVERYTHING, after=6), 4)] == [7, 8, 9, 10]
        for lost in (0, 5, 11, -1):
            with pytest.raises(Gone) as caught:
                await take(store.watch(EVERYTHING, after=lost), 1)
            assert caught.value.hint
        assert len((await store.list(EVERYTHING)).items) == 10
        assert await store.revision() == 10
        with pytest.raises(InvalidInput):
            await store.compact(keep=-1)
        assert await store.compact(keep=0) == 4
        (written,) = await put(store, agent("later"))
        assert written.document["metadata"]["resourceVersion"] == "11"

    async def test_a_watch_that_is_overtaken_by_compaction_says_so(self, store: ResourceStore) -> None:
        await put(store, agent("a"), agent("b"), agent("c"))
        changes = store.watch(Filter("Agent"), after=0)
        await take(changes, 3)
        await put(store, agent("d"), agent("e"))
        await store.compact(keep=1)
        with pytest.raises(Gone):
            await take(changes, 1)

    async def test_compaction_forgets_in_bounded_rounds(
        self, store: ResourceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.store.resources.database.FORGOTTEN_PER_ROUND", 3)
        await put(store, *(agent(f"n{n}") for n in range(10)))
        assert await store.compact(keep=2) == 8

    async def test_a_compaction_between_two_reads_of_a_watch_is_noticed(
        self, store: ResourceStore, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put(store, agent("a"), agent("b"))
        read = database.read

        async def compacting(name: str, /, **params: Any) -> Any:
            if name == "change_list_kind":
                await store.compact(keep=0)
            return await read(name, **params)

        monkeypatch.setattr(database, "read", compacting)
        with pytest.raises(Gone):
            await take(store.watch(Filter("Agent"), after=0), 1)

    async def test_changes_of_other_kinds_neither_end_nor_block_a_watch(self, store: ResourceStore) -> None:
        tools = [{"kind": "Tool", "metadata": {"name": f"t{n}"}, "spec": {}} for n in range(30)]
        await put(store, *tools)
        waiting = asyncio.create_task(take(store.watch(Filter("Agent"), after=0), 1))
        await put(store, agent())
        assert [change.revision for change in await waiting] == [31]
