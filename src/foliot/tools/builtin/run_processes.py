"""The processes that live between the calls of runs: their jobs and their interpreters.

They belong to the claim under which a run is driven here, and end with it. A run that waits, for a person or a time,
keeps them, and finds them as they were when it goes on. But only while no other process has had the run meanwhile,
which its epoch tells: each claim has a new one. So two processes never both work for one run, but for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from foliot.errors import FoliotError
from foliot.tools.builtin.jobs import Jobs
from foliot.tools.builtin.journal import History
from foliot.tools.builtin.python import Interpreters
from foliot.tools.fences import Fences

log = logging.getLogger(__name__)

# How often it is looked whether runs that wait have ended, or were claimed, elsewhere.
LOOK_EVERY: Final = 5.0
# How many looks a run may be claimed by this very process without being driven: it is being loaded.
MOST_LOOKS: Final = 12
# How many runs that wait keep what they have here. Of more, those go first in which nothing runs.
MOST_WAITING: Final = 256


class RunRow(Struct, frozen=True):
    """The claim of a run by the store: its epoch, and who holds it, if anybody does."""

    epoch: int
    worker: str | None = None


RowsOf: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, RunRow]]]
"""The rows of runs by the store; those that have ended or are not there are missing."""
_Ending: TypeAlias = "asyncio.Future[tuple[BaseException | None, BaseException | None]]"


class _Waiting:
    """A run that waits: the epoch under which it was left, by which worker, and how long that one is loading it."""

    def __init__(self, epoch: int, worker: str) -> None:
        self.epoch = epoch
        self.worker = worker
        self.looks = 0

    def stays(self, row: RunRow | None) -> bool:
        """Whether nobody else has the run. This process may have claimed it and be about to say so."""
        if row is None:
            return False
        if row.epoch == self.epoch:
            return True
        self.looks += 1
        return (row.epoch, row.worker) == (self.epoch + 1, self.worker) and self.looks <= MOST_LOOKS


class RunProcesses:
    """The jobs and interpreters of one runtime. Belongs to one event loop."""

    def __init__(
        self,
        fences: Fences,
        history: History | None = None,
        *,
        look_every: float = LOOK_EVERY,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.jobs = Jobs(fences)
        self.interpreters = Interpreters(fences, history)
        self._look_every = look_every
        self._most_waiting = most_waiting
        # The runs that wait, the one that was left first in front; and those that are driven, with their epochs.
        self._waiting: dict[str, _Waiting] = {}
        self._driven: dict[str, int] = {}
        self._rows_of: RowsOf | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ending: set[_Ending] = set()

    def watch(self, rows_of: RowsOf) -> None:
        """Have runs that wait looked after: what they have here ends when they end, or go elsewhere."""
        self._rows_of = rows_of

    def taken(self, run_id: str, epoch: int) -> None:
        """A run is driven here under a new claim. What it left here stays if no other process had it in between."""
        left, before = self._waiting.pop(run_id, None), self._driven.get(run_id)
        self._driven[run_id] = epoch
        last = left.epoch if left is not None else before
        if last is not None and epoch != last + 1:
            self._end(run_id)  # from now on it has nothing

    async def left(self, run_id: str, epoch: int | None, *, claim: int | None = None, worker: str = "") -> None:
        """A run is no longer driven here. With an `epoch`, that of its row, it waits; otherwise it is over for us.

        `claim` is the epoch under which `worker` drove it: when it is driven under a newer one already, what it has
        belongs to that one.
        """
        if claim is not None and self._driven.get(run_id, claim) > claim:
            return
        self._driven.pop(run_id, None)
        if not self._has(run_id):
            return
        if epoch is None or self._rows_of is None:
            await self.end(run_id)
            return
        self._waiting[run_id] = _Waiting(epoch, worker)
        if len(self._waiting) > self._most_waiting:
            self._end(next((each for each in self._waiting if not self._works(each)), next(iter(self._waiting))))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def end(self, run_id: str) -> None:
        """End all that a run has here. Whoever is cancelled while he waits for that does not keep it from ending."""
        await asyncio.shield(self._end(run_id))

    async def close(self) -> None:
        """End everything."""
        if self._looking is not None:
            self._looking.cancel()
        for run_id in self.jobs.runs | self.interpreters.runs:
            self._end(run_id)
        while self._ending:
            await asyncio.wait(self._ending)
        await asyncio.gather(self.jobs.close(), self.interpreters.close())

    def _has(self, run_id: str) -> bool:
        return run_id in self.jobs.runs or run_id in self.interpreters.runs

    def _works(self, run_id: str) -> bool:
        """Whether something of a run is still running."""
        return self.interpreters.lives(run_id) or any(job.status == "running" for job in self.jobs.of(run_id))

    def _end(self, run_id: str) -> _Ending:
        """Forget what a run has here at once, and end it in tasks of their own."""
        self._waiting.pop(run_id, None)
        task = asyncio.gather(self.jobs.end(run_id), self.interpreters.end(run_id), return_exceptions=True)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: _Ending) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            for problem in task.result():
                if problem is not None:
                    log.warning("what a run had here did not end cleanly: %s", problem)

    async def _look(self) -> None:
        """Look at runs that wait for as long as there are any, at all of them at once."""
        assert self._rows_of is not None
        while self._waiting:
            await asyncio.sleep(self._look_every)
            for run_id in [each for each in self._waiting if not self._has(each)]:
                del self._waiting[run_id]
            if not (looked := dict(self._waiting)):
                break
            try:
                rows = await self._rows_of(list(looked))
            except FoliotError as error:
                log.warning("whether %d runs still wait could not be looked up: %s", len(looked), error.message)
                continue
            for run_id, left in looked.items():
                if self._waiting.get(run_id) is left and not left.stays(rows.get(run_id)):
                    self._end(run_id)
