"""Plain lines on stderr, for pipes, logs and CI: no colours, no control characters, one line for each thing."""

from __future__ import annotations

import time
from typing import Final

from foliot.cli.runview.base import Opening
from foliot.cli.runview.story import Line, Story, Style, closing
from foliot.cli.terminal import out
from foliot.engine.live import Live, Recorded
from foliot.kernel.events import ToolStarted
from foliot.printable import one_line, visible
from foliot.results import RunResult

MARKS: Final[dict[Style, str]] = {
    "ok": "✓ ",
    "bad": "✗ ",
    "note": "! ",
    "text": "│ ",  # what a model wrote stands behind a bar: it cannot pass for a line of ours
}


class PlainView:
    """The answer is not among the lines: it goes to stdout, where pipes want it."""

    def __init__(self) -> None:
        self._story = Story(time.monotonic)
        self._calls = 0

    def begin(self, opening: Opening) -> None:
        self._calls = opening.calls
        self._print(self._story.opening(opening))

    def show(self, item: Live) -> None:
        if isinstance(item, Recorded):
            self._calls += isinstance(item.event, ToolStarted) and item.event.attempt == 1
            self._print(self._story.take(item, answer=False))

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        self._print([Line("note", text)])

    def end(self, result: RunResult | None, seconds: float) -> bool:
        if result is not None:
            self._print([closing(result, self._calls, seconds)])
        return False

    def _print(self, lines: list[Line]) -> None:
        for line in lines:
            detail = f"  {one_line(line.detail)}" if line.detail else ""
            text = visible(line.text) if line.style == "text" else one_line(line.text)
            out(f"{' ' * line.indent}{MARKS.get(line.style, '')}{text}{detail}", err=True)


class QuietView:
    """Shows nothing but what a person must know."""

    def begin(self, opening: Opening) -> None:
        pass

    def show(self, item: Live) -> None:
        pass

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        out(visible(text), err=True)

    def end(self, result: RunResult | None, seconds: float) -> bool:
        return False
