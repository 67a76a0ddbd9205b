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
from foliot.resources.syntax.yaml_words import explain, unclosed

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
