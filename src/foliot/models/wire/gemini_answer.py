"""Gemini answers: a stream is a series of small answers, so both ways are one fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from foliot.kernel.messages import (
    Delta,
    Media,
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
from foliot.models.wire.calls import CallIds, raw_arguments
from foliot.models.wire.counts import Count, count, tier_of
from foliot.models.wire.finishes import GEMINI, stop_of
from foliot.models.wire.opaque import mark
from foliot.models.wire.tool_names import ToolNames

# Where a signature stood: each goes back to the same place.
ON_CALL = "gemini.call"
ON_TEXT = "gemini.text"
ON_THOUGHT = "gemini.thought"
ALONE = "gemini.alone"


class _FunctionCall(Struct, rename="camel"):
    id: str | None = None
    name: str = ""
    args: msgspec.Raw = msgspec.Raw()


class _Inline(Struct, rename="camel"):
    mime_type: str = "application/octet-stream"
    data: str = ""


class _File(Struct, rename="camel"):
    mime_type: str = "application/octet-stream"
    file_uri: str = ""


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None
    inline_data: _Inline | None = None
    file_data: _File | None = None


class _Content(Struct, rename="camel"):
    parts: list[_Part] | None = None


class _Grounding(Struct, rename="camel"):
    web_search_queries: list[Any] | None = None


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    index: int | None = None
    grounding_metadata: _Grounding | None = None


class _Usage(Struct, rename="camel"):
    prompt_token_count: Count = None
    candidates_token_count: Count = None
    thoughts_token_count: Count = None
    cached_content_token_count: Count = None
    tool_use_prompt_token_count: Count = None
    service_tier: str | None = None
    traffic_type: str | None = None  # Vertex


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class _Body(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    prompt_feedback: _Feedback | None = None
    error: Any = None


class _Counted(Struct, rename="camel"):
    usage_metadata: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Body)
_COUNTED = msgspec.json.Decoder(_Counted)


def _usage(usage: _Usage | None, searches: int = 0) -> Usage:
    if usage is None:
        return Usage()
    thoughts = count(usage.thoughts_token_count)
    return Usage(
        input_tokens=count(usage.prompt_token_count) + count(usage.tool_use_prompt_token_count),
        # Gemini counts thoughts beside the answer, not inside it.
        output_tokens=count(usage.candidates_token_count) + thoughts,
        cache_read_tokens=count(usage.cached_content_token_count),
        reasoning_tokens=thoughts,
        web_searches=searches,
        tier=tier_of(usage.service_tier or usage.traffic_type),
    )


def counted_in_gemini(body: bytes) -> Usage:
    """Read the provider's counts, whatever else the body holds."""
    return _usage(_COUNTED.decode(body).usage_metadata)


def parse_gemini(body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
    """One whole answer. Raises `WireError`, `ProviderFault`, or msgspec's decoding error."""
    assembler = GeminiAssembler(names, ids)
    assembler.feed(body)
    return assembler.finish()


class GeminiAssembler:
    """See `Assembler`. Neighbouring pieces of text are joined, except across a signature: it belongs to one part."""

    def __init__(self, names: ToolNames, ids: CallIds) -> None:
        self.done = self.ending = False  # Gemini does not say that it has said all; the end of the stream does
        self._names = names
        self._ids = ids
        self._parts: list[Part] = []
        self._open: list[str] = []
        self._open_thought = False
        self._calls = 0
        self._usage: _Usage | None = None
        self._reason: str | None = None
        self._blocked = False
        self._searches = 0
        self._model = self._id = ""

    def feed(self, event: bytes) -> Sequence[Delta]:
        if event.startswith(DONE):
            return NO_DELTAS
        body = _DECODER.decode(event)
        if body.error:
            raise ProviderFault({"error": body.error})
        self._usage = body.usage_metadata or self._usage
        self._model = body.model_version or self._model
        self._id = body.response_id or self._id
        if body.prompt_feedback is not None and body.prompt_feedback.block_reason:
            self._blocked = True
        deltas: list[Delta] = []
        for candidate in body.candidates or ():
            if candidate.index:  # a second alternative: only the first one is the answer
                continue
            self._reason = candidate.finish_reason or self._reason
            self.ending = self._reason is not None
            if candidate.grounding_metadata is not None:
                self._searches = max(self._searches, len(candidate.grounding_metadata.web_search_queries or ()))
            for part in (candidate.content.parts if candidate.content else None) or ():
                self._take(part, deltas)
        return deltas

    def _take(self, part: _Part, deltas: list[Delta]) -> None:
        signature = part.thought_signature
        if part.function_call is not None:
            self._close()
            call = part.function_call
            made = ToolCall(
                self._ids.claim(call.id),
                self._names.real(call.name),
                raw_arguments(call.args),
                mark(ON_CALL, signature) if signature else None,
            )
            self._parts.append(made)
            deltas.append(ToolCallDelta(self._calls, made.id, made.name, made.arguments))
            self._calls += 1
        elif part.inline_data is not None:
            self._close()
            self._parts.append(Media(part.inline_data.mime_type, data=part.inline_data.data))
        elif part.file_data is not None:
            self._close()
            self._parts.append(Media(part.file_data.mime_type, url=part.file_data.file_uri))
        elif part.text is not None:
            self._write(part.text, bool(part.thought), signature, deltas)
        elif signature:
            self._write("", False, signature, deltas)

    def _write(self, text: str, thought: bool, signature: str | None, deltas: list[Delta]) -> None:
        if text:
            deltas.append(ReasoningDelta(text) if thought else TextDelta(text))
        if signature or thought != self._open_thought:
            self._close()
        self._open_thought = thought
        if not signature:
            self._open.append(text)
        elif thought:
            self._parts.append(Reasoning(text, opaque=mark(ON_THOUGHT, signature)))
        elif text:
            self._parts.extend((Text(text), Reasoning(opaque=mark(ON_TEXT, signature))))
        else:
            self._parts.append(Reasoning(opaque=mark(ALONE, signature)))

    def _close(self) -> None:
        if text := "".join(self._open):
            self._parts.append(Reasoning(text) if self._open_thought else Text(text))
        self._open.clear()

    def heard(self) -> tuple[Usage, str]:
        written = "".join(self._open)
        for part in self._parts:
            if isinstance(part, (Text, Reasoning)):
                written += part.text
            elif isinstance(part, ToolCall):
                written += part.name + part.arguments
        return _usage(self._usage, self._searches), written

    def finish(self) -> ModelResponse:
        self._close()
        if self._reason is None and not self._blocked:
            raise WireError("its answer was cut before it was finished, or holds no candidate")
        stop = "refusal" if self._reason is None else stop_of(GEMINI, self._reason, calls=bool(self._calls))
        return ModelResponse(
            message=Message("assistant", tuple(self._parts)),
            usage=_usage(self._usage, self._searches),
            stop=stop,
            model=self._model,
            id=self._id,
        )
