"""Masking: secret values that were once resolved are removed from everything a tool sends back.

Two nets. `Masker.mask` replaces known values exactly, in every spelling that programs give them (as they are, in
base64, base32 and hex, wrapped or with separators, escaped for JSON, URLs or HTML, also in part): safe for results,
because nothing else is touched.
`Masker.redact` also replaces what only looks like a credential: for errors and logs, where a wrong guess costs little.

Filled by `secrets.py` and `auth.py`, so that no caller can forget to. Values live in memory only.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import sys
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, quote_plus
from weakref import WeakSet

from msgspec import structs

from foliot.errors import FoliotError
from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult

MASK: Final = "[REDACTED]"
# Values so short occur in any text by chance: they are masked only where they stand alone.
_SHORT: Final = 4
# A piece of base64 shorter than this is found in ordinary words.
_SHORTEST_PIECE: Final = 8
_CAPACITY: Final = 500
# A word of seven bytes holds a whole unit of four, wherever it stands; one of fifteen holds a unit of eight.
_SHORTEST_UNITS: Final = 7

_QUOTED: Final = r"(?P<{q}>\\*[\"'])(?:(?!(?P={q}))(?:\\.|[^\\]))*(?:(?P={q}))?"
_NAMED: Final = (
    r"(?:api[_-]?key|client[_-]?secret|access[_-]?token|refresh[_-]?token|secret|password|passwd|token)"
    r"(?:\\*[\"'])?\s*[=:]\s*"
)
_PATTERNS: Final = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    # A header's value may be a scheme and a credential: all of it goes, up to the end of the line or of its quotes.
    re.compile(
        r"(?P<keep>(?:proxy-)?authorization(?:\\*[\"'])?\s*[=:]\s*)(?:" + _QUOTED.format(q="a") + r"|[^\r\n\"'\\,}]+)",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<keep>(?:x-api-key|set-cookie|cookie)(?:\\*[\"'])?\s*:\s*)(?:" + _QUOTED.format(q="b") + r"|\S+)",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>\bbearer\s+)(?!\[REDACTED\])[^\s\"'\\,;}]+", re.IGNORECASE),
    re.compile(r"(?P<keep>" + _NAMED + r")(?!\[REDACTED\])(?:" + _QUOTED.format(q="c") + r"|\S+)", re.IGNORECASE),
    re.compile(r"(?P<keep>://[^\s/@:]*:)[^\s/@]+(?=@)"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{10,}"),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16})\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
)

# Characters that programs write in another way, one by one; several percent or \\u escapes in a row are one text.
# Every form begins with the letter itself, which the search then jumps to.
_ESCAPES: Final = {
    "percent": r"%[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2})*",
    # No more backslashes than four, or a run of them would be looked at again from each.
    "backslash": r"\\\\{0,3}u[0-9A-Fa-f]{4}(?:\\{1,4}u[0-9A-Fa-f]{4})*|\\\\{0,3}x[0-9A-Fa-f]{2}",
    "entity": r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});",
}
_MARKS: Final = {"percent": "%", "backslash": "\\", "entity": "&"}
_ALONE: Final = {kind: re.compile(form) for kind, form in _ESCAPES.items()}
# What wraps encoded text: white space, and line breaks that are themselves escaped or quoted ("> " in mail).
_WRAPPING: Final = re.compile(r"(?:\s|\\{1,4}[nrt]|(?<=\n)>)+")
_SEPARATORS: Final = re.compile(r"(?:[\s:.,_-]|0[xX]|\\{1,4}[nrtx])+")
# The same in two steps, the second over bytes, which costs a tenth of a pattern.
_ODD_SPACE: Final = re.compile(r"[^\S\x00-\x7f]+")
_WRITTEN_WRAPPING: Final = re.compile(r"\\\\{0,3}[nrt]|>(?<=\n>)")
_WRITTEN_SEPARATORS: Final = re.compile(r"0[xX]|\\\\{0,3}[nrtx]")
_SPACE: Final = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"
_SMALL_LETTERS: Final = bytes(range(256)).lower()

T = TypeVar("T")


class Masker:
    """The values to hide. One per runtime; safe to share between its tasks."""

    def __init__(self, *, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._values: OrderedDict[str, None] = OrderedDict()
        # Which values there are: a new one for every change, so that a thread that reads them cannot hide a change.
        self._change = object()
        self._net: tuple[object, _Net] | None = None
        _MASKERS.add(self)

    def add(self, *values: str) -> None:
        """Hide these from now on. The ones not resolved for longest are forgotten beyond the capacity."""
        for value in values:
            if value in self._values:
                self._values.move_to_end(value)
            elif value.strip():
                self._values[value] = None
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)
                self._change = object()

    @property
    def knows_none(self) -> bool:
        return not self._values

    def mask(self, text: str) -> str:
        """The text without any known value, in whatever encoding. Text without one is returned as it is."""
        if not self._values or not text:
            return text
        net = self._known()
        text = _hidden(text, net.plain.find(text))
        for escapes in _escape_views(text):
            view = escapes.sub(_read, text)
            if spans := net.plain.find(view):
                text = _hidden(text, _Places(text, escapes, _read).of(spans))
        for words, dropped, compact in (
            (net.encoded, _WRAPPING, _unwrapped),
            (net.hex, _SEPARATORS, _unseparated),
        ):
            if words and (spans := words.find_in(view := compact(text))):
                text = _hidden(text, _Places(text, dropped, _nothing).of(_in_characters(view, spans)))
        return text

    def _known(self) -> _Net:
        """The values as they are looked for, made anew when they have changed."""
        change = self._change
        if self._net is None or self._net[0] is not change:
            self._net = (change, _Net.of(tuple(self._values)))
        return self._net[1]

    def redact(self, text: str) -> str:
        """Like `mask`, and without what looks like a credential; trimmed. For errors and logs."""
        text = self.mask(text)
        for pattern in _PATTERNS:
            text = pattern.sub(_hide, text)
        return text.strip()

    def mask_value(self, value: T) -> T:
        """JSON data or a struct of parts, with every text in it masked."""
        if not self._values:
            return value
        return cast("T", self._masked(value))

    def mask_result(self, result: ToolResult) -> ToolResult:
        """The result as the model, the journal and people may see it."""
        if not self._values:
            return result
        content = tuple(self._part(part) for part in result.content)
        error = result.error
        if error is not None:
            error = self._masked_failure(error)
        return structs.replace(result, content=content, error=error)

    def scrub(self, error: FoliotError) -> None:
        """Redact what an error says, in place."""
        error.message = self.redact(error.message)
        error.args = (error.message, *error.args[1:])
        error.hint = self.redact(error.hint) if error.hint else error.hint
        error.details = {key: self.mask_value(value) for key, value in error.details.items()}

    def stream(self) -> MaskedStream:
        """Masks a text that comes in pieces, also where a value lies across two of them."""
        return MaskedStream(self)

    def unfinished(self, text: str) -> int:
        """Returns where an end of `text` begins that may be the start of a value; its length when there is none."""
        if not self._values:
            return len(text)
        net = self._known()
        for start in range(max(len(text) - net.longest, 0), len(text)):
            end = text[start:]
            place = bisect_left(net.sorted, end)
            if place < len(net.sorted) and net.sorted[place].startswith(end):
                return start
        return len(text)

    def _part(self, part: Text | Media) -> Text | Media:
        """A part as it may be seen. Media that hold a value, in their bytes or in their address, are left out whole."""
        if isinstance(part, Text):
            return Text(self.mask(part.text))
        told = [each for each in (part.data, part.url, part.name) if each]
        return Text(f"{MASK} (media that held a secret)") if any(self.mask(each) != each for each in told) else part

    def _masked_failure(self, failure: ToolFailure) -> ToolFailure:
        details = {key: self._masked(value) for key, value in failure.details.items()}
        return structs.replace(failure, message=self.redact(failure.message), details=details)

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Text | Media):
            return self._part(value)
        if isinstance(value, Mapping):
            given = cast("Mapping[Any, Any]", value)
            return {self._masked(key): self._masked(item) for key, item in given.items()}
        if isinstance(value, list | tuple):
            items = [self._masked(item) for item in cast("list[Any]", value)]
            return items if isinstance(value, list) else tuple(items)
        return value


class _Net(NamedTuple):
    """All spellings of the values, as they are looked for in a text and in views of it."""

    plain: _Words
    encoded: _Words
    hex: _Words
    sorted: list[str]
    longest: int

    @classmethod
    def of(cls, values: Iterable[str]) -> _Net:
        spellings = {spelling for value in values for spelling in _spellings(value)} - {""}
        encoded = {piece for value in values for piece in _encodings(value)}
        hexes = {value.encode("utf-8", "surrogatepass").hex() for value in values}
        return cls(
            _Words(spellings),
            _Words(encoded),
            _Words(each for each in hexes if len(each) >= 2 * _SHORT),
            sorted(spellings),
            max(map(len, spellings), default=0),
        )


class _Words:
    """Words that are looked for all at once.

    A text is read in units of four or eight bytes. Wherever a word stands in it, one of the units is one of the first
    that the word has, from its first byte, its second and so on. So the cost hardly depends on how many words there
    are, and a unit that belongs to no word costs one look into a dict.
    """

    def __init__(self, words: Iterable[str]) -> None:
        raws = {word: word.encode("utf-8", "surrogatepass") for word in words}
        self._words = frozenset(raw for raw in raws.values() if len(raw) >= _SHORTEST_UNITS)
        wide = all(len(raw) >= 15 for raw in self._words)
        self._size = 8 if wide else 4
        # Not the words themselves but where and how long they may be: many begin in the same way.
        self._units: dict[int, tuple[tuple[int, int], ...]] = {}
        alike = {len(raw): [((offset, len(raw)),) for offset in range(self._size)] for raw in self._words}
        for raw in self._words:
            for offset, place in enumerate(alike[len(raw)]):
                unit = int.from_bytes(raw[offset : offset + self._size], sys.byteorder)
                places = self._units.setdefault(unit, place)
                if place[0] not in places:
                    self._units[unit] = places + place
        short = sorted((w for w, raw in raws.items() if len(raw) < _SHORTEST_UNITS), key=len, reverse=True)
        forms = [re.escape(word) for word in short if len(word) >= _SHORT]
        forms += [rf"(?<![^\W_]){re.escape(word)}(?![^\W_])" for word in short if len(word) < _SHORT]
        self._short = re.compile("|".join(forms)) if forms else None

    def __bool__(self) -> bool:
        return bool(self._words)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Finds the spans of words in a text, in characters; where they overlap the first, and of those the longest."""
        raw = text.encode("utf-8", "surrogatepass")
        spans = self.find_in(raw)
        if spans and len(raw) != len(text):
            spans = _in_characters(raw, spans)
        if self._short is not None:
            spans = _apart([*spans, *(found.span() for found in self._short.finditer(text))])
        return spans

    def find_in(self, raw: bytes) -> list[tuple[int, int]]:
        """Finds words in bytes, without the words that are too short for units."""
        size, known, words = self._size, self._units, self._words
        units = memoryview(raw)[: len(raw) // size * size].cast("Q" if size == 8 else "I")
        if not words or known.keys().isdisjoint(units):
            return []
        spans: list[tuple[int, int]] = []
        for number, unit in enumerate(units):
            if unit in known:
                for offset, length in known[unit]:
                    start = number * size - offset
                    if start >= 0 and raw[start : start + length] in words:
                        spans.append((start, start + length))
        return _apart(spans)


class _Places:
    """Maps the characters of a view to the text that it was made of. Made only once something was found."""

    def __init__(self, text: str, pattern: re.Pattern[str], read: Callable[[re.Match[str]], str]) -> None:
        self._begins = list[int]()
        self._spans = list[tuple[int, int, bool]]()
        at = done = 0
        for found in pattern.finditer(text):
            at = self._add(at, found.start() - done, (done, found.start(), False))
            at = self._add(at, len(read(found)), (*found.span(), True))
            done = found.end()
        self._add(at, len(text) - done, (done, len(text), False))

    def of(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The stretches of the text that these stretches of the view come from: escapes as a whole."""
        return [(self._of(start)[0], self._of(end - 1)[1]) for start, end in spans]

    def _add(self, at: int, length: int, span: tuple[int, int, bool]) -> int:
        if length:
            self._begins.append(at)
            self._spans.append(span)
        return at + length

    def _of(self, place: int) -> tuple[int, int]:
        number = bisect_right(self._begins, place) - 1
        start, end, whole = self._spans[number]
        if whole:
            return start, end
        return start + place - self._begins[number], start + place - self._begins[number] + 1


class MaskedStream:
    """Holds back as much of the end as could be the beginning of a value. `flush` gives the rest."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = ""

    def feed(self, text: str) -> str:
        """Takes more text; returns the part that can be shown now."""
        text = self._masker.mask(self._held + text)
        cut = self._masker.unfinished(text)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return self._masker.mask(held)


# Every masker that lives in this process: a line of the log may hold a value that any of them knows.
_MASKERS: Final[WeakSet[Masker]] = WeakSet()


def redact_everywhere(text: str) -> str:
    """The text without a value that any masker of this process knows, and without what looks like a credential."""
    for masker in list(_MASKERS):
        text = masker.mask(text)
    for pattern in _PATTERNS:
        text = pattern.sub(_hide, text)
    return text


class MaskingFilter(logging.Filter):
    """Put on a handler, it redacts every record that passes, tracebacks included."""

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self._masker = masker

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = f"{record.msg} {record.args}"  # a wrong format must not become a way out
        record.msg, record.args = self._masker.redact(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._masker.redact(record.exc_text)
        if record.stack_info:
            record.stack_info = self._masker.redact(record.stack_info)
        return True


def _hide(match: re.Match[str]) -> str:
    """Replaces the secret, and keeps the words that announce it and quotes around it, so that JSON remains JSON."""
    groups = match.groupdict()
    mark = groups.get("a") or groups.get("b") or groups.get("c") or ""
    return f"{groups.get('keep') or ''}{mark}{MASK}{mark}"


def _spellings(value: str) -> Iterator[str]:
    """The value as programs write it."""
    raw = value.encode("utf-8", "surrogatepass")
    yield value
    yield value.strip()
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield json.dumps(json.dumps(value)[1:-1])[1:-1]
    yield html.escape(value)
    yield html.escape(value, quote=False)
    for percent in (quote(raw, safe=""), quote(raw, safe="/"), quote_plus(raw), quote(raw, safe="!*'()~/")):
        yield percent
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), percent)
    if len(raw) >= _SHORT:
        yield raw.hex()
        yield raw.hex().upper()
        yield from _base64(raw)
        yield from _base32(raw)


def _encodings(value: str) -> Iterator[str]:
    """The pieces that are looked for in a text without its line breaks. Short ones would be found in ordinary words."""
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) >= _SHORT:
        found = {raw.hex(), raw.hex().upper(), *_base64(raw), *_base32(raw)}
        yield from (piece for piece in found if len(piece) >= _SHORTEST_PIECE)


def _base32(raw: bytes) -> Iterator[str]:
    whole = base64.b32encode(raw).decode()
    yield from (whole, whole.rstrip("="), whole.lower(), whole.lower().rstrip("="))
    for offset in range(5):
        encoded = base64.b32encode(b"\0" * offset + raw).decode().rstrip("=")
        first, last = -(-offset * 8 // 5), (offset + len(raw)) * 8 // 5
        if last - first >= _SHORTEST_PIECE:
            yield encoded[first:last]
            yield encoded[first:last].lower()


def _escape_views(text: str) -> Iterator[re.Pattern[str]]:
    """How to read the escapes of a text: each kind alone, and then all: a value may itself hold what looks like one."""
    kinds = [kind for kind, mark in _MARKS.items() if mark in text and _ALONE[kind].search(text) is not None]
    for kind in kinds:
        yield _ALONE[kind]
    if len(kinds) > 1:
        yield re.compile("|".join(_ESCAPES[kind] for kind in kinds))


def _read(found: re.Match[str]) -> str:
    return _read_escape(found[0])


@lru_cache(maxsize=4096)
def _read_escape(said: str) -> str:
    if said[0] == "%":
        return bytes.fromhex(said.replace("%", "")).decode("utf-8", "replace")
    if said[0] == "&":
        return html.unescape(said)
    if said.lstrip("\\")[0] == "x":
        return chr(int(said[-2:], 16))
    return bytes.fromhex(re.sub(r"\\+u", "", said)).decode("utf-16-be", "replace")


def _nothing(found: re.Match[str]) -> str:
    return ""


def _unwrapped(text: str) -> bytes:
    """The text without what `_WRAPPING` finds in it."""
    if "\\" in text or "\n>" in text:
        text = _WRITTEN_WRAPPING.sub("", text)
    return _without_odd_space(text).translate(None, _SPACE)


def _unseparated(text: str) -> bytes:
    """The text without what `_SEPARATORS` finds in it, in small letters."""
    if "\\" in text or "0x" in text or "0X" in text:
        text = _WRITTEN_SEPARATORS.sub("", text)
    return _without_odd_space(text).translate(_SMALL_LETTERS, _SPACE + b":.,_-")


def _without_odd_space(text: str) -> bytes:
    return (text if text.isascii() else _ODD_SPACE.sub("", text)).encode("utf-8", "surrogatepass")


def _apart(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches that do not overlap: the one that begins first, and of several the longest."""
    kept, done = list[tuple[int, int]](), 0
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= done:
            kept.append((start, end))
            done = end
    return kept


def _in_characters(raw: bytes, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches of a text in UTF-8 that do not overlap, counted in characters."""
    ends = [end for span in spans for end in span]
    pieces = (raw[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False))
    counted = list(accumulate(map(len, pieces)))
    return list(zip(counted[::2], counted[1::2], strict=True))


def _hidden(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with a mask for each stretch. What overlaps, or lies in a mask already, is hidden."""
    pieces, done = list[str](), 0
    for start, end in spans:
        if end <= done or text.find(MASK, max(end - len(MASK), 0), start + len(MASK)) >= 0:
            continue
        pieces += (text[done : max(start, done)], MASK)
        done = end
    return "".join((*pieces, text[done:])) if pieces else text


def _base64(raw: bytes) -> Iterator[str]:
    """Alone, and as a part of something longer: then what it looks like depends on where in it the value begins."""
    for altchars in (b"+/", b"-_"):
        whole = base64.b64encode(raw, altchars).decode()
        yield whole
        yield whole.rstrip("=")
        for offset in range(3):
            encoded = base64.b64encode(b"\0" * offset + raw, altchars).decode().rstrip("=")
            first = (offset * 8 + 5) // 6
            last = (offset + len(raw)) * 8 // 6
            if last - first >= _SHORTEST_PIECE:
                yield encoded[first:last]
