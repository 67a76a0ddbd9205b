"""What many readers are sent, made once: the newest frames of one feed, and who waits for the next.

A reader is only a position. All get references to the same bytes, many frames in one piece, so a stream more costs one
send for each piece and nothing for each event. Only so much is kept: a reader that is further behind than that has to
read elsewhere, and holds up nobody.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

# Of frames that are large, few go into one piece: a piece waits in the buffer of every connection.
LARGEST_PIECE: Final = 128 * 1024
KEPT_BYTES: Final = 1024 * 1024


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
        self.kept_bytes = KEPT_BYTES
        self._pieces: list[_Piece] = []
        self._size = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def put(self, upto: int, frames: Sequence[tuple[int, bytes]]) -> None:
        """These are all frames behind the head up to the position `upto`. Wakes who waits, if there are any."""
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
        """What is between is not known here."""
        self._pieces.clear()
        self._size = 0
        self.floor = self.head = head
        self._wake()

    def next(self, after: int) -> tuple[int, bytes] | None:
        """What follows a position, and how far it goes; None when nothing does yet. The position is not below `floor`.

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
        """Until there is something new."""
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
