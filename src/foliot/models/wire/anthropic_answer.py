"""Anthropic Messages answers: one body, or a stream of block events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.kernel.messages import (
    Delta,
    Message,
    ModelResponse,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from foliot.models.wire.base import DONE, NO_DELTAS, ProviderFault, WireError
from foliot.models.wire.findings import Findings, list_of, mapping_of
from foliot.models.wire.finishes import MESSAGES, stop_of
from foliot.models.wire.opaque import mark
from foliot.models.wire.tool_names import ToolNames
from foliot.models.wire.values import CallIds, Count, count, raw_arguments, tier_of

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
