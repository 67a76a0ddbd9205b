"""The scheduler: makes a task at each time that a TaskSchedule names, once, over any number of scheduler processes.

Every process may decide about every schedule. A decision is a row for the slot, stored under the lock of its schedule
and only if no other was stored meanwhile, so a slot is decided once; how its task is made once is in `Firing`. A clock
that is wrong decides nothing twice: what was decided stays decided, and what is in the future is looked at again when
its time comes.

Between two slots nothing is asked of the store but, every few seconds, whether anything was declared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from foliot.errors import Conflict, FoliotError, NotFound, Unavailable
from foliot.resources.references import Origin
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Document, Key, Put, ResourceStore
from foliot.store.triggers import (
    Known,
    NewSlot,
    Slot,
    begin,
    decide,
    decide_manual,
    forget_schedule,
    forget_slots,
    known_of,
    schedules_with_due_slots,
    settle,
    slots_of,
)
from foliot.work.tasks.base import TaskInfo, Tasks
from foliot.work.triggers.declared import FollowedResources
from foliot.work.triggers.schedule import (
    LABEL,
    Schedule,
    SlotOrder,
    SlotVerdict,
    decode_order,
    encode_order,
    manual_order,
    next_start,
    order_for,
    read_schedule,
    stamp_of,
    verdicts,
)
from foliot.work.triggers.session_orders import SessionOrder, SessionPosts

# --- firing ----------------------------------------------------------------------------------------------------------

# Making the task of a slot, exactly one however often it is tried.
#
# A slot is stored as due, with its order, before its task is made. Whoever finds it due later finishes it: the task
# has one name and one idempotency key, so making it again finds what was made. Only then the slot is settled.

log = logging.getLogger(__name__)

ACTIVE = ("queued", "running", "waiting")
FAILURE = "task_create_error"
_PAGE = 200


class FinishedSlot(NamedTuple):
    """`settled`: the slot has ended, with this task or with none."""

    task: TaskInfo | None
    settled: bool


class Firing:
    """`give_up` is for how many seconds an order that fails for a passing reason is tried again."""

    def __init__(
        self, database: Database, tasks: Tasks, *, give_up: float = 3600.0, posts: SessionPosts | None = None
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._posts = posts
        self._give_up = give_up

    async def finish(
        self, schedule: str, slot: int, order: SlotOrder, *, claimed_at: float, now: float
    ) -> FinishedSlot:
        """Make the task of a slot that is due, and settle the slot.

        Raises nothing for a task that cannot be made: the slot then says why. What may pass is left due.
        """
        try:
            if order.session is not None:
                session = await self._post(order.session)
                await self._database.write(settle, schedule, slot, "fired", f"session {session}", "", now)
                return FinishedSlot(None, settled=True)
            if order.replace:
                await self._replace(order)
            task = await self._make(order)
        except FoliotError as error:
            if error.retryable and abs(now - claimed_at) < self._give_up:
                log.warning("a task of %s could not be made yet: %s", order.command.by, error.message)
                return FinishedSlot(None, settled=False)
            await self._database.write(settle, schedule, slot, "skipped", f"{FAILURE}: {error.message}", "", now)
            return FinishedSlot(None, settled=True)
        await self._database.write(settle, schedule, slot, "fired", "", task.id, now)
        return FinishedSlot(task, settled=True)

    async def _post(self, order: SessionOrder) -> str:
        if self._posts is None:
            raise Unavailable(
                "this process says nothing to sessions: `foliot server` does, and `foliot schedule serve`"
            )
        return await self._posts.post(order)

    async def active(self, spawner: str) -> list[TaskInfo]:
        """The tasks of a schedule that have not ended, newest first; one that waits for somebody has not."""
        return await self.of(spawner, ACTIVE)

    async def of(self, spawner: str, phases: Sequence[str], *, most: int = 1000) -> list[TaskInfo]:
        found, cursor = await self._tasks.list(spawned_by=spawner, phases=tuple(phases), limit=_PAGE)
        while cursor is not None and len(found) < most:
            more, cursor = await self._tasks.list(spawned_by=spawner, phases=tuple(phases), limit=_PAGE, cursor=cursor)
            found = [*found, *more]
        return found

    async def _make(self, order: SlotOrder) -> TaskInfo:
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

    async def _made(self, order: SlotOrder, name: str) -> TaskInfo | None:
        namespace = order.ref.partition("/")[0]
        try:
            task = await self._tasks.get(namespace, name)
        except NotFound:
            return None
        marks = (f"{LABEL}-uid", f"{LABEL}-slot")
        same = all(task.labels.get(mark) == order.command.labels[mark] for mark in marks)
        return task if same and task.spawned_by == order.command.spawned_by else None

    async def _replace(self, order: SlotOrder) -> None:
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


# --- schedule status -------------------------------------------------------------------------------------------------

# What a schedule shows of itself, and which of its ended tasks are kept.

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


# --- schedules -------------------------------------------------------------------------------------------------------

# The longest rest without looking, the shortest between two looks, and how often tasks under way are looked at.
LONGEST_REST = 5.0
PACE = 1.0
REFRESH = 5.0
# Another process finishes a slot that was claimed this long ago; both may try, and only one task comes of it.
TAKEOVER = 5.0
AT_ONCE = 16
SLOTS_KEPT = 500
# What is remembered of a deleted schedule, until no process can still believe that it is there.
GONE_FOR = 60.0


class Scheduler:
    """`run` works until it is cancelled; `tick` does what is due at one moment."""

    def __init__(
        self,
        database: Database,
        store: ResourceStore,
        tasks: Tasks,
        *,
        clock: Callable[[], float] = time.time,
        takeover: float = TAKEOVER,
        posts: SessionPosts | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._takeover = takeover
        self._store = store
        self._tokens = SqlTokens(database)
        self._followed = FollowedResources(database, store, "TaskSchedule")
        self._firing = Firing(database, tasks, posts=posts)
        self._status = ScheduleStatus(database, store, tasks, self._firing)
        self._due: dict[str, float] = {}
        # When the next slot of a schedule begins, for those of which nothing else is left to decide.
        self._calm: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._seen = 0.0
        self._swept = False

    async def run(self) -> None:
        """Runs schedules until cancelled. A store that does not answer is waited for."""
        while True:
            due = self._clock() + PACE
            try:
                seen = self._database.change_mark()
                due = await self.tick(self._clock())
                await self._rest(due, seen)
            except FoliotError as error:
                log.warning("the scheduler tries again: %s", error.message)
                await asyncio.sleep(PACE)

    async def tick(self, now: float) -> float:
        """Decide all slots that are due at `now`, and make their tasks; when to look next.

        Raises `Unavailable` when the store does not answer. What is wrong with one schedule concerns no other.
        """
        if not self._swept:
            await self._sweep()
        if now < self._seen - PACE:  # the clock was set back: what comes next is another question
            self._due = dict.fromkeys(self._due, now)
            self._calm.clear()
        self._seen = now
        for uid in await self._followed.look():
            self._calm.pop(uid, None)
            if uid in self._followed.documents:
                self._due[uid] = now
            else:
                self._due.pop(uid, None)
                self._gone[uid] = now + GONE_FOR
        for uid in await schedules_with_due_slots(self._database):
            if self._calm.pop(uid, None) is not None:  # another process left a slot that somebody asked for by hand
                self._due[uid] = now
        await self._attend_all([uid for uid, due in self._due.items() if due <= now], now)
        for uid in [uid for uid, when in self._gone.items() if when <= now]:
            await self._database.write(forget_schedule, uid)
            del self._gone[uid]
        return min(self._due.values(), default=now + LONGEST_REST)

    async def run_now(
        self, namespace: str, name: str, *, by: str = "", given: Mapping[str, str] | None = None
    ) -> tuple[int, TaskInfo | None]:
        """Make a task of the schedule now, whatever its policy says. Returns its slot, which says why there is none.

        Raises `NotFound` for the schedule.
        """
        document = await self._store.get(Key("TaskSchedule", namespace, name))
        schedule, now = read_schedule(document), self._clock()
        await self._known(schedule, now)
        slot = int(now * 1000)
        while True:
            slot += slot % 1000 == 0  # whole seconds are the clock's
            order = manual_order(schedule, slot, by=by, given=given or {})
            asked = NewSlot(slot, "due", command=encode_order(order), kind="manual")
            if await self._database.write(decide_manual, schedule.uid, asked, now):
                break
            slot += 1
        finished = await self._firing.finish(schedule.uid, slot, order, claimed_at=now, now=now)
        await self._status.refresh(schedule, document, now)
        return slot, finished.task

    # --- resting -------------------------------------------------------------------------------------------------

    async def _rest(self, due: float, seen: object) -> None:
        """Waits until something is due, or may have been declared since `seen`."""
        began = time.monotonic()
        rest = min(due - self._clock(), LONGEST_REST)
        if rest <= 0:
            return
        await self._database.wait_for_change(seen, timeout=rest)
        # A busy store wakes everybody with each commit; nothing declared is so urgent.
        left = min(PACE - (time.monotonic() - began), due - self._clock())
        if left > 0:
            await asyncio.sleep(left)

    async def _sweep(self) -> None:
        """Forget schedules that were deleted while nobody looked. The order of the two reads matters: what is stored
        of a schedule that is made meanwhile is not among the states that were read before."""
        states = [row["schedule"] for row in await self._database.read("schedule_states")]
        await self._followed.look()
        self._due = dict.fromkeys(self._followed.documents, 0.0)
        for uid in states:
            if uid not in self._followed.documents:
                await self._database.write(forget_schedule, uid)
        self._swept = True

    # --- one schedule --------------------------------------------------------------------------------------------

    async def _attend_all(self, uids: list[str], now: float) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def attend(uid: str) -> None:
            async with places:
                await self._attend_safely(uid, now)

        await asyncio.gather(*map(attend, uids))

    async def _attend_safely(self, uid: str, now: float) -> None:
        self._due[uid] = now + REFRESH
        document = self._followed.documents[uid]
        try:
            schedule = read_schedule(document)
            if now < self._calm.get(uid, 0.0) and await self._unchanged(schedule, document):
                self._due[uid] = min(self._calm[uid], now + REFRESH)
                return
            self._calm.pop(uid, None)
            self._due[uid] = await self._attend(schedule, now)
        except FoliotError as error:
            log.warning("schedule %s is looked at again: %s", document["metadata"]["name"], error.message)
        except Exception as error:  # one that nobody can read must not stop the others
            log.exception("schedule %s cannot be dealt with", document["metadata"]["name"])
            with contextlib.suppress(FoliotError):
                self._followed.documents[uid] = await self._status.fail(document, f"{type(error).__name__}: {error}")

    async def _attend(self, schedule: Schedule, now: float) -> float:
        """Decide what is due, show how it stands; when to look at this schedule next."""
        if why := await self._tokens.withdrawn(schedule.declarer):
            stopped = f"{why}, and declared this schedule: somebody else has to change it, or declare it anew"
            schedule = msgspec.structs.replace(schedule, suspend=True, stopped=stopped)
        known = await self._known(schedule, now)
        unsettled = False
        for row in known.due:
            if abs(now - row["claimed_at"]) < self._takeover:
                unsettled = True
                continue
            order = decode_order(row["command"])
            unsettled |= not await self._finish(schedule, row["slot"], order, row["claimed_at"], now)
        if not schedule.suspend:
            known = await self._known(schedule, now) if known.due else known
            unsettled |= await self._decide_slots(schedule, known, now)
        document = await self._status.refresh(schedule, self._followed.documents[schedule.uid], now)
        self._followed.documents[schedule.uid] = document
        following = None
        if not schedule.suspend:
            following = next_start(schedule.timing, schedule.rule, schedule.uid, after=now)
        due = following[1] if following is not None else float("inf")
        if not unsettled:
            self._calm[schedule.uid] = due
        if schedule.stopped:  # an account may be enabled again, and nobody tells
            due = self._calm[schedule.uid] = now + GONE_FOR
        if unsettled or document.get("status", {}).get("activeRuns"):
            due = min(due, now + REFRESH)
        return due

    async def _unchanged(self, schedule: Schedule, document: Document) -> bool:
        """Whether the tasks under way are still those that the status names: one query instead of all the others."""
        status: dict[str, Any] = document.get("status") or {}
        active = sorted(task.id for task in await self._firing.active(schedule.spawner))
        return active == status.get("activeRuns", [])

    async def _known(self, schedule: Schedule, now: float) -> Known:
        """Reads the stored state of the schedule; a schedule seen for the first time begins to count its slots."""
        known = await known_of(self._database, schedule.uid, upto=now)
        if known is None or known.timing != schedule.timing_text:
            since = min(now, schedule.updated)
            await self._database.write(begin, schedule.uid, schedule.timing_text, schedule.first, since)
            known = await known_of(self._database, schedule.uid, upto=now)
        return known or Known(schedule.timing_text, now, None, [])  # deleted, and forgotten: nothing is due

    async def _decide_slots(self, schedule: Schedule, known: Known, now: float) -> bool:
        """Decide every slot that is due; True when something is left for later."""
        unsettled, before = False, known.last
        while found := verdicts(schedule.timing, schedule.rule, schedule.uid, after=known.after, now=now):
            first = next((verdict for verdict in found if verdict.fires), None)
            slots = [NewSlot(each.slot * 1000, "skipped", each.reason) for each in _before(found, first)]
            order: SlotOrder | None = None
            waits = False
            if first is not None:
                busy = await self._busy(schedule, known) if schedule.policy == "forbid" else ""
                if not busy:
                    order = order_for(schedule, first.slot)
                    slots.append(NewSlot(first.slot * 1000, "due", command=encode_order(order)))
                elif schedule.rule.missed == "all":
                    waits = True
                else:
                    slots.append(NewSlot(first.slot * 1000, "skipped", f"skipped_forbid: {busy} has not ended"))
            if slots:
                decided = await self._database.write(decide, schedule.uid, known.last, slots, now)
                if decided and order is not None and first is not None:
                    unsettled |= not await self._finish(schedule, first.slot * 1000, order, now, now)
            if waits:
                return True
            known = await self._known(schedule, now)  # somebody else may have decided meanwhile
        if known.last != before:
            await self._database.write(forget_slots, schedule.uid, SLOTS_KEPT)
        return unsettled

    async def _busy(self, schedule: Schedule, known: Known) -> str:
        """The task that has not ended, or the slot whose task is being made; blank when there is none."""
        if known.due:
            return decode_order(known.due[0]["command"]).command.name
        active = await self._firing.active(schedule.spawner)
        return active[0].id if active else ""

    async def _finish(self, schedule: Schedule, slot: int, order: SlotOrder, claimed_at: float, now: float) -> bool:
        return (await self._firing.finish(schedule.uid, slot, order, claimed_at=claimed_at, now=now)).settled


def _before(found: list[SlotVerdict], first: SlotVerdict | None) -> list[SlotVerdict]:
    return found if first is None else found[: found.index(first)]
