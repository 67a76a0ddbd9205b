"""What the resource API does, as a small pure model: the rules of docs/server.md and docs/manifests.md, and no more.

    POST     creates, or writes over what is there; `If-None-Match: *` only creates.
    PUT      replaces, at the version that is named.
    PATCH    merges (RFC 7396) onto what is there; at the version, if one is named. It owns what it named.
    DELETE   deletes; at the version, if one is named.
    apply    makes every document true or none; with prune, what apply made and nobody declares any more goes,
             unless none of the documents would stay.
    list     what the filter lets through, by kind, namespace and name.
    watch    every change behind a position once, in order; what begins to match was created for whoever looks through
             the filter, and what no longer does was deleted.
    restore  what was there at the backup, at one new version. No version and no position from before matches again.

A version is the position of the change that made it. Positions of the model are 1, 2, 3 …; those of a store are other
numbers, and whoever compares the two knows which is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Json: TypeAlias = Any
Action: TypeAlias = Literal["created", "updated", "unchanged", "deleted"]
MADE_BY_APPLY: Final = "foliot.dev/managed-by"
# A version that somebody names, and that no resource has: of before a restore, or of no time at all.
NO_VERSION: Final = -1


class Key(NamedTuple):
    kind: str
    namespace: str
    name: str


class Refused(Exception):
    """`why` is `conflict` (another version, or there already), `missing`, `gone` (a position from too long ago), or
    `unmeant` (a prune that would leave nothing of what it is about)."""

    def __init__(self, why: Literal["conflict", "missing", "gone", "unmeant"]) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Declared:
    """What people write down of one resource."""

    key: Key
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A resource as it is read. Its generation counts the changes of its spec."""

    declared: Declared
    version: int
    generation: int
    patched: frozenset[tuple[str, str]] = frozenset()  # what patches named since somebody else gave it another value


@dataclass(frozen=True)
class Change:
    position: int
    action: Action
    resource: Stored


@dataclass(frozen=True)
class Look:
    """What of the resources somebody asks for: `app` is the value that the label must have, `other` must not have."""

    namespace: str
    kind: str | None = None
    app: str | None = None
    other: str | None = None

    def lets_through(self, declared: Declared) -> bool:
        value = declared.labels.get("app")
        return (
            declared.key.namespace == self.namespace
            and self.kind in (None, declared.key.kind)
            and self.app in (None, value)
            and (self.other is None or value != self.other)
        )


@dataclass(frozen=True)
class World:
    """All resources, and every change since the store began or was restored. An act gives another world."""

    resources: Mapping[Key, Stored] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    position: int = 0
    forgotten: int = 0

    # --- acts on one resource: the world afterwards, and what was done ----------------------------------------------

    def post(self, declared: Declared, *, only_new: bool = False) -> tuple[World, Action]:
        if only_new and declared.key in self.resources:
            raise Refused("conflict")
        return self._write(declared)

    def put(self, declared: Declared, version: int) -> tuple[World, Action]:
        self._at(declared.key, version)
        return self._write(declared)

    def patch(self, key: Key, patch: Mapping[str, Json], version: int | None) -> tuple[World, Action]:
        """`patch` may have `labels`, `annotations` and `spec`."""
        before = self._at(key, version).declared
        whole = {"labels": before.labels, "annotations": before.annotations, "spec": before.spec}
        named = {
            (part, name) for part, fields in patch.items() for name, new in (fields or {}).items() if new is not None
        }
        return self._write(Declared(key, **merged(whole, patch)), named)

    def delete(self, key: Key, version: int | None) -> World:
        return self._without(self._at(key, version))

    def apply(self, documents: Iterable[Declared], prune: Look | None = None) -> tuple[World, list[Action]]:
        """`prune` tells what of a namespace is the business of these documents."""
        documents = [*documents]
        named = {declared.key for declared in documents}
        doomed = [
            stored
            for stored in (self.list(prune) if prune is not None else [])
            if stored.declared.annotations.get(MADE_BY_APPLY) == "apply" and stored.declared.key not in named
        ]
        if prune is not None and doomed and not any(prune.lets_through(declared) for declared in documents):
            raise Refused("unmeant")
        world: World = self
        done: Any = []
        for declared in documents:
            marked = {**declared.annotations, MADE_BY_APPLY: "apply"}
            world, action = world._write(replace(declared, annotations=marked))
            done.append(action)
        for stored in doomed:
            world = world._without(stored)
            done.append("deleted")
        return world, done

    # --- looking ----------------------------------------------------------------------------------------------------

    def list(self, look: Look) -> list[Stored]:
        return [stored for _, stored in sorted(self.resources.items()) if look.lets_through(stored.declared)]

    def watch(self, look: Look, after: int) -> list[Change]:
        """What somebody sees who watches from `after` on."""
        if not self.forgotten <= after <= self.position:
            raise Refused("gone")
        return [seen for each in self.changes if each.position > after and (seen := self._seen(each, look)) is not None]

    def _seen(self, change: Change, look: Look) -> Change | None:
        """Of a resource that was restored it is not known whether it matched before: it may have."""
        declared = change.resource.declared
        if not replace(look, app=None, other=None).lets_through(declared):
            return None
        now = change.action != "deleted" and look.lets_through(declared)
        earlier = [each for each in self.changes if each.position < change.position]
        before = next((each for each in reversed(earlier) if each.resource.declared.key == declared.key), None)
        if change.action == "deleted":
            matched = look.lets_through(declared)
        elif before is None:
            matched = change.action == "updated"
        else:
            matched = before.action != "deleted" and look.lets_through(before.resource.declared)
        if now:
            return replace(change, action="updated" if matched else "created")
        return replace(change, action="deleted") if matched else None

    # --- going back -------------------------------------------------------------------------------------------------

    def restored(self, backup: World) -> World:
        """What a backup holds, as a world that goes on after this one."""
        position = self.position + 1
        resources = {key: replace(stored, version=position) for key, stored in backup.resources.items()}
        return World(resources, (), position, position)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _at(self, key: Key, version: int | None) -> Stored:
        stored = self.resources.get(key)
        if stored is None:
            raise Refused("missing")
        if version not in (None, stored.version):
            raise Refused("conflict")
        return stored

    def _write(self, declared: Declared, named: Set[tuple[str, str]] = frozenset()) -> tuple[World, Action]:
        """A patch that only `named` fields which others had set changes who owns them, and so the resource."""
        declared = normal(declared)
        before = self.resources.get(declared.key)
        fields = _fields(declared)
        patched = frozenset(named & fields.keys())
        if before is not None:
            earlier = _fields(before.declared)
            patched |= {each for each in before.patched if each in fields and fields[each] == earlier[each]}
            if before.declared == declared and patched == before.patched:
                return self, "unchanged"
        generation = 1
        if before is not None:
            generation = before.generation + (before.declared.spec != declared.spec)
        stored = Stored(declared, self.position + 1, generation, patched)
        action: Action = "created" if before is None else "updated"
        return self._after(Change(stored.version, action, stored), {**self.resources, declared.key: stored}), action

    def _without(self, stored: Stored) -> World:
        rest = {key: each for key, each in self.resources.items() if key != stored.declared.key}
        return self._after(Change(self.position + 1, "deleted", stored), rest)

    def _after(self, change: Change, resources: Mapping[Key, Stored]) -> World:
        return World(resources, (*self.changes, change), change.position, self.forgotten)


def _fields(declared: Declared) -> dict[tuple[str, str], Json]:
    """Every field that can have an owner: empty ones of the spec have none."""
    marks = {"labels": declared.labels, "annotations": declared.annotations}
    found = {(part, name): value for part, values in marks.items() for name, value in values.items()}
    return found | {("spec", name): value for name, value in declared.spec.items() if value != ""}


def merged(before: Json, patch: Json) -> Json:
    """A JSON merge patch: null takes away, objects are merged, the rest is replaced."""
    if not isinstance(patch, Mapping):
        return patch
    kept: dict[str, Json] = dict(before) if isinstance(before, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = merged(kept.get(name), value)
    return kept


# What a field means that is left out, of the fields that the test plays with.
LEFT_OUT: Final[Mapping[str, Mapping[str, Json]]] = {
    "Agent": {"prompt": "", "description": "", "max_steps": 10},
    "Memory": {"type": ""},
}


def normal(declared: Declared) -> Declared:
    spec = {**LEFT_OUT[declared.key.kind], **declared.spec}
    return replace(declared, labels={**declared.labels}, annotations={**declared.annotations}, spec=spec)
