"""A run as it goes on, for somebody who only listens: nothing of it is begun, taken up or ended here.

What the journal has is told first, then what comes, wherever the run is driven. Pieces of an answer are told only of
steps that are heard from their beginning; of a step that was under way the text comes when it is whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Iterable, Sequence
from typing import Final

from foliot.engine.live import Live, Recorded, Streamed
from foliot.kernel.codec import decode
from foliot.kernel.events import ModelResponded, StepStarted
from foliot.server.context import Services
from foliot.server.streams.following import patiently
from foliot.server.streams.pieces import Piece, Teller
from foliot.store.runs import Entry

PAGE: Final = 500


async def follow_run(services: Services, run_id: str, *, structured: bool, after: int = 0) -> AsyncGenerator[Piece]:
    """The pieces of a run behind its first `after` events; the last one is `Ended` or `Rested`. Raises `NotFound`."""
    journal = services.runtime.runs.journal
    listening = Listening(run_id, structured, after)
    stir = asyncio.Event()
    with services.runtime.watch(run_id, elsewhere=True) as reader:
        reader.call(stir.set)
        async with services.streams.signs.of_run(run_id, stir.set) as sign:
            seen: Hashable = None
            phase, more = "", True
            while True:
                stir.clear()
                entries: list[Entry] = []
                if more or sign.mark != seen:
                    seen = sign.mark
                    # In this order: what made it wait or end is among what is read afterwards.
                    phase = (await patiently(lambda: journal.get(run_id))).phase
                    at = listening.teller.seq
                    entries = await patiently(lambda at=at: journal.read(run_id, after=at, limit=PAGE))
                    more = bool(entries)
                for piece in listening.hear(entries, reader.taken()):
                    yield piece
                if listening.teller.ended is not None:
                    return
                if not more:
                    if phase == "waiting":
                        yield listening.teller.rest()
                        return
                    await stir.wait()


class Listening:
    """What one listener has heard."""

    def __init__(self, run_id: str, structured: bool, after: int) -> None:
        self.teller = Teller(run_id, structured=structured)
        self._after = after
        self._recorded = 0
        self._joined_at: int | None = None
        self._begun: set[int] = set()

    def hear(self, entries: Sequence[Entry], live: Sequence[Live]) -> list[Piece]:
        """The pieces of these events and of what was written meanwhile, in the order in which they belong together."""
        records = [Recorded(self.teller.run_id, each.seq, each.at, decode(each.data)) for each in entries]
        steps = [each.event.step for each in records if isinstance(each.event, ModelResponded)]
        self._recorded = max(steps, default=self._recorded)
        if self._joined_at is None and len(entries) < PAGE:
            self._joined_at = self._recorded + 1  # this one, or any before, may have begun without being heard
        written = deque(self._from_their_beginning(live))
        pieces: list[Piece] = []
        for record in records:
            if isinstance(record.event, ModelResponded):  # what was written of an answer comes before all of it
                while written and written[0].step <= record.event.step:
                    pieces += self.teller.tell(written.popleft())
            told = self.teller.tell(record)
            pieces += told if record.seq > self._after else ()
        return [*pieces, *(piece for each in written for piece in self.teller.tell(each))]

    def _from_their_beginning(self, live: Sequence[Live]) -> Iterable[Streamed]:
        if self._joined_at is None:
            return
        for item in live:
            match item:
                case Recorded(event=StepStarted(step)):
                    self._begun.add(step)
                case Streamed(step=step) if step > self._joined_at or step in self._begun:
                    yield item
                case _:
                    pass
