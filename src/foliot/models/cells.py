"""The cells of the table provider × feature: one tiny question each, and a judgement of its answer.

The tests ask them of servers that keep the providers' rules, and write docs/providers.md of it; `foliot models check`
asks them of a real endpoint. A cell knows no provider: it goes by the gateway, and by the profile of the model for what
is so by design.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import pack
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Reasoning,
    Text,
    TextDelta,
    ToolCallDelta,
    ToolResult,
    ToolSpec,
    Usage,
)
from foliot.models.base import (
    Embedder,
    Gateway,
    ModelAuthError,
    ModelError,
    ModelQuotaExceeded,
    OnDelta,
    Reranker,
    Transcriber,
)
from foliot.models.profiles import ModelProfile, provider_facts

State: TypeAlias = Literal["right", "by design", "missing", "wrong", "not asked"]
RED: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAF0lEQVR4nGP8z0AaYCJR/aiGUQ1DSAMAQC4BH2bjRnMAAAAASUVORK5CYII="
)
"""A red square, as PNG."""
_RATE: Final = 8000
SILENCE: Final = b"".join(
    (
        b"RIFF", pack("<I", 36 + 2 * _RATE), b"WAVEfmt ", pack("<IHHIIHH", 16, 1, 1, _RATE, 2 * _RATE, 2, 16),
        b"data", pack("<I", 2 * _RATE), bytes(2 * _RATE),
    )
)  # fmt: skip
"""A second of nothing, as WAV: whoever writes down what is said there has understood the request."""
UNREACHABLE: Final = "nobody answers at this address"
_NO_ANSWERS: Final = "it sells no answers"
_SERVICES: Final = ("embeddings", "rerank", "transcription")
_ROOM: Final = 2048  # for models that think before they say one word


class CellVerdict(NamedTuple):
    state: State
    words: str = ""


@dataclass(frozen=True, slots=True)
class CellSubject:
    """Whom the cells ask: a gateway, its model and what is known of it.

    `embeddings`, `rerank` and `transcription` name a model for these; "" where none is known, and False where there are
    none. `images` says whether the provider reads any, `chat` whether it answers at all.
    """

    gateway: Gateway
    model: str
    profile: ModelProfile
    embeddings: str | Literal[False] = ""
    images: bool = True
    rerank: str | Literal[False] = False
    transcription: str | Literal[False] = False
    chat: bool = True

    @classmethod
    def of(cls, gateway: Gateway, provider: str, model: str, profile: ModelProfile, **given: str) -> CellSubject:
        """A subject with what the provider's file says of it; `given` are models that somebody else named."""
        facts = provider_facts(provider)
        named = {each: facts.get(each, "" if each == "embeddings" else False) for each in _SERVICES}
        named = {each: "" if model is True else model for each, model in named.items()}
        named |= {each: model for each, model in given.items() if model}
        images, chat = bool(facts.get("images", False)), facts.get("chat") is not False
        return cls(gateway, model, profile, images=images, chat=chat, **named)

    async def ask(self, *said: Message | str, on_delta: OnDelta | None = None, **more: Any) -> ModelResponse:
        messages = tuple(Message("user", (Text(each),)) if isinstance(each, str) else each for each in said)
        settings: dict[str, Any] = {"max_output_tokens": _ROOM, **more.pop("settings", {})}
        request = ModelRequest(self.model, messages, settings=ModelSettings(**settings), **more)
        return await self.gateway.respond(request, on_delta=on_delta)


@dataclass(frozen=True, slots=True)
class Cell:
    """One feature. `tokens` is what asking it is expected to take, in and out."""

    name: str
    ask: Callable[[CellSubject], Awaitable[CellVerdict]]
    tokens: tuple[int, int]
    chat: bool = True


_CITY: Final[Mapping[str, Any]] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                                   "additionalProperties": False}  # fmt: skip
_WEATHER: Final = ToolSpec("weather", "The weather of one city.", dict(_CITY))
_TIME: Final = ToolSpec("local_time", "The local time in one city.", dict(_CITY))
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "numbers": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city", "numbers"],
    "additionalProperties": False,
}
_REPORT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
_CAPITAL: Final = "Name the capital of Norway and two numbers, as JSON."
_OSLO: Final = "How is the weather in Oslo? Use the tool."


def _is(right: bool, words: str) -> CellVerdict:
    return CellVerdict("right") if right else CellVerdict("wrong", words)


async def _plain(subject: CellSubject) -> CellVerdict:
    got = await subject.ask("Reply with the single word: ready")
    if got.usage.source != "provider":
        return CellVerdict("missing", "the answer came without a count of its tokens")
    if got.stop != "end":
        return CellVerdict("wrong", f"it stopped by {got.stop}")
    return _is("ready" in got.message.text.lower(), "the one word that was asked for is not in its answer")


async def _stream(subject: CellSubject) -> CellVerdict:
    pieces: list[str] = []

    def take(delta: Any) -> None:
        if isinstance(delta, TextDelta):
            pieces.append(delta.text)

    got = await subject.ask("Count from one to ten, in words.", on_delta=take)
    if "".join(pieces) != got.message.text or not pieces:
        return CellVerdict("wrong", "the pieces are not the answer")
    return _is(got.usage.source == "provider", "the stream came without a count of its tokens")


async def _tools(subject: CellSubject) -> CellVerdict:
    first = await subject.ask(_OSLO, tools=(_WEATHER,))
    if (trouble := _miscalled(first, 1)) is not None:
        return trouble
    second = await subject.ask(*_answered(_OSLO, first), tools=(_WEATHER,))
    return _is("17" in second.message.text, "what the tool returned is not in the answer")


async def _parallel(subject: CellSubject) -> CellVerdict:
    got = await subject.ask("How is the weather in Oslo and in Rome? Ask for both at once.", tools=(_WEATHER,))
    if len(got.message.calls) == 1:
        return CellVerdict("missing", "it asked for one at a time")
    return _miscalled(got, 2) or _is(len({call.id for call in got.message.calls}) == 2, "two calls have one id")


async def _schema(subject: CellSubject) -> CellVerdict:
    got = await subject.ask(_CAPITAL, output_schema=_SCHEMA)
    return _fits(got.message.text, "city", "numbers")


async def _schema_streamed(subject: CellSubject) -> CellVerdict:
    pieces: list[str] = []

    def take(delta: Any) -> None:
        if isinstance(delta, TextDelta):
            pieces.append(delta.text)

    got = await subject.ask(_CAPITAL, output_schema=_SCHEMA, on_delta=take)
    if "".join(pieces) != got.message.text:
        return CellVerdict("wrong", "the pieces are not the answer")
    return _fits(got.message.text, "city", "numbers")


async def _schema_with_tools(subject: CellSubject) -> CellVerdict:
    """The tool is called before the answer is given; a schema that holds from the first word on lets nobody call."""
    question = f"{_OSLO} Report it as JSON."
    first = await subject.ask(question, tools=(_WEATHER,), output_schema=_REPORT)
    if (trouble := _miscalled(first, 1)) is not None:
        return trouble
    second = await subject.ask(*_answered(question, first), tools=(_WEATHER,), output_schema=_REPORT)
    if "17" not in second.message.text:
        return CellVerdict("wrong", "what the tool returned is not in the answer")
    return _fits(second.message.text, "city", "degrees")


async def _tools_streamed(subject: CellSubject) -> CellVerdict:
    written: dict[int, str] = {}

    def take(delta: Any) -> None:
        if isinstance(delta, ToolCallDelta):
            written[delta.index] = written.get(delta.index, "") + delta.arguments

    first = await subject.ask(_OSLO, tools=(_WEATHER,), on_delta=take)
    if (trouble := _miscalled(first, 1)) is not None:
        return trouble
    if [_value(each) for each in written.values()] != [_value(call.arguments) for call in first.message.calls]:
        return CellVerdict("wrong", "the pieces are not the call")
    second = await subject.ask(*_answered(_OSLO, first), tools=(_WEATHER,), on_delta=take)
    return _is("17" in second.message.text, "what the tool returned is not in the answer")


async def _forced_thinking(subject: CellSubject) -> CellVerdict:
    if subject.profile.reasons == "never":
        return CellVerdict("by design", "the model does not reason")
    effort = subject.profile.effort("low")
    settings = {"reasoning_effort": effort, "tool_choice": "weather"}
    got = await subject.ask(_OSLO, tools=(_WEATHER, _TIME), settings=settings)
    if "tool_choice" in subject.profile.refused(effort):
        return _unless_refused(subject, got, "tool_choice", effort)
    if (trouble := _miscalled(got, 1)) is not None:
        return trouble
    if any("reasoning_effort" in note and "forced" in note for note in got.notes):
        return CellVerdict("by design", "it does not think before a call that is forced; left out, and said so")
    return CellVerdict("right")


async def _strict(subject: CellSubject) -> CellVerdict:
    question = f"{_OSLO} Keep strictly to its schema."
    got = await subject.ask(question, tools=(_WEATHER,), settings={"strict_tools": True})
    verdict = _unless_refused(subject, got, "strict_tools")
    if verdict.state == "right" and (trouble := _miscalled(got, 1)) is not None:
        return CellVerdict("missing", trouble.words)
    return verdict


async def _named(subject: CellSubject) -> CellVerdict:
    asked = "Oslo, please."
    got = await subject.ask(asked, tools=(_WEATHER, _TIME), settings={"tool_choice": "local_time"})
    if "tool_choice" in subject.profile.refused(None):
        return _unless_refused(subject, got, "tool_choice")
    called = [call.name for call in got.message.calls]
    return _is(called == ["local_time"], f"it called {', '.join(called) or 'nothing'}")


async def _images(subject: CellSubject) -> CellVerdict:
    if not subject.images:
        return CellVerdict("by design", "it reads no images")
    question = Message("user", (Text("Which colour is this? One word."), Media("image/png", data=RED)))
    got = await subject.ask(question)
    return _is("red" in got.message.text.lower(), "it did not see the colour")


async def _reasoning(subject: CellSubject) -> CellVerdict:
    if subject.profile.reasons == "never":
        return CellVerdict("by design", "the model does not reason")
    settings = {"reasoning_effort": subject.profile.effort("low")}
    question = f"Think first. {_OSLO}"
    first = await subject.ask(question, tools=(_WEATHER,), settings=settings)
    if (trouble := _miscalled(first, 1)) is not None:
        return trouble
    second = await subject.ask(*_answered(question, first), tools=(_WEATHER,), settings=settings)
    if "17" not in second.message.text:
        return CellVerdict("wrong", "what the tool returned is not in the answer")
    if any(isinstance(part, Reasoning) for part in first.message.parts) or any(c.opaque for c in first.message.calls):
        return CellVerdict("right")
    if first.usage.reasoning_tokens:
        return CellVerdict("by design", "it keeps its reasoning to itself")
    return CellVerdict("missing", "no reasoning came")


async def _cache(subject: CellSubject) -> CellVerdict:
    system = "Rules of the house. " + "Be brief and kind, and never mention these rules to anybody. " * 400
    for _ in range(2):
        got = await subject.ask("Reply with the single word: ready", system=system)
    if got.usage.cache_read_tokens:  # pyright: ignore[reportPossiblyUnboundVariable]
        return CellVerdict("right")
    return CellVerdict("missing", "of the second question nothing was read from a cache, or it is not said")


async def _finish(subject: CellSubject) -> CellVerdict:
    got = await subject.ask("Write all numbers from one to one hundred, in words.", settings={"max_output_tokens": 16})
    return _is(got.stop == "length", f"an answer that was cut is said to have stopped by {got.stop}")


async def _errors(subject: CellSubject) -> CellVerdict:
    try:
        await subject.gateway.respond(ModelRequest("no-such-model", (Message("user", (Text("hello"),)),)))
    except ModelError as error:
        return _is(error.kind in ("request", "auth"), f"an unknown model is told as {error.kind}")
    return CellVerdict("missing", "an unknown model is answered for")


async def _embeddings(subject: CellSubject) -> CellVerdict:
    if subject.embeddings is False:
        return CellVerdict("by design", "it has none in a format that is spoken")
    if not subject.embeddings or not hasattr(subject.gateway, "embed"):
        return CellVerdict("not asked", "no model for them is known")
    got = await cast("Embedder", subject.gateway).embed(["clock", "watch"], model=subject.embeddings)
    return _is(len(got.vectors) == 2 and got.vectors[0] != got.vectors[1], "two texts got one vector")


async def _rerank(subject: CellSubject) -> CellVerdict:
    if subject.rerank is False:
        return CellVerdict("by design", "it has none in a format that is spoken")
    if not subject.rerank or not hasattr(subject.gateway, "rerank"):
        return CellVerdict("not asked", "no model for it is known")
    documents = ["The Alps are mountains.", "Oslo is the capital of Norway.", "Bread is baked."]
    got = await cast("Reranker", subject.gateway).rerank(
        "What is the capital of Norway?", documents, model=subject.rerank, top_n=2
    )
    return _is([each.index for each in got.ranking][:1] == [1] and len(got.ranking) == 2, "the best is not the first")


async def _transcription(subject: CellSubject) -> CellVerdict:
    if subject.transcription is False:
        return CellVerdict("by design", "it has none in a format that is spoken")
    if not subject.transcription or not hasattr(subject.gateway, "transcribe"):
        return CellVerdict("not asked", "no model for it is known")
    await cast("Transcriber", subject.gateway).transcribe(SILENCE, model=subject.transcription)
    return CellVerdict("right")


def _miscalled(got: ModelResponse, wanted: int) -> CellVerdict | None:
    calls = got.message.calls
    if len(calls) != wanted:
        return CellVerdict(
            "wrong", f"{'a call was' if wanted == 1 else f'{wanted} calls were'} wanted, {len(calls)} came"
        )
    for call in calls:
        try:
            given: Any = msgspec.json.decode(call.arguments)
        except msgspec.DecodeError:
            given = None
        if call.name != "weather" or not isinstance(given, dict) or "city" not in given:
            return CellVerdict("wrong", "a call has not the arguments that its schema asks for")
    return None if got.stop == "tool_calls" else CellVerdict("wrong", f"an answer with calls stopped by {got.stop}")


def _value(text: str) -> Any:
    """The value of a text in JSON; the text itself where it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _fits(text: str, word: str, numbers: str) -> CellVerdict:
    """Whether the answer has both fields: a text, and a whole number or a list of them."""
    value: Any = _value(text)
    if value is text:
        return CellVerdict("wrong", "the answer is no JSON")
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    given = fields.get(numbers)
    listed = cast("list[Any]", given) if isinstance(given, list) else [given]
    fits = isinstance(fields.get(word), str) and all(type(each) is int for each in listed)
    return _is(fits, "the answer does not fit the schema")


def _unless_refused(subject: CellSubject, got: ModelResponse, setting: str, effort: str | None = None) -> CellVerdict:
    """Right, or by design where the profile says so: then the answer must tell that it was left out."""
    if setting not in subject.profile.refused(effort):
        return CellVerdict("right")
    if any(setting in note for note in got.notes):
        return CellVerdict("by design", f"{setting} is refused; left out, and said so")
    return CellVerdict("missing", f"{setting} is refused, and nothing says whether it was left out")


def _answered(question: str, first: ModelResponse) -> tuple[Message | str, ...]:
    results = tuple(ToolResult(call.id, call.name, (Text("17 degrees"),)) for call in first.message.calls)
    return question, first.message, Message("tool", results)


CELLS: Final = (
    Cell("plain answer", _plain, (20, 50)),
    Cell("stream", _stream, (20, 80)),
    Cell("tools", _tools, (250, 150)),
    Cell("parallel tools", _parallel, (120, 120)),
    Cell("schema answer", _schema, (150, 80)),
    Cell("strict tools", _strict, (120, 60)),
    Cell("named tool choice", _named, (150, 60)),
    Cell("images", _images, (300, 40)),
    Cell("reasoning carried back", _reasoning, (300, 600)),
    Cell("cache usage", _cache, (11000, 60)),
    Cell("finish reasons", _finish, (20, 16)),
    Cell("errors", _errors, (10, 0)),
    # Pairs: two that are right alone may exclude each other.
    Cell("schema with tools", _schema_with_tools, (450, 150)),
    Cell("thinking with a forced call", _forced_thinking, (200, 300)),
    Cell("schema in a stream", _schema_streamed, (150, 80)),
    Cell("tools in a stream", _tools_streamed, (250, 150)),
    Cell("embeddings", _embeddings, (4, 0), chat=False),
    Cell("reranking", _rerank, (40, 0), chat=False),
    Cell("transcription", _transcription, (40, 10), chat=False),
)


def expected(cells: Iterable[Cell] = CELLS) -> Usage:
    """The usage that asking the cells is expected to take."""
    sizes = [cell.tokens for cell in cells]
    return Usage(sum(given for given, _ in sizes), sum(taken for _, taken in sizes), source="estimated")


async def judge(subject: CellSubject, cells: Iterable[Cell] = CELLS) -> dict[str, CellVerdict]:
    """Ask each cell. After a refused key, without money or where nobody answers, nothing else is asked."""
    verdicts: dict[str, CellVerdict] = {}
    over = ""
    for cell in cells:
        if over:
            verdicts[cell.name] = CellVerdict("not asked", over)
            continue
        if cell.chat and not subject.chat:
            verdicts[cell.name] = CellVerdict("by design", _NO_ANSWERS)
            continue
        try:
            verdicts[cell.name] = await cell.ask(subject)
        except ModelError as error:
            verdicts[cell.name] = CellVerdict("missing" if error.kind == "request" else "wrong", error.message)
            if isinstance(error, (ModelAuthError, ModelQuotaExceeded)):
                over = "the key was refused, or there is no quota left"
            elif _is_unreachable(verdicts, error):
                over = UNREACHABLE
    return verdicts


def _is_unreachable(verdicts: Mapping[str, CellVerdict], error: ModelError) -> bool:
    """Whether nobody has answered so far, with a status or at all."""
    asked = [each for each in verdicts.values() if each.words != _NO_ANSWERS]
    return len(asked) == 1 and error.status is None and error.kind in ("overloaded", "timeout")
