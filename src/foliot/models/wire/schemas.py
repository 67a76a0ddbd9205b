"""JSON Schemas as the providers' structured outputs want them.

A schema that is sent is never narrower than the one declared: what it allows is all that was declared, or more. What a
dialect does not know and can be left out (a bound, a pattern) is told in the description instead, and the answer is
checked against the schema as it was declared. What it does not know and cannot be left out (free keys, anything at all,
tuples, a type that holds itself) has no translation, and the caller asks in another way.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import msgspec

Schema = dict[str, Any]
# Keywords that say how values are built. Every other one only takes values away, or says something to people.
_SHAPES: Final = frozenset(
    {
        "$ref", "type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "required", "additionalProperties",
        "patternProperties", "items", "prefixItems", "$defs", "definitions",
    }
)  # fmt: skip
_SAID: Final = frozenset(
    {
        "title", "description", "default", "examples", "$schema", "$id", "$comment", "discriminator", "deprecated",
        "readOnly", "writeOnly", "propertyOrdering",
    }
)  # fmt: skip
_REFERENCE: Final = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
MOST_NODES: Final = 5000
"""The largest schema that is translated: writing references out can double it with each."""
_SIMPLE: Final = (str, int, float, bool, type(None))


class Inexpressible(Exception):
    """The dialect has no words for this schema; the text says for what of it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The part of JSON Schema that a provider takes. `keeps` are the keywords that may stand beside the shape.

    `closes`: every object is closed, so free keys cannot be said. `all_required`: every property is. `recursion` is
    "any", "optional" (only below a property that may be left out) or "no". `tuples` and `enums` of everything may not
    be known; `anything` may be said by an empty schema; `optionals` and `unions` are how many there may be.
    """

    keeps: frozenset[str] = frozenset()
    formats: frozenset[str] | None = frozenset()
    closes: bool = True
    all_required: bool = False
    recursion: str = "no"
    tuples: bool = False
    enums: tuple[type, ...] = _SIMPLE
    ordering: bool = False
    anything: bool = False
    optionals: int | None = None
    unions: int | None = None


_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
STRICT: Final = Dialect(
    keeps=frozenset(
        {"pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
    ),
    formats=_FORMATS - {"uri"},
    all_required=True,
    recursion="any",
)
NATIVE: Final = Dialect(keeps=frozenset({"minItems"}), formats=_FORMATS, optionals=24, unions=16)
GEMINI: Final = Dialect(
    keeps=frozenset({"minItems", "maxItems", "minimum", "maximum"}),
    formats=frozenset({"date-time", "date", "time"}),
    closes=False,
    recursion="optional",
    tuples=True,
    enums=(str, int, float),
    ordering=True,
)


class Memory:
    """Translations of the last schemas, which are asked with at every step. A schema is known by being the same one."""

    def __init__(self, make: Callable[[Schema], Schema | None], most: int = 256) -> None:
        self._make = make
        self._most = most
        self._made: OrderedDict[int, tuple[Schema, Schema | None]] = OrderedDict()

    def __call__(self, schema: Schema) -> Schema | None:
        known = self._made.get(id(schema))
        if known is not None and known[0] is schema:
            return known[1]
        made = self._make(schema)
        self._made[id(schema)] = (schema, made)  # holding the schema keeps its id from being given away
        if len(self._made) > self._most:
            self._made.popitem(last=False)
        return made


def _free(dialect: Dialect) -> Dialect:
    """The dialect for arguments, which are checked before a tool runs: what has no type may be anything."""
    return replace(dialect, anything=True, recursion="any")


def _translation(dialect: Dialect) -> Memory:
    def make(schema: Schema) -> Schema | None:
        try:
            return translated(schema, dialect)
        except (Inexpressible, RecursionError):
            return None

    return Memory(make)


strict_schema: Final = _translation(STRICT)
"""The schema as OpenAI can hold a model to it, or None."""
native_schema: Final = _translation(NATIVE)
"""The schema for Anthropic's native outputs, or None."""
gemini_json_schema: Final = _translation(GEMINI)
"""The schema for Gemini's `responseJsonSchema`, or None."""


gemini_parameters: Final = _translation(_free(GEMINI))
"""The schema of a tool for Gemini's `parametersJsonSchema`, or None."""


def in_words(schema: Mapping[str, Any]) -> str:
    """The schema as an instruction, for a model that cannot be held to it."""
    return f"Give your final answer as JSON only, following this JSON Schema: {msgspec.json.encode(schema).decode()}"


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether only objects fit it, which most ways of asking insist on."""
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    for _ in range(len(definitions) + 1):
        if "$ref" not in schema:
            return schema.get("type") == "object"
        schema = definitions.get(definition_name(schema["$ref"]), {})
    return False


def translated(schema: Schema, dialect: Dialect) -> Schema:
    """The schema in a dialect. Raises `Inexpressible`."""
    return _Translator(schema, dialect).root()


def _is_shaped(schema: Any) -> bool:
    return not _SHAPES.isdisjoint(schema)


def definition_name(reference: Any) -> str:
    """The name of the definition that a reference leads to; the reference itself, which names none, if elsewhere."""
    found = _REFERENCE.fullmatch(str(reference))
    return found[1].replace("~1", "/").replace("~0", "~") if found else str(reference)


def check_alone(beside: Mapping[str, Any]) -> None:
    """Raises `Inexpressible` for a shape of its own beside a reference or a choice: both would have to hold."""
    shapes = _SHAPES.intersection(beside) - {"$defs", "definitions"}
    if beside.get("type") == "object" and not beside.get("properties"):
        shapes -= {"type", "properties"}  # every schema of a tool says so
    if shapes:
        raise Inexpressible(f"{', '.join(sorted(shapes))} beside a reference or a choice")


@dataclass(slots=True)
class _Translator:
    schema: Schema
    dialect: Dialect
    definitions: dict[str, Any] = field(init=False)
    recursive: frozenset[str] = field(init=False)
    _kept: dict[str, Schema] = field(default_factory=dict[str, Schema])
    _optionals: int = 0
    _unions: int = 0
    _nodes: int = 0

    def __post_init__(self) -> None:
        self.definitions = {**self.schema.get("definitions", {}), **self.schema.get("$defs", {})}
        self.recursive = self._circles(below_optional=True)
        if self.recursive and self.dialect.recursion == "no":
            raise Inexpressible("a type that holds itself")
        if self.dialect.recursion == "optional" and self._circles(below_optional=False):
            raise Inexpressible("a type that must hold itself")

    def root(self) -> Schema:
        top = {key: value for key, value in self.schema.items() if key not in ("$defs", "definitions")}
        seen: set[str] = set()
        while "$ref" in top:
            if (name := definition_name(top["$ref"])) in seen:
                raise Inexpressible("a reference to itself")
            seen.add(name)
            beside = {key: value for key, value in top.items() if key != "$ref"}
            check_alone(beside)
            top = {**self._definition(name), **{key: value for key, value in beside.items() if key not in _SHAPES}}
        made = self.node(top)
        if self.dialect.closes and made.get("type") != "object":
            raise Inexpressible("an answer that is no object")
        if self._kept:
            made["$defs"] = dict(self._kept)
        for count, most, what in (
            (self._optionals, self.dialect.optionals, "optional properties"),
            (self._unions, self.dialect.unions, "unions"),
        ):
            if most is not None and count > most:
                raise Inexpressible(f"more than {most} {what}")
        return made

    def node(self, schema: Any) -> Schema:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise Inexpressible(f"more than {MOST_NODES:,} parts")
        if self.dialect.anything and (schema is True or (isinstance(schema, dict) and not _is_shaped(schema))):
            return {} if schema is True else {key: schema[key] for key in ("title", "description") if key in schema}
        if not isinstance(schema, dict):
            raise Inexpressible("anything at all" if schema is True else "nothing at all")
        node = cast("Schema", schema)
        if "$ref" in node:
            return self._reference(node)
        if "allOf" in node:
            return self.node(self._merged(node))
        made: Schema = {}
        choices = node.get("anyOf") or node.get("oneOf")
        kinds: Any = node.get("type")
        if choices is not None:
            if not _SHAPES.isdisjoint(node.keys() - {"anyOf", "oneOf", "type", "$defs", "definitions"}):
                raise Inexpressible("a choice beside a shape of its own")
            self._unions += 1
            made["anyOf"] = [self.node(choice) for choice in choices]
        elif isinstance(kinds, list):
            self._unions += 1
            rest = {key: value for key, value in node.items() if key not in ("type", "title", "description", "default")}
            made["anyOf"] = [self.node(_of_kind(rest, kind)) for kind in cast("list[Any]", kinds)]
        else:
            self._put_shape(made, node, kinds)
        self._put_said(made, node)
        return made

    def _put_shape(self, made: Schema, node: Schema, kind: Any) -> None:
        kind = kind or ("object" if "properties" in node else "array" if "items" in node else None)
        values: list[Any] = [node["const"]] if "const" in node else list(node.get("enum") or ())
        if values:
            self._put_values(made, values, kind, is_const="const" in node)
            return
        if kind not in ("object", "array", "string", "integer", "number", "boolean", "null"):
            raise Inexpressible("anything at all")
        made["type"] = kind
        if kind == "object":
            self._put_properties(made, node)
        elif kind == "array":
            self._put_items(made, node)
        elif kind == "string" and "format" in node and self._takes_format(node):
            made["format"] = node["format"]

    def _put_values(self, made: Schema, values: list[Any], kind: Any, *, is_const: bool) -> None:
        known = all(isinstance(value, self.dialect.enums) for value in values)
        if bool not in self.dialect.enums and any(isinstance(value, bool) for value in values):
            known = False  # for Python a boolean is a number
        if kind is None and len(kinds := {_kind_of(value) for value in values}) == 1:
            kind = kinds.pop()
        if not known and kind not in ("string", "integer", "number", "boolean", "null"):
            raise Inexpressible("a choice of values that are no words or numbers")
        if kind is not None:
            made["type"] = kind
        if known:
            made.update({"const": values[0]} if is_const and bool in self.dialect.enums else {"enum": values})

    def _put_properties(self, made: Schema, node: Schema) -> None:
        properties: Mapping[str, Any] = node.get("properties", {})
        free: Any = node.get("additionalProperties")
        required = [name for name in node.get("required", ()) if name in properties]
        if node.get("patternProperties") or len(required) < len(set(node.get("required", ()))):
            raise Inexpressible("free keys")
        if free is None and not properties and not self.dialect.anything:
            free = True
        if self.dialect.closes:
            if free not in (None, False):
                raise Inexpressible("free keys")
            made["additionalProperties"] = False
        elif free is not None:
            made["additionalProperties"] = self.node(free) if free is not False else False
        if self.dialect.all_required and set(required) != set(properties):
            raise Inexpressible("a property that may be left out")
        self._optionals += len(properties) - len(set(required))
        if properties or self.dialect.closes:
            made["properties"] = {name: self.node(child) for name, child in properties.items()}
        if required or self.dialect.all_required:
            made["required"] = required
        if self.dialect.ordering and len(properties) > 1:
            made["propertyOrdering"] = list(properties)

    def _put_items(self, made: Schema, node: Schema) -> None:
        first: Any = node.get("prefixItems")
        if first is not None:
            if not self.dialect.tuples:
                raise Inexpressible("a tuple")
            made["prefixItems"] = [self.node(item) for item in first]
        if "items" in node and node["items"] is not False:
            made["items"] = self.node(node["items"])
        elif self.dialect.anything:
            return
        elif first is None or (node.get("items") is not False and node.get("maxItems", len(first) + 1) > len(first)):
            raise Inexpressible("a list of anything at all")

    def _put_said(self, made: Schema, node: Schema) -> None:
        """Titles, descriptions and bounds; what the dialect does not keep of them is told."""
        for key in ("title", "description"):
            if isinstance(node.get(key), str):
                made[key] = node[key]
        told: list[str] = []
        for key, value in node.items():
            if key in _SHAPES or key in _SAID or made.get(key) == value:
                continue
            if key in self.dialect.keeps and "anyOf" not in made and (key != "minItems" or self._takes_least(value)):
                made[key] = value
                continue
            told.append(f"{key}: {msgspec.json.encode(value).decode()}")
        if told:
            made["description"] = f"{made.get('description', '')} ({', '.join(told)})".strip()

    def _takes_least(self, items: Any) -> bool:
        return self.dialect is not NATIVE or items in (0, 1)  # the only ones that Anthropic knows

    def _takes_format(self, node: Schema) -> bool:
        return self.dialect.formats is None or node["format"] in self.dialect.formats

    def _reference(self, node: Schema) -> Schema:
        name = definition_name(node["$ref"])
        beside = {key: value for key, value in node.items() if key not in ("$ref", "$defs", "definitions")}
        if beside and (name not in self.recursive or not _SAID.issuperset(beside)):
            if name in self.recursive:
                raise Inexpressible("a type that holds itself, with more beside it")
            check_alone(beside)
            said = {key: value for key, value in beside.items() if key not in _SHAPES}
            return self.node({**self._definition(name), **said})  # nothing may stand beside a reference
        if name not in self._kept:
            self._kept[name] = {}  # so that a type which holds itself ends here
            self._kept[name] = self.node(self._definition(name))
        return {"$ref": f"#/$defs/{name}"}

    def _definition(self, name: str) -> Schema:
        found = self.definitions.get(name)
        if not isinstance(found, dict):
            raise Inexpressible(f"a reference to {name!r}, which is not there")
        return cast("Schema", found)

    def _merged(self, node: Schema) -> Schema:
        members = cast("list[Any]", node["allOf"])
        rest = {key: value for key, value in node.items() if key != "allOf"}
        if len(members) != 1 or not isinstance(members[0], dict) or not _SAID.issuperset(rest):
            raise Inexpressible("several schemas at once")
        return {**cast("Schema", members[0]), **rest}

    def _circles(self, *, below_optional: bool) -> frozenset[str]:
        """The definitions that lead back to themselves; or only by ways without a property that may be left out."""
        leads = {name: sorted(set(_references(found, below_optional))) for name, found in self.definitions.items()}
        return _in_circles(leads)


def _in_circles(leads: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The nodes of a graph that lead back to themselves: strongly connected, as Tarjan finds them in one walk."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: set[str] = set()
    on_path: set[str] = set()
    for start in leads:
        work = [(start, iter(leads[start]))] if start not in number else []
        if work:
            number[start] = lowest[start] = len(number)
            path.append(start)
            on_path.add(start)
        while work:
            name, rest = work[-1]
            onward = next((each for each in rest if each in leads), None)
            if onward is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    group: list[str] = []
                    while not group or group[-1] != name:
                        group.append(path.pop())
                    on_path.difference_update(group)
                    if len(group) > 1 or name in leads[name]:
                        found.update(group)
            elif onward not in number:
                number[onward] = lowest[onward] = len(number)
                path.append(onward)
                on_path.add(onward)
                work.append((onward, iter(leads[onward])))
            elif onward in on_path:
                lowest[name] = min(lowest[name], number[onward])
    return frozenset(found)


def _references(schema: Any, below_optional: bool) -> Iterator[str]:
    if isinstance(schema, list):
        for each in cast("list[Any]", schema):
            yield from _references(each, below_optional)
    if not isinstance(schema, dict):
        return
    node = cast("Schema", schema)
    if isinstance(node.get("$ref"), str):
        yield definition_name(node["$ref"])
    for key, value in node.items():
        if key == "properties" and isinstance(value, dict):
            for name, child in cast("Schema", value).items():
                if below_optional or name in node.get("required", ()):
                    yield from _references(child, below_optional)
        elif key not in ("enum", "const", "default", "examples"):
            yield from _references(value, below_optional)


_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"format", "pattern", "minLength", "maxLength"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}),
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties"}),
    **dict.fromkeys(("integer", "number"), frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})),
}


def _of_kind(node: Schema, kind: Any) -> Schema:
    """Return the part of a node with several types that is about one of them."""
    values = {key: node[key] for key in _OF_KIND.get(str(kind), frozenset()) if key in node}
    if "const" in node or "enum" in node:
        given: list[Any] = [node["const"]] if "const" in node else list(node["enum"])
        fitting = [value for value in given if _kind_of(value) == kind or (kind in _NUMBERS and _is_whole(value))]
        values = {"enum": fitting} if fitting else values
    return {"type": kind, **values}


_NUMBERS: Final = frozenset({"integer", "number"})


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number, however it is written: for JSON Schema 1.0 is one."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "array" if isinstance(value, list) else "object"
