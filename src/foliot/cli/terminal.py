r"""The one way to standard output and standard error.

Every command prints through `out`, paints through `paint`, and draws through `live_console` or a `PromptArea`; a test
says that none does otherwise. What passes through here cannot steer a terminal, whoever wrote it: only the colours that
`paint` gave are let through, which are known by a number that nobody outside of this process knows. Line breaks are
kept, because commands print several lines; so a field of somebody else's text is made one line before it is put
between others (`foliot.common.text.one_line`; `table` does it for its cells).
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO, TYPE_CHECKING, Any, Final

import click

from foliot.common.text import visible
from foliot.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.segment import Segment

# Ours: `ESC [ number ; … m`. Tools for stripping colours see an ordinary sequence in it.
_SEAL: Final = int.from_bytes(os.urandom(6)) + 10**6
_SEALED: Final = re.compile(rf"\x1b\[{_SEAL};([0-9;]*)m")
_PIECES: Final = re.compile(rf"(\x1b\[{_SEAL};[0-9;]*m| +)")
_SGR: Final = re.compile(r"\x1b\[([0-9;]*)m")
_SEALING: Final = f"\x1b[{_SEAL};\\1m"


def paint(text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None) -> str:
    """Return the text in a colour or weight, for `out`. The text itself may be anybody's."""
    before, after = click.style("\0", fg=fg, bold=bold, dim=dim).split("\0")
    return f"{_SGR.sub(_SEALING, before)}{_safe(text)}{_SGR.sub(_SEALING, after)}"


def wrap(line: str, width: int, *, indent: str | None = None) -> list[str]:
    """Returns a line, painted or not, as rows of at most so many columns, broken at spaces where it can be.

    Rows after the first are indented, by two columns more than the line itself if `indent` does not say how: so what
    is quoted in a line never begins a row.
    """
    from rich.cells import cell_len, chop_cells

    if indent is None:
        indent = " " * min(len(line) - len(line.lstrip(" ")) + 2, width // 2)
    rows, row, columns = list[str](), "", 0
    for piece in _PIECES.split(_safe(line)):
        if _SEALED.fullmatch(piece):
            row += piece
            continue
        for part in chop_cells(piece, width - len(indent)) or [piece]:
            if columns + (size := cell_len(part)) > width:
                rows.append(row)
                row, columns = indent, len(indent)
                if part.isspace():
                    continue
            row, columns = row + part, columns + size
    return [*rows, row]


def out(
    text: object = "",
    *,
    err: bool = False,
    nl: bool = True,
    color: bool | None = None,
    file: IO[Any] | None = None,
) -> None:
    """Print a text to stdout, or to stderr. Colours are left out where click says so."""
    click.echo(_rendered(str(text)), err=err, nl=nl, color=color, file=file)


def emit(data: str) -> None:
    """Print data that was asked for as it is, such as the answer of a run: unchanged to a pipe or a file, safe to a
    terminal."""
    # `color`: what looks like a colour in the data is not taken out of it either.
    click.echo(visible(data) if sys.stdout.isatty() else _encodable(data), color=True)


def prompt(question: str, *, secret: bool = False, twice: bool = False) -> str:
    """Ask the person at the terminal for a line."""
    return str(click.prompt(visible(question), hide_input=secret, confirmation_prompt=twice, err=True))


def confirm(question: str) -> None:
    """Ask for a yes. Raises `click.Abort` for anything else, and `UsageError` where nobody is there to answer."""
    try:
        said = click.confirm(visible(question), err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError("Nobody is there to answer this question.", hint="Answer it beforehand with --yes.") from None
    if not said:
        raise click.Abort


def live_console(*, no_color: bool | None) -> Console:
    """Return the console of live views, on stderr. Markup is not read, and what is drawn is safe."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                shown = segment.text if segment.control else visible(segment.text)
                yield segment if shown == segment.text else Segment(shown, segment.style)

    return SafeConsole(file=sys.stderr, no_color=no_color, highlight=False, markup=False, emoji=False)


class PromptArea:
    """The rows at the bottom of the terminal in which somebody types: they are drawn again, and texts go above them.

    Whoever draws breaks rows to the width of the terminal, so that it is known how many there are.
    """

    def __init__(self, *, color: bool | None) -> None:
        self._color = color
        self._row = 0  # of the cursor, in what is drawn

    def draw(self, rows: Sequence[str], *, row: int, column: int) -> None:
        """Draws these rows in the place of those before, with the cursor at a row and a column of them."""
        back = f"\x1b[{len(rows) - 1 - row}A" if row < len(rows) - 1 else ""
        right = f"\x1b[{column}C" if column else ""
        self._write(f"{self._erased()}{self._shown(rows)}\r{back}{right}")
        self._row = row

    def print(self, rows: Iterable[str]) -> None:
        """Prints rows for good; what was drawn is gone until it is drawn again."""
        self._write(f"{self._erased()}{''.join(f'{self._shown([row])}{chr(10)}' for row in rows)}")
        self._row = 0

    def switch(self, *, on: bool) -> None:
        """Begins or ends its use: pastes are told from keys meanwhile. At the end what was drawn is erased."""
        self._write("\x1b[?2004h" if on else f"{self._erased()}\x1b[?2004l")
        self._row = 0

    def _erased(self) -> str:
        return "\r" + (f"\x1b[{self._row}A" if self._row else "") + "\x1b[J"

    def _shown(self, rows: Sequence[str]) -> str:
        text = _rendered("\n".join(rows))
        return text if self._color is not False else click.unstyle(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _rendered(text: str) -> str:
    """The text with our colours as a terminal wants them, and nothing else that it would obey."""
    return _SEALED.sub("\x1b[\\1m", _safe(text))


def _safe(text: str) -> str:
    """The text with our own colours, still sealed, and nothing else that a terminal would obey."""
    if "\x1b" not in text:
        return visible(text)
    parts = _SEALED.split(text)  # text, codes, text, codes, …
    return "".join(f"\x1b[{_SEAL};{part}m" if i % 2 else visible(part) for i, part in enumerate(parts))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
