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

import enum
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from foliot.resources.syntax.places import (
    LIMITS,
    Entries,
    Entry,
    FileLimits,
    Flaw,
    Locate,
    Parsed,
    ParsedDocument,
    Path,
    Places,
    UnreadableText,
)
from foliot.resources.syntax.scalars import MAYBE_SPECIAL, WORDS, BadScalar, check_text, is_rewritten, resolve_plain
from foliot.resources.syntax.source_text import check_characters, locate_index

# --- yaml builder ----------------------------------------------------------------------------------------------------

# From the events of a YAML parser to documents, with every rule checked at the place where it is broken.

NextEvent: TypeAlias = Callable[[], Any]

_CORE: Final = "tag:yaml.org,2002:"
_SCALAR_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (type(None),),
}


class _Key(enum.Enum):
    """Placeholders for a key whose value is not simply stored under it."""

    AWAITED = "the next event is a key"
    MERGE = "<<"
    DROPPED = "the key was refused; its value is read and forgotten"


class _Frame:
    """A collection that is being read. `key` is unused while `value` is a list."""

    __slots__ = ("anchor", "entries", "is_mapping", "key", "key_mark", "mark", "merges", "value")

    def __init__(self, value: Any, entries: Any, mark: Any, anchor: str | None, is_mapping: bool) -> None:
        self.value = value
        self.is_mapping = is_mapping
        self.entries = entries
        self.mark = mark
        self.anchor = anchor
        self.key: str | _Key = _Key.AWAITED
        self.key_mark: Any = None
        self.merges: list[tuple[Any, Any]] | None = None


class Builder:
    """Turns events into documents, and adds them to `parsed`."""

    def __init__(self, parsed: Parsed, limits: FileLimits, locate: Locate) -> None:
        self.locate = locate
        self.document_line = 0
        self._parsed = parsed
        self._limits = limits
        self._nodes = 0
        self._repeated = 0
        self._flaws_before = 0
        self._rewritten = False
        self._anchors: dict[str, tuple[Any, Entries | str | None] | None] = {}
        self._top = _Frame([], [], None, None, False)
        self._stack = [self._top]
        self._handlers: dict[type, Callable[[Any], None]] = {
            DocumentStartEvent: self._begin_document,
            DocumentEndEvent: self._end_document,
            MappingStartEvent: self._open_mapping,
            SequenceStartEvent: self._open_sequence,
            MappingEndEvent: self._close,
            SequenceEndEvent: self._close,
            AliasEvent: self._alias,
        }

    def read(self, next_event: NextEvent) -> None:
        """Take every event. Raises `UnreadableText` and what the parser raises."""
        handlers = self._handlers
        awaited = _Key.AWAITED
        most_nodes = self._limits.nodes
        while (event := next_event()) is not None:
            kind = event.__class__
            if kind is not ScalarEvent:
                if kind in handlers:
                    handlers[kind](event)
                continue
            self._nodes = nodes = self._nodes + 1
            if nodes > most_nodes:
                self._too_many_nodes(event.start_mark)
            # Nine of ten scalars are plain words; deciding those here saves a quarter of all time.
            text = event.value
            top = self._top
            if not event.implicit[0] or event.anchor is not None or text in WORDS or text[0] in MAYBE_SPECIAL:
                self._scalar(event)
            elif not top.is_mapping:
                top.value.append(text)
                top.entries.append((event.start_mark, event.start_mark, None))
            elif top.key is not awaited:
                self._attach(text, None, event.start_mark)
            elif text in top.value:
                self._key(text, event.start_mark)
            else:
                top.key = text
                top.key_mark = event.start_mark

    @property
    def innermost_mark(self) -> Any:
        """The mark at which the innermost open collection begins; None between documents."""
        return self._top.mark if len(self._stack) > 1 else None

    # --- documents

    def _begin_document(self, event: Any) -> None:
        self.document_line = self.locate(event.start_mark)[0]
        if len(self._parsed.documents) >= self._limits.documents:
            self._give_up(event.start_mark, f"the file has more than {self._limits.documents:,} documents")
        self._anchors.clear()
        self._flaws_before = len(self._parsed.flaws)
        self._rewritten = False
        self._top = _Frame([], [], event.start_mark, None, False)
        self._stack = [self._top]

    def _end_document(self, event: Any) -> None:
        root = self._top
        # An empty document is what a `---` at the end of a file leaves behind: nothing was said.
        if root.value and not (root.value[0] is None and root.key is _Key.DROPPED):
            flawed = len(self._parsed.flaws) > self._flaws_before
            found = (root.entries[0], self.locate)
            places = Places(lambda: found)
            self._parsed.documents.append(ParsedDocument(root.value[0], places, flawed, self._rewritten))

    # --- nodes

    def _scalar(self, event: Any) -> None:
        value: Any = event.value
        top = self._top
        is_key = top.is_mapping and top.key is _Key.AWAITED
        if event.implicit[0] and event.tag != "!":
            if is_key:
                self._plain_key(value, event)
                return
            value = self._plain(value, event.start_mark)
            if not event.value and len(self._stack) == 1 and event.anchor is None:
                top.key = _Key.DROPPED
        elif event.tag is not None and event.tag != "!":
            value = self._tagged(event)
        elif not value.isascii() or "\0" in value:
            value = self._checked(value, event.start_mark)
        written: str | None = None
        if value.__class__ is not str:
            written = event.value
            self._rewritten = self._rewritten or is_rewritten(value, event.value)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, written)
        if is_key:
            self._key(value, event.start_mark)
        else:
            self._attach(value, written, event.start_mark)

    def _open_mapping(self, event: Any) -> None:
        self._open(event, {}, {}, "map")

    def _open_sequence(self, event: Any) -> None:
        self._open(event, [], [], "seq")

    def _open(self, event: Any, value: Any, entries: Entries, tag: str) -> None:
        mark = event.start_mark
        self._nodes += 1
        if self._nodes > self._limits.nodes:
            self._too_many_nodes(mark)
        if len(self._stack) > self._limits.depth:
            raise self._too_deep(mark)
        if event.tag is not None and event.tag not in (_CORE + tag, "!"):
            self._refuse_tag(mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._top = _Frame(value, entries, mark, event.anchor, tag == "map")
        self._stack.append(self._top)

    def _close(self, event: Any) -> None:
        closed = self._stack.pop()
        self._top = self._stack[-1]
        if closed.merges is not None:
            _merge_into(closed)
        if closed.anchor is not None:
            self._anchors[closed.anchor] = (closed.value, closed.entries)
        self._attach(closed.value, closed.entries, closed.mark)

    def _alias(self, event: Any) -> None:
        name, mark = event.anchor, event.start_mark
        # The name is not repeated: an unquoted password may start with '*', '&' or '!'.
        if name not in self._anchors:
            hint = "define it above with '&', or quote a text that starts with '*'"
            self._flaw(mark, "this alias refers to nothing in this document", hint)
            self._attach("", None, mark)
            return
        anchored = self._anchors[name]
        if anchored is None:
            self._flaw(mark, "this alias refers to the value it stands in", "a value cannot contain itself")
            self._attach("", None, mark)
            return
        value, entries = anchored
        self._attach(self._copy(value, mark, len(self._stack)), entries, mark)

    def _copy(self, value: Any, mark: Any, depth: int) -> Any:
        """A copy of what an alias repeats, so that no two places of a document share a value that can change."""
        self._nodes += 1
        if value.__class__ is str:
            self._repeated += len(value)
        if self._nodes > self._limits.nodes or self._repeated > self._limits.repeated_chars:
            self._give_up(
                mark, "aliases repeat more than a manifest may hold", "write the values out, or split the file"
            )
        if value.__class__ is not dict and value.__class__ is not list:
            return value
        if depth > self._limits.depth:
            raise self._too_deep(mark)
        if value.__class__ is list:
            return [self._copy(item, mark, depth + 1) for item in value]
        return {key: self._copy(item, mark, depth + 1) for key, item in value.items()}

    # --- keys and values

    def _attach(self, value: Any, entries: Entries | str | None, mark: Any) -> None:
        top = self._top
        if not top.is_mapping:
            top.value.append(value)
            top.entries.append((mark, mark, entries))
            return
        key = top.key
        if key is _Key.AWAITED:
            self._key(value, mark)
            return
        top.key = _Key.AWAITED
        if key.__class__ is str:
            top.value[key] = value
            top.entries[key] = (top.key_mark, mark, entries)
        elif key is _Key.MERGE:
            self._take_merge(value, entries, mark)

    def _plain_key(self, text: str, event: Any) -> None:
        """An unquoted key that may be something else than text."""
        mark = event.start_mark
        if text == "<<":
            self._top.key, self._top.key_mark = _Key.MERGE, mark
            if self._top.merges is not None:
                self._flaw(
                    mark, "the merge key << is given twice in one mapping", "merge a list: <<: [*first, *second]"
                )
            return
        value = self._plain(text, mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, None)
        if value.__class__ is not str:
            shown = text or "an empty key"
            meaning = "null" if value is None else "true or false" if isinstance(value, bool) else "a number"
            self._flaw(mark, f"the key {shown} is {meaning}, not text", f'quote it: "{text}"', text)
        self._key(text, mark)

    def _key(self, key: Any, mark: Any) -> None:
        top = self._top
        top.key_mark = mark
        if key.__class__ is not str:
            self._flaw(mark, "a key must be a text", "a list, a mapping or an alias to one cannot be a key")
            top.key = _Key.DROPPED
        elif key in top.value:
            line, column = self.locate(top.entries[key][0])
            self._flaw(
                mark,
                f"the key {key!r} is given twice",
                f"it is first given in line {line}, column {column}; remove one of them",
                key,
            )
            top.key = _Key.DROPPED
        else:
            top.key = key

    def _take_merge(self, value: Any, entries: Any, mark: Any) -> None:
        if self._top.merges is None:
            self._top.merges = []
        sources = (
            list(zip(value, entries, strict=True)) if value.__class__ is list else [(value, (None, mark, entries))]
        )
        for source, entry in sources:
            if source.__class__ is dict:
                self._top.merges.append((source, entry[2]))
            else:
                self._flaw(entry[1], "<< merges only mappings", "write <<: *anchor, or <<: [*first, *second]")

    # --- scalars

    def _plain(self, text: str, mark: Any) -> Any:
        try:
            return resolve_plain(text)
        except BadScalar as bad:
            self._flaw(mark, bad.message, bad.hint)
            return text

    def _checked(self, text: str, mark: Any) -> str:
        try:
            check_text(text)
        except BadScalar as bad:
            self._flaw(mark, bad.message, bad.hint)
            return ""
        return text

    def _tagged(self, event: Any) -> Any:
        name = event.tag.removeprefix(_CORE)
        if name == "str":
            return self._checked(event.value, event.start_mark)
        if event.tag == name or name not in _SCALAR_TYPES:
            self._refuse_tag(event.start_mark)
            return event.value
        value = self._plain(event.value, event.start_mark)
        if not isinstance(value, _SCALAR_TYPES[name]) or (name != "bool" and isinstance(value, bool)):
            self._flaw(event.start_mark, f"the value is not what its tag !!{name} says", "remove the tag")
            return event.value
        return float(value) if name == "float" else value

    def _refuse_tag(self, mark: Any) -> None:
        hint = "remove it: manifests hold plain values only; quote a text that starts with '!'"
        self._flaw(mark, "tags are not allowed in a manifest", hint)

    # --- what is wrong

    def _path(self) -> Path:
        steps = [frame.key if frame.is_mapping else len(frame.value) for frame in self._stack[1:]]
        return tuple(step for step in steps if not isinstance(step, _Key))

    def _flaw(self, mark: Any, message: str, hint: str | None, *more: str) -> None:
        line, column = self.locate(mark)
        if len(self._parsed.flaws) >= self._limits.flaws:
            self._give_up(mark, "more problems follow", "repair those above first")
        self._parsed.flaws.append(Flaw(line, column, message, hint, (*self._path(), *more)))

    def _too_many_nodes(self, mark: Any) -> None:
        self._give_up(mark, f"the file holds more than {self._limits.nodes:,} values")

    def _too_deep(self, mark: Any) -> UnreadableText:
        return UnreadableText(Flaw(*self.locate(mark), f"values are nested more than {self._limits.depth} deep"))

    def _give_up(self, mark: Any, message: str, hint: str | None = None) -> None:
        self._parsed.exhausted = True
        raise UnreadableText(Flaw(*self.locate(mark), message, hint))


def _merge_into(frame: _Frame) -> None:
    entries: dict[str, Entry] = frame.entries
    for source, source_entries in frame.merges or ():
        for key, value in source.items():
            if key not in frame.value:
                frame.value[key] = value
                entries[key] = source_entries[key]


# --- yaml ------------------------------------------------------------------------------------------------------------

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


def parse_yaml(text: str, limits: FileLimits = LIMITS, *, events: Callable[[str], NextEvent] = events_of) -> Parsed:
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
    except UnreadableText as unreadable:
        parsed.flaws.append(unreadable.flaw)
    parsed.flaws.sort(key=lambda flaw: (flaw.line, flaw.column))
    return parsed


def _check_tag_lines(text: str, limits: FileLimits) -> None:
    if text.count("%TAG") <= limits.tag_lines:
        return
    for number, match in enumerate(_TAG_LINE.finditer(text)):
        if number == limits.tag_lines:
            place = locate_index(text, match.start())
            raise UnreadableText(Flaw(*place, "tags are not allowed in a manifest", "remove the %TAG lines"))


def _read_documents(builder: Builder, text: str, events: Callable[[str], NextEvent]) -> UnreadableText | None:
    """Feed all events of `text` to the builder; what made it stop early, if anything."""
    try:
        builder.read(events(text))
    except UnreadableText as unreadable:
        return unreadable
    except YAMLError as error:
        return UnreadableText(_syntax_flaw(error, text, builder))
    except (ValueError, OverflowError) as error:  # the pure parser's chr() and int() of an escape or a version
        return UnreadableText(Flaw(builder.document_line, 1, f"not valid YAML: {error}"))
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
