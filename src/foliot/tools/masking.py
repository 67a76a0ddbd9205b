"""What was secret once is never shown: values that were resolved are scrubbed from whatever a tool sends back.

Two nets. `Masker.mask` replaces known values exactly, in every spelling that programs give them (as they are, in
base64, base32 and hex, wrapped or with separators, escaped for JSON, URLs or HTML, also in part): safe for results,
because nothing else is touched.
`Masker.redact` also replaces what only looks like a credential: for errors and logs, where a wrong guess costs little.

Filled by `secrets.py` and `oauth.py`, so that no caller can forget to. Values live in memory only.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from os.path import commonprefix
from typing import Any, Final, TypeVar, cast
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
_ESCAPES: Final = {
    "percent": r"(?P<percent>(?:%[0-9A-Fa-f]{2})+)",
    # No more backslashes than four, or a run of them would be looked at again from each.
    "backslash": r"(?P<units>(?:\\{1,4}u[0-9A-Fa-f]{4})+)|\\{1,4}x(?P<byte>[0-9A-Fa-f]{2})",
    "entity": r"(?P<entity>&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});)",
}
_ESCAPE: Final = re.compile("|".join(_ESCAPES.values()))
# Each alone, and then all: a value may itself hold what looks like an escape of another kind.
_ESCAPE_VIEWS: Final = (*map(re.compile, _ESCAPES.values()), _ESCAPE)
# What wraps encoded text: white space, and line breaks that are themselves escaped or quoted ("> " in mail).
_WRAPPING: Final = re.compile(r"(?:\s|\\{1,4}[nrt]|(?<=\n)>)+")
_SEPARATORS: Final = re.compile(r"(?:[\s:.,_-]|0[xX]|\\{1,4}[nrtx])+")

T = TypeVar("T")


class Masker:
    """The values to hide. One per runtime; safe to share between its tasks."""

    def __init__(self, *, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._values: OrderedDict[str, None] = OrderedDict()
        self._pattern: re.Pattern[str] | None = None
        self._encoded: re.Pattern[str] | None = None
        self._hex: re.Pattern[str] | None = None
        self._sorted: list[str] = []
        self._longest = 0
        _MASKERS.add(self)

    def add(self, *values: str) -> None:
        """Hide these from now on. The ones not resolved for longest are forgotten beyond the capacity."""
        for value in values:
            if value in self._values:
                self._values.move_to_end(value)
            elif value.strip():
                self._values[value] = None
                self._pattern = None
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)

    @property
    def knows_none(self) -> bool:
        return not self._values

    def mask(self, text: str) -> str:
        """The text without any known value, in whatever encoding. Text without one is returned as it is."""
        if not self._values or not text:
            return text
        text = (self._pattern or self._compile()).sub(MASK, text)
        if _ESCAPE.search(text) is not None:
            for escapes in _ESCAPE_VIEWS:
                if escapes.search(text) is not None:
                    text = self._without(text, *_unescaped(text, escapes), self._pattern)
        for encoded, dropped in ((self._encoded, _WRAPPING), (self._hex, _SEPARATORS)):
            if encoded is None:
                continue
            compact = dropped.sub("", text)
            if dropped is _SEPARATORS:
                compact = compact.lower()
            if encoded.search(compact) is not None:
                text = self._without(text, compact, _kept(text, dropped), encoded)
        return text

    def _without(self, text: str, view: str, places: list[int], pattern: re.Pattern[str] | None) -> str:
        """The text without what `pattern` finds in a view of it. `places` says where each character stands in it."""
        assert pattern is not None, "compiled before"
        pieces, done = list[str](), 0
        for found in pattern.finditer(view):
            start, end = places[found.start()], places[found.end()]
            if start < done or text[start:end] == MASK:
                continue
            pieces += (text[done:start], MASK)
            done = end
        return "".join((*pieces, text[done:]))

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
        """Where the end of `text` begins that may be the beginning of a value; its length when there is none."""
        if not self._values:
            return len(text)
        if self._pattern is None:
            self._compile()
        for start in range(max(len(text) - self._longest, 0), len(text)):
            end = text[start:]
            place = bisect_left(self._sorted, end)
            if place < len(self._sorted) and self._sorted[place].startswith(end):
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

    def _compile(self) -> re.Pattern[str]:
        long: set[str] = set()
        alone: set[str] = set()
        for value in self._values:
            for spelling in _spellings(value):
                (long if len(spelling) >= _SHORT else alone).add(spelling)
        encoded = {piece for value in self._values for piece in _encodings(value)}
        self._encoded = re.compile(_any_of(encoded)) if encoded else None
        hexes = {value.encode("utf-8", "surrogatepass").hex() for value in self._values}
        self._hex = re.compile(_any_of(whole)) if (whole := {h for h in hexes if len(h) >= 2 * _SHORT}) else None
        self._sorted = sorted(long | alone)
        self._longest = max(map(len, self._sorted))
        forms = [_any_of(long)] if long else []
        forms += [rf"(?<![^\W_]){re.escape(spelling)}(?![^\W_])" for spelling in sorted(alone, key=len, reverse=True)]
        self._pattern = re.compile("|".join(forms))
        return self._pattern


class MaskedStream:
    """Holds back as much of the end as could be the beginning of a value. `flush` gives the rest."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be shown by now."""
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
    """What says that a secret follows stays; quotes around the value stay, so that JSON remains JSON."""
    groups = match.groupdict()
    mark = groups.get("a") or groups.get("b") or groups.get("c") or ""
    return f"{groups.get('keep') or ''}{mark}{MASK}{mark}"


def _any_of(words: set[str]) -> str:
    """A pattern of all words, the longest first where one begins another.

    Beginnings that words share are written once: tried one after the other, a thousand words would cost seconds for
    each megabyte of text.
    """
    groups: dict[str, set[str]] = {}
    for word in words:
        groups.setdefault(word[:1], set()).add(word)
    ends = "" in groups
    forms: list[str] = []
    for first in sorted(groups.keys() - {""}):
        prefix = commonprefix(list(groups[first]))  # noqa: RUF071  # of texts, not of paths: by character is meant
        rests = {word[len(prefix) :] for word in groups[first]}
        forms.append(re.escape(prefix) + ("" if rests == {""} else _any_of(rests)))
    return f"(?:{'|'.join(forms)}){'?' if ends else ''}"


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
    for offset in range(5):
        encoded = base64.b32encode(b"\0" * offset + raw).decode().rstrip("=")
        first, last = -(-offset * 8 // 5), (offset + len(raw)) * 8 // 5
        if last - first >= _SHORTEST_PIECE:
            yield encoded[first:last]
            yield encoded[first:last].lower()


def _unescaped(text: str, escapes: re.Pattern[str]) -> tuple[str, list[int]]:
    """The text with its escapes read, and where each character of that stands in it."""
    view, places, done = list[str](), list[int](), 0
    for found in escapes.finditer(text):
        view.append(text[done : found.start()])
        places.extend(range(done, found.start()))
        said = _read_escape(found)
        view.append(said)
        places.extend([found.start()] * len(said))
        done = found.end()
    view.append(text[done:])
    places.extend(range(done, len(text) + 1))
    return "".join(view), places


def _read_escape(found: re.Match[str]) -> str:
    groups = found.groupdict()
    if percent := groups.get("percent"):
        return bytes.fromhex(percent.replace("%", "")).decode("utf-8", "replace")
    if units := groups.get("units"):
        pairs = bytes.fromhex(re.sub(r"\\+u", "", units))
        return pairs.decode("utf-16-be", "replace")
    if byte := groups.get("byte"):
        return chr(int(byte, 16))
    return html.unescape(groups["entity"])


def _kept(text: str, dropped: re.Pattern[str]) -> list[int]:
    """Where the characters stand that are left of a text when `dropped` is taken out."""
    places, done = list[int](), 0
    for found in dropped.finditer(text):
        places.extend(range(done, found.start()))
        done = found.end()
    places.extend(range(done, len(text) + 1))
    return places


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
