"""Runs that this process drives in the background, whether or not whoever asked for them stays to hear of it.

A run that is let go when the process stops is taken up again from its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foliot.common.cancellation import stop_tasks
from foliot.engine.definition.run_options import UNCHANGED, RunOptions
from foliot.errors import FoliotError, InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.resources.names import check_labels
from foliot.runtime.agent import Agent, asked_by
from foliot.store.journal.base import TASK_LABEL, TERMINAL, RunHeld, RunInfo, RunTaken, Signal, TransactionBody

if TYPE_CHECKING:
    from foliot.runtime.answers import Input
    from foliot.runtime.inside import Inside
    from foliot.runtime.results import RunResult

log = logging.getLogger(__name__)


class BackgroundRuns:
    """The background runs of one runtime."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def keep(self, run_id: str, work: Coroutine[Any, Any, RunResult]) -> asyncio.Task[RunResult]:
        """Drive this run beside everything else."""
        task = asyncio.create_task(work)
        self._tasks[task] = run_id
        task.add_done_callback(self._done)
        return task

    def at_work(self) -> set[str]:
        """Returns the runs that are driven now, also those that only wait for what they have begun."""
        return set(self._tasks.values())

    async def rest(self, run_ids: Collection[str], *, seconds: float) -> None:
        """Wait until one of these is not driven any more, or the time is over."""
        if tasks := {task for task, run_id in self._tasks.items() if run_id in run_ids}:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, *, within: float = 0.0) -> None:
        """Release all of them that do not end in time: each is left for whoever takes it up."""
        if self._tasks and within:
            await asyncio.wait(set(self._tasks), timeout=within)
        await stop_tasks(*self._tasks.keys())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever listens hears of it; when nobody does, the journal still tells

    # --- verbs ---------------------------------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent | str,
        input: Input,
        *,
        run_id: str,
        namespace: str,
        labels: Mapping[str, str] | None,
        identity: Identity,
        history: Sequence[Message] = (),
        after: str = "",
        options: RunOptions = UNCHANGED,
        in_transaction: TransactionBody | None = None,
    ) -> RunInfo:
        """Start a run as `identity`, or resume the one of this id, as whoever began it; durable on return.

        `agent` is an object, or the name of one that is declared in the namespace; where it is blank, the model of the
        options is asked by itself. What `in_transaction` writes is stored with a new run. Raises `NotFound` (the
        agent), `Conflict` when the id belongs to other work, `InvalidInput`.
        """
        check_labels(labels or {})
        inside = self._inside
        agent, options = asked_by(agent, options, namespace)
        if not inside.is_new(run_id) and await inside.is_begun(run_id, agent, input, identity, history, after):
            return await self.resume(await inside.runs.journal.get(run_id))
        drive = inside.run(
            agent,
            input,
            run_id=run_id,
            labels=labels,
            identity=identity,
            history=history,
            after=after,
            options=options,
            stream=True,
            check=False,
            in_transaction=in_transaction,
        )
        return await self.driven(run_id, drive)

    async def resume(self, info: RunInfo, *, stay: bool = False) -> RunInfo:
        """Have a run go on that nobody drives; others stay as they are. Raises what keeps it from going on here.

        It goes on in the background, or with `stay` before this returns.
        """
        inside = self._inside
        driver = inside.runs.local(info.id)
        if info.phase in TERMINAL or (driver is not None and not driver.is_over):
            return info
        if TASK_LABEL in info.labels:
            await inside.tasking.ring(info)
            return info
        if info.phase == "running" and not inside.runs.is_left_alone(info):
            return info
        if stay:
            await inside.resume(info.id, check=False, joins=False)
            return await inside.runs.journal.get(info.id)
        return await self.driven(info.id, inside.resume(info.id, stream=True, check=False))

    async def wake(self, run_id: str, message: Signal | None = None, *, here: bool = True, stay: bool = False) -> None:
        """Let a run hear what is stored for it: where it is driven, by the workers of its task, or by resuming it here.

        Never raises: stored is done, and an error would have the caller say it a second time. A run that cannot go on
        in this process stays as it is for one that can; `why` and `resume` say what keeps it.
        The runs above it that nobody drives go on too: nobody else would tell them of its end.
        Not `here`: it is left to whoever resumes it. `stay` is as in `resume`; then those above stay as they are, for
        they may wait for a long time.
        """
        runs = self._inside.runs
        try:
            driver = runs.local(run_id)
            if driver is not None and not driver.is_over:
                for each in (message,) if message is not None else await runs.journal.signals([run_id]):
                    driver.deliver(each)
            elif here:
                await self.resume(await runs.journal.get(run_id), stay=stay)
            if here and not stay and (above := await self.outermost(run_id)) != run_id:
                await self.resume(await runs.journal.get(above))
        except RunHeld:
            pass  # somebody else resumed it meanwhile, and hears the message
        except FoliotError as error:
            log.warning("run %s has its message, and cannot go on in this process: %s", run_id, error.message)
        except Exception:
            log.exception("run %s has its message, and cannot go on in this process", run_id)

    async def outermost(self, run_id: str) -> str:
        """Returns the run to go on with for this one: the outermost of those above it that nobody drives, or itself."""
        runs = self._inside.runs
        info = await runs.journal.get(run_id)
        while info.parent is not None and info.is_child:
            try:
                info = await runs.journal.get(info.parent)
            except NotFound:  # it was purged
                break
            if runs.is_left_alone(info) and TASK_LABEL not in info.labels:  # workers take up those of tasks
                run_id = info.id
        return run_id

    async def woken(self, info: RunInfo, message: Signal | None, *, here: bool = True, stay: bool = False) -> RunInfo:
        """`wake`, and the run afterwards; `info` is the run before, for a store that does not answer any more."""
        await self.wake(info.id, message, here=here, stay=stay)
        with contextlib.suppress(FoliotError):
            return await self._inside.runs.journal.get(info.id)
        return info

    async def fork(
        self,
        info: RunInfo,
        *,
        at: int,
        new_id: str,
        identity: Identity,
        prompt: str | None = None,
        model: str | None = None,
        input: str | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> RunInfo:
        """Start a run as `identity` that shares the past of another. Asking again with the same new id finds it.

        What `in_transaction` writes is stored with a new one. Raises `Conflict`, `InvalidInput`.
        """
        if at < 1:
            raise InvalidInput(f"there is no step {at}")
        try:
            known = await self._inside.runs.journal.get(new_id)
        except NotFound:
            drive = self._inside.fork(
                info.id,
                at=at,
                prompt=prompt,
                model=model,
                input=input,
                new_id=new_id,
                identity=identity,
                stream=True,
                check=False,
                in_transaction=in_transaction,
            )
            return await self.driven(new_id, drive)
        if (known.namespace, known.parent) != (info.namespace, info.id):
            raise taken(new_id)
        return known

    async def driven(self, run_id: str, drive: Coroutine[Any, Any, RunResult]) -> RunInfo:
        """Return when the first event is durable. Whoever asked may leave: the run goes on."""
        with self._inside.watch(run_id) as reader:
            task = self.keep(run_id, drive)
            task.add_done_callback(lambda _: reader.close())
            first = await anext(aiter(reader), None)
        if first is None:
            with contextlib.suppress(RunHeld):  # somebody else was faster
                await task
        return await self._inside.runs.journal.get(run_id)


def taken(id: str) -> RunTaken:
    """Builds the same error whoever owns the work."""
    return RunTaken(f"the id {id!r} belongs to other work", hint="choose another id")
