"""Runs and tasks as streams: what is in their journals behind a cursor, then what comes, until they end.

The cursor of a run is the `seq` of its last event. That of a task holds the place in its own events and in those of
each run; where so many runs are under way that it does not fit into a header, only some events carry one. A store that
is away for a while is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from foliot.engine.live import Output, Reader, Recorded, Streamed
from foliot.errors import Unavailable
from foliot.kernel.codec import decode, encode, type_of
from foliot.server.context import Services
from foliot.server.identity import Caller
from foliot.server.sse import frame
from foliot.server.tasklist import Wanted, list_tasks
from foliot.stopping import stop_tasks
from foliot.store.base import Document
from foliot.store.runs import TERMINAL, Entry
from foliot.store.tasks import ENDED
from foliot.work.story.happenings import Happening, Place, TaskHappening, as_data, decode_cursor, encode_cursor

LOOK_EVERY: Final = 1.0
PACE: Final = 0.25
LONGEST_CURSOR: Final = 2000
MOST_TASKS: Final = 1000
PAGE: Final = 500


async def task_frames(services: Services, namespace: str, name: str, cursor: str | None) -> AsyncGenerator[bytes]:
    """Everything that happens to a task and its runs, then an event `end` when it has ended."""
    tasking = services.runtime.tasking
    while True:
        place = decode_cursor(cursor)
        try:
            info = await tasking.tasks.get(namespace, name)
            batch = await tasking.stories.happenings(namespace, name, cursor=cursor)
        except Unavailable:
            await asyncio.sleep(LOOK_EVERY)
            continue
        for number, happening in enumerate(batch.happenings, start=1):
            place = _behind(place, happening)
            mark = batch.cursor if number == len(batch.happenings) else encode_cursor(place)
            data = as_data(info.id, happening)
            yield frame("event", data, mark if len(mark) <= LONGEST_CURSOR else None)
        cursor = batch.cursor
        if info.phase in ENDED:
            yield frame("end", {"type": "end", "task": info.id, "phase": info.phase})
            return
        await tasking.database.wait_for_change(timeout=LOOK_EVERY)


async def all_tasks_frames(services: Services, caller: Caller, wanted: Wanted) -> AsyncGenerator[bytes]:
    """The newest tasks and how they stand, then each that comes, changes or goes.

    How a task stands is read off its runs and has no number of its own, so there are no cursors: whoever reconnects
    gets all of them again.
    """
    known: dict[str, Document] = {}
    while True:
        try:
            items, _ = await list_tasks(services, caller, wanted, limit=MOST_TASKS, cursor=None)
        except Unavailable:
            await asyncio.sleep(LOOK_EVERY)
            continue
        now = {_identity(item): item for item in items}
        for identity, item in now.items():
            if item != known.get(identity):
                kind = "updated" if identity in known else "added"
                yield frame("resource", {"type": kind, "resource": item})
        for identity in known.keys() - now.keys():
            gone = {"kind": "Task", "metadata": known[identity]["metadata"]}
            yield frame("resource", {"type": "deleted", "resource": gone})
        known = now
        await services.database.wait_for_change(timeout=LOOK_EVERY)
        await asyncio.sleep(PACE)  # a busy store wakes everybody with each commit


def _identity(task: Document) -> str:
    metadata = task["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _behind(place: Place, happening: Happening) -> Place:
    if isinstance(happening, TaskHappening):
        return msgspec.structs.replace(place, seq=happening.seq)
    return msgspec.structs.replace(place, runs={**place.runs, happening.run_id: happening.seq})


async def run_frames(services: Services, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """The journal of a run behind `after`, with pieces of answers in between while it is driven in this process."""
    journal = services.runtime.runs.journal
    with ExitStack() as stack:
        reader = stack.enter_context(services.runtime.watch(run_id))
        pieces = _Pieces(reader)
        stack.callback(pieces.stop)
        while True:
            try:
                info = await journal.get(run_id)
                entries = await journal.read(run_id, after=after, limit=PAGE)
            except Unavailable:
                await asyncio.sleep(LOOK_EVERY)
                continue
            ended = info.phase in TERMINAL
            for entry in entries:
                yield frame("event", event_data(run_id, entry), entry.seq)
                after = entry.seq
                ended = False  # perhaps there are more
            if ended:
                yield frame("end", {"type": "end", "run": run_id, "phase": info.phase})
                return
            for piece in pieces.taken():
                yield piece
            await pieces.wait(services.database.wait_for_change(timeout=LOOK_EVERY))


def event_data(run_id: str, entry: Entry) -> dict[str, Any]:
    """An event as it is told: `{"type", "run", "seq", "at", "data"}`."""
    event = decode(entry.data)
    data = msgspec.json.decode(encode(event))
    data.pop("type", None)
    return {"type": type_of(event), "run": run_id, "seq": entry.seq, "at": entry.at, "data": data}


class _Pieces:
    """What a run writes while it is driven here. Pieces are for show: they carry no id, and a slow reader is told
    how many it missed."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waiting: list[bytes] = []
        self._came = asyncio.Event()
        self._missed = 0
        self._task = asyncio.create_task(self._gather())

    def taken(self) -> list[bytes]:
        taken, self._waiting = self._waiting, []
        self._came.clear()
        if self._reader.missed > self._missed:
            taken.append(frame("missed", {"type": "missed", "pieces": self._reader.missed - self._missed}))
            self._missed = self._reader.missed
        return taken

    async def wait(self, change: Any) -> None:
        """Until there is a piece, or something changed in the store."""
        tasks = {asyncio.ensure_future(change), asyncio.create_task(self._came.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop_tasks(*tasks)

    def stop(self) -> None:
        self._task.cancel()

    async def _gather(self) -> None:
        async for item in self._reader:
            match item:
                case Streamed(step=step, delta=delta):
                    data = {"type": "delta", "step": step, "delta": msgspec.to_builtins(delta)}
                    self._waiting.append(frame("delta", data))
                case Output(call_id=call_id, text=text):
                    self._waiting.append(frame("output", {"type": "output", "call": call_id, "text": text}))
                case Recorded():
                    pass  # read from the journal, where it has its number
            self._came.set()
