"""Finding tools by what they are for, when an agent has more of them than a model should be shown at once.

The model is given `tool_search` and the tools that are always shown. What a search finds is shown from the next
question on; the transcript itself says what was found, so a resumed run shows the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from foliot.kernel.messages import ModelRequest, ToolResult
from foliot.tools.base import Invocation, OnOutput, ToolDefinition

NAME: Final = "tool_search"
# A model chooses well among this many tools; above it, definitions crowd out the conversation.
FIT: Final = 40
MOST_FOUND: Final = 10
_WORD: Final = re.compile(r"[a-z0-9]+")
_SATURATION, _LENGTH = 1.2, 0.75


@dataclass(frozen=True, slots=True)
class SearchDocument:
    definition: ToolDefinition
    words: Counter[str]
    length: int


class Index:
    """BM25 over name, description, parameters and labels. A word of the name counts as three."""

    def __init__(self, definitions: Iterable[ToolDefinition]) -> None:
        self._documents = [_document(each) for each in definitions]
        self._seen_in = Counter(word for document in self._documents for word in document.words)
        lengths = [document.length for document in self._documents]
        self._average = sum(lengths) / len(lengths) if lengths else 1.0

    def search(self, query: str, limit: int = 5) -> list[ToolDefinition]:
        """Best first; those of equal score in their own order. A query that names a tool finds it first."""
        words = tokens(query)
        scored = [
            (self._score(document, words) + _named(document, query), -at, document)
            for at, document in enumerate(self._documents)
        ]
        best = sorted((each for each in scored if each[0] > 0), reverse=True, key=lambda each: each[:2])
        return [document.definition for _, _, document in best[:limit]]

    def _score(self, document: SearchDocument, words: Sequence[str]) -> float:
        score = 0.0
        total = len(self._documents)
        for word in words:
            often = document.words.get(word, 0)
            if not often:
                continue
            rarity = math.log(1 + (total - self._seen_in[word] + 0.5) / (self._seen_in[word] + 0.5))
            weight = _SATURATION * (1 - _LENGTH + _LENGTH * document.length / self._average)
            score += rarity * often * (_SATURATION + 1) / (often + weight)
        return score


def tokens(text: str) -> list[str]:
    """Words in lower case, taken apart at capitals and signs; the `s` of a plural does not count."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in _WORD.findall(apart)]


def _named(document: SearchDocument, query: str) -> float:
    return 1000.0 if query.strip().lower() == document.definition.name.lower() else 0.0


def _document(definition: ToolDefinition) -> SearchDocument:
    properties = cast("Mapping[str, Any]", (definition.schema or {}).get("properties") or {})
    described = [
        str(cast("Mapping[str, Any]", each).get("description", ""))
        for each in properties.values()
        if isinstance(each, Mapping)
    ]
    texts = [definition.description, definition.category, *properties, *described, *definition.labels.values()]
    words = Counter(token for text in texts for token in tokens(text))
    for token in tokens(definition.name):
        words[token] += 3
    return SearchDocument(definition, words, sum(words.values()))


class ToolSearch:
    """The built-in tool. What it returns is JSON with `tools`: name, description and schema of each."""

    def __init__(self, definitions: Iterable[ToolDefinition], *, limit: int = 5) -> None:
        self._index = Index(definitions)
        self._limit = limit
        self._definition = ToolDefinition(
            name=NAME,
            description=(
                "Finds more tools by what they do. Call it when none of the tools you have fits; "
                "those it finds can be called from the next step on."
            ),
            schema={
                "type": "object",
                "properties": {
                    "query": {"type": "string", "minLength": 1, "description": "What the tool should do, in words."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
            effect="read",
            category="core",
            timeout=5.0,
        )

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        found = self._index.search(call.arguments["query"], call.arguments.get("limit", self._limit))
        return {
            "tools": [
                {"name": each.name, "description": each.description, "schema": dict(each.schema or {})}
                for each in found
            ]
        }


def offered(request: ModelRequest, deferred: frozenset[str]) -> ModelRequest:
    """The request without the tools that are not shown until a search has found them or the model has used them."""
    if not deferred:
        return request
    shown = frozenset(_found(request))
    tools = tuple(tool for tool in request.tools if tool.name not in deferred or tool.name in shown)
    return replace(request, tools=tools) if len(tools) != len(request.tools) else request


class _Hit(msgspec.Struct):
    name: str


class _Hits(msgspec.Struct):
    tools: list[_Hit]


_hits: Final = msgspec.json.Decoder(_Hits)


def _found(request: ModelRequest) -> Iterable[str]:
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, ToolResult) and part.error is None:
                yield part.name
                if part.name == NAME:
                    try:
                        yield from (hit.name for hit in _hits.decode(part.text).tools)
                    except msgspec.MsgspecError:
                        continue  # cut short by the limit on results: then it has shown nothing
