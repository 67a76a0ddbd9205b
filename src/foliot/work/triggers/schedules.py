"""The scheduler: makes a task at each time that a TaskSchedule names, once, over any number of scheduler processes.

Every process may decide about every schedule. A decision is a row for the slot, stored under the lock of its schedule
and only if no other was stored meanwhile, so a slot is decided once; how its task is made once is in firing.py. A clock
that is wrong decides nothing twice: what was decided stays decided, and what is in the future is looked at again when
its time comes.

Between two slots nothing is asked of the store but, every few seconds, whether anything was declared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from foliot.errors import FoliotError
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Document, Key, ResourceStore
from foliot.store.triggers import (
    Known,
    NewSlot,
    begin,
    decide,
    decide_manual,
    forget_schedule,
    forget_slots,
    known_of,
)
from foliot.work.base import TaskInfo, Tasks
from foliot.work.following import Followed
from foliot.work.triggers.catch_up import Verdict, next_start, verdicts
from foliot.work.triggers.declared_schedule import (
    Order,
    Schedule,
    decode_order,
    encode_order,
    manual_order,
    order_for,
    read_schedule,
)
from foliot.work.triggers.firing import Firing
from foliot.work.triggers.schedule_status import ScheduleStatus

log = logging.getLogger(__name__)

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
    ) -> None:
        self._database = database
        self._clock = clock
        self._takeover = takeover
        self._store = store
        self._tokens = SqlTokens(database)
        self._followed = Followed(database, store, "TaskSchedule")
        self._firing = Firing(database, tasks)
        self._status = ScheduleStatus(database, store, tasks, self._firing)
        self._due: dict[str, float] = {}
        # When the next slot of a schedule begins, for those of which nothing else is left to decide.
        self._calm: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._seen = 0.0
        self._swept = False

    async def run(self) -> None:
        """Until cancelled. A store that does not answer is waited for."""
        while True:
            due = self._clock() + PACE
            try:
                due = await self.tick(self._clock())
                await self._rest(due)
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
        await self._attend_all([uid for uid, due in self._due.items() if due <= now], now)
        for uid in [uid for uid, when in self._gone.items() if when <= now]:
            await self._database.write(forget_schedule, uid)
            del self._gone[uid]
        return min(self._due.values(), default=now + LONGEST_REST)

    async def run_now(
        self, namespace: str, name: str, *, by: str = "", given: Mapping[str, str] | None = None
    ) -> TaskInfo | None:
        """Make a task of the schedule now, whatever its policy says; None when the slot says why there is none.

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
        return finished.task

    # --- resting -------------------------------------------------------------------------------------------------

    async def _rest(self, due: float) -> None:
        """Until something is due, or may have been declared."""
        began = time.monotonic()
        rest = min(due - self._clock(), LONGEST_REST)
        if rest <= 0:
            return
        await self._database.wait_for_change(timeout=rest)
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
        """What is stored of the schedule; its slots begin to count if nobody has looked at it before."""
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
            order: Order | None = None
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

    async def _finish(self, schedule: Schedule, slot: int, order: Order, claimed_at: float, now: float) -> bool:
        return (await self._firing.finish(schedule.uid, slot, order, claimed_at=claimed_at, now=now)).settled


def _before(found: list[Verdict], first: Verdict | None) -> list[Verdict]:
    return found if first is None else found[: found.index(first)]
