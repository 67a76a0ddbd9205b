"""A schema that is sent is never narrower than the one declared, and keeps the rules of its dialect."""

from __future__ import annotations

import json
import os
from typing import Any, Literal, Optional, cast

import jsonschema_rs
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from foliot.kernel.messages import Message, ModelRequest, ModelSettings, Text, ToolSpec
from foliot.models.wire.anthropic import AnthropicWire
from foliot.models.wire.anthropic_answer import OUTPUT_TOOL
from foliot.models.wire.base import Wire
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.gemini_schema import gemini_schema
from foliot.models.wire.ollama import OllamaWire
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire
from foliot.models.wire.schemas import Inexpressible, _in_circles, gemini_parameters, native_schema, strict_schema

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


# --- schemas that nobody generates, and somebody writes --------------------------------------------------------------

PET = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
BARKS = {"properties": {"bark": {"type": "string"}}, "required": ["bark"]}
ANIMAL = {"name": "Rex", "bark": "loud"}


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize(
    ("pet", "value"),
    [
        ({"$ref": "#/$defs/Pet", **BARKS}, ANIMAL),
        ({"type": "object", "allOf": [{"$ref": "#/$defs/Pet"}], **BARKS}, ANIMAL),
        ({**PET, "anyOf": [{"type": "object", **BARKS}, {"type": "object", **PET}]}, ANIMAL),
        ({"$ref": "#/properties/other/properties/Pet"}, 7),
        ({"type": ["integer", "string"], "enum": [1.0, 2]}, 1),
    ],
    ids=["ref beside", "allOf beside", "anyOf beside", "elsewhere", "whole floats"],
)
def test_what_stands_beside_a_reference_or_a_choice_is_not_lost(name: str, pet: Any, value: Any) -> None:
    other = {"type": "object", "properties": {"Pet": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"pet": pet, "other": other},
        "required": ["pet", "other"],
        "$defs": {"Pet": PET},
    }
    full = {"pet": value, "other": {"Pet": 7}}
    assert jsonschema_rs.is_valid(schema, full)
    sent = sent_schema(name, schema)
    assert sent is None or jsonschema_rs.is_valid(sent, full), sent


def doubling(depth: int) -> dict[str, Any]:
    """Each type twice in the one before, with a description: written out it doubles with each."""
    defs: dict[str, Any] = {}
    for number in range(depth):
        child: dict[str, Any] = {"$ref": f"#/$defs/M{number + 1}", "description": "x"}
        child = child if number < depth - 1 else {"type": "string"}
        fields = {"a": dict(child), "b": dict(child)}
        defs[f"M{number}"] = {
            "type": "object", "properties": fields, "required": ["a", "b"], "additionalProperties": False,
        }  # fmt: skip
    return {"$ref": "#/$defs/M0", "$defs": defs}


@pytest.mark.parametrize("translate", [strict_schema, native_schema, gemini_parameters, gemini_schema])
def test_a_small_schema_never_becomes_a_large_one(translate: Any) -> None:
    assert translate(doubling(4)) is not None
    try:
        made = translate(doubling(40))  # 2 to the 40th parts, if it were written out
    except Inexpressible:
        made = None
    assert made is None


def test_circles_among_many_definitions_are_found_in_one_walk() -> None:
    leads = {f"n{number}": [f"n{number + 1}", "gone"] for number in range(20_000)}
    assert _in_circles(leads) == frozenset()
    leads["n19999"] = ["n19990"]
    leads["n5"] = ["n5", "n6"]
    assert _in_circles(leads) == {"n5", *(f"n{number}" for number in range(19_990, 20_000))}
