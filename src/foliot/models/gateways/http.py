"""A gateway over HTTP: one format, one endpoint. What all native gateways have in common, which is nearly everything.

The classes beside this file choose a format, an address and an authorisation header; the call itself is here.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from typing import Any, ClassVar, Final, cast
from urllib.parse import urlsplit

import msgspec

from foliot.common.threads import unhurried
from foliot.errors import InvalidInput
from foliot.kernel.json_texts import MOST_VALUES, has_more_values
from foliot.kernel.messages import (
    Delta,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
)
from foliot.kernel.run.budget import Spent
from foliot.kernel.tokens import estimate_parts, estimate_request, estimate_text
from foliot.models.base import (
    Embeddings,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRequestError,
    ModelRequestTooLarge,
    ModelTimeout,
    OnDelta,
    Reranked,
    Transcript,
    lacking,
)
from foliot.models.config import GatewayConfig
from foliot.models.credentials import read_credentials
from foliot.models.gateways.connection import HttpEndpoint
from foliot.models.profiles import provider_facts
from foliot.models.provider_errors import read_payload, refusal, shorten
from foliot.models.routing.usage import mark_cut
from foliot.models.wire import rankings, transcription
from foliot.models.wire.base import Assembler, ProviderFault, Unsendable, Wire, WireError
from foliot.models.wire.embeddings import EmbeddingFormat
from foliot.models.wire.lines import JsonLines, SseLines
from foliot.models.wire.media import readable
from foliot.models.wire.opaque import account_of, at_home, lost_between, stamped
from foliot.models.wire.requests import merged
from foliot.models.wire.text_calls import with_text_calls
from foliot.models.wire.tool_names import ToolNames
from foliot.models.wire.values import CallIds

COMMON_OPTIONS: Final = frozenset({"profile", "extra", "account"})
_log: Final = logging.getLogger(__name__)
_MOST_NOTED: Final = 256
_ENCODER = msgspec.json.Encoder()
# Everything that reading an answer may raise; JSON nested a thousand deep ends in a RecursionError.
_UNREADABLE = (ProviderFault, WireError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# The names of the limit on an answer in all formats, those that hold over those that were replaced.
_OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "num_predict")


class HttpGateway:
    """Implements `Gateway` for a `Wire`."""

    OPTIONS: ClassVar[frozenset[str]] = COMMON_OPTIONS
    """The endpoint's options that it reads: any other is a mistake."""
    FAMILY: ClassVar[str] = ""
    """The provider whose models these are where the endpoint's own says nothing of them."""
    EMBEDDINGS: ClassVar[EmbeddingFormat | None] = None
    """The format of embeddings at this address; None where there are none."""
    FORMS: ClassVar[bool] = False
    """Whether documents are ranked and recordings written down here as Cohere and OpenAI have it."""
    lines: type[SseLines] | type[JsonLines] = SseLines

    def __init__(self, config: GatewayConfig, wire: Wire, *, base_url: str, auth: dict[str, str]) -> None:
        self.config = config
        self._wire = wire
        self._base = base_url
        self._facts = provider_facts(config.provider)
        self.profile = config.profiles(self.FAMILY)
        self._extra = _extra(config)
        self._noted: set[str] = set()
        self._sendable: dict[tuple[str, bool], bool] = {}
        kind, service = str(self._facts.get("credentials", "")), str(self._facts.get("signed_for", ""))
        credentials = read_credentials(kind, service, config.api_key, base_url)
        # A name that the endpoint gives survives a new key; what was stamped with the key before still counts. Keys of
        # a session change while their account stays: there the address has to do.
        names = [config.text(name) for name in ("account", "organization", "project") if name in self.OPTIONS]
        named, key = next(filter(None, names), ""), config.api_key if credentials is None else ""
        self._account = account_of(base_url, named or key)
        self._accounts = {self._account, account_of(base_url, key)}
        if credentials is not None:  # the document itself goes nowhere
            auth = {name: value for name, value in auth.items() if config.api_key not in value}
        self._endpoint = HttpEndpoint(config, base_url, auth, credentials)
        # Only where models without proper calls are served: elsewhere the option is a mistake.
        taken = "tool_calls" in self.OPTIONS
        self._reads_text_calls = taken and config.choice("tool_calls", ("native", "text"), "native") == "text"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.config.provider} {self.config.model}>"

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Sends the request and returns the answer; see `Gateway.respond`."""
        if self._facts.get("chat") is False:
            raise ModelRequestError(
                f"model provider {self.config.provider!r} sells embeddings and rankings, but no answers",
                provider=self.config.provider,
                hint="name an endpoint of another provider for agents",
            )
        request = self._to_send(request)
        notes: list[str] = []
        messages = at_home(request.messages, self._accounts)
        if messages is not request.messages:
            if lost_between(request.messages, messages):
                notes.append("reasoning of earlier steps is not sent: another account or provider had encrypted it")
            request = msgspec.structs.replace(request, messages=messages)
        if any(isinstance(part, Media | ToolResult) for message in request.messages for part in message.parts):
            messages, unread = readable(request.messages, partial(self._reads, request.model))
            if unread:
                notes.append(f"files are named and not sent: {request.model} does not read {', '.join(unread)}")
                request = msgspec.structs.replace(request, messages=messages)
        response = await self._ask(request, notes, on_delta)
        message = stamped(response.message, self._account)
        if notes or message is not response.message:
            response = msgspec.structs.replace(response, message=message, notes=(*notes, *response.notes))
        return response

    def _reads(self, model: str, media: Media) -> bool:
        """Whether the model and its format take such a file. What a format takes is tried, with a tiny one."""
        if not self.profile(model).reads(media.media_type):
            return False
        if media.data is None and media.url is None:
            return True  # nobody has brought its content, and the format says so
        known = media.media_type, media.data is None
        if known not in self._sendable:
            tiny = msgspec.structs.replace(media, data=None if media.data is None else "AAAA")
            request = ModelRequest(model, (Message("user", (tiny,)),))
            try:
                self._wire.build_body(request, self._wire.names(request), stream=False)
                self._sendable[known] = True
            except Unsendable:
                self._sendable[known] = False
        return self._sendable[known]

    def _note(self, notes: list[str]) -> None:
        """Say once in the log what of a request is not sent as it was asked; each answer's record says it too."""
        for note in notes:
            if note not in self._noted and len(self._noted) < _MOST_NOTED:
                self._noted.add(note)
                _log.warning("model provider %s: %s", self.config.provider, note)

    async def _ask(self, request: ModelRequest, notes: list[str], on_delta: OnDelta | None) -> ModelResponse:
        stream = on_delta is not None
        names = self._wire.names(request)
        path, body = await unhurried(_files_in(request.messages), self._encode, request, names, stream, notes)
        if notes:
            self._note(notes)
        ids = CallIds(request, lambda: body)
        whole: bytes | None = None
        assembler: Assembler | None = None
        try:
            if on_delta is None:
                whole = await self._endpoint.fetch(path, body)
                return self._completed(await unhurried(len(whole), self._parsed, whole, names, ids), request, ids)
            assembler = self._wire.assembler(names, ids)
            try:
                whole = await self._pump(path, body, assembler, on_delta)
            except (ModelOverloaded, ModelTimeout) as lost:
                return self._completed(_finished_before(lost, assembler), request, ids)
            if whole is None:
                return self._completed(assembler.finish(), request, ids)
            response = self._completed(await unhurried(len(whole), self._parsed, whole, names, ids), request, ids)
        except _UNREADABLE as error:
            failed = self._explain(error)
            failed.usage = self._used(request, whole, assembler)
            raise failed from error
        except ModelError as error:
            error.usage = self._used(request, whole, assembler)
            if not error.usage.total_tokens and isinstance(error, ModelTimeout) and error.was_sent:
                error.usage = Usage(estimate_request(request), source="estimated")  # it was read, whatever became of it
            raise
        except CancelledError as cut:
            used = self._used(request, whole, assembler)
            if assembler is None and whole is None:
                used = Usage(estimate_request(request), source="estimated")  # nothing tells how far it was
            mark_cut(cut, used)
            raise
        for delta in deltas_of(response):
            on_delta(delta)
        return response

    def _used(self, request: ModelRequest, whole: bytes | None, assembler: Assembler | None) -> Usage:
        """Count the usage of an attempt without an answer: as the provider counted it, and by what it had written."""
        if whole is not None:
            try:
                return self._wire.counted(whole)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return Usage()
        if assembler is None:
            return Usage()
        counted, written = assembler.heard()
        if not written and not counted.total_tokens:
            return counted  # it had not begun
        # The count of a stream comes at its end; what was written until it broke off is billed all the same.
        given = counted.input_tokens or estimate_request(request)
        output = max(counted.output_tokens, estimate_text(written))
        if (given, output) == (counted.input_tokens, counted.output_tokens):
            return counted
        return msgspec.structs.replace(counted, input_tokens=given, output_tokens=output, source="estimated")

    def most_output(self, request: ModelRequest) -> int | None:
        """The most tokens that the answer may have, thoughts included, as the request bounds it; None when it does not.

        It is read off what would be sent: each format has its own rule for how thinking and the answer add up.
        """
        request = self._to_send(request)
        try:
            body = self._wire.build_body(request, self._wire.names(request), stream=False)
        except Exception:
            return None  # it will be refused when it is sent
        for place in (body, body.get("generationConfig"), body.get("options")):
            for name in _OUTPUT_LIMITS:
                if isinstance(place, dict) and isinstance(limit := cast("dict[str, Any]", place).get(name), int):
                    return max(0, limit)
        return None

    async def embed(self, texts: Sequence[str], *, model: str = "", dimensions: int | None = None) -> Embeddings:
        """Embeds texts, in as many requests as the provider's limit needs; see `Embedder.embed`."""
        wire, model = self.EMBEDDINGS, model or self.config.model
        if wire is None or self._facts.get("embeddings") is False:
            raise lacking(self.config.provider, "embed")
        if not model:
            raise self._unnamed()
        vectors: list[tuple[float, ...]] = []
        spent = Spent()
        answered = model
        with self._accounted(spent):
            for start in range(0, len(texts), wire.at_once):
                part = texts[start : start + wire.at_once]
                body = _ENCODER.encode(wire.body(model, part, dimensions))
                found = wire.parse(await self._endpoint.fetch(self._embedding_path(model), body), len(part))
                vectors += found.vectors
                answered = found.model or answered
                spent.add(found.usage if found.usage.input_tokens else _estimated(part))
        return Embeddings(tuple(vectors), spent.usage(), answered, self.config.provider)

    async def rerank(
        self, query: str, documents: Sequence[str], *, model: str = "", top_n: int | None = None
    ) -> Reranked:
        """Ranks documents by a query; see `Reranker.rerank`."""
        model = model or self.config.model
        if not self.FORMS or not self._facts.get("rerank"):
            raise lacking(self.config.provider, "rerank")
        if not model:
            raise self._unnamed()
        if len(documents) > rankings.MOST:
            raise ModelRequestTooLarge(
                f"{len(documents):,} documents are more than the {rankings.MOST:,} that are ranked at once",
                provider=self.config.provider,
                hint="choose the nearest ones by embeddings first",
            )
        if top_n is not None and top_n < 1:
            raise ModelRequestError("top_n must be 1 or more", provider=self.config.provider)
        if not documents:
            return Reranked((), Usage(), model, self.config.provider)
        top_name = str(self._facts.get("rerank_top", "top_n"))
        body = _ENCODER.encode(rankings.body(model, query, documents, top_n, top_name=top_name))
        spent = Spent()
        with self._accounted(spent):
            found = rankings.parse(await self._endpoint.fetch(self._ranking_path(), body), len(documents), top_n)
        # Each document is read together with the query.
        usage = found.usage if found.usage.input_tokens else _estimated([*documents, *[query] * len(documents)])
        usage = msgspec.structs.replace(usage, cost_usd=found.usage.cost_usd)
        return Reranked(found.ranking, usage, found.model or model, self.config.provider, found.searches)

    async def transcribe(
        self, audio: bytes, *, media_type: str = "", model: str = "", language: str = "", prompt: str = ""
    ) -> Transcript:
        """Transcribes audio with the provider's transcription API; see `Transcriber.transcribe`."""
        model = model or self.config.model
        if not self.FORMS or not self._facts.get("transcription"):
            raise lacking(self.config.provider, "transcribe")
        kind = self._checked_audio(audio, media_type, model)
        fields = {"model": model, "language": language, "prompt": prompt}
        fields["response_format"] = str(self._facts.get("transcription_format", ""))
        body, content_type = transcription.form(fields, audio, kind, token_hex(16))
        with self._accounted(Spent()):
            raw = await self._endpoint.fetch(self._transcription_path(model), body, content_type=content_type)
            found = transcription.parse(raw)
        usage = found.usage
        if not usage.total_tokens:
            # Those who bill by the second count no tokens: what was said stands for them in a budget.
            usage = msgspec.structs.replace(usage, output_tokens=estimate_text(found.text), source="estimated")
        return Transcript(
            found.text, usage, model, self.config.provider, found.seconds, found.audio_tokens, found.language
        )

    def _checked_audio(self, audio: bytes, media_type: str, model: str) -> str:
        """The kind of a recording that can be sent. Raises a `ModelRequestError`."""
        provider = self.config.provider
        if not model:
            raise self._unnamed()
        largest = int(self._facts.get("largest_audio", transcription.LARGEST))
        if len(audio) > largest:
            raise ModelRequestTooLarge(
                f"a recording of {len(audio):,} bytes is more than model provider {provider!r} takes ({largest:,})",
                provider=provider,
                hint="cut it, or compress it (mp3, ogg)",
            )
        try:
            return transcription.media_type_of(audio, media_type)
        except Unsendable as error:
            raise ModelRequestError(str(error), provider=provider) from error

    @contextmanager
    def _accounted(self, spent: Spent) -> Generator[None]:
        """Raise what goes wrong inside as a `ModelError`, with what was used by then."""
        try:
            yield
        except _UNREADABLE as error:
            failed = self._explain(error)
            failed.usage = spent.usage()
            raise failed from error
        except ModelError as error:
            error.usage = spent.usage()
            raise
        except CancelledError as cut:
            mark_cut(cut, spent.usage())
            raise

    def _embedding_path(self, model: str) -> str:
        assert self.EMBEDDINGS is not None
        return self.EMBEDDINGS.path(model)

    def _ranking_path(self) -> str:
        """Some have it beside their OpenAI-compatible address, not below it."""
        path = str(self._facts.get("rerank_path", ""))
        if not path:
            return rankings.PATH
        return self._base.removesuffix(urlsplit(str(self._facts.get("address", ""))).path) + path

    def _transcription_path(self, model: str) -> str:
        return transcription.PATH

    async def close(self) -> None:
        await self._endpoint.close()

    async def _pump(self, path: str, body: bytes, assembler: Assembler, on_delta: OnDelta) -> bytes | None:
        lines = self.lines()
        split, feed = lines.feed, assembler.feed

        def take(chunk: bytes) -> bool | None:
            brought: bool | None = None
            for event in split(chunk):
                for delta in feed(event):
                    brought = False
                    on_delta(delta)
                if assembler.done:  # whatever follows is none of the answer's
                    return True
            return brought

        whole = await self._endpoint.stream(
            path, body, take, is_ending=lambda: assembler.ending, whole_json=self.lines is SseLines
        )
        for event in () if assembler.done else lines.flush():
            for delta in feed(event):
                on_delta(delta)
        return whole

    def _with_model(self, request: ModelRequest) -> ModelRequest:
        if request.model:
            return request
        if not self.config.model:
            raise self._unnamed()
        return msgspec.structs.replace(request, model=self.config.model)

    def _to_send(self, request: ModelRequest) -> ModelRequest:
        """The request with the endpoint's model, if it names none, and with the fields that the endpoint adds."""
        request = self._with_model(request)
        if not self._extra:
            return request
        extra = merged(self._extra, request.settings.extra)
        return msgspec.structs.replace(request, settings=msgspec.structs.replace(request.settings, extra=extra))

    def _unnamed(self) -> ModelRequestError:
        return ModelRequestError(
            f"no model was named for provider {self.config.provider!r}",
            provider=self.config.provider,
            hint="name one in the request, or set the endpoint's default model",
        )

    def _encode(self, request: ModelRequest, names: ToolNames, stream: bool, notes: list[str]) -> tuple[str, bytes]:
        """Encodes the request; returns the path to post to, and the body."""
        try:
            body = _ENCODER.encode(self._wire.build_body(request, names, stream=stream, notes=notes))
            return self._wire.path(request.model, stream=stream), body
        except Exception as error:  # schemas of tools come from anywhere, and may be no schemas at all
            what = str(error) if isinstance(error, Unsendable) else f"{type(error).__name__}: {error}"
            raise ModelRequestError(
                f"the request cannot be sent to model provider {self.config.provider!r}: {shorten(what)}",
                provider=self.config.provider,
                hint=None if isinstance(error, Unsendable) else "check the schemas of its tools and of its answer",
            ) from error

    def _parsed(self, whole: bytes, names: ToolNames, ids: CallIds) -> ModelResponse:
        if has_more_values(whole):
            raise WireError(f"its answer has more than {MOST_VALUES:,} values")
        return self._wire.parse(whole, names, ids)

    def _completed(self, response: ModelResponse, request: ModelRequest, ids: CallIds) -> ModelResponse:
        if self._reads_text_calls and request.tools:
            response = with_text_calls(response, request.tools, ids)
        usage = response.usage
        said = response.message.parts
        if not usage.input_tokens or (said and not usage.output_tokens):
            # Not counted is not nothing: a budget must not think that this provider is free.
            usage = msgspec.structs.replace(
                usage,
                input_tokens=usage.input_tokens or estimate_request(request),
                output_tokens=usage.output_tokens or estimate_parts(said),
                source="estimated",
            )
        return msgspec.structs.replace(response, provider=self.config.provider, usage=usage)

    def _explain(self, error: Exception) -> ModelError:
        provider = self.config.provider
        if isinstance(error, ProviderFault):
            return refusal(read_payload(error.payload), provider=provider, key=self._endpoint.hidden)
        what = str(error) if isinstance(error, WireError) else f"its answer is not in the format expected: {error}"
        if isinstance(error, RecursionError):
            what = "its answer is nested too deeply to be read"
        return ModelGarbage(f"model provider {provider!r}: {shorten(what, self._endpoint.hidden)}", provider=provider)


def _files_in(messages: Sequence[Message]) -> int:
    """How many characters the files in these messages have. Nothing else is so large that it is written slowly."""
    size = 0
    for message in messages:
        for part in message.parts:
            for each in part.content if isinstance(part, ToolResult) else (part,):
                if isinstance(each, Media) and each.data is not None:
                    size += len(each.data)
    return size


def _estimated(texts: Sequence[str]) -> Usage:
    return Usage(sum(estimate_text(text) for text in texts), source="estimated")


def _extra(config: GatewayConfig) -> Mapping[str, Any]:
    extra = config.mapping("extra")
    if "model" in extra:  # whoever decides which models may be asked goes by the endpoint's default
        raise InvalidInput(
            f"option 'extra' of model provider {config.provider!r} cannot name the model",
            hint="set the endpoint's default_model, or model_name of the agent",
        )
    return extra


def _finished_before(lost: ModelError, assembler: Assembler) -> ModelResponse:
    """The answer, if all of it had come before the connection was lost: nobody pays twice for a missing good-bye."""
    try:
        return assembler.finish()
    except WireError:
        raise lost  # noqa: B904  # what was lost is the reason, with a cause of its own


def deltas_of(response: ModelResponse) -> list[Delta]:
    """A whole answer as deltas, for a reader that waits for a stream when the provider did not stream."""
    deltas: list[Delta] = []
    index = 0
    for part in response.message.parts:
        if isinstance(part, Text) and part.text:
            deltas.append(TextDelta(part.text))
        elif isinstance(part, Reasoning) and part.text:
            deltas.append(ReasoningDelta(part.text))
        elif isinstance(part, ToolCall):
            deltas.append(ToolCallDelta(index, part.id, part.name, part.arguments))
            index += 1
    return deltas
