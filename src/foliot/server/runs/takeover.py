"""Going on with runs that were left behind: by a server that was killed, by a `foliot run` that somebody closed.

Whoever asked for such a run may be gone, or may come back for its answer; neither has to ask a second time. Workers see
to the runs of tasks, so these are the others. Of several servers on one store one takes a run up, and the others not.
Sessions in which something waits and no turn is at work are looked for too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from foliot.common.cancellation import stop_tasks
from foliot.common.process import is_gone
from foliot.errors import FoliotError
from foliot.kernel.backoff import backoff
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.results import RunResult
from foliot.runtime.runtime import Runtime
from foliot.store.journal.base import RunHeld
from foliot.store.queue.queue import Unattended, unattended

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 5.0
# After a crash of a busy server: a few at a time, so that requests are answered meanwhile.
MOST_AT_ONCE: Final = 32
FIRST_REST: Final = 30.0
LONGEST_REST: Final = 3600.0
# A run that was taken up so often within so few events gets nowhere, and may be what kills its process.
LOOKED_BACK: Final = 15
MOST_CLAIMS: Final = 5


@asynccontextmanager
async def taking_up(runtime: Runtime, drives: BackgroundRuns) -> AsyncGenerator[None]:
    """Look after runs that were left behind, while the block runs."""
    looking = asyncio.create_task(TakingUp(runtime, drives, clock=runtime.inside.clock).run())
    try:
        yield
    finally:
        await stop_tasks(looking)


class TakingUp:
    """`run` looks until it is cancelled; what it takes up is driven by `drives`, beside what clients ask for."""

    def __init__(self, runtime: Runtime, drives: BackgroundRuns, *, clock: Callable[[], float] = time.time) -> None:
        self._runtime = runtime
        self._drives = drives
        self._clock = clock
        self._seen: frozenset[str] = frozenset()
        self._first = True
        self._under_way: dict[str, asyncio.Task[RunResult]] = {}
        # Runs that could not be taken up: how often, and when to try again.
        self._rests: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        """Takes over abandoned runs until cancelled. A store that does not answer is asked again."""
        while True:
            try:
                await self.look()
                await self._runtime.inside.sessions.keeper.sweep()
            except FoliotError as error:
                log.warning("what was left behind is looked for again: %s", error.message)
            await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> list[str]:
        """Take up what nobody drives; the ids of those. Returns when they are on their way, not when they have ended.

        From the second look on only what was found some seconds before as well: whoever has just let a run go, or stays
        with one that waits, has the first go at it. A process that has died has no such wish.
        """
        await self._runtime.inside.runs.sweep()
        now = self._clock()
        database = self._runtime.inside.tasking.database
        found = await unattended(database, now=now, is_gone=is_gone)
        alone = [each for each in found if self._runtime.inside.runs.local(each.run_id) is None]
        due = [each for each in alone if self._first or each.dead or each.run_id in self._seen]
        self._seen = frozenset(each.run_id for each in alone)
        self._first = False
        self._under_way = {run_id: task for run_id, task in self._under_way.items() if not task.done()}
        self._rests = {run_id: rest for run_id, rest in self._rests.items() if run_id in self._seen}
        taken: list[str] = []
        for each in due:
            if len(self._under_way) >= MOST_AT_ONCE:
                break
            if each.run_id in self._under_way or self._rests.get(each.run_id, (0, 0.0))[1] > now:
                continue
            if await self._gets_nowhere(each):
                continue
            self._under_way[each.run_id] = self._drives.keep(each.run_id, self._drive(each.run_id))
            taken.append(each.run_id)
        return taken

    async def _drive(self, run_id: str) -> RunResult:
        log.info("run %s was left behind, and goes on here", run_id)
        try:
            return await self._runtime.inside.resume(run_id, stream=True, check=False, joins=False)
        except RunHeld:
            raise  # another process was faster
        except Exception as error:  # whatever it is: the next look would only meet it again
            self._rest(run_id, str(error))
            raise

    async def _gets_nowhere(self, run: Unattended) -> bool:
        after = max(0, run.last_seq - LOOKED_BACK)
        events = await self._runtime.inside.runs.journal.read(run.run_id, after=after)
        if sum(event.type == "run.claimed" for event in events) < MOST_CLAIMS:
            return False
        self._rest(run.run_id, f"it was taken up {MOST_CLAIMS} times and got nowhere")
        return True

    def _rest(self, run_id: str, why: str) -> None:
        """Longer each time. The first time is told; a run that needs what is not here must not fill the log."""
        times = self._rests.get(run_id, (0, 0.0))[0] + 1
        rest = backoff(times, FIRST_REST, LONGEST_REST)
        self._rests[run_id] = times, self._clock() + rest
        level = logging.WARNING if times == 1 else logging.DEBUG
        log.log(level, "run %s stays as it is: %s; `foliot resume %s` goes on with it", run_id, why, run_id)
