"""Chat completions, requests and answers, as OpenAI defines them and many others speak them, each with a small accent.

`ChatOptions` holds the accents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, cast
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
    StopReason,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
    joined,
)
from foliot.models.config import GatewayConfig
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.wire.base import DONE, NO_DELTAS, ProviderFault, Unsendable, WireError
from foliot.models.wire.findings import Findings, filtered, list_of, mapping_of
from foliot.models.wire.finishes import CHAT, stop_of
from foliot.models.wire.media import (
    address,
    decoded_text,
    file_name,
    from_address,
    is_image,
    is_text,
    needs_bytes,
    placeholder,
    result_files,
    result_texts,
)
from foliot.models.wire.opaque import mark, unmark
from foliot.models.wire.requests import CHOICES, Notes, Profiles, asked_in_words, fitted, merged, tools_to_send
from foliot.models.wire.schemas import is_object, strict_schema
from foliot.models.wire.tool_names import ToolNames, description_of, tool_names
from foliot.models.wire.values import (
    ANY_ID,
    NINE_ID,
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

# --- openai chat answer ----------------------------------------------------------------------------------------------

# Chat completions answers: one body, or a stream of chunks.
#
# The structs name only what is used, so decoding skips the rest without making objects of it. Every field may be
# missing or null: compatible servers leave out whatever they like.

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
"""The fields of a message that are read: of `audio` the transcript, of `tool_calls` the functions. Others are noted."""
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
    for cited in list_of(answer.citations):
        found.source(url=cited)
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
        for cited in list_of(chunk.citations) if chunk.citations else ():
            self._found.source(url=cited)
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


# --- openai chat -----------------------------------------------------------------------------------------------------

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
ReasoningReplay = Literal["none", "reasoning_content", "reasoning", "reasoning_details"]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The differences between compatible servers.

    `from_config` guesses by the host; an option can overrule every guess.
    """

    max_tokens_field: str = "max_completion_tokens"
    own_field: bool = False
    include_usage: bool = True
    send_tool_choice: bool = True
    system_role: str = "system"
    reasoning_replay: str = "none"
    nine_ids: bool = False
    tool_parts: bool = True
    path: str = "/chat/completions"
    cache: str = "off"

    @classmethod
    def from_config(cls, config: GatewayConfig, base_url: str, path: str = "/chat/completions") -> ChatOptions:
        host = urlsplit(base_url).hostname or ""
        official = host.endswith(("openai.com", ".azure.com", ".microsoft.com"))
        replay = "none"
        if host.endswith("openrouter.ai"):
            replay = "reasoning_details"
        elif host.endswith(("deepseek.com", "moonshot.ai", "moonshot.cn")):
            replay = "reasoning_content"
        fields = ("max_completion_tokens", "max_tokens")
        # Most cache by themselves. These go by a key that says which questions have the same beginning; OpenRouter is
        # asked to set Claude's marks.
        cache = "key" if official or host.endswith("mistral.ai") else "off"
        if host.endswith("openrouter.ai"):
            cache = "marks"
        ids = "nine" if host.endswith("mistral.ai") else "any"
        return cls(
            own_field=bool(config.text("max_tokens_field")),
            max_tokens_field=config.choice("max_tokens_field", fields, fields[0] if official else fields[1]),
            include_usage=config.flag("include_usage", True),
            send_tool_choice=config.flag("tool_choice", True),
            system_role=config.choice("system_role", ("system", "developer", "user"), "system"),
            reasoning_replay=config.choice(
                "reasoning_replay", ("none", "reasoning_content", "reasoning", "reasoning_details"), replay
            ),
            nine_ids=config.choice("call_ids", ("any", "nine"), ids) == "nine",
            tool_parts=config.flag("tool_parts", official),
            path=path,
            cache=config.choice("cache", ("key", "marks", "off"), cache),
        )


def conversation_key(request: ModelRequest) -> str:
    """A name for the beginning of a conversation: the same at each of its steps, another one for each conversation.

    Providers send questions of one key to one machine, which has the prefix in its cache; a key that all runs of an
    agent shared would be too many for it.
    """
    digest = blake2b(request.system.encode("utf-8", "replace"), digest_size=16)
    for part in request.messages[0].parts if request.messages else ():
        if isinstance(part, Text):
            digest.update(part.text.encode("utf-8", "replace"))
    return f"foliot-{digest.hexdigest()}"


class OpenAIChatWire:
    """Writes requests and reads answers in OpenAI's Chat Completions format; implements `Wire`."""

    def __init__(self, options: ChatOptions | None = None, profiles: Profiles | None = None) -> None:
        self.options = options or ChatOptions()
        self._profile = profiles or partial(profile_of, "openai")
        self._ids = NINE_ID if self.options.nine_ids else ANY_ID

    def names(self, request: ModelRequest) -> ToolNames:
        return tool_names(request.tools)

    def path(self, model: str, *, stream: bool) -> str:
        return self.options.path

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        notes = [] if notes is None else notes
        profile = self._profile(request.model)
        request = fitted(request, profile, notes)
        request, answer = _answer_format(request, profile)
        settings = request.settings
        body: dict[str, Any] = {"model": request.model, "messages": self._messages(request, names)}
        if request.tools:
            body["tools"] = _tools(request, names, notes)
            if self.options.send_tool_choice:
                body["tool_choice"] = _tool_choice(settings.tool_choice, names)
            elif settings.tool_choice != "auto":
                notes.append("tool_choice is not sent: the endpoint's option tool_choice is off")
            if settings.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = settings.parallel_tool_calls
        if settings.max_output_tokens is not None:
            field = "" if self.options.own_field else profile.output_field
            body[field or self.options.max_tokens_field] = settings.max_output_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.stop:
            body["stop"] = settings.stop
        if settings.seed is not None:
            body["seed"] = settings.seed
        if settings.reasoning_effort is not None:
            body["reasoning_effort"] = settings.reasoning_effort
        if answer is not None:
            body["response_format"] = answer
        if self.options.cache == "key":
            body["prompt_cache_key"] = conversation_key(request)
        elif self.options.cache == "marks" and "claude" in request.model:
            body["cache_control"] = {"type": "ephemeral"}
        if stream:
            body["stream"] = True
            if self.options.include_usage:
                body["stream_options"] = {"include_usage": True}
        return merged(body, settings.extra) if settings.extra else body

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        return parse_chat(body, names, ids)

    def counted(self, body: bytes) -> Usage:
        return counted_in_chat(body)

    def assembler(self, names: ToolNames, ids: CallIds) -> ChatAssembler:
        return ChatAssembler(names, ids)

    def _messages(self, request: ModelRequest, names: ToolNames) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        if request.system:
            sent.append({"role": self.options.system_role, "content": request.system})
        # Tool messages hold text only, and none may come between them: what else the tools returned waits here.
        waiting: list[dict[str, Any]] = []
        for message in request.messages:
            role = message.role
            if waiting and role != "tool":
                sent.append({"role": "user", "content": waiting})
                waiting = []
            if role == "tool":
                for part in message.parts:
                    if isinstance(part, ToolResult):
                        sent.append(_tool_message(part, sendable_id(part.call_id, self._ids), self.options.tool_parts))
                        waiting.extend(_result_media(part))
            elif role == "assistant":
                if said := self._assistant(message, names):
                    sent.append(said)
            elif content := _content(message.parts):
                sent.append({"role": self.options.system_role if role == "system" else role, "content": content})
        if waiting:
            sent.append({"role": "user", "content": waiting})
        return sent

    def _assistant(self, message: Message, names: ToolNames) -> dict[str, Any] | None:
        text: list[str] = []
        calls: list[dict[str, Any]] = []
        thought: list[Reasoning] = []
        for part in message.parts:
            if isinstance(part, Text):
                text.append(part.text)
            elif isinstance(part, ToolCall):
                calls.append(
                    {
                        "id": sendable_id(part.id, self._ids),
                        "type": "function",
                        "function": {"name": names.wire(part.name), "arguments": arguments_text(part.arguments)},
                    }
                )
            elif isinstance(part, Reasoning):
                thought.append(part)
            elif isinstance(part, Media):
                text.append(placeholder(part))
        content = "".join(text)
        if not content and not calls:
            return None
        said: dict[str, Any] = {"role": "assistant", "content": content or None}
        if calls:
            said["tool_calls"] = calls
        if thought and self.options.reasoning_replay != "none":
            said.update(_replayed(thought, self.options.reasoning_replay))
        return said


def _replayed(thought: list[Reasoning], how: str) -> dict[str, Any]:
    if how == "reasoning_details":
        details = [
            item
            for part in thought
            if (kept := unmark(DETAILS, part.opaque)) is not None
            for item in msgspec.json.decode(kept)
        ]
        return {"reasoning_details": details} if details else {}
    text = "".join(part.text for part in thought)
    return {how: text} if text else {}


def _answer_format(request: ModelRequest, profile: ModelProfile) -> tuple[ModelRequest, dict[str, Any] | None]:
    """How the model is held to the schema of its answer; the request asks in words where it is not, or not wholly."""
    schema = request.output_schema
    if schema is None:
        return request, None
    how = profile.answers
    if how in ("words", "tool") or not is_object(schema) or not _may_hold(request, profile):
        return asked_in_words(request, schema), None
    if how == "object":
        return asked_in_words(request, schema), {"type": "json_object"}
    strict = strict_schema(schema)
    if how != "strict" and strict != schema:
        strict = None  # a server that is only like OpenAI is sent what was declared
    sent = {"name": "answer", "schema": schema if strict is None else strict, "strict": strict is not None}
    return request, {"type": "json_schema", "json_schema": sent}


def _may_hold(request: ModelRequest, profile: ModelProfile) -> bool:
    """Whether the schema can be sent beside the tools: a grammar that holds from the first token lets nobody call."""
    if not request.tools or profile.answers_beside_tools:
        return True
    return profile.answers == "schema" and request.settings.tool_choice == "none"  # others refuse the tools themselves


def _tool_choice(choice: str, names: ToolNames) -> str | dict[str, Any]:
    if choice in CHOICES:
        return choice
    return {"type": "function", "function": {"name": names.wire(choice)}}


def _tools(request: ModelRequest, names: ToolNames, notes: Notes) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for tool, schema in tools_to_send(request, "parameters", strict_schema, notes):
        function = {"name": names.wire(tool.name), "description": description_of(tool), **schema}
        made.append({"type": "function", "function": function})
    return made


def _tool_message(result: ToolResult, call_id: str, in_parts: bool) -> dict[str, Any]:
    texts = result_texts(result)
    content = [{"type": "text", "text": text} for text in texts] if in_parts and len(texts) > 1 else joined(texts)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _result_media(result: ToolResult) -> list[dict[str, Any]]:
    media = result_files(result)
    if not media:
        return []
    return [{"type": "text", "text": f"Content returned by {result.name}:"}, *(_media(part) for part in media)]


def _content(parts: Iterable[Any]) -> str | list[dict[str, Any]]:
    """Text as a string when it is only text, which every compatible server takes; else a list of parts."""
    content: list[dict[str, Any]] = []
    text: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            text.append(part.text)
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, Media):
            content.append(_media(part))
    return "".join(text) if len(text) == len(content) else content


def _media(media: Media) -> dict[str, Any]:
    if is_image(media):
        return {"type": "image_url", "image_url": {"url": address(media)}}
    if media.data is not None and is_text(media):
        return {"type": "text", "text": decoded_text(media)}
    if media.media_type.startswith("audio/"):
        if (kind := _AUDIO.get(media.media_type)) is None:
            raise Unsendable(f"chat completions take audio as wav or mp3, not as {media.media_type}")
        return {"type": "input_audio", "input_audio": {"data": needs_bytes(media, "chat completions"), "format": kind}}
    needs_bytes(media, "chat completions")
    return {"type": "file", "file": {"filename": file_name(media), "file_data": address(media)}}
