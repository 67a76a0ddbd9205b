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
_TYPES: Final[dict[type[Any], str]] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}
_DEEPEST: Final = 8
# Of a schema with more alternatives nothing is said: they multiply with each level.
_MOST: Final = 256


def impossible(read: Read, schema: Any, owner: str) -> Iterator[tuple[str, str | None]]:
    """Yields what `read` asks of the data of `owner` that its schema rules out, each with a hint."""
    found = _wrong_field(read.steps, schema, read.said, owner)
    if found is not None:
        yield found
        return
    here = shapes_at(schema, read.steps)
    wrong = [_wrong_value(here, wanted, read.said, owner) for wanted in read.wanted]
    if read.root != "route" and not any(wrong):  # all labels are texts
        wrong = [_wrong_type(here, each, read.said, owner) for each in dict.fromkeys(read.types)]
    yield from filter(None, wrong)
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
            if (names := _names(here)) is None:
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
    values = list(dict.fromkeys(value for each in known if each is not None for value in each))
    if wanted in values or wanted.removesuffix(".0") in values:
        return None
    return f"{said}: {owner} is never {wanted!r} there", suggestion(wanted, values, f"it is one of {', '.join(values)}")


def _wrong_type(here: list[Shape] | None, wanted: str, said: str, owner: str) -> tuple[str, str | None] | None:
    types: set[str] = set()
    for shape in here or ():
        said_type: Any = shape.get("type", [_type_of(each) for each in _values(shape) or ()])
        types.update([said_type] if isinstance(said_type, str) else cast("list[str]", said_type) or [""])
    known = {"number" if each == "integer" else each for each in types - {"null"}}
    if not known or wanted in known or "" in known:
        return None
    return f"{said}: {owner} has no {wanted} there", f"it is of type {' or '.join(sorted(known))}"


def _type_of(value: object) -> str:
    return _TYPES.get(type(value), "")


def names_in(schema: Any) -> list[str] | None:
    """The fields that a schema allows its objects; None where it leaves them open."""
    here = _shapes(schema, schema)
    return None if here is None else _names(here)


def _names(here: list[Shape]) -> list[str] | None:
    if any(_is_open(shape) for shape in here):
        return None
    return list(dict.fromkeys(name for shape in here for name in shape.get("properties", {})))


# Keywords that say what a shape may hold in a way that is not followed here.
_UNTOLD: Final = ("allOf", "not", "if", "$dynamicRef", "dependentSchemas")
# Those that name other schemas, which count together with what stands beside them.
_CHOICES: Final = ("$ref", "anyOf", "oneOf")
# Keywords beside which, or below which, `required` may speak of properties that are listed elsewhere.
_ELSEWHERE: Final = (*_UNTOLD, *_CHOICES, "then", "else", "patternProperties")


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
    values = _values(shape)
    if shape.get("type") == "boolean" and not values:
        values = [True, False]
    return None if values is None else [_text(each) for each in values]


def _values(shape: Shape) -> list[Any] | None:
    values: Any = [shape["const"]] if "const" in shape else shape.get("enum")
    return cast("list[Any]", values) if isinstance(values, list) else None


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shapes(schema: Any, root: Any, depth: int = 0) -> list[Shape] | None:
    """The alternatives of a schema, without null; None when they cannot be told."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    shape = cast("Shape", schema)
    if any(word in shape for word in _UNTOLD):
        return None
    word = next((word for word in _CHOICES if shape.get(word)), None)
    if word is None:
        return [] if shape.get("type") == "null" else [shape]
    outer = {key: value for key, value in shape.items() if key != word}
    found: list[Shape] = []
    for choice in [_target(shape[word], root)] if word == "$ref" else shape[word]:
        if (inner := _shapes(choice, root, depth + 1)) is None:
            return None
        for each in inner:
            if (both := _shapes(_joined(outer, each), root, depth + 1)) is None:
                return None
            found += both
            if len(found) > _MOST:
                return None
    return found


def _target(ref: Any, root: Any) -> Any:
    target: Any = root
    for step in ref.removeprefix("#/").split("/") if str(ref).startswith("#/") else ("",):
        target = cast("Shape", target).get(step) if isinstance(target, dict) else None
    return target


def _joined(outer: Shape, inner: Shape) -> Shape:
    """The shape of data that has both of these. Of a part that both describe, nothing can be told."""
    both = {**outer, **inner}
    one, other = outer.get("properties", {}), inner.get("properties", {})
    if one or other:
        shared = {name: {"allOf": [one[name], other[name]]} for name in one.keys() & other.keys()}
        both["properties"] = {**one, **other, **shared}
    if "items" in outer and "items" in inner:
        both["items"] = {"allOf": [outer["items"], inner["items"]]}
    return both
