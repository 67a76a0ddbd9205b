"""JSON Schema as the part of OpenAPI that Gemini takes for parameters and answers.

It is what Gemini is best at. References are written out, because it knows none there; what has no place (free keys,
tuples, anything at all, a type that holds itself) is `Inexpressible`, and goes out as JSON Schema instead. Bounds that
it does not know are left out: what comes back is checked against the full schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from foliot.models.wire.schemas import MOST_NODES, Inexpressible, check_alone, definition_name

_KEPT: Final = (
    "title", "description", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum",
    "minProperties", "maxProperties",
)  # fmt: skip
_FORMATS: Final[Mapping[str, frozenset[str]]] = {
    "STRING": frozenset({"date-time", "enum"}),
    "NUMBER": frozenset({"float", "double"}),
    "INTEGER": frozenset({"int32", "int64"}),
}
_KINDS: Final = frozenset({"OBJECT", "ARRAY", "STRING", "INTEGER", "NUMBER", "BOOLEAN"})


def gemini_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema for Gemini. Raises `Inexpressible`."""
    definitions = _Definitions({**schema.get("definitions", {}), **schema.get("$defs", {})})
    return _node(schema, definitions, ())


class _Definitions(dict[str, Any]):
    """The definitions of one schema, and how many parts of it are written."""

    written = 0


def _node(schema: Any, definitions: _Definitions, inside: tuple[str, ...]) -> dict[str, Any]:
    definitions.written += 1
    if definitions.written > MOST_NODES:
        raise Inexpressible(f"more than {MOST_NODES:,} parts")
    if not isinstance(schema, dict):
        raise Inexpressible("anything at all" if schema is True else "nothing at all")
    node = cast("dict[str, Any]", schema)
    if isinstance(reference := node.get("$ref"), str):
        name = definition_name(reference)
        if name in inside or not isinstance(definitions.get(name), dict):
            raise Inexpressible(f"a reference to {name!r}")
        beside = {key: value for key, value in node.items() if key not in ("$ref", "$defs", "definitions")}
        check_alone(beside)
        beside = {key: value for key, value in beside.items() if key not in ("type", "properties")}
        return _node({**definitions[name], **beside}, definitions, (*inside, name))
    if "allOf" in node:
        members: Any = node["allOf"]
        if len(members) != 1 or not isinstance(members[0], dict):
            raise Inexpressible("several schemas at once")
        rest = {key: value for key, value in node.items() if key != "allOf"}
        check_alone(rest)
        return _node({**rest, **members[0], **{key: rest[key] for key in _KEPT if key in rest}}, definitions, inside)
    made: dict[str, Any] = {key: node[key] for key in _KEPT if node.get(key) is not None}
    if _put_choices(made, node, definitions, inside):
        return made
    given: Any = node.get("type")
    kinds = [str(each) for each in cast("list[Any]", given)] if isinstance(given, list) else [str(given)]
    made["type"] = next((each for each in kinds if each != "null"), "null").upper() if given else _guessed(node)
    if made["type"] not in _KINDS:
        raise Inexpressible("null alone")
    if "null" in kinds:
        made["nullable"] = True
    if node.get("format") in _FORMATS.get(made["type"], ()):
        made["format"] = node["format"]
    _put_enum(made, node)
    if made["type"] == "OBJECT":
        _put_properties(made, node, definitions, inside)
    if made["type"] == "ARRAY":
        if "prefixItems" in node or "items" not in node:
            raise Inexpressible("a tuple, or a list of anything at all")
        made["items"] = _node(node["items"], definitions, inside)
    return made


def _put_choices(
    made: dict[str, Any], node: dict[str, Any], definitions: _Definitions, inside: tuple[str, ...]
) -> bool:
    """The alternatives of a node, if it is a choice; null among them is a property of the whole."""
    kinds: Any = node.get("type")
    choices: list[Any] = list(node.get("anyOf") or node.get("oneOf") or ())
    if choices:
        check_alone({key: value for key, value in node.items() if key not in ("anyOf", "oneOf")})
    if not choices and isinstance(kinds, list) and sum(kind != "null" for kind in cast("list[Any]", kinds)) > 1:
        choices = [{**node, "type": kind} for kind in cast("list[Any]", kinds)]
        made.clear()  # each of them says it
    if not choices:
        return False
    concrete = [choice for choice in choices if not _is_null(choice)]
    if not concrete:
        raise Inexpressible("null alone")
    if len(concrete) < len(choices):
        made["nullable"] = True
    if len(concrete) == 1:
        made.update({**_node(concrete[0], definitions, inside), **made})
    else:
        made["anyOf"] = [_node(choice, definitions, inside) for choice in concrete]
    return True


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "null"


def _guessed(node: dict[str, Any]) -> str:
    if "properties" in node:
        return "OBJECT"
    if "items" in node:
        return "ARRAY"
    values: list[Any] = node.get("enum") or ([node["const"]] if "const" in node else [])
    kinds = {type(value).__name__ for value in values}
    if len(kinds) != 1:
        raise Inexpressible("anything at all")
    return {"bool": "BOOLEAN", "int": "INTEGER", "float": "NUMBER", "str": "STRING"}.get(kinds.pop(), "")


def _put_enum(made: dict[str, Any], node: dict[str, Any]) -> None:
    values: list[Any] = [node["const"]] if "const" in node else list(node.get("enum") or ())
    if not values:
        return
    if made.get("type") == "STRING" and all(isinstance(value, str) for value in values if value is not None):
        made["enum"] = [value for value in values if value is not None]
        made["format"] = "enum"
    else:  # only texts can be enumerated; the model can still be told
        told = f"One of {', '.join(map(str, values))}."
        made["description"] = f"{made['description']} {told}" if "description" in made else told


def _put_properties(
    made: dict[str, Any], node: dict[str, Any], definitions: _Definitions, inside: tuple[str, ...]
) -> None:
    properties: Any = node.get("properties")
    if not properties or node.get("additionalProperties") not in (None, False) or node.get("patternProperties"):
        raise Inexpressible("free keys, or an object without any")
    made["properties"] = {name: _node(child, definitions, inside) for name, child in properties.items()}
    if len(properties) > 1:  # without it Gemini writes them by name, whatever the order in which they stand
        made["propertyOrdering"] = list(properties)
    required: list[str] = node.get("required", [])
    if any(name not in properties for name in required):
        raise Inexpressible("free keys")
    if required:
        made["required"] = required
