"""Chat completions answers: one body, or a stream of chunks.

The structs name only what is used, so decoding skips the rest without making objects of it. Every field may be missing
or null: compatible servers leave out whatever they like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from foliot.kernel.messages import (
    Delta,
    Message,
    ModelResponse,
    Part,
    Reasoning,
    ReasoningDelta,
    StopReason,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from foliot.models.wire.base import DONE, NO_DELTAS, ProviderFault, WireError
from foliot.models.wire.findings import Findings, filtered, list_of, mapping_of
from foliot.models.wire.finishes import CHAT, stop_of
from foliot.models.wire.media import from_address
from foliot.models.wire.opaque import mark
from foliot.models.wire.tool_names import ToolNames
from foliot.models.wire.values import TICKS, CallIds, Count, count, dollars, raw_arguments, raw_piece, tier_of

DETAILS = "openai.chat.details"


class _Function(Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()


class _Call(Struct):
    index: int | float | str | None = None
    id: str | int | None = None
    function: _Function | None = None
    custom: Any = None

    @property
    def given(self) -> str | None:
        return None if self.id is None else str(self.id)


class _ImageUrl(Struct):
    url: str = ""


class _Image(Struct):
    image_url: _ImageUrl | None = None


class _Said(Struct):
    """A message, or a piece of one: they have the same fields."""

    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None  # what older servers call one call
    images: list[_Image] | None = None
    # What stands beside the words is looked at with care later: servers put there whatever they like.
    annotations: Any = None
    audio: Any = None


class _Choice(Struct):
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None
    index: int | None = 0
    logprobs: Any = None
    content_filter_results: Any = None  # Azure


class _InputDetails(Struct):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


class _OutputDetails(Struct):
    reasoning_tokens: Count = None


class _CostDetails(Struct):
    upstream_inference_cost: Count = None


class _Usage(Struct):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: Count = None  # DeepSeek's name for what was read from the cache
    # What it cost, where the provider says so itself: OpenRouter in dollars, x.ai in ten-billionths of one.
    cost: Count = None
    cost_details: _CostDetails | None = None
    is_byok: bool | None = None
    cost_in_usd_ticks: Count = None


class _Body(Struct):
    id: str | int | None = None
    object: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    service_tier: str | None = None
    error: Any = None
    citations: Any = None  # Perplexity and x.ai: plain addresses


class _Counted(Struct):
    usage: _Usage | None = None
    service_tier: str | None = None


_DECODER = msgspec.json.Decoder(_Body)
_COUNTED = msgspec.json.Decoder(_Counted)


def _usage(usage: _Usage | None, tier: str | None) -> Usage:
    if usage is None:
        return Usage()
    read = usage.prompt_tokens_details or _InputDetails()
    wrote = usage.completion_tokens_details or _OutputDetails()
    given, written = count(usage.prompt_tokens), count(usage.completion_tokens)
    thought = count(wrote.reasoning_tokens)
    if thought and count(usage.total_tokens) == given + written + thought:
        written += thought  # x.ai counts reasoning beside the completion, OpenAI inside it: the total tells
    return Usage(
        input_tokens=given,
        output_tokens=written,
        cache_read_tokens=count(read.cached_tokens or usage.prompt_cache_hit_tokens),
        cache_write_tokens=count(read.cache_write_tokens),
        reasoning_tokens=thought,
        cost_usd=_cost(usage),
        tier=tier_of(tier),
    )


def _cost(usage: _Usage) -> float | None:
    if (ticks := usage.cost_in_usd_ticks) is not None:
        return dollars(ticks / TICKS)
    paid = dollars(usage.cost)
    if paid is not None and usage.is_byok and usage.cost_details is not None:
        # With a key of one's own OpenRouter takes a fee, and the provider behind it the price.
        paid += dollars(usage.cost_details.upstream_inference_cost) or 0.0
    return paid


def counted_in_chat(body: bytes) -> Usage:
    """Read the provider's counts, whatever else the body holds."""
    found = _COUNTED.decode(body)
    return _usage(found.usage, found.service_tier)


def _stop(reason: str | None, calls: bool, refused: bool) -> StopReason:
    # A whole answer without a reason is what small servers send.
    return stop_of(CHAT, (reason or "stop").lower(), calls=calls, refused=refused)


MESSAGE_FIELDS: Final = frozenset({"content", "refusal", "role", "annotations", "audio", "function_call", "tool_calls"})
"""What is read of a message. Of `audio` it is the transcript, of `tool_calls` the functions; the rest is noted."""
# Pieces of a content that is a list; what else there is, is noted.
_PIECES: Final = frozenset({"text", "output_text", "thinking", "refusal", "reference"})


def _note_choice(choice: _Choice, found: Findings) -> None:
    if choice.logprobs is not None:
        found.drop("logprobs")


def _note_said(said: _Said, found: Findings, before: int = 0) -> None:
    """Take down what stands beside the words of a message."""
    for annotation in list_of(said.annotations):
        found.annotation(annotation, before)
    if said.audio is not None:
        found.note("the spoken answer (audio) is not kept, its transcript is")
    if isinstance(said.content, list):
        for piece in said.content:
            if str(piece.get("type", "text")) not in _PIECES:
                found.drop(f"a piece {piece.get('type')}")
    for call in said.tool_calls or ():
        if name := mapping_of(call.custom).get("name"):
            found.drop(f"a call of the custom tool {name}")


def _transcript(said: _Said) -> str:
    spoken = mapping_of(said.audio).get("transcript")
    return spoken if isinstance(spoken, str) else ""


def _filtered(choice: _Choice | None, stop: StopReason, reason: str | None) -> str:
    if stop != "refusal" or CHAT.get((reason or "").lower()) != "refusal":
        return ""  # in words of its own
    verdicts = mapping_of(choice.content_filter_results if choice is not None else None)
    return filtered(*(name for name, verdict in verdicts.items() if mapping_of(verdict).get("filtered")))


def _texts(content: str | list[dict[str, Any]] | None, between: str = "") -> tuple[str, str]:
    """The text and the reasoning in a content that is a string or, with some servers, a list of typed pieces.

    The pieces of a whole answer are paragraphs, put `between` line ends; those of a stream follow each other directly.
    """
    if not isinstance(content, list):
        return content or "", ""
    text: list[str] = []
    thought: list[str] = []
    for piece in content:
        if piece.get("type") == "thinking":
            inner: Any = piece.get("thinking")
            pieces = cast("list[Any]", inner) if isinstance(inner, list) else []
            nested = _texts([one for one in pieces if isinstance(one, dict)])[0]
            thought.append(inner if isinstance(inner, str) else nested)
        elif isinstance(found := piece.get("text"), str):
            text.append(found)
    return between.join(text), between.join(thought)


def _thoughts(text: str, details: list[dict[str, Any]]) -> list[Part]:
    opaque = mark(DETAILS, msgspec.json.encode(details).decode()) if details else None
    return [Reasoning(text, opaque=opaque)] if text or opaque else []


def _calls(said: _Said) -> list[_Call]:
    if said.function_call is not None and not said.tool_calls:
        return [_Call(index=0, function=said.function_call)]
    return said.tool_calls or []


def _fault(answer: _Body, raw: bytes) -> ProviderFault:
    """The error inside an answer; vLLM and SGLang write it as an object of its own."""
    return ProviderFault({"error": answer.error} if answer.error else msgspec.json.decode(raw))


def parse_chat(body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
    """One whole answer. Raises `WireError`, `ProviderFault`, or msgspec's decoding error."""
    answer = _DECODER.decode(body)
    if answer.error or answer.object == "error":
        raise _fault(answer, body)
    if not answer.choices or (said := answer.choices[0].message) is None:
        raise WireError("its answer holds no choice with a message")
    found = Findings()
    _note_choice(answer.choices[0], found)
    _note_said(said, found)
    for address in list_of(answer.citations):
        found.source(url=address)
    if len(answer.choices) > 1:
        found.note(f"only the first of {len(answer.choices)} answers is kept")
    text, thought = _texts(said.content, "\n")
    parts = _thoughts(said.reasoning_content or said.reasoning or thought, said.reasoning_details or [])
    text = text or said.refusal or _transcript(said) or ""
    if text:
        parts.append(Text(text))
    parts.extend(from_address(image.image_url.url) for image in said.images or () if image.image_url)
    calls = [
        ToolCall(ids.claim(call.given), names.real(call.function.name or ""), raw_arguments(call.function.arguments))
        for call in _calls(said)
        if call.function is not None
    ]
    parts.extend(calls)
    reason = answer.choices[0].finish_reason
    stop = _stop(reason, bool(calls), bool(said.refusal))
    return found.into(
        ModelResponse(
            message=Message("assistant", tuple(parts)),
            usage=_usage(answer.usage, answer.service_tier),
            stop=stop,
            model=answer.model or "",
            id=str(answer.id or ""),
            detail="" if said.refusal else _filtered(answer.choices[0], stop, reason),
        )
    )


class _OpenCall:
    """A call while it is being written."""

    __slots__ = ("arguments", "given", "id", "name")

    def __init__(self, given: str | None, call_id: str, name: str) -> None:
        self.given = given
        self.id = call_id
        self.name = name
        self.arguments: list[str] = []


class ChatAssembler:
    """Assembles a streamed chat answer.

    Calls are told apart by index, else by id; without both, a piece continues the last.
    """

    def __init__(self, names: ToolNames, ids: CallIds) -> None:
        self._names = names
        self._ids = ids
        self._text: list[str] = []
        self._thought: list[str] = []
        self._details: dict[tuple[str, str], dict[str, Any]] = {}
        self._images: list[Part] = []
        self._calls: list[_OpenCall] = []
        self._by_index: dict[str, int] = {}
        self._refused = False
        self._said = False
        self._found = Findings()
        self._last: _Choice | None = None
        self._reason: str | None = None
        self.done = self.ending = False
        self._usage: _Usage | None = None
        self._tier: str | None = None
        self._model = self._id = ""

    def feed(self, event: bytes) -> Sequence[Delta]:
        if event.startswith(DONE):
            self.done = True
            return NO_DELTAS
        chunk = _DECODER.decode(event)
        if chunk.error or chunk.object == "error":
            raise _fault(chunk, event)
        if chunk.usage is not None:
            self._usage = chunk.usage
            self._tier = chunk.service_tier or self._tier
        if not self._id:
            self._id, self._model = str(chunk.id or ""), chunk.model or ""
            self._tier = chunk.service_tier
        for address in list_of(chunk.citations) if chunk.citations else ():
            self._found.source(url=address)
        if not chunk.choices:
            # The count is the last thing that is said, and some never say that it was.
            self.done = self._reason is not None and chunk.usage is not None
            return NO_DELTAS
        choice = chunk.choices[0]
        if choice.index:  # a second alternative, asked for by `extra`: only the first one is the answer
            self._found.note("only the first of several answers is kept")
            return NO_DELTAS
        if choice.logprobs is not None:
            _note_choice(choice, self._found)
        if choice.finish_reason:
            self._reason, self._last = choice.finish_reason, choice
            self.ending = True
        said = choice.delta or choice.message
        if said is None:
            return NO_DELTAS
        self._said = True
        content = said.content
        if type(content) is str and content and said == _Said(content):
            self._text.append(content)  # nearly every chunk is text and nothing else
            return (TextDelta(content),)
        return self._take(said)

    def _take(self, said: _Said) -> list[Delta]:
        deltas: list[Delta] = []
        _note_said(said, self._found)
        text, thought = _texts(said.content)
        if thought := said.reasoning_content or said.reasoning or thought:
            self._thought.append(thought)
            deltas.append(ReasoningDelta(thought))
        for detail in said.reasoning_details or ():
            self._merge(detail)
        if said.refusal:
            self._refused = True
            text = text or said.refusal
        if said.audio is not None:
            text = text or _transcript(said)
        if text:
            self._text.append(text)
            deltas.append(TextDelta(text))
        self._images.extend(from_address(image.image_url.url) for image in said.images or () if image.image_url)
        for call in _calls(said):
            if call.custom is None:
                deltas.append(self._call(call))
        return deltas

    def _merge(self, detail: dict[str, Any]) -> None:
        """Join the pieces of one detail, which share kind and index, by appending their texts."""
        whole = self._details.setdefault((str(detail.get("type")), str(detail.get("index"))), {})
        for key, value in detail.items():
            if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(whole.get(key), str):
                whole[key] += value
            elif value is not None or key not in whole:
                whole[key] = value

    def _call(self, piece: _Call) -> ToolCallDelta:
        place = self._place(piece)
        function = piece.function or _Function()
        if place == len(self._calls):
            call = _OpenCall(piece.given, self._ids.claim(piece.given), self._names.real(function.name or ""))
            self._calls.append(call)
        else:
            call = self._calls[place]
            if not call.name and function.name:
                call.name = self._names.real(function.name)
        arguments = raw_piece(function.arguments)
        call.arguments.append(arguments)
        return ToolCallDelta(place, call.id, call.name, arguments)

    def _place(self, piece: _Call) -> int:
        new = len(self._calls)
        named = piece.function is not None and bool(piece.function.name)
        if piece.index is not None:
            key = str(piece.index)
            place = self._by_index.setdefault(key, new)
            # Some servers number every call 0: a new id and a name are a new call. A new id alone is a piece of the
            # same one, from those that draw an id for every piece.
            given = self._calls[place].given if place < new else None
            if named and given and piece.given and piece.given != given:
                place = self._by_index[key] = new
            return place
        if piece.given:
            known = next((n for n, call in enumerate(self._calls) if call.given == piece.given), None)
            if known is not None:
                return known
        return new if named or not self._calls else new - 1

    def heard(self) -> tuple[Usage, str]:
        calls = (piece for call in self._calls for piece in (call.name, *call.arguments))
        return _usage(self._usage, self._tier), "".join((*self._thought, *self._text, *calls))

    def finish(self) -> ModelResponse:
        if not self.done and self._reason is None:
            raise WireError("its stream was cut before the answer was finished")
        if self._reason is None and not self._said:
            raise WireError("its stream holds no answer")
        parts = _thoughts("".join(self._thought), list(self._details.values()))
        if text := "".join(self._text):
            parts.append(Text(text))
        parts.extend(self._images)
        for call in self._calls:
            parts.append(ToolCall(call.id, call.name, "".join(call.arguments) or "{}"))
        stop = _stop(self._reason, bool(self._calls), self._refused)
        return self._found.into(
            ModelResponse(
                message=Message("assistant", tuple(parts)),
                usage=_usage(self._usage, self._tier),
                stop=stop,
                model=self._model,
                id=self._id,
                detail="" if self._refused else _filtered(self._last, stop, self._reason),
            )
        )
