"""The terminal of a chat: the prompt stays at the bottom while answers are written above it.

Everything that others wrote stands behind a bar, row by row, and is broken here: no text of a model, a tool or another
person can pass for a prompt or for a line of ours. Keys are read without a thread. The terminal is given back as it was
found, whatever ends the chat.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import sys
import termios
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from rich.cells import cell_len, chop_cells

from foliot.cli.chat.line_editor import LineEditor, Typed
from foliot.cli.chat.markdown import LONGEST_LINE, SetLine, Setter, set_line
from foliot.cli.terminal import PromptArea, paint, wrap
from foliot.common.text import visible

BAR: Final = "│ "
MORE: Final = ". "
# So much of a long text is seen while it is edited; all of it is sent.
MOST_ROWS: Final = 12
READ: Final = 65_536


class Screen:
    """`prompt` is what stands before the text that is typed, `status` the line above it, blank for none.

    `asked` is the question that stands there, None for none: what is entered answers the one that stood there then.
    """

    def __init__(self, editor: LineEditor, *, color: bool | None) -> None:
        self.editor = editor
        self.prompt = "> "
        self.status = ""
        self.asked: object | None = None
        self._area = PromptArea(color=color)
        self._typed: asyncio.Queue[tuple[Typed | None, object | None]] = asyncio.Queue()
        self._unread: Callable[[], bool] | None = None
        self._line = ""  # the last line of an answer: it may go on
        self._begun = False  # something of the answer stands there
        self._setter = Setter()

    # --- above the prompt ----------------------------------------------------------------------------------------

    def print(self, *lines: str) -> None:
        """Prints lines of our own for good. What they quote of others is one line of it (`one_line`)."""
        self.settle()
        self._area.print(row for each in lines for line in each.split("\n") for row in wrap(line, self.width))
        self.draw()

    def print_theirs(self, text: str) -> None:
        """Prints a whole text of somebody else, as it stands, behind the bar."""
        self.settle()
        self._area.print(_behind_bar(self._plain_rows(text)))
        self.draw()

    def print_answer(self, text: str) -> None:
        """Prints a whole answer, which is Markdown."""
        self.settle()
        self.write(text)
        self.settle()
        self.draw()

    def write(self, text: str) -> None:
        """Takes a piece of an answer: lines that have ended are printed for good, the last one moves."""
        if not self._begun:
            text = text.lstrip("\n")
        self._begun = self._begun or bool(text)
        *ended, self._line = (self._line + text).split("\n")
        rows = [row for line in ended for row in self._set(self._setter.take(line))]
        if len(self._line) > LONGEST_LINE:  # not drawn as a whole again and again
            *full, self._line = self._plain_rows(self._line)
            rows += full
        if rows:
            self._area.print(_behind_bar(rows))
        self.draw()

    def settle(self) -> None:
        """Prints the last line of an answer for good: nothing more is written to it."""
        if self._line.strip():
            self._area.print(_behind_bar(self._set(self._setter.take(self._line))))
        self._line, self._begun, self._setter = "", False, Setter()

    def draw(self) -> None:
        """Draws the prompt, and what moves above it: the end of a line that is higher than the screen."""
        width = self.width
        rows, row, column = prompt_rows(self.prompt, self.editor.text, self.editor.cursor, width)
        status = [paint(row, dim=True) for row in chop_cells(visible(self.status), width)[:2]] if self.status else []
        room = max(1, shutil.get_terminal_size().lines - len(status) - len(rows) - 1)
        moving = self._set(set_line(self._line, self._setter.fence))[-room:] if self._line else []
        above = [*_behind_bar(moving), *status]
        self._area.draw([*above, *rows], row=len(above) + row, column=column)

    def _set(self, line: SetLine) -> list[str]:
        width = self.width - len(BAR)
        return wrap(line.text, width, indent=line.indent[: width // 2])

    def _plain_rows(self, text: str) -> list[str]:
        width = self.width - len(BAR)
        return [row for line in visible(text).expandtabs(4).split("\n") for row in wrap(line, width, indent="")]

    @property
    def width(self) -> int:
        """Says how many columns a row may take."""
        # A row that fills the last column may or may not begin another: none does.
        return max(20, shutil.get_terminal_size().columns - 1)

    # --- keys ----------------------------------------------------------------------------------------------------

    async def typed(self) -> tuple[Typed | None, object | None]:
        """Returns what is entered or wished next, None when the terminal is gone; and what was `asked` then."""
        return await self._typed.get()

    def ask(self, prompt: str, question: object | None) -> None:
        """Puts a question there, or takes it away. Nothing that was typed before it is seen is typed to it.

        That is what stands in the editor, and what was typed ahead and is not read yet.
        """
        if question is not None:
            while self._unread is not None and self._unread():
                pass
            self.editor.clear()
        self.prompt, self.asked = prompt, question
        self.draw()

    @contextmanager
    def opened(self) -> Generator[None]:
        """Takes the terminal for as long as the block lasts."""
        loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
        found = termios.tcgetattr(stdin)
        self._take(stdin, found)
        loop.add_reader(stdin, self._read, stdin, found)
        self._unread = lambda: bool(select.select([stdin], [], [], 0)[0]) and self._read(stdin, found)
        with suppress(NotImplementedError, ValueError):
            loop.add_signal_handler(signal.SIGWINCH, self.draw)
        try:
            yield
        finally:
            self._unread = None
            loop.remove_reader(stdin)
            with suppress(NotImplementedError, ValueError):
                loop.remove_signal_handler(signal.SIGWINCH)
            self.settle()
            self._give_back(stdin, found)

    def _take(self, stdin: int, found: list[object]) -> None:
        ours = [*found]
        # Keys come one by one, nothing is echoed, and Ctrl-C is a key; output is as it was.
        ours[3] = int(ours[3]) & ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)  # type: ignore[call-overload]
        ours[0] = int(ours[0]) & ~termios.IXON  # type: ignore[call-overload]
        termios.tcsetattr(stdin, termios.TCSADRAIN, ours)  # type: ignore[arg-type]
        self._area.switch(on=True)
        self.draw()

    def _give_back(self, stdin: int, found: list[object]) -> None:
        with suppress(OSError):  # a terminal that is gone takes nothing
            self._area.switch(on=False)
        with suppress(termios.error, OSError):
            termios.tcsetattr(stdin, termios.TCSADRAIN, found)  # type: ignore[arg-type]

    def _read(self, stdin: int, found: list[object]) -> bool:
        """Takes what was typed; False when nothing more will come."""
        try:
            data = os.read(stdin, READ)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(stdin)
            self._unread = None
            self._typed.put_nowait((None, None))
            return False
        for each in self.editor.feed(data):
            if each == "suspend":
                self._give_back(stdin, found)
                os.kill(os.getpid(), signal.SIGTSTP)
                self._take(stdin, found)
            elif each != "redraw":
                self._typed.put_nowait((each, self.asked))
        self.draw()
        return True


def _behind_bar(rows: Iterable[str]) -> list[str]:
    return [f"{paint(BAR, dim=True)}{row}" for row in rows]


def prompt_rows(prompt: str, text: str, cursor: int, width: int) -> tuple[list[str], int, int]:
    """Returns the rows of a prompt with a text, and the row and column of the cursor. Pure.

    Of a long text the rows around the cursor are shown.
    """
    rows: list[str] = []
    at, column, seen = 0, 0, 0
    for number, line in enumerate(text.split("\n")):
        before = prompt if number == 0 else MORE
        here = cursor - seen
        pieces = _chopped(line, width - cell_len(before))
        for place, piece in enumerate(pieces):
            if 0 <= here <= len(piece) and (here < len(piece) or place == len(pieces) - 1):
                at, column = len(rows), cell_len(before) + cell_len(_shown(piece[:here]))
            here -= len(piece)
            rows.append((before if place == 0 else " " * cell_len(before)) + _shown(piece))
        seen += len(line) + 1
    first = max(0, min(at - MOST_ROWS + 1, len(rows) - MOST_ROWS))
    return rows[first : first + MOST_ROWS], at - first, column


def _chopped(line: str, width: int) -> Sequence[str]:
    """The line in pieces that fit, as they are shown."""
    pieces, piece, taken = list[str](), "", 0
    for char in line:
        columns = cell_len(_shown(char))
        if taken + columns > width and piece:
            pieces.append(piece)
            piece, taken = "", 0
        piece, taken = piece + char, taken + columns
    return [*pieces, piece]


def _shown(text: str) -> str:
    return visible(text.replace("\t", "    "))
