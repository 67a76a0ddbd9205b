"""The store against a plain dict: whatever is done to both, both say the same."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from foliot.errors import Conflict, NotFound
from foliot.store.base import Change, Delete, Document, Filter, Key, Put, Requirement
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.selectors import matches
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.sqlite.database import SqliteDatabase

KINDS = st.sampled_from(["Agent", "Tool"])
SPACES = st.sampled_from(["a", "a-b"])
NAMES = st.sampled_from(["x", "x-y", "ö"])
KEYS = st.builds(Key, KINDS, SPACES, NAMES)
LABELS = st.dictionaries(st.sampled_from(["l", "m"]), st.sampled_from(["1", "2"]), max_size=2)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(0, 2)
    | st.text(max_size=3).filter(lambda t: t.isprintable()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("pq"), inner, max_size=2),
    max_leaves=4,
)
# Often from a few values that Python takes for equal.
SPECS = st.fixed_dictionaries({"s": st.sampled_from([0, False, 0.0, 1, True])}) | st.dictionaries(
    st.sampled_from(["s", "t"]), JSON, max_size=2
)
STATUSES = st.fixed_dictionaries({"phase": st.sampled_from(["Ready", "Broken"])})
# Mostly without a condition: one that fails undoes its whole batch, and an empty store shows nothing.
EXPECTATIONS = st.sampled_from(["any"] * 8 + ["absent", "present", "current", "1"])
CLAUSES = st.sampled_from(
    [
        (),
        (Requirement("l", "=", ("1",)),),
        (Requirement("l", "!=", ("1",)),),
        (Requirement("l", "in", ("1", "2")), Requirement("m", "absent")),
    ]
)
FIELDS = st.sampled_from([(), (), (Requirement("status.phase", "=", ("Ready",)),)])
FILTERS = st.builds(Filter, st.none() | KINDS, st.none() | SPACES, CLAUSES, FIELDS)


def _put(key: Key, labels: dict[str, str], spec: Document) -> Document:
    metadata = {"name": key.name, "namespace": key.namespace, "labels": labels}
    return {"kind": key.kind, "metadata": metadata, "spec": spec}


def _status(key: Key, status: Document) -> Document:
    return {"kind": key.kind, "metadata": {"name": key.name, "namespace": key.namespace}, "status": status}


def _change(key: Key) -> st.SearchStrategy[tuple[Key, Document | None, str]]:
    puts = st.builds(_put, st.just(key), LABELS, SPECS)
    statuses = st.builds(_status, st.just(key), STATUSES)
    written = st.tuples(st.just(key), puts | puts | statuses, EXPECTATIONS)
    deleted = st.tuples(st.just(key), st.none(), EXPECTATIONS.filter(lambda expect: expect != "absent"))
    return st.one_of(written, written, written, deleted)


CHANGES = KEYS.flatmap(_change)


class Model:
    """What the store should be, without a database."""

    def __init__(self) -> None:
        self.resources: dict[Key, Document] = {}
        self.feed: list[Change] = []

    def put(self, key: Key, change: Put) -> str:
        old = self.resources.get(key)
        self._expect(key, change.expect, old)
        given = change.document
        if change.only == "status":
            if old is None:
                raise NotFound("absent")
            new = {**old, "status": given["status"]}
        else:
            new = {**given, "status": old["status"] if old else {}}
            new["metadata"] = dict(given["metadata"])
        if old is not None and repr(_sorted(_visible(old))) == repr(_sorted(_visible(new))):
            return "unchanged"
        generation = 1
        if old is not None:
            same_spec = repr(_sorted(old["spec"])) == repr(_sorted(new["spec"]))
            generation = old["metadata"]["generation"] + (not same_spec)
        version = str(len(self.feed) + 1)
        by = {"user": "", "operator": True}  # every write of the machine is the process's own
        new["metadata"] = {**new["metadata"], "generation": generation, "resourceVersion": version, "declaredBy": by}
        self.resources[key] = new
        action = "created" if old is None else "updated"
        self.feed.append(Change(len(self.feed) + 1, action, copy.deepcopy(_shown(new))))
        return action

    def delete(self, key: Key, expect: str) -> str:
        old = self.resources.get(key)
        self._expect(key, expect, old)
        if old is None:
            return "unchanged"
        self.feed.append(Change(len(self.feed) + 1, "deleted", _shown(self.resources.pop(key))))
        return "deleted"

    def _expect(self, key: Key, expect: str, old: Document | None) -> None:
        if expect == "any":
            return
        if expect == "absent":
            if old is not None:
                raise Conflict("present")
        elif old is None:
            raise NotFound("absent")
        elif expect not in ("present", old["metadata"]["resourceVersion"]):
            raise Conflict("stale")


def _visible(document: Document) -> Document:
    metadata = {name: its for name, its in document["metadata"].items() if name in ("name", "namespace", "labels")}
    return {**document, "metadata": metadata}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _shown(document: Document) -> Document:
    """Neither of the kinds here needs anything to be done for it: without a phase they are ready."""
    return {**document, "status": {**document["status"], "phase": document["status"].get("phase") or "Ready"}}


def _comparable(document: Document) -> Document:
    metadata = {k: v for k, v in document["metadata"].items() if k not in ("uid", "createdAt", "updatedAt")}
    return {**document, "metadata": metadata}


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.open()

    def open(self) -> None:
        self.database = self.loop.run_until_complete(SqliteDatabase.open(Path(self.folder.name) / "foliot.db"))
        self.store = SqlResourceStore(self.database, lambda: keyring_from_text("00" * 32))

    def teardown(self) -> None:
        self.loop.run_until_complete(self.database.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    @initialize(
        filled=st.lists(st.tuples(KEYS, LABELS, SPECS), min_size=6, max_size=12, unique_by=lambda each: each[0])
    )
    def fill(self, filled: list[tuple[Key, dict[str, str], Document]]) -> None:
        self.write([(key, _put(key, labels, spec), "any") for key, labels, spec in filled])

    @rule(batch=st.lists(CHANGES, min_size=1, max_size=4))
    def change(self, batch: list[tuple[Key, Any, str]]) -> None:
        self.write(batch)

    @rule(key=KEYS, labels=LABELS, spec=SPECS)
    def put_one(self, key: Key, labels: dict[str, str], spec: Document) -> None:
        self.write([(key, _put(key, labels, spec), "any")])

    def write(self, batch: list[tuple[Key, Any, str]]) -> None:
        before = copy.deepcopy(self.model)
        real: list[Put | Delete] = []
        expected: Any = []
        for key, document, expect in batch:
            if expect == "current":
                # Known before the batch starts, as for a client that has read it.
                held = before.resources.get(key)
                expect = held["metadata"]["resourceVersion"] if held else "present"
            if document is None:
                real.append(Delete(key, expect))
            else:
                real.append(Put(document, expect, "status" if "status" in document else "spec"))
            if isinstance(expected, list):
                try:
                    change = real[-1]
                    done = self.model.put(key, change) if isinstance(change, Put) else self.model.delete(key, expect)
                    expected.append(done)
                except (Conflict, NotFound) as error:
                    expected = type(error)
        try:
            result: Any = [written.action for written in self.loop.run_until_complete(self.store.write(real))]
        except (Conflict, NotFound) as error:
            result = type(error)
        if not isinstance(expected, list):
            self.model = before
        assert result == expected

    @rule(filter=FILTERS, limit=st.integers(1, 7))
    def list(self, filter: Filter, limit: int) -> None:
        found: list[Document] = []
        cursor = None
        while True:
            page = self.loop.run_until_complete(self.store.list(filter, limit=limit, cursor=cursor))
            found += page.items
            assert page.revision == len(self.model.feed)
            if (cursor := page.cursor) is None:
                break
            assert len(page.items) == limit
        every = [_shown(doc) for _, doc in sorted(self.model.resources.items())]
        expected = [doc for doc in every if matches(doc, filter)]
        assert [_comparable(document) for document in found] == expected

    @rule(kind=st.none() | KINDS, space=st.none() | SPACES, data=st.data())
    def watch(self, kind: str | None, space: str | None, data: st.DataObject) -> None:
        after = data.draw(st.integers(0, len(self.model.feed)))
        filter = Filter(kind, space)
        expected = [change for change in self.model.feed[after:] if matches(change.document, filter)]
        changes = self.store.watch(filter, after=after)

        async def take() -> list[Change]:
            return [await anext(changes) for _ in expected]

        found = self.loop.run_until_complete(asyncio.wait_for(take(), 60))
        assert [Change(c.revision, c.action, _comparable(c.document)) for c in found] == expected

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.database.close())
        self.open()

    @invariant()
    def revisions_agree(self) -> None:
        assert self.loop.run_until_complete(self.store.revision()) == len(self.model.feed)


StoreMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStoreAgainstModel = StoreMachine.TestCase
