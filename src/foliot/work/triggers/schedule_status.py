"""What a schedule shows of itself, and which of its ended tasks are kept."""

from __future__ import annotations

import contextlib
from typing import Any

from foliot.errors import Conflict, NotFound
from foliot.store.base import Database, Document, Put, ResourceStore
from foliot.store.triggers import Slot, slots_of
from foliot.work.base import TaskInfo, Tasks
from foliot.work.triggers.catch_up import next_start
from foliot.work.triggers.declared_schedule import Schedule, stamp_of
from foliot.work.triggers.firing import FAILURE, Firing

ENDED_WELL = ("succeeded",)
ENDED_BADLY = ("failed", "dead_lettered", "cancelled")
_LOOKED_AT = 50
# Tasks deleted at one look: the rest follows at the next, so that a backlog of thousands holds nobody up.
_DELETED_AT_ONCE = 100


class ScheduleStatus:
    """Writes a status only when it says something new."""

    def __init__(self, database: Database, store: ResourceStore, tasks: Tasks, firing: Firing) -> None:
        self._database = database
        self._store = store
        self._tasks = tasks
        self._firing = firing

    async def refresh(self, schedule: Schedule, document: Document, now: float) -> Document:
        """Look at the schedule's slots and tasks, prune the tasks, and write the status; the document as it is then."""
        active = await self._firing.active(schedule.spawner)
        slots = await slots_of(self._database, schedule.uid, limit=_LOOKED_AT)
        status: dict[str, Any] = document.get("status") or {}
        succeeded = await self._firing.of(schedule.spawner, ENDED_WELL)
        if not any(slot.state == "due" for slot in slots):  # a slot that is not settled may still ask for its task
            await self._prune(succeeded, schedule.keep_succeeded)
            await self._prune(await self._firing.of(schedule.spawner, ENDED_BADLY), schedule.keep_failed)
        wanted = _status(schedule, slots, active, succeeded, status, now)
        return await self._write(document, wanted)

    async def fail(self, document: Document, message: str) -> Document:
        """Show that the schedule cannot be dealt with at all."""
        status: dict[str, Any] = document.get("status") or {}
        return await self._write(document, {**status, "phase": "Error", "lastError": message[:500]})

    async def _write(self, document: Document, wanted: dict[str, Any]) -> Document:
        if wanted == document.get("status"):
            return document
        try:
            (written,) = await self._store.write([Put({**document, "status": wanted}, only="status")])
        except NotFound:  # deleted meanwhile
            return document
        return written.document

    async def _prune(self, ended: list[TaskInfo], keep: int) -> None:
        newest_first = sorted(ended, key=lambda task: (task.ended_at or task.updated_at, task.key), reverse=True)
        for task in newest_first[keep : keep + _DELETED_AT_ONCE]:
            with contextlib.suppress(NotFound, Conflict):  # somebody else deleted it, or tries it again
                await self._tasks.delete(task.namespace, task.name)


def _status(
    schedule: Schedule,
    slots: list[Slot],
    active: list[TaskInfo],
    succeeded: list[TaskInfo],
    before: dict[str, Any],
    now: float,
) -> dict[str, Any]:
    by_clock = [slot for slot in slots if slot.kind == "clock" and slot.slot <= now * 1000]
    last = by_clock[0].slot / 1000 if by_clock else None
    fired = next((slot.task for slot in slots if slot.state == "fired"), "")
    decided = next((slot for slot in slots if slot.state != "due"), None)
    error = ""
    if decided is not None and decided.reason.startswith(FAILURE):
        error = decided.reason.removeprefix(FAILURE).removeprefix(": ")
    error = schedule.stopped or error
    following = None if schedule.suspend else next_start(schedule.timing, schedule.rule, schedule.uid, after=now)
    ended = [task.ended_at for task in succeeded if task.ended_at is not None]
    success = max([stamp_of(moment) for moment in ended] + [before.get("lastSuccessfulTime", "")])
    if schedule.suspend:
        phase = "Suspended"
    elif error:
        phase = "Error"
    else:
        phase = "Ready" if following is not None else "Completed"
    wanted: dict[str, Any] = {
        **before,
        "phase": phase,
        "lastError": error,
        "observedGeneration": schedule.generation,
        "lastScheduleTime": stamp_of(last) if last is not None else before.get("lastScheduleTime", ""),
        "lastSuccessfulTime": success,
        "nextScheduleTime": stamp_of(following[0]) if following is not None else "",
        "lastTriggeredTask": fired or before.get("lastTriggeredTask", ""),
        "activeRuns": sorted(task.id for task in active),
    }
    return {name: value for name, value in wanted.items() if value not in ("", [], None)}
