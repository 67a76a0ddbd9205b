"""Hearing of commits: LISTEN/NOTIFY as a hint between processes, a counter within one.

The NOTIFY is sent after the commit and not inside it, because PostgreSQL takes a lock for the whole server when a
transaction with a NOTIFY commits, which would end group commit. A process that dies in between owes a hint; whoever
waits looks again after its timeout anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from foliot.store.postgres_driver import Connection, DriverErrors

CHANNEL = "foliot_change"
# Commits that come faster than this share one NOTIFY.
_NOTIFY_EVERY = 0.01
_RECONNECT_AFTER = 0.5


class ChangeSignal:
    """Counts commits that this process knows of, and wakes who waits for one."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], notify: Callable[[], Awaitable[None]]) -> None:
        self._connect = connect
        self._notify = notify
        self._count = 0
        self._seen: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._waiting: set[asyncio.Future[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._notifier: asyncio.Task[None] | None = None
        self._owed = False

    def committed(self) -> None:
        """This process committed something: wake its own waiters now and tell the other processes soon."""
        self._wake()
        self._owed = True
        if self._notifier is None or self._notifier.done():
            self._notifier = asyncio.create_task(self._tell_others())

    async def wait(self, timeout: float) -> None:
        """Return at the next commit, or after `timeout` seconds.

        What counts as seen is what had happened when the same task last returned from here, so a commit between its
        read and this call is not missed. The price is a needless return now and then.
        """
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())
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

    async def close(self) -> None:
        """Send the hint that is still owed, then stop listening."""
        if self._notifier is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._notifier, 1)
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
        self._wake()

    def _wake(self) -> None:
        self._count += 1
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)

    async def _tell_others(self) -> None:
        while self._owed:
            self._owed = False
            with suppress(*DriverErrors):  # only a hint
                await self._notify()
            await asyncio.sleep(_NOTIFY_EVERY)

    async def _listen(self) -> None:
        while True:
            with suppress(*DriverErrors):
                await self._listen_once()
            await asyncio.sleep(_RECONNECT_AFTER)

    async def _listen_once(self) -> None:
        connection = await self._connect()
        ended = asyncio.Event()

        def heard(*_: object) -> None:
            self._wake()

        def lost(_: object) -> None:
            ended.set()

        try:
            connection.add_termination_listener(lost)
            await connection.add_listener(CHANNEL, heard)
            self._wake()  # whatever was committed before we listened
            await ended.wait()
        finally:
            connection.terminate()
