"""Places of values in the text of a document, and flaws of the text itself.

A parser keeps the marks its events came with in a tree of the same shape as the value. Lines and columns are worked
out only when something is to be reported: 999 of 1,000 manifests never need them, and asking for them at once would
cost as much as building the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from foliot.kernel.json_texts import MOST_VALUES

Path: TypeAlias = tuple[str | int, ...]
# (mark of the key, mark of the value, entries of the value); an item of a list has its own mark twice. Where a word
# was read as a number, a boolean or null, what was written stands in place of the entries: some fields want the text.
Entry: TypeAlias = "tuple[Any, Any, Entries | str | None]"
Entries: TypeAlias = "dict[str, Entry] | list[Entry]"
Locate: TypeAlias = Callable[[Any], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of one file: far above any honest manifest, low enough that a hostile one costs a second or two."""

    bytes: int = 4 * 1024 * 1024
    depth: int = 64
    # Values of the whole file, those that aliases repeat included.
    nodes: int = MOST_VALUES
    # Characters that aliases repeat: few aliases of one long text are a bomb as well.
    repeated_chars: int = 4 * 1024 * 1024
    documents: int = 10_000
    # The YAML parser compares each %TAG line with all before it: 200,000 of them took three minutes.
    tag_lines: int = 16
    flaws: int = 100


LIMITS = FileLimits()


@dataclass(frozen=True, slots=True)
class Flaw:
    """A flaw of the text itself, before anyone asks what it means. Lines and columns count from 1."""

    line: int
    column: int
    message: str
    hint: str | None = None
    path: Path = ()


class UnreadableText(Exception):
    """Parsing cannot go on behind this place. Caught by the parsers and the reader, never seen by a user."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.message)
        self.flaw = flaw


class Places:
    """The positions of one document, which `find` finds when one is asked for. Lines and columns count from 1."""

    def __init__(self, find: Callable[[], tuple[Entry, Locate]]) -> None:
        self._find = find

    @cached_property
    def found(self) -> tuple[Entry, Locate]:
        """The entry of the whole document, and what makes a line and a column of a mark."""
        return self._find()

    def of_value(self, path: Path) -> tuple[int, int]:
        """Returns the place of the value at `path`; if it is missing, that of the key of its nearest ancestor."""
        entry, missing = self._nearest(path)
        return self.found[1](entry[0] if missing else entry[1])

    def of_key(self, path: Path) -> tuple[int, int]:
        """Returns the place of the key of the value at `path`, or of its nearest ancestor; for an item of a list, the
        item.
        """
        return self.found[1](self._nearest(path)[0][0])

    def entry(self, path: Path) -> Entry | None:
        """Returns the entry at `path`; None when nothing is there."""
        found, missing = self._nearest(path)
        return None if missing else found

    def written(self, path: Path) -> str | None:
        """Returns the source text of a word at `path` that was read as a number, a boolean or null."""
        found = self.entry(path)
        return found[2] if found is not None and isinstance(found[2], str) else None

    def spelled(self, path: Path, fold: Callable[[str], str]) -> Path:
        """`path` in the spelling of the text, where two keys that `fold` makes equal are the same field."""
        entry, steps = self.found[0], list(path)
        for index, step in enumerate(path):
            entries = entry[2]
            if isinstance(entries, dict) and isinstance(step, str) and step not in entries:
                steps[index] = next((key for key in entries if fold(key) == fold(step)), step)
            following = _step(entries, steps[index])
            if following is None:
                break
            entry = following
        return tuple(steps)

    def _nearest(self, path: Path) -> tuple[Entry, bool]:
        """The deepest entry on the way to `path`, and whether the way ended early."""
        entry = self.found[0]
        for step in path:
            following = _step(entry[2], step)
            if following is None:
                return entry, True
            entry = following
        return entry, False


def _step(entries: Entries | str | None, step: str | int) -> Entry | None:
    if isinstance(entries, dict):
        return entries.get(step) if isinstance(step, str) else None
    if isinstance(entries, list) and isinstance(step, int) and 0 <= step < len(entries):
        return entries[step]
    return None


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One document of a file as plain values: dict, list, str, int, float, bool, None. Dict keys are str.

    `flawed` says that the text was not sound: the value is good enough to look for more problems, not to be used.
    `rewritten` says that some number or boolean is written otherwise than it would be printed: 0042, 1.10, TRUE.
    """

    value: Any
    places: Places
    flawed: bool = False
    rewritten: bool = False

    @property
    def line(self) -> int:
        return self.places.of_value(())[0]


@dataclass(slots=True)
class Parsed:
    """The documents of a text. A document with a flaw that leaves it readable (a key given twice) is there too.

    `exhausted` says that a limit of the whole file was reached: nothing behind it was looked at.
    """

    documents: list[ParsedDocument] = field(default_factory=list["ParsedDocument"])
    flaws: list[Flaw] = field(default_factory=list["Flaw"])
    exhausted: bool = False
