"""JSON Schemas as the providers' structured outputs want them.

What is taken out here is not lost: the answer is checked against the schema as it was declared, whatever was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

# Keywords that constrained decoding does not know; a schema with one of them is refused as a whole.
_UNSUPPORTED: Final = frozenset(
    {
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
        "maxItems", "uniqueItems", "minProperties", "maxProperties", "patternProperties", "propertyNames", "contains",
        "minContains", "maxContains", "if", "then", "else", "not", "dependentSchemas", "dependentRequired",
        "unevaluatedProperties", "unevaluatedItems", "prefixItems", "$schema", "$id", "examples",
    }
)  # fmt: skip


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Can OpenAI hold the model to this schema? Every object must be closed and require all of its properties."""
    return schema.get("type") == "object" and _strict(schema)


def _strict(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(_strict(item) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return True
    node = cast("dict[str, Any]", schema)
    if _UNSUPPORTED & node.keys() or "oneOf" in node or "allOf" in node:
        return False
    if node.get("type") == "object" or "properties" in node:
        properties: Any = node.get("properties", {})
        if node.get("additionalProperties") is not False or set(properties) != set(node.get("required", ())):
            return False
        if not all(_strict(value) for value in properties.values()):
            return False
    definitions: Any = node.get("$defs", {})
    return all(_strict(node.get(key)) for key in ("items", "anyOf")) and all(map(_strict, definitions.values()))


def closed(schema: Any) -> Any:
    """The schema with every object closed and every unsupported keyword taken out, for Anthropic's native outputs."""
    if isinstance(schema, list):
        return [closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key in _UNSUPPORTED:
            continue
        if key == "oneOf":
            kept["anyOf"] = closed(value)
        elif key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            kept[key] = {name: closed(child) for name, child in cast("dict[str, Any]", value).items()}
        elif key in ("items", "anyOf", "allOf"):
            kept[key] = closed(value)
        elif key == "minItems":
            kept[key] = min(value, 1)  # zero and one are the only ones it knows
        else:
            kept[key] = value
    if kept.get("type") == "object" or "properties" in kept:
        kept["additionalProperties"] = False
    return kept
