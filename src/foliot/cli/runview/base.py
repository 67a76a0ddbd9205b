"""What shows a run while it goes on, whatever it looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from foliot.engine.live import Live
from foliot.results import RunResult


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known when a run is about to be driven.

    Of one that is gone on with: `done` says in words what is there already, `calls` how many calls were started, and
    `asked` what the last answer asked for (name and arguments by the id of the call).
    """

    run_id: str
    agent: str
    input: str = ""
    done: str = ""
    forked: str = ""
    calls: int = 0
    asked: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


class View(Protocol):
    def begin(self, opening: Opening) -> None: ...

    def show(self, item: Live) -> None:
        """Something happened. Called in order; returns at once."""
        ...

    def tick(self) -> None:
        """Time has passed: a few times a second, for whatever moves."""
        ...

    def note(self, text: str) -> None:
        """Something to tell the person that is not part of the run."""
        ...

    def end(self, result: RunResult | None, seconds: float) -> bool:
        """Nothing more comes. None when the run was left as it is, to be resumed.

        True when the answer has been shown, so that it need not be printed.
        """
        ...
