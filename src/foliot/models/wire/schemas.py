"""JSON Schemas as the providers' structured outputs want them: one translator, and a dialect for each of them.

A schema that is sent is never narrower than the one declared: what it allows is all that was declared, or more. What a
dialect does not know and can be left out (a bound, a pattern) is told in the description instead, and the answer is
checked against the schema as it was declared. What it does not know and cannot be left out (free keys, anything at all,
tuples, a type that holds itself) has no translation, and the caller asks in another way.

References are JSON pointers. A type that is referred to is written once, under `$defs`, where the dialect knows that.
Schemas come from clients and tool servers: the work and the size of what is made are bounded by the size of what was
given, and a schema that would grow beyond it has no translation either.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec

Schema = dict[str, Any]
MOST_CHARACTERS: Final = 120_000
"""A longer schema is not translated: OpenAI takes no more names and values, and nobody else says as much."""
_GROWTH: Final = 4
_ROOM: Final = 2_048
"""What is made may weigh `_GROWTH` times what was given, and `_ROOM` besides."""
_DEEPEST_COPY: Final = 8
_DEEPEST: Final = 32
"""How many types that are written out may stand in one another."""
_KINDS: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
# Keywords that say how values are built. Every other one only takes values away, or says something to people.
_SHAPES: Final = frozenset(
    {
        "$ref", "type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "required", "additionalProperties",
        "patternProperties", "items", "prefixItems", "$defs", "definitions",
    }
)  # fmt: skip
# These may bring in properties that a closed object would forbid.
_CONDITIONS: Final = ("if", "then", "else", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
_SAID: Final = frozenset(
    {
        "title", "description", "default", "examples", "$schema", "$id", "$comment", "$anchor", "discriminator",
        "deprecated", "readOnly", "writeOnly", "propertyOrdering", "$defs", "definitions",
    }
)  # fmt: skip
_SIMPLE: Final = (str, int, float, bool, type(None))
_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "oneOf")
_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")


class Inexpressible(Exception):
    """The dialect has no words for this schema; the text says for what of it."""


class _Nothing(Inexpressible):
    """No value fits the schema; among several choices such a one can be left out."""


class _Overgrown(Inexpressible):
    """The schema to send is far larger than the declared one."""

    def __init__(self) -> None:
        super().__init__("so much, written out")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The part of JSON Schema that a provider takes. `keeps` are the keywords that may stand beside the shape.

    `references`: types stand once under `$defs`; without it each use is a copy. `closes`: every object is closed, so
    free keys cannot be said. `objects_only`: the whole is an object. `all_required`: every property is. `recursion` is
    "any", "optional" (only below a property that may be left out) or "no". `tuples` and `enums` of everything may not
    be known; `anything` may be said by an empty schema; `optionals` and `unions` are how many there may be. `least` are
    the values that `minItems` may have. `write` brings what was made into another notation.
    """

    keeps: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    references: bool = True
    closes: bool = True
    objects_only: bool = False
    all_required: bool = False
    recursion: str = "no"
    tuples: bool = False
    enums: tuple[type, ...] = _SIMPLE
    ordering: bool = False
    anything: bool = False
    optionals: int | None = None
    unions: int | None = None
    least: tuple[int, ...] | None = None
    write: Callable[[Schema], Schema] | None = None


_BOUNDS: Final = frozenset({"minItems", "maxItems", "minimum", "maximum"})
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
STRICT: Final = Dialect(
    keeps=_BOUNDS | {"pattern", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"},
    formats=_FORMATS - {"uri"},
    objects_only=True,
    all_required=True,
    recursion="any",
)
NATIVE: Final = Dialect(
    keeps=frozenset({"minItems"}), formats=_FORMATS, objects_only=True, optionals=24, unions=16, least=(0, 1)
)
GEMINI: Final = Dialect(
    keeps=_BOUNDS,
    formats=frozenset({"date-time", "date", "time"}),
    closes=False,
    recursion="optional",
    tuples=True,
    enums=(str, int, float),
    ordering=True,
)


def _open_api(node: Schema) -> Schema:
    """A schema in the part of OpenAPI that Gemini takes: null is a property of the whole, only texts are enumerated."""
    made = {key: node[key] for key in _OPEN_API_KEPT if key in node}
    if (choices := node.get("anyOf")) is not None:
        concrete = [_open_api(choice) for choice in choices if choice.get("type") != "null"]
        if not concrete:
            raise Inexpressible("null alone")
        made = {**concrete[0], **made} if len(concrete) == 1 else {**made, "anyOf": concrete}
        return {**made, "nullable": True} if len(concrete) < len(choices) else made
    kind = node.get("type")
    if kind is None or kind == "null":
        raise Inexpressible("null alone" if kind else "anything at all")
    made["type"] = kind.upper()
    if "enum" in node:
        made |= {"enum": node["enum"], "format": "enum"}
    if kind == "object":
        if not node.get("properties"):
            raise Inexpressible("an object without properties")
        made["properties"] = {name: _open_api(child) for name, child in node["properties"].items()}
    if kind == "array":
        made["items"] = _open_api(node["items"])
    return made


_OPEN_API_KEPT: Final = (
    "title", "description", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum",
    "minProperties", "maxProperties", "format", "required", "propertyOrdering",
)  # fmt: skip
OPEN_API: Final = Dialect(
    keeps=_BOUNDS | {"minLength", "maxLength", "pattern", "minProperties", "maxProperties"},
    formats=frozenset({"date-time", "float", "double", "int32", "int64"}),
    references=False,
    enums=(str,),
    ordering=True,
    write=_open_api,
)


class SchemaMemory:
    """Translations of the last schemas, which are asked with at every step. A schema is known by being the same one."""

    def __init__(self, dialect: Dialect, most: int = 256) -> None:
        self._dialect = dialect
        self._most = most
        self._made: OrderedDict[int, tuple[Schema, Schema | None]] = OrderedDict()

    def __call__(self, schema: Schema) -> Schema | None:
        known = self._made.get(id(schema))
        if known is not None and known[0] is schema:
            return known[1]
        try:
            made = translated(schema, self._dialect)
        except (Inexpressible, RecursionError):
            made = None
        self._made[id(schema)] = (schema, made)  # holding the schema keeps its id from being given away
        if len(self._made) > self._most:
            self._made.popitem(last=False)
        return made


strict_schema: Final = SchemaMemory(STRICT)
"""The schema as OpenAI can hold a model to it, or None."""
native_schema: Final = SchemaMemory(NATIVE)
"""The schema for Anthropic's native outputs, or None."""
open_api_schema: Final = SchemaMemory(OPEN_API)
"""The schema for Gemini's `responseSchema`, or None."""
gemini_json_schema: Final = SchemaMemory(GEMINI)
"""The schema for Gemini's `responseJsonSchema`, or None."""
# Arguments are checked before a tool runs: what cannot be said of them may be anything.
open_api_parameters: Final = SchemaMemory(replace(OPEN_API, objects_only=True))
"""The schema of a tool for Gemini's `parameters`, or None."""
gemini_parameters: Final = SchemaMemory(replace(GEMINI, objects_only=True, anything=True, recursion="any"))
"""The schema of a tool for Gemini's `parametersJsonSchema`, or None."""


def in_words(schema: Mapping[str, Any]) -> str:
    """The schema as an instruction, for a model that cannot be held to it."""
    return f"Give your final answer as JSON only, following this JSON Schema: {msgspec.json.encode(schema).decode()}"


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether only objects fit it, which most ways of asking insist on."""
    node, seen = cast("Any", schema), set[str]()
    while isinstance(node, dict):
        found = cast("Schema", node)
        pointer = found.get("$ref")
        if not isinstance(pointer, str) or pointer in seen or found.get("type") == "object":
            return found.get("type") == "object"
        seen.add(pointer)
        node = _resolved(schema, pointer)
    return False


def translated(schema: Schema, dialect: Dialect) -> Schema:
    """The schema in a dialect. Raises `Inexpressible`."""
    return _Translator(schema, dialect).root()


def _resolved(schema: Mapping[str, Any], pointer: str) -> Any:
    """The part of a schema that a reference in it leads to; None when it leads nowhere."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None
    found: Any = schema
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast("Schema", found).get(key)
            if isinstance(found, dict) and _is_base(cast("Schema", found)):
                return None
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(key)]
        else:
            return None
    return cast("Any", found)


def _is_base(node: Schema) -> bool:
    """Whether references in this part of a schema start from the part, and not from the whole."""
    name = node.get("$id")
    return isinstance(name, str) and not name.startswith("#")


@dataclass(slots=True)
class _Translator:
    """One translation. `spent` is the weight of what was made so far, in characters."""

    schema: Schema
    dialect: Dialect
    spent: int = 0
    _most: int = field(init=False)
    _copies: int = field(init=False)
    _ignores_beside: bool = field(init=False)
    _names: dict[str, str] = field(default_factory=dict[str, str])
    _kept: dict[str, Schema] = field(default_factory=dict[str, Schema])
    _waiting: list[str] = field(default_factory=list[str])
    _inside: list[str] = field(default_factory=list[str])
    _optionals: int = 0
    _unions: int = 0

    def __post_init__(self) -> None:
        size = len(msgspec.json.encode(self.schema))
        if size > MOST_CHARACTERS:
            raise _Overgrown
        self._most = _GROWTH * size + _ROOM
        self._copies = size + _ROOM // 2
        # Until draft 7 nothing counts that stands beside a reference.
        self._ignores_beside = bool(re.search(r"draft-0[3467]", str(self.schema.get("$schema"))))

    def root(self) -> Schema:
        self._inside.append("#")
        made = self._written_out(self.schema)  # the whole may not be a reference
        while self._waiting:
            pointer = self._waiting.pop()
            self._inside[:] = [pointer]
            self._kept[self._names[pointer]] = self.node(self._target(pointer))
        if self.dialect.objects_only and made.get("type") != "object":
            raise Inexpressible("an answer that is no object")
        if self.dialect.recursion != "any" and _is_circular(self._kept, self.dialect.recursion == "no"):
            raise Inexpressible("a type that holds itself")
        if self._kept:
            made = {**made, "$defs": self._kept}
        for count, most, what in (
            (self._optionals, self.dialect.optionals, "optional properties"),
            (self._unions, self.dialect.unions, "unions"),
        ):
            if most is not None and count > most:
                raise Inexpressible(f"more than {most} {what}")
        return made if self.dialect.write is None else self.dialect.write(made)

    def node(self, schema: Any) -> Schema:
        try:
            return self._expressed(schema)
        except _Overgrown:
            raise
        except Inexpressible as error:
            if not self.dialect.anything:
                raise Inexpressible(str(error)) from None  # nothing fits here, but something may fit above
            return self._anything(schema)

    def _anything(self, schema: Any) -> Schema:
        """The empty schema, which tells what it cannot say."""
        made: Schema = {}
        node = cast("Schema", schema) if isinstance(schema, dict) else {}
        for key in ("title", "description"):
            if isinstance(node.get(key), str):
                made[key] = node[key]
        told = {key: value for key, value in node.items() if key not in _SAID}
        if told and len(written := msgspec.json.encode(told).decode()) <= _ROOM // 2:
            made["description"] = f"{made.get('description', '')} (JSON Schema: {written})".strip()
        self._spend(*made.values())
        return made

    def _expressed(self, schema: Any) -> Schema:
        if isinstance(schema, dict) and self.dialect.references:
            node = _unwrapped(cast("Schema", schema))
            if isinstance(pointer := node.get("$ref"), str) and self._is_plain(node):
                made: Schema = {}
                self._put_said(made, node)
                if not made or not self._may_copy(pointer):
                    return self._referred(pointer, made)
        return self._written_out(schema)

    def _is_plain(self, node: Schema) -> bool:
        """Whether nothing that shapes values stands beside the reference."""
        return not any((key in _SHAPES and key not in _SAID and key != "$ref") or key in _CONDITIONS for key in node)

    def _may_copy(self, pointer: str) -> bool:
        """Whether a type is written out where something is said of it, as the official SDKs do; within bounds."""
        if pointer in self._inside or len(self._inside) > _DEEPEST_COPY or self._copies < 0:
            return False
        self._copies -= len(msgspec.json.encode(self._target(pointer)))
        return self._copies >= 0

    def _referred(self, pointer: str, said: Schema) -> Schema:
        if pointer not in self._names:
            self._target(pointer)
            base = re.sub(r"[^\w.-]", "_", unquote(pointer).rsplit("/", 1)[-1].strip("#"), flags=re.ASCII) or "root"
            name, count = base, 1
            while name in self._kept:
                count += 1
                name = f"{base}_{count}"
            self._names[pointer] = name
            self._kept[name] = {}
            self._waiting.append(pointer)
        made = {"$ref": f"#/$defs/{self._names[pointer]}"}
        self._spend(made["$ref"], *said.values())
        if not said:
            return made
        self._unions += 1
        return {"anyOf": [made], **said}  # nothing may stand beside a reference

    def _target(self, pointer: str) -> Any:
        found = _resolved(self.schema, pointer)
        if not isinstance(found, (dict, bool)):
            raise Inexpressible(f"a reference to {pointer!r}, which is not there")
        return cast("Any", found)

    def _written_out(self, schema: Any) -> Schema:
        if schema is True:
            raise Inexpressible("anything at all")
        followed: list[str] = []
        node, choices = self._flat(schema, followed)
        depth = len(self._inside)
        if depth > _DEEPEST:
            raise Inexpressible("types so deep in one another")
        self._inside.extend(followed)
        try:
            made = self._shaped(node, choices)
        finally:
            del self._inside[depth:]
        self._put_said(made, node)
        self._spend(*(value for value in made.values() if isinstance(value, str)))
        return made

    def _shaped(self, node: Schema, choices: list[list[Any]]) -> Schema:
        made: Schema = {}
        if self._put_choices(made, node, choices):
            return made
        kinds, values = node.get("type"), _values(node)
        if kinds is None and values and not self._knows(values):
            kinds = sorted({_kind_of(value) for value in values})
        if isinstance(kinds, list) and len(cast("list[Any]", kinds)) == 1:
            (kinds,) = cast("list[Any]", kinds)
        if isinstance(kinds, list):
            self._put_union(made, [_of_kind(node, kind) for kind in cast("list[Any]", kinds)])
        else:
            self._put_shape(made, node, kinds, values)
        return made

    # ── all that must hold, as one ──────────────────────────────────────────────────────────────────────────────────

    def _flat(self, schema: Any, followed: list[str]) -> tuple[Schema, list[list[Any]]]:
        """The keywords of a node and of all that must hold beside them; and the choices that it leaves."""
        if schema is True:
            return {}, []
        if not isinstance(schema, dict):
            raise _Nothing("nothing at all")
        given = cast("Schema", schema)
        self._spend(4 * len(given))
        if given is not self.schema and _is_base(given):
            raise Inexpressible("references that start elsewhere")
        node = {key: value for key, value in given.items() if key not in _IN_PLACE}
        parts: list[Any] = []
        choices: list[list[Any]] = []
        if "$ref" in given:
            pointer = str(given["$ref"])
            if pointer in followed or (not self.dialect.references and pointer in self._inside):
                raise Inexpressible("a type that holds itself")
            followed.append(pointer)
            parts.append(self._target(pointer))
        if "$ref" in given and self._ignores_beside:
            if any(
                value and key in _SHAPES and key not in _SAID and key not in ("$ref", "type")
                for key, value in given.items()
            ):
                raise Inexpressible("what its draft ignores")  # and whoever wrote it means
            node = {key: value for key, value in node.items() if key in _SAID}
        else:
            for key in ("allOf", "anyOf", "oneOf"):
                if key not in given:
                    continue
                if not isinstance(given[key], list) or not given[key]:
                    raise Inexpressible(f"an {key} of nothing")
                if key == "allOf":
                    parts.extend(given[key])
                else:
                    choices.append(given[key])
        if not _is_kind(node.get("type", [])):
            raise Inexpressible("a type without a name")
        for part in parts:
            other, more = self._flat(part, followed)
            node = self._merged(node, other)
            choices.extend(more)
        return node, choices

    def _merged(self, one: Schema, other: Schema) -> Schema:
        """Two sets of keywords that must both hold, as one. What is said to people is said by the first."""
        self._spend(4 * len(other))
        both = {**other, **one}
        if "type" in one and "type" in other:
            both["type"] = _common_kinds(one["type"], other["type"])
        here, there = _values(one), _values(other)
        if here is not None and there is not None:
            among = {_canonical(value) for value in there}
            both.pop("const", None)
            both["enum"] = [value for value in here if _canonical(value) in among]
        for keywords, pick in ((_LEAST, max), (_MOST, min)):
            for key in keywords:
                if _is_number(one.get(key)) and _is_number(other.get(key)):
                    both[key] = pick(one[key], other[key])
        if "prefixItems" in both and all("items" in each or "prefixItems" in each for each in (one, other)):
            raise Inexpressible("a tuple that is something else as well")
        if "items" in one and "items" in other:
            both["items"] = _both(one["items"], other["items"])
        self._merge_objects(both, one, other)
        return both

    def _merge_objects(self, both: Schema, one: Schema, other: Schema) -> None:
        if "patternProperties" in both:
            raise Inexpressible("free keys")
        if "required" in one and "required" in other:
            both["required"] = [*dict.fromkeys([*_names_in(one["required"]), *_names_in(other["required"])])]
        left, right = _mapping(one.get("properties", {})), _mapping(other.get("properties", {}))
        if left or right:
            self._spend(4 * (len(left) + len(right)))
            properties: Schema = {}
            for name in {**left, **right}:
                here: Any = left.get(name, one.get("additionalProperties", True))
                there: Any = right.get(name, other.get("additionalProperties", True))
                if here is not False and there is not False:
                    properties[name] = _both(here, there)
            both["properties"] = properties
            if not properties.keys() >= set(_names_in(both.get("required", []))) & (left.keys() | right.keys()):
                raise _Nothing("nothing at all")
        if "additionalProperties" in one and "additionalProperties" in other:
            both["additionalProperties"] = _both(one["additionalProperties"], other["additionalProperties"])

    # ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put_choices(self, made: Schema, node: Schema, choices: list[list[Any]]) -> bool:
        if node.get("type", "object") == "object" or "object" in node["type"]:
            self._check_conditions(node)
        left: list[list[Any]] = []
        for group in choices:
            if not _only_takes_away(group, node):
                left.append(group)
            elif "anyOf" not in node:
                node["anyOf"] = group  # which the model is told
        if len(left) > 1:
            raise Inexpressible("several choices at once")
        if not left:
            return False
        rest = {key: value for key, value in node.items() if key in _SHAPES and key not in _SAID}
        self._put_union(made, [self._narrowed(choice, rest) for choice in left[0]])
        return True

    def _narrowed(self, choice: Any, rest: Schema) -> Any:
        """A choice together with what must hold beside the choice."""
        if not rest:
            return choice
        if rest.keys() == {"type"} and isinstance(rest["type"], str):
            found, steps = choice, 0
            while isinstance(found, dict) and "type" not in found and "$ref" in found and steps < _DEEPEST_COPY:
                found, steps = _resolved(self.schema, str(cast("Schema", found)["$ref"])), steps + 1
            if isinstance(found, dict) and cast("Schema", found).get("type") == rest["type"]:
                return choice
        return {"allOf": [choice, rest]}

    def _put_union(self, made: Schema, choices: list[Any]) -> None:
        self._unions += 1
        fitting: list[Schema] = []
        for choice in choices:
            try:
                fitting.append(self._expressed(choice))
            except _Nothing:
                continue
            except _Overgrown:
                raise
            except Inexpressible:
                if not self.dialect.anything:
                    raise
                fitting.append(self._anything(choice))
        if not fitting:
            raise _Nothing("nothing at all")
        made["anyOf"] = fitting

    def _check_conditions(self, node: Schema) -> None:
        if any(key in node for key in _CONDITIONS):
            raise Inexpressible("conditions")
        if node.get("unevaluatedProperties", False) is not False:
            raise Inexpressible("free keys")
        needed: Any = node.get("dependentRequired")
        if isinstance(needed, dict):
            names = {name for each in cast("Schema", needed).values() for name in _names_in(each)}
            if not names <= _mapping(node.get("properties", {})).keys():
                raise Inexpressible("free keys")

    def _put_shape(self, made: Schema, node: Schema, kind: Any, values: list[Any] | None) -> None:
        if values is not None:
            self._put_values(made, values, kind, is_const="const" in node)
            return
        if kind not in _KINDS:
            raise Inexpressible("anything at all")
        made["type"] = kind
        if kind == "object":
            self._put_properties(made, node)
        elif kind == "array":
            self._put_items(made, node)
        elif node.get("format") in self.dialect.formats and _OF_NUMBERS.get(node["format"], "string") == kind:
            made["format"] = node["format"]

    def _knows(self, values: list[Any]) -> bool:
        known = self.dialect.enums
        return all(isinstance(each, known) and (bool in known or not isinstance(each, bool)) for each in values)

    def _put_values(self, made: Schema, values: list[Any], kind: Any, *, is_const: bool) -> None:
        if kind is None and len(kinds := {_kind_of(value) for value in values}) == 1:
            kind = kinds.pop()
        elif kind is not None:
            values = [value for value in values if _is_of_kind(value, kind)]
        if not values:
            raise _Nothing("nothing at all")
        known = self._knows(values)
        if not known and kind not in ("string", "integer", "number", "boolean", "null"):
            raise Inexpressible("a choice of values that are no words or numbers")
        if kind is not None:
            made["type"] = kind
        if known:
            is_const = is_const and bool in self.dialect.enums
            made.update({"const": values[0]} if is_const else {"enum": values})
            self._spend(msgspec.json.encode(values).decode())

    def _put_properties(self, made: Schema, node: Schema) -> None:
        properties = _mapping(node.get("properties", {}))
        free: Any = node.get("additionalProperties")
        needed = dict.fromkeys(_names_in(node.get("required", [])))
        required = [name for name in needed if name in properties]
        if node.get("patternProperties") or len(required) < len(needed):
            raise Inexpressible("free keys")
        if free is None and not properties and not self.dialect.anything:
            free = True
        if self.dialect.closes:
            if free not in (None, False):
                raise Inexpressible("free keys")
            made["additionalProperties"] = False
        elif free is not None:
            made["additionalProperties"] = self.node(free) if free is not False else False
        if self.dialect.all_required and len(required) < len(properties):
            raise Inexpressible("a property that may be left out")
        self._optionals += len(properties) - len(required)
        self._spend(*properties, *properties, *required)
        if properties or self.dialect.closes:
            made["properties"] = {name: self.node(child) for name, child in properties.items()}
        if required or self.dialect.all_required:
            made["required"] = required
        if self.dialect.ordering and len(properties) > 1:
            made["propertyOrdering"] = list(properties)

    def _put_items(self, made: Schema, node: Schema) -> None:
        first: Any = node.get("prefixItems")
        if first is not None:
            if not self.dialect.tuples or not isinstance(first, list):
                raise Inexpressible("a tuple")
            first = cast("list[Any]", first)
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
        kind = made.get("type")
        for key, value in node.items():
            if key in _SAID or made.get(key) == value or (key in _SHAPES and key not in ("enum", "const", "anyOf")):
                continue
            if "const" in made or ("enum" in made and key in ("enum", "const")) or (key == "anyOf" and kind is None):
                continue
            if kind is not None and not _says_of(key, kind):
                continue
            least = self.dialect.least
            if key in self.dialect.keeps and kind is not None and (key != "minItems" or not least or value in least):
                if isinstance(value, str) or _is_number(value):
                    made[key] = value
                continue
            told.append(f"{key}: {msgspec.json.encode(value).decode()}")
        if told:
            made["description"] = f"{made.get('description', '')} ({', '.join(told)})".strip()

    def _spend(self, *texts: Any) -> None:
        """Count what is made, and stop where it would grow out of proportion."""
        self.spent += 8 + sum(each if isinstance(each, int) else len(each) for each in texts)
        if self.spent > self._most:
            raise _Overgrown


def _unwrapped(node: Schema) -> Schema:
    """A reference that stands alone in `allOf`, which is how older generators say something beside it."""
    members: Any = node.get("allOf")
    if isinstance(members, list) and len(cast("list[Any]", members)) == 1 and "$ref" not in node:
        (member,) = cast("list[Any]", members)
        if isinstance(member, dict) and cast("Schema", member).keys() == {"$ref"}:
            return {**member, **{key: value for key, value in node.items() if key != "allOf"}}
    return node


def _both(one: Any, other: Any) -> Any:
    if one is True or one is other:
        return other
    if other is True:
        return one
    return False if one is False or other is False else {"allOf": [one, other]}


def _common_kinds(one: Any, other: Any) -> Any:
    left, right = (cast("list[str]", [each] if isinstance(each, str) else each) for each in (one, other))
    found = [kind for kind in left if kind in right or (kind == "integer" and "number" in right)]
    found += [kind for kind in right if kind == "integer" and "number" in left and kind not in found]
    if not found:
        raise _Nothing("nothing at all")
    return found[0] if len(found) == 1 else found


def _only_takes_away(choices: list[Any], node: Schema) -> bool:
    """Whether a choice adds nothing to what a node allows by itself, so that it can be told and left out."""
    if "type" not in node and _values(node) is None:
        return False
    properties: Any = node.get("properties", {})
    return all(
        isinstance(choice, dict)
        and all(
            (key == "required" and all(name in properties for name in _names_in(value)))
            or (key not in _SHAPES and key not in _CONDITIONS)
            or key in _SAID
            for key, value in cast("Schema", choice).items()
        )
        for choice in choices
    )


def _mapping(value: Any) -> Schema:
    if not isinstance(value, dict):
        raise Inexpressible("properties that are none")
    return cast("Schema", value)


def _names_in(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in cast("list[Any]", value)):
        raise Inexpressible("names that are none")
    return cast("list[str]", value)


def _is_circular(kept: Mapping[str, Schema], below_optional: bool) -> bool:
    """Whether a definition leads back to itself; or only by ways without a property that may be left out."""
    done: set[str] = set()
    for start in kept:
        above: dict[str, Iterator[str]] = {start: _references(kept[start], below_optional)}
        while above and start not in done:
            name = next(reversed(above))
            to = next(above[name], None)
            if to is None:
                del above[name]
                done.add(name)
            elif to in above:
                return True
            elif to not in done:
                above[to] = _references(kept[to], below_optional)
    return False


def _references(made: Schema, below_optional: bool) -> Iterator[str]:
    """The definitions that a schema which was made leads to."""
    left: list[Any] = [made]
    while left:
        found: Any = left.pop()
        if not isinstance(found, dict):
            continue
        node = cast("Schema", found)
        if "$ref" in node:
            yield str(node["$ref"]).removeprefix("#/$defs/")
        left += [
            node.get("items"),
            node.get("additionalProperties"),
            *node.get("anyOf", ()),
            *node.get("prefixItems", ()),
        ]
        required = node.get("required", ())
        left += [child for name, child in node.get("properties", {}).items() if below_optional or name in required]


_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"format", "pattern", "minLength", "maxLength"}),
    "array": frozenset(
        {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"}
    ),
    "object": frozenset(
        {
            "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
            "propertyNames", "dependentRequired", "unevaluatedProperties",
        }
    ),
    **dict.fromkeys(
        ("integer", "number"),
        frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"}),
    ),
}  # fmt: skip
_OF_NUMBERS: Final[Mapping[Any, str]] = {
    "float": "number", "double": "number", "int32": "integer", "int64": "integer",
}  # fmt: skip
_OF_SOME: Final = frozenset[str]().union(*_OF_KIND.values())


def _says_of(key: str, kind: str) -> bool:
    return key not in _OF_SOME or key in _OF_KIND.get(kind, ())


def _of_kind(node: Schema, kind: Any) -> Schema:
    """Return the part of a node with several types that is about one of them."""
    of_kind = {key: node[key] for key in _OF_KIND.get(str(kind), frozenset()) if key in node}
    if (values := _values(node)) is not None:
        of_kind["enum"] = [value for value in values if _is_of_kind(value, kind)]
    return {"type": kind, **of_kind}


def _values(node: Schema) -> list[Any] | None:
    """The only values that fit, or None when they are not listed."""
    if "const" in node:
        return [node["const"]]
    found: Any = node.get("enum")
    return cast("list[Any]", found) if isinstance(found, list) else None


def _canonical(value: Any) -> bytes:
    """The text of a value that is the same for every value which is equal to it."""
    return msgspec.json.encode(_whole(value), order="sorted")


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in cast("Schema", value).items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_kind(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_of_kind(value: Any, kind: Any) -> bool:
    found = _kind_of(value)
    if found == kind:
        return True
    return (kind == "number" and found == "integer") or (
        kind == "integer" and found == "number" and cast("float", value).is_integer()
    )


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
