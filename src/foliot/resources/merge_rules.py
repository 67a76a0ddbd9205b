"""The granularity of ownership in a kind: which parts of a spec several managers may share, and which are one value.

Read off the models, so that a new field needs no entry here:

    an object with named fields       field by field
    a map of typed values             key by key (labels, annotations, headers, the input of a task, a graph)
    a list that `BY_ITEM` names       item by item, each under its key
    any other list, JSON Schemas and
    JSON of any form                  one value, with one owner

A list is in `BY_ITEM` when its items have names and their order means nothing. Lists that grant or forbid something
(permissions, roles, hosts, approvers, the tools of an agent or of a filter, the capabilities that open a tool) stay
one value all the same: whoever declares such a rule must hear that somebody else has widened it, and with shared items
nobody would.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, Union, cast, get_args, get_origin

from foliot.resources.kinds import kind_of

ItemKey: TypeAlias = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class OneValue:
    """It has one owner as a whole."""


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
    """For lists in which two spellings of a word are the same item."""
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
