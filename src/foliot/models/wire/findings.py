"""The findings of an answer besides its text: the sources it names, and notes on what is not kept.

Each format has tables of its kinds of content. What stands in one is read, or carried back to the provider as it came;
everything else leaves a note, which stands in the answer's record and in traces. Nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec.structs import replace

from foliot.kernel.messages import ModelResponse, Source

# A journal keeps every answer for ever: no provider can make it grow by what it cites.
_MOST_SOURCES: Final = 100
_MOST_NOTES: Final = 20
_LONGEST: Final = 1000

ANNOTATIONS: Final = frozenset({"url_citation", "file_citation", "container_file_citation", "file_path"})
"""The annotations of OpenAI's texts."""
CITATIONS: Final = frozenset(
    {
        "char_location", "page_location", "content_block_location", "web_search_result_location",
        "search_result_location",
    }
)  # fmt: skip
"""The citations of Anthropic's texts."""
CHUNKS: Final = frozenset({"web", "retrievedContext", "maps", "image"})
"""The grounds that Gemini names."""


class Findings:
    """Sources and notes of one answer while it is read."""

    __slots__ = ("_notes", "_sources")

    def __init__(self) -> None:
        self._sources: dict[Source, None] = {}
        self._notes: dict[str, None] = {}

    def note(self, text: str) -> None:
        if len(self._notes) < _MOST_NOTES:
            self._notes[text] = None

    def drop(self, what: str) -> None:
        """Note that something of the answer is not kept."""
        self.note(f"{what[:80]} of the answer is not kept")

    def ran(self, what: str) -> None:
        """Note that a tool ran at the provider."""
        self.note(f"{what[:80]} ran at the provider, which is no tool of the agent")

    def source(self, *, url: Any = "", title: Any = "", quote: Any = "", start: Any = None, end: Any = None) -> None:
        found = Source(_text(url), _text(title), _text(quote), _place(start), _place(end))
        if not (found.url or found.title or found.quote):
            return
        if len(self._sources) < _MOST_SOURCES:
            self._sources[found] = None
        elif found not in self._sources:
            self.note(f"only the first {_MOST_SOURCES} sources of the answer are kept")

    def annotation(self, given: Any, before: int = 0) -> None:
        """Read an annotation of OpenAI's; `before` is how much of the text stands before the piece that it is of."""
        said = mapping_of(given)
        kind = str(said.get("type"))
        if kind not in ANNOTATIONS:
            self.drop(f"an annotation {kind}")
            return
        inner = mapping_of(said.get(kind)) or said  # chat completions have it nested
        start, end = _place(inner.get("start_index")), _place(inner.get("end_index"))
        self.source(
            url=inner.get("url"),
            title=inner.get("title") or inner.get("filename") or inner.get("file_id"),
            start=None if start is None else before + start,
            end=None if end is None else before + end,
        )

    def citation(self, given: Any, start: int, end: int) -> None:
        """Read a citation of Anthropic's, of the text from `start` to `end`."""
        said = mapping_of(given)
        kind = str(said.get("type"))
        if kind not in CITATIONS:
            self.drop(f"a citation {kind}")
            return
        self.source(
            url=said.get("url") or said.get("source"),
            title=said.get("title") or said.get("document_title"),
            quote=said.get("cited_text"),
            start=start,
            end=end,
        )

    def grounding(self, given: Any, text: str) -> None:
        """Read Gemini's grounding metadata; `text` is the answer's, in which it marks what rests on what."""
        said = mapping_of(given)
        chunks = [self._chunk(each) for each in list_of(said.get("groundingChunks"))]
        used: set[int] = set()
        for each in list_of(said.get("groundingSupports")):
            support = mapping_of(each)
            # Its places are counted in bytes of one part: the words themselves say where they are.
            words = mapping_of(support.get("segment")).get("text")
            start = text.find(words) if isinstance(words, str) and words else -1
            for index in list_of(support.get("groundingChunkIndices")):
                if isinstance(index, int) and 0 <= index < len(chunks):
                    used.add(index)
                    place = {"start": start, "end": start + len(str(words))} if start >= 0 else {}
                    self.source(**chunks[index], **place)
        for index, chunk in enumerate(chunks):
            if index not in used:
                self.source(**chunk)

    def _chunk(self, given: Any) -> dict[str, Any]:
        for kind, inner in mapping_of(given).items():
            if kind not in CHUNKS:
                self.drop(f"a ground {kind}")
                continue
            said = mapping_of(inner)
            url = said.get("uri") or said.get("sourceUri")
            return {"url": url, "title": said.get("title"), "quote": said.get("text")}
        return {}

    def recited(self, given: Any) -> None:
        """Read Gemini's citation metadata."""
        for each in list_of(mapping_of(given).get("citations")) or list_of(mapping_of(given).get("citationSources")):
            said = mapping_of(each)
            self.source(
                url=said.get("uri"), title=said.get("title"), start=said.get("startIndex"), end=said.get("endIndex")
            )

    def fetched(self, given: Any) -> None:
        """Read Gemini's metadata of the addresses that it has read."""
        for each in list_of(mapping_of(given).get("urlMetadata")):
            self.source(url=mapping_of(each).get("retrievedUrl"))

    def into(self, response: ModelResponse) -> ModelResponse:
        """The answer with its sources and notes."""
        if not self._sources and not self._notes:
            return response
        return replace(response, sources=tuple(self._sources), notes=(*response.notes, *self._notes))


def filtered(*categories: Any) -> str:
    """The sentence for an answer that a filter of the provider stopped, with what it names as the reason."""
    named = ", ".join(dict.fromkeys(_text(each) for each in categories if each and isinstance(each, str)))
    return f"the provider's content filter stopped the answer{f' ({named})' if named else ''}"


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _place(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def mapping_of(value: Any) -> Mapping[str, Any]:
    """An object out of JSON that nobody has checked; empty for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """A list out of JSON that nobody has checked; empty for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []
