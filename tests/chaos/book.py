"""What tools leave on disk when they act: who acted, under which lease, at which attempt; and why, by the journal.

Each process writes a file of its own: what is full for one is not full for the others.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from foliot.kernel.run.events import Event, RunClaimed, ToolStarted, UnknownDecided
from foliot.tools.base import Invocation

Why = Literal["first", "ordered by a person", "recovered", "unknown to the journal"]


class Mark(NamedTuple):
    """One effect. `epoch` is that of the lease under which the one that acted believed to act; -1 when it had none."""

    kind: str
    key: str
    attempt: int
    worker: str
    epoch: int
    at: float

    @property
    def run_id(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def call_id(self) -> str:
        return self.key.rpartition("/")[2]


class Explained(NamedTuple):
    """An effect, and what the journal says of the attempt that made it: who held the run then, under which epoch."""

    mark: Mark
    why: Why
    worker: str
    epoch: int

    @property
    def in_order(self) -> bool:
        """Made by whoever the journal says, and for a reason that allows a call that must not be repeated."""
        return self.epoch == self.mark.epoch and self.why in ("first", "ordered by a person")

    def __str__(self) -> str:
        mark = self.mark
        return (
            f"attempt {mark.attempt} at {mark.at:.3f} by {mark.worker} under epoch {mark.epoch}: {self.why}"
            f" (journal: {self.worker}, epoch {self.epoch})"
        )


class Pen:
    """Writes marks for one process. `epoch_of` tells the epoch under which this process holds a run."""

    def __init__(self, folder: Path, name: str, epoch_of: Callable[[str], int]) -> None:
        self._file = folder / f"{name}-{os.getpid()}.txt"
        self._name = f"{name}/{os.getpid()}"
        self._epoch_of = epoch_of

    def __call__(self, kind: str, call: Invocation) -> None:
        """Durable when it returns."""
        epoch = self._epoch_of(call.run_id)
        text = f"{kind} {call.idempotency_key} {call.attempt} {self._name} {epoch} {time.time():.6f} ."
        try:
            self._write(text)
        except OSError:
            # The books are on a disk that is not full. A broken line is not read: it does not end as one should.
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            self._write(text)

    def _write(self, text: str) -> None:
        line = f"\n{text}\n".encode()
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(file, line) != len(line):
                raise OSError("the line is not whole")
            os.fsync(file)
        finally:
            os.close(file)


def read_marks(folder: Path) -> list[Mark]:
    """Every effect so far."""
    marks: list[Mark] = []
    for file in sorted(folder.iterdir()):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.endswith(" ."):
                kind, key, attempt, worker, epoch, at, _ = line.split(" ")
                marks.append(Mark(kind, key, int(attempt), worker, int(epoch), float(at)))
    return marks


def by_key(marks: Iterable[Mark], kind: str) -> dict[str, list[Mark]]:
    found: dict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        if mark.kind == kind:
            found[mark.key].append(mark)
    return found


def explain(mark: Mark, facts: Sequence[tuple[float, Event]]) -> Explained:
    """Why an effect was made, by the journal of its run."""
    worker, epoch, ordered = "", -1, False
    for _, fact in facts:
        match fact:
            case RunClaimed():
                worker, epoch = fact.worker, fact.epoch
            case UnknownDecided(call_id=mark.call_id):
                ordered = fact.decision == "run"
            case ToolStarted(call_id=mark.call_id):
                if fact.attempt == mark.attempt:
                    why: Why = "first" if mark.attempt == 1 else "ordered by a person" if ordered else "recovered"
                    return Explained(mark, why, worker, epoch)
                ordered = False
            case _:
                pass
    return Explained(mark, "unknown to the journal", worker, epoch)
