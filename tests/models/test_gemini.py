from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Reasoning,
    Text,
    ToolCall,
    ToolFailure,
    ToolResult,
    ToolSpec,
)
from foliot.models.config import GatewayConfig
from foliot.models.gateways.gemini import GeminiGateway
from foliot.models.routing.endpoints import EndpointConfig
from foliot.models.routing.router import Router
from foliot.models.wire.base import WireError
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.schemas import OPEN_API, Inexpressible, translated
from foliot.models.wire.values import CallIds, is_own_id
from simulators.provider import Fault, Play, WireRequest, WireServer

genai = pytest.importorskip("google.genai")
WIRE = GeminiWire()
SIGNED = ToolCall("foliot_x_0", "memory.write", '{"k": 1}', "gemini.call:sig")


def ask(*messages: Message, model: str = "gemini-3-pro", **changes: Any) -> ModelRequest:
    return ModelRequest(model, messages or (Message("user", (Text("hi"),)),), **changes)


def build(request: ModelRequest) -> dict[str, Any]:
    return json.loads(json.dumps(WIRE.build_body(request, WIRE.names(request), stream=False)))


def parse(*parts: dict[str, Any], **candidate: Any) -> ModelResponse:
    request = ask(tools=(ToolSpec("memory.write"),))
    body = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP", **candidate}]}
    return WIRE.parse(json.dumps(body).encode(), WIRE.names(request), CallIds(request, lambda: b"seed"))


def test_turns_and_parts() -> None:
    body = build(
        ask(
            Message("user", (Text("look"), Media("image/png", data="aQ=="), Media("video/mp4", url="gs://v"))),
            Message("assistant", (SIGNED, ToolCall("id7", "x", "{}"))),
            Message("tool", (ToolResult("foliot_x_0", "memory.write", (Text("ok"), Media("image/png", data="aQ=="))),)),
            Message("tool", (ToolResult("id7", "x", (), ToolFailure("e", "r", "bad")),)),
            system="Be brief.",
            tools=(ToolSpec("memory.write"), ToolSpec("x", schema={"type": "object", "properties": {}})),
        )
    )  # fmt: skip
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert [content["role"] for content in body["contents"]] == ["user", "model", "user"]
    assert body["contents"][0]["parts"] == [
        {"text": "look"},
        {"inlineData": {"mimeType": "image/png", "data": "aQ=="}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://v"}},
    ]
    assert body["contents"][1]["parts"] == [
        {"functionCall": {"name": "memory_write", "args": {"k": 1}}, "thoughtSignature": "sig"},
        {"functionCall": {"name": "x", "args": {}, "id": "id7"}},
    ]
    assert body["contents"][2]["parts"][0] == {
        "functionResponse": {"name": "memory_write", "response": {"output": ["ok", "[image/png]"]}}
    }
    declared = body["tools"][0]["functionDeclarations"]
    assert declared[0]["parametersJsonSchema"] == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "additionalProperties": {},
    }
    assert not {"parameters", "parametersJsonSchema"} & declared[1].keys()


def test_the_answers_to_parallel_calls_stand_together() -> None:
    body = build(
        ask(
            Message(
                "tool",
                (
                    ToolResult("a", "x", (Text("1"), Media("image/png", data="aQ=="))),
                    ToolResult("b", "y", (), ToolFailure("e", "r", "bad")),
                ),
            )
        )
    )
    kinds = [next(iter(part)) for part in body["contents"][0]["parts"]]
    assert kinds == ["functionResponse", "functionResponse", "inlineData"]
    assert body["contents"][0]["parts"][1]["functionResponse"]["response"] == {"error": "bad"}


def test_signatures_go_back_to_exactly_where_they_came_from() -> None:
    parts = [
        {"text": "thinking", "thought": True, "thoughtSignature": "a"},
        {"text": "first "},
        {"text": "second", "thoughtSignature": "b"},
        {"functionCall": {"name": "memory_write", "args": {}}, "thoughtSignature": "c"},
        {"functionCall": {"name": "memory_write", "args": {}}},
        {"text": "", "thoughtSignature": "d"},
    ]
    answer = parse(*parts)
    assert answer.message.text == "first second"
    request = ask(answer.message, tools=(ToolSpec("memory.write"),))
    assert build(request)["contents"][0]["parts"] == parts


def test_a_summary_without_a_signature_is_not_sent_back() -> None:
    answer = parse({"text": "hm", "thought": True}, {"text": "ok"})
    assert answer.message.parts == (Reasoning("hm"), Text("ok"))
    assert build(ask(answer.message))["contents"][0]["parts"] == [{"text": "ok"}]


@pytest.mark.parametrize(("model", "excused"), [("gemini-3-pro", True), ("gemini-2.5-flash", False)])
def test_calls_made_by_another_provider_are_excused_from_a_signature(model: str, excused: bool) -> None:
    calls = (ToolCall("call_1", "x", "{}"), ToolCall("call_2", "x", "{}"))
    parts = build(ask(Message("assistant", calls), model=model))["contents"][0]["parts"]
    assert ("thoughtSignature" in parts[0]) is excused
    assert "thoughtSignature" not in parts[1]


def test_ids_are_made_when_there_are_none_and_kept_when_there_are() -> None:
    answer = parse({"functionCall": {"name": "x", "args": {}}}, {"functionCall": {"name": "x", "args": {}, "id": "g1"}})
    first, second = answer.message.calls
    assert is_own_id(first.id)
    assert second.id == "g1"
    assert answer.stop == "tool_calls"


def test_thinking_is_a_level_for_new_models_and_a_budget_for_old_ones() -> None:
    settings = ModelSettings(reasoning_effort="low", max_output_tokens=5, temperature=0.1, stop=("X",), seed=2)
    new = build(ask(settings=settings))["generationConfig"]
    assert new == {
        "maxOutputTokens": 5, "temperature": 0.1, "stopSequences": ["X"], "seed": 2,
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
    }  # fmt: skip
    old = build(ask(model="gemini-2.5-pro", settings=settings))["generationConfig"]["thinkingConfig"]
    assert old == {"includeThoughts": True, "thinkingBudget": 2048}


def test_a_schema_for_the_answer_is_asked_in_words_where_it_excludes_functions() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    new = build(ask(output_schema=schema, tools=(ToolSpec("t"),)))
    assert new["generationConfig"]["responseMimeType"] == "application/json"
    old = build(ask(model="gemini-2.5-pro", output_schema=schema, tools=(ToolSpec("t"),)))
    assert "generationConfig" not in old
    assert "JSON Schema" in old["systemInstruction"]["parts"][0]["text"]


@pytest.mark.parametrize(
    ("reason", "stop"), [("STOP", "end"), ("MAX_TOKENS", "length"), ("SAFETY", "refusal"), ("LANGUAGE", "refusal")]
)
def test_stop_reasons(reason: str, stop: str) -> None:
    assert parse({"text": "x"}, finishReason=reason).stop == stop


def test_a_call_that_the_model_could_not_write_is_garbage() -> None:
    with pytest.raises(WireError, match="MALFORMED_FUNCTION_CALL"):
        parse(finishReason="MALFORMED_FUNCTION_CALL")


def test_a_blocked_question_is_a_refusal() -> None:
    request = ask()
    body = b'{"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}'
    answer = WIRE.parse(body, WIRE.names(request), CallIds(request, lambda: b""))
    assert (answer.stop, answer.message.parts, answer.usage.input_tokens) == ("refusal", (), 3)


def test_a_picture_in_the_answer_is_media() -> None:
    answer = parse({"text": "here"}, {"inlineData": {"mimeType": "image/png", "data": "aW1n"}})
    assert answer.message.parts == (Text("here"), Media("image/png", data="aW1n"))


# ── schemas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given_schema", "sent"),
    [
        ({"type": ["string", "null"]}, {"type": "STRING", "nullable": True}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "INTEGER", "nullable": True}),
        ({"anyOf": [{"type": "integer"}], "description": "d"}, {"type": "INTEGER", "description": "d"}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"type": "INTEGER"}, {"type": "STRING"}]}),
        ({"const": "a"}, {"type": "STRING", "enum": ["a"], "format": "enum"}),
        ({"enum": [1, 2]}, {"type": "INTEGER", "description": "(enum: [1,2])"}),
        ({"type": "string", "format": "uri"}, {"type": "STRING", "description": '(format: "uri")'}),
        ({"type": "string", "format": "date-time"}, {"type": "STRING", "format": "date-time"}),
        (
            {"type": "number", "exclusiveMinimum": 0, "minimum": 1},
            {"type": "NUMBER", "minimum": 1, "description": "(exclusiveMinimum: 0)"},
        ),
        (
            {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
            {"type": "ARRAY", "items": {"type": "INTEGER"}, "nullable": True},
        ),
    ],
)  # fmt: skip
def test_what_gemini_does_not_know_is_brought_down(given_schema: dict[str, Any], sent: dict[str, Any]) -> None:
    assert translated(given_schema, OPEN_API) == sent


def test_references_are_written_out() -> None:
    schema = {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/Node", "description": "the root"}},
        "required": ["root"],
        "$defs": {"Node": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    node = {"type": "OBJECT", "description": "the root", "properties": {"name": {"type": "STRING"}}}
    assert translated(schema, OPEN_API) == {"type": "OBJECT", "properties": {"root": node}, "required": ["root"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
        {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"$ref": "#/$defs/N"}}},
        {"allOf": [{"type": "object"}, {"type": "object"}]},
    ],
)
def test_what_open_api_cannot_say_is_not_said_otherwise(schema: dict[str, Any]) -> None:
    with pytest.raises(Inexpressible):
        translated(schema, OPEN_API)


_kinds = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
_leaf = {
    "type": _kinds | st.lists(_kinds, min_size=1, max_size=3),
    "enum": st.lists(st.text(max_size=3) | st.integers() | st.none(), max_size=3),
    "const": st.text(max_size=3) | st.integers(),
    "format": st.sampled_from(["uri", "int32", "date-time"]),
    "$ref": st.sampled_from(["#/$defs/A", "#/$defs/gone"]),
}


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = inner.filter(lambda value: isinstance(value, dict))
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _kinds,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "items": inner | st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=3),
            "allOf": st.lists(objects, max_size=2),
            "required": st.lists(st.sampled_from("abc"), max_size=2),
            "$defs": st.dictionaries(st.just("A"), inner),
        },
    )


schemas = st.recursive(st.fixed_dictionaries({}, optional=_leaf) | st.booleans(), _nested, max_leaves=8)


@settings(deadline=None)
@example(schema={"allOf": [True, {"$ref": "#/$defs/any"}, {"type": "object"}], "$defs": {"any": True}})
@given(schema=schemas.filter(lambda v: isinstance(v, dict)))
def test_every_schema_becomes_one_that_the_official_types_accept(schema: dict[str, Any]) -> None:
    types = pytest.importorskip("google.genai.types")
    with suppress(Inexpressible):
        types.Schema.model_validate(translated(schema, OPEN_API))


# ── over a socket ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("auth", "header", "value"), [("key", "x-goog-api-key", "g-1"), ("bearer", "authorization", "Bearer g-1")]
)
async def test_the_key_stands_in_a_header_and_never_in_the_address(auth: str, header: str, value: str) -> None:
    answer = ModelResponse(Message("assistant", (Text("ok"),)), model="m", id="r")
    async with WireServer([answer]) as server:
        gateway = GeminiGateway(GatewayConfig("gemini", f"{server.url}/v1beta", "g-1", options={"auth": auth}))
        await gateway.respond(ask())
        await gateway.respond(ask(model="publishers/google/models/x y"), on_delta=lambda _: None)
        await gateway.close()
    assert [request.path for request in server.requests] == [
        "/v1beta/models/gemini-3-pro:generateContent",
        "/v1beta/publishers/google/models/x%20y:streamGenerateContent?alt=sse",
    ]
    assert server.requests[0].headers[header] == value


NOT_VALID = {
    "error": {
        "code": 400,
        "message": "API key not valid. Please pass a valid API key.",
        "status": "INVALID_ARGUMENT",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
    }
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_that_was_rotated_is_looked_up_and_the_question_asked_again(stream: bool) -> None:
    """Gemini refuses a key with 400, not with 401."""

    def script(request: WireRequest) -> Play:
        if request.headers["x-goog-api-key"] == "new":
            return Play(ModelResponse(Message("assistant", (Text("here"),)), model="m", id="1"))
        return Play(fault=Fault("status", status=400, body=json.dumps(NOT_VALID).encode()))

    async with WireServer(script) as server:

        def endpoint(key: str) -> EndpointConfig:
            return EndpointConfig("g", GatewayConfig("google", base_url=f"{server.url}/v1beta", api_key=key, model="m"))

        async def anew(name: str) -> EndpointConfig:
            return endpoint("new")

        router = Router(lambda _: endpoint("old"), look_anew=anew)
        answer = await router.respond("g", ask(model=""), on_delta=(lambda _: None) if stream else None)
        await router.close()

    assert (answer.message.text, [each.headers["x-goog-api-key"] for each in server.requests]) == (
        "here",
        ["old", "new"],
    )


def stream(*parts: dict[str, Any]) -> tuple[ModelResponse, list[Any]]:
    """Parts as a stream has them, one in each frame, read by us, and each taken by Google's own SDK."""
    request = ask(tools=(ToolSpec("memory.write"),))
    assembler = WIRE.assembler(WIRE.names(request), CallIds(request, lambda: b"seed"))
    deltas: list[Any] = []
    for number, part in enumerate(parts):
        reason = {"finishReason": "STOP"} if number + 1 == len(parts) else {}
        frame = {"candidates": [{"content": {"role": "model", "parts": [part]}, **reason}]}
        genai.types.GenerateContentResponse.model_validate(frame)
        deltas.extend(assembler.feed(json.dumps(frame).encode()))
    return assembler.finish(), deltas


def piece(path: str, goes_on: bool = True, **value: Any) -> dict[str, Any]:
    part = {"jsonPath": path, "willContinue": goes_on, **value}
    return {"functionCall": {"partialArgs": [part], "willContinue": True}}


END = {"functionCall": {}}


def test_arguments_that_are_streamed_in_pieces_are_one_call() -> None:
    """As Vertex sends them when `streamFunctionCallArguments` is on."""
    answer, deltas = stream(
        {"functionCall": {"name": "memory_write", "id": "c1", "willContinue": True}, "thoughtSignature": "sig"},
        piece("$.to.city", stringValue="Os"),
        piece("$.to.city", goes_on=False, stringValue="lo"),
        piece("$.to['zip code']", stringValue="0150"),
        piece("$.parcels[0].grams", numberValue=50),
        piece("$.parcels[1].grams", numberValue=0.5),
        piece("$.fast", boolValue=True),
        piece("$.note", nullValue="NULL_VALUE"),
        END,
        END,
        {"functionCall": {"name": "memory_write", "args": {"whole": 1}}},
    )

    first, second = answer.message.calls
    assert (first.id, first.name, first.opaque) == ("c1", "memory.write", "gemini.call:sig")
    assert json.loads(first.arguments) == {
        "to": {"city": "Oslo", "zip code": "0150"},
        "parcels": [{"grams": 50}, {"grams": 0.5}],
        "fast": True,
        "note": None,
    }
    assert second.arguments == '{"whole": 1}'
    assert [each.arguments for each in deltas] == [first.arguments, second.arguments]
    assert answer.stop == "tool_calls"


BEGUN = {"functionCall": {"name": "memory_write", "willContinue": True}}


@pytest.mark.parametrize(
    "parts",
    [
        (BEGUN, piece("$.a", stringValue="x")),  # the stream ends within
        (BEGUN, piece("$.a[1]", stringValue="x"), END),
        (BEGUN, piece("$.a", stringValue="x"), piece("$.a.b", stringValue="x"), END),
        (BEGUN, piece("$.a.b", stringValue="x"), piece("$.a", stringValue="x"), END),
        (BEGUN, piece("$..a", stringValue="x"), END),
        (BEGUN, piece("$.a[*]", stringValue="x"), END),
        (BEGUN, piece("", stringValue="x"), END),
        (BEGUN, piece("$" + ".a" * 5000, stringValue="x"), END),
    ],
)
def test_pieces_that_make_no_arguments_are_no_answer(parts: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(WireError):
        stream(*parts)


def test_a_call_whose_arguments_have_begun_to_come_may_have_none() -> None:
    answer, _ = stream(BEGUN, END)
    assert answer.message.calls[0].arguments == "{}"
