"""JSON text to documents: plain values, each with the place where it stands.

Nearly every JSON text is sound, and nobody asks where its values stand: msgspec decodes it, fifty times faster than
Python can. The scanner reads a text that msgspec refuses, or that may hold what no store can keep, and it finds places
when there is a problem to report. It is needed because most JSON is YAML, but not all of it (surrogate pairs in
escapes, keys of more than 1,024 characters), and because the standard library's reader keeps no positions and lets a
key stand twice. Several values in a row are several documents, as `jq` and log shippers write them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from json import JSONDecodeError, decoder
from typing import Any, Final, NoReturn, cast

import msgspec

from foliot.kernel.arguments import repeated_name
from foliot.kernel.json_texts import deeper_than, has_more_values
from foliot.resources.syntax.places import (
    LIMITS,
    Entry,
    FileLimits,
    Flaw,
    Parsed,
    ParsedDocument,
    Path,
    Places,
    UnreadableText,
)
from foliot.resources.syntax.scalars import BadScalar, check_text, is_rewritten, parse_number
from foliot.resources.syntax.source_text import check_characters

# The C scanner of the standard library; its stubs leave it out.
_scan_string = cast("Callable[[str, int, bool], tuple[str, int]]", decoder.scanstring)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SEPARATOR: Final = re.compile(r"---[ \t]*(?=[\r\n]|\Z)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z_$0-9]*")
_WORDS: Final = {"true": True, "false": False, "null": None}
# What msgspec reads and a manifest may not hold, or may not hold as it is printed, is left to the scanner: escapes of
# NUL and of half pairs, minus nothing, integers of a thousand digits.
_MINUS_NOTHING: Final = re.compile(r"-0(?<![^:\[,\s]-0)")
_LONG: Final = re.compile(r"[0-9]{20}")


def looks_like_json(text: str) -> bool:
    """Whether a text without a telling file name is worth trying as JSON first."""
    start = _SPACE.match(text)
    return start is not None and text.startswith("{", start.end())


def parse_json(text: str, limits: FileLimits = LIMITS) -> Parsed:
    """Every value of `text`, and everything that is wrong with it, in the order of lines. Never raises."""
    sound = _decoded(text, limits)
    return _scanned(text, limits) if sound is None else Parsed([sound])


def sound_value(data: bytes) -> Any:
    """Returns the one value of a text that is sound, and prints as it was written; None for any other."""
    try:
        document = _decoded(data.decode(), LIMITS)
    except UnicodeDecodeError:
        return None
    return None if document is None or document.rewritten else document.value


def _decoded(text: str, limits: FileLimits) -> ParsedDocument | None:
    """The one value of a sound text, whose places are found on demand; None when the text has to be scanned."""
    rewritten = False

    def number(written: str) -> int | float:
        nonlocal rewritten
        value = parse_number(written, is_int=False)
        rewritten = rewritten or is_rewritten(value, written)
        return value

    try:
        check_characters(text, limits)
        if "\\u" in text or _MINUS_NOTHING.search(text) or _LONG.search(text):
            return None
        if has_more_values(text.encode(), limits.nodes - 1):
            return None
        value = msgspec.json.Decoder(float_hook=number).decode(text)
    except (UnreadableText, BadScalar, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if repeated_name(text, value):
        return None
    if text.count("{") + text.count("[") >= limits.depth and deeper_than(value, limits.depth - 1):
        return None  # or nearly as deep as it may be: the scanner counts exactly
    places = Places(lambda: _scanned(text, limits).documents[0].places.found)
    return ParsedDocument(value, places, rewritten=rewritten)


def _scanned(text: str, limits: FileLimits) -> Parsed:
    parsed = Parsed()
    try:
        check_characters(text, limits)
        _Scanner(text, limits, parsed).read()
    except UnreadableText as unreadable:
        parsed.flaws.append(unreadable.flaw)
    parsed.flaws.sort(key=lambda flaw: (flaw.line, flaw.column))
    return parsed


class _Scanner:
    """Recursive descent; the depth limit keeps it far from Python's own."""

    def __init__(self, text: str, limits: FileLimits, parsed: Parsed) -> None:
        self._text = text
        self._limits = limits
        self._parsed = parsed
        self._nodes = 0
        self._at = 0
        self._rewritten = False
        self._path: list[str | int] = []
        self._line_starts = [0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", text))]
        self._starts = frozenset(self._line_starts)

    def read(self) -> None:
        while self._next_document():
            if len(self._parsed.documents) >= self._limits.documents:
                self._give_up(f"the file has more than {self._limits.documents:,} documents")
            self._path.clear()
            self._rewritten = False
            flaws_before = len(self._parsed.flaws)
            value, entry = self._value(0)
            flawed = len(self._parsed.flaws) > flaws_before
            found = (entry, self._locate)
            places = Places(lambda found=found: found)
            self._parsed.documents.append(ParsedDocument(value, places, flawed, self._rewritten))

    def _next_document(self) -> str:
        """Skip white space and lines that separate documents; the character behind them, "" at the end."""
        while self._peek() == "-" and self._at in self._starts and (line := _SEPARATOR.match(self._text, self._at)):
            self._at = line.end()
        return self._peek()

    def _locate(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def _peek(self) -> str:
        """Skip white space; the character behind it, "" at the end."""
        self._at = _SPACE.match(self._text, self._at).end()  # pyright: ignore[reportOptionalMemberAccess] - matches ""
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> tuple[Any, Entry]:
        self._nodes += 1
        if self._nodes > self._limits.nodes:
            self._give_up(f"the file holds more than {self._limits.nodes:,} values")
        character, start = self._peek(), self._at
        if character in ("{", "["):
            if depth >= self._limits.depth:
                self._stop(f"values are nested more than {self._limits.depth} deep")
            return self._object(depth) if character == "{" else self._array(depth)
        value: Any
        if character == '"':
            return self._string(), (start, start, None)
        if number := _NUMBER.match(self._text, start):
            value = self._number(number)
        else:
            value = self._word(character)
        written = self._text[start : self._at]
        self._rewritten = self._rewritten or is_rewritten(value, written)
        return value, (start, start, written)

    def _object(self, depth: int) -> tuple[dict[str, Any], Entry]:
        start = self._at
        value: dict[str, Any] = {}
        entries: dict[str, Entry] = {}
        self._at += 1
        if self._peek() == "}":
            self._at += 1
            return value, (start, start, entries)
        while True:
            if self._peek() != '"':
                self._expected_key()
            key_at = self._at
            key = self._string()
            if self._peek() != ":":
                self._stop("a ':' is missing behind the key")
            self._at += 1
            if key in value:
                line, column = self._locate(entries[key][0])
                hint = f"it is first given in line {line}, column {column}; remove one of them"
                self._flaw(key_at, f"the key {key!r} is given twice", hint, key)
            self._path.append(key)
            item, entry = self._value(depth + 1)
            self._path.pop()
            if key not in value:
                value[key], entries[key] = item, (key_at, entry[1], entry[2])
            if not self._more("}", start, "the object opened with { is not closed"):
                return value, (start, start, entries)

    def _array(self, depth: int) -> tuple[list[Any], Entry]:
        start = self._at
        value: list[Any] = []
        entries: list[Entry] = []
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            return value, (start, start, entries)
        while True:
            self._path.append(len(value))
            item, entry = self._value(depth + 1)
            self._path.pop()
            value.append(item)
            entries.append(entry)
            if not self._more("]", start, "the list opened with [ is not closed"):
                return value, (start, start, entries)

    def _more(self, closing: str, opened: int, unclosed: str) -> bool:
        """Steps over the comma or the closing character behind an item; returns whether another item follows."""
        character = self._peek()
        if character == closing:
            self._at += 1
            return False
        if not character:
            self._at = opened
            self._stop(unclosed)
        if character != ",":
            self._stop(f"a ',' or '{closing}' is missing here")
        comma, self._at = self._at, self._at + 1
        if self._peek() == closing:
            self._at = comma
            self._stop(f"a ',' before '{closing}' is not allowed in JSON", "remove the comma")
        return True

    def _string(self) -> str:
        start = self._at
        try:
            value, self._at = _scan_string(self._text, start + 1, True)
        except JSONDecodeError as error:
            if "Unterminated" in error.msg:
                self._stop("a quoted text is not closed", "add the closing quote")
            self._at = min(error.pos, len(self._text))
            if "control character" in error.msg:
                self._stop("a line break or tab inside a quoted text is not allowed in JSON", "write it as \\n or \\t")
            self._stop("this escape is not known in JSON", "double the backslash if it is meant as one")
        if not value.isascii() or "\0" in value:
            try:
                check_text(value)
            except BadScalar as bad:
                self._flaw(start, bad.message, bad.hint)
                return ""
        return value

    def _number(self, match: re.Match[str]) -> int | float:
        self._at = match.end()
        if self._text[self._at : self._at + 1].isalnum():
            self._at = match.start()
            self._stop("this is not a number JSON knows", "quote it if it is meant as text")
        try:
            return parse_number(match.group(), is_int=match.group(1) is None and match.group(2) is None)
        except BadScalar as bad:
            self._flaw(match.start(), bad.message, bad.hint)
            return 0

    def _word(self, character: str) -> bool | None:
        word = _WORD.match(self._text, self._at)
        if word is None or word.group() not in _WORDS:
            self._not_a_value(character, word is not None)
        self._at = word.end()
        return _WORDS[word.group()]

    def _not_a_value(self, character: str, is_word: bool) -> NoReturn:
        if is_word:
            self._stop("this word is not a JSON value", "text needs double quotes")
        if character == "'":
            self._stop("JSON text needs double quotes, not single ones")
        if character == "/":
            self._stop("JSON has no comments", "remove it, or save the file as .yaml and use #")
        self._stop("a value is missing here")

    def _expected_key(self) -> NoReturn:
        word = _WORD.match(self._text, self._at)
        hint = f'write "{word.group()}"' if word else None
        self._stop("a key in double quotes is missing here", hint)

    def _flaw(self, offset: int, message: str, hint: str | None, *more: str) -> None:
        if len(self._parsed.flaws) >= self._limits.flaws:
            self._give_up("more problems follow", "repair those above first")
        path: Path = (*self._path, *more)
        self._parsed.flaws.append(Flaw(*self._locate(offset), message, hint, path))

    def _stop(self, message: str, hint: str | None = None) -> NoReturn:
        raise UnreadableText(Flaw(*self._locate(self._at), message, hint))

    def _give_up(self, message: str, hint: str | None = None) -> NoReturn:
        self._parsed.exhausted = True
        self._stop(message, hint)
