"""What shows a run while it goes on, whatever it looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from foliot.engine.live import Live
from foliot.results import RunResult


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known when a run is about to be driven. `done` says what is there already when it is gone on with."""

    run_id: str
    agent: str
    input: str = ""
    done: str = ""
    forked: str = ""


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
