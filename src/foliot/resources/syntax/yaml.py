"""YAML text to documents: plain values, each with the place where it stands.

Built on the events of libyaml (of PyYAML's own parser where that is missing), not on its nodes: events come as fast,
need no recursion that a deep file could exhaust, and let every rule be checked where it is broken:

- words mean what YAML 1.2 says (see syntax/scalars.py); keys are text, and each stands once in its mapping
- anchors and aliases work; each alias is a copy, and what aliases repeat is counted against the limits of the file
- the merge key `<<` works as people know it from YAML 1.1: explicit keys win, then earlier mappings over later ones
- of tags only the core ones (`!!str`, `!!int`, …) are understood; all others are refused, so nothing is constructed

Nothing but `Parsed` comes out, whatever goes in: a syntax error is a flaw of its document, and reading goes on behind
the next `---`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

from yaml.error import MarkedYAMLError, YAMLError

from foliot.resources.syntax.places import LIMITS, Flaw, Limits, Locate, Parsed, Unreadable
from foliot.resources.syntax.source_text import check_characters, locate_index
from foliot.resources.syntax.yaml_builder import Builder, NextEvent

# --- yaml words ------------------------------------------------------------------------------------------------------

# What the YAML parser says, in words a person can act on.
#
# The parser gives no codes, only texts, so its texts are the keys here; libyaml and the pure Python parser phrase some
# of them differently. A text that is not in the table is passed on as it is: true, if less helpful.

_TABS: Final = ("a tab is used for indentation; YAML allows only spaces", "replace the tab with spaces")
_UNCLOSED_LIST: Final = ("the list opened with [ is not closed, or a comma is missing", "add the ] or the comma")
_UNCLOSED_MAP: Final = ("the mapping opened with { is not closed, or a comma is missing", "add the } or the comma")
_QUOTE: Final = ("a quoted text is not closed", "add the closing quote")
_INDENT: Final = (
    "this line does not fit the indentation above it",
    "fields of one mapping start in the same column; items of a list start with '- '",
)
_NO_VALUE: Final = ("a value is missing here", None)
_TAG: Final = ("tags are not allowed in a manifest", "remove the word that starts with '!', or quote the text")
_ANCHOR: Final = (
    "a name of an anchor or alias is missing or has other characters than letters, digits, '-' and '_'",
    "quote a text that starts with '*' or '&'",
)
_COLON: Final = (
    "a ':' is not expected here",
    "quote the text if it contains ': ', or check the indentation of this line",
)

_WORDS: Final[dict[str, tuple[str, str | None]]] = {
    "found a tab character that violates indentation": _TABS,
    "found a tab character where an indentation space is expected": _TABS,
    "found a tab character where an intendation space is expected": _TABS,
    "mapping values are not allowed in this context": _COLON,
    "mapping values are not allowed here": _COLON,
    "did not find expected ',' or ']'": _UNCLOSED_LIST,
    "did not find expected ',' or '}'": _UNCLOSED_MAP,
    "did not find expected key": _INDENT,
    "did not find expected '-' indicator": (
        "an item of the list is missing its '- ', or this line is indented wrongly",
        "items of one list start with '- ' in the same column",
    ),
    "block sequence entries are not allowed in this context": (
        "a list cannot start here",
        "begin the list on its own line under the field, or quote a text that starts with '- '",
    ),
    "could not find expected ':'": ("a ':' is missing behind the key", "write 'key: value', with a space"),
    "did not find expected node content": _NO_VALUE,
    "found unknown escape character": (
        "this escape is not known in double-quoted text",
        "double the backslash, or use single quotes, where backslashes mean themselves",
    ),
    "found invalid Unicode character escape code": ("this escape does not name a character", None),
    "found unexpected document indicator": _QUOTE,
    "found unexpected document separator": _QUOTE,
    "found unknown directive name": ("this directive is not known", "a line may not start with '%'"),
    "found incompatible YAML document": ("this YAML version is not supported", "remove the %YAML line"),
    "found duplicate %YAML directive": ("the %YAML line is given twice", None),
    "found undefined tag handle": _TAG,
    "did not find expected <document start>": (
        "text behind the end of a document",
        "separate documents by a line with '---'",
    ),
    "did not find expected alphabetic or numeric character": _ANCHOR,
}
_RESERVED: Final = {
    "\t": _TABS,
    "@": ("a text cannot start with '@' without quotes", "quote it"),
    "`": ("a text cannot start with '`' without quotes", "quote it"),
    "%": ("a text cannot start with '%' without quotes", "quote it"),
}
# The pure Python parser ends these with what it found instead.
_BEGINNINGS: Final = (
    ("expected <block end>", _INDENT),
    ("expected ',' or ']'", _UNCLOSED_LIST),
    ("expected ',' or '}'", _UNCLOSED_MAP),
    ("expected the node content", _NO_VALUE),
    ("found undefined tag handle", _TAG),
    ("expected alphabetic or numeric character", _ANCHOR),
)
_CANNOT_START: Final = "that cannot start any token"


def explain(problem: str | None, context: str | None, character: str) -> tuple[str, str | None]:
    """Message and hint for what the parser said about `character`, the one it stopped at ("" at the end)."""
    said = problem or "cannot be parsed"
    if said == "found unexpected end of stream" and context and "quoted scalar" in context:
        return _QUOTE
    if _CANNOT_START in said:
        return _RESERVED.get(character, (f"a value cannot start with {character!r} here", "quote it"))
    if said in _WORDS:
        return _WORDS[said]
    for beginning, words in _BEGINNINGS:
        if said.startswith(beginning):
            return words
    return f"not valid YAML: {said}" + (f" ({context})" if context else ""), None


def unclosed(bracket: str) -> tuple[str, str | None]:
    """Message and hint for a `[` or `{` that is still open where its document ends."""
    return _UNCLOSED_LIST if bracket == "[" else _UNCLOSED_MAP


# --- yaml nodes ------------------------------------------------------------------------------------------------------

_DOCUMENT_LINE: Final = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_TAG_LINE: Final = re.compile(r"(?:(?<=[\n\r\x85\u2028\u2029])|\A)%TAG")
# A file whose every document is broken is reported this far.
_MAX_RESTARTS: Final = 20


def pure_python_events(text: str) -> NextEvent:
    """The events of PyYAML's own parser: fifty times slower than libyaml, and always there."""
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class PureParser(Reader, Scanner, Parser):
        def __init__(self, stream: str) -> None:
            Reader.__init__(self, stream)
            Scanner.__init__(self)
            Parser.__init__(self)

    return cast("NextEvent", cast("Any", PureParser(text)).get_event)


def events_of(text: str) -> NextEvent:
    """A function that returns the next event of `text`, and None behind the last. It raises `YAMLError`."""
    try:
        from yaml._yaml import CParser
    except ImportError:
        return pure_python_events(text)
    return cast("NextEvent", cast("Any", CParser(text)).get_event)


def parse_yaml(text: str, limits: Limits = LIMITS, *, events: Callable[[str], NextEvent] = events_of) -> Parsed:
    """Every document of `text`, and everything that is wrong with it, in the order of lines. Never raises."""
    parsed = Parsed()
    start, first_line = 0, 0
    try:
        check_characters(text, limits)
        _check_tag_lines(text, limits)
        for _ in range(_MAX_RESTARTS):
            builder = Builder(parsed, limits, _locator(first_line))
            stopped = _read_documents(builder, text[start:] if start else text, events)
            if parsed.exhausted and stopped is not None:
                raise stopped
            if stopped is None:
                break
            parsed.flaws.append(stopped.flaw)
            following = _next_document(text, start, builder.document_line - first_line, stopped.flaw.line - first_line)
            if following is None:
                break
            start, first_line = following, locate_index(text, following)[0] - 1
        else:
            parsed.flaws.append(Flaw(first_line + 1, 1, "more problems follow", "repair those above first"))
    except Unreadable as unreadable:
        parsed.flaws.append(unreadable.flaw)
    parsed.flaws.sort(key=lambda flaw: (flaw.line, flaw.column))
    return parsed


def _check_tag_lines(text: str, limits: Limits) -> None:
    if text.count("%TAG") <= limits.tag_lines:
        return
    for number, match in enumerate(_TAG_LINE.finditer(text)):
        if number == limits.tag_lines:
            place = locate_index(text, match.start())
            raise Unreadable(Flaw(*place, "tags are not allowed in a manifest", "remove the %TAG lines"))


def _read_documents(builder: Builder, text: str, events: Callable[[str], NextEvent]) -> Unreadable | None:
    """Feed all events of `text` to the builder; what made it stop early, if anything."""
    try:
        builder.read(events(text))
    except Unreadable as unreadable:
        return unreadable
    except YAMLError as error:
        return Unreadable(_syntax_flaw(error, text, builder))
    except (ValueError, OverflowError) as error:  # the pure parser's chr() and int() of an escape or a version
        return Unreadable(Flaw(builder.document_line, 1, f"not valid YAML: {error}"))
    return None


def _locator(first_line: int) -> Locate:
    base = first_line + 1
    return lambda mark: (mark.line + base, mark.column + 1)


def _syntax_flaw(error: YAMLError, text: str, builder: Builder) -> Flaw:
    found = error.problem_mark or error.context_mark if isinstance(error, MarkedYAMLError) else None
    if not isinstance(error, MarkedYAMLError) or found is None:
        return Flaw(builder.document_line or 1, 1, f"not valid YAML: {error}")
    message, hint = explain(error.problem, error.context, text[found.index : found.index + 1])
    # An open quote or bracket is noticed lines later, at the end of the document at worst: say where it began.
    context, began = error.context or "", error.context_mark
    at_end = found.index >= len(text.rstrip()) or text.startswith(("---", "..."), found.index)
    opened = builder.innermost_mark
    if at_end and began is not None and "quoted" in context:
        found = began
    elif at_end and opened is not None and text[opened.index] in "[{":
        found, (message, hint) = opened, unclosed(text[opened.index])
    elif began is not None and "flow" in context and began.line < found.line:
        line, column = builder.locate(began)
        hint = f"it began in line {line}, column {column}" + (f"; {hint}" if hint else "")
    return Flaw(*builder.locate(found), message, hint)


def _next_document(text: str, start: int, document_line: int, flaw_line: int) -> int | None:
    """The index of the first `---` line at or behind the flaw and behind the line where its document began.

    Sound because no YAML construct can hold `---` at the beginning of a line.
    """
    line, scanned = 1, start
    for match in _DOCUMENT_LINE.finditer(text, start):
        line += locate_index(text[scanned : match.start()], match.start() - scanned)[0] - 1
        scanned = match.start()
        if line >= flaw_line and line > document_line and match.start() > start:
            return match.start()
    return None
