"""Runs of this process as the command line watches them: nothing that they say is missed.

They go on in the background while this process lives. When the runtime is closed, a run that is still driven is
released, and can be resumed here or anywhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foliot.common.cancellation import stop_tasks
from foliot.common.process import is_gone
from foliot.engine.definition.run_options import UNCHANGED, RunOptions
from foliot.engine.live.hub import Live, Reader, Recorded
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.kernel.run.events import RunCancelled, RunClaimed, RunDeadLettered, RunFailed, RunSucceeded
from foliot.resources.names import check_labels
from foliot.runtime.agent import Agent, asked_by
from foliot.runtime.answers import Input
from foliot.runtime.inside import Inside
from foliot.runtime.local.groups import LocalGroups
from foliot.runtime.local.work import LOOK_EVERY, LocalRuns
from foliot.runtime.results import RunResult
from foliot.store.journal.base import TERMINAL, RunInfo

if TYPE_CHECKING:
    from foliot.runtime.runtime import Runtime

ENDS: Final = (RunSucceeded, RunFailed, RunCancelled, RunDeadLettered)
# How long another process that stays with a run has to take it up. If it does so later, it finds it taken.
PATIENCE: Final = 5.0
LOOK_AGAIN: Final = 0.05


class LocalClient(LocalGroups):
    """The verbs on the runtime of this process, which stays the caller's to close."""

    def __init__(self, runtime: Runtime, *, caller: Identity) -> None:
        super().__init__(runtime.inside, caller=caller, wakes=False)
        self.runtime = runtime
        self._watched = WatchedRuns(runtime.inside, caller=caller)

    @property
    def runs(self) -> WatchedRuns:
        return self._watched


@dataclass(slots=True)
class _Drive:
    """One run in the background, and its reader, which misses nothing because it was there before the run began."""

    task: asyncio.Task[RunResult]
    reader: Reader
    watch: ExitStack
    begun: asyncio.Event
    attends: bool


class WatchedRuns(LocalRuns):
    """Runs that are started or resumed here. `watch` yields all of them, and raises what stops driving them.

    `ServedRuns` has the same verbs: `outcome`, `attend`, `follow_turns`, `is_taken_up` and `outermost` besides those of
    `RunGroup`.
    """

    drives_here: ClassVar = True

    def __init__(self, inside: Inside, *, caller: Identity) -> None:
        super().__init__(inside, caller=caller, wakes=False)
        self._drives: dict[str, _Drive] = {}
        self._started = asyncio.Condition()

    async def start(
        self,
        agent: Agent | str,
        input: Input,
        *,
        namespace: str = "default",
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        history: Sequence[Message] = (),
        after: str = "",
        options: RunOptions | None = None,
    ) -> RunInfo:
        check_labels(labels or {})
        new_id = run_id or self._inside.new_run_id()
        agent, options = asked_by(agent, options or UNCHANGED, namespace)
        work = self._inside.run(
            agent,
            input,
            run_id=new_id,
            labels=labels,
            identity=self._identity(user),
            history=history,
            after=after,
            options=options,
            stream=True,
            check=False,
        )
        return await self.drive(new_id, work)

    def new_id(self) -> str:
        """Returns an id for a run that is about to be started."""
        return self._inside.new_run_id()

    async def follow_turns(self, tell: Callable[[], None]) -> None:
        """Stays with the turns that begin here because the one before them has ended; `tell` is called if one does."""
        background, keeper, told = self._inside.background, self._inside.sessions.keeper, False
        await keeper.looked()
        while turns := await self._turns_at_work():
            if not told:
                told = True
                tell()
            await background.rest(turns, seconds=LOOK_EVERY)
            await keeper.looked()

    async def _turns_at_work(self) -> set[str]:
        """The runs that began here by themselves and go on: not what is watched, nor one that waits for people below.

        A run whose sub-agent waits is driven still. Whoever waited for its drive would never leave.
        """
        begun = self._inside.background.at_work() - self._drives.keys()
        return {run_id for run_id in begun if not (await self.get(run_id)).asking}

    async def resume(self, run_id: str) -> RunInfo:
        """Resumes a run. Raises `Held` when another process drives it, and what keeps it from going on here."""
        drive = self._drives.get(run_id)
        info = await self._inside.runs.journal.get(run_id)
        if info.phase in TERMINAL or (drive is not None and not drive.task.done()):
            return info
        return await self.drive(run_id, self._inside.resume(run_id, stream=True, check=False))

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        prompt: str | None = None,
        model: str | None = None,
        input: str | None = None,
        new_id: str | None = None,
        user: str = "",
    ) -> RunInfo:
        new_id = new_id or self._inside.new_run_id()
        work = self._inside.fork(
            run_id,
            at=at,
            prompt=prompt,
            model=model,
            input=input,
            new_id=new_id,
            identity=self._identity(user),
            stream=True,
            check=False,
        )
        return await self.drive(new_id, work)

    async def attend(self, run_id: str) -> None:
        """Stays with a run that waits for people or a budget, and resumes it as soon as it may go on."""
        drive = self._drives.get(run_id)
        if drive is not None and drive.attends and not drive.task.done():
            return
        if drive is not None:
            await asyncio.wait({drive.task})  # it has let go of the run in a moment
        await self._begin(run_id, self._inside.attend(run_id, stream=True, check=False), attends=True)

    async def drive(self, run_id: str, work: Coroutine[Any, Any, RunResult]) -> RunInfo:
        """Drives a run in the background; returns when its first event is durable. Raises what keeps it from beginning.

        Work that ends without an event found the run as it is. Who stops waiting stops the work.
        """
        drive = await self._begin(run_id, work)
        beginning = asyncio.create_task(drive.begun.wait())
        try:
            await asyncio.wait({drive.task, beginning}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await stop_tasks(drive.task)  # nobody waits for it any more: nothing of it begins behind their back
            raise
        finally:
            beginning.cancel()
        if not drive.begun.is_set():
            drive.task.result()
        return await self._inside.runs.journal.get(run_id)

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Live]:
        while (drive := self._drives.get(run_id)) is not None:
            async for item in drive.reader:
                if not isinstance(item, Recorded):
                    yield item
                elif item.seq > after:
                    after = item.seq
                    yield item
                    if isinstance(item.event, ENDS):
                        return
            await asyncio.wait({drive.task})
            if drive.task.cancelled() or drive.task.result().phase in TERMINAL:
                return
            async with self._started:
                await self._started.wait_for(lambda drive=drive: self._drives.get(run_id) is not drive)
        async for item in super().watch(run_id, after=after):  # of another process, or ended before
            yield item

    async def outcome(self, run_id: str) -> RunResult:
        """Returns how a run ended or what it waits for, when this process has released it."""
        drive = self._drives.get(run_id)
        if drive is None:
            return (await self.get(run_id)).result
        if not drive.attends or self._inside.runs.local(run_id) is not None:
            await asyncio.wait({drive.task})  # behind the last event there is still something to put in order
        if drive.task.done() and not drive.task.cancelled():
            return drive.task.result()
        return (await self.get(run_id)).result

    async def is_taken_up(self, run_id: str, *, attended_by: str | None = None) -> bool:
        """Returns whether another process resumes a run that has just got a decision or an answer.

        `attended_by` is the worker that stays with the run, blank for none, by default the last one that drove it.
        While it lives it has the first go: whoever started it waits for the answer there.
        """
        runs = self._inside.runs
        worker = await self._last_worker(run_id) if attended_by is None else attended_by
        patience = PATIENCE if worker and worker != runs.worker and not is_gone(worker) else 0.0
        until = time.monotonic() + patience
        while True:
            info = await runs.journal.get(run_id)
            if info.phase == "running" and not runs.is_left_alone(info):
                return True
            if info.phase != "waiting":
                return patience > 0 and info.phase in TERMINAL  # as quick as that
            if patience and not await runs.journal.signals([run_id]):
                return True  # taken, and it waits again: for another approval
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(LOOK_AGAIN)

    async def outermost(self, run_id: str) -> str:
        """Returns the run to go on with for this one: the outermost of those above it that nobody drives, or itself."""
        return await self._inside.background.outermost(run_id)

    async def _last_worker(self, run_id: str) -> str:
        claims = [event.worker for _, event in await self._inside.runs.facts(run_id) if isinstance(event, RunClaimed)]
        return claims[-1] if claims else ""

    async def cancel(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo:
        """Cancels a run. One whose driver is gone is claimed here, so that it ends at once."""
        drive = self._drives.get(run_id)
        begins = drive is not None and not (drive.attends or drive.begun.is_set())
        if drive is not None and begins and self._inside.runs.local(run_id) is None:
            await stop_tasks(drive.task)  # nothing would hear it before its first question
        info = await super().cancel(run_id, by=by, reason=reason)
        if self._inside.runs.is_left_alone(info):
            await self._inside.resume(run_id, check=False)
            info = await self._inside.runs.journal.get(run_id)
        if drive is not None and info.phase in TERMINAL and self._inside.runs.local(run_id) is None:
            drive.task.cancel()  # it slept until a timer would go off, or somebody would decide
            await self._forget(run_id, drive)
        return info

    async def _forget(self, run_id: str, drive: _Drive) -> None:
        """Lets who watches from now on read of the end in the store: it was not this drive that came to it."""
        if self._drives.get(run_id) is drive:
            del self._drives[run_id]
            drive.watch.close()
        async with self._started:
            self._started.notify_all()

    async def _begin(self, run_id: str, work: Coroutine[Any, Any, RunResult], *, attends: bool = False) -> _Drive:
        watch = ExitStack()
        reader = watch.enter_context(self._inside.watch(run_id))
        begun = asyncio.Event()
        reader.call(begun.set)
        task = self._inside.background.keep(run_id, work)
        drive = _Drive(task, reader, watch, begun, attends)
        task.add_done_callback(lambda _: reader.close())
        if (before := self._drives.get(run_id)) is not None:
            before.watch.close()
        self._drives[run_id] = drive
        async with self._started:
            self._started.notify_all()
        return drive
