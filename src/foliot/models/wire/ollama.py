"""Ollama's own /api/chat: one JSON object, or one per line.

Calls have no ids in older versions; arguments are objects; knobs stand under `options`. A stream is a series of small
answers, so reading it and reading a whole body are one fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from foliot.kernel.messages import (
    Delta,
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
    Usage,
    joined,
)
from foliot.models.config import GatewayConfig
from foliot.models.profiles import profile_of
from foliot.models.wire.base import NO_DELTAS, ProviderFault, Unsendable, WireError
from foliot.models.wire.finishes import OLLAMA, stop_of
from foliot.models.wire.media import decoded_text, is_image, is_text, needs_bytes, result_files, result_texts
from foliot.models.wire.requests import Notes, Profiles, asked_in_words, fitted, merged
from foliot.models.wire.tool_names import ToolNames, description_of, ordered_tools, schema_of, tool_names
from foliot.models.wire.values import CallIds, Count, arguments_object, count, raw_arguments


@dataclass(frozen=True, slots=True)
class OllamaOptions:
    """`keep_alive` says how long the model stays loaded; `knobs` (its context's length) go with every question."""

    keep_alive: str = ""
    think: str = "auto"
    knobs: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_config(cls, config: GatewayConfig) -> OllamaOptions:
        knobs: dict[str, Any] = {}
        if config.text("num_ctx"):
            knobs["num_ctx"] = config.integer("num_ctx", 4096)
        return cls(
            keep_alive=config.text("keep_alive"),
            think=config.choice("think", ("auto", "on", "off"), "auto"),
            knobs=knobs,
        )


class OllamaWire:
    """Writes requests and reads answers in Ollama's chat format; implements `Wire`."""

    def __init__(self, options: OllamaOptions | None = None, profiles: Profiles | None = None) -> None:
        self.options = options or OllamaOptions()
        self._profile = profiles or partial(profile_of, "ollama")

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools)

    def path(self, model: str, *, stream: bool) -> str:
        return "/api/chat"

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        profile = self._profile(request.model)
        request = fitted(request, profile, [] if notes is None else notes)
        settings = request.settings
        offered = bool(request.tools) and settings.tool_choice != "none"
        schema = request.output_schema
        if schema is not None and (profile.answers == "words" or (offered and not profile.answers_beside_tools)):
            request = asked_in_words(request, schema)
        body: dict[str, Any] = {"model": request.model, "messages": _messages(request, names), "stream": stream}
        if offered:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": names.wire(tool.name),
                        "description": description_of(tool),
                        "parameters": schema_of(tool),
                    },
                }
                for tool in ordered_tools(request.tools)
            ]
        if request.output_schema is not None:
            body["format"] = request.output_schema
        if self.options.think != "auto":
            body["think"] = self.options.think == "on"
        elif settings.reasoning_effort is not None:
            body["think"] = False if settings.reasoning_effort == "none" else settings.reasoning_effort
        if self.options.keep_alive:
            # "5m" stays text; -1 and 0 must be numbers.
            kept = self.options.keep_alive
            body["keep_alive"] = int(kept) if kept.lstrip("-").isdigit() else kept
        given: dict[str, Any] = {
            "num_predict": settings.max_output_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "stop": settings.stop or None,
            "seed": settings.seed,
        }
        if knobs := {**self.options.knobs, **{key: value for key, value in given.items() if value is not None}}:
            body["options"] = knobs
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        assembler = OllamaAssembler(names, ids)
        assembler.feed(body)
        return assembler.finish()

    def counted(self, body: bytes) -> Usage:
        return _usage(_COUNTED.decode(body))

    def assembler(self, names: ToolNames, ids: CallIds) -> OllamaAssembler:
        return OllamaAssembler(names, ids)


def _messages(request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    if request.system:
        sent.append({"role": "system", "content": request.system})
    for message in request.messages:
        if message.role == "tool":
            sent.extend(_result(part, names) for part in message.parts if isinstance(part, ToolResult))
            continue
        said: dict[str, Any] = {"role": message.role, "content": message.text}
        calls = [
            {"function": {"name": names.wire(call.name), "arguments": arguments_object(call.arguments)}}
            for call in message.calls
        ]
        if calls:
            said["tool_calls"] = calls
        thought = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
        if thought:
            said["thinking"] = thought
        _put_media(said, message.parts)
        if said["content"] or len(said) > 2:
            sent.append(said)
    return sent


def _result(result: ToolResult, names: ToolNames) -> dict[str, Any]:
    said: dict[str, Any] = {
        "role": "tool",
        "content": joined(result_texts(result)),
        "tool_name": names.wire(result.name),
    }
    _put_media(said, result_files(result))
    return said


def _put_media(said: dict[str, Any], parts: Sequence[Part]) -> None:
    for part in parts:
        if not isinstance(part, Media):
            continue
        if is_image(part):
            said.setdefault("images", []).append(needs_bytes(part, "Ollama"))
        elif is_text(part) and part.data is not None:
            said["content"] += decoded_text(part)
        else:
            raise Unsendable(f"Ollama takes images and text, not {part.media_type}")


class _Function(Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()


class _Call(Struct):
    id: str | None = None
    function: _Function | None = None


class _Said(Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_Call] | None = None


class _Body(Struct):
    model: str | None = None
    message: _Said | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: Count = None
    eval_count: Count = None
    error: Any = None


class _Counted(Struct):
    prompt_eval_count: Count = None
    eval_count: Count = None


_DECODER = msgspec.json.Decoder(_Body)
_COUNTED = msgspec.json.Decoder(_Counted)


def _usage(counted: _Body | _Counted) -> Usage:
    return Usage(input_tokens=count(counted.prompt_eval_count), output_tokens=count(counted.eval_count))


class OllamaAssembler:
    """Assembles a streamed Ollama answer; implements `Assembler`."""

    def __init__(self, names: ToolNames, ids: CallIds) -> None:
        self._names = names
        self._ids = ids
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: list[ToolCall] = []
        self._last: _Body | None = None
        self.done = self.ending = False

    def feed(self, event: bytes) -> Sequence[Delta]:
        body = _DECODER.decode(event)
        if body.error:
            raise ProviderFault({"error": body.error})
        if body.done:
            self._last = body
            self.done = True
        said = body.message
        if said is None:
            return NO_DELTAS
        deltas: list[Delta] = []
        if said.thinking:
            self._thought.append(said.thinking)
            deltas.append(ReasoningDelta(said.thinking))
        if said.content:
            self._text.append(said.content)
            deltas.append(TextDelta(said.content))
        for call in said.tool_calls or ():
            if call.function is not None:
                made = ToolCall(
                    self._ids.claim(call.id),
                    self._names.real(call.function.name or ""),
                    raw_arguments(call.function.arguments),
                )
                deltas.append(ToolCallDelta(len(self._calls), made.id, made.name, made.arguments))
                self._calls.append(made)
        return deltas

    def heard(self) -> tuple[Usage, str]:
        calls = (piece for call in self._calls for piece in (call.name, call.arguments))
        counted = Usage() if self._last is None else _usage(self._last)
        return counted, "".join((*self._thought, *self._text, *calls))

    def finish(self) -> ModelResponse:
        last = self._last
        if last is None:
            raise WireError("its answer was cut before it was finished")
        parts: list[Part] = []
        if thought := "".join(self._thought):
            parts.append(Reasoning(thought))
        if text := "".join(self._text):
            parts.append(Text(text))
        parts.extend(self._calls)
        stop = stop_of(OLLAMA, last.done_reason or "stop", calls=bool(self._calls))
        return ModelResponse(
            message=Message("assistant", tuple(parts)),
            usage=_usage(last),
            stop=stop,
            model=last.model or "",
        )
