"""Rankings of documents by how well they answer a query, in Cohere's format, which others speak with accents.

    {model, query, documents, top_n}  ->  {results: [{index, relevance_score}], usage or meta}

Voyage calls the number `top_k` and the results `data`; Jina, Together, vLLM, LocalAI and OpenRouter keep to Cohere's
names. They count tokens, searches, or nothing. models/gateways/http.py moves the bytes. Raises `WireError` for an
answer that does not rank the documents it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec

from foliot.kernel.messages import Usage
from foliot.models.base import Ranked
from foliot.models.wire.base import ProviderFault, WireError

PATH: Final = "/rerank"
MOST: Final = 1000
"""How many documents are ranked at once: Voyage refuses more, and Cohere advises against it."""


class FoundRanking(NamedTuple):
    """The content of one answer. `usage` is empty where the provider does not count tokens."""

    ranking: tuple[Ranked, ...]
    usage: Usage
    searches: int
    model: str


class _Row(msgspec.Struct):
    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Counted(msgspec.Struct):
    total_tokens: int | None = None
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    search_units: float | None = None
    cost: float | None = None


class _Meta(msgspec.Struct):
    billed_units: _Counted | None = None
    tokens: _Counted | None = None


class _Answer(msgspec.Struct):
    results: list[_Row] | None = None
    data: list[_Row] | None = None
    usage: _Counted | None = None
    meta: _Meta | None = None
    model: str | None = None


def body(model: str, query: str, documents: Sequence[str], top: int | None, *, top_name: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": model, "query": query, "documents": list(documents)}
    return asked if top is None else {**asked, top_name: top}


def parse(raw: bytes, count: int, top: int | None) -> FoundRanking:
    """The ranking of `count` documents, best first; of more than `top` the rest is left out."""
    answer = msgspec.json.decode(raw, type=_Answer)
    rows = answer.results if answer.results is not None else answer.data
    if rows is None:
        payload: Any = msgspec.json.decode(raw)
        if isinstance(payload, dict) and ("error" in payload or "message" in payload):
            raise ProviderFault(payload)
        raise WireError("its answer holds no ranking")
    ranking = sorted((_ranked(row) for row in rows), key=lambda each: (-each.score, each.index))
    places = {each.index for each in ranking}
    wanted = count if top is None else min(top, count)
    if len(places) != len(ranking) or not places <= set(range(count)) or len(ranking) < wanted:
        raise WireError(f"it ranked {len(ranking)} documents where {wanted} of {count} were asked for, each once")
    usage, searches = _usage(answer)
    return FoundRanking(tuple(ranking[:wanted]), usage, searches, answer.model or "")


def _ranked(row: _Row) -> Ranked:
    score = row.relevance_score if row.relevance_score is not None else row.score
    if score is None or not isfinite(score):
        raise WireError("it ranked a document without a score")
    return Ranked(row.index, score)


def _usage(answer: _Answer) -> tuple[Usage, int]:
    """The count of tokens, and the searches that Cohere bills instead."""
    meta = answer.meta or _Meta()
    places = [each for each in (answer.usage, meta.tokens, meta.billed_units) if each is not None]
    tokens = next((n for each in places if (n := each.total_tokens or each.prompt_tokens or each.input_tokens)), 0)
    searches = next((n for each in places if (n := each.search_units)), 0)
    cost = None if answer.usage is None else answer.usage.cost
    return Usage(max(0, tokens), cost_usd=cost), int(searches)
