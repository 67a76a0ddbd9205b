"""Fields and values that no data of a JSON Schema can have.

A field that the schema does not name counts as one that cannot be, unless it says `additionalProperties`: whoever asks
for it has misspelt another one. Where a schema leaves something open, nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

from foliot.common.suggestions import suggestion
from foliot.resources.expressions import EACH, Read
from foliot.resources.problems import Path

Shape: TypeAlias = dict[str, Any]
_DEEPEST: Final = 8


def impossible(read: Read, schema: Any, owner: str) -> Iterator[tuple[str, str | None]]:
    """Yields what `read` asks of the data of `owner` that its schema rules out, each with a hint."""
    found = _wrong_field(read.steps, schema, read.said, owner)
    if found is not None:
        yield found
        return
    here = shapes_at(schema, read.steps)
    for wanted in read.wanted:
        if found := _wrong_value(here, wanted, read.said, owner):
            yield found
    for name in read.holding:
        if here and all(shape.get("type") == "array" for shape in here):
            found = _wrong_value(shapes_at(schema, (*read.steps, EACH)), name, read.said, owner)
        else:
            found = _wrong_field((*read.steps, name), schema, read.said, owner)
        if found:
            yield found


def _wrong_field(steps: Sequence[str], schema: Any, said: str, owner: str) -> tuple[str, str | None] | None:
    here = _shapes(schema, schema)
    for step in steps:
        if here is None:
            return None
        if step != EACH:
            names = [name for shape in here for name in shape.get("properties", {})]
            if any(_is_open(shape) for shape in here):
                return None
            if step not in names:
                hint = suggestion(step, names, f"it has {', '.join(names)}" if names else "it has no fields")
                return f"{said}: {owner} has no field {step!r}", hint
        here = _inside(here, step, schema)
    return None


def _wrong_value(here: list[Shape] | None, wanted: str, said: str, owner: str) -> tuple[str, str | None] | None:
    known = [_allowed(shape) for shape in here or ()]
    if not known or None in known:
        return None
    values = [value for each in known if each is not None for value in each]
    if wanted in values:
        return None
    return f"{said}: {owner} is never {wanted!r} there", suggestion(wanted, values, f"it is one of {', '.join(values)}")


# Keywords beside which, or below which, `required` may speak of properties that are listed elsewhere.
_ELSEWHERE: Final = (
    "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
    "patternProperties",
)  # fmt: skip


def demanded_and_not_there(schema: Any) -> Iterator[tuple[Path, str, list[str]]]:
    """Yields the names that a schema demands and does not list, each with its place and what is listed there.

    Only where nothing else could list them: it has properties, and neither others nor parts that are put together.
    """
    todo: list[tuple[Path, Any]] = [((), schema)]
    while todo:
        place, here = todo.pop(0)
        if not isinstance(here, dict):
            continue
        shape = cast("Shape", here)
        listed: Any = shape.get("properties")
        properties = cast("Shape", listed) if isinstance(listed, dict) else {}
        required: Any = shape.get("required")
        if (
            properties
            and isinstance(required, list)
            and not _is_open(shape)
            and not any(k in shape for k in _ELSEWHERE)
        ):
            for index, name in enumerate(cast("list[Any]", required)):
                if isinstance(name, str) and name not in properties:
                    yield (*place, "required", index), name, list(properties)
        todo += [((*place, "properties", name), each) for name, each in properties.items()]
        todo += [((*place, word), shape[word]) for word in ("items", "additionalProperties") if word in shape]


def shapes_at(schema: Any, steps: Sequence[str]) -> list[Shape] | None:
    """The alternatives of what stands at a place; None when they cannot be told."""
    here = _shapes(schema, schema)
    for step in steps:
        if here is None or any(step != EACH and _is_open(shape) for shape in here):
            return None
        here = _inside(here, step, schema)
    return here


def _inside(here: list[Shape], step: str, root: Any) -> list[Shape] | None:
    if step == EACH:
        given = [shape.get("items") for shape in here]
    else:
        given = [shape["properties"][step] for shape in here if step in shape.get("properties", {})]
    inner = [_shapes(each, root) for each in given]
    return None if None in inner else [shape for each in inner if each is not None for shape in each]


def _is_open(shape: Shape) -> bool:
    """Whether objects of this shape may have fields that it does not name."""
    if shape.get("additionalProperties") or shape.get("patternProperties"):
        return True
    return "properties" not in shape and shape.get("type") in (None, "object", ["object", "null"])


def _allowed(shape: Shape) -> list[str] | None:
    """The values that a shape allows, as the texts that route labels are; None when it does not list them."""
    values: Any = [shape["const"]] if "const" in shape else shape.get("enum")
    if shape.get("type") == "boolean" and not values:
        values = [True, False]
    if not isinstance(values, list):
        return None
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in cast("list[Any]", values)]


def _shapes(schema: Any, root: Any, depth: int = 0) -> list[Shape] | None:
    """The alternatives of a schema, without null; None when they cannot be told."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    shape = cast("Shape", schema)
    if "allOf" in shape or "not" in shape or "if" in shape:
        return None
    if isinstance(ref := shape.get("$ref"), str):
        target: Any = root
        for step in ref.removeprefix("#/").split("/") if ref.startswith("#/") else ("",):
            target = cast("Shape", target).get(step) if isinstance(target, dict) else None
        return _shapes(target, root, depth + 1)
    if (choices := shape.get("anyOf") or shape.get("oneOf")) is None:
        return [] if shape.get("type") == "null" else [shape]
    found = [_shapes(choice, root, depth + 1) for choice in choices]
    return None if None in found else [each for inner in found if inner is not None for each in inner]
