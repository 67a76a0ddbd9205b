"""Messages between people, models and tools, as data that every part shares.

These are msgspec structs because the same values are encoded into the journal at every step: a struct costs about a
microsecond to encode and needs no conversion. They are frozen, so a transcript can be shared without copying.
A field may be added with a default; none is ever renamed or removed, because journals are read for ever.

The ones that transcripts are made of are left out of the garbage collector (`gc=False`): they are trees of texts, which
cannot form a circle, and with a thousand transcripts in memory looking through them was a fifth of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
# A whole number stays whole: 1 and 1.0 are other bytes, and what is decoded and encoded again must not change.
Number: TypeAlias = int | float
# `pause`: the turn is the model's still, which goes on when it is asked again. `other` stands in old journals only.
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
StopReason: TypeAlias = Literal["end", "tool_calls", "length", "refusal", "pause", "other"]


class Text(Struct, frozen=True, gc=False, tag="text", omit_defaults=True):
    text: str


class Reasoning(Struct, frozen=True, gc=False, tag="reasoning", omit_defaults=True):
    """The reasoning of a model. `signature` and `opaque` are the provider's own and go back to it unchanged."""

    text: str = ""
    signature: str | None = None
    opaque: str | None = None


class Media(Struct, frozen=True, gc=False, tag="media", omit_defaults=True):
    """An image, document, audio or other file: exactly one of `data` (base64), `url`, or `blob` (a digest)."""

    media_type: str
    data: str | None = None
    url: str | None = None
    blob: str | None = None
    name: str | None = None


class ToolCall(Struct, frozen=True, gc=False, tag="tool_call", omit_defaults=True):
    """`arguments` is the JSON text exactly as the model wrote it, valid or not. `id` is unique within a run.

    `opaque` is the provider's own (a thought signature, for example) and goes back to it unchanged.
    """

    id: str
    name: str
    arguments: str = "{}"
    opaque: str | None = None


class ToolResult(Struct, frozen=True, gc=False, tag="tool_result", omit_defaults=True):
    """The one answer to a call. `error` is set when the call failed; the content then says so to the model."""

    call_id: str
    name: str
    content: tuple[Text | Media, ...] = ()
    error: ToolFailure | None = None

    @property
    def text(self) -> str:
        """The texts as one, each from a line of its own: two results of a tool are not read as one word."""
        return joined(part.text for part in self.content if isinstance(part, Text))


def joined(texts: Iterable[str]) -> str:
    """Texts with a line break between each two, unless one of them brings it along."""
    whole = ""
    for text in texts:
        apart = whole and text and not (whole.endswith("\n") or text.startswith("\n"))
        whole = f"{whole}\n{text}" if apart else whole + text
    return whole


class ToolFailure(Struct, frozen=True, omit_defaults=True):
    """A failure is data: `code` and `reason` for programs and policy, `message` for the model and for people.

    `unknown` says why nobody knows whether the call took effect (see `events.UnknownReason`), and `key` is the
    idempotency key that it was made under; both are blank when the tool certainly did not act, or said how it ended.
    `before_effect`: the tool was certainly not reached this time.
    """

    code: str
    reason: str
    message: str
    retryable: bool = False
    kind: str = "execution"
    details: dict[str, Any] = {}
    unknown: str = ""
    key: str = ""
    before_effect: bool = False


Part: TypeAlias = Text | Reasoning | Media | ToolCall | ToolResult


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    role: Role
    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens of one or many answers. `input_tokens` includes what was read from and written to a cache.

    `source` is "provider" when the provider counted, "estimated" when Foliot did. `cost_usd` is None when no price is
    known: an unknown price is not a price of zero. It also says what the price depends on: how much of
    `cache_write_tokens` is kept for an hour, the searches that the provider itself made, and of one answer the tier it
    was served at ("flex", "priority", "batch").
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: Number | None = None
    source: Literal["provider", "estimated"] = "provider"
    cache_write_1h_tokens: int = 0
    web_searches: int = 0
    file_searches: int = 0
    tier: str = ""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class ToolSpec(Struct, frozen=True, omit_defaults=True):
    """The description of a tool for a model. `schema` is a JSON Schema object; None means the one-string fallback."""

    name: str
    description: str = ""
    schema: dict[str, Any] | None = None


class ModelSettings(Struct, frozen=True, omit_defaults=True):
    """Knobs that providers share. `extra` goes into the provider's request body as it is.

    `tool_choice` is "auto", "none", "required", or the name of the tool that must be called. `parallel_tool_calls` lets
    one answer ask for several; `strict_tools` holds the model to the schemas of the tools, where a provider can.
    """

    max_output_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning_effort: Effort | None = None
    tool_choice: str = "auto"
    extra: dict[str, Any] = {}
    parallel_tool_calls: bool | None = None
    strict_tools: bool | None = None


class ModelRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """One question to a model. `output_schema` asks for an answer that is JSON of this shape.

    `agent` is the name of who asks, for routing, logs and scripts; it is never sent to a provider.
    """

    model: str
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output_schema: dict[str, Any] | None = None
    settings: ModelSettings = ModelSettings()
    agent: str = ""


class Source(Struct, frozen=True, gc=False, omit_defaults=True):
    """A place that an answer names as its ground: a citation, an annotation, or what a search found.

    `quote` are the words of the source; `start` and `end` are where in the answer's text it counts, if that is said.
    """

    url: str = ""
    title: str = ""
    quote: str = ""
    start: int | None = None
    end: int | None = None


class ModelResponse(Struct, frozen=True, gc=False, omit_defaults=True):
    """One finished answer. `message.role` is "assistant". `model` is what really answered, by way of `endpoint`.

    `notes` say what of the question was not sent as it was asked, and of the answer not kept. `detail` is what the
    provider says of a refusal. `sources` are what it names as the grounds of its text.
    """

    message: Message
    usage: Usage = Usage()
    stop: StopReason = "end"
    model: str = ""
    provider: str = ""
    id: str = ""
    endpoint: str = ""
    notes: tuple[str, ...] = ()
    detail: str = ""
    sources: tuple[Source, ...] = ()


class TextDelta(Struct, frozen=True, tag="text.delta"):
    text: str


class ReasoningDelta(Struct, frozen=True, tag="reasoning.delta"):
    text: str


class ToolCallDelta(Struct, frozen=True, tag="tool_call.delta"):
    """A piece of a call while the model writes it; `index` tells parallel calls apart."""

    index: int
    id: str
    name: str
    arguments: str


class RestartDelta(Struct, frozen=True, tag="restart.delta"):
    """The answer begins anew (a retry, another endpoint): whoever shows pieces forgets those since the last answer."""

    reason: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | RestartDelta
