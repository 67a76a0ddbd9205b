"""The seam to models: one question, one finished answer, deltas on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

from foliot.errors import FoliotError
from foliot.kernel.messages import Delta, ModelRequest, ModelResponse, Usage
from foliot.models.profiles import providers_with

OnDelta: TypeAlias = Callable[[Delta], None]
StandInLine: TypeAlias = Callable[[], Awaitable[ModelResponse]]


class Gateway(Protocol):
    """Speaks to one endpoint. Safe to share between any number of concurrent runs."""

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Ask and wait for the finished answer; when `on_delta` is given, stream, and call it for each piece.

        Cancelling the task stops the request. Raises a `ModelError`, and no other exception. What the provider had
        counted by then is the error's `usage`; a cancellation carries it too (`spending.mark_cut`).
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, in their order. All are of one model: those of another cannot be compared with them."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage
    model: str = ""
    provider: str = ""


class Embedder(Protocol):
    """Turns texts into vectors. Native gateways are embedders too."""

    async def embed(self, texts: Sequence[str], *, model: str = "", dimensions: int | None = None) -> Embeddings:
        """Ask for the vectors of all texts, in as many requests as it takes.

        `model` is the endpoint's own when none is named; `dimensions` asks for shorter vectors, where a model can.
        Raises a `ModelError`, and no other exception.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document of a ranking: its place among those that were given, and how well it fits."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Reranked:
    """Documents by how well they answer a query, the best first. Scores of two models cannot be compared.

    `searches` is what Cohere bills instead of tokens.
    """

    ranking: tuple[Ranked, ...]
    usage: Usage
    model: str = ""
    provider: str = ""
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Transcript:
    """The words of a recording. `seconds` is its length, 0 where the provider does not say; so with `language`."""

    text: str
    usage: Usage
    model: str = ""
    provider: str = ""
    seconds: float = 0.0
    audio_tokens: int = 0
    language: str = ""


class Reranker(Protocol):
    """Ranks documents. Native gateways are rerankers too."""

    async def rerank(
        self, query: str, documents: Sequence[str], *, model: str = "", top_n: int | None = None
    ) -> Reranked:
        """Rank the documents by how well they answer the query; of all of them, or the best `top_n`.

        Raises a `ModelError`, and no other exception.
        """
        ...


class Transcriber(Protocol):
    """Writes down what is said. Native gateways are transcribers too."""

    async def transcribe(
        self, audio: bytes, *, media_type: str = "", model: str = "", language: str = "", prompt: str = ""
    ) -> Transcript:
        """Write down a recording. Without `media_type` its kind is known by its first bytes.

        `language` is what is spoken (`en`), `prompt` says names and words that occur. Raises a `ModelError`, and no
        other exception.
        """
        ...


class ModelError(FoliotError):
    """A model did not give an answer that can be used.

    `kind` is what a policy decides by; `retry_after` is in seconds, when the provider said so. `usage` is what the
    attempt used all the same. With `spent_out` nobody asks again for this answer: what was used leaves no room for it.
    """

    code: ClassVar[str] = "model_failed"
    http = 502
    kind: ClassVar[str] = "other"

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        hint: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable, provider=provider, status=status)
        self.provider = provider
        self.status = status
        self.retry_after = retry_after
        self.usage = Usage()
        self.spent_out = False


class ModelAuthError(ModelError):
    kind = "auth"


class ModelRequestError(ModelError):
    """The provider refused the request as it stands (unknown model, bad schema); asking again is useless."""

    kind = "request"


def lacking(provider: str, service: Literal["embed", "rerank", "transcribe"]) -> ModelRequestError:
    """The refusal of a provider that does not have this, with the names of some that have."""
    words, feature = {
        "embed": ("embeddings", "embeddings"),
        "rerank": ("reranking", "rerank"),
        "transcribe": ("transcription", "transcription"),
    }[service]
    return ModelRequestError(
        f"model provider {provider!r} has no {words}, or none in a format that Foliot speaks",
        provider=provider,
        hint=f"name an endpoint of another provider: {', '.join(providers_with(feature))}",
    )


class ModelContextOverflow(ModelRequestError):
    """The conversation is longer than the model can read: only a shorter one, or another model, would help."""

    kind = "context_overflow"


class ModelRequestTooLarge(ModelRequestError):
    """More than the provider takes in one request, in bytes or in tokens: only a smaller one would help."""

    kind = "request_too_large"


class ModelContentFiltered(ModelRequestError):
    """The provider's own rules forbid this content: the same would be refused again."""

    kind = "content_filter"


class ModelQuotaExceeded(ModelError):
    """The account has no money or no quota left: waiting does not bring it back, another account may."""

    kind = "quota"


class ModelTokensExceeded(ModelError):
    """The answer was cut where the tokens end that a limit or a Budget leaves for it: it is not whole."""

    kind = "tokens"


class ModelCostExceeded(ModelError):
    """The answer was cut where the money for it ends, or the question alone costs more than is left."""

    kind = "cost_usd"


class ModelRateLimited(ModelError):
    kind = "rate_limit"
    retryable = True


class ModelOverloaded(ModelError):
    """5xx, 529, connection lost: the provider's trouble."""

    kind = "overloaded"
    retryable = True


class ModelDelayed(ModelError):
    """The model was not asked: the endpoint's own limit has no room for `wait` seconds. Waiting is no failure.

    `stand_in_line` takes a place in the line; it answers after all when there is room by then, and raises this again
    when there is not. Whoever has others to ask asks them first. `after` is the failure of another, asked before.
    """

    kind = "limit"
    retryable = True

    def __init__(self, message: str, *, wait: float, endpoint: str, stand_in_line: StandInLine | None = None) -> None:
        super().__init__(message, retry_after=wait)
        self.wait = wait
        self.endpoint = endpoint
        self.stand_in_line = stand_in_line
        self.after: ModelError | None = None

    def in_line_for(self, told: Callable[[ModelResponse], ModelResponse]) -> None:
        """Let the answer that comes of standing in line pass through `told`, as one that came at once would."""
        if (again := self.stand_in_line) is None:
            return

        async def stand_in_line() -> ModelResponse:
            return told(await again())

        self.stand_in_line = stand_in_line


class ModelTimeout(ModelError):
    """The provider did not answer in time. `was_sent`: the question was, so the provider may have read it."""

    kind = "timeout"
    retryable = True
    was_sent = False


class ModelGarbage(ModelError):
    """The answer could not be understood: wrong content type, broken JSON, a stream cut short, far too large."""

    kind = "garbage"
    retryable = True
