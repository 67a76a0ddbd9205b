"""A run as it goes on, for somebody who only listens: nothing of it is begun, taken up or ended here.

What the journal has is told first, then what comes, wherever the run is driven. Pieces of an answer are told only of
steps that are heard from their beginning; of a step that was under way the text comes when it is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Iterable, Sequence
from typing import Final

from foliot.engine.live import Live, Recorded, Streamed
from foliot.kernel.codec import decode
from foliot.kernel.events import ModelResponded, StepStarted
from foliot.server.context import Services
from foliot.server.following import patiently
from foliot.server.pieces import Piece, Teller
from foliot.store.runs import Entry

PAGE: Final = 500


async def follow_run(services: Services, run_id: str, *, structured: bool, after: int = 0) -> AsyncGenerator[Piece]:
    """The pieces of a run behind its first `after` events; the last one is `Ended` or `Rested`. Raises `NotFound`."""
    journal = services.runtime.runs.journal
    listening = _Listening(run_id, structured, after)
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


class _Listening:
    """What one listener has heard."""

    def __init__(self, run_id: str, structured: bool, after: int) -> None:
        self.teller = Teller(run_id, structured=structured)
        self._after = after
        self._recorded = 0
        self._joined = False
        self._missed_beginning: int | None = None

    def hear(self, entries: Sequence[Entry], live: Sequence[Live]) -> list[Piece]:
        """The pieces of these events and of what was written meanwhile, in the order in which they belong together."""
        records = [Recorded(self.teller.run_id, each.seq, each.at, decode(each.data)) for each in entries]
        steps = [each.event.step for each in records if isinstance(each.event, ModelResponded)]
        self._recorded = max(steps, default=self._recorded)
        if not self._joined and len(entries) < PAGE:
            self._joined = True
            self._missed_beginning = self._recorded + 1
        heard = list(self._from_their_beginning(live))
        pieces = self._told(each for each in heard if each.step <= self._recorded)
        for record in records:
            told = self.teller.tell(record)
            pieces += told if record.seq > self._after else ()
        return [*pieces, *self._told(each for each in heard if each.step > self._recorded)]

    def _told(self, written: Iterable[Streamed]) -> list[Piece]:
        return [piece for each in written for piece in self.teller.tell(each)]

    def _from_their_beginning(self, live: Sequence[Live]) -> Iterable[Streamed]:
        for item in live:
            match item:
                case Recorded(event=StepStarted(step)) if step == self._missed_beginning:
                    self._missed_beginning = None  # it had not begun yet, or begins anew
                case Streamed(step=step) if self._joined and step != self._missed_beginning:
                    yield item
                case _:
                    pass
