"""How tasks stand, as a feed with numbers: compared once in this process for all who watch tasks.

How a task stands is read off its runs, and nothing is written when it changes. So while anybody watches, one task
compares what there is with what was told last, and stores the differences under new numbers. Other processes do the
same with the same rows: a difference is told once, whoever finds it, and a watch goes on from its number anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from foliot.common.cancellation import stop_tasks
from foliot.errors import Unavailable
from foliot.store.base import Database, Document
from foliot.store.key_pages import keys_array
from foliot.store.tasks import (
    DROPPED_AT,
    ENDED,
    TaskDifference,
    TaskFeedRow,
    drop,
    tell,
    told_behind,
    told_of,
)
from foliot.work.tasks.base import TaskInfo
from foliot.work.tasks.list import TaskList
from foliot.work.views.document import outline

log = logging.getLogger(__name__)

# Tasks that have ended are followed for as long as they are among the newest.
FOLLOWED: Final = 2000
KEPT: Final = 2000
LOOK_EVERY: Final = 1.0
# Between two looks at least so long, and some times as long as the last one took.
SHORTEST_ROUND: Final = 0.1
SHARE: Final = 4
_AT_ONCE: Final = 200
# So many tasks are compared in one step of the event loop: a few milliseconds.
_COMPARED: Final = 50

Mark = tuple[int, ...]


def as_text(document: Document) -> str:
    """A document as it is told and compared: without the times of its lease, which move on by themselves."""
    if "leaseUntil" in document.get("status", ()):
        times = ("leaseUntil", "lastHeartbeat")
        status = {name: value for name, value in document["status"].items() if name not in times}
        document = {**document, "status": status}
    return msgspec.json.encode(document).decode()


class TaskFeed:
    """The changes of tasks, for the streams of this process."""

    def __init__(self, database: Database) -> None:
        self.number = 0
        """The newest that was told."""
        self.revision = 0
        """The newest of the changes to resources, templates of tasks among them."""
        self._database = database
        self._tasks = TaskList(database)
        self._marks: dict[int, Mark] = {}
        self._at_work: Sequence[int] = []
        self._recent: list[TaskFeedRow] = []
        self._floor = 0
        self._stirs: list[Callable[[], None]] = []
        self._looking: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._since_drop = 0

    @asynccontextmanager
    async def joined(self, stir: Callable[[], None]) -> AsyncGenerator[None]:
        """Call `stir` whenever there is something new.

        What the newest tasks, and those at work, had to tell has its number when this begins. Older ones that wait may
        be very many; those that have changed while nobody watched are told soon after.
        """
        self._stirs.append(stir)
        if self._looking is None:
            self._ready.clear()
            self._looking = asyncio.create_task(self._look())
        try:
            await self._ready.wait()
            yield
        finally:
            self._stirs.remove(stir)
            if not self._stirs:
                looking, self._looking = self._looking, None
                await stop_tasks(looking)

    async def behind(self, number: int) -> tuple[int, Sequence[TaskFeedRow]]:
        """Returns the events behind a number, in order, and the number up to which they are complete.

        Raises `Unavailable`.
        """
        newest = max(number, self.number)
        if number < self._floor:
            found = await told_behind(self._database, number, _AT_ONCE)
            return (found[-1].number if len(found) == _AT_ONCE else newest), found
        return newest, self._recent[bisect_right(self._recent, number, key=lambda each: each.number) :]

    async def mind(self, uids: Sequence[str]) -> None:
        """Marks tasks that were shown to a client: a change of one will be reported, however old it is."""
        found = await self._database.read("task_feed_live", uids=msgspec.json.encode(uids).decode())
        keys = [key for row in found if (key := row["key"]) not in self._marks]
        await self._tell_all(keys, {})

    # --- comparing -------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        begins = True
        while True:
            began = time.perf_counter()
            try:
                seen = self._database.change_mark()
                if begins:
                    self._marks, self._recent, self._at_work = {}, [], []
                    self.number = self._floor = (await self._database.read("task_feed_bounds"))[0]["told"]
                floor = await self._compare()
                self._ready.set()
                if begins:
                    await self._compare_waiting(floor)
                    begins = False
                took = time.perf_counter() - began
                await self._database.wait_for_change(seen, timeout=LOOK_EVERY)
                began = time.perf_counter() - took
            except Unavailable:
                await asyncio.sleep(LOOK_EVERY)
            except Exception:  # nobody waits for this task: what it does not catch, nobody hears of
                log.exception("tasks could not be compared with what was told; it is tried again")
                await asyncio.sleep(LOOK_EVERY)
            await asyncio.sleep(max(SHORTEST_ROUND, SHARE * (time.perf_counter() - began)))

    async def _compare_waiting(self, floor: int) -> None:
        """Compares old tasks that were told as not ended with what there is.

        There may be very many, so this is done once, in the beginning. Then, as all others, they are looked at only
        when they are claimed or have ended.
        """
        after = -1
        while found := await self._database.read("task_feed_waiting", after=after, floor=floor, count=_AT_ONCE):
            keys = [int(row["task"]) for row in found]
            await self._tell_all([key for key in keys if key not in self._marks], {})
            await self._catch_up()
            after = keys[-1]

    async def _compare(self) -> int:
        """Compares the marks of tasks with the last ones; returns the key up to which tasks are old."""
        floor = (await self._database.read("task_feed_newest"))[0]["key"] - FOLLOWED
        also = keys_array(self._at_work)
        rows = await self._database.read("task_feed_marks", floor=floor, also=also)
        marks = {
            int(row["key"]): (
                *(row["revision"], row["archived"], row["live"]),
                *(int(row["seq"]), int(row["epochs"]), int(row["waits"])),
            )
            for row in rows
        }
        changed = [key for key, mark in marks.items() if self._marks.get(key) != mark]
        busy = {int(row["key"]) for row in rows if row["held"]}.union(changed)
        self._at_work = [key for key in busy if key <= floor]
        deleted = [row["task"] for row in await self._database.read("task_feed_deleted")]
        self._marks = {key: mark for key, mark in self._marks.items() if key in marks}
        for keys in (deleted, sorted(changed)):  # a name may be free again, and used
            await self._tell_all(keys, marks)
        await self._catch_up()
        if self._since_drop >= DROPPED_AT:
            await self._database.write(drop, floor)
            self._since_drop = 0
        return floor

    async def _tell_all(self, keys: Sequence[int], marks: dict[int, Mark]) -> None:
        for start in range(0, len(keys), _COMPARED):
            await self._tell(keys[start : start + _COMPARED], marks)
            await asyncio.sleep(0)

    async def _tell(self, keys: Sequence[int], marks: dict[int, Mark]) -> None:
        """Store how these stand, as far as it is another way than was told."""
        infos = {info.key: info for info in await self._tasks.many(keys)}
        known = await told_of(self._database, keys)
        differences = [each for key in keys if (each := _difference(key, infos.get(key), known.get(key))) is not None]
        told = {each.task for each in await self._database.write(tell, differences)} if differences else set[int]()
        self._since_drop += len(told)
        contested = {each.task for each in differences} - told
        # Those of which somebody else told meanwhile are looked at again.
        self._marks |= {key: marks[key] for key in keys if key in marks and key not in contested}

    async def _catch_up(self) -> None:
        """Take over what was told since, by this process or another one."""
        stirred = False
        while found := await told_behind(self._database, self.number, _AT_ONCE):
            self._recent += found
            self.number = found[-1].number
            stirred = True
        if len(self._recent) > KEPT:
            self._floor = self._recent[-KEPT - 1].number
            del self._recent[:-KEPT]
        revision = (await self._database.read("task_feed_bounds"))[0]["revision"]
        if revision != self.revision or stirred:
            self.revision = revision
            for stir in self._stirs:
                stir()


def _difference(key: int, info: TaskInfo | None, told: TaskFeedRow | None) -> TaskDifference | None:
    if info is None or info.archived_at is not None:
        if told is None or told.gone:
            return None
        return TaskDifference(key, told.number, live=False, gone=True, document=told.document)
    document = as_text(outline(info))
    live = info.phase not in ENDED
    if told is not None and (told.document, told.live, told.gone) == (document, live, False):
        return None
    return TaskDifference(key, told.number if told else 0, live=live, gone=False, document=document)
