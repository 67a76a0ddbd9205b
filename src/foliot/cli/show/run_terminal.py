"""The live view on a terminal: what is settled scrolls up, and the few lines at the bottom move.

Text appears as it is written, row by row: a row that is full is printed for good, the one being written stands in the
moving part. So the moving part is never taller than a few lines, nothing that was read is drawn again, and neither a
narrow window nor a long answer can make it flicker. Rich is imported here and nowhere else.
"""

from __future__ import annotations

import time
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live as Region
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from foliot.cli.show.run import MARKS, Line, Opening, RunStory, Style, closing
from foliot.common.durations import duration
from foliot.common.text import one_line, visible
from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.kernel.messages import ReasoningDelta, RestartDelta, TextDelta, ToolCallDelta
from foliot.kernel.run.events import ModelFailed, ModelResponded, ToolStarted
from foliot.runtime.results import RunResult

STYLES: Final[dict[Style, str]] = {
    "title": "bold",
    "step": "bold cyan",
    "text": "",
    "quiet": "dim",
    "ok": "green",
    "bad": "red",
    "note": "yellow",
}
MOST_ROWS: Final = 6
INDENT: Final = 2


class TerminalView:
    """`console` is where it is drawn. `answer`: the final answer is part of the view, because stdout is a terminal."""

    def __init__(self, console: Console, *, answer: bool) -> None:
        self._console = console
        self._answer = answer
        self._story = RunStory(time.monotonic)
        self._spinner = Spinner("dots", style="cyan")
        self._calls = 0
        self._written = ""  # all that was streamed of the answer under way
        self._row = ""  # its last row, not yet printed for good
        self._doing = ""
        self._answered: str | None = None
        self._region = Region(
            console=console,
            auto_refresh=False,
            transient=True,
            get_renderable=self._moving,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def begin(self, opening: Opening) -> None:
        self._calls = opening.calls
        self._region.start()
        self._print(self._story.opening(opening))

    def show(self, item: Live) -> None:
        match item:
            case Streamed(delta=TextDelta(text=text)) if self._answer:
                self._write(visible(text))
            case Streamed(delta=ReasoningDelta(text=text)):
                self._doing = one_line((self._doing + text)[-200:], 200)
            case Streamed(delta=ToolCallDelta(name=name)) if name:
                self._doing = f"wants to call {one_line(name, 40)}"
            case Streamed(delta=RestartDelta(reason=reason)):
                self._settle()
                self._written = ""
                self._print([Line("note", f"the answer begins anew: {one_line(reason, 80)}")])
            case Output(call_id=call_id, text=text):
                if (running := self._story.running.get(call_id)) is not None:
                    running.output = one_line(text, 80)
            case Recorded():
                self._recorded(item)
            case _:
                pass
        self._region.refresh()

    def tick(self) -> None:
        self._region.refresh()

    def note(self, text: str) -> None:
        self._print([Line("note", text, wrap=True)])

    def printed(self, line: str) -> None:
        """Prints output of a tool: it scrolls up with what is settled."""
        self._print([Line("quiet", line, indent=4, wrap=True)])

    def end(self, result: RunResult | None, seconds: float) -> bool:
        self._settle()
        self._story.thinking = None
        self._story.running.clear()
        self._doing = ""
        self._region.stop()
        if result is not None:
            self._console.print()
            self._print([closing(result, self._calls, seconds)])
        return self._answer and result is not None and result.output == self._answered

    # --- the parts that stay -------------------------------------------------------------------------------------

    def _recorded(self, item: Recorded) -> None:
        event = item.event
        self._calls += isinstance(event, ToolStarted) and event.attempt == 1
        if isinstance(event, ModelResponded | ModelFailed):
            self._settle()
            self._doing = ""
        lines = self._story.take(item, answer=self._answer)
        if isinstance(event, ModelResponded):
            if self._written.strip() == visible(event.response.message.text).strip():
                lines = [line for line in lines if line.style != "text"]
            self._written, self._answered = "", event.response.message.text
        self._print(lines)

    def _write(self, text: str) -> None:
        """Take a piece of the answer; rows that are full or ended are printed for good."""
        if not self._written:
            text = text.lstrip("\n")
        self._written += text
        self._row += text.expandtabs(4)
        *ended, self._row = self._row.split("\n")
        for row in ended:
            self._print([Line("text", row, wrap=True)])
        while cell_len(self._row) > self._text_width:
            full, self._row = broken_row(self._row, self._text_width)
            self._print([Line("text", full)])

    @property
    def _text_width(self) -> int:
        return max(8, self._console.width - INDENT - len(MARKS["text"]))

    def _settle(self) -> None:
        if self._row.strip():
            self._print([Line("text", self._row.rstrip(), wrap=True)])
        self._row = ""

    def _print(self, lines: list[Line]) -> None:
        for line in lines:
            if line.style == "step":
                self._console.print()
            while line.style == "text" and cell_len(line.text) > self._text_width:
                # Broken here and not by the terminal, so that each row has its bar.
                full, rest = broken_row(line.text, self._text_width)
                self._console.print(self._drawn(Line("text", full)))
                line = Line("text", rest)
            self._console.print(self._drawn(line))

    def _drawn(self, line: Line) -> RenderableType:
        style = STYLES[line.style]
        text = Text(MARKS.get(line.style, ""), style=style)
        shown = visible(line.text) if line.style == "text" else one_line(line.text)
        text.append(shown, style="not dim default" if line.style == "ok" else style)
        return self._laid_out(text, line.detail, line.indent, wrap=line.wrap)

    def _laid_out(self, text: Text, detail: str, indent: int, *, wrap: bool) -> RenderableType:
        """A line that is cut is cut in its text: how long a call took is always to be seen."""
        quiet = Text(f"  {one_line(detail)}" if detail else "", style="dim not bold")
        if not wrap:
            text.truncate(max(8, self._console.width - indent - quiet.cell_len), overflow="ellipsis")
            text.no_wrap, text.overflow = True, "ellipsis"
        text.append_text(quiet)
        return Padding(text, (0, 0, 0, indent), expand=False)

    # --- the part that moves -------------------------------------------------------------------------------------

    def _moving(self) -> RenderableType:
        rows: list[RenderableType] = []
        now = time.monotonic()
        if self._row:
            rows.append(self._laid_out(Text(f"{MARKS['text']}{self._row}"), "", INDENT, wrap=False))
        if self._story.thinking is not None:
            said = self._doing or ("writing" if self._written else "thinking")
            rows.append(self._spinning(said, now - self._story.thinking))
        running = list(self._story.running.values())
        for call in running[:MOST_ROWS]:
            rows.append(self._spinning(call.label, now - call.since, call.output))
        if len(running) > MOST_ROWS:
            rows.append(self._laid_out(Text(f"… and {len(running) - MOST_ROWS} more"), "", INDENT, wrap=False))
        return Group(*rows)

    def _spinning(self, label: str, elapsed: float, output: str = "") -> RenderableType:
        frame = self._spinner.render(time.monotonic())
        text = frame.copy() if isinstance(frame, Text) else Text("…")
        text.append(f" {visible(label)}", style="default")
        # Tenths from the start: milliseconds that change width would only flicker.
        took = f"{elapsed:.1f}s" if elapsed < 1 else duration(elapsed)
        return self._laid_out(text, f"{took}  {output}".rstrip(), INDENT, wrap=False)


def broken_row(row: str, width: int) -> tuple[str, str]:
    """The first line of a row that is too long, and the rest: at a space if there is one, else in a word."""
    taken = columns = 0
    while taken < len(row) and (columns := columns + cell_len(row[taken])) <= width:
        taken += 1
    space = row.rfind(" ", 0, taken + 1)
    cut = space if space > 0 else max(1, taken)
    return row[:cut].rstrip(), row[cut:].lstrip(" ")
