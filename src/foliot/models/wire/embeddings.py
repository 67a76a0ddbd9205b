"""Texts to vectors, in the three formats there are: OpenAI's, which most others speak too, Gemini's and Ollama's.

Each is a pair of functions over plain data; models/gateways/http.py moves the bytes. Raises `WireError` for an answer
that does not hold one vector of numbers for each text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from foliot.kernel.messages import Usage
from foliot.models.wire.base import ProviderFault, WireError

Vectors: TypeAlias = tuple[tuple[float, ...], ...]


class FoundEmbeddings(NamedTuple):
    """The content of one answer. `usage` is empty where the provider does not count."""

    vectors: Vectors
    usage: Usage
    model: str


class EmbeddingFormat(NamedTuple):
    """`at_once` is how many texts go into one request; `body` takes the model, the texts and the dimensions."""

    path: Callable[[str], str]
    body: Callable[[str, Sequence[str], int | None], dict[str, Any]]
    parse: Callable[[bytes, int], FoundEmbeddings]
    at_once: int = 96


class _Row(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Counted(msgspec.Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0
    cost: float | None = None


class _OpenAI(msgspec.Struct):
    data: list[_Row] | None = None
    usage: _Counted | None = None
    model: str | None = None
    error: Any = None


class _Values(msgspec.Struct):
    values: tuple[float, ...] = ()


class _Gemini(msgspec.Struct):
    embeddings: list[_Values] | None = None
    error: Any = None


class _Ollama(msgspec.Struct):
    embeddings: list[list[float]] | None = None
    prompt_eval_count: int = 0
    model: str = ""
    error: Any = None


def _openai_body(model: str, texts: Sequence[str], dimensions: int | None) -> dict[str, Any]:
    return {"model": model, "input": list(texts)} | ({} if dimensions is None else {"dimensions": dimensions})


def _openai_parse(body: bytes, count: int) -> FoundEmbeddings:
    answer = msgspec.json.decode(body, type=_OpenAI)
    if answer.data is None:
        raise _fault(body, answer.error)
    # They may come in any order; a server that numbers none of them, or all of them 0, means the order they have.
    rows = answer.data
    if {row.index for row in rows} == set(range(len(rows))):
        rows = sorted(rows, key=lambda row: row.index or 0)
    counted = answer.usage or _Counted()
    usage = Usage(counted.prompt_tokens or counted.total_tokens, cost_usd=counted.cost)
    return FoundEmbeddings(_checked([row.embedding for row in rows], count), usage, answer.model or "")


def _gemini_path(model: str) -> str:
    return f"/models/{quote(model.removeprefix('models/'), safe='')}:batchEmbedContents"


def _gemini_body(model: str, texts: Sequence[str], dimensions: int | None) -> dict[str, Any]:
    shared: dict[str, Any] = {"model": f"models/{model.removeprefix('models/')}"}
    if dimensions is not None:
        shared["outputDimensionality"] = dimensions
    return {"requests": [{**shared, "content": {"parts": [{"text": text}]}} for text in texts]}


def _gemini_parse(body: bytes, count: int) -> FoundEmbeddings:
    answer = msgspec.json.decode(body, type=_Gemini)
    if answer.embeddings is None:
        raise _fault(body, answer.error)
    return FoundEmbeddings(_checked([each.values for each in answer.embeddings], count), Usage(), "")


def _ollama_parse(body: bytes, count: int) -> FoundEmbeddings:
    answer = msgspec.json.decode(body, type=_Ollama)
    if answer.embeddings is None:
        raise _fault(body, answer.error)
    return FoundEmbeddings(_checked(answer.embeddings, count), Usage(answer.prompt_eval_count), answer.model)


def _fault(body: bytes, error: Any) -> Exception:
    if error is None:
        return WireError("its answer holds no embeddings")
    return ProviderFault(msgspec.json.decode(body))


def _checked(vectors: Sequence[Sequence[float]], count: int) -> Vectors:
    if len(vectors) != count:
        raise WireError(f"it gave {len(vectors)} vectors for {count} texts")
    sizes = {len(vector) for vector in vectors}
    if len(sizes) > 1 or 0 in sizes:
        raise WireError("its vectors are empty, or not of one length")
    return tuple(tuple(vector) for vector in vectors)


def _at(path: str) -> Callable[[str], str]:
    def found(model: str) -> str:
        return path

    return found


OPENAI: Final = EmbeddingFormat(_at("/embeddings"), _openai_body, _openai_parse)
GEMINI: Final = EmbeddingFormat(_gemini_path, _gemini_body, _gemini_parse)
OLLAMA: Final = EmbeddingFormat(_at("/api/embed"), _openai_body, _ollama_parse)
