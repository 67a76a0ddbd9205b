"""What tools print while they are watched: on stderr, and never into a picture that is being drawn there."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Protocol, runtime_checkable

from foliot.cli.terminal import out


@runtime_checkable
class Draws(Protocol):
    """A view that keeps part of the terminal moving, and so has to know what else is printed there."""

    def printed(self, line: str) -> None:
        """Show a line that somebody printed. Called on whichever thread printed it."""
        ...


@contextmanager
def aside(view: object) -> Generator[None]:
    """Send what is printed meanwhile to stderr: the answer alone is for stdout. A view that draws shows it itself."""
    if not isinstance(view, Draws):
        stderr = sys.stderr
        # Set in, and safe: what a tool prints may be what a model told it to print.
        plain = _Lines(lambda line: out(f"    {line}", file=stderr))
        try:
            with redirect_stdout(plain):
                yield
        finally:
            plain.finish()
        return
    lines = _Lines(view.printed)
    try:
        # stderr too: what libraries log there would land in the picture as well.
        with redirect_stdout(lines), redirect_stderr(lines):
            yield
    finally:
        lines.finish()


class _Lines(io.TextIOBase):
    """A file that hands on whole lines. Each thread has its own unfinished one, so that two never share a line."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._begun: dict[int, str] = {}
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        me = threading.get_ident()
        with self._lock:
            *ended, rest = (self._begun.pop(me, "") + text).split("\n")
            if rest:
                self._begun[me] = rest
        for line in ended:
            self._show(line.rpartition("\r")[2])  # of a line that was drawn over itself, the last state
        return len(text)

    def finish(self) -> None:
        """Hand on what was begun and never ended."""
        with self._lock:
            begun, self._begun = list(self._begun.values()), {}
        for line in begun:
            self._show(line.rpartition("\r")[2])
