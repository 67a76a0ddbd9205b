"""A default that follows from other fields follows them for good: whoever changes one of them, by whatever way, gets
what creating the same would have given.

Nothing here lists such defaults. Each kind has a pool of valid specs: as little as it takes, all that there is, each
field of that left out, and each word of each field that takes only some words. Any of them is changed into any other.
"""

from __future__ import annotations

import copy
import random
import types
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal, Union, get_args, get_origin

import pytest

from foliot.resources.base import Model, emitted_key
from foliot.resources.defaults import Sent, defaults_of, patched
from foliot.resources.field_owners import Claim, Document, Owners, leaves, named_by, settle
from foliot.resources.kinds import KINDS
from foliot.resources.validate import validated
from foliot.server.resources import merge
from tests.adversary.test_role_table import SAMPLES
from tests.resources.conftest import SPECS

PAIRS: Final = 120
EDITED: Final = [kind for kind in KINDS if kind != "Secret"]  # its values are sealed, and none is a default


# What takes several fields at once, and so is none of the changes of one.
BASES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "Agent": (
        {"model_ref": "m", "limits": {"max_tokens": 5}, "compaction": {"max_tokens": 5000}},
        {"runner": {"command": ["x"]}},
        {"model_ref": "m", "sandbox": {"network": [{"hosts": ["a.example"]}]}},
    ),
    "Channel": ({"type": "telegram", "agent": "a", "auth": {"secretRef": "s"}},),
    "McpServer": ({"transport": "stdio", "command": "x"},),
    "ModelEndpoint": ({"provider": "openai", "default_model": "x"}, {"provider": "anthropic", "default_model": "x"}),
    "Tool": (
        {"type": "function", "function": "a:b"},
        {"type": "http", "endpoint": "https://a.example", "http": {"method": "GET"}},
        {"type": "http", "endpoint": "https://a.example", "auth": {"secretRef": "s"}},
        {"type": "cli", "cli": {"command": ["ls"]}},
        {"type": "function", "function": "a:b", "sandbox": {"image": "a/b@sha256:" + 64 * "0"}},
        {"type": "function", "function": "a:b", "sandbox": {"secrets": [{"secretRef": "s", "hosts": ["a.example"]}]}},
        {"type": "function", "function": "a:b", "runtime": {"timeouts": {"total": "7s"}}},
    ),
}


def words_of(annotation: Any) -> list[Any]:
    """The words that a field takes, if it takes only some."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) in (typing.Annotated, Union, types.UnionType):
        return [
            word
            for each in get_args(annotation)[: 1 if get_origin(annotation) is typing.Annotated else None]
            for word in words_of(each)
        ]
    return []


def choices(
    model: type[Model], spec: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each field below, with each other word that it takes, and left out."""
    for name, info in model.model_fields.items():
        key = emitted_key(model, name)
        if key in spec:
            yield (*path, key), None
        for word in words_of(info.annotation):
            if spec.get(key) != word:
                yield (*path, key), word
        inner = next(
            (
                each
                for each in (info.annotation, *get_args(info.annotation))
                if isinstance(each, type) and issubclass(each, Model)
            ),
            None,
        )
        if inner is not None and isinstance(spec.get(key, {}), dict):
            yield from choices(inner, spec.get(key, {}), (*path, key))


def changed(spec: dict[str, Any], path: tuple[str, ...], word: Any) -> dict[str, Any]:
    made = copy.deepcopy(spec)
    here = made
    for step in path[:-1]:
        here = here.setdefault(step, {})
    if word is None:
        here.pop(path[-1], None)
    else:
        here[path[-1]] = word
    return made


def raw(kind: str, spec: dict[str, Any]) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": kind,
        "metadata": {"name": "it", "namespace": "default"},
        "spec": spec,
    }


def pool(kind: str) -> list[Document]:
    """Valid documents of a kind, as their authors give them."""
    model = typing.cast("type[Model]", KINDS[kind].model().model_fields["spec"].annotation)
    found: list[Document] = []
    bases = [SAMPLES[kind], SPECS[kind], *BASES.get(kind, ())]
    for base in bases:
        for spec in (base, *(changed(base, *choice) for choice in choices(model, base))):
            resource, _ = validated(raw(kind, spec))
            if resource is not None:
                given = resource.given()
                given.pop("status", None)
                if given not in found:
                    found.append(given)
    return found


def complete(document: Document) -> Document:
    resource, problems = validated(document)
    assert resource is not None, problems
    made = resource.model_dump(by_alias=True)
    return {"spec": {}, **{name: value for name, value in made.items() if name != "status"}}


def created(given: Document) -> tuple[Document, Owners]:
    document = complete(given)
    return document, settle({}, {}, leaves(document), Sent(document, given).claim("author"))


def patch_between(before: Any, after: Any) -> Any:
    """The merge patch that makes one into the other."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    gone = {name: None for name in before if name not in after}
    return gone | {
        name: patch_between(before.get(name), value) for name, value in after.items() if before.get(name) != value
    }


def by_patch(live: Document, owners: Owners, before: Document, after: Document) -> tuple[Document, Owners]:
    changes = {"spec": patch_between(before["spec"], after["spec"])}
    resource, problems = validated(patched(live, owners, lambda declared: merge(declared, changes)))
    assert resource is not None, problems
    document, given = complete(resource.given()), leaves(resource.given())
    claim = Claim("patcher", named_by(changes, leaves(live), given), "patch", frozenset(given))
    return document, settle(owners, leaves(live), leaves(document), claim)


def by_put(live: Document, owners: Owners, before: Document, after: Document) -> tuple[Document, Owners] | None:
    """What was read is changed where its author would change it, and sent back."""
    whole = merge(live, {"spec": patch_between(before["spec"], after["spec"])})
    resource, _ = validated(whole)
    if resource is None:
        return None  # a default that was read does not go with the change: that is told, and nothing is stored
    given = resource.given()
    sent = Sent(resource.model_dump(by_alias=True), given).after_reading(live, owners)
    document = {"spec": {}, **{name: value for name, value in sent.document.items() if name != "status"}}
    return document, settle(owners, leaves(live), leaves(document), sent.claim("putter"))


def says_what_was_read(live: Document, owners: Owners, after: Document) -> bool:
    """Whether a default that was read is meant now: in a whole document that looks the same as sending it back."""
    said, stored = leaves(after), leaves(live)
    return any(field in said and said[field] == stored[field] for field in defaults_of(live, owners))


def pairs(kind: str) -> Iterator[tuple[Document, Document]]:
    documents = pool(kind)
    every = [(one, other) for one in documents for other in documents if one != other]
    random.Random(kind).shuffle(every)
    yield from every[:PAIRS]


@pytest.mark.parametrize("kind", EDITED)
def test_a_change_gives_what_creating_the_same_gives(kind: str) -> None:
    refused = done = 0
    for before, after in pairs(kind):
        live, owners = created(before)
        wanted = complete(after)
        assert (document := by_patch(live, owners, before, after)[0])["spec"] == wanted["spec"], (
            before,
            after,
            document,
        )
        if (put := by_put(live, owners, before, after)) is None:
            refused += 1
            continue
        done += 1
        if says_what_was_read(live, owners, after):
            continue
        assert put[0]["spec"] == wanted["spec"], (before, after, put[0])
    assert refused <= done, (refused, done)


@pytest.mark.parametrize("kind", EDITED)
def test_it_goes_on_following_after_every_way_of_writing(kind: str) -> None:
    for before, between in list(pairs(kind))[:25]:
        live, owners = created(before)
        for way in (by_patch, by_put):
            if (written := way(live, owners, before, between)) is None:
                continue
            assert by_patch(*written, between, before)[0]["spec"] == live["spec"], (way, before, between)


@pytest.mark.parametrize("kind", EDITED)
def test_what_was_said_stays_whatever_else_changes(kind: str) -> None:
    """Also where it says what would have been the default."""
    for before, _ in list(pairs(kind))[:25]:
        said = complete(before)
        live, owners = created(said)
        assert defaults_of(live, owners) == frozenset()
        changes = {"metadata": {"labels": {"a": "b"}}}
        resource, _ = validated(patched(live, owners, lambda declared, changes=changes: merge(declared, changes)))
        assert resource is not None
        assert complete(resource.given())["spec"] == live["spec"]


# These put in order what is said (a zero or an empty list is the default), and fill nothing in that follows from it.
ORDERS: Final = {
    *("Node", "MessageRetry", "ToolRuntime", "ToolApprovalSpec", "AgentLimits", "AgentCompaction", "NetworkRule"),
    *("SandboxSecret", "CallRetry", "TaskRetry", "TaskScheduleSpec", "WorkerSpec"),
}


def completing(model: type[Model] = Model) -> Iterator[type[Model]]:
    for each in model.__subclasses__():
        if "complete" in each.__dict__ and each.__module__.startswith("foliot.resources.definitions"):
            yield each
        yield from completing(each)


def test_the_pools_reach_every_default_that_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new `complete` that no pool reaches needs a base that does."""
    known = {kind: pool(kind) for kind in EDITED}
    filled: set[str] = set()

    def watching(model: type[Model]) -> None:
        plain = model.complete

        def complete(self: Model) -> None:
            parts = [self, *(part for part in self.__dict__.values() if isinstance(part, Model))]
            before = [dict(part.__dict__) for part in parts]
            plain(self)
            for part, then in zip(parts, before, strict=True):
                if any(
                    then[name] != value and name not in part.model_fields_set - set(then)
                    for name, value in part.__dict__.items()
                ):
                    filled.add(model.__name__)

        monkeypatch.setattr(model, "complete", complete)

    every = set(completing())
    for model in every:
        watching(model)
    for documents in known.values():
        for document in documents:
            validated(document)
    assert filled | ORDERS >= {model.__name__ for model in every}, {model.__name__ for model in every} - filled - ORDERS
