"""The feed of changes to resources, read once in this process for all who watch it.

One task follows the feed while anybody watches. Each change becomes a frame once; watches with the same filter share a
ring of frames. Who is too far behind for the ring, because they come from long ago or read slowly, reads from the store
until they are there. Changes that come faster than they can be handed out go out together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Final

from foliot.common.cancellation import stop_tasks
from foliot.errors import Gone, Unavailable
from foliot.resources.wording import WRITTEN_AS, as_written
from foliot.store.base import Database, Filter
from foliot.store.resources.documents import decode, encode
from foliot.store.resources.feed import LONGEST_WAIT, WINDOW, Action, Looked, window
from foliot.store.transaction import Row

# --- ring ------------------------------------------------------------------------------------------------------------

# What many readers are sent, made once: the newest frames of one feed, and who waits for the next.
#
# A reader is only a position. All get references to the same bytes, many frames in one piece, so a stream more costs
# one send for each piece and nothing for each event. Only so much is kept: a reader that is further behind than that
# has to read elsewhere, and holds up nobody.

# Of frames that are large, few go into one piece: a piece waits in the buffer of every connection.
LARGEST_PIECE: Final = 128 * 1024
RING_BYTES: Final = 1024 * 1024


class _Piece:
    """Frames with their positions, joined. It stands for everything behind `after` up to `upto`."""

    __slots__ = ("after", "data", "offsets", "places", "upto")

    def __init__(self, after: int, upto: int, frames: Sequence[tuple[int, bytes]]) -> None:
        self.after = after
        self.upto = upto
        self.places = [place for place, _ in frames]
        self.offsets = [0, *accumulate(len(data) for _, data in frames)]
        self.data = b"".join([data for _, data in frames])

    def behind(self, position: int) -> bytes:
        if position <= self.after:
            return self.data
        return self.data[self.offsets[bisect_right(self.places, position)] :]


class Ring:
    """The newest frames of a feed whose positions grow. It begins at `head`: nothing before that is in it."""

    def __init__(self, head: int) -> None:
        self.floor = head
        """Readers at this position or behind it find all that follows here; others do not."""
        self.head = head
        self.kept_bytes = RING_BYTES
        self._pieces: list[_Piece] = []
        self._size = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def put(self, upto: int, frames: Sequence[tuple[int, bytes]]) -> None:
        """Adds all frames behind the head up to the position `upto`, and wakes the readers that wait."""
        if not frames:
            self.head = upto  # nobody needs to know
            return
        start = size = 0
        for number, (_, data) in enumerate(frames):
            if size and size + len(data) > LARGEST_PIECE:
                self._add(frames[number - 1][0], frames[start:number])
                start, size = number, 0
            size += len(data)
        self._add(upto, frames[start:])
        self._wake()

    def begin_anew(self, head: int) -> None:
        """Restarts at a new head: the changes between are not known here."""
        self._pieces.clear()
        self._size = 0
        self.floor = self.head = head
        self._wake()

    def next(self, after: int) -> tuple[int, bytes] | None:
        """Returns the bytes behind a position, and how far they go; None when there are none yet.

        The position is not below `floor`.

        The bytes are empty when there was nothing to tell.
        """
        pieces = self._pieces
        if after >= self.head or not pieces:
            return None if after >= self.head else (self.head, b"")
        last = pieces[-1]
        if after >= last.after:  # nearly everybody, nearly always
            return (self.head, last.behind(after)) if after < last.upto else (self.head, b"")
        piece = pieces[bisect_right(pieces, after, key=lambda each: each.upto)]
        return piece.upto, piece.behind(after)

    async def wait(self) -> None:
        """Waits until there is something new."""
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(alarm)
        try:
            await alarm
        finally:
            self._waiting.discard(alarm)

    def _add(self, upto: int, frames: Sequence[tuple[int, bytes]]) -> None:
        piece = _Piece(self.head, upto, frames)
        self._pieces.append(piece)
        self._size += len(piece.data)
        self.head = upto
        while self._size > self.kept_bytes and len(self._pieces) > 1:
            gone = self._pieces.pop(0)
            self._size -= len(gone.data)
            self.floor = gone.upto

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for alarm in waiting:
            if not alarm.done():
                alarm.set_result(None)


# --- feed ------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
# Between two rounds at least so long, and as long as this thread worked on the last one, so that changes gather and
# streams take half of its time at most. Who is behind with reading does not rest.
SHORTEST_ROUND: Final = 0.005
# All rings together.
KEPT_BYTES: Final = 32 * 1024 * 1024
LEAST_KEPT: Final = 64 * 1024
BEHIND: Final = b": this stream is read too slowly; the next changes come from the store\n\n"
_TYPES: Final[dict[Action, bytes]] = {"created": b"added", "updated": b"updated", "deleted": b"deleted"}


_WORDS: Final = f'"{WRITTEN_AS}":'


def change_frame(revision: int, action: Action, document: str) -> bytes:
    """A change as an event `resource`; `document` is the resource as it is stored."""
    if _WORDS in document:  # rarely: others are handed on without being read
        document = encode(as_written(decode(document)))
    data = b'{"type":"%s","resource":%s}' % (_TYPES[action], document.encode())
    return b"id: %d\nevent: resource\ndata: %s\n\n" % (revision, data)


class _Group:
    """All who watch through the same filter."""

    def __init__(self, filter: Filter, head: int) -> None:
        self.filter = filter
        self.ring = Ring(head)
        self.readers = 0
        self.plain = not filter.labels and not filter.fields
        self.frames: list[tuple[int, bytes]] | None = None
        """What this round has for it; None when it came while the round was being made."""


class Feed:
    """The changes of one store, for the streams of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._groups: dict[Filter, _Group] = {}
        # By kind and namespace, None being all: a change is held only against filters that it may concern.
        self._places: dict[tuple[str | None, str | None], list[_Group]] = {}
        self._head = 0
        self._tail: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        return sum(group.readers for group in self._groups.values())

    async def frames(self, filter: Filter, after: int) -> AsyncGenerator[bytes]:
        """Every change behind a revision, then those to come, many in one piece. Raises `Gone`.

        A store that is away for a while is waited for.
        """
        async with self._joined(filter) as group:
            ring = group.ring
            late = False
            while True:
                if after < ring.floor:
                    if late:
                        yield BEHIND
                    try:
                        after, data = await self._stored(filter, after)
                    except Unavailable:
                        await asyncio.sleep(PAUSE)
                        continue
                    late = False
                elif (found := ring.next(after)) is not None:
                    after, data = found
                    late = True
                else:
                    late = True
                    await ring.wait()
                    continue
                if data:
                    yield data

    async def _stored(self, filter: Filter, after: int) -> tuple[int, bytes]:
        """The next changes from the store."""
        upto, rows = await window(self._database, filter.kind, after)
        told: list[bytes] = []
        for row in rows:
            action = await Looked(self._database, row).through(filter)
            if action is not None:
                told.append(change_frame(row["revision"], action, row["document"]))
        await asyncio.sleep(0)  # a long stretch that the filter leaves out must not hold up other tasks
        return upto, b"".join(told)

    # --- who is there ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _joined(self, filter: Filter) -> AsyncGenerator[_Group]:
        if self._tail is None:
            head = await self._newest()
            if self._tail is None:  # somebody else may have begun meanwhile
                self._head = head
                self._tail = asyncio.create_task(self._follow())
        group = self._groups.get(filter)
        if group is None:
            group = self._groups[filter] = _Group(filter, self._head)
            self._places.setdefault((filter.kind, filter.namespace), []).append(group)
            self._share()
        group.readers += 1
        try:
            yield group
        finally:
            group.readers -= 1
            if not group.readers:
                self._leave(group)
            if not self._groups:
                tail, self._tail = self._tail, None
                await stop_tasks(tail)

    def _leave(self, group: _Group) -> None:
        del self._groups[group.filter]
        place = (group.filter.kind, group.filter.namespace)
        self._places[place].remove(group)
        if not self._places[place]:
            del self._places[place]
        self._share()

    def _share(self) -> None:
        for group in self._groups.values():
            group.ring.kept_bytes = max(LEAST_KEPT, min(1024 * 1024, KEPT_BYTES // len(self._groups)))

    async def _newest(self) -> int:
        while True:
            try:
                return (await self._database.read("feed_bounds"))[0]["revision"]
            except Unavailable:
                await asyncio.sleep(PAUSE)

    # --- handing out -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                seen = self._database.change_mark()
                upto, rows = await window(self._database, None, self._head)
                if upto == self._head:
                    await self._database.wait_for_change(seen, timeout=LONGEST_WAIT)
                    continue
                await self._sort(rows)
            except Unavailable:
                await asyncio.sleep(PAUSE)
                continue
            except Gone:
                # Compacted while the store was away, or brought back from a backup: each reader hears of it by itself.
                self._head = await self._newest()
                for group in self._groups.values():
                    group.ring.begin_anew(self._head)
                continue
            except Exception:  # nobody waits for this task: what it does not catch, nobody hears of
                log.exception("changes could not be handed out; they are tried again")
                await asyncio.sleep(PAUSE)
                continue
            began, behind = time.thread_time(), upto - self._head >= WINDOW
            self._hand_out(upto)
            await asyncio.sleep(0)  # whoever was woken has its turn before this goes on
            if not behind:
                await asyncio.sleep(max(SHORTEST_ROUND, time.thread_time() - began))

    async def _sort(self, rows: Sequence[Row]) -> None:
        """Make the frames of these changes, each once, for the groups that see them."""
        for group in self._groups.values():
            group.frames = []
        for row in rows:
            looked = Looked(self._database, row)
            made: dict[Action, bytes] = {}
            for group in self._concerned(row):
                if group.frames is None:
                    continue
                action: Action | None = row["action"] if group.plain else await looked.through(group.filter)
                if action is None:
                    continue
                data = made.get(action)
                if data is None:
                    data = made[action] = change_frame(row["revision"], action, row["document"])
                group.frames.append((row["revision"], data))

    def _concerned(self, row: Row) -> list[_Group]:
        kind, namespace = row["kind"], row["namespace"]
        return [
            group
            for place in ((kind, namespace), (kind, None), (None, namespace), (None, None))
            for group in self._places.get(place, ())
        ]

    def _hand_out(self, upto: int) -> None:
        self._head = upto
        for group in self._groups.values():
            if group.frames is None:
                group.ring.begin_anew(upto)
            else:
                group.ring.put(upto, group.frames)
                group.frames = None
