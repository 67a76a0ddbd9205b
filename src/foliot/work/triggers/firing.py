"""Making the task of a slot, exactly one however often it is tried.

A slot is stored as due, with its order, before its task is made. Whoever finds it due later finishes it: the task has
one name and one idempotency key, so making it again finds what was made. Only then the slot is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from foliot.errors import Conflict, FoliotError, NotFound
from foliot.resources.references import Origin
from foliot.store.base import Database
from foliot.store.triggers import settle
from foliot.work.base import TaskInfo, Tasks
from foliot.work.triggers.declared_schedule import LABEL, Order

log = logging.getLogger(__name__)

ACTIVE = ("queued", "running", "waiting")
FAILURE = "task_create_error"
_PAGE = 200


class Finished(NamedTuple):
    """`settled`: the slot has ended, with this task or with none."""

    task: TaskInfo | None
    settled: bool


class Firing:
    """`give_up` is for how many seconds an order that fails for a passing reason is tried again."""

    def __init__(self, database: Database, tasks: Tasks, *, give_up: float = 3600.0) -> None:
        self._database = database
        self._tasks = tasks
        self._give_up = give_up

    async def finish(self, schedule: str, slot: int, order: Order, *, claimed_at: float, now: float) -> Finished:
        """Make the task of a slot that is due, and settle the slot.

        Raises nothing for a task that cannot be made: the slot then says why. What may pass is left due.
        """
        try:
            if order.replace:
                await self._replace(order)
            task = await self._make(order)
        except FoliotError as error:
            if error.retryable and abs(now - claimed_at) < self._give_up:
                log.warning("a task of %s could not be made yet: %s", order.command.by, error.message)
                return Finished(None, settled=False)
            await self._database.write(settle, schedule, slot, "skipped", f"{FAILURE}: {error.message}", "", now)
            return Finished(None, settled=True)
        await self._database.write(settle, schedule, slot, "fired", "", task.id, now)
        return Finished(task, settled=True)

    async def active(self, spawner: str) -> list[TaskInfo]:
        """The tasks of a schedule that have not ended, newest first; one that waits for somebody has not."""
        return await self.of(spawner, ACTIVE)

    async def of(self, spawner: str, phases: Sequence[str], *, most: int = 1000) -> list[TaskInfo]:
        found, cursor = await self._tasks.list(spawned_by=spawner, phases=tuple(phases), limit=_PAGE)
        while cursor is not None and len(found) < most:
            more, cursor = await self._tasks.list(spawned_by=spawner, phases=tuple(phases), limit=_PAGE, cursor=cursor)
            found = [*found, *more]
        return found

    async def _make(self, order: Order) -> TaskInfo:
        """Raises what `accept_template` does, and `Conflict` when the names are taken by other tasks."""
        name = order.command.name
        origin = Origin("TaskSchedule", order.command.namespace)
        uid = order.command.labels[f"{LABEL}-uid"]
        for choice in (name, f"{name}-{uid[:8]}"):
            command = replace(order.command, name=choice)
            try:
                accepted = await self._tasks.accept_template(
                    order.ref, command, origin=origin, by_operator=order.by_operator
                )
                return accepted.task
            except Conflict:
                # Made before, and the template was changed since; or the name is somebody else's.
                if (made := await self._made(order, choice)) is not None:
                    return made
        raise Conflict(f'scheduled run task name conflict for "{name}"', hint="rename the schedule, or the task")

    async def _made(self, order: Order, name: str) -> TaskInfo | None:
        namespace = order.ref.partition("/")[0]
        try:
            task = await self._tasks.get(namespace, name)
        except NotFound:
            return None
        marks = (f"{LABEL}-uid", f"{LABEL}-slot")
        same = all(task.labels.get(mark) == order.command.labels[mark] for mark in marks)
        return task if same and task.spawned_by == order.command.spawned_by else None

    async def _replace(self, order: Order) -> None:
        mark = f"{LABEL}-slot"
        for task in await self.active(order.command.spawned_by):
            if task.labels.get(mark) == order.command.labels[mark]:
                continue  # it is the one that was being made
            try:
                await self._tasks.cancel(
                    task.namespace, task.name, by=order.command.by, reason=f"replaced by {order.command.name}"
                )
            except (Conflict, NotFound):
                continue  # it ended by itself
