"""A schema that is sent is never narrower than the one declared, and keeps the rules of its dialect."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from itertools import product
from typing import Any, Literal, Optional, cast

import jsonschema_rs
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from foliot.kernel.messages import Message, ModelRequest, ModelSettings, Text, ToolSpec
from foliot.models.wire.anthropic import OUTPUT_TOOL, AnthropicWire
from foliot.models.wire.base import Wire
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.ollama import OllamaWire
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire
from foliot.models.wire.schemas import (
    GEMINI,
    MOST_CHARACTERS,
    NATIVE,
    OPEN_API,
    STRICT,
    Dialect,
    Inexpressible,
    gemini_parameters,
    is_object,
    native_schema,
    strict_schema,
    translated,
)
from tests.work_count import count_work

EXAMPLES = 400 if os.environ.get("FOLIOT_CHAOS") else 60
WIRES: dict[str, tuple[Wire, str]] = {
    "chat": (OpenAIChatWire(), "gpt-4o"),
    "responses": (OpenAIResponsesWire(), "gpt-4o"),
    "anthropic": (AnthropicWire(), "claude-sonnet-5"),
    "anthropic-unforced": (AnthropicWire(), "claude-opus-5-5"),
    "gemini": (GeminiWire(), "gemini-3-flash"),
    "ollama": (OllamaWire(), "llama"),
}


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Chain(BaseModel):
    name: str
    next: Chain | None


names = st.sampled_from(["a", "b_1", "café", "kind", "type", "items", "properties"])
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
Typed = tuple[Any, st.SearchStrategy[Any]]
LEAVES: list[Typed] = [
    (str, words),
    (int, st.integers(-99, 99)),
    (float, st.floats(-9, 9)),
    (bool, st.booleans()),
    (type(None), st.none()),
    (Literal["x", "y"], st.sampled_from(["x", "y"])),
    (Literal[1, 2], st.sampled_from([1, 2])),
    (Literal["x", 3, None], st.sampled_from(["x", 3, None])),
    (Any, st.sampled_from([1, "a", [1], {"k": {"l": 1}}, None])),
    (dict[str, Any], st.just({"free": [1]})),
    (list[Any], st.just([1, "a", {}])),
    (Tree, st.just({"name": "n", "children": [{"name": "m", "children": []}]})),
    (Chain, st.just({"name": "n", "next": {"name": "m", "next": None}})),
]


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> Typed:
    """A type and its values as JSON."""
    if depth == 0:
        return draw(st.sampled_from(LEAVES))
    kind = draw(st.sampled_from(["leaf", "list", "dict", "tuple", "optional", "union", "model", "model"]))
    if kind == "leaf":
        return draw(st.sampled_from(LEAVES))
    inner, values = draw(typed(depth=depth - 1))
    if kind == "list":
        return list[inner], st.lists(values, max_size=2)
    if kind == "dict":
        return dict[str, inner], st.dictionaries(words, values, max_size=2)
    if kind == "optional":
        return Optional[inner], values | st.none()  # noqa: UP045  # types that are made as the test runs
    if kind == "model":
        return draw(models(depth=depth - 1))
    other, others = draw(typed(depth=depth - 1))
    if kind == "tuple":
        return tuple[inner, other], st.tuples(values, others).map(list)
    return inner | other if inner is not Any and other is not Any else Any, values | others


@st.composite
def models(draw: st.DrawFn, depth: int = 2) -> Typed:
    fields: dict[str, Any] = {}
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        kind, values = draw(typed(depth=depth))
        said = draw(st.sampled_from([None, "what it is"]))
        if draw(st.booleans()):
            fields[f"f{len(fields)}"] = (kind, Field(description=said, alias=name))
            required[name] = values
        else:
            fields[f"f{len(fields)}"] = (Optional[kind], Field(None, description=said, alias=name))  # noqa: UP045
            optional[name] = values | st.none()
    extra = draw(st.sampled_from(["ignore", "forbid", "allow"]))
    made = create_model(f"M{draw(st.integers(0, 10**9))}", __config__=ConfigDict(extra=extra), **fields)
    values = st.fixed_dictionaries(required, optional=optional)
    if extra == "allow":
        values = st.tuples(values, st.dictionaries(st.just("surplus"), st.integers(), max_size=1)).map(
            lambda both: {**both[1], **both[0]}
        )
    return made, values


def ask(schema: dict[str, Any], model: str, **changes: Any) -> ModelRequest:
    return ModelRequest(model, (Message("user", (Text("hi"),)),), output_schema=schema, **changes)


def sent_schema(name: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema that a model is held to by this request, as JSON Schema; None when it is only asked in words."""
    wire, model = WIRES[name]
    request = ask(schema, model)
    body: Any = json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=False)))
    if name == "chat":
        sent = body.get("response_format", {}).get("json_schema")
    elif name == "responses":
        sent = body.get("text", {}).get("format")
    elif name == "ollama":
        return body["format"]
    elif name == "gemini":
        generation = body["generationConfig"]
        assert generation["responseMimeType"] == "application/json"
        if "responseSchema" in generation:
            check_open_api(generation["responseSchema"])
            return from_open_api(generation["responseSchema"])
        if "responseJsonSchema" in generation:
            check_gemini_json(generation["responseJsonSchema"])
            return generation["responseJsonSchema"]
        sent = None
    else:
        if "output_config" in body:
            check_closed(body["output_config"]["format"]["schema"], all_required=False)
            return body["output_config"]["format"]["schema"]
        tools = [tool for tool in body.get("tools", ()) if tool["name"] == OUTPUT_TOOL]
        assert body.get("tool_choice", {}).get("type") != "tool" or model != "claude-opus-5-5"
        sent = {"schema": tools[0]["input_schema"]} if tools else None
    if sent is None:
        words = json.dumps([body.get("instructions"), body.get("system"), body.get("messages"), body])
        assert "following this JSON Schema" in words
        return None
    if sent.get("strict"):
        check_closed(sent["schema"], all_required=True)
    return sent["schema"]


def check_closed(node: Any, *, all_required: bool) -> None:
    """What OpenAI (strict) and Anthropic (native) refuse."""
    if isinstance(node, list):
        for each in cast("list[Any]", node):
            check_closed(each, all_required=all_required)
    if not isinstance(node, dict):
        return
    assert not {"oneOf", "allOf", "not", "prefixItems", "patternProperties", "default", "discriminator"} & node.keys()
    if "$ref" in node:
        assert set(node) - {"$defs"} == {"$ref"}
    else:
        assert node.keys() & {"type", "anyOf", "enum", "const"}, "a schema without a type"
    if node.get("type") == "object":
        assert node["additionalProperties"] is False
        if all_required:
            assert set(node["required"]) == set(node["properties"])
    for key in ("properties", "$defs"):
        for child in node.get(key, {}).values():
            check_closed(child, all_required=all_required)
    for key in ("items", "anyOf"):
        check_closed(node.get(key), all_required=all_required)


def check_open_api(node: dict[str, Any]) -> None:
    types = pytest.importorskip("google.genai.types")
    types.Schema.model_validate(node)


KNOWN_TO_GEMINI = {
    "$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
    "propertyOrdering",
}  # fmt: skip


def check_gemini_json(node: Any) -> None:
    if isinstance(node, list):
        for each in cast("list[Any]", node):
            check_gemini_json(each)
    if not isinstance(node, dict):
        return
    assert node.keys() <= KNOWN_TO_GEMINI
    if "$ref" in node:
        assert set(node) - {"$defs"} == {"$ref"}
    for value in node.get("enum", ()):
        assert isinstance(value, (str, int, float))
        assert not isinstance(value, bool)
    for key in ("properties", "$defs"):
        for child in node.get(key, {}).values():
            check_gemini_json(child)
    for key in ("items", "anyOf", "prefixItems", "additionalProperties"):
        check_gemini_json(node.get(key))


def from_open_api(node: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {key: node[key] for key in ("enum", "minItems", "maxItems", "required") if key in node}
    if "type" in node:
        made["type"] = node["type"].lower()
    if "anyOf" in node:
        made["anyOf"] = [from_open_api(each) for each in node["anyOf"]]
    if "items" in node:
        made["items"] = from_open_api(node["items"])
    if "properties" in node:
        made["properties"] = {name: from_open_api(child) for name, child in node["properties"].items()}
        made["additionalProperties"] = False  # it writes none that are not declared
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") else made


def replayable(test: Any) -> Any:
    """A fixed seed in every run; another with FOLIOT_CHAOS=1, printed by Hypothesis when it fails."""
    return test if os.environ.get("FOLIOT_CHAOS") else seed(14)(test)


@pytest.mark.parametrize("name", WIRES)
@replayable
@settings(max_examples=EXAMPLES, deadline=None, database=None, print_blob=True)
@given(data=st.data(), made=models())
def test_every_value_that_was_declared_is_allowed_by_what_is_sent(name: str, data: st.DataObject, made: Typed) -> None:
    model, values = made
    schema = TypeAdapter(model).json_schema()
    value = data.draw(values)
    if not jsonschema_rs.is_valid(schema, value):
        return  # a union may say less of a value than what it was made from
    sent = sent_schema(name, schema)
    if sent is not None:
        assert jsonschema_rs.is_valid(sent, value), (sent, schema)


@replayable
@settings(max_examples=EXAMPLES, deadline=None, database=None, print_blob=True)
@given(data=st.data(), made=models())
def test_every_argument_that_was_declared_is_allowed_by_what_gemini_is_told_of_a_tool(
    data: st.DataObject, made: Typed
) -> None:
    model, values = made
    schema = TypeAdapter(model).json_schema()
    value = data.draw(values)
    sent = gemini_parameters(schema)
    if sent is not None and jsonschema_rs.is_valid(schema, value):
        assert jsonschema_rs.is_valid(sent, value), (sent, schema)


def sent_tool(name: str, schema: dict[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """The schema that a strict tool is sent with, None when it is not strict; and the notes of the request."""
    wire, model = WIRES[name]
    request = ModelRequest(
        model,
        (Message("user", (Text("hi"),)),),
        tools=(ToolSpec("note", "Note", schema),),
        settings=ModelSettings(strict_tools=True),
    )
    notes: list[str] = []
    body: Any = json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=False, notes=notes)))
    if name == "gemini":
        declared = body["tools"][0]["functionDeclarations"][0]
        if "parametersJsonSchema" in declared:
            return declared["parametersJsonSchema"], notes
        return from_open_api(declared["parameters"]) if "parameters" in declared else None, notes
    (tool,) = (each.get("function", each) for each in body["tools"])
    sent = tool.get("parameters", tool.get("input_schema"))
    if not tool.get("strict"):
        assert sent.items() >= schema.items()  # as it was declared
        return None, notes
    check_closed(sent, all_required=name in ("chat", "responses"))
    return sent, notes


@pytest.mark.parametrize("name", ["chat", "responses", "anthropic", "gemini"])
@replayable
@settings(max_examples=EXAMPLES, deadline=None, database=None, print_blob=True)
@given(data=st.data(), made=models())
def test_a_strict_tool_takes_every_argument_that_was_declared_or_is_not_strict_and_says_so(
    name: str, data: st.DataObject, made: Typed
) -> None:
    model, values = made
    schema = TypeAdapter(model).json_schema()
    value = data.draw(values)
    sent, notes = sent_tool(name, schema)
    if sent is None:
        assert [note.split(":")[0] for note in notes] == ["strict_tools is not sent for note"]
    else:
        assert notes == []
        assert not jsonschema_rs.is_valid(schema, value) or jsonschema_rs.is_valid(sent, value), (sent, schema)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner = Field(description="the inner one")
    again: Inner


def test_a_reference_beside_a_description_is_written_out_as_the_official_sdk_does() -> None:
    pydantic_helper = pytest.importorskip("openai.lib._pydantic")
    judged = pydantic_helper.to_strict_json_schema(Described)
    sent = strict_schema(Described.model_json_schema())
    assert sent is not None
    assert sent["properties"]["inner"] == judged["properties"]["inner"]
    assert sent["properties"]["again"] == {"$ref": "#/$defs/Inner"}
    assert sent_schema("chat", Described.model_json_schema()) == sent_schema("responses", Described.model_json_schema())


def test_what_anthropic_can_be_held_to_is_what_its_sdk_would_send() -> None:
    transform = pytest.importorskip("anthropic.lib._parse._transform").transform_schema
    schema = Inner.model_json_schema()
    assert native_schema(schema) == transform(schema)


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("kind", [dict[str, int], list[int], Any, tuple[int, str], Tree, dict[str, Inner]])
def test_free_keys_lists_and_trees_are_asked_for_in_a_way_that_can_say_them(name: str, kind: Any) -> None:
    class Answer(BaseModel):
        value: kind

    full: Any = {"value": {dict[str, int]: {"x": 1}, list[int]: [1], tuple[int, str]: [1, "a"]}.get(kind, {"a": 1})}
    if kind is Tree:
        full = {"value": {"name": "n", "children": [{"name": "m", "children": []}]}}
    elif kind == dict[str, Inner]:
        full = {"value": {"k": {"a": 1}}}
    sent = sent_schema(name, Answer.model_json_schema())
    assert sent is None or jsonschema_rs.is_valid(sent, full)
    sent_schema(name, TypeAdapter(kind).json_schema())  # also as the whole answer


TOOL = ToolSpec("look.up", "Look", Described.model_json_schema())
OPEN = ToolSpec("note", "Note", {"type": "object", "additionalProperties": {"type": "string"}})


@pytest.mark.parametrize(
    ("name", "choice", "sent"),
    [
        ("chat", "look.up", {"type": "function", "function": {"name": "look_up"}}),
        ("responses", "look.up", {"type": "function", "name": "look_up"}),
        ("anthropic", "look.up", {"type": "tool", "name": "look_up", "disable_parallel_tool_use": True}),
        ("anthropic", "required", {"type": "any", "disable_parallel_tool_use": True}),
        ("gemini", "look.up", {"mode": "ANY", "allowedFunctionNames": ["look_up"]}),
        ("gemini", "auto", {"mode": "VALIDATED"}),
        ("chat", "required", "required"),
    ],
)
def test_a_tool_can_be_named_and_held_to_its_schema(name: str, choice: str, sent: Any) -> None:
    wire, model = WIRES[name]
    request = ModelRequest(
        model,
        (Message("user", (Text("hi"),)),),
        tools=(TOOL, OPEN),
        settings=ModelSettings(tool_choice=choice, parallel_tool_calls=False, strict_tools=True),
    )
    notes: list[str] = []
    body = wire.build_body(request, wire.names(request), stream=False, notes=notes)
    if name == "gemini":
        assert body["toolConfig"]["functionCallingConfig"] == sent
        assert notes == ["parallel_tool_calls is not sent: gemini-3-flash refuses it"]
        return
    assert body["tool_choice"] == sent
    assert notes == ["strict_tools is not sent for note: strict mode cannot say all that it allows"]
    tools = [tool.get("function", tool) for tool in body["tools"]]
    assert [bool(tool.get("strict")) for tool in tools] == [True, False]
    if name != "anthropic":
        assert body["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto", "disable_parallel_tool_use": True}),  # it thinks, and is asked in words
        ("required", {"type": "any", "disable_parallel_tool_use": True}),
        ("note", {"type": "tool", "name": "note", "disable_parallel_tool_use": True}),
        ("none", {"type": "tool", "name": OUTPUT_TOOL}),
    ],
)
def test_an_answer_by_call_leaves_the_choice_of_tools_as_it_was_asked_for(choice: str, sent: Any) -> None:
    wire, model = WIRES["anthropic"]
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    request = ask(schema, model, tools=(OPEN,), settings=ModelSettings(tool_choice=choice, parallel_tool_calls=False))
    assert wire.build_body(request, wire.names(request), stream=False)["tool_choice"] == sent


# ── JSON Schemas as people, generators and tool servers write them ──────────────────────────────────────────────────

KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
SCALARS: list[Any] = ["a", "b", 1, 2, 2.5, 1.0, True, False, None]
NAMES = ["p", "q", "r"]
POINTERS = [
    "#/$defs/A",
    "#/$defs/B",
    "#/definitions/A",
    "#/$defs/A/properties/p",
    "#/properties/p",
    "#",
    "#/$defs/a~1b",
]


class Writer:
    """Random schemas, and values that mostly fit them. Objects hold what is declared, as everybody means it."""

    def __init__(self, rand: random.Random) -> None:
        self.rand = rand
        self.root: dict[str, Any] = {}

    def maybe(self, chance: float) -> bool:
        return self.rand.random() < chance

    def schema(self) -> dict[str, Any]:
        top = self.objects(1)
        if self.maybe(0.15):
            top = {"$ref": "#/$defs/A", **(top if self.maybe(0.5) else {}), "type": "object"}
        top["$defs"] = {name: self.node(1) for name in ("B", "a/b")} | {"A": self.objects(1)}
        top["definitions"] = {"A": self.leaf()}
        if self.maybe(0.15):
            top["$schema"] = "http://json-schema.org/draft-07/schema#"
        self.root = top | {"type": "object"}
        return self.root

    def node(self, depth: int) -> Any:
        if depth > 3 or self.maybe(0.3):
            return self.leaf()
        make = self.rand.choice(
            [
                self.objects,
                self.objects,
                self.lists,
                self.references,
                self.references,
                self.choices,
                self.sums,
                self.several,
            ]
        )
        made = make(depth)
        if self.maybe(0.2):
            made["description"] = "what it is"
        return made

    def leaf(self) -> Any:
        kind = self.rand.random()
        if kind < 0.15:
            return {"enum": [self.rand.choice(SCALARS) for _ in range(self.rand.randint(1, 4))]}
        if kind < 0.25:
            return {"const": self.rand.choice(SCALARS)}
        if kind < 0.3:
            return self.rand.choice([True, {}, False, {"description": "anything"}, {"minimum": 1}])
        made: dict[str, Any] = {"type": self.rand.choice(KINDS[:5])}
        if self.maybe(0.3):
            made |= self.rand.choice([{"minimum": 1}, {"exclusiveMinimum": 1}, {"minLength": 1}, {"enum": ["a", 1, 2]}])
        return made

    def objects(self, depth: int) -> dict[str, Any]:
        names = self.rand.sample(NAMES, self.rand.randint(0, 3))
        made: dict[str, Any] = {"type": "object", "properties": {name: self.node(depth + 1) for name in names}}
        if self.maybe(0.8):
            made["required"] = names if self.maybe(0.7) else self.rand.sample(NAMES, 1)
        if self.maybe(0.5):
            made["additionalProperties"] = False if self.maybe(0.8) else self.node(depth + 1)
        if self.maybe(0.1):
            made |= self.rand.choice(
                [
                    {"if": {"required": ["p"]}, "then": self.objects(depth + 1)},
                    {"dependentSchemas": {"p": self.objects(depth + 1)}},
                    {"patternProperties": {"^s": {"type": "string"}}},
                    {"unevaluatedProperties": {"type": "integer"}},
                    {"anyOf": [{"required": ["p"]}, {"required": ["q"]}]},
                ]
            )
        if self.maybe(0.1):
            del made["type"]
        return made

    def lists(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "array", "items": self.node(depth + 1)}
        if self.maybe(0.2):
            made["prefixItems"] = [self.node(depth + 1)]
        return made | ({"minItems": self.rand.choice([1, 2])} if self.maybe(0.2) else {})

    def references(self, depth: int) -> dict[str, Any]:
        beside: Any = {}
        if self.maybe(0.4):
            beside = self.rand.choice([self.objects, self.lists, self.choices])(depth + 1)
        return {**beside, "$ref": self.rand.choice(POINTERS)}

    def choices(self, depth: int) -> dict[str, Any]:
        made = {self.rand.choice(["anyOf", "oneOf"]): [self.node(depth + 1) for _ in range(self.rand.randint(1, 3))]}
        return {**self.objects(depth + 1), **made} if self.maybe(0.3) else made

    def sums(self, depth: int) -> dict[str, Any]:
        made = {"allOf": [self.node(depth + 1) for _ in range(self.rand.randint(1, 2))]}
        return {**self.objects(depth + 1), **made} if self.maybe(0.4) else made

    def several(self, depth: int) -> dict[str, Any]:
        made = {**self.lists(depth + 1), **self.objects(depth + 1), "type": self.rand.sample(KINDS, 2)}
        return made | ({"enum": [1, "a", None, True]} if self.maybe(0.2) else {})

    def value(self, schema: Any, depth: int = 0) -> Any:
        """A value that all parts of a schema had a hand in."""
        if not isinstance(schema, dict) or depth > 9:
            return self.rand.choice(SCALARS)
        node = cast("dict[str, Any]", schema)
        parts: list[Any] = [*node.get("allOf", ()), *([node["then"]] if "then" in node else ())]
        parts += list(node.get("dependentSchemas", {}).values())
        parts += [self.rand.choice(node[key]) for key in ("anyOf", "oneOf") if key in node]
        if "$ref" in node:
            parts.append(self.target(node["$ref"]))
        values = [self.value(part, depth + 1) for part in parts]
        if node.keys() & {"type", "properties", "enum", "const"}:
            values.append(self.own_value(node, depth))
        together: Any = {}
        for value in values:
            if isinstance(value, dict):
                together |= value
        return together if together else self.rand.choice(values or SCALARS)

    def own_value(self, node: dict[str, Any], depth: int) -> Any:
        if "const" in node or "enum" in node:
            return self.rand.choice([node["const"]] if "const" in node else node["enum"])
        kinds = node.get("type", "object")
        kind = self.rand.choice(kinds) if isinstance(kinds, list) else kinds
        if kind == "array":
            rest = [self.value(node.get("items"), depth + 1) for _ in range(self.rand.randint(0, 2))]
            return [*(self.value(each, depth + 1) for each in node.get("prefixItems", ())), *rest]
        if kind != "object":
            return self.rand.choice(
                {"string": ["a", "b"], "boolean": [True, False], "null": [None]}.get(kind, [1, 2, 7])
            )
        made = {
            name: self.value(child, depth + 1)
            for name, child in node.get("properties", {}).items()
            if name in node.get("required", ()) or self.maybe(0.6)
        }
        if isinstance(node.get("additionalProperties"), dict) and self.maybe(0.5):
            made["free"] = self.value(node["additionalProperties"], depth + 1)
        return made

    def target(self, pointer: str) -> Any:
        found: Any = self.root
        for step in pointer.split("/")[1:]:
            found = found.get(step.replace("~1", "/"), {}) if isinstance(found, dict) else {}
        return found


MAKERS = [Writer.objects, Writer.lists, Writer.references, Writer.choices, Writer.sums, Writer.several]


def leads_in_place(node: Any, writer: Writer, seen: tuple[str, ...] = ()) -> bool:
    """Whether a schema is only itself again, which no validator survives."""
    if not isinstance(node, dict):
        return False
    pointer = node.get("$ref")
    if pointer is not None and (pointer in seen or leads_in_place(writer.target(pointer), writer, (*seen, pointer))):
        return True
    inner = [each for key in ("allOf", "anyOf", "oneOf") for each in node.get(key, ())]
    return any(leads_in_place(each, writer, seen) for each in inner)


def is_endless(node: Any, writer: Writer) -> bool:
    if isinstance(node, list):
        return any(is_endless(each, writer) for each in cast("list[Any]", node))
    if not isinstance(node, dict):
        return False
    return leads_in_place(node, writer) or any(is_endless(each, writer) for each in node.values())


@st.composite
def written(draw: st.DrawFn) -> tuple[dict[str, Any], list[Any]]:
    """A schema, and values that it allows."""
    writer = Writer(random.Random(draw(st.integers(0, 2**32))))
    schema = writer.schema()
    if is_endless(schema, writer):
        return {"type": "object", "properties": {}}, []
    try:
        declared = jsonschema_rs.validator_for(schema)
    except ValueError:  # a reference that leads nowhere
        return schema, []
    values = [writer.value(schema) for _ in range(12)]
    return schema, [value for value in values if declared.is_valid(value)]


@replayable
@settings(max_examples=20 * EXAMPLES if os.environ.get("FOLIOT_CHAOS") else 150, deadline=None, database=None)
@given(made=written())
def test_every_value_of_any_json_schema_is_allowed_by_what_is_sent_and_that_does_not_grow(
    made: tuple[dict[str, Any], list[Any]],
) -> None:
    schema, values = made
    given_size = len(json.dumps(schema))
    sent = {name: sent_schema(name, schema) for name in WIRES}
    sent |= {f"{name} tool": sent_tool(name, schema)[0] for name in ("chat", "responses", "anthropic", "gemini")}
    sent["gemini json"] = allowed(schema, GEMINI)
    for name, each in sent.items():
        if each is None:
            continue
        assert len(json.dumps(each)) <= 8 * given_size + 4096, name
        taken = jsonschema_rs.validator_for(each) if values else None
        for value in values:
            assert taken is not None
            assert taken.is_valid(value), (name, value, schema, each)


def allowed(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any] | None:
    try:
        return translated(schema, dialect)
    except Inexpressible:
        return None


def doubled(times: int, refer: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Types that each hold the next one twice."""
    definitions: dict[str, Any] = {f"M{times}": {"type": "string"}}
    for at in range(times):
        properties = {"a": refer(f"#/$defs/M{at + 1}"), "b": refer(f"#/$defs/M{at + 1}")}
        definitions[f"M{at}"] = {"type": "object", "properties": properties, "required": ["a", "b"]}
    return {"$ref": "#/$defs/M0", "$defs": definitions}


def nested(times: int) -> dict[str, Any]:
    """An object in an object, each referred to by where it stands."""
    made: dict[str, Any] = {"type": "string"}
    for _ in range(times):
        made = {"type": "object", "properties": {"n": made}, "required": ["n"]}
    references = {f"p{at}": {"$ref": "#/properties/n" + "/properties/n" * at} for at in range(times - 1)}
    made["properties"] |= references
    return made | {"required": ["n", *references]}


def several_kinds(pointer: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": pointer}], "anyOf": [{"type": "string"}, {"type": "object", "properties": {}}]}


GROWING: dict[str, Callable[[int], dict[str, Any]]] = {
    "a reference": lambda n: doubled(n, lambda pointer: {"$ref": pointer}),
    "a description": lambda n: doubled(n, lambda pointer: {"$ref": pointer, "description": "x" * 40}),
    "a title in allOf": lambda n: doubled(n, lambda pointer: {"allOf": [{"$ref": pointer}], "title": "x"}),
    "a bound": lambda n: doubled(n, lambda pointer: {"$ref": pointer, "minProperties": 1}),
    "a shape": lambda n: doubled(n, lambda pointer: {"$ref": pointer, "properties": {"c": {"type": "string"}}}),
    "a choice": lambda n: doubled(n, lambda pointer: {"anyOf": [{"$ref": pointer}, {"type": "null"}]}),
    "a sum": lambda n: doubled(n, lambda pointer: {"allOf": [{"$ref": pointer}, {"$ref": pointer}]}),
    "a sum with a choice": lambda n: doubled(n, several_kinds),
    "places": nested,
    "one large type": lambda n: {
        "type": "object",
        "properties": {f"p{at}": {"$ref": "#/$defs/A", "description": str(at)} for at in range(n)},
        "required": [f"p{at}" for at in range(n)],
        "$defs": {"A": {"type": "string", "description": "x" * 50 * n, "enum": [str(at) for at in range(n)]}},
    },
}


DIALECTS = {"strict": STRICT, "native": NATIVE, "gemini": GEMINI, "open api": OPEN_API}
SIZES = (10, 40, 80)


def prepare_schema(growing: str, dialect: str, times: int) -> Callable[[], Any]:
    schema = GROWING[growing](times)
    return lambda: allowed(schema, DIALECTS[dialect])


@pytest.fixture(scope="module")
def calls() -> dict[tuple[str, str, int], int]:
    """How many functions are called for each schema in each dialect, all counted in one other process."""
    cases = list(product(GROWING, DIALECTS, SIZES))
    return dict(zip(cases, count_work("call", prepare_schema, *cases), strict=True))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("growing", GROWING)
def test_work_and_size_are_in_proportion_to_the_schema(growing: str, dialect: str, calls: Any) -> None:
    for times in SIZES:
        schema = GROWING[growing](times)
        size = len(json.dumps(schema))
        made = allowed(schema, DIALECTS[dialect])
        assert 0 < calls[growing, dialect, times] <= 12 * size + 10_000
        if made is not None:
            assert len(json.dumps(made)) <= 8 * size + 4096
        if growing in ("a reference", "a description", "a title in allOf") and dialect == "strict":
            assert made is not None  # definitions stand once, whatever is said where they are used


def test_what_is_too_long_for_every_provider_is_not_even_begun() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x" * MOST_CHARACTERS]}}, "required": ["a"]}
    assert strict_schema(schema) is None
    assert gemini_parameters(schema) is None


ANIMAL = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DOG = {"type": "object", "properties": {"bark": {"type": "string"}}, "required": ["bark"]}


@pytest.mark.parametrize(
    ("pet", "sent"),
    [
        ({"$ref": "#/$defs/Animal", **DOG}, {"bark", "name"}),
        ({"allOf": [{"$ref": "#/$defs/Animal"}], **DOG}, {"bark", "name"}),
        ({"allOf": [{"$ref": "#/$defs/Animal"}, DOG]}, {"bark", "name"}),
        ({"$ref": "#/$defs/Animal", "description": "mine"}, {"name"}),
        ({"$ref": "#/properties/pet/x-of/a~1b%20c", "x-of": {"a/b c": DOG}, "description": "mine"}, {"bark"}),
    ],
)
@pytest.mark.parametrize("dialect", [STRICT, NATIVE, GEMINI, OPEN_API], ids=["strict", "native", "gemini", "open api"])
def test_all_that_must_hold_is_sent_as_one(pet: dict[str, Any], sent: set[str], dialect: Dialect) -> None:
    schema = {"type": "object", "properties": {"pet": pet}, "required": ["pet"], "$defs": {"Animal": ANIMAL}}
    made = translated(schema, dialect)
    assert made["properties"]["pet"]["properties"].keys() == sent
    assert set(made["properties"]["pet"]["required"]) == sent


def test_a_reference_leads_where_its_pointer_says_and_not_to_the_definition_of_the_same_name() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"addr": {"type": "integer"}}, "required": ["addr"]},
            "b": {"$ref": "#/properties/a/properties/addr"},
            "c": {"$ref": "#/$defs/addr"},
        },
        "required": ["a", "b", "c"],
        "$defs": {"addr": {"type": "string"}},
    }
    made = translated(schema, STRICT)
    assert [made["$defs"][made["properties"][name]["$ref"].rsplit("/", 1)[-1]] for name in "bc"] == [
        {"type": "integer"},
        {"type": "string"},
    ]
    assert allowed({**schema, "properties": {"a": {"$ref": "other.json#/addr"}}, "required": ["a"]}, STRICT) is None


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "object"}}}, True),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, False),
        ({"$ref": "#/properties/A", "$defs": {"A": {"type": "object"}}}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}, False),
    ],
)
def test_an_object_is_known_through_its_references(schema: dict[str, Any], expected: bool) -> None:
    assert is_object(schema) is expected


def test_a_tool_whose_arguments_are_a_reference_has_them_at_gemini_too() -> None:
    schema = {"$ref": "#/$defs/Args", "$defs": {"Args": {**DOG, "additionalProperties": False}}}
    assert sent_tool("gemini", schema)[0] == {**DOG, "additionalProperties": False}


def test_conditions_that_bring_in_properties_do_not_meet_a_closed_object() -> None:
    schema = {**ANIMAL, "if": {"properties": {"name": {"const": "Rex"}}}, "then": DOG}
    assert [allowed(schema, dialect) for dialect in (STRICT, NATIVE, GEMINI, OPEN_API)] == [None] * 4


def test_what_stands_beside_a_reference_counts_as_the_draft_says() -> None:
    number = {"$ref": "#/$defs/N", "type": "string"}
    schema: dict[str, Any] = {"type": "object", "properties": {"n": number}, "required": ["n"]}
    schema["$defs"] = {"N": {"type": "integer"}}
    assert allowed(schema, STRICT) is None  # nothing is both
    old = translated({**schema, "$schema": "http://json-schema.org/draft-07/schema#"}, STRICT)
    assert old["properties"] == {"n": {"type": "integer"}}
    beside = {**schema["properties"]["n"], "properties": {"a": True}}
    mixed = {**schema, "properties": {"n": beside}, "$schema": "http://json-schema.org/draft-07/schema#"}
    assert allowed(mixed, STRICT) is None  # ignored by the draft, and meant by whoever wrote it


BARKS = {"properties": {"bark": {"type": "string"}}, "required": ["bark"]}
REX = {"name": "Rex", "bark": "loud"}


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize(
    ("pet", "value"),
    [
        ({"$ref": "#/$defs/Pet", **BARKS}, REX),
        ({"type": "object", "allOf": [{"$ref": "#/$defs/Pet"}], **BARKS}, REX),
        ({**ANIMAL, "anyOf": [{"type": "object", **BARKS}, {"type": "object", **ANIMAL}]}, REX),
        ({"$ref": "#/properties/other/properties/Pet"}, 7),
        ({"type": ["integer", "string"], "enum": [1.0, 2]}, 1),
    ],
    ids=["ref beside", "allOf beside", "anyOf beside", "elsewhere", "whole floats"],
)
def test_what_stands_beside_a_reference_or_a_choice_is_not_lost(name: str, pet: Any, value: Any) -> None:
    other = {"type": "object", "properties": {"Pet": {"type": "integer"}}}
    properties = {"pet": pet, "other": other}
    schema = {"type": "object", "properties": properties, "required": ["pet", "other"], "$defs": {"Pet": ANIMAL}}
    full = {"pet": value, "other": {"Pet": 7}}
    assert jsonschema_rs.is_valid(schema, full)
    sent = sent_schema(name, schema)
    assert sent is None or jsonschema_rs.is_valid(sent, full), sent


def test_types_that_hold_themselves_are_told_from_those_that_do_not() -> None:
    def chain(last: dict[str, Any], required: list[str]) -> dict[str, Any]:
        definitions = {
            f"n{at}": {**ANIMAL, "properties": {"name": {"$ref": f"#/$defs/n{at + 1}"}}} for at in range(300)
        }
        definitions["n300"] = {"type": "object", "properties": {"to": last}, "required": required}
        top = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n0"}}, "required": ["n"]}
        return {**top, "$defs": definitions}

    back = {"$ref": "#/$defs/n290"}
    for last, required, said in (
        ({"type": "string"}, ["to"], [STRICT, NATIVE, GEMINI]),
        (back, ["to"], [STRICT]),
        (back, [], [GEMINI]),
    ):
        schema = chain(last, required)
        assert [each for each in (STRICT, NATIVE, GEMINI) if allowed(schema, each) is not None] == said
