"""Views of a task in progress, in every format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

import msgspec

from foliot.cli.terminal import out
from foliot.common.durations import duration
from foliot.common.text import counted, one_line, visible, visible_json
from foliot.engine.explain.amounts import money, tokens
from foliot.kernel.messages import Usage
from foliot.work.views.drawing import rows_of
from foliot.work.views.events import Happening, as_data, said
from foliot.work.views.story import TaskStory


class TaskView(Protocol):
    """`begin` once, then what happens as it happens, then `end`."""

    draws: bool
    """Whether it wants `graph`: telling the story anew costs a little."""

    def begin(self, story: TaskStory) -> None: ...

    def show(self, happenings: Sequence[Happening]) -> None: ...

    def graph(self, story: TaskStory) -> None:
        """How the task stands now."""
        ...

    def piece(self, agent: str, text: str) -> None:
        """A piece of what an agent is writing."""
        ...

    def tick(self) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, story: TaskStory | None, seconds: float) -> bool:
        """Ends the view; `story` is None when the task was left as it is.

        Returns whether the person has seen the result.
        """
        ...


# --- closing ---------------------------------------------------------------------------------------------------------

# The last line about a task: how it ended and what it took.


def usage_of(story: TaskStory) -> Usage:
    """Returns the usage of the task: all of an ended one, that of the ended runs of a live one."""
    return story.state.spent.usage()


def closing(story: TaskStory, seconds: float) -> str:
    """`succeeded  3 agents · 3 runs · 412 tokens · $0.0012 · 1.4s · NAME`."""
    ran = [each for each in story.messages.values() if each.run is not None]
    agents = {each.message.to for each in ran}
    usage = usage_of(story)
    parts = [counted(len(agents), "agent"), counted(len(ran), "run")]
    if usage.total_tokens:
        parts.append(tokens(usage.total_tokens))
    if usage.cost_usd:
        parts.append(money(usage.cost_usd))
    return f"{story.info.phase}  {' · '.join((*parts, duration(seconds), story.info.name))}"


# --- plain -----------------------------------------------------------------------------------------------------------

# A task as plain lines on stderr, for pipes, logs and CI; and as JSON lines on stdout, for programs.
#
# JSON lines are the facts of the task and of its runs as they are stored (`work/views/events.py`), in the order of
# time; the last one has `type: result`.


class PlainTaskView:
    draws = False

    def begin(self, story: TaskStory) -> None:
        info = story.info
        out(f"{info.target_kind} {info.target}  task {info.name}", err=True)
        rows = rows_of(story.plan)
        if len(rows) > 1:
            for row in rows:
                out(f"  {row.stem}{'↩ ' if row.back else ''}{row.name}", err=True)

    def show(self, happenings: Sequence[Happening]) -> None:
        for happening in happenings:
            if (text := said(happening)) is not None:
                out(f"  {visible(one_line(text, 200))}", err=True)

    def graph(self, story: TaskStory) -> None: ...

    def piece(self, agent: str, text: str) -> None: ...

    def tick(self) -> None: ...

    def note(self, text: str) -> None:
        out(f"! {visible(text)}", err=True)

    def end(self, story: TaskStory | None, seconds: float) -> bool:
        if story is not None:
            mark = "✓" if story.info.phase == "succeeded" else "!" if story.state.ended is None else "✗"
            out(f"{mark} {closing(story, seconds)}", err=True)
        return False


class QuietTaskView:
    """A view that shows nothing but what a person must know."""

    draws = False

    def begin(self, story: TaskStory) -> None: ...

    def show(self, happenings: Sequence[Happening]) -> None: ...

    def graph(self, story: TaskStory) -> None: ...

    def piece(self, agent: str, text: str) -> None: ...

    def tick(self) -> None: ...

    def note(self, text: str) -> None:
        out(visible(text), err=True)

    def end(self, story: TaskStory | None, seconds: float) -> bool:
        return False


class JsonTaskView:
    draws = False

    def __init__(self) -> None:
        self._out = sys.stdout  # as it is now: while tools run, what they print is sent elsewhere
        self._task = ""

    def begin(self, story: TaskStory) -> None:
        self._task = story.info.id

    def show(self, happenings: Sequence[Happening]) -> None:
        for happening in happenings:
            self._print(as_data(self._task, happening))

    def graph(self, story: TaskStory) -> None: ...

    def piece(self, agent: str, text: str) -> None:
        self._print({"type": "text.delta", "task": self._task, "agent": agent, "data": {"text": text}})

    def tick(self) -> None: ...

    def note(self, text: str) -> None:
        out(visible(text), err=True)

    def end(self, story: TaskStory | None, seconds: float) -> bool:
        if story is not None:
            data = {
                "phase": story.info.phase,
                "output": story.output,
                "error": story.info.summary.get("error"),
                "reason": story.info.summary.get("reason"),
                "messages": len(story.messages),
                "usage": msgspec.to_builtins(usage_of(story)),
                "seconds": round(seconds, 3),
            }
            self._print({"type": "result", "task": self._task, "data": data})
        return True

    def _print(self, value: object) -> None:
        out(visible_json(msgspec.json.encode(value).decode()), file=self._out)
