r"""A line editor over the bytes of a terminal: what is typed becomes texts and wishes. Pure: no terminal, no clock.

    Enter                       enters the text, unless it ends with a backslash: then another line begins
    Alt-Enter, a paste          put a line break into the text
    Ctrl-A Ctrl-E, arrows       move; Ctrl-U Ctrl-K Ctrl-W delete; arrows up and down recall what was entered before
    Ctrl-C                      `interrupt`; a text that stands there is dropped first, and is not entered
    Ctrl-D with no text         `leave`

A paste is text and never a key: a line break in it enters nothing, and its control characters are dropped. What is not
understood is dropped too, whole sequences of it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct


class Entered(Struct, frozen=True):
    """A whole text that was entered."""

    text: str


Wish: TypeAlias = Literal["interrupt", "leave", "suspend", "redraw"]
Typed: TypeAlias = Entered | Wish

PASTE: Final = "\x1b[200~"
PASTED: Final = "\x1b[201~"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-9;?<=>]*[ -/]*[@-~]|O[@-~]|[^\[O\x1b])")
_BEGINNING: Final = re.compile(r"\x1b(?:\[[0-9;?<=>]*[ -/]*|O)?$")
# What no text has in it; a paste may bring anything.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_WORD: Final = re.compile(r"\S*\s*$")
# A sequence that never ends is no key.
LONGEST_SEQUENCE: Final = 64
LONGEST_TEXT: Final = 1_000_000


class LineEditor:
    """The text in progress. `history` is what was entered before, oldest first."""

    def __init__(self, history: Sequence[str] = ()) -> None:
        self.text = ""
        self.cursor = 0
        self._history: list[str] = [*history]
        self._place: int = len(self._history)
        self._draft = ""
        self._unread = ""
        self._pasting = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> list[Typed]:
        """Takes what was read from the terminal, however it was cut; returns what was entered or wished, in order."""
        self._unread += self._decoder.decode(data)
        found: list[Typed] = []
        while self._unread:
            taken = self._paste() if self._pasting else self._key(found)
            if not taken:
                break
        return found

    def remember(self, text: str) -> None:
        """Adds a text to what the arrows recall, unless it is the last one again."""
        if text and (not self._history or self._history[-1] != text):
            self._history.append(text)
        self._place = len(self._history)

    def clear(self) -> None:
        """Drops the text in progress."""
        self.text, self.cursor, self._place = "", 0, len(self._history)

    # --- reading -------------------------------------------------------------------------------------------------

    def _key(self, found: list[Typed]) -> bool:
        """Takes one key; False when more has to be read first."""
        first = self._unread[0]
        if first == "\x1b":
            return self._escape()
        self._unread = self._unread[1:]
        if first in "\r\n":
            self._enter(found)
        elif first in _WISHES or first in _KEYS:
            self._control(first, found)
        elif first == "\t" or not _CONTROL.match(first):
            self._insert(first)
        return True

    def _escape(self) -> bool:
        if self._unread.startswith(PASTE):
            self._unread, self._pasting = self._unread[len(PASTE) :], True
            return True
        sequence = _SEQUENCE.match(self._unread)
        if sequence is None:
            if len(self._unread) < LONGEST_SEQUENCE and _BEGINNING.match(self._unread):
                return False
            self._unread = self._unread[1:]
            return True
        self._unread = self._unread[sequence.end() :]
        if (act := _SEQUENCES.get(sequence.group())) is not None:
            act(self)
        return True

    def _paste(self) -> bool:
        text, end, rest = self._unread.partition(PASTED)
        if not end:
            # The end may be cut in two: as much of it as could be its beginning is kept back.
            kept = next((n for n in range(len(PASTED) - 1, 0, -1) if text.endswith(PASTED[:n])), 0)
            text, rest = text[: len(text) - kept], text[len(text) - kept :]
        self._insert(_CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
        self._unread, self._pasting = rest, not end
        return bool(end)

    def _control(self, key: str, found: list[Typed]) -> None:
        if key == "\x04" and self.text:
            self.delete()
        elif key == "\x03" and self.text:
            self.clear()
            found.append("redraw")
        elif key in _WISHES:
            found.append(_WISHES[key])
        else:
            _KEYS[key](self)

    # --- editing -------------------------------------------------------------------------------------------------

    def _insert(self, text: str) -> None:
        text = text[: max(0, LONGEST_TEXT - len(self.text))]
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _enter(self, found: list[Typed]) -> None:
        if self.text.endswith("\\") and self.cursor == len(self.text):
            self.text = self.text[:-1] + "\n"
            self.cursor = len(self.text)
            return
        entered = self.text
        self.clear()
        found.append(Entered(entered))

    def backspace(self) -> None:
        if self.cursor:
            self._cut(self.cursor - 1, self.cursor)

    def delete(self) -> None:
        self._cut(self.cursor, self.cursor + 1)

    def delete_word(self) -> None:
        before = _WORD.search(self.text[: self.cursor].rstrip())
        self._cut(before.start() if before is not None else 0, self.cursor)

    def delete_before(self) -> None:
        self._cut(self._line_start(), self.cursor)

    def delete_after(self) -> None:
        self._cut(self.cursor, self._line_end())

    def _cut(self, start: int, end: int) -> None:
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.cursor) + 1

    def _line_end(self) -> int:
        end = self.text.find("\n", self.cursor)
        return len(self.text) if end < 0 else end

    def left(self) -> None:
        self.cursor = max(0, self.cursor - 1)

    def right(self) -> None:
        self.cursor = min(len(self.text), self.cursor + 1)

    def home(self) -> None:
        self.cursor = self._line_start()

    def end(self) -> None:
        self.cursor = self._line_end()

    def up(self) -> None:
        start = self._line_start()
        if start:  # within a text of several lines it moves
            column, before = self.cursor - start, self.text.rfind("\n", 0, start - 1) + 1
            self.cursor = min(before + column, start - 1)
        else:
            self._recall(self._place - 1)

    def down(self) -> None:
        end = self._line_end()
        if end < len(self.text):
            column, after = self.cursor - self._line_start(), self.text.find("\n", end + 1)
            self.cursor = min(end + 1 + column, len(self.text) if after < 0 else after)
        else:
            self._recall(self._place + 1)

    def _recall(self, place: int) -> None:
        if not 0 <= place <= len(self._history) or place == self._place:
            return
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        self.text = self._draft if place == len(self._history) else self._history[place]
        self.cursor = len(self.text)

    def break_line(self) -> None:
        self._insert("\n")


_WISHES: Final[Mapping[str, Wish]] = {"\x03": "interrupt", "\x04": "leave", "\x0c": "redraw", "\x1a": "suspend"}
_Act: TypeAlias = Callable[[LineEditor], None]
_KEYS: Final[Mapping[str, _Act]] = {
    "\x01": LineEditor.home,
    "\x02": LineEditor.left,
    "\x05": LineEditor.end,
    "\x06": LineEditor.right,
    "\x08": LineEditor.backspace,
    "\x0b": LineEditor.delete_after,
    "\x0e": LineEditor.down,
    "\x10": LineEditor.up,
    "\x15": LineEditor.delete_before,
    "\x17": LineEditor.delete_word,
    "\x7f": LineEditor.backspace,
}
_SEQUENCES: Final[Mapping[str, _Act]] = {
    "\x1b\r": LineEditor.break_line,
    "\x1b\n": LineEditor.break_line,
    **{f"\x1b{kind}A": LineEditor.up for kind in "[O"},
    **{f"\x1b{kind}B": LineEditor.down for kind in "[O"},
    **{f"\x1b{kind}C": LineEditor.right for kind in "[O"},
    **{f"\x1b{kind}D": LineEditor.left for kind in "[O"},
    **{f"\x1b{kind}H": LineEditor.home for kind in "[O"},
    **{f"\x1b{kind}F": LineEditor.end for kind in "[O"},
    "\x1b[1~": LineEditor.home,
    "\x1b[3~": LineEditor.delete,
    "\x1b[4~": LineEditor.end,
}
