"""Anthropic Messages: requests, and answers as one body or as a stream of block events.

Caching is asked for on three places: the end of the stable prefix (tools come before the system text, so a mark on the
system text covers both), the last user turn, which is the prefix of the next question, and the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.kernel.messages import (
    Delta,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
)
from foliot.models.config import GatewayConfig
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.base import DONE, NO_DELTAS, ProviderFault, Unsendable, WireError
from foliot.models.wire.findings import Findings, list_of, mapping_of
from foliot.models.wire.finishes import MESSAGES, stop_of
from foliot.models.wire.media import address, decoded_text, is_image, is_text, placeholder, result_texts
from foliot.models.wire.opaque import mark, unmark
from foliot.models.wire.requests import CHOICES, Notes, Profiles, fitted, merged, tools_to_send
from foliot.models.wire.schemas import in_words, is_object, native_schema
from foliot.models.wire.tool_names import ToolNames, description_of, tool_names
from foliot.models.wire.values import CallIds, Count, arguments_object, count, raw_arguments, sendable_id, tier_of

# --- anthropic answer ------------------------------------------------------------------------------------------------

# Anthropic Messages answers: one body, or a stream of block events.

OUTPUT_TOOL = "final_answer_json"
REDACTED = "anthropic.redacted"
BLOCK = "anthropic.block"
"""Marks a block that goes back as it came."""
CONTAINER = "anthropic.container"
"""Marks the place at the provider where code of this turn ran, without which the turn cannot go on."""
CALL = "anthropic.call"
"""Marks fields of a call that go back with it."""
READ: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
CARRIED: Final = frozenset(
    {
        "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
        "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
        "container_upload", "advisor_tool_result", "mcp_tool_use", "mcp_tool_result", "compaction", "fallback",
    }
)  # fmt: skip
"""Blocks of tools that run at the provider: without them a turn that paused begins anew."""


class _Block(Struct):
    type: str = ""
    text: str | None = None
    citations: Any = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    caller: Any = None
    toolset_name: Any = None


class _OutputDetails(Struct):
    thinking_tokens: Count = None


class _CacheCreation(Struct):
    ephemeral_1h_input_tokens: Count = None


class _ServerTools(Struct):
    web_search_requests: Count = None


class _Usage(Struct):
    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None
    output_tokens_details: _OutputDetails | None = None
    cache_creation: _CacheCreation | None = None
    server_tool_use: _ServerTools | None = None
    service_tier: str | None = None
    speed: str | None = None


class _Message(Struct):
    type: str = ""
    id: str | None = None
    model: str | None = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: Any = None
    container: Any = None
    usage: _Usage | None = None
    error: Any = None


class _Delta(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Any = None
    stop_reason: str | None = None
    stop_details: Any = None
    container: Any = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: _Message | None = None
    usage: _Usage | None = None
    error: Any = None


class _Counted(Struct):
    usage: _Usage | None = None


_MESSAGE = msgspec.json.Decoder(_Message)
_BLOCK = msgspec.json.Decoder(_Block)
_COUNTED = msgspec.json.Decoder(_Counted)
_EVENT = msgspec.json.Decoder(_Event)


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    read = count(usage.cache_read_input_tokens)
    wrote = count(usage.cache_creation_input_tokens)
    details = usage.output_tokens_details
    return Usage(
        # Anthropic counts what was cached beside the input, not inside it.
        input_tokens=count(usage.input_tokens) + read + wrote,
        output_tokens=count(usage.output_tokens),
        cache_read_tokens=read,
        cache_write_tokens=wrote,
        reasoning_tokens=count(details.thinking_tokens) if details else 0,
        cache_write_1h_tokens=min(wrote, count(usage.cache_creation.ephemeral_1h_input_tokens))
        if usage.cache_creation
        else 0,
        web_searches=count(usage.server_tool_use.web_search_requests) if usage.server_tool_use else 0,
        tier="fast" if usage.speed == "fast" else tier_of(usage.service_tier),
    )


def counted_in_message(body: bytes) -> Usage:
    """Read the provider's counts, whatever else the body holds."""
    return _usage(_COUNTED.decode(body).usage)


class _Reader:
    """Makes parts of finished blocks, in their order."""

    def __init__(self, names: ToolNames) -> None:
        self.parts: list[Part] = []
        self.found = Findings()
        self._names = names
        self._written = 0

    def take(self, block: _Block, arguments: str, call_id: str, raw: Callable[[], bytes]) -> None:
        kind = block.type
        if kind == "text":
            if not block.text:
                return
            start, self._written = self._written, self._written + len(block.text)
            self.parts.append(Text(block.text))
            for citation in list_of(block.citations):
                self.found.citation(citation, start, self._written)
        elif kind == "thinking":
            self.parts.append(Reasoning(block.thinking or "", signature=block.signature or None))
        elif kind == "redacted_thinking":
            self.parts.append(Reasoning(opaque=mark(REDACTED, block.data or "")))
        elif kind == "tool_use" and block.name == OUTPUT_TOOL:
            self._written += len(arguments)
            self.parts.append(Text(arguments))
        elif kind == "tool_use":
            self.parts.append(ToolCall(call_id, self._names.real(block.name or ""), arguments, _origin(block)))
        elif kind in CARRIED:
            self.parts.append(Reasoning(opaque=mark(BLOCK, raw().decode())))
            if kind.endswith("tool_use"):
                self.found.ran(f"tool {block.name or '?'}")
        else:
            self.found.drop(f"a block {kind}")

    def response(self, head: _Message, reason: str | None, details: Any, usage: _Usage | None) -> ModelResponse:
        stop = stop_of(MESSAGES, reason, calls=any(isinstance(part, ToolCall) for part in self.parts))
        if stop in ("pause", "tool_calls") and isinstance(place := mapping_of(head.container).get("id"), str):
            self.parts.append(Reasoning(opaque=mark(CONTAINER, place)))
        return self.found.into(
            ModelResponse(
                message=Message("assistant", tuple(self.parts)),
                usage=_usage(usage),
                stop=stop,
                model=head.model or "",
                id=head.id or "",
                detail=_refused(details) if stop == "refusal" else "",
            )
        )


def _origin(block: _Block) -> str | None:
    """Returns the origin of a call that the model did not make directly; it goes back with the call."""
    kept: dict[str, Any] = {}
    if (caller := mapping_of(block.caller)) and caller.get("type") != "direct":
        kept["caller"] = caller
    if isinstance(block.toolset_name, str) and block.toolset_name:
        kept["toolset_name"] = block.toolset_name
    return mark(CALL, msgspec.json.encode(kept).decode()) if kept else None


def _refused(details: Any) -> str:
    told = "the model refused to answer"
    said = mapping_of(details)
    if category := said.get("category"):
        told += f" ({str(category)[:80]})"
    if explanation := said.get("explanation"):
        told += f": {str(explanation)[:1000]}"
    return told


def parse_messages(body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
    """One whole answer. Raises `WireError`, `ProviderFault`, or msgspec's decoding error."""
    answer = _MESSAGE.decode(body)
    if answer.error or answer.type == "error":
        raise ProviderFault({"error": answer.error})
    if answer.content is None:
        raise WireError("its answer holds no content")
    reader = _Reader(names)
    for raw in answer.content:
        block = _BLOCK.decode(raw)
        call_id = ids.claim(block.id) if block.type == "tool_use" and block.name != OUTPUT_TOOL else ""
        reader.take(block, raw_arguments(block.input), call_id, partial(bytes, raw))
    return reader.response(answer, answer.stop_reason, answer.stop_details, answer.usage)


class _OpenBlock:
    """A block while it is being written: pieces of its text, thinking or input."""

    __slots__ = ("block", "call_id", "index", "pieces", "place", "raw", "signature")

    def __init__(self, index: int, block: _Block, raw: bytes) -> None:
        self.index = index
        self.block = block
        self.raw = raw
        self.pieces: list[str] = []
        self.signature: list[str] = []
        self.call_id = ""
        self.place = -1

    def whole(self) -> bytes:
        """The block as it would have come in one piece: the input of a call is written after its beginning."""
        if not self.pieces:
            return self.raw
        begun = msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**begun, "input": msgspec.Raw("".join(self.pieces).encode())})


def _place(opened: _OpenBlock) -> int:
    return opened.index


class MessagesAssembler:
    """Assembles a streamed Messages answer.

    Usage numbers in it are running totals: a later one replaces an earlier one.
    """

    def __init__(self, names: ToolNames, ids: CallIds) -> None:
        self._names = names
        self._ids = ids
        self._head: _Message | None = None
        self._blocks: list[_OpenBlock] = []
        self._open: dict[int, _OpenBlock] = {}  # a server that gives a number twice means another block
        self._calls = 0
        self._usage = _Usage()
        self._reason: str | None = None
        self._details: Any = None
        self.done = self.ending = False

    def feed(self, event: bytes) -> Sequence[Delta]:
        if event.startswith(DONE):  # added by go-betweens that speak two languages
            return NO_DELTAS
        told = _EVENT.decode(event)
        kind = told.type
        if kind == "content_block_delta":
            return self._piece(told)
        if kind == "content_block_start" and told.content_block:
            return self._start(told.index, bytes(told.content_block))
        if kind == "message_start" and told.message is not None:
            self._head = told.message
            self._count(told.message.usage)
        elif kind == "message_delta":
            if self._head is not None and told.delta is not None and told.delta.container is not None:
                self._head.container = told.delta.container
            if told.delta is not None and told.delta.stop_reason:
                self._reason, self._details = told.delta.stop_reason, told.delta.stop_details
                self.ending = True
            self._count(told.usage)
        elif kind == "message_stop":
            self.done = True
        elif kind == "error" or told.error:
            raise ProviderFault({"error": told.error})
        return NO_DELTAS

    def _count(self, usage: _Usage | None) -> None:
        if usage is None:
            return
        for name in usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)

    def _start(self, index: int, raw: bytes) -> Sequence[Delta]:
        block = _BLOCK.decode(raw)
        opened = self._open[index] = _OpenBlock(index, block, raw)
        self._blocks.append(opened)
        if block.type == "tool_use" and block.name != OUTPUT_TOOL:
            opened.call_id = self._ids.claim(block.id)
            opened.place = self._calls
            self._calls += 1
            return (ToolCallDelta(opened.place, opened.call_id, self._names.real(block.name or ""), ""),)
        if block.type == "text" and block.text:
            opened.pieces.append(block.text)
            return (TextDelta(block.text),)
        if block.type == "thinking" and block.thinking:
            opened.pieces.append(block.thinking)
            return (ReasoningDelta(block.thinking),)
        return NO_DELTAS

    def _piece(self, told: _Event) -> Sequence[Delta]:
        opened, delta = self._open.get(told.index), told.delta
        if opened is None or delta is None:
            raise WireError("its stream continues a block that was never begun")
        if delta.text:
            opened.pieces.append(delta.text)
            return (TextDelta(delta.text),)
        if delta.thinking:
            opened.pieces.append(delta.thinking)
            return (ReasoningDelta(delta.thinking),)
        if delta.partial_json:
            opened.pieces.append(delta.partial_json)
            if opened.place >= 0:
                name = self._names.real(opened.block.name or "")
                return (ToolCallDelta(opened.place, opened.call_id, name, delta.partial_json),)
            if opened.block.type == "tool_use":
                return (TextDelta(delta.partial_json),)  # the final answer, written as the input of a call
        elif delta.signature:
            opened.signature.append(delta.signature)
        elif delta.citation is not None:
            opened.block.citations = [*list_of(opened.block.citations), delta.citation]
        return NO_DELTAS

    def heard(self) -> tuple[Usage, str]:
        return _usage(self._usage), "".join(piece for opened in self._blocks for piece in opened.pieces)

    def finish(self) -> ModelResponse:
        if self._head is None or not (self.done or self.ending):
            raise WireError("its stream was cut before the answer was finished")
        reader = _Reader(self._names)
        for opened in sorted(self._blocks, key=_place):
            block, whole = opened.block, "".join(opened.pieces)
            if block.type == "text":
                block.text = whole
            elif block.type == "thinking":
                block.thinking = whole
                block.signature = "".join(opened.signature) or block.signature
            reader.take(block, whole or raw_arguments(block.input), opened.call_id, opened.whole)
        return reader.response(self._head, self._reason, self._details, self._usage)


# --- anthropic -------------------------------------------------------------------------------------------------------

_NO_SAMPLING_SINCE: Final = "2026-10-21"  # this version of the API takes a temperature for no model
_SAMPLING: Final = frozenset({"temperature", "top_p"})
_LEAST_BUDGET: Final = 1024
_AT_PROVIDER: Final = frozenset({"server_tool_use", "mcp_tool_use"})
_GO_ON: Final = "Go on from exactly where you stopped."
_BY_TOOL: Final = f"Give your final answer by calling {OUTPUT_TOOL}, once, when everything else is done."


@dataclass(frozen=True, slots=True)
class MessagesOptions:
    """`cache` is "5m", "1h" or "off"; the rest is "auto", which goes by the model's name, or forced."""

    max_tokens: int = 8192
    cache: str = "5m"
    thinking: str = "auto"
    structured: str = "auto"
    sampling: str = "auto"

    @classmethod
    def from_config(cls, config: GatewayConfig) -> MessagesOptions:
        new = config.text("anthropic_version") >= _NO_SAMPLING_SINCE
        return cls(
            max_tokens=config.integer("max_tokens", 8192),
            cache=config.choice("cache", ("5m", "1h", "off"), "5m"),
            thinking=config.choice("thinking", ("auto", "adaptive", "budget", "off"), "auto"),
            structured=config.choice("structured_output", ("auto", "native", "tool"), "auto"),
            sampling=config.choice("sampling", ("auto", "on", "off"), "off" if new else "auto"),
        )


class AnthropicWire:
    """Writes requests and reads answers in Anthropic's Messages format; implements `Wire`."""

    def __init__(self, options: MessagesOptions | None = None, profiles: Profiles | None = None) -> None:
        self.options = options or MessagesOptions()
        self._profiles = profiles or partial(profile_of, "anthropic")
        self._profile = cache(self._overruled)

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools, limit=128)

    def path(self, model: str, *, stream: bool) -> str:
        return "/messages"

    def _overruled(self, model: str) -> ModelProfile:
        """The profile of a model, as far as the endpoint's options leave it alone."""
        profile, options = self._profiles(model), self.options
        if options.sampling != "auto":
            refused = profile.refuses - _SAMPLING if options.sampling == "on" else profile.refuses | _SAMPLING
            profile = replace(profile, refuses=refused)
        if options.structured != "auto":
            profile = replace(profile, answers="native" if options.structured == "native" else "tool")
        if options.thinking in ("adaptive", "budget"):
            profile = replace(profile, thinking="adaptive" if options.thinking == "adaptive" else "budget")
        return profile

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        notes = [] if notes is None else notes
        profile = self._profile(request.model)
        request = fitted(request, profile, notes)
        settings = request.settings
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": settings.max_output_tokens or _at_most(self.options.max_tokens, profile),
            "messages": _turns(request.messages, names, notes),
        }
        if (place := _container(request.messages)) is not None:
            body["container"] = {"id": place} if isinstance(settings.extra.get("container"), dict) else place
        if system := _system(request):
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {
                    "name": names.wire(tool.name),
                    "description": description_of(tool),
                    **schema,
                }
                for tool, schema in tools_to_send(request, "input_schema", native_schema, notes)
            ]
            body["tool_choice"] = _tool_choice(settings, names)
        if settings.stop:
            body["stop_sequences"] = settings.stop
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        self._put_schema(body, request, profile)
        self._put_thinking(body, request, profile, notes)
        if self.options.cache != "off":
            self._put_cache_marks(body)
        if stream:
            body["stream"] = True
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_messages(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_message(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> MessagesAssembler:
        return MessagesAssembler(names, ids)

    def _put_schema(self, body: dict[str, Any], request: ModelRequest, profile: ModelProfile) -> None:
        schema = request.output_schema
        if schema is None:
            return
        native = native_schema(schema) if profile.answers == "native" else None
        if native is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": native}}
        elif not is_object(schema):  # the input of a tool is always an object
            body["system"] = [*body.get("system", ()), {"type": "text", "text": in_words(schema)}]
        else:
            tool = {
                "name": OUTPUT_TOOL,
                "description": "Give the final answer. Call this once, when everything else is done.",
                "input_schema": {**schema, "type": "object"},
            }
            body["tools"] = [*body.get("tools", ()), tool]
            effort, choice = self._effort(request), request.settings.tool_choice
            # Nobody asked for this force: a model that thinks is better asked in words, and goes on thinking.
            thinks = profile.is_reasoning(effort) and (choice == "auto" or not request.tools)
            if not thinks and "tool_choice" not in profile.refused(effort):
                body["tool_choice"] = _choice_with_answer(request, body.get("tool_choice", {}))
            else:
                body["tool_choice"] = {**body.get("tool_choice", {}), "type": "auto"}
                body["system"] = [*body.get("system", ()), {"type": "text", "text": _BY_TOOL}]

    def _effort(self, request: ModelRequest) -> str | None:
        return None if self.options.thinking == "off" else request.settings.reasoning_effort

    def _put_thinking(self, body: dict[str, Any], request: ModelRequest, profile: ModelProfile, notes: Notes) -> None:
        effort, model = self._effort(request), request.model
        if effort != request.settings.reasoning_effort:
            notes.append("reasoning_effort is not sent: the endpoint's option thinking is off")
        forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
        if effort == "none" or (forced and profile.is_reasoning(effort)):
            # A forced call and thinking exclude each other, and the force was asked for in so many words.
            if effort not in (None, "none"):
                notes.append(f"reasoning_effort is not sent: {model} does not think before a call that is forced")
            if profile.reasons == "default":
                body["thinking"] = {"type": profile.thinking_off or "disabled"}
        elif effort is None:
            return
        elif profile.thinking == "adaptive":
            body["thinking"] = {"type": "adaptive"}
            body["output_config"] = {**body.get("output_config", {}), "effort": effort}
        elif _in_unsigned_loop(body["messages"]):
            notes.append(f"reasoning_effort is not sent: {model} cannot begin to think between its calls")
        else:
            self._put_budget(body, request, profile, notes)

    def _put_budget(self, body: dict[str, Any], request: ModelRequest, profile: ModelProfile, notes: Notes) -> None:
        effort = request.settings.reasoning_effort or ""
        wanted = (profile.budgets or {}).get(effort, _LEAST_BUDGET)
        if request.settings.max_output_tokens is None:
            body["max_tokens"] = _at_most(max(body["max_tokens"], wanted + self.options.max_tokens), profile)
        most: int = body["max_tokens"]
        budget = min(wanted, most - min(self.options.max_tokens, most // 2))  # the rest is for the answer
        if budget < _LEAST_BUDGET:
            notes.append(f"reasoning_effort is not sent: max_output_tokens leaves {request.model} no room to think")
            return
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        if budget < wanted:
            told = f"reasoning_effort {effort} is sent as {budget:,} tokens to think instead of {wanted:,}"
            notes.append(f"{told}: {request.model} has {most:,} for all it writes")

    def _put_cache_marks(self, body: dict[str, Any]) -> None:
        mark: dict[str, str] = {"type": "ephemeral"}
        if self.options.cache == "1h":
            mark["ttl"] = "1h"
        if body.get("system"):
            body["system"][0]["cache_control"] = mark
        elif body.get("tools"):
            body["tools"][-1] = {**body["tools"][-1], "cache_control": mark}
        # The last user turn, and the one before, where the last question had its mark: a cache is looked for only
        # twenty blocks before a mark, and a step of many calls is longer. With the first that makes three of four.
        turns = [turn for turn in body["messages"] if turn["role"] == "user"]
        for turn in turns[-2:]:
            turn["content"][-1]["cache_control"] = mark


def _at_most(tokens: int, profile: ModelProfile) -> int:
    """The tokens that nobody has asked for in so many words, as far as the model writes so many."""
    return tokens if profile.max_output is None else min(tokens, profile.max_output)


def _tool_choice(settings: ModelSettings, names: ToolNames) -> dict[str, Any]:
    choice = settings.tool_choice
    made: dict[str, Any] = {"type": "any" if choice == "required" else choice}
    if choice not in CHOICES:
        made = {"type": "tool", "name": names.wire(choice)}
    if settings.parallel_tool_calls is not None and choice != "none":
        made["disable_parallel_tool_use"] = not settings.parallel_tool_calls
    return made


def _choice_with_answer(request: ModelRequest, choice: dict[str, Any]) -> dict[str, Any]:
    """The choice where the answer is a call too. Beside other tools the model is free to call them first."""
    if not request.tools or choice["type"] == "none":
        return {"type": "tool", "name": OUTPUT_TOOL}
    return choice if choice["type"] == "tool" else {**choice, "type": "any"}


def _system(request: ModelRequest) -> list[dict[str, Any]]:
    texts = [request.system, *(message.text for message in request.messages if message.role == "system")]
    return [{"type": "text", "text": text} for text in texts if text.strip()]


def _container(messages: tuple[Message, ...]) -> str | None:
    """The place where code of this turn ran, as long as the turn is the model's: it paused, or waits for its calls."""
    if not messages or messages[-1].role not in ("assistant", "tool"):
        return None
    said = next((each for each in reversed(messages) if each.role == "assistant"), None)
    opaque = [part.opaque for part in said.parts if isinstance(part, Reasoning)] if said is not None else []
    return next((place for each in opaque if (place := unmark(CONTAINER, each)) is not None), None)


def _turns(messages: tuple[Message, ...], names: ToolNames, notes: Notes) -> list[dict[str, Any]]:
    """User and assistant in turn. Tool results belong to the user's turn, before what the user says there."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts if (block := _block(part, role, names)) is not None]
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"].sort(key=_after_results)
    for turn, after in pairwise(turns):
        if after["content"][0]["type"] != "tool_result" and (open_calls := _open_at_provider(turn)):
            # Something was said before the provider's tool was done: nobody will give this call its result.
            turn["content"] = [block for block in turn["content"] if block.get("id") not in open_calls]
            notes.append("a call of a tool at the provider is not sent back: it has no result, and a message follows")
    turns = [turn for turn in turns if turn["content"]]
    # A turn that paused at a tool of the provider goes on by itself. Words at its end would be the beginning of an
    # answer, which newer models refuse, and all of them with white space at its end.
    if turns and turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] not in CARRIED:
        turns.append({"role": "user", "content": [{"type": "text", "text": _GO_ON}]})
    return turns


def _open_at_provider(turn: dict[str, Any]) -> frozenset[str]:
    """The ids of calls of tools at the provider that have no result in this turn of the assistant."""
    if turn["role"] != "assistant":
        return frozenset()
    results = {block.get("tool_use_id") for block in turn["content"]}
    calls = (block["id"] for block in turn["content"] if block["type"] in _AT_PROVIDER and "id" in block)
    return frozenset(each for each in calls if each not in results)


def _in_unsigned_loop(turns: list[dict[str, Any]]) -> bool:
    """Does the question answer calls that were made without thinking, by another provider for example?

    Models with a budget refuse to begin thinking in the middle of such a turn.
    """
    if len(turns) < 2 or turns[-1]["content"][0]["type"] != "tool_result":
        return False
    return turns[-2]["content"][0]["type"] not in ("thinking", "redacted_thinking")


def _after_results(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_result"


def _block(part: Part, role: str, names: ToolNames) -> dict[str, Any] | None:
    if isinstance(part, Text):
        # Blank text blocks are refused.
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, ToolCall):
        origin = unmark(CALL, part.opaque)
        return {
            "type": "tool_use",
            "id": sendable_id(part.id),
            "name": names.wire(part.name),
            "input": arguments_object(part.arguments),
            **({} if origin is None else msgspec.json.decode(origin, type=dict[str, Any])),
        }
    if isinstance(part, ToolResult):
        return _result(part)
    if isinstance(part, Reasoning):
        # A signature that came with more than itself is another gateway's: Anthropic's own has no `opaque`.
        if part.signature is not None and part.opaque is None:
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        if (kept := unmark(BLOCK, part.opaque)) is not None:
            return msgspec.json.decode(kept, type=dict[str, Any])
        redacted = unmark(REDACTED, part.opaque)
        return None if redacted is None else {"type": "redacted_thinking", "data": redacted}
    if role == "assistant":
        return {"type": "text", "text": placeholder(part)}
    return _media(part)


def _result(result: ToolResult) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _media(part)
        for part in result.content
        if not isinstance(part, Text) or part.text.strip()
    ]
    content = content or [{"type": "text", "text": result_texts(result)[0]}]
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sendable_id(result.call_id), "content": content}
    if result.error is not None:
        block["is_error"] = True
    return block


def _media(media: Media) -> dict[str, Any]:
    if is_image(media):
        return {"type": "image", "source": _source(media)}
    block: dict[str, Any] = {"type": "document"}
    if media.data is not None and is_text(media):
        block["source"] = {"type": "text", "media_type": "text/plain", "data": decoded_text(media)}
    elif media.media_type == "application/pdf":
        block["source"] = _source(media)
    else:
        raise Unsendable(f"Anthropic Messages take images, PDF and text, not {media.media_type}")
    if media.name:
        block["title"] = media.name
    return block


def _source(media: Media) -> dict[str, Any]:
    if media.data is not None:
        return {"type": "base64", "media_type": media.media_type, "data": media.data}
    return {"type": "url", "url": address(media)}
