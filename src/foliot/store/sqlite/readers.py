"""Threads for reads that can become long: lists, counts, searches.

A small read happens on the thread that asks, because handing it over costs many times the read. A read whose length
depends on how much is stored would stop the event loop there, and with it the API, the worker and the renewal of
leases. So whatever says `reads: many` (see queries.py) comes here: to one of a few threads, each with a connection of
its own.

Called by:  SqliteDatabase.read, from any thread.
Invariant:  a future is resolved exactly once, and in time: a read waits `Waits.place` for a thread and ends
            `Waits.answer` after it was asked for. One that takes longer, or that nobody waits for any more, is stopped:
            what it looked at is left as it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

import apsw

from foliot.common.waits import Waits
from foliot.errors import ReadTooLong, TooManyReads, Unavailable
from foliot.store.sqlite.file import SqliteConnection
from foliot.store.transaction import Row

MOST_THREADS: Final = 4
# After so many steps of SQLite's machine a read looks whether it has to stop: every millisecond or so. Each look waits
# for the interpreter, so more of them would slow down both.
_STEPS: Final = 50_000


@dataclass(slots=True, eq=False)
class _Job:
    name: str
    params: dict[str, Any]
    future: asyncio.Future[list[Row]]
    loop: asyncio.AbstractEventLoop
    ends: float
    begun: bool = False


class ReaderThreads:
    """Carries out reads on up to `MOST_THREADS` threads, which start when they are needed.

    `connect` returns the connection of the thread that it is called on, `fetch` carries out one query there.
    """

    def __init__(
        self,
        connect: Callable[[], SqliteConnection],
        fetch: Callable[[SqliteConnection, str, dict[str, Any]], list[Row]],
        *,
        waits: Waits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._fetch = fetch
        self._waits = waits
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._asked = 0  # reads that no thread is done with
        self._stopping = False

    def read(self, name: str, params: dict[str, Any]) -> asyncio.Future[list[Row]]:
        """Have a query carried out; the future is of the running loop. Raises `Unavailable` after `stop`.

        The future raises `ReadTooLong`, and `TooManyReads` when all threads are busy for too long.
        """
        loop = asyncio.get_running_loop()
        job = _Job(name, params, loop.create_future(), loop, self._clock() + self._waits.answer)
        with self._lock:
            if self._stopping:
                raise _closed()
            self._jobs.put(job)
            self._asked += 1
            if self._asked > MOST_THREADS:
                loop.call_later(self._waits.place, self._give_up, job)
            elif self._asked > len(self._threads):
                thread = threading.Thread(target=self._work, name="foliot-reader", daemon=True)
                self._threads.append(thread)
                thread.start()
        return job.future

    def stop(self) -> None:
        """End what is being read, and the threads. Blocks until they have ended."""
        with self._lock:
            self._stopping = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()
        with suppress(Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    _deliver(job, None, _closed())

    def _give_up(self, job: _Job) -> None:
        if not job.begun and not job.future.done():
            job.future.set_exception(TooManyReads.of(job.name, self._waits.place))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.begun = True
            if not job.future.done():
                self._carry_out(job)
            with self._lock:
                self._asked -= 1

    def _carry_out(self, job: _Job) -> None:
        too_long = False

        def must_stop() -> bool:
            nonlocal too_long
            too_long = self._clock() > job.ends
            return too_long or self._stopping or job.future.cancelled()

        try:
            connection = self._connect()
            connection.set_progress_handler(must_stop, _STEPS)
            try:
                rows = self._fetch(connection, job.name, job.params)
            finally:
                connection.set_progress_handler(None)
        except apsw.InterruptError:
            _deliver(job, None, ReadTooLong.of(job.name, self._waits.answer) if too_long else _closed())
        except BaseException as error:
            _deliver(job, None, error)
        else:
            _deliver(job, rows, None)


def _closed() -> Unavailable:
    return Unavailable("the store is closed", hint="open it again", retryable=False)


def _deliver(job: _Job, rows: list[Row] | None, error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody is left to hear of it
        job.loop.call_soon_threadsafe(_resolve, job.future, rows, error)


def _resolve(future: asyncio.Future[list[Row]], rows: list[Row] | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(rows or [])
