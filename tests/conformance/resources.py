"""What every resource store must do. Subclass it; give a `database` fixture, and `twin`, the same one opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.resources.field_owners import Claim
from foliot.store.base import Change, Database, Delete, Document, Filter, Key, Put, Requirement, ResourceStore, Written
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.selectors import parse_fields, parse_labels
from foliot.store.secrets.keyring import Keyring, load_keyring
from foliot.store.transaction import Tx, run

EVERYTHING = Filter()


def agent(name: str = "a", *, namespace: str = "default", spec: Any = None, **metadata: Any) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "Agent",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"model": "m"} if spec is None else spec,
    }


def key(name: str = "a", *, kind: str = "Agent", namespace: str = "default") -> Key:
    return Key(kind, namespace, name)


async def put(store: ResourceStore, *documents: Document, **how: Any) -> list[Written]:
    return await store.write([Put(document, **how) for document in documents])


async def take(changes: AsyncIterator[Change], count: int) -> list[Change]:
    """The next `count` changes; fails when they do not come."""

    async def taken() -> list[Change]:
        return [await anext(changes) for _ in range(count)]

    return await asyncio.wait_for(taken(), 60)


async def pages(store: ResourceStore, filter: Filter, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    cursor = None
    while True:
        page = await store.list(filter, limit=limit, cursor=cursor)
        found.append([item["metadata"]["name"] for item in page.items])
        if (cursor := page.cursor) is None:
            return found


def flat(found: list[list[str]]) -> list[str]:
    return [name for page in found for name in page]


class ResourceStoreConformance:
    @pytest.fixture
    def keyring(self, tmp_path: Path) -> Keyring:
        return load_keyring(SimpleNamespace(secret_key=None, secret_key_file=tmp_path / "keys" / "key"))  # type: ignore[arg-type]

    @pytest.fixture
    def clock(self) -> list[float]:
        return [1_700_000_000.5]

    @pytest.fixture
    def store(self, database: Database, keyring: Keyring, clock: list[float]) -> SqlResourceStore:
        return SqlResourceStore(database, lambda: keyring, now=lambda: clock[0])

    # What a write does

    async def test_a_created_resource_has_what_the_system_adds(self, store: ResourceStore) -> None:
        (written,) = await put(store, agent(labels={"app": "x"}, annotations={"note": "y"}))
        metadata = dict(written.document["metadata"])
        uid = metadata.pop("uid")
        assert written.action == "created"
        assert len(uid) == 36
        assert metadata == {
            "name": "a",
            "namespace": "default",
            "labels": {"app": "x"},
            "annotations": {"note": "y"},
            "resourceVersion": "1",
            "generation": 1,
            "createdAt": "2023-11-14T22:13:20.500Z",
            "updatedAt": "2023-11-14T22:13:20.500Z",
            "declaredBy": {"user": "", "operator": True},
        }
        assert written.document == await store.get(key())
        assert list(written.document) == ["apiVersion", "kind", "metadata", "spec", "status"]
        assert await store.revision() == 1

    async def test_a_dry_write_answers_and_leaves_nothing(self, store: ResourceStore) -> None:
        await put(store, agent("b"), agent("c"))
        told: list[str] = []

        def in_transaction(written: Sequence[Written]) -> Tx[None]:
            told[:] = [each.action for each in written]
            yield from run("setting_put", name="dry", value="x")

        changes = [Put(agent()), Put(agent("b", spec={"model": "n"})), Put(agent("c")), Delete(key("c"))]
        dry, others = await asyncio.gather(
            store.write(changes, in_transaction=in_transaction, dry=True), put(store, agent("d"))
        )

        assert [each.action for each in dry] == told == ["created", "updated", "unchanged", "deleted"]
        assert not dry[0].document["metadata"].keys() & {"uid", "resourceVersion", "createdAt", "updatedAt"}
        assert dry[1].document["spec"] == {"model": "n"}
        assert others[0].action == "created"
        assert flat(await pages(store, EVERYTHING, 10)) == ["b", "c", "d"]
        assert await store.revision() == 3
        with pytest.raises(Conflict):
            await store.write([Put(agent("b"), expect="99")], dry=True)
        assert [each.action for each in await put(store, agent())] == ["created"]

    async def test_the_namespace_is_default_when_none_is_given(self, store: ResourceStore) -> None:
        document = agent()
        del document["metadata"]["namespace"]
        (written,) = await put(store, document)
        assert written.document["metadata"]["namespace"] == "default"

    async def test_only_a_new_spec_makes_a_new_generation(self, store: ResourceStore, clock: list[float]) -> None:
        (first,) = await put(store, agent())
        clock[0] += 1
        (labelled,) = await put(store, agent(labels={"a": "b"}))
        (changed,) = await put(store, agent(labels={"a": "b"}, spec={"model": "n"}))
        versions = [
            (each.document["metadata"]["resourceVersion"], each.document["metadata"]["generation"])
            for each in (first, labelled, changed)
        ]
        assert versions == [("1", 1), ("2", 1), ("3", 2)]
        assert labelled.action == "updated"
        assert labelled.document["metadata"]["updatedAt"] == "2023-11-14T22:13:21.500Z"
        assert labelled.document["metadata"]["createdAt"] == first.document["metadata"]["createdAt"]
        assert labelled.document["metadata"]["uid"] == first.document["metadata"]["uid"]

    async def test_a_put_that_changes_nothing_makes_no_version(self, store: ResourceStore, clock: list[float]) -> None:
        (first,) = await put(store, agent(labels={"a": "b"}, spec={"x": 1, "y": [True, None, 2.5]}))
        clock[0] += 100
        reordered = agent(labels={"a": "b"}, spec={"y": [True, None, 2.5], "x": 1})
        reordered["metadata"]["resourceVersion"] = "999"
        reordered["metadata"]["uid"] = "of no account"
        (again,) = await put(store, reordered)
        assert again == Written("unchanged", first.document)
        assert await store.revision() == 1

    async def test_the_order_within_a_schema_is_a_change_and_is_kept(self, store: ResourceStore) -> None:
        await put(store, agent(spec={"output_schema": {"properties": {"answer": {}, "reasoning": {}}}}))
        (again,) = await put(store, agent(spec={"output_schema": {"properties": {"reasoning": {}, "answer": {}}}}))
        assert again.action == "updated"
        kept = (await store.get(key()))["spec"]["output_schema"]["properties"]
        assert list(kept) == ["reasoning", "answer"]

    @pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), (None, {})])
    async def test_values_that_python_takes_for_equal_are_still_changes(
        self, store: ResourceStore, before: Any, after: Any
    ) -> None:
        await put(store, agent(spec={"x": before}))
        (written,) = await put(store, agent(spec={"x": after}))
        assert written.action == "updated"

    async def test_a_status_in_a_put_of_the_spec_is_not_taken(self, store: ResourceStore) -> None:
        (created,) = await put(store, {**agent(), "status": {"phase": "Succeeded"}})
        assert created.document["status"] == {"phase": "Ready"}
        await put(store, {**agent(), "status": {"phase": "Error"}}, only="status")
        (updated,) = await put(store, {**agent(spec={"model": "n"}), "status": {"phase": "Faked"}})
        assert updated.document["status"] == {"phase": "Error"}

    async def test_whatever_leaves_the_store_has_a_phase_and_the_one_that_was_put_comes_first(
        self, store: ResourceStore
    ) -> None:
        begins = {"Agent": "Ready", "Task": "Pending", "McpServer": "Pending", "Worker": "NotReady", "Thing": ""}
        for kind, phase in begins.items():
            (written,) = await put(store, {"kind": kind, "metadata": {"name": "a"}, "spec": {}})
            listed = (await store.list(Filter(kind))).items[0]
            for found in (written.document, await store.get(key("a", kind=kind)), listed):
                assert found["status"].get("phase", "") == phase
        assert [
            each.document["status"].get("phase", "") for each in await take(store.watch(EVERYTHING, after=0), 5)
        ] == [*begins.values()]
        schedule = {"kind": "TaskSchedule", "metadata": {"name": "a"}, "spec": {"suspend": True}}
        assert (await put(store, schedule))[0].document["status"] == {"phase": "Suspended"}
        assert (await put(store, {**schedule, "spec": {}}))[0].document["status"] == {"phase": "Pending"}
        await put(store, {**schedule, "status": {"lastError": "x"}}, only="status")
        told = await store.get(key("a", kind="TaskSchedule"))
        assert told["status"] == {"lastError": "x", "phase": "Pending"}

    async def test_a_put_of_the_status_leaves_everything_else(self, store: ResourceStore) -> None:
        (created,) = await put(store, agent(labels={"a": "b"}))
        other = {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model": "other"}, "status": {"phase": "Ready"}}
        (written,) = await put(store, other, only="status")
        assert written.action == "updated"
        assert written.document["spec"] == created.document["spec"]
        assert written.document["metadata"]["labels"] == {"a": "b"}
        assert written.document["metadata"]["generation"] == 1
        assert written.document["metadata"]["resourceVersion"] == "2"
        (again,) = await put(store, other, only="status")
        assert again == Written("unchanged", written.document)
        with pytest.raises(NotFound):
            await put(store, {**agent("missing"), "status": {}}, only="status")

    async def test_owners_are_kept_beside_the_document_through_all_writes(self, store: ResourceStore) -> None:
        claim = Claim("ann", frozenset({("spec", "prompt")}), "apply")
        await put(store, agent(spec={"prompt": "x", "model_ref": "m"}), claim=claim)
        await put(store, agent(spec={"prompt": "x", "model_ref": "n"}, labels={"a": "b"}), claim=Claim("bob"))
        await put(store, {**agent(), "status": {"phase": "Ready"}}, only="status")

        owned = (await store.owned([key(), key("none")]))[key()]

        assert owned.owners == {
            "ann": frozenset({("spec", "prompt")}),
            "bob": frozenset({("spec", "model_ref"), ("metadata", "labels", "a")}),
        }
        assert owned.document == await store.get(key())
        assert "managedFields" not in owned.document["metadata"]
        await store.write([Delete(key())])
        await put(store, agent(spec={"prompt": "x"}))
        assert set((await store.owned([key()]))[key()].owners) == {"system"}

    async def test_an_apply_that_only_changes_owners_is_a_version_and_its_repetition_is_none(
        self, store: ResourceStore
    ) -> None:
        claim = Claim("ann", frozenset({("spec", "prompt")}), "apply")
        await put(store, agent(spec={"prompt": "x"}))

        first = await put(store, agent(spec={"prompt": "x"}), claim=claim)
        again = await put(store, agent(spec={"prompt": "x"}), claim=claim)

        assert [each.action for each in (*first, *again)] == ["updated", "unchanged"]
        assert (first[0].document["metadata"]["generation"]) == 1
        assert set((await store.owned([key()]))[key()].owners) == {"ann", "system"}

    async def test_preconditions_are_kept_and_errors_name_the_key(self, store: ResourceStore) -> None:
        (created,) = await put(store, agent(), expect="absent")
        with pytest.raises(Conflict, match="Agent/a in namespace 'default' exists already"):
            await put(store, agent(), expect="absent")
        with pytest.raises(NotFound, match="Agent/b"):
            await put(store, agent("b"), expect="present")
        with pytest.raises(NotFound, match="Agent/b"):
            await put(store, agent("b"), expect="7")
        (updated,) = await put(store, agent(spec={"x": 1}), expect="1")
        assert updated.document["metadata"]["resourceVersion"] == "2"
        with pytest.raises(Conflict, match="at version 2, not 1") as caught:
            await put(store, agent(spec={"x": 2}), expect="1")
        assert caught.value.details["current"] == "2"
        with pytest.raises(Conflict):
            await store.write([Delete(key(), expect="1")])
        with pytest.raises(NotFound):
            await store.write([Delete(key("b"))])
        assert (await store.write([Delete(key("b"), expect="any")]))[0].action == "unchanged"
        with pytest.raises(InvalidInput):
            await store.write([Delete(key(), expect="absent")])
        (deleted,) = await store.write([Delete(key(), expect="2")])
        assert deleted == Written("deleted", updated.document)
        with pytest.raises(NotFound, match="Agent/a"):
            await store.get(key())
        assert created.document["metadata"]["resourceVersion"] == "1"

    async def test_a_resource_made_again_is_a_new_one(self, store: ResourceStore) -> None:
        (first,) = await put(store, agent())
        await put(store, {**agent(), "status": {"phase": "Old"}}, only="status")
        await store.write([Delete(key())])
        (second,) = await put(store, agent())
        assert second.action == "created"
        assert second.document["metadata"]["uid"] != first.document["metadata"]["uid"]
        assert second.document["metadata"]["resourceVersion"] == "4"
        assert second.document["metadata"]["generation"] == 1
        assert second.document["status"] == {"phase": "Ready"}

    async def test_a_batch_is_stored_whole_or_not_at_all(self, store: ResourceStore) -> None:
        await put(store, agent("taken"))
        with pytest.raises(Conflict, match="taken"):
            await store.write([Put(agent("new")), Put(agent("taken"), expect="absent"), Put(agent("newer"))])
        assert await pages(store, EVERYTHING, 10) == [["taken"]]
        assert await store.revision() == 1

    async def test_changes_of_one_batch_build_on_each_other(self, store: ResourceStore) -> None:
        written = await store.write(
            [
                Put(agent(labels={"a": "1"}), expect="absent"),
                Put(agent(labels={"a": "2"}, spec={"x": 1}), expect="present"),
                Put({**agent(), "status": {"phase": "Ready"}}, only="status"),
                Delete(key()),
                Put(agent(labels={"a": "3"}), expect="absent"),
                Put(agent("b")),
                Delete(key("b")),
            ]
        )
        actions = ["created", "updated", "updated", "deleted", "created", "created", "deleted"]
        assert [each.action for each in written] == actions
        assert [change.action for change in await take(store.watch(EVERYTHING, after=0), 7)] == actions
        assert (await store.get(key()))["metadata"]["resourceVersion"] == "5"
        assert await pages(store, Filter(labels=parse_labels("a=3")), 10) == [["a"]]
        assert await pages(store, Filter(labels=parse_labels("a=2")), 10) == [[]]
        assert await pages(store, EVERYTHING, 10) == [["a"]]

    async def test_an_empty_batch_does_nothing(self, store: ResourceStore) -> None:
        assert await store.write([]) == []
        assert await store.revision() == 0

    async def test_what_is_written_beside_a_batch_is_stored_with_it_or_not_at_all(
        self, store: ResourceStore, database: Database
    ) -> None:
        told: list[str] = []

        def beside(written: Sequence[Written]) -> Tx[None]:
            told[:] = [each.action for each in written]
            yield from run("setting_put", name="beside", value="first")

        def refusing(written: Sequence[Written]) -> Tx[None]:
            yield from run("setting_put", name="beside", value="second")
            raise Conflict("no")

        await store.write([Put(agent("a")), Put(agent("a"))], in_transaction=beside)
        with pytest.raises(Conflict):
            await store.write([Put(agent("b")), Delete(key("a"))], in_transaction=refusing)
        with pytest.raises(Conflict):
            await store.write([Put(agent("a"), expect="absent")], in_transaction=beside)

        assert told == ["created", "unchanged"]
        assert [row["value"] for row in await database.read("setting_get", name="beside")] == ["first"]
        assert await pages(store, EVERYTHING, 10) == [["a"]]
        assert await store.revision() == 1

    async def test_concurrent_writers_lose_no_update(self, store: ResourceStore) -> None:
        await put(store, agent(spec={"n": 0}))

        async def increment() -> None:
            while True:
                document = await store.get(key())
                document["spec"]["n"] += 1
                try:
                    await put(store, document, expect=document["metadata"]["resourceVersion"])
                except Conflict:
                    continue
                return

        await asyncio.gather(*(increment() for _ in range(12)))
        document = await store.get(key())
        assert (document["spec"]["n"], document["metadata"]["generation"]) == (12, 13)

    @pytest.mark.parametrize(
        "document",
        [
            {},
            {"kind": "Agent"},
            {"kind": "Agent", "metadata": []},
            {"kind": "Agent", "metadata": {"name": ""}},
            {"kind": "", "metadata": {"name": "a"}},
            agent("a/b"),
            agent("a\x1fb"),
            agent("a\x00"),
            agent("\ud800"),
            agent("a" * 254),
            agent(namespace=7),  # type: ignore[arg-type]
            agent(spec=[1]),
            agent(spec={"x": float("nan")}),
            agent(spec={"x": {1, 2}}),
            agent(spec={"x": "\ud800"}),
            agent(labels=["a"]),
            agent(labels={"a": 1}),
            agent(labels={"a": "\x00"}),
        ],
    )
    async def test_what_cannot_be_stored_is_refused_in_words(self, store: ResourceStore, document: Document) -> None:
        with pytest.raises(InvalidInput):
            await put(store, document)
        assert await store.revision() == 0

    async def test_any_text_comes_back_as_it_was(self, store: ResourceStore) -> None:
        texts = {
            "nul": "\x00",
            "quote": "'\"\\",
            "accents": "ñ é 漢字 🙂",
            "lines": "a\r\nb\u2028",
            "big": "x" * 300_000,
        }
        await put(store, agent("ö-ñ", spec=texts))
        assert (await store.get(key("ö-ñ")))["spec"] == texts

    async def test_the_callers_document_stays_his_own(self, store: ResourceStore) -> None:
        document = agent(spec={"list": [1]})
        (written,) = await put(store, document)
        document["spec"]["list"].append(2)
        written.document["spec"]["list"].append(3)
        assert (await store.get(key()))["spec"] == {"list": [1]}
        assert "resourceVersion" not in document["metadata"]

    # Lists

    async def test_lists_are_ordered_and_paged_without_gap_or_repeat(self, store: ResourceStore) -> None:
        names = ["a", "a-b", "a.c", "ab", "B", "b", "ä", "10", "9"]
        await put(store, *(agent(name, namespace=space) for space in ("x", "x-y", "x.z") for name in names))
        await put(store, {"kind": "Tool", "metadata": {"name": "t", "namespace": "x"}, "spec": {}})
        one_space = [sorted(names)]
        assert await pages(store, Filter("Agent", "x"), 100) == one_space
        assert await pages(store, Filter("Agent"), 100) == [sorted(names) * 3]
        assert await pages(store, Filter(namespace="x"), 100) == [[*sorted(names), "t"]]
        assert await pages(store, EVERYTHING, 100) == [[*(sorted(names) * 3), "t"]]
        for filter in (Filter("Agent", "x"), Filter("Agent"), Filter(namespace="x-y"), EVERYTHING):
            (whole,) = await pages(store, filter, 1000)
            for limit in (1, 2, 5, len(whole) - 1, len(whole)):
                cut = await pages(store, filter, limit)
                assert flat(cut) == whole
                assert all(len(page) == limit for page in cut[:-1])
                assert cut[-1] or not whole

    async def test_what_exists_throughout_is_on_exactly_one_page(self, store: ResourceStore) -> None:
        await put(store, *(agent(f"n{n:02}") for n in range(20)))
        seen: list[str] = []
        cursor = None
        for step in range(100):
            page = await store.list(Filter("Agent"), limit=3, cursor=cursor)
            seen += [item["metadata"]["name"] for item in page.items]
            if (cursor := page.cursor) is None:
                break
            # Between two pages: one goes that was seen, one comes before the place and one behind it.
            await store.write([Delete(key(seen[-1])), Put(agent(f"a{step}")), Put(agent(f"n{step:02}x"))])
        assert len(seen) == len(set(seen))
        assert {name for name in seen if len(name) == 3} == {f"n{n:02}" for n in range(20)}

    async def test_every_page_names_the_place_of_the_first_for_a_watch(self, store: ResourceStore) -> None:
        await put(store, *(agent(f"n{n}") for n in range(4)))
        first = await store.list(EVERYTHING, limit=2)
        await put(store, agent("n0", spec={"late": True}))
        second = await store.list(EVERYTHING, limit=2, cursor=first.cursor)
        assert (first.revision, second.revision) == (4, 4)
        (change,) = await take(store.watch(EVERYTHING, after=second.revision), 1)
        assert change.document["spec"] == {"late": True}

    async def test_a_cursor_of_another_filter_or_a_changed_one_is_refused(self, store: ResourceStore) -> None:
        await put(store, *(agent(f"n{n}") for n in range(4)))
        cursor = (await store.list(Filter("Agent"), limit=2)).cursor
        assert cursor is not None
        changed = ("A" if cursor[5] != "A" else "B").join((cursor[:5], cursor[6:]))
        for filter, bad in [
            (EVERYTHING, cursor),
            (Filter("Agent", "default"), cursor),
            (Filter("Agent", labels=parse_labels("a=b")), cursor),
            (Filter("Agent"), changed),
            (Filter("Agent"), ""),
            (Filter("Agent"), "nonsense"),
            (Filter("Agent"), "ñ"),
            (Filter("Agent"), "W10"),
        ]:
            with pytest.raises(InvalidInput, match="cursor"):
                await store.list(filter, cursor=bad)
        with pytest.raises(InvalidInput):
            await store.list(EVERYTHING, limit=0)

    @pytest.mark.parametrize(
        ("selector", "expected"),
        [
            ("tier=gold", "ad"),
            ("tier==gold,app=web", "a"),
            ("tier!=gold", "bce"),
            ("tier in (gold, silver)", "abd"),
            ("tier in (silver)", "b"),
            ("tier notin (gold,silver)", "ce"),
            ("tier", "abcd"),
            ("!tier", "e"),
            ("app=web,!tier", ""),
            ("tier=", "c"),
            ("example.com/x=y", "e"),
            ("tier=none", ""),
        ],
    )
    async def test_label_selectors_choose(self, store: ResourceStore, selector: str, expected: str) -> None:
        labels = {
            "a": {"tier": "gold", "app": "web"},
            "b": {"tier": "silver", "app": "web"},
            "c": {"tier": ""},
            "d": {"tier": "gold"},
            "e": {"example.com/x": "y"},
        }
        await put(store, *(agent(name, labels=its) for name, its in labels.items()))
        for limit in (1, 100):
            found = await pages(store, Filter("Agent", labels=parse_labels(selector)), limit)
            assert "".join(flat(found)) == expected
        found = await pages(store, Filter(namespace="default", labels=parse_labels(selector)), 2)
        assert "".join(flat(found)) == expected
        assert await pages(store, Filter(namespace="other", labels=parse_labels(selector)), 2) == [[]]

    async def test_field_selectors_choose_and_fill_their_pages(
        self, store: ResourceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.store.resources.database.ROUND", 7)
        await put(store, *(agent(f"n{n:03}", spec={"even": n % 2 == 0, "deep": {"n": n}}) for n in range(60)))
        assert await pages(store, Filter(fields=parse_fields("metadata.name=n042")), 10) == [["n042"]]
        assert await pages(store, Filter(fields=parse_fields("spec.deep.n in (3, 50)")), 10) == [["n003", "n050"]]
        found = await pages(store, Filter("Agent", fields=parse_fields("spec.even=true,metadata.name!=n000")), 10)
        assert [len(page) for page in found] == [10, 10, 9]
        assert flat(found) == [f"n{n:03}" for n in range(2, 60, 2)]
        assert await pages(store, Filter(fields=(Requirement("status.lastError", "exists"),)), 10) == [[]]

    async def test_a_thousand_puts_are_one_transaction(self, store: ResourceStore) -> None:
        documents = [agent(f"n{n:04}", labels={"bulk": "yes", "n": str(n)}) for n in range(1000)]
        assert {each.action for each in await put(store, *documents)} == {"created"}
        assert {each.action for each in await put(store, *documents)} == {"unchanged"}
        assert await store.revision() == 1000
        assert await pages(store, Filter(labels=parse_labels("n=500")), 10) == [["n0500"]]
        assert len((await store.list(Filter(labels=parse_labels("bulk=yes")), limit=5000)).items) == 1000
