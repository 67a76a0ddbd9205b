"""Hearing of commits: a notice as a hint between processes, a counter within one.

The notice is sent after the commit and not inside it (see postgres_notices.py). A process that dies in between owes a
hint; whoever waits looks again after its timeout anyway.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from foliot.store.postgres_notices import Noticeboard

CHANNEL = "foliot_change"


class ChangeSignal:
    """Counts commits that this process knows of, and wakes who waits for one."""

    def __init__(self, board: Noticeboard) -> None:
        self._board = board
        self._count = 0
        self._seen: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._waiting: set[asyncio.Future[None]] = set()
        self._listening = False

    def committed(self) -> None:
        """This process committed something: wake its own waiters now and tell the other processes soon."""
        self.wake()
        self._board.post(CHANNEL)

    async def wait(self, timeout: float) -> None:
        """Return at the next commit, or after `timeout` seconds.

        What counts as seen is what had happened when the same task last returned from here, so a commit between its
        read and this call is not missed. The price is a needless return now and then.
        """
        if not self._listening:
            self._listening = True
            self._board.listen(CHANNEL, self.wake)
        task = asyncio.current_task()
        assert task is not None  # coroutines run in tasks
        if self._seen.get(task) == self._count:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(woken)
            try:
                await asyncio.wait((woken,), timeout=timeout)
            finally:
                self._waiting.discard(woken)
        self._seen[task] = self._count

    def wake(self, _payload: str | None = None) -> None:
        """Something was committed, here or elsewhere, or the store is closing."""
        self._count += 1
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
