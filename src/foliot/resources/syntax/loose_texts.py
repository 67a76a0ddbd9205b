"""Text that was written without quotes, kept as it was written.

    stringData: {pin: 0042, token: 12e4, version: 1.10}

YAML reads three numbers here. Their printed forms (42, 120000.0, 1.1) are other texts than those in the file, so where
a kind expects text and takes a number for it (`LooseText`: labels, annotations, variables, arguments, headers, inputs,
values of secrets), the reader puts the source text back before the document is checked. Every other text field refuses
a number, with the advice to quote it.

Where a kind holds such text is read off its model once: a tree of the same shape as the document, with a leaf for each
loose text and nothing for all else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, cast, get_args, get_origin

from pydantic import BeforeValidator

from foliot.resources.base import Model, accepted_keys
from foliot.resources.fields import as_text
from foliot.resources.syntax.places import Entry


@dataclass(slots=True)
class _Shape:
    """A map of the loose text below one place: here, in fields by name, in every value of a mapping, in every item."""

    text: bool = False
    fields: dict[str, _Shape] = field(default_factory=dict[str, "_Shape"])
    values: _Shape | None = None
    items: _Shape | None = None


_MaybeShape: TypeAlias = "_Shape | None"


def with_source_texts(model: type[Model], value: Any, entry: Entry | None) -> Any:
    """A document of this kind in which each loose text is what stands in the file; `entry` is its place there."""
    return _restored(_shape_of_model(model), value, entry)


def _restored(shape: _MaybeShape, value: Any, entry: Entry | None) -> Any:
    if shape is None or entry is None:
        return value
    written = entry[2]
    if isinstance(written, str):
        return written if shape.text and value is not None else value
    if isinstance(value, dict) and isinstance(written, dict):
        items = cast("dict[str, Any]", value).items()
        return {k: _restored(shape.fields.get(k) or shape.values, v, written.get(k)) for k, v in items}
    if isinstance(value, list) and isinstance(written, list):
        pairs = zip(cast("list[Any]", value), written, strict=True)
        return [_restored(shape.items, item, inner) for item, inner in pairs]
    return cast("Any", value)


@cache
def _shape_of_model(model: type[Model]) -> _Shape:
    shape = _Shape()
    for name, info in model.model_fields.items():
        inner = _shape(info.annotation, info.metadata)
        if inner is not None:
            shape.fields.update(dict.fromkeys(accepted_keys(model, name), inner))
    return shape


def _shape(annotation: Any, metadata: list[Any]) -> _MaybeShape:
    """Returns the shape of the loose texts in a field; None where there can be none.

    A union has those of all its choices.
    """
    if any(isinstance(each, BeforeValidator) and each.func is as_text for each in metadata):
        return _Shape(text=True)
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return _shape_of_model(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape(arguments[0], list(arguments[1:]))
    if origin is list and (inner := _shape(arguments[0], [])) is not None:
        return _Shape(items=inner)
    if origin is dict and (inner := _shape(arguments[1], [])) is not None:
        return _Shape(values=inner)
    if origin in (Union, UnionType):
        choices = [choice for each in arguments if (choice := _shape(each, [])) is not None]
        return _joined(choices) if choices else None
    return None


def _joined(choices: list[_Shape]) -> _Shape:
    if len(choices) == 1:
        return choices[0]
    joined = _Shape()
    for choice in choices:
        joined.text = joined.text or choice.text
        joined.fields |= choice.fields
        joined.values = joined.values or choice.values
        joined.items = joined.items or choice.items
    return joined
