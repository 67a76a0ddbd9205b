"""OpenAI Responses, used without state at the provider: every question carries the whole conversation.

`store: false`, so nothing is kept there; reasoning comes back encrypted and is sent along with the next question.
An answer is one body, or a stream that ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

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
)
from foliot.models.config import GatewayConfig
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.base import DONE, NO_DELTAS, ProviderFault, WireError
from foliot.models.wire.findings import Findings, filtered, list_of
from foliot.models.wire.finishes import RESPONSES, stop_of
from foliot.models.wire.media import address, decoded_text, file_name, is_image, is_text, placeholder, result_texts
from foliot.models.wire.opaque import mark, unmark
from foliot.models.wire.openai_chat import conversation_key
from foliot.models.wire.requests import CHOICES, Notes, Profiles, asked_in_words, fitted, merged, tools_to_send
from foliot.models.wire.schemas import is_object, strict_schema
from foliot.models.wire.tool_names import ToolNames, description_of, tool_names
from foliot.models.wire.values import (
    TICKS,
    CallIds,
    Count,
    arguments_text,
    count,
    dollars,
    raw_arguments,
    raw_piece,
    sendable_id,
    tier_of,
)

# --- openai responses answer -----------------------------------------------------------------------------------------

# OpenAI Responses answers: one body, or a stream that ends with the same body.
#
# The last event holds the whole answer, so the deltas are only for showing; a proxy that empties its `output` is
# known, and then the finished items of the stream stand in.

REASONING = "openai.responses"
ITEM = "openai.item"
"""Marks an item that goes back as it came."""
PHASE = "openai.phase"
"""Marks the phase of the message that follows."""
READ: Final = frozenset({"message", "function_call", "reasoning", "image_generation_call"})
CARRIED: Final = frozenset(
    {
        "web_search_call", "file_search_call", "code_interpreter_call", "mcp_call", "mcp_list_tools", "compaction",
        "program", "program_output", "tool_search_output",
    }
)  # fmt: skip
"""Items of tools that ran at the provider: reasoning may not come back without what it led to."""
# The rest asks the client to act (a computer, a shell, a patch, an approval), which Foliot is not asked to do.
_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THOUGHT = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_BETWEEN: Final = "\n\n"
"""Between two summaries of one reasoning item, for people."""
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class _Piece(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None


class _Item(Struct):
    type: str = ""
    id: str | None = None
    content: list[_Piece] | None = None
    summary: list[_Piece] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()  # null, or an object, from compatible servers
    result: Any = None  # image generation: the picture as base64
    output_format: str | None = None
    phase: Any = None


class _InputDetails(Struct):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


class _OutputDetails(Struct):
    reasoning_tokens: Count = None


class _Usage(Struct):
    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    cost: Count = None  # OpenRouter, in dollars
    cost_in_usd_ticks: Count = None  # x.ai, in ten-billionths of one


class _Incomplete(Struct):
    reason: str | None = None


class _Body(Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    service_tier: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    delta: Any = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None
    message: Any = None
    code: Any = None


class _Made(Struct):
    type: str = ""


class _Counted(Struct):
    usage: _Usage | None = None
    service_tier: str | None = None
    output: list[_Made] | None = None


_ITEM = msgspec.json.Decoder(_Item)
_BODY = msgspec.json.Decoder(_Body)
_COUNTED = msgspec.json.Decoder(_Counted)
_EVENT = msgspec.json.Decoder(_Event)


def _usage(usage: _Usage | None, tier: str | None, items: Sequence[_Item | _Made]) -> Usage:
    if usage is None:
        return Usage()
    read = usage.input_tokens_details or _InputDetails()
    wrote = usage.output_tokens_details or _OutputDetails()
    return Usage(
        input_tokens=count(usage.input_tokens),
        output_tokens=count(usage.output_tokens),
        cache_read_tokens=count(read.cached_tokens),
        cache_write_tokens=count(read.cache_write_tokens),
        reasoning_tokens=count(wrote.reasoning_tokens),
        cost_usd=dollars(usage.cost) if usage.cost_in_usd_ticks is None else dollars(usage.cost_in_usd_ticks / TICKS),
        web_searches=sum(item.type == "web_search_call" for item in items),
        file_searches=sum(item.type == "file_search_call" for item in items),
        tier=tier_of(tier),
    )


def counted_in_response(body: bytes) -> Usage:
    """Read the provider's counts, whatever else the body holds."""
    found = _COUNTED.decode(body)
    return _usage(found.usage, found.service_tier, found.output or ())


def _reasoning(item: _Item) -> Reasoning | None:
    pieces = [piece.text or "" for piece in item.summary or item.content or ()]
    text = _BETWEEN.join(pieces)
    opaque = None
    if item.encrypted_content and item.id:
        kept: dict[str, Any] = {"id": item.id, "encrypted_content": item.encrypted_content}
        if len(pieces) > 1:  # what is encrypted belongs to just these pieces
            kept["pieces"] = [len(piece) for piece in pieces]
        opaque = mark(REASONING, msgspec.json.encode(kept).decode())
    return Reasoning(text, opaque=opaque) if text or opaque else None


def _parts(
    items: Sequence[tuple[_Item, msgspec.Raw]],
    names: ToolNames,
    claimed: dict[int, str],
    ids: CallIds,
    found: Findings,
) -> tuple[list[Part], bool]:
    """The items as parts, and whether the model refused. `claimed` are the call ids that deltas already showed."""
    parts: list[Part] = []
    refused = False
    written = 0
    for place, (item, raw) in enumerate(items):
        if item.type == "message":
            if isinstance(item.phase, str):
                parts.append(Reasoning(opaque=mark(PHASE, item.phase)))
            for piece in item.content or ():
                refused = refused or piece.type == "refusal"
                if piece.type not in ("output_text", "refusal", "text", ""):
                    found.drop(f"a piece {piece.type}")
                if piece.logprobs:
                    found.drop("logprobs")
                for annotation in list_of(piece.annotations):
                    found.annotation(annotation, written)
                if text := piece.text or piece.refusal:
                    written += len(text)
                    parts.append(Text(text))
        elif item.type == "function_call":
            call_id = claimed.get(place) or ids.claim(item.call_id)
            parts.append(ToolCall(call_id, names.real(item.name or ""), raw_arguments(item.arguments)))
        elif item.type == "reasoning":
            if (thought := _reasoning(item)) is not None:
                parts.append(thought)
        elif item.type == "image_generation_call" and isinstance(item.result, str):
            parts.append(Media(f"image/{item.output_format or 'png'}", data=item.result))
        elif item.type in CARRIED:
            parts.append(Reasoning(opaque=mark(ITEM, bytes(raw).decode())))
            if item.type.endswith("_call"):
                found.ran(f"{item.type} {item.name or ''}".strip())
        else:
            found.drop(f"an item {item.type}")
    return parts, refused


def _response(body: _Body, names: ToolNames, claimed: dict[int, str], ids: CallIds) -> ModelResponse:
    if body.error or body.status == "failed":
        raise ProviderFault({"error": body.error or {"message": "the response failed", "code": "server_error"}})
    if body.output is None:
        raise WireError("its answer holds no output")
    reason = body.status or "completed"
    if reason == "incomplete":
        reason = (body.incomplete_details.reason if body.incomplete_details else None) or reason
    found = Findings()
    items = [(_ITEM.decode(raw), raw) for raw in body.output]
    parts, refused = _parts(items, names, claimed, ids, found)
    calls = any(isinstance(part, ToolCall) for part in parts)
    stop = stop_of(RESPONSES, reason, calls=calls, refused=refused)
    return found.into(
        ModelResponse(
            message=Message("assistant", tuple(parts)),
            usage=_usage(body.usage, body.service_tier, [item for item, _ in items]),
            stop=stop,
            model=body.model or "",
            id=body.id or "",
            detail=filtered() if RESPONSES.get(reason) == "refusal" and not refused else "",
        )
    )


def parse_responses(body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
    """One whole answer. Raises `WireError`, `ProviderFault`, or msgspec's decoding error."""
    return _response(_BODY.decode(body), names, {}, ids)


class ResponsesAssembler:
    """Assembles a streamed Responses answer; implements `Assembler`."""

    def __init__(self, names: ToolNames, ids: CallIds) -> None:
        self._names = names
        self._ids = ids
        self._claimed: dict[int, str] = {}
        self._open: dict[int, tuple[int, str]] = {}
        self._items: dict[int, msgspec.Raw] = {}
        self._last: _Body | None = None
        self._written: list[str] = []
        self.done = self.ending = False

    def feed(self, event: bytes) -> Sequence[Delta]:
        if event.startswith(DONE):
            return NO_DELTAS
        told = _EVENT.decode(event)
        kind = told.type
        if isinstance(told.delta, str):
            self._written.append(told.delta)
        if kind in _TEXT:
            return (TextDelta(told.delta),) if isinstance(told.delta, str) and told.delta else NO_DELTAS
        if kind == "response.function_call_arguments.delta":
            return self._arguments(told)
        if kind in _THOUGHT:
            return (ReasoningDelta(told.delta),) if isinstance(told.delta, str) and told.delta else NO_DELTAS
        if kind == "response.output_item.added" and told.item:
            return self._added(told.output_index, _ITEM.decode(told.item))
        if kind == "response.output_item.done" and told.item:
            self._items[told.output_index] = msgspec.Raw(bytes(told.item))  # the event's own bytes are let go
        elif kind in _LAST:
            self._last = _BODY.decode(told.response)
            self.done = True
        elif kind == "error":
            raise ProviderFault({"error": told.error or {"message": told.message, "code": told.code}})
        return NO_DELTAS

    def _added(self, place: int, item: _Item) -> Sequence[Delta]:
        if item.type != "function_call":
            return NO_DELTAS
        call_id = self._claimed[place] = self._ids.claim(item.call_id)
        name = self._names.real(item.name or "")
        self._open[place] = (len(self._open), name)
        return (ToolCallDelta(len(self._open) - 1, call_id, name, raw_piece(item.arguments)),)

    def _arguments(self, told: _Event) -> Sequence[Delta]:
        if told.output_index not in self._open:
            raise WireError("its stream continues a call that was never begun")
        index, name = self._open[told.output_index]
        return (ToolCallDelta(index, self._claimed[told.output_index], name, str(told.delta or "")),)

    def heard(self) -> tuple[Usage, str]:
        last = self._last
        items = () if last is None else [_ITEM.decode(raw) for raw in last.output or ()]
        counted = Usage() if last is None else _usage(last.usage, last.service_tier, items)
        return counted, "".join(self._written)

    def finish(self) -> ModelResponse:
        last = self._last
        if last is None:
            raise WireError("its stream was cut before the answer was finished")
        if not last.output and self._items:
            last.output = [item for _, item in sorted(self._items.items())]
            self._claimed = {
                place: self._claimed[index] for place, index in enumerate(sorted(self._items)) if index in self._claimed
            }
        return _response(last, self._names, self._claimed, self._ids)


# --- openai responses ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponsesOptions:
    """`encrypted` is "auto" (by the model's name), "on" or "off"; `summary` asks for readable reasoning.

    `cache` is "key" where the provider goes by a key for its prompt cache.
    """

    encrypted: str = "auto"
    summary: str = "auto"
    cache: str = "off"

    @classmethod
    def from_config(cls, config: GatewayConfig, base_url: str = "") -> ResponsesOptions:
        host = urlsplit(base_url).hostname or ""
        official = host.endswith(("openai.com", ".azure.com", ".microsoft.com"))
        return cls(
            cache=config.choice("cache", ("key", "off"), "key" if official else "off"),
            encrypted=config.choice("encrypted_reasoning", ("auto", "on", "off"), "auto"),
            summary=config.choice("reasoning_summary", ("auto", "concise", "detailed", "off"), "auto"),
        )


class OpenAIResponsesWire:
    """Writes requests and reads answers in OpenAI's Responses format; implements `Wire`."""

    def __init__(self, options: ResponsesOptions | None = None, profiles: Profiles | None = None) -> None:
        self.options = options or ResponsesOptions()
        self._profile = profiles or partial(profile_of, "openai-responses")

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools)

    def path(self, model: str, *, stream: bool) -> str:
        return "/responses"

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        notes = [] if notes is None else notes
        profile = self._profile(request.model)
        request = fitted(request, profile, notes)
        if (schema := request.output_schema) is not None and not is_object(schema):
            request = asked_in_words(request, schema)
        settings = request.settings
        body: dict[str, Any] = {
            "model": request.model,
            "input": _items(request.messages, names, profile.phase),
            "store": False,
        }
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": names.wire(tool.name),
                    "description": description_of(tool),
                    "strict": False,
                    **schema,
                }
                for tool, schema in tools_to_send(request, "parameters", strict_schema, notes)
            ]
            named = settings.tool_choice not in CHOICES
            choice = settings.tool_choice
            body["tool_choice"] = {"type": "function", "name": names.wire(choice)} if named else choice
            if settings.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = settings.parallel_tool_calls
        if settings.max_output_tokens is not None:
            body["max_output_tokens"] = settings.max_output_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        self._put_reasoning(body, request, profile)
        if request.output_schema is not None:
            strict = strict_schema(request.output_schema)
            sent = request.output_schema if strict is None else strict
            body["text"] = {
                "format": {"type": "json_schema", "name": "answer", "schema": sent, "strict": strict is not None}
            }
        if self.options.cache == "key":
            body["prompt_cache_key"] = conversation_key(request)
        if stream:
            body["stream"] = True
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_responses(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_response(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> ResponsesAssembler:
        return ResponsesAssembler(names, ids)

    def _put_reasoning(self, body: dict[str, Any], request: ModelRequest, profile: ModelProfile) -> None:
        effort, how = request.settings.reasoning_effort, self.options.encrypted
        # Models that do not reason refuse to be asked for encrypted reasoning.
        if how == "on" or (how == "auto" and profile.is_reasoning(effort)):
            body["include"] = ["reasoning.encrypted_content"]
        if effort is not None:
            body["reasoning"] = {"effort": effort}
            if self.options.summary != "off":
                body["reasoning"]["summary"] = self.options.summary


def _items(messages: tuple[Message, ...], names: ToolNames, phased: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            _assistant(message, names, items, phased)
        elif message.role == "tool":
            items.extend(_output(part) for part in message.parts if isinstance(part, ToolResult))
        elif content := [_content(part) for part in message.parts if isinstance(part, (Text, Media))]:
            items.append({"type": "message", "role": message.role, "content": content})
    return items


def _assistant(message: Message, names: ToolNames, items: list[dict[str, Any]], phased: bool) -> None:
    """The parts as items in the order they were made: reasoning must stand before what it led to."""
    phase: dict[str, str] = {}
    for part in message.parts:
        if isinstance(part, Text):
            if part.text:
                items.append({"type": "message", "role": "assistant", "content": part.text, **phase})
        elif isinstance(part, ToolCall):
            items.append(
                {
                    "type": "function_call",
                    "call_id": sendable_id(part.id),
                    "name": names.wire(part.name),
                    "arguments": arguments_text(part.arguments),
                }
            )
        elif isinstance(part, Reasoning):
            if (said := unmark(PHASE, part.opaque)) is not None:
                phase = {"phase": said} if phased else {}
            elif (kept := unmark(ITEM, part.opaque)) is not None:
                items.append(msgspec.json.decode(kept, type=dict[str, Any]))
            elif (kept := unmark(REASONING, part.opaque)) is not None:
                item = msgspec.json.decode(kept, type=dict[str, Any])
                pieces = _summaries(part.text, item.pop("pieces", ()))
                summary = [{"type": "summary_text", "text": piece} for piece in pieces]
                items.append({"type": "reasoning", "summary": summary, **item})
        elif isinstance(part, Media):
            items.append({"type": "message", "role": "assistant", "content": placeholder(part)})


def _summaries(text: str, lengths: Sequence[int]) -> list[str]:
    """Parts the summaries of one reasoning item again, by their lengths."""
    pieces: list[str] = []
    at = 0
    for length in lengths:
        pieces.append(text[at : at + length])
        at += length + len(_BETWEEN)
    if _BETWEEN.join(pieces) == text:
        return pieces
    return [text] if text else []


def _output(result: ToolResult) -> dict[str, Any]:
    blocks = [part for part in result.content if not isinstance(part, Text) or part.text]
    content: str | list[dict[str, Any]] = [_content(part) for part in blocks]
    if len(blocks) < 2 and all(isinstance(part, Text) for part in blocks):
        content = result_texts(result)[0]
    return {"type": "function_call_output", "call_id": sendable_id(result.call_id), "output": content}


def _content(part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if is_image(part):
        return {"type": "input_image", "image_url": address(part), "detail": "auto"}
    if part.data is not None and is_text(part):
        return {"type": "input_text", "text": decoded_text(part)}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": file_name(part), "file_data": address(part)}
