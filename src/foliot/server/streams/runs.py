"""Runs and tasks as streams: what is in their journals behind a cursor, then what comes, until they end.

The cursor of a run is the `seq` of its last event. That of a task holds the place in its own events and in those of
each run; where so many runs are under way that it does not fit into a header, only some events carry one. A store that
is away for a while is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec

from foliot.engine.live.hub import Interleaved, Output, Recorded, Streamed
from foliot.errors import Unavailable
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.server.context import Services
from foliot.server.streams.sse import frame
from foliot.store.journal.base import TERMINAL, Entry
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.events import Batch, Happening, Place, TaskHappening, as_data, decode_cursor, encode_cursor

T = TypeVar("T")

LOOK_EVERY: Final = 1.0
LONGEST_CURSOR: Final = 2000
PAGE: Final = 500


async def task_frames(services: Services, namespace: str, name: str, cursor: str | None) -> AsyncGenerator[bytes]:
    """Everything that happens to a task and its runs, then an event `end` when it has ended."""
    async with aclosing(task_batches(services, namespace, name, cursor)) as batches:
        async for info, batch in batches:
            place = decode_cursor(cursor)
            told: list[bytes] = []
            for number, happening in enumerate(batch.events, start=1):
                place = _behind(place, happening)
                mark = batch.cursor if number == len(batch.events) else encode_cursor(place)
                told.append(frame("event", as_data(info.id, happening), mark if len(mark) <= LONGEST_CURSOR else None))
            if told:
                yield b"".join(told)
            cursor = batch.cursor
            if info.phase in ENDED:
                yield frame("end", {"type": "end", "task": info.id, "phase": info.phase})


async def task_batches(
    services: Services, namespace: str, name: str, cursor: str | None
) -> AsyncGenerator[tuple[TaskInfo, Batch]]:
    """How a task stands and what happened to it behind the cursor, again whenever something has, until it ended."""
    tasking = services.runtime.inside.tasking
    stir = asyncio.Event()
    key = (await patiently(lambda: tasking.tasks.get(namespace, name))).key
    async with services.streams.signs.of_task(key, stir.set):
        while True:
            stir.clear()
            # In this order: what ended it is among what is read afterwards.
            info = await patiently(lambda: tasking.tasks.get(namespace, name))
            batch = await patiently(lambda at=cursor: tasking.stories.happenings(namespace, name, cursor=at))
            cursor = batch.cursor
            yield info, batch
            if info.phase in ENDED:
                return
            await stir.wait()


async def patiently(read: Callable[[], Awaitable[T]]) -> T:
    """Reads, and waits while the store is unavailable. Raises what another try would not change."""
    while True:
        try:
            return await read()
        except Unavailable as error:
            if not error.retryable:
                raise
            await asyncio.sleep(LOOK_EVERY)


def _behind(place: Place, happening: Happening) -> Place:
    if isinstance(happening, TaskHappening):
        return msgspec.structs.replace(place, seq=happening.seq)
    return msgspec.structs.replace(place, runs={**place.runs, happening.run_id: happening.seq})


async def run_frames(services: Services, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """The journal of a run behind `after`, with pieces of answers in between, wherever it is driven."""
    journal = services.runtime.inside.runs.journal
    stir = asyncio.Event()
    with services.runtime.inside.watch(run_id, elsewhere=True) as reader:
        reader.call(stir.set)
        pieces, missed = Interleaved(reader), 0
        async with services.streams.signs.of_run(run_id, stir.set) as sign:
            seen: Hashable = None
            more = True
            while True:
                stir.clear()
                entries: list[Entry] = []
                if more or sign.mark != seen:
                    seen = sign.mark
                    info = await patiently(lambda: journal.get(run_id))
                    entries = await patiently(lambda at=after: journal.read(run_id, after=at, limit=PAGE))
                    more = bool(entries)
                    if not entries and info.phase in TERMINAL:
                        yield frame("end", {"type": "end", "run": run_id, "phase": info.phase})
                        return
                if reader.missed > missed:
                    yield frame("missed", {"type": "missed", "pieces": reader.missed - missed})
                    missed = reader.missed
                if told := _told(pieces, run_id, entries):
                    yield told
                after = entries[-1].seq if entries else after
                if not more:
                    await stir.wait()


def event_data(run_id: str, entry: Entry | Recorded) -> dict[str, Any]:
    """An event as it is told: `{"type", "run", "seq", "at", "data"}`."""
    event = entry.event if isinstance(entry, Recorded) else decode(entry.data)
    data = msgspec.json.decode(encode(event))
    data.pop("type", None)
    return {"type": type_of(event), "run": run_id, "seq": entry.seq, "at": entry.at, "data": data}


def _told(pieces: Interleaved, run_id: str, entries: Sequence[Entry]) -> bytes:
    """The frames of these entries, and of the pieces that came meanwhile, which have no id: they are for show."""
    told: list[bytes] = []
    for item in pieces.among([Recorded(run_id, each.seq, each.at, decode(each.data)) for each in entries]):
        match item:
            case Streamed(step=step, delta=delta):
                told.append(frame("delta", {"type": "delta", "step": step, "delta": msgspec.to_builtins(delta)}))
            case Output(call_id=call_id, text=text):
                told.append(frame("output", {"type": "output", "call": call_id, "text": text}))
            case Recorded(seq=seq):
                told.append(frame("event", event_data(run_id, item), seq))
    return b"".join(told)
