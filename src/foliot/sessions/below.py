"""The asks of the runs below a turn, as the readers of the turn are told them.

Their journals are their own, so nothing of it stands in that of the turn: it is looked up, and told as it stands. It
has no place, as pieces have none: whoever comes back is told what is asked then.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec.structs import replace

from foliot.engine.driver.doubts import family
from foliot.engine.live.hub import Live, Recorded
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import ToolStarted
from foliot.sessions.chat_events import Masks, TurnStory, WaitingEvent
from foliot.store.journal.base import Journal
from foliot.tools.backends.agent import may_start_runs

PAGE: Final = 500
# Each reader looks so seldom, however much happens in the store.
LOOK_EVERY: Final = 0.5


class AsksBelow:
    """The asks of the runs below one turn, and which of them one reader was told.

    What runs of another namespace than the session's ask is decided there, and not told here.
    """

    def __init__(self, journal: Journal, namespace: str, turn: str, *, mask: Masks) -> None:
        self._journal = journal
        self._root = family(namespace, turn).name
        self._mask = mask
        self._stories: dict[str, TurnStory] = {}
        self._last: dict[str, WaitingEvent | None] = {}  # how each of these stories ends
        self._open: dict[str, WaitingEvent] = {}
        self._looked: float | None = None
        self.may_be = False

    @property
    def open(self) -> list[WaitingEvent]:
        """The last look: one event for each run that asks."""
        return [*self._open.values()]

    def take(self, item: Live) -> None:
        """Hears what happens in the turn: before it has started a run, there is nothing to look for."""
        if isinstance(item, Recorded) and isinstance(item.event, ToolStarted) and may_start_runs(item.event.name):
            self.may_be = True

    def is_due(self) -> bool:
        """Whether it is time to look."""
        now = asyncio.get_running_loop().time()
        return self.may_be and (self._looked is None or now - self._looked >= LOOK_EVERY)

    async def changes(self) -> list[WaitingEvent]:
        """Returns what is asked now and was not told, and for each run that asks nothing any more an event without."""
        self._looked = asyncio.get_running_loop().time()
        found: dict[str, WaitingEvent] = {}
        for info in await self._journal.waiting_below(self._root):
            waiting: dict[str, Any] = info.summary.get("waiting") or {}
            if waiting.get("owner") != "timer" and (event := await self._asked_by(info.id)) is not None:
                found[info.id] = event
        over = [WaitingEvent(run, reason="") for run in self._open if run not in found]
        changed = [event for run, event in found.items() if self._open.get(run) != event]
        self._open = found
        return [*over, *changed]

    async def _asked_by(self, run: str) -> WaitingEvent | None:
        """Returns what a run that waits has asked last."""
        story = self._stories.setdefault(run, TurnStory(run, mask=self._mask))
        while entries := await self._journal.read(run, after=story.seq, limit=PAGE):
            for each in entries:
                for event in story.events(Recorded(run, each.seq, each.at, decode(each.data))):
                    self._last[run] = replace(event, place="") if isinstance(event, WaitingEvent) else None
        return self._last.get(run)
