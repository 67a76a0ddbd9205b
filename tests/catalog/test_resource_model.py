"""The resource API against a pure model of it: two clients, one on the store and one over HTTP, on both databases.

Whatever they do, at once too, the store says what the model says: who is refused and why, what is listed, what each
watch is told. `resource_model.py` holds the rules. `make test` plays the same short histories every time;
`FOLIOT_CHAOS=1` looks for new ones, and Hypothesis prints the failing one, in the fewest steps, with how to play it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from foliot.client.http import Http, Server
from foliot.client.remote import RemoteClient, RemoteResources
from foliot.errors import Conflict, Gone, NotFound, UsageError
from foliot.kernel.identity import Identity
from foliot.resources.kinds import find_kind
from foliot.resources.validate import validate_document
from foliot.runtime.groups.store import ResourceGroup
from foliot.runtime.local.groups import opened_store
from foliot.settings.settings import load_settings
from foliot.store import backup
from foliot.store.base import Document, Filter, Requirement
from foliot.testing.served import served
from tests.catalog.resource_model import NO_VERSION, Change, Declared, Key, Look, Refused, Stored, World, merged
from tests.postgres_tools import run_tool

LONG = bool(os.environ.get("FOLIOT_CHAOS"))
EXAMPLES, STEPS = (150, 60) if LONG else (4, 20)
# Longer than anything takes on a busy machine.
PATIENCE = 60.0
# What every agent asks. It is declared outside the namespaces of the histories, so no history meets it.
ENDPOINT = "default/anywhere"
_NUMBERS = itertools.count(1)


# --- what is played with -----------------------------------------------------------------------------------------

KINDS = st.sampled_from(["Agent", "Memory"])
NAMES = st.sampled_from(["x", "x-y", "z"])
APPS = st.sampled_from(["a", "b"])
WORDS = st.sampled_from(["", "one", "two"])
LABELS = st.fixed_dictionaries({}, optional={"app": APPS, "tier": st.just("1")})
NOTES = st.fixed_dictionaries({}, optional={"note": WORDS})
SPECS = {
    "Agent": st.fixed_dictionaries(
        {}, optional={"prompt": WORDS, "description": WORDS, "max_steps": st.integers(9, 11)}
    ),
    "Memory": st.fixed_dictionaries({}, optional={"type": WORDS}),
}
KEYS = st.builds(lambda kind, name: Key(kind, "", name), KINDS, NAMES)


def _declared(key: Key) -> st.SearchStrategy[Declared]:
    return st.builds(Declared, st.just(key), LABELS, NOTES, SPECS[key.kind])


def _or_null(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def _patch(key: Key) -> st.SearchStrategy[tuple[Key, dict[str, Any]]]:
    specs = {
        "Agent": {"prompt": _or_null(WORDS), "description": _or_null(WORDS), "max_steps": _or_null(st.integers(9, 11))},
        "Memory": {"type": _or_null(WORDS)},
    }
    patch = st.fixed_dictionaries(
        {},
        optional={
            "labels": st.none() | st.fixed_dictionaries({}, optional={"app": _or_null(APPS)}),
            "annotations": st.fixed_dictionaries({}, optional={"note": _or_null(WORDS)}),
            "spec": st.fixed_dictionaries({}, optional=specs[key.kind]),
        },
    )
    return st.tuples(st.just(key), patch)


DECLARED = KEYS.flatmap(_declared)
# Only apply writes these: fields with several owners are the matter of the tests of field owners.
APPLIED = st.builds(lambda kind, name: Key(kind, "", name), KINDS, st.sampled_from(["applied-x", "applied-y"]))
BUNDLES = st.lists(APPLIED.flatmap(_declared), min_size=1, max_size=3, unique_by=lambda each: each.key)
PATCHES = KEYS.flatmap(_patch)
LOOKS = st.builds(
    lambda kind, app, other: Look("", kind, app, None if app else other),
    st.none() | KINDS,
    st.none() | APPS,
    st.none() | APPS,
)
VERSIONS = st.sampled_from(["none", "current", "old"])
CLIENTS = st.sampled_from(["local", "remote"])


# --- between the model and the API -------------------------------------------------------------------------------


def body_of(declared: Declared) -> Document:
    """What a person would send."""
    spec = {**declared.spec}
    if declared.key.kind == "Agent":
        spec["model_ref"] = ENDPOINT
        if "max_steps" in spec:
            spec["limits"] = {"max_steps": spec.pop("max_steps")}
    metadata = {
        "name": declared.key.name,
        "namespace": declared.key.namespace,
        "labels": {**declared.labels},
        "annotations": {**declared.annotations},
    }
    return {"apiVersion": "foliot.dev/v1", "kind": declared.key.kind, "metadata": metadata, "spec": spec}


def patch_of(patch: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: patch[name] for name in ("labels", "annotations") if name in patch}
    body: dict[str, Any] = {"metadata": metadata} if metadata else {}
    if "spec" in patch:
        spec = {**patch["spec"]}
        if "max_steps" in spec:
            spec["limits"] = {"max_steps": spec.pop("max_steps")}
        body["spec"] = spec
    return body


def seen(document: Document) -> dict[str, Any]:
    """Of a resource, what the model knows of."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    if document["kind"] == "Agent":
        played = {
            "prompt": spec.get("prompt", ""),
            "description": spec.get("description", ""),
            "max_steps": (spec.get("limits") or {}).get("max_steps", 10),
        }
    else:
        played = {"type": spec.get("type", "")}
    return {
        "key": Key(document["kind"], metadata["namespace"], metadata["name"]),
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        "spec": played,
        "generation": metadata["generation"],
        "version": int(metadata["resourceVersion"]),
    }


def filter_of(look: Look) -> Filter:
    labels: tuple[Requirement, ...] = ()
    if look.app is not None:
        labels = (Requirement("app", "=", (look.app,)),)
    elif look.other is not None:
        labels = (Requirement("app", "!=", (look.other,)),)
    return Filter(look.kind, look.namespace, labels)


async def said(act: Coroutine[Any, Any, Any]) -> Any:
    """What an act answers, or why it was refused."""
    try:
        return await act
    except Conflict:
        return "conflict"
    except NotFound:
        return "missing"
    except Gone:
        return "gone"
    except UsageError:
        return "unmeant"


# --- a place where both clients are ------------------------------------------------------------------------------


class Place:
    """A store, a server on it, and two clients, which outlive many histories: each has a namespace of its own."""

    def __init__(self, home: Path, store: str) -> None:
        self.home, self.store = home, store
        self.loop = asyncio.new_event_loop()
        self._stack: contextlib.AsyncExitStack | None = None
        self.local: ResourceGroup
        self.remote: RemoteResources
        self.steps = 0

    def run(self, act: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(act, PATIENCE))

    async def open(self) -> None:
        stack = self._stack = contextlib.AsyncExitStack()
        url = await stack.enter_async_context(served(self.home))
        client = RemoteClient(Http(Server(url, home=self.home)))
        stack.push_async_callback(client.close)
        self.remote = client.resources
        settings = load_settings({"home": str(self.home), "store": self.store})
        store = await stack.enter_async_context(opened_store(settings, caller=Identity("me", via="cli")))
        self.local = store.resources
        namespace, name = ENDPOINT.split("/")
        await self.local.apply(
            [
                {
                    "apiVersion": "foliot.dev/v1",
                    "kind": kind,
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": spec,
                }
                for kind, spec in (
                    ("ModelEndpoint", {"provider": "mock", "default_model": "anything"}),
                    ("ReferenceGrant", {"from": [{"namespace": "*"}], "to": [{"kind": "ModelEndpoint"}]}),
                )
            ]
        )

    async def close(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            await stack.aclose()

    def client(self, name: str) -> ResourceGroup:
        return self.local if name == "local" else self.remote

    def back_up(self, file: Path) -> None:
        backup.back_up(Path(self.store), file)

    def put_back(self, file: Path) -> None:
        backup.restore(file, Path(self.store), replace=True)


class PostgresPlace(Place):
    """With PostgreSQL's own tools: dumped while it is in use, and put back into a new database of the same name."""

    def back_up(self, file: Path) -> None:
        run_tool("pg_dump", "--format=custom", f"--file={file}", f"--dbname={self.store}")

    def put_back(self, file: Path) -> None:
        self.run(self._made_anew())
        run_tool("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={self.store}", str(file))

    async def _made_anew(self) -> None:
        address = urlsplit(self.store)
        name = address.path.removeprefix("/")
        admin = await asyncpg.connect(urlunsplit(address._replace(path="/postgres")))
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        await admin.close()


class Watch:
    """One watch of one client; `after` is the position in the model up to which it was told everything."""

    def __init__(self, client: ResourceGroup, look: Look, after: int, real: int) -> None:
        self.client, self.look, self.after = client, look, after
        self._changes: AsyncIterator[Any] = client.watch(filter_of(look), after=real)

    async def next(self, count: int) -> list[Any]:
        return [await anext(self._changes) for _ in range(count)]

    async def close(self) -> None:
        if (close := getattr(self._changes, "aclose", None)) is not None:
            await close()


class Histories(RuleBasedStateMachine):
    """One history in a namespace of its own."""

    def __init__(self, place: Place, folder: Path) -> None:
        super().__init__()
        self.place, self.folder = place, folder
        self.space = f"space-{next(_NUMBERS)}"
        self.world = World()
        self.real: dict[int, int] = {}  # positions of the model, as the store has them
        self.versions: dict[Key, list[int]] = {}  # every version that a resource ever had, as the store has them
        self.watches: list[Watch] = []
        self.backups: list[tuple[World, Path]] = []
        self.whole = False  # nothing has failed yet

    @initialize()
    def begin(self) -> None:
        self.real[0] = self.place.run(self._revision())
        self.whole = True

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            for watch in self.watches:
                self.place.run(watch.close())

    def _end(self) -> None:
        if not self.whole:
            return
        # Something that every watch sees: whatever it was told twice, or too much, would come before this.
        for kind, app in itertools.product(("Agent", "Memory"), ("a", "b")):
            self.post(Declared(Key(kind, "", f"last-{app}"), {"app": app}), only_new=False)
        for watch in self.watches:
            self._drain(watch)

    # --- acts --------------------------------------------------------------------------------------------------------

    @rule(declared=DECLARED, only_new=st.booleans())
    def post(self, declared: Declared, only_new: bool) -> None:
        self._play(*self._post(self._mine(declared), only_new))

    @rule(declared=DECLARED, version=VERSIONS, client=CLIENTS, data=st.data())
    def put(self, declared: Declared, version: str, client: str, data: st.DataObject) -> None:
        self._play(*self._put(self._mine(declared), version if version != "none" else "current", client, data))

    @rule(patch=PATCHES, version=VERSIONS, inside=st.booleans(), data=st.data())
    def patch(self, patch: tuple[Key, dict[str, Any]], version: str, inside: bool, data: st.DataObject) -> None:
        self._play(*self._patch(patch, version, inside, data))

    @rule(key=KEYS | APPLIED, version=VERSIONS, client=CLIENTS, data=st.data())
    def delete(self, key: Key, version: str, client: str, data: st.DataObject) -> None:
        self._play(*self._delete(self._placed(key), version, client, data))

    @rule(bundle=BUNDLES, client=CLIENTS, prune=st.none() | APPS)
    def apply(self, bundle: list[Declared], client: str, prune: str | None) -> None:
        self._play(*self._apply([self._mine(each) for each in bundle], client, prune))

    @rule(
        one=PATCHES, other=PATCHES, bundle=BUNDLES, way=st.sampled_from(["patches", "patch and apply"]), data=st.data()
    )
    def act_at_once(self, one: Any, other: Any, bundle: list[Declared], way: str, data: st.DataObject) -> None:
        """Two acts at the same moment are as one after the other, in either order."""
        first = self._patch(one, "none", False, data)
        if bundle is None:
            second = self._patch(other, "none", False, data)
        else:
            second = self._apply([self._mine(each) for each in bundle], "local", None)
        with self._step():
            self._compare_together(first, second)

    # Each gives what the model does, and the same act through a client.

    def _post(self, declared: Declared, only_new: bool) -> Any:
        headers = {"If-None-Match": "*"} if only_new else {}
        return (
            lambda world: _over_http(*world.post(declared, only_new=only_new)),
            lambda: self._ask("POST", declared.key, body_of(declared), headers),
        )

    def _put(self, declared: Declared, version: str, client: str, data: st.DataObject) -> Any:
        named, real = self._version(declared.key, version, data)
        document = body_of(declared)
        document["metadata"]["resourceVersion"] = str(real)
        whole, problems = validate_document(document)
        assert whole is not None, problems
        return (
            lambda world: world.put(declared, named),
            lambda: self._outcome(self.place.client(client).replace(whole)),
        )

    def _patch(self, patch: tuple[Key, dict[str, Any]], version: str, inside: bool, data: st.DataObject) -> Any:
        key, changes = self._placed(patch[0]), patch[1]
        named, real = (None, None) if version == "none" else self._version(key, version, data)
        body, headers = patch_of(changes), dict[str, str]()
        if real is not None and inside:
            body = merged(body, {"metadata": {"resourceVersion": str(real)}})
        elif real is not None:
            headers = {"If-Match": f'"{real}"'}
        return (
            lambda world: _over_http(*world.patch(key, changes, named)),
            lambda: self._ask("PATCH", key, body, headers),
        )

    def _delete(self, key: Key, version: str, client: str, data: st.DataObject) -> Any:
        named, real = (None, None) if version == "none" else self._version(key, version, data)
        asked = None if real is None else str(real)

        async def act() -> Any:
            where = {"namespace": key.namespace, "version": asked}
            deleted = await said(self.place.client(client).delete(key.kind, key.name, **where))
            return deleted if isinstance(deleted, str) else "deleted"

        def model(world: World) -> Any:
            return world.delete(key, named), "deleted"

        return model, act

    def _apply(self, bundle: list[Declared], client: str, prune: str | None) -> Any:
        selector = None if prune is None else (Requirement("app", "=", (prune,)),)
        documents = [validate_document(body_of(each))[0] for each in bundle]

        async def act() -> Any:
            acting = self.place.client(client)
            done = await said(acting.apply(documents, prune=selector, prune_namespace=self.space))  # type: ignore[arg-type]
            return done if isinstance(done, str) else [each.action for each in done.outcomes]

        look = None if prune is None else Look(self.space, app=prune)
        return lambda world: world.apply(bundle, look), act

    # --- looking -----------------------------------------------------------------------------------------------------

    @rule(look=LOOKS, client=CLIENTS, limit=st.integers(1, 4))
    def list(self, look: Look, client: str, limit: int) -> None:
        with self._step():
            self._list(self._looking(look), self.place.client(client), limit)

    def _list(self, look: Look, client: ResourceGroup, limit: int) -> None:
        found: Any = []
        cursor = None
        while True:
            page = self.place.run(client.list(filter_of(look), limit=limit, cursor=cursor))
            found += page.items
            if (cursor := page.cursor) is None:
                break
        assert [seen(each) for each in found] == [self._shown(each) for each in self.world.list(look)]

    @rule(look=LOOKS, client=CLIENTS, data=st.data())
    @precondition(lambda self: len(self.watches) < 4)
    def watch(self, look: Look, client: str, data: st.DataObject) -> None:
        """From any position of the past that is kept."""
        after = data.draw(st.integers(self.world.forgotten, self.world.position))
        self.watches.append(Watch(self.place.client(client), self._looking(look), after, self.real[after]))

    @rule(data=st.data())
    @precondition(lambda self: self.watches)
    def drain(self, data: st.DataObject) -> None:
        watch = data.draw(st.sampled_from(self.watches))
        with self._step():
            self._drain(watch)

    @rule(client=CLIENTS, data=st.data())
    @precondition(lambda self: self.watches)
    def go_on_elsewhere(self, client: str, data: st.DataObject) -> None:
        """A watch that broke off is taken up behind the last thing it was told, by any client."""
        watch = data.draw(st.sampled_from(self.watches))
        self.place.run(watch.close())
        self.watches.remove(watch)
        self.watches.append(Watch(self.place.client(client), watch.look, watch.after, self.real[watch.after]))

    # --- going back --------------------------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: not self.backups)
    def back_up(self) -> None:
        file = self.folder / f"{self.space}.{len(self.backups)}"
        self.place.back_up(file)
        self.backups.append((self.world, file))

    @rule()
    @precondition(lambda self: self.backups)
    def restore(self) -> None:
        with self._step():
            self._restore(*self.backups.pop())

    def _restore(self, before: World, file: Path) -> None:
        for watch in self.watches:
            self.place.run(watch.close())
        self.place.run(self.place.close())
        self.place.put_back(file)
        file.unlink()
        self.place.run(self.place.open())
        newest = max(self.real.values())
        self.world = self.world.restored(before)
        position = self.place.run(self._revision())
        assert position > newest, "no version is used twice"
        self.real[self.world.position] = position
        for stored in self.world.resources.values():
            self.versions.setdefault(stored.declared.key, []).append(position)
        for watch in self.watches:
            for client in (self.place.local, self.place.remote):
                old = Watch(client, watch.look, watch.after, self.real[watch.after])
                assert self.place.run(said(old.next(1))) == "gone"
        # They list again, and go on from there.
        self.watches = [
            Watch(each.client, each.look, self.world.position, position) for each in self._reconnected(self.watches)
        ]

    def _reconnected(self, watches: list[Watch]) -> Iterator[Watch]:
        for number, watch in enumerate(watches):
            watch.client = self.place.remote if number % 2 else self.place.local
            yield watch

    # --- comparing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Something that must hold; what fails here is not compared any further."""
        self.place.steps += 1
        whole, self.whole = self.whole, False
        yield
        self.whole = whole

    def _play(self, model: Callable[[World], Any], act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        with self._step():
            self._compare(model, act)

    def _compare(self, model: Callable[[World], Any], act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        world, expected = _answer(model, self.world)
        assert self.place.run(act()) == expected
        self._agree(world)

    def _compare_together(self, first: Any, second: Any) -> None:
        async def both() -> Any:
            return await asyncio.gather(first[1](), second[1]())

        found = tuple(self.place.run(both()))
        after_first, one = _answer(first[0], self.world)
        one_then_other, two = _answer(second[0], after_first)
        after_second, early = _answer(second[0], self.world)
        other_then_one, late = _answer(first[0], after_second)
        shown = self._resources()
        orders = [(one_then_other, (one, two)), (other_then_one, (late, early))]
        fitting = [world for world, answers in orders if answers == found and self._contents(world) == shown]
        assert fitting, f"{found} and {shown} in neither order: {[answers for _, answers in orders]}"
        self._agree(fitting[0])

    def _resources(self) -> Any:
        return [seen(each) for each in self.place.run(self.place.local.list(Filter(None, self.space))).items]

    def _contents(self, world: World) -> Any:
        """What the store must show when it is at `world`, the changes since now being at the next positions."""
        now, real = self.world.position, self.real[self.world.position]
        positions = {**self.real, **{each: real + each - now for each in range(now + 1, world.position + 1)}}
        return [self._shown(each, positions[each.version]) for each in world.list(Look(self.space))]

    def _agree(self, world: World) -> None:
        """The store is as far as the model: each change took one position, and what there is now is the same."""
        made, before = world.position - self.world.position, self.real[self.world.position]
        position = self.place.run(self._revision())
        assert position - before == made, "one position for each change"
        for offset in range(1, made + 1):
            self.real[self.world.position + offset] = before + offset
        self.world = world
        for stored in world.resources.values():
            known = self.versions.setdefault(stored.declared.key, [])
            if (real := self.real[stored.version]) not in known:
                known.append(real)
        page = self.place.run(self.place.local.list(Filter(None, self.space)))
        assert [seen(each) for each in page.items] == [self._shown(each) for each in world.list(Look(self.space))]

    def _drain(self, watch: Watch) -> None:
        expected = self.world.watch(watch.look, watch.after)
        found = self.place.run(watch.next(len(expected)))
        told, meant = [self._change(each) for each in found], [self._expected(each) for each in expected]
        assert told == meant, f"through {watch.look}: {told} and not {meant}"
        if expected:
            watch.after = expected[-1].position

    def _change(self, change: Any) -> Any:
        shown = seen(change.document)
        return change.revision, change.action, shown["key"], shown["labels"], shown["spec"]

    def _expected(self, change: Change) -> Any:
        declared = change.resource.declared
        return self.real[change.position], change.action, declared.key, declared.labels, declared.spec

    def _shown(self, stored: Stored, version: int | None = None) -> dict[str, Any]:
        declared = stored.declared
        return {
            "key": declared.key,
            "labels": declared.labels,
            "annotations": declared.annotations,
            "spec": declared.spec,
            "generation": stored.generation,
            "version": self.real[stored.version] if version is None else version,
        }

    # --- asking ------------------------------------------------------------------------------------------------------

    def _version(self, key: Key, which: str, data: st.DataObject) -> tuple[int, int]:
        """A version to name: in the model, and as the store has it."""
        stored = self.world.resources.get(key)
        known = self.versions.get(key, [])
        current = None if stored is None else self.real[stored.version]
        if which == "current" and stored is not None and current is not None:
            return stored.version, current
        old = [each for each in known if each != current]
        return NO_VERSION, data.draw(st.sampled_from(old)) if old else 999_999_999_999

    async def _ask(self, method: str, key: Key, body: Document, headers: dict[str, str]) -> Any:
        path = f"/v1/{find_kind(key.kind).plural}" + ("" if method == "POST" else f"/{key.name}")
        asked = self.place.remote._http.ask(
            method, path, params={"namespace": key.namespace}, body=msgspec.json.encode(body), headers=headers
        )
        answer = await said(asked)
        if isinstance(answer, str):
            return answer
        return "created" if answer.status == 201 else "changed or not"

    async def _outcome(self, act: Coroutine[Any, Any, Any]) -> Any:
        outcome = await said(act)
        return outcome if isinstance(outcome, str) else outcome.action

    async def _revision(self) -> int:
        return (await self.place.local.list(Filter("Agent", self.space), limit=1)).revision

    def _mine(self, declared: Declared) -> Declared:
        return Declared(self._placed(declared.key), declared.labels, declared.annotations, declared.spec)

    def _placed(self, key: Key) -> Key:
        return key._replace(namespace=self.space)

    def _looking(self, look: Look) -> Look:
        return Look(self.space, look.kind, look.app, look.other)


def _answer(model: Callable[[World], Any], world: World) -> tuple[World, Any]:
    try:
        return model(world)
    except Refused as refused:
        return world, refused.why


def _over_http(world: World, action: str) -> tuple[World, str]:
    """The status of an answer tells what was created, and no more."""
    return world, "created" if action == "created" else "changed or not"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "sqlite":
        store = str(tmp_path / "foliot.db")
        made = Place(tmp_path, store)
    else:
        store = request.getfixturevalue("postgres_url")
        made = PostgresPlace(tmp_path, store)
    monkeypatch.setenv("FOLIOT_STORE", store)
    monkeypatch.setenv("FOLIOT_HOME", str(tmp_path))
    made.run(made.open())
    try:
        yield made
    finally:
        made.run(made.close())
        made.loop.run_until_complete(made.loop.shutdown_default_executor())
        made.loop.close()


def test_whatever_two_clients_do_is_what_the_model_says(place: Place, tmp_path: Path) -> None:
    # A step takes a server and sometimes a restore: to look for the shortest history takes longer than a test may.
    phases = tuple(Phase) if LONG else (Phase.explicit, Phase.reuse, Phase.generate)
    played = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, report_multiple_bugs=False, phases=phases)
    run_state_machine_as_test(lambda: Histories(place, tmp_path), settings=played)
    assert place.steps
