"""The same definition is the same bytes on the wire, wherever and however often a run moved.

A request of step N is encoded for every gateway: once by the process that has had the run from its beginning, and once
from what was stored, after any number of readings and writings, in a fork, in a task. Both must be the same text, or
the model is asked something else and no prompt cache knows it. The messages of request N begin those of N + 1.
"""

from __future__ import annotations

import asyncio
import os
import string
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foliot.engine.explain.replay import branch
from foliot.kernel.graph.events import Envelope
from foliot.kernel.graph.plan import Node, Plan
from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Part,
    Reasoning,
    Text,
    ToolCall,
)
from foliot.kernel.run.actions import AskModel
from foliot.kernel.run.codec import decode, encode
from foliot.kernel.run.events import Event, StepStarted
from foliot.kernel.run.loop import decide, fold
from foliot.kernel.run.spec import RunSpec, decode_spec, encode_spec
from foliot.models.wire.anthropic import REDACTED, AnthropicWire
from foliot.models.wire.base import Wire
from foliot.models.wire.gemini import ON_CALL, ON_THOUGHT, GeminiWire
from foliot.models.wire.ollama import OllamaWire
from foliot.models.wire.opaque import mark
from foliot.models.wire.openai_chat import DETAILS, ChatOptions, OpenAIChatWire
from foliot.models.wire.openai_responses import REASONING, OpenAIResponsesWire
from foliot.tools.base import Invocation, OnOutput, ToolDefinition, ToolError
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import encode_command
from foliot.work.tasks.plan import first_words, opening, pack, unpack
from tests.engine.kit import Engine

WIRES: dict[str, Wire] = {
    "openai": OpenAIChatWire(ChatOptions(reasoning_replay="reasoning_details")),
    "openai-responses": OpenAIResponsesWire(),
    "anthropic": AnthropicWire(),
    "gemini": GeminiWire(),
    "ollama": OllamaWire(),
}
# Where each of them puts the conversation.
MESSAGES = {"openai": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}
PNG = "iVBORw0KGgo="
CHAOS = bool(os.environ.get("FOLIOT_CHAOS"))
as_many = settings(max_examples=1000 if CHAOS else 15, derandomize=not CHAOS, print_blob=True)

words = st.text(string.ascii_letters, min_size=1, max_size=6)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=5)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Names in any order, at every place where a schema has names. Nothing in it refuses a value."""
    leaf = {"description": draw(texts), "title": draw(texts)}
    properties = {name: dict(draw(st.permutations(list(leaf.items())))) for name in draw(st.lists(words, unique=True))}
    required = draw(st.permutations(list(properties)))[:0]
    given = {"type": "object", "properties": properties, "required": required, "description": draw(texts)}
    return dict(draw(st.permutations(list(given.items()))))


thoughts = st.builds(
    lambda text, kept: Reasoning(text, **kept),
    texts,
    st.sampled_from(
        [
            {},
            {"signature": "c2ln"},
            {"opaque": mark(REDACTED, "eA==")},
            {"opaque": mark(DETAILS, '[{"type":"z","data":1,"a":2}]')},
            {"opaque": mark(REASONING, '{"id":"rs_1","encrypted_content":"eA=="}')},
            {"opaque": mark(ON_THOUGHT, "c2ln")},
        ]
    ),
)
blocks = st.one_of(st.builds(Text, texts), st.just(Media("image/png", data=PNG)))
# What a tool gives back: texts and pictures, a value that becomes JSON, or a failure.
returned = st.one_of(st.lists(blocks, min_size=1, max_size=4), objects, texts, st.builds(ToolError, texts))


@st.composite
def answers(draw: st.DrawFn, number: int) -> ModelResponse:
    parts: list[Part] = draw(st.lists(thoughts, max_size=1))
    parts += draw(st.lists(st.builds(Text, texts), max_size=2))
    for place, arguments in enumerate(draw(st.lists(objects, min_size=1, max_size=3))):
        opaque = draw(st.sampled_from([None, mark(ON_CALL, "c2ln")]))
        name = draw(st.sampled_from(["zebra", "apple"]))
        parts.append(ToolCall(f"call_{number}_{place}", name, msgspec.json.encode(arguments).decode(), opaque))
    return ModelResponse(Message("assistant", tuple(parts)), stop="tool_calls")


class Shelf:
    """A tool that gives what was put there, one thing after another."""

    def __init__(self, name: str, schema: dict[str, Any], shelf: list[Any]) -> None:
        self.definition = ToolDefinition(name, f"takes from {name}", schema, effect="read", breaker=False)
        self._shelf = shelf

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        given = self._shelf[sum(call.call_id.encode()) % len(self._shelf)] if self._shelf else "nothing"
        if isinstance(given, Exception):
            raise given
        return given


def bodies(request: ModelRequest) -> dict[str, bytes]:
    """What every gateway would send; that of the mock is the request itself."""
    made = {name: wire.build_body(request, wire.names(request), stream=False) for name, wire in WIRES.items()}
    return {"mock": msgspec.json.encode(request), **{name: msgspec.json.encode(body) for name, body in made.items()}}


def conversation(name: str, body: bytes) -> list[bytes]:
    """The messages of a request, without the marks for caches, which move along and are no part of what is said."""
    said = msgspec.json.decode(body)[MESSAGES.get(name, "messages")]
    return [msgspec.json.encode(_unmarked(message)) for message in said]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(item) for name, item in value.items() if name != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


async def asked(engine: Engine) -> list[ModelRequest]:
    await engine.run()
    return list(engine.models.requests)


@as_many
@given(data=st.data())
def test_a_run_that_moved_asks_with_the_same_bytes(data: st.DataObject) -> None:
    shelf: list[Any] = data.draw(st.lists(returned, min_size=1, max_size=4))
    script = [data.draw(answers(number)) for number in range(data.draw(st.integers(1, 3)))]
    final = ModelResponse(Message("assistant", (Text(msgspec.json.encode(data.draw(objects)).decode()),)))
    tools = [Shelf(name, data.draw(schemas()), shelf) for name in ("zebra", "apple")]
    engine = Engine(
        lambda request: [*script, final][min(len(engine.models.requests) - 1, len(script))],
        tools,
        system=data.draw(texts),
        output_schema=data.draw(schemas()),
        settings=ModelSettings(temperature=data.draw(st.sampled_from([0, 1, 0.5])), extra=data.draw(objects)),
    )
    moves = data.draw(st.integers(1, 3))
    asyncio.run(_compare(engine, moves))


async def _compare(engine: Engine, moves: int) -> None:
    wanted = [bodies(request) for request in await asked(engine)]
    for before, after in pairwise(wanted):
        for name in before:
            said = conversation(name, before[name])
            assert conversation(name, after[name])[: len(said)] == said, name

    facts = await engine.runs.facts("r1")
    spec = decode_spec(await engine.journal.get_blob(facts[0][1].spec))  # type: ignore[union-attr]
    for _ in range(moves):
        facts = [(at, decode(encode(event))) for at, event in facts]
        spec = decode_spec(encode_spec(spec))
    assert [bodies(request) for request in _asked_anew(spec, facts)] == wanted

    for step in range(1, len(wanted) + 1):
        base = await branch(engine.runs, "r1", at=step)
        driver = await engine.process("w2").start(base.spec, base.input, run_id=f"f{step}", history=base.history)
        request = decide(driver.state)
        assert isinstance(request, AskModel)
        assert bodies(request.request) == wanted[step - 1]
        taken = await engine.runs.load(f"f{step}")
        again = decide(taken[1])
        assert isinstance(again, AskModel)
        assert bodies(again.request) == wanted[step - 1]
    await engine.close()


def _asked_anew(spec: RunSpec, facts: list[tuple[float, Event]]) -> list[ModelRequest]:
    """What a process asks that took the run up just before each of its steps."""
    found: list[ModelRequest] = []
    for place, (_, event) in enumerate(facts):
        if isinstance(event, StepStarted):
            action = decide(fold(spec, "r1", facts[:place]))
            assert isinstance(action, AskModel)
            found.append(action.request)
    return found


@as_many
@given(schemas(), schemas(), st.dictionaries(words, texts, min_size=1, max_size=5))
def test_a_task_tells_its_agents_the_same_bytes(one: dict[str, Any], other: dict[str, Any], input: dict[str, str]):
    """Its command and its plan are stored before any agent is asked; what was declared must come out as it went in."""
    spec = RunSpec("clerk", "m", output_schema=one, settings=ModelSettings(extra=other))
    plan = Plan("", {"clerk": Node()}, ("clerk",))
    pinned, stored = pack(plan, {"clerk": spec})
    kept = unpack(pinned.digest, stored)
    assert kept.specs["clerk"][:2] == pinned.specs["clerk"][:2]
    command = Command("agent", "clerk", input=input)
    read = msgspec.json.decode(encode_command(command), type=Command)
    envelope = Envelope("m1", "", "clerk", first_words(command))

    def told(spec: RunSpec, command: Command) -> dict[str, bytes]:
        messages = opening(command, envelope)
        return bodies(ModelRequest("m", messages, spec.system, (), spec.output_schema, spec.settings))

    assert told(kept.specs["clerk"][2], read) == told(spec, command)
    assert first_words(read) == first_words(command)
    assert replace(read, input=command.input) == command
