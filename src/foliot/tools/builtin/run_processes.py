"""The processes that live between the calls of runs: their jobs and their interpreters.

They belong to the claim under which a run is driven here, and end with it. A run that waits, for a person or a time,
keeps them, and finds them as they were when it goes on. But only while no other process has had the run meanwhile,
which its epoch tells: each claim has a new one. So two processes never both work for one run, but for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

from foliot.errors import FoliotError
from foliot.tools.builtin.jobs import Jobs
from foliot.tools.builtin.journal import History
from foliot.tools.builtin.python import Interpreters
from foliot.tools.fences import Fences

log = logging.getLogger(__name__)

# How often it is looked whether a run that waits has ended, or was claimed, elsewhere.
LOOK_EVERY: Final = 5.0
EpochOf: TypeAlias = Callable[[str], Awaitable[int | None]]
"""The epoch of a run by the store; None for one that has ended or is not there."""


class RunProcesses:
    """The jobs and interpreters of one runtime. Belongs to one event loop."""

    def __init__(self, fences: Fences, history: History | None = None, *, look_every: float = LOOK_EVERY) -> None:
        self.jobs = Jobs(fences)
        self.interpreters = Interpreters(fences, history)
        self._look_every = look_every
        # The runs that wait, with the epoch under which they were left.
        self._waiting: dict[str, int] = {}
        self._epoch_of: EpochOf | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def watch(self, epoch_of: EpochOf) -> None:
        """Have runs that wait looked after: what they have here ends when they end, or go elsewhere."""
        self._epoch_of = epoch_of

    def taken(self, run_id: str, epoch: int) -> None:
        """A run is driven here under a new claim. What it left here stays if no other process had it in between."""
        left = self._waiting.pop(run_id, None)
        if left is not None and epoch != left + 1 and self._has(run_id):
            self._end_soon(run_id)

    async def left(self, run_id: str, epoch: int | None) -> None:
        """A run is no longer driven here. With an `epoch`, that of its row, it waits; otherwise it is over for us."""
        if not self._has(run_id):
            return
        if epoch is None or self._epoch_of is None:
            await self.end(run_id)
            return
        self._waiting[run_id] = epoch
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def end(self, run_id: str) -> None:
        """End all that a run has here."""
        self._waiting.pop(run_id, None)
        await asyncio.gather(self.jobs.end(run_id), self.interpreters.end(run_id))

    async def close(self) -> None:
        """End everything."""
        if self._looking is not None:
            self._looking.cancel()
        if self._ending:
            await asyncio.wait(self._ending)
        await asyncio.gather(self.jobs.close(), self.interpreters.close())

    def _has(self, run_id: str) -> bool:
        return run_id in self.jobs.runs or run_id in self.interpreters.runs

    def _end_soon(self, run_id: str) -> None:
        """End what a run has here while it goes on: from now on it has nothing."""
        for ending in (self.jobs.end(run_id), self.interpreters.end(run_id)):
            self._begin(ending)

    def _begin(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _look(self) -> None:
        """Look at runs that wait for as long as there are any."""
        assert self._epoch_of is not None
        while self._waiting:
            await asyncio.sleep(self._look_every)
            for run_id, left in list(self._waiting.items()):
                try:
                    epoch = await self._epoch_of(run_id)
                except FoliotError as error:
                    log.warning("run %s: whether it still waits could not be looked up: %s", run_id, error.message)
                    continue
                if epoch != left and self._waiting.get(run_id) == left:
                    await self.end(run_id)
