"""The owners of the fields of a resource, and what becomes of a field when somebody applies a manifest: pure functions.

A *field* is the smallest part that has owners of its own (see `rules_of`), named by the way to it from the root of
the document. A *manager* is a program or a person under a name of their choice. Several managers own one field when
they set it to the same value.

    apply     sets what the manifest says, and nothing else. Fields that only this manager owned and that are no longer
              in the manifest go (they fall back to their default). A field that another manager owns with another
              value is a conflict; forced, it is taken from them. A list that the manifest has empty is one too.
    update    (PUT, POST, `foliot edit`, Foliot itself) replaces all of it. The manager owns what it changed or added;
              everybody loses what was changed or taken away.
    patch     as update, and the manager owns every field that it named, changed or not.

Fields that nobody owns are defaults, and are worked out anew with each apply. Labels and annotations of `foliot.dev/`
are Foliot's own, and have no owner.

Laws (tests/resources/test_field_owners.py): applying twice is applying once; disjoint manifests commute, but for the
order of items; what only I own goes when I leave it out; what others own survives; force makes me the owner.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, cast, get_args, get_origin

from foliot.errors import Conflict, InvalidInput
from foliot.resources.kinds import kind_of
from foliot.resources.names import OWN
from foliot.resources.problems import render_path

# --- merge rules -----------------------------------------------------------------------------------------------------

# The granularity of ownership in a kind: which parts of a spec several managers may share, and which are one value.
#
# Read off the models, so that a new field needs no entry here:
#
#     an object with named fields       field by field
#     a map of typed values             key by key (labels, annotations, headers, the input of a task, a graph)
#     a list that `BY_ITEM` names       item by item, each under its key
#     any other list, JSON Schemas and
#     JSON of any form                  one value, with one owner
#
# A list is in `BY_ITEM` when its items have names and their order means nothing. Lists that grant or forbid something
# (permissions, roles, hosts, approvers, the tools of an agent or of a filter, the capabilities that open a tool) stay
# one value all the same: whoever declares such a rule must hear that somebody else has widened it, and with shared
# items nobody would.

ItemKey: TypeAlias = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class OneValue:
    """A value that has one owner as a whole."""


@dataclass(frozen=True, slots=True)
class ByKey:
    """Each key has its owners; `value` is the rule of what stands there."""

    value: Rule


@dataclass(frozen=True, slots=True)
class ByField:
    """Each field has its owners. A field that is not here is one value."""

    fields: Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class ByItem:
    """Each item of a list has its owners, under its key. A list with an item that has none is one value."""

    key: ItemKey


Rule: TypeAlias = OneValue | ByKey | ByField | ByItem


def _text(item: Any) -> str | None:
    return item if isinstance(item, str) else None


def _any_case(item: Any) -> str | None:
    """Identifies items of lists in which two spellings of a word are the same item."""
    return item.lower() if isinstance(item, str) else None


def _name(item: Any) -> str | None:
    return cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None


BY_ITEM: Final[Mapping[tuple[str, str], ItemKey]] = {
    ("McpServer", "env"): _name,
    ("Tool", "after"): _text,
    ("Tool", "requires"): _text,
    ("Tool", "requires_prior"): _text,
    ("Tool", "resource_keys"): _text,
    ("Worker", "capabilities.supported_models"): _any_case,
}

_VALUE: Final = OneValue()
_METADATA: Final = ByField({"labels": ByKey(_VALUE), "annotations": ByKey(_VALUE)})


@cache
def rules_of(kind: str) -> ByField:
    """The rules of a document of this kind, from its root. Of a kind that is not known, each field of the spec is one
    value."""
    known = kind_of(kind)
    if known is None:
        return ByField({"metadata": _METADATA, "spec": ByKey(_VALUE)})
    # Not before something is written: whoever only reads never loads the models.
    spec = known.model().model_fields["spec"].annotation
    return ByField({"metadata": _METADATA, "spec": _rule(known.name, spec, ())})


def _rule(kind: str, annotation: Any, path: tuple[str, ...]) -> Rule:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _rule(kind, get_args(annotation)[0], path)
    if origin in (Union, types.UnionType):
        parts = [each for each in get_args(annotation) if each is not type(None)]
        return _rule(kind, parts[0], path) if len(parts) == 1 else _VALUE
    if origin is list:
        key = BY_ITEM.get((kind, ".".join(path)))
        return _VALUE if key is None else ByItem(key)
    if origin is dict:
        inner = get_args(annotation)[1]
        return _VALUE if inner is Any else ByKey(_rule(kind, inner, (*path, "*")))
    from pydantic import BaseModel

    from foliot.resources.base import emitted_key

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ByField(
            {
                (key := emitted_key(annotation, name)): _rule(kind, field.annotation, (*path, key))
                for name, field in annotation.model_fields.items()
            }
        )
    return _VALUE


# --- field owners ----------------------------------------------------------------------------------------------------

Document: TypeAlias = dict[str, Any]
Field: TypeAlias = tuple[str, ...]
Leaves: TypeAlias = Mapping[Field, Any]
Owners: TypeAlias = Mapping[str, frozenset[Field]]
How: TypeAlias = Literal["update", "patch", "apply"]

APPLY: Final = "foliot"
EDIT: Final = "foliot-edit"
PATCH: Final = "foliot-patch"
PUT: Final = "foliot-put"
SYSTEM: Final = "system"

MASK: Final = "***"
LONGEST_SHOWN: Final = 120
MOST_SHOWN: Final = 20
_MANAGER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._@/-]{0,126}[A-Za-z0-9])?")
_LIST_KEYS: Final = ("labels", "annotations")
_ABSENT: Final = object()
# The last step of the field that an entry of a map is by itself, when its parts have owners of their own: whoever
# declares a node of a graph owns that it is there. No field has this name.
_ITSELF: Final = ""
# A field of an object that is empty is not given, see resources/base.py; an entry of a map is.
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


@dataclass(frozen=True, slots=True)
class Claim:
    """The manager on whose behalf a document is written, and the fields it sets itself.

    `fields` is None for all of them. The rest of the document is defaults, or belongs to others. `said` are the fields
    that the whole document says, whoever says them: any other is a default from now on, and has no owner. None where
    that is not known.
    """

    manager: str = SYSTEM
    fields: frozenset[Field] | None = None
    how: How = "update"
    said: frozenset[Field] | None = None


BY_SYSTEM: Final = Claim()


@dataclass(frozen=True, slots=True)
class Disputed:
    """A field that a manifest and other managers want to be different things."""

    field: Field
    managers: tuple[str, ...]
    live: Any
    wanted: Any

    def __str__(self) -> str:
        owned = " and ".join(self.managers)
        return f"{render_path(self.field)} is {shown(self.live)} by {owned}, and {shown(self.wanted)} here"


@dataclass(frozen=True, slots=True)
class Merged:
    document: Document
    disputed: tuple[Disputed, ...] = ()


class FieldConflict(Conflict):
    """A manifest sets fields that other managers own to something else. `details["conflicts"]` lists them all."""

    code = "field_conflict"


def check_manager(name: str) -> str:
    """Raises `InvalidInput` for what cannot name a manager, or names Foliot itself."""
    if not _MANAGER.fullmatch(name) or name == SYSTEM:
        raise InvalidInput(
            f"{name[:80]!r} cannot be a field manager",
            hint=f"up to 128 letters, digits and . _ - @ /, and not {SYSTEM}",
        )
    return name


def leaves(document: Mapping[str, Any]) -> dict[Field, Any]:
    """Every field of a document that can have owners, with its value."""
    return dict(_leaves(rules_of(document["kind"]), _declared(document), ()))


def emptied(document: Mapping[str, Any]) -> frozenset[Field]:
    """The lists that a document has, and that are empty. They have no owner, but nobody else may fill them."""
    return frozenset(_emptied(rules_of(document["kind"]), _declared(document), ()))


def merge(
    live: Document | None,
    document: Document,
    given: Collection[Field],
    owners: Owners,
    manager: str,
    empty: Collection[Field] = (),
) -> Merged:
    """`document`, of which the manifest says the fields `given`, applied over `live` by `manager`.

    `empty` are the lists that it wants to be without items.

    Of a Secret the documents are masked, with `*** (changed)` where the manifest has another value. Where there is a
    dispute, the merged document has what the manifest says.
    """
    rule = rules_of(document["kind"])
    mine = _pick(rule, _declared(document), _Reach(given), ())
    if live is None:
        return Merged({**document, **_with_own({}, document, mine)})
    before = leaves(live)
    others = {name: fields for name, fields in owners.items() if name != manager}
    gone = _Reach(empty)
    theirs = (field for fields in others.values() for field in fields if not gone.touches(field))
    kept = _pick(rule, _declared(live), _Reach(theirs), ())
    disputed = (*_disputed(before, dict(_leaves(rule, mine, ())), others), *_filled(live, empty, others))
    whole = _overlaid(rule, kept, mine, _declared(live))
    return Merged({**document, **_with_own(live, document, whole)}, disputed)


def settle(owners: Owners, before: Leaves, after: Leaves, claim: Claim) -> dict[str, frozenset[Field]]:
    """The owners of a document that was changed from the fields `before` to those `after`."""
    unchanged = frozenset(field for field, value in after.items() if field in before and same(before[field], value))
    settled: dict[str, frozenset[Field]] = {}
    for name, fields in owners.items():
        if claim.how == "apply" and name == claim.manager:
            continue
        kept = fields & unchanged
        if claim.said is not None:
            kept = frozenset(field for field in kept if field in claim.said or not _is_of_spec(field))
        if kept:
            settled[name] = kept
    claimed = frozenset(after) if claim.fields is None else claim.fields & after.keys()
    if claim.how == "update":
        owned = frozenset(field for fields in settled.values() for field in fields)
        # What a document says as it stands is its author's if it was nobody's: a default that was said is none.
        claimed -= unchanged if claim.said is None else unchanged & owned
    if mine := claimed | settled.get(claim.manager, frozenset()):
        settled[claim.manager] = mine
    return settled


def _is_of_spec(field: Field) -> bool:
    return field[0] == "spec"


def without_fields(document: Document, fields: Collection[Field]) -> Document:
    """The document without these fields. An object stays when all that was in it is gone: it may say something."""
    gone = frozenset(fields)
    spec = _without(_inner(rules_of(document["kind"]), "spec"), document.get("spec") or {}, gone, ("spec",))
    return {**document, "spec": {} if spec is _ABSENT else spec}


def _without(rule: Rule, value: Any, gone: frozenset[Field], field: Field) -> Any:
    parts = _parts(rule, value)
    if parts is None:
        return _ABSENT if field in gone else value
    kept = {name: _without(_inner(rule, name), inner, gone, (*field, name)) for name, inner in parts.items()}
    left = {name: inner for name, inner in kept.items() if inner is not _ABSENT}
    return list(left.values()) if isinstance(rule, ByItem) else left


def named_by(patch: Mapping[str, Any], before: Leaves, given: Leaves) -> frozenset[Field]:
    """Return the fields of `given` that a JSON merge patch names, in the spelling that is stored, or has changed.

    A list names all its items. What is changed without its name was named in another place, as `stringData` of a
    Secret is; a default that was filled in anew is not given.
    """
    reach = _Reach(_named(patch, ()))
    return frozenset(
        field
        for field, value in given.items()
        if reach.touches(field) or field not in before or not same(before[field], value)
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values of a field are the same JSON, with the order of names: it is what a model sees."""
    if one != other:
        return False
    return one.__class__ is str or json.dumps(one) == json.dumps(other)


# --- as they are stored and shown --------------------------------------------------------------------------------


def encode_owners(owners: Owners) -> str:
    """One text for equal owners: JSON pointers by manager, in order."""
    return json.dumps({name: sorted(map(pointer, owners[name])) for name in sorted(owners)}, ensure_ascii=False)


def decode_owners(text: str, fields: Collection[Field]) -> dict[str, frozenset[Field]]:
    """The owners of a document with these fields.

    A record of another version of Foliot may divide a document differently: who owned the whole owns its parts, and
    who owned a part owns the whole.
    """
    known = frozenset(fields)
    kept: dict[str, list[str]] = json.loads(text)
    owners: dict[str, frozenset[Field]] = {}
    for name, pointers in kept.items():
        said = frozenset(map(_field, pointers))
        if not said <= known:
            reach = _Reach(said)
            said = frozenset(field for field in known if reach.touches(field))
        if said:
            owners[name] = said
    return owners


def managed_fields(owners: Owners) -> list[dict[str, Any]]:
    """Give the owners in the form of `metadata.managedFields`."""
    return [{"manager": name, "fields": sorted(map(pointer, owners[name]))} for name in sorted(owners)]


@functools.lru_cache(4096)
def pointer(field: Field) -> str:
    """The field as a JSON pointer (RFC 6901); an item of a list goes by its key."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in field)


def conflict_of(disputed: Mapping[str, Iterable[Disputed]]) -> FieldConflict:
    """All disputes, by the resource that each is about, as one error. Long values are cut, secret ones are masked."""
    every = [(which, each) for which, found in disputed.items() for each in found]
    lines = [f"{which}: {each}" for which, each in every[:MOST_SHOWN]]
    if len(every) > MOST_SHOWN:
        lines.append(f"and {len(every) - MOST_SHOWN} more")
    return FieldConflict(
        "other managers own fields that the manifests set to something else:\n" + "\n".join(lines),
        hint="take them out of the manifest to leave them to their owners, or take them over with "
        "`foliot apply --force-conflicts` (in HTTP ?forceConflicts=true); "
        "`foliot get -o yaml --show-managed-fields` shows who owns what",
        conflicts=[
            {
                "resource": which,
                "field": render_path(each.field),
                "managers": list(each.managers),
                "live": shown(each.live),
                "wanted": shown(each.wanted),
            }
            for which, each in every[:MOST_SHOWN]
        ],
    )


@functools.lru_cache(4096)
def _field(text: str) -> Field:
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def shown(value: Any) -> str:
    text = value if isinstance(value, str) and value.startswith(MASK) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


# --- going through documents -------------------------------------------------------------------------------------


def _declared(document: Mapping[str, Any]) -> Document:
    """The part that has owners: labels and annotations that are not Foliot's own, and the spec."""
    metadata: dict[str, Any] = document.get("metadata") or {}
    marks = {part: _marks(metadata, part, own=False) for part in _LIST_KEYS}
    return {"metadata": marks, "spec": document.get("spec") or {}}


def _marks(metadata: Mapping[str, Any], part: str, *, own: bool) -> dict[str, Any]:
    found: dict[str, Any] = metadata.get(part) or {}
    return {name: value for name, value in found.items() if name.startswith(OWN) is own}


def _with_own(live: Document, document: Document, merged: Any) -> Document:
    """Metadata and spec of the merged document, with the labels and annotations that nobody owns."""
    metadata = {name: value for name, value in document["metadata"].items() if name not in _LIST_KEYS}
    found: Document = merged if merged is not _ABSENT else {}
    for part in _LIST_KEYS:
        marks = dict(found.get("metadata", {}).get(part, {}))
        marks |= _marks(live.get("metadata") or {}, part, own=True)
        marks |= _marks(document["metadata"], part, own=True)
        if marks:
            metadata[part] = marks
    return {"metadata": metadata, "spec": found.get("spec", {})}


def _inner(rule: Rule, name: str) -> Rule:
    if isinstance(rule, ByField):
        return rule.fields.get(name, _VALUE)
    return rule.value if isinstance(rule, ByKey) else _VALUE


def _parts(rule: Rule, value: Any) -> dict[str, Any] | None:
    """The parts of a value that have owners of their own, by name; None when it is one value."""
    if isinstance(rule, OneValue):
        return None
    if not isinstance(rule, ByItem):
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None
    if isinstance(value, list):
        items = cast("list[Any]", value)
        named = {key: item for item in items if (key := rule.key(item))}
        return named if len(named) == len(items) else None
    return None


def _whole(rule: Rule, parts: dict[str, Any]) -> Any:
    """The value of these parts; nothing when there are none."""
    if not parts:
        return _ABSENT
    return list(parts.values()) if isinstance(rule, ByItem) else parts


def _leaves(rule: Rule, value: Any, field: Field, *, entry: bool = False) -> Iterator[tuple[Field, Any]]:
    """`entry` when it stands under a key of its author's: there, what is empty is given all the same."""
    if value is _ABSENT:
        return
    parts = _parts(rule, value)
    if parts is None:
        if entry or value not in _EMPTY:
            yield field, value
        return
    if entry:
        yield (*field, _ITSELF), None
    for name, inner in parts.items():
        yield from _leaves(_inner(rule, name), inner, (*field, name), entry=isinstance(rule, ByKey))


def _emptied(rule: Rule, value: Any, field: Field) -> Iterator[Field]:
    if isinstance(value, list) and not value:
        yield field
    elif not isinstance(rule, ByItem):
        for name, inner in (_parts(rule, value) or {}).items():
            yield from _emptied(_inner(rule, name), inner, (*field, name))


def _pick(rule: Rule, value: Any, fields: _Reach, field: Field) -> Any:
    """Return the part of the value that these fields are."""
    parts = _parts(rule, value)
    if parts is None:
        return value if fields.touches(field) else _ABSENT
    picked = {name: _pick(_inner(rule, name), inner, fields, (*field, name)) for name, inner in parts.items()}
    whole = _whole(rule, {name: inner for name, inner in picked.items() if inner is not _ABSENT})
    if whole is _ABSENT and fields.touches((*field, _ITSELF)):
        return value.__class__()
    return whole


def _overlaid(rule: Rule, base: Any, top: Any, live: Any) -> Any:
    """`base` under `top`; parts of `base` keep their place after what stands before them in `live`."""
    if top is _ABSENT or base is _ABSENT:
        return base if top is _ABSENT else top
    below, above = _parts(rule, base), _parts(rule, top)
    if below is None or above is None:
        return top
    order = _parts(rule, live) or {}
    merged: dict[str, Any] = {}
    for name in _ordered(above, below, order):
        parts = below.get(name, _ABSENT), above.get(name, _ABSENT), order.get(name, _ABSENT)
        merged[name] = _overlaid(_inner(rule, name), *parts)
    return _whole(rule, merged) if merged else top


def _ordered(above: Collection[str], below: Collection[str], live: Collection[str]) -> list[str]:
    behind: dict[str | None, list[str]] = {None: []}
    last = None
    for name in live:
        if name in above:
            last = name
        elif name in below:
            behind.setdefault(last, []).append(name)
    return [*behind[None], *(each for name in above for each in (name, *behind.get(name, ())))]


def _named(patch: Mapping[str, Any], field: Field) -> Iterator[Field]:
    for name, value in patch.items():
        if not isinstance(value, Mapping):
            yield (*field, name)
        elif value:
            yield from _named(cast("Mapping[str, Any]", value), (*field, name))
        else:
            yield (*field, name, _ITSELF)  # merged, an empty object changes nothing of what is in it


def _disputed(before: Leaves, wanted: Leaves, others: Owners) -> Iterator[Disputed]:
    reach = {name: _Reach(fields) for name, fields in others.items()}
    for field, value in wanted.items():
        live = before.get(field, _ABSENT)
        if live is not _ABSENT and same(live, value):
            continue
        owned = [name for name, fields in reach.items() if fields.touches(field)]
        if owned:
            yield Disputed(field, tuple(sorted(owned)), None if live is _ABSENT else live, value)


def _filled(live: Document, empty: Iterable[Field], others: Owners) -> Iterator[Disputed]:
    """Lists that are wanted without items, and have some of other managers."""
    for field in sorted(empty):
        reach = _Reach([field])
        owned = sorted(name for name, fields in others.items() if any(map(reach.touches, fields)))
        if owned:
            yield Disputed(field, tuple(owned), functools.reduce(lambda part, name: part[name], field, live), [])


class _Reach:
    """Some fields, with all that they are parts of: whether another field is one of them, above or below one."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self._fields = frozenset(fields)
        self._above = frozenset(field[:length] for field in self._fields for length in range(1, len(field)))

    def touches(self, field: Field) -> bool:
        return field in self._above or any(field[:length] in self._fields for length in range(1, len(field) + 1))
