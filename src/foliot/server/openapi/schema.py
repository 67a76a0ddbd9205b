"""Words for writing JSON Schemas shortly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

Schema: TypeAlias = dict[str, Any]

SCHEMAS: Final = "#/components/schemas/"
TEXT: Final[Schema] = {"type": "string"}
MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
NUMBER: Final[Schema] = {"type": "number"}
MAYBE_NUMBER: Final[Schema] = {"type": ["number", "null"]}
COUNT: Final[Schema] = {"type": "integer"}
YES_NO: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
ANYTHING: Final[Schema] = {"type": "object", "additionalProperties": True}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}


def ref(name: str) -> Schema:
    """The schema of this name among the components."""
    return {"$ref": SCHEMAS + name}


def listof(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def shape(
    properties: Mapping[str, Schema],
    *,
    optional: Mapping[str, Schema] | None = None,
    about: str = "",
    open: bool = True,
) -> Schema:
    """An object: `properties` are always there, `optional` may be; there can be others unless it is not `open`."""
    made: Schema = {"type": "object", "required": [*properties], "properties": {**properties, **(optional or {})}}
    if not made["required"]:
        del made["required"]
    if about:
        made["description"] = about
    if not open:
        made["additionalProperties"] = False
    return made


def moved(schema: Any) -> Any:
    """References among definitions, as they read inside the description."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {k: v.replace("#/$defs/", SCHEMAS) if k == "$ref" else moved(v) for k, v in items}
    if isinstance(schema, list):
        return [moved(item) for item in cast("list[Any]", schema)]
    return schema
