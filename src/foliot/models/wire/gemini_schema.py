"""JSON Schema brought down to the part of OpenAPI that Gemini takes for parameters and answers.

What has no place there is dropped, never refused: the arguments are checked against the full schema before a tool
runs. References are written out, because Gemini knows none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

_KEPT: Final = (
    "title", "description", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum",
    "minProperties", "maxProperties",
)  # fmt: skip
_FORMATS: Final[Mapping[str, frozenset[str]]] = {
    "STRING": frozenset({"date-time", "enum"}),
    "NUMBER": frozenset({"float", "double"}),
    "INTEGER": frozenset({"int32", "int64"}),
}
_DEPTH: Final = 12


def gemini_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema for Gemini. A recursive definition is cut where it repeats and becomes an open object there."""
    definitions: dict[str, Any] = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    return _node(schema, definitions, ())


def _node(schema: Any, definitions: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(schema, dict) or len(inside) > _DEPTH:
        return {"type": "OBJECT"} if schema is not False and inside else {"type": "STRING"}
    node = cast("dict[str, Any]", schema)
    if isinstance(reference := node.get("$ref"), str):
        name = reference.rsplit("/", 1)[-1]
        if name in inside or name not in definitions:
            return {"type": "OBJECT"}
        found = _node(definitions[name], definitions, (*inside, name))
        return {**found, "description": node["description"]} if "description" in node else found
    if "allOf" in node:
        node = _merged(node, definitions)
    made: dict[str, Any] = {key: node[key] for key in _KEPT if node.get(key) is not None}
    _put_type(made, node, definitions, inside)
    kind = made.get("type")
    if node.get("format") in _FORMATS.get(kind or "", ()):
        made["format"] = node["format"]
    _put_enum(made, node)
    if kind == "OBJECT":
        _put_properties(made, node, definitions, inside)
    if kind == "ARRAY":
        items: Any = node.get("items", node.get("prefixItems", [{"type": "string"}]))
        made["items"] = _node(items[0] if isinstance(items, list) and items else items, definitions, inside)
    return made


def _merged(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """`allOf` as one schema: later members win, properties and requirements add up."""
    merged: dict[str, Any] = {}
    members: list[Any] = [*node["allOf"], {key: value for key, value in node.items() if key != "allOf"}]
    for member in members:
        part: Any = member
        if isinstance(member, dict) and isinstance(name := cast("dict[str, Any]", member).get("$ref"), str):
            part = definitions.get(name.rsplit("/", 1)[-1])
        if not isinstance(part, dict):  # `true` and `false` are schemas too; they name nothing that could be merged
            continue
        member = cast("dict[str, Any]", part)
        properties = {**merged.get("properties", {}), **member.get("properties", {})}
        required = [*merged.get("required", ()), *member.get("required", ())]
        merged.update(member)
        if properties:
            merged["properties"] = properties
        if required:
            merged["required"] = list(dict.fromkeys(required))
    merged.pop("allOf", None)
    return merged


def _put_type(made: dict[str, Any], node: dict[str, Any], definitions: dict[str, Any], inside: tuple[str, ...]) -> None:
    given: Any = node.get("type")
    kinds = cast("list[Any]", given) if isinstance(given, list) else [given] if given else []
    alternatives: list[Any] = list(node.get("anyOf") or node.get("oneOf") or ())
    concrete = [kind for kind in kinds if kind != "null"]
    if len(concrete) > 1 and not alternatives:
        alternatives = [{**node, "type": kind} for kind in concrete]
        concrete = []
    if "null" in kinds or any(_is_null(choice) for choice in alternatives):
        made["nullable"] = True
    alternatives = [choice for choice in alternatives if not _is_null(choice)]
    if len(alternatives) == 1:
        made.update({**_node(alternatives[0], definitions, inside), **made})
    elif alternatives:
        made["anyOf"] = [_node(choice, definitions, inside) for choice in alternatives]
    elif concrete:
        made["type"] = str(concrete[0]).upper()
    else:
        made["type"] = _guessed(node)


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "null"


def _guessed(node: dict[str, Any]) -> str:
    if "properties" in node:
        return "OBJECT"
    if "items" in node or "prefixItems" in node:
        return "ARRAY"
    values: list[Any] = node.get("enum") or ([node["const"]] if "const" in node else [])
    value = values[0] if values else ""
    if isinstance(value, bool):
        return "BOOLEAN"
    return "INTEGER" if isinstance(value, int) else "NUMBER" if isinstance(value, float) else "STRING"


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
    made: dict[str, Any], node: dict[str, Any], definitions: dict[str, Any], inside: tuple[str, ...]
) -> None:
    properties: Any = node.get("properties")
    if not properties:
        return
    made["properties"] = {name: _node(child, definitions, inside) for name, child in properties.items()}
    if len(properties) > 1:  # without it Gemini writes them by name, whatever the order in which they stand
        made["propertyOrdering"] = list(properties)
    if required := [name for name in node.get("required", ()) if name in properties]:
        made["required"] = required
