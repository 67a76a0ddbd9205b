"""Runs that this process drives in the background, whether or not whoever asked for them stays to hear of it.

A run that is let go when the process stops is taken up again from its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foliot.common.cancellation import stop_tasks
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.resources.names import check_labels
from foliot.runtime.agent import Agent
from foliot.store.journal.base import TASK_LABEL, TERMINAL, Held, RunInfo, Signal, TransactionBody

if TYPE_CHECKING:
    from foliot.runtime.inside import Input, Inside
    from foliot.runtime.results import RunResult


class BackgroundRuns:
    """The background runs of one runtime."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._tasks: set[asyncio.Task[Any]] = set()

    def keep(self, work: Coroutine[Any, Any, RunResult]) -> asyncio.Task[RunResult]:
        """Drive this beside everything else."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self, *, within: float = 0.0) -> None:
        """Release all of them that do not end in time: each is left for whoever takes it up."""
        if self._tasks and within:
            await asyncio.wait(self._tasks, timeout=within)
        await stop_tasks(*self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
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
        in_transaction: TransactionBody | None = None,
    ) -> RunInfo:
        """Start a run as `identity`, or resume the one of this id, as whoever began it; durable on return.

        `agent` is an object, or the name of one that is declared in the namespace. What `in_transaction` writes is
        stored with a new run. Raises `NotFound` (the agent), `Conflict` when the id belongs to other work,
        `InvalidInput`.
        """
        check_labels(labels or {})
        if isinstance(agent, Agent):
            namespace, name = agent.namespace, agent.name
        else:
            name = agent
            agent = f"{namespace}/{name}"
        inside = self._inside
        try:
            info = None if inside.is_new(run_id) else await inside.runs.journal.get(run_id)
        except NotFound:
            info = None
        if info is None:
            drive = inside.run(
                agent,
                input,
                run_id=run_id,
                labels=labels,
                identity=identity,
                history=history,
                stream=True,
                check=False,
                in_transaction=in_transaction,
            )
            return await self._driven(run_id, drive)
        if (info.namespace, info.agent) != (namespace, name):
            raise _taken(run_id)
        await inside.is_begun(run_id, name, input)
        if isinstance(agent, Agent):
            inside.know(agent)
        return await self.resume(info)

    async def resume(self, info: RunInfo) -> RunInfo:
        """Have a run go on that nobody drives; others stay as they are. Raises what keeps it from going on here."""
        inside = self._inside
        if info.phase in TERMINAL or inside.runs.local(info.id) is not None:
            return info
        if TASK_LABEL in info.labels:
            await inside.tasking.ring(info)
            return info
        if info.phase == "running" and not inside.runs.is_left_alone(info):
            return info
        return await self._driven(info.id, inside.resume(info.id, stream=True, check=False))

    async def wake(self, run_id: str, message: Signal | None = None) -> RunInfo:
        """Let a run hear what it was told: where it is driven, by the workers of its task, or by taking it up here."""
        inside = self._inside
        driver = inside.runs.local(run_id)
        if message is not None and driver is not None and not driver.is_over:
            driver.deliver(message)
            return await inside.runs.journal.get(run_id)
        info = await inside.runs.journal.get(run_id)
        if TASK_LABEL in info.labels or info.phase in ("waiting", "pending"):
            return await self.resume(info)
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
            return await self._driven(new_id, drive)
        if (known.namespace, known.parent) != (info.namespace, info.id):
            raise _taken(new_id)
        return known

    async def _driven(self, run_id: str, drive: Coroutine[Any, Any, RunResult]) -> RunInfo:
        """Return when the first event is durable. Whoever asked may leave: the run goes on."""
        with self._inside.watch(run_id) as reader:
            task = self.keep(drive)
            task.add_done_callback(lambda _: reader.close())
            first = await anext(aiter(reader), None)
        if first is None:
            with contextlib.suppress(Held):  # somebody else was faster
                await task
        return await self._inside.runs.journal.get(run_id)


def _taken(id: str) -> Conflict:
    """Builds the same error whoever owns the work."""
    return Conflict(f"the id {id!r} belongs to other work", hint="choose another id")
