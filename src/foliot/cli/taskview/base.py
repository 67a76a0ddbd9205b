"""What every view of a task can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foliot.work.story.happenings import Happening
from foliot.work.story.telling import TaskStory


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
        """None: it was left as it is. Whether the result has been shown where a person reads it."""
        ...
