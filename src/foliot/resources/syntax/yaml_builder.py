"""From the events of a YAML parser to documents, with every rule checked at the place where it is broken."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

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
    Entries,
    Entry,
    Flaw,
    Limits,
    Locate,
    Parsed,
    ParsedDocument,
    Path,
    Places,
    Unreadable,
)
from foliot.resources.syntax.scalars import MAYBE_SPECIAL, WORDS, BadScalar, check_text, is_rewritten, resolve_plain

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

    def __init__(self, parsed: Parsed, limits: Limits, locate: Locate) -> None:
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
        """Take every event. Raises `Unreadable` and what the parser raises."""
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

    def _too_deep(self, mark: Any) -> Unreadable:
        return Unreadable(Flaw(*self.locate(mark), f"values are nested more than {self._limits.depth} deep"))

    def _give_up(self, mark: Any, message: str, hint: str | None = None) -> None:
        self._parsed.exhausted = True
        raise Unreadable(Flaw(*self.locate(mark), message, hint))


def _merge_into(frame: _Frame) -> None:
    entries: dict[str, Entry] = frame.entries
    for source, source_entries in frame.merges or ():
        for key, value in source.items():
            if key not in frame.value:
                frame.value[key] = value
                entries[key] = source_entries[key]
