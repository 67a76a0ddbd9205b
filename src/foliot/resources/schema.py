"""JSON Schema for manifests, so that editors complete and check them.

The schema asks for the preferred form: words of a choice in lower case, lists as lists, no nulls. What it accepts, the
reader accepts; the reader also forgives a little more. Rules between fields are the reader's alone.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final, cast

from foliot.resources.base import Model, Resource
from foliot.resources.kinds import KINDS, find_kind

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a manifest of this kind. Raises `UsageError` for an unknown kind."""
    return copy.deepcopy(_schema(find_kind(kind).name))


def bundle_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest of any kind; `kind` decides which."""
    definitions: dict[str, Any] = {}
    for name in KINDS:
        schema = json_schema(name)
        schema.pop("$schema")
        for inner, definition in schema.pop("$defs", {}).items():
            definitions.setdefault(f"{name}.{inner}", _moved(definition, name))
        definitions[name] = _moved(schema, name)
    return {
        "$schema": DIALECT,
        "title": "Foliot manifest",
        "description": "A resource of any kind.",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(KINDS), "description": "What this document declares."}},
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in KINDS],
        "$defs": definitions,
    }


@cache
def _schema(name: str) -> dict[str, Any]:
    model = KINDS[name].model()
    schema = model.model_json_schema(by_alias=True, mode="validation")
    root = schema
    if "$ref" in schema:
        root = schema["$defs"].pop(schema.pop("$ref").rpartition("/")[2])
    definitions = schema.pop("$defs", root.pop("$defs", {}))
    root["properties"]["kind"] = {"const": name, "description": "What this document declares."}
    needed = [need for need in root.get("allOf", []) if need != {"required": ["spec"]} or _must_say(model)]
    root["allOf"] = [*needed, {"required": ["kind"]}]
    return {"$schema": DIALECT, **root, "title": name, "$defs": definitions}


def _must_say(model: type[Resource[Any, Any]]) -> bool:
    """Whether a document of this kind needs a spec at all."""
    spec = model.model_fields["spec"].annotation
    return isinstance(spec, type) and issubclass(spec, Model) and bool(spec.required)


def _moved(schema: Any, kind: str) -> Any:
    """References of one kind's schema, as they read inside the bundle."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {k: f"#/$defs/{kind}.{v.rpartition('/')[2]}" if k == "$ref" else _moved(v, kind) for k, v in items}
    if isinstance(schema, list):
        return [_moved(item, kind) for item in cast("list[Any]", schema)]
    return schema
