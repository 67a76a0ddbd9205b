"""JSON Schema for manifests, so that editors complete and check them.

There are two forms of each. The *preferred* one is for reading (`foliot explain`, the description of the server): words
of a choice in lower case, lists as lists, nothing that is not given. The *exact* one, which `foliot schema` writes,
accepts what the reader accepts: any case, one for a list, null and blank text for "not given", two spellings of which
one is used; and it refuses what the reader refuses, rules between fields included. What JSON Schema has no words for
(expressions, time zones, a name given twice in a list, ...) the reader alone refuses; tests/resources/test_mutants.py
lists it.
"""

from __future__ import annotations

import copy
import itertools
import re
from functools import cache
from typing import Any, Final, cast

from pydantic import ValidationError

from foliot.resources.base import MARK_MODEL, MARK_SHARED, Model, Resource
from foliot.resources.fields import MARK_ANY_CASE, MARK_EXACT, MARK_ONE_OR_MANY
from foliot.resources.kinds import KINDS, find_kind
from foliot.resources.wording import API_VERSION, API_VERSION_ALIASES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MARKS: Final = (MARK_MODEL, MARK_ANY_CASE, MARK_EXACT, MARK_ONE_OR_MANY)
# Under these a schema holds values, not schemas.
_VALUES: Final = frozenset({"default", "examples", "enum", "const", "required", *_MARKS})
_KIND: Final = "What this document declares."
_BLANK: Final = {"$ref": "#/$defs/blank"}
_SHARED: Final = {
    "blank": {"description": "Not given.", "type": ["string", "null"], "pattern": r"^\s*$"},
    "given": {
        "description": "Given, and not empty.",
        "not": {
            "anyOf": [
                _BLANK,
                {"type": "array", "not": {"contains": {"not": _BLANK}}},
                {"type": "object", "maxProperties": 0},
            ]
        },
    },
}


def json_schema(kind: str) -> dict[str, Any]:
    """The exact JSON Schema (2020-12) of a manifest of this kind. Raises `UsageError` for an unknown kind."""
    return copy.deepcopy(_exact(find_kind(kind).name))


def preferred_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of the preferred form. Raises `UsageError` for an unknown kind."""
    return copy.deepcopy(_preferred(find_kind(kind).name))


def bundle_schema(*, exact: bool = True) -> dict[str, Any]:
    """The JSON Schema of a manifest of any kind; `kind` decides which."""
    definitions: dict[str, Any] = {}
    for name in KINDS:
        schema = json_schema(name) if exact else preferred_schema(name)
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
        "properties": {"kind": _kinds(*KINDS) if exact else {"enum": list(KINDS), "description": _KIND}},
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in KINDS],
        "$defs": definitions,
    }


@cache
def _exact(name: str) -> dict[str, Any]:
    made = _opened(_marked(name))
    properties = made["properties"]
    versions = [API_VERSION, *sorted(API_VERSION_ALIASES)]
    properties["apiVersion"] = {
        "description": properties["apiVersion"]["description"],
        "anyOf": [{"enum": versions}, {"type": "string", "pattern": _pattern(versions, fold=False)}, _BLANK],
    }
    properties["kind"] = _kinds(name)
    made["$defs"] |= copy.deepcopy(_SHARED)
    return made


@cache
def _preferred(name: str) -> dict[str, Any]:
    return _without_marks(_marked(name))


@cache
def _marked(name: str) -> dict[str, Any]:
    model = KINDS[name].model()
    schema = model.model_json_schema(by_alias=True, mode="validation")
    root = schema
    if "$ref" in schema:
        root = schema["$defs"].pop(schema.pop("$ref").rpartition("/")[2])
    definitions = schema.pop("$defs", root.pop("$defs", {}))
    root["properties"]["kind"] = {"const": name, "description": _KIND}
    needed = [need for need in root.get("allOf", []) if need != {"required": ["spec"]} or _must_say(model)]
    root["allOf"] = [*needed, {"required": ["kind"]}]
    return {"$schema": DIALECT, **root, "title": name, "$defs": definitions}


def _must_say(model: type[Resource[Any, Any]]) -> bool:
    """Whether a document of this kind needs a spec at all: the empty one is refused."""
    spec = model.model_fields["spec"].annotation
    assert isinstance(spec, type)
    assert issubclass(spec, Model)
    try:
        spec.model_validate({})
    except ValidationError:
        return True
    return False


def _moved(schema: Any, kind: str) -> Any:
    """References of one kind's schema, as they read inside the bundle."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {k: _moved_reference(v, kind) if k == "$ref" else _moved(v, kind) for k, v in items}
    if isinstance(schema, list):
        return [_moved(item, kind) for item in cast("list[Any]", schema)]
    return schema


def _moved_reference(to: str, kind: str) -> str:
    return f"#/$defs/{kind}.{to.rpartition('/')[2]}" if to.startswith("#") else to


def _without_marks(part: Any) -> Any:
    if isinstance(part, dict):
        items = cast("dict[str, Any]", part).items()
        return {key: value if key in _VALUES else _without_marks(value) for key, value in items if key not in _MARKS}
    return [_without_marks(each) for each in cast("list[Any]", part)] if isinstance(part, list) else part


def _kinds(*names: str) -> dict[str, Any]:
    """Kinds are named in any case."""
    return {"description": _KIND, "anyOf": [{"enum": list(names)}, {"type": "string", "pattern": _pattern(names)}]}


def _opened(part: Any) -> Any:
    """A part of a schema of the preferred form, with all that the reader accepts in its place."""
    if isinstance(part, list):
        return [_opened(each) for each in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    marked = cast("dict[str, Any]", part)
    if (shared := marked.get(MARK_SHARED)) is not None:
        return {"$ref": f"#/$defs/{shared}"}
    made = {k: v if k in _VALUES else _opened(v) for k, v in marked.items() if k not in _MARKS}
    made |= marked.get(MARK_EXACT, {})
    if (fold := marked.get(MARK_ANY_CASE)) is not None:
        words = cast("list[str]", fold if isinstance(fold, list) else _choices(made))
        made = _any_case(made, words) if words else made
    if MARK_ONE_OR_MANY in marked:
        made = _alternative(made, {"allOf": [{"type": "string"}, made.get("items", {})]})
    if (model := marked.get(MARK_MODEL)) is not None:
        _accept_all(made, _opened(model))
    return made


def _choices(schema: dict[str, Any]) -> list[Any]:
    return schema.get("enum") or ([schema["const"]] if "const" in schema else [])


def _any_case(schema: dict[str, Any], words: list[str]) -> dict[str, Any]:
    return _alternative(schema, {"type": "string", "pattern": _pattern(words)})


def _pattern(words: list[str] | tuple[str, ...], *, fold: bool = True) -> str:
    every = "|".join("".join(_letter(each) if fold else re.escape(each) for each in word) for word in words)
    return rf"^\s*({every})\s*$"


def _letter(character: str) -> str:
    return f"[{character.upper()}{character.lower()}]" if character.isalpha() else re.escape(character)


def _alternative(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Either of both; what describes the field stands above them, where editors look for it."""
    about = {key: value for key, value in schema.items() if key in ("description", "default", "examples", "title")}
    rest = {key: value for key, value in schema.items() if key not in about}
    choices = rest["anyOf"] if rest.keys() == {"anyOf"} else [rest]
    return {**about, "anyOf": [*choices, other]}


def _accept_all(schema: dict[str, Any], model: dict[str, Any]) -> None:
    """Let the schema of an object accept fields that are not given, and refuse two spellings of which both are."""
    for group in ("properties", "patternProperties"):
        fields: dict[str, Any] = schema.get(group, {})
        for name, field in fields.items():
            fields[name] = _maybe(field)
    schema.pop("dependentSchemas", None)
    rules: list[Any] = []
    for need in schema.pop("allOf", []):
        keys = need["required"] if "required" in need else [each["required"][0] for each in need["anyOf"]]
        filled = any(keys[0] in each for each in model["filled"])
        wanted = {"$ref": "#/$defs/given"} if filled else {"not": _BLANK}
        excused = [each["rule"] for each in model["excused"] if keys[0] in each["keys"]]
        rules.append({"anyOf": [*({"required": [key], "properties": {key: wanted}} for key in keys), *excused]})
    for keys in model["spellings"]:
        for pair in itertools.combinations(keys, 2):
            rules.append({"not": {"required": list(pair), "properties": {key: {"not": _BLANK} for key in pair}}})
    rules += model["rules"]
    if rules:
        schema["allOf"] = rules


def _maybe(field: dict[str, Any]) -> dict[str, Any]:
    if field.get("type") == "string" and not field.keys() & {"enum", "const", "pattern", "minLength", "format"}:
        return {**field, "type": ["string", "null"]}
    return _alternative(field, _BLANK)
