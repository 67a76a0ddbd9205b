"""The graph of a task filling in on a terminal: one line for each agent, with its state, its time and its last words.

The graph stands still while its lines change; when the task has ended, it is printed once more for good.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live as Region
from rich.spinner import Spinner
from rich.text import Text

from foliot.cli.show.task import closing
from foliot.common.durations import duration
from foliot.common.text import one_line, visible
from foliot.kernel.run import events as e
from foliot.work.views.drawing import MARKS, Row, detail_of, rows_of
from foliot.work.views.events import Happening, RunHappening
from foliot.work.views.story import NodeState, NodeView, TaskStory, nodes_of

STYLES: Final[dict[NodeState, str]] = {
    "idle": "dim",
    "queued": "yellow",
    "retry": "yellow",
    "running": "cyan",
    "waiting": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
}
LONGEST_WRITING: Final = 400


class TerminalTaskView:
    """`console` is where it is drawn. `answer`: the result is part of the view, because stdout is a terminal."""

    draws = True

    def __init__(self, console: Console, *, answer: bool) -> None:
        self._console = console
        self._answer = answer
        self._rows: list[Row] = []
        self._nodes: dict[str, NodeView] = {}
        self._writing: dict[str, str] = {}
        self._doing: dict[str, str] = {}
        self._seen = (time.time(), time.monotonic())
        self._spinner = Spinner("dots", style="cyan")
        self._region = Region(
            console=console,
            auto_refresh=False,
            transient=True,
            get_renderable=self._moving,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def begin(self, story: TaskStory) -> None:
        info = story.info
        head = Text(visible(info.target), style="bold")
        head.append(f"  task {info.name}", style="dim not bold")
        self._console.print(head)
        first = story.state.text or next((each.message.payload for each in story.messages.values()), "")
        if first:
            self._console.print(Text(f"  › {one_line(first, 200)}", style="dim"))
        self._rows = rows_of(story.plan)
        self.graph(story)
        self._region.start()

    def show(self, happenings: Sequence[Happening]) -> None:
        for happening in happenings:
            if isinstance(happening, RunHappening):
                self._happened(happening)
        self._region.refresh()

    def _happened(self, happening: RunHappening) -> None:
        agent = happening.agent
        match happening.fact:
            case e.StepStarted(step=step):
                self._doing[agent], self._writing[agent] = f"thinks (step {step})", ""
            case e.ToolStarted(name=name):
                self._doing[agent], self._writing[agent] = f"calls {name}", ""
            case e.ToolFinished(result=result):
                self._doing[agent] = f"{result.name} → {one_line(result.text, 60)}"
            case e.ToolUnknown(message=message):
                self.note(f"{agent}: {one_line(message or 'nobody knows whether a call took effect', 120)}")
            case e.RunRetried(message=message):
                self.note(f"{agent} broke down and is tried again: {one_line(message, 120)}")
            case e.RunWaiting(message=message, reason=reason):
                self.note(f"{agent} waits: {one_line(message or reason, 120)}")
            case _:
                pass

    def graph(self, story: TaskStory) -> None:
        now = time.time()
        self._seen = (now, time.monotonic())
        self._nodes = {node.name: node for node in nodes_of(story, now)}

    def piece(self, agent: str, text: str) -> None:
        self._writing[agent] = (self._writing.get(agent, "") + visible(text))[-LONGEST_WRITING:]
        self._region.refresh()

    def tick(self) -> None:
        self._region.refresh()

    def printed(self, line: str) -> None:
        """Prints output of a tool above the graph."""
        self._console.print(Text(f"    {visible(line)}", style="dim"))

    def note(self, text: str) -> None:
        self._console.print(Text(f"! {visible(text)}", style="yellow"))

    def end(self, story: TaskStory | None, seconds: float) -> bool:
        self._region.stop()
        if story is None:
            return False
        self.graph(story)
        self._writing.clear()
        self._doing.clear()
        for row in self._rows:
            self._console.print(self._line(row, moving=False))
        good = story.info.phase == "succeeded"
        style = "green" if good else "yellow" if story.state.ended is None else "red"
        last = Text("✓ " if good else "! " if story.state.ended is None else "✗ ", style=style)
        phase, _, rest = closing(story, seconds).partition("  ")
        last.append(phase, style=style)
        last.append(f"  {rest}", style="dim")
        self._console.print()
        if good and self._answer:
            self._console.print(Text(visible(story.output).strip()))
            self._console.print()
        self._console.print(last)
        return good and self._answer

    # --- drawing -------------------------------------------------------------------------------------------------

    def _moving(self) -> RenderableType:
        return Group(*(self._line(row, moving=True) for row in self._rows))

    def _line(self, row: Row, *, moving: bool) -> Text:
        text = Text("  ", no_wrap=True, overflow="ellipsis")
        text.append(row.stem, style="dim")
        label = f"  [{row.label}]" if row.label else ""
        node = self._nodes.get(row.name)
        if row.back or node is None:
            text.append(f"↩ {row.name}{label}", style="dim")
            return text
        style = STYLES[node.state]
        if moving and node.state == "running":
            frame = self._spinner.render(time.monotonic())
            text.append_text(frame if isinstance(frame, Text) else Text("●"))
        else:
            text.append(MARKS[node.state], style=style)
        text.append(f" {row.name}", style="bold" if node.state == "running" else "" if node.times else "dim")
        text.append(label, style="dim")
        text.append(f"  {self._detail(node, moving=moving)}", style=style if node.state != "succeeded" else "dim")
        said = self._said(node) if moving else one_line(node.text, 200)
        if said:
            text.append(f"  {said}", style="dim")
        text.truncate(max(20, self._console.width - 1), overflow="ellipsis")
        return text

    def _detail(self, node: NodeView, *, moving: bool) -> str:
        if moving and node.since is not None and node.state == "running":
            at, monotonic = self._seen
            elapsed = at - node.since + (time.monotonic() - monotonic)
            rounds = f" · {node.times} times" if node.times > 1 else ""
            return f"{duration(max(0.1, elapsed))}{rounds}"
        return detail_of(node, self._seen[0])

    def _said(self, node: NodeView) -> str:
        if node.state != "running":
            return one_line(node.text, 200)
        writing = self._writing.get(node.name, "")
        if writing:
            room = max(20, self._console.width - 40)
            return one_line(writing[-room:], room)
        return self._doing.get(node.name, "")
