"""What holds for every format: streamed or whole, however the network cuts it, the answer is the same."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.models.wire.anthropic import AnthropicWire
from foliot.models.wire.base import ProviderFault, Wire, WireError
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.lines import JsonLines, SseLines
from foliot.models.wire.ollama import OllamaWire
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire
from foliot.models.wire.values import CallIds
from simulators.provider_formats import format_of

WIRES: dict[str, Wire] = {
    "/chat/completions": OpenAIChatWire(),
    "/responses": OpenAIResponsesWire(),
    "/messages": AnthropicWire(),
    ":generateContent": GeminiWire(),
    "/api/chat": OllamaWire(),
}
every_format = pytest.mark.parametrize("path", WIRES)
TOOLS = (ToolSpec("memory.write"), ToolSpec("search"))

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words, lambda x: st.lists(x, max_size=3), max_leaves=4
)
calls = st.lists(
    st.tuples(st.sampled_from(["memory.write", "search"]), st.dictionaries(words, values, max_size=3)), max_size=3
)
tokens = st.integers(0, 10_000)


@st.composite
def responses(draw: st.DrawFn) -> ModelResponse:
    parts: list[Part] = []
    if thought := draw(st.one_of(st.just(""), words)):
        parts.append(Reasoning(thought, signature="c2ln"))
    if text := draw(st.one_of(st.just(""), words)):
        parts.append(Text(text))
    for number, (name, arguments) in enumerate(draw(calls)):
        parts.append(ToolCall(f"call_{number}", name, msgspec.json.encode(arguments).decode()))
    reasoning = draw(tokens)
    read, wrote = draw(tokens), draw(tokens)
    usage = Usage(draw(tokens) + read + wrote, draw(tokens) + reasoning, read, wrote, reasoning)
    stop: Any = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "end"
    return ModelResponse(Message("assistant", tuple(parts)), usage, stop, "model-1", "", "id-1")


def request(**changes: Any) -> ModelRequest:
    return msgspec.structs.replace(ModelRequest("m", (Message("user", (Text("hi"),)),), tools=TOOLS), **changes)


def reader(wire: Wire) -> tuple[Any, CallIds]:
    asked = request()
    return wire.names(asked), CallIds(asked, lambda: b"seed")


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(marks)]


@every_format
@settings(max_examples=60, deadline=None)
@given(response=responses(), pieces=st.integers(1, 9), cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_a_stream_and_a_body_of_one_answer_say_the_same(
    path: str, response: ModelResponse, pieces: int, cuts: list[int]
) -> None:
    wire, format = WIRES[path], format_of(path)
    assert format is not None
    whole = wire.parse(msgspec.json.encode(format.body(response)), *reader(wire))

    lines = JsonLines() if path == "/api/chat" else SseLines()
    assembler = wire.assembler(*reader(wire))
    deltas: list[Any] = []
    for chunk in chunks(b"".join(format.frames(response, pieces)), cuts):
        for event in lines.feed(chunk):
            deltas.extend(assembler.feed(event))
    for event in lines.flush():
        deltas.extend(assembler.feed(event))
    streamed = assembler.finish()

    assert streamed == whole
    assert streamed.message.text == response.message.text
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == response.message.text
    thought = "".join(part.text for part in response.message.parts if isinstance(part, Reasoning))
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == thought
    assert [call.name for call in streamed.message.calls] == [call.name for call in response.message.calls]
    for index, call in enumerate(streamed.message.calls):
        mine = [d for d in deltas if isinstance(d, ToolCallDelta) and d.index == index]
        assert {(d.id, d.name) for d in mine} == {(call.id, call.name)}
        assert ("".join(d.arguments for d in mine) or "{}") == call.arguments
        assert msgspec.json.decode(call.arguments) == msgspec.json.decode(response.message.calls[index].arguments)
    assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (
        response.usage.input_tokens,
        response.usage.output_tokens,
    )
    assert streamed.stop == response.stop


@every_format
@settings(max_examples=30, deadline=None)
@given(response=responses(), data=st.data())
def test_a_stream_that_stops_early_is_never_taken_for_an_answer(path: str, response: ModelResponse, data: Any) -> None:
    wire, format = WIRES[path], format_of(path)
    assert format is not None
    frames = format.frames(response, 3)
    # Behind a finish reason nothing of the answer is missing: usage and [DONE] of a chat, `message_stop` of Anthropic.
    needed = len(frames) - {"/chat/completions": 2, "/messages": 1}.get(path, 0)
    kept = data.draw(st.integers(0, needed - 1))
    lines = JsonLines() if path == "/api/chat" else SseLines()
    assembler = wire.assembler(*reader(wire))
    for event in lines.feed(b"".join(frames[:kept])):
        assembler.feed(event)
    with pytest.raises(WireError):
        assembler.finish()


KNOWN = (WireError, ProviderFault, msgspec.DecodeError, UnicodeDecodeError)
json_values = st.recursive(values, lambda x: st.dictionaries(words, x, max_size=3), max_leaves=6)


def mutated(value: Any, data: Any) -> Any:
    """The same JSON with one value, anywhere in it, replaced by another or left out."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(value)))
        if data.draw(st.integers(0, 4)) == 0:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: mutated(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], mutated(value[place], data), *value[place + 1 :]]
    return data.draw(json_values)


@every_format
@settings(max_examples=150, deadline=None)
@given(response=responses(), junk=st.binary(max_size=60), data=st.data())
def test_a_damaged_answer_is_an_error_that_the_gateway_knows_or_is_read(
    path: str, response: ModelResponse, junk: bytes, data: Any
) -> None:
    wire, format = WIRES[path], format_of(path)
    assert format is not None
    bodies = [junk, msgspec.json.encode(mutated(format.body(response), data))]
    frames = format.frames(response, 2)
    lines = JsonLines() if path == "/api/chat" else SseLines()
    events = [event for frame in frames for event in lines.feed(frame) if event != b"[DONE]"]
    place = data.draw(st.integers(0, len(events) - 1))
    events[place] = msgspec.json.encode(mutated(msgspec.json.decode(events[place]), data))
    for body in bodies:
        with suppress(*KNOWN):
            assert isinstance(wire.parse(body, *reader(wire)), ModelResponse)
    with suppress(*KNOWN):
        assembler = wire.assembler(*reader(wire))
        for event in events:
            assembler.feed(event)
        assert isinstance(assembler.finish(), ModelResponse)


@every_format
@settings(deadline=None)
@given(arguments=st.text(max_size=40), tool=st.sampled_from(["memory.write", "search", "gone.tool"]))
def test_whatever_a_model_wrote_can_be_sent_back(path: str, arguments: str, tool: str) -> None:
    """A history with arguments of any kind becomes valid JSON, and names in it match the declarations."""
    history = (
        Message("user", (Text("hi"),)),
        Message("assistant", (ToolCall("call_1", tool, arguments),)),
        Message("tool", (ToolResult("call_1", tool, (Text("ok"),)),)),
    )
    wire, asked = WIRES[path], request(messages=history)
    body = msgspec.json.encode(wire.build_body(asked, wire.names(asked), stream=False))
    if "memory.write" not in arguments:
        assert b"memory.write" not in body.replace(b"Invoke tool memory.write", b"")
    sent = msgspec.json.decode(body)
    for found in _arguments(sent):
        assert isinstance(msgspec.json.decode(found) if isinstance(found, str) else found, dict)


def _arguments(value: Any) -> list[Any]:
    """Every `arguments`, `args` and `input` of a call, anywhere in a body."""
    if isinstance(value, list):
        return [found for item in value for found in _arguments(item)]
    if not isinstance(value, dict):
        return []
    keys = [key for key in ("arguments", "args") if key in value]
    if value.get("type") == "tool_use":
        keys.append("input")
    return [value[key] for key in keys] + [found for item in value.values() for found in _arguments(item)]


@every_format
def test_the_order_in_which_tools_are_given_does_not_change_the_request(path: str) -> None:
    wire = WIRES[path]
    names = ["b", "a.b", "a_b", "c", "A_B"]
    bodies = {
        msgspec.json.encode(wire.build_body(asked, wire.names(asked), stream=False))
        for order in (names, names[::-1], sorted(names))
        for asked in (request(tools=tuple(ToolSpec(name) for name in order)),)
    }
    assert len(bodies) == 1


@every_format
def test_calls_get_an_id_that_is_new_in_the_run_and_the_same_when_asked_again(path: str) -> None:
    wire, format = WIRES[path], format_of(path)
    assert format is not None
    given_calls = tuple(ToolCall("call_0", "search", "{}") for _ in range(2))
    answer = ModelResponse(Message("assistant", given_calls), stop="tool_calls")
    history = (Message("assistant", (ToolCall("call_0", "search", "{}"),)),)
    asked = request(messages=history)
    found = [
        [call.id for call in wire.parse(body, wire.names(asked), CallIds(asked, lambda: b"seed")).message.calls]
        for body in [msgspec.json.encode(format.body(answer))] * 2
    ]
    assert found[0] == found[1]
    assert len({*found[0], "call_0"}) == 3


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/chat/completions", set()),
        ("/responses", {"ENCRYPTED"}),
        ("/messages", {"SIGNED", "REDACTED"}),
        (":generateContent", {"ONTEXT", "ONCALL"}),
        ("/api/chat", set()),
    ],
)
def test_what_one_provider_signed_is_never_sent_to_another(path: str, own: set[str]) -> None:
    """A run that fell back has the signatures of several providers in its history; each gets back its own."""
    parts = (
        Reasoning("t", signature="SIGNED"),
        Reasoning("u", signature="UNKNOWN", opaque='{"provider_name":"google-vertex"}'),
        Reasoning(opaque="anthropic.redacted:REDACTED"),
        Reasoning("r", opaque='openai.responses:{"id":"rs_1","encrypted_content":"ENCRYPTED"}'),
        Text("x"),
        Reasoning(opaque="gemini.text:ONTEXT"),
        Reasoning(opaque='openai.chat.details:[{"type":"DETAILS"}]'),
        ToolCall("call_1", "search", "{}", "gemini.call:ONCALL"),
    )
    wire, asked = WIRES[path], request(messages=(Message("user", (Text("hi"),)), Message("assistant", parts)))
    body = msgspec.json.encode(wire.build_body(asked, wire.names(asked), stream=False)).decode()
    known = {"SIGNED", "UNKNOWN", "REDACTED", "ENCRYPTED", "ONTEXT", "ONCALL", "DETAILS"}
    assert {word for word in known if word in body} == own


def _texts(value: Any) -> list[str]:
    """Every text of a body, in its order."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in inside for text in _texts(item)]


@every_format
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["text", "image", "json"]), min_size=2, max_size=5))
def test_the_blocks_of_a_result_stay_apart_and_in_order(path: str, kinds: list[str]) -> None:
    """Whatever a format can hold: a block is a block of its own, or a line of its own, where the tool had put it."""
    picture, data = "aW1hZ2U=", base64.b64encode(b'{"z":1,"a":2}').decode()
    made: dict[str, Text | Media] = {
        "text": Text("said"),
        "image": Media("image/png", data=picture),
        "json": Media("application/json", data=data),
    }
    content = tuple(made[kind] for kind in kinds)
    call = Message("assistant", (ToolCall("call_1", "search", "{}"),))
    asked = request(messages=(call, Message("tool", (ToolResult("call_1", "search", content),))))
    body = WIRES[path].build_body(asked, WIRES[path].names(asked), stream=False)

    lines = [line for text in _texts(body) for line in text.split("\n")]
    shown = {"said": "text", "[image/png]": "image", '{"z":1,"a":2}': "json"}
    inline = path in ("/messages", "/responses")  # these hold an image where it was
    order = [shown.get(line) or ("image" if inline and picture in line else None) for line in lines]
    assert [kind for kind in order if kind] == kinds
    assert sum(picture in line for line in lines) == kinds.count("image")


@every_format
def test_a_result_without_anything_is_said_to_be_empty(path: str) -> None:
    for content in ((), (Text(""),)):
        asked = request(
            messages=(
                Message("assistant", (ToolCall("call_1", "search", "{}"),)),
                Message("tool", (ToolResult("call_1", "search", content),)),
            )
        )
        assert "(empty result)" in _texts(WIRES[path].build_body(asked, WIRES[path].names(asked), stream=False))


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all fields. What says which kind of thing stands there, and in which order, is never left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        if isinstance(key, str) and key != "type":
            yield (*path, key)
        yield from places(each, (*path, key))


@every_format
def test_a_null_in_the_place_of_a_field_is_a_field_that_is_left_out(path: str) -> None:
    """Compatible servers write null for whatever they do not say: `arguments` of a call without any, for one."""
    wire, shape = WIRES[path], format_of(path)
    assert shape is not None
    said = (Reasoning("hm", signature="c2ln"), Text("hi"), ToolCall("c1", "search", '{"q":1}'))
    whole = shape.body(ModelResponse(Message("assistant", said), Usage(9, 9), "tool_calls", "m", "", "id"))
    for place in places(whole):
        body = copy.deepcopy(whole)
        at: Any = body
        for step in place[:-1]:
            at = at[step]
        at[place[-1]] = None
        with suppress(WireError, ProviderFault):  # without it there is no answer; anything else is a fault of ours
            wire.parse(msgspec.json.encode(body), wire.names(request()), CallIds(request(), lambda: b"seed"))
