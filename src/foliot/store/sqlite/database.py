"""The store on one SQLite file: writes on one thread that commits in groups, small reads on the calling thread.

Small reads happen where they are called, because handing a point read to a thread costs 25 times the read itself; they
see the last commit and never wait for a writer (WAL). Those that can become long go to `ReaderThreads`, with a
deadline. Writes go through `Writer`, whose thread starts with the first one: a command that only reads starts none.

Each process opens the file for itself; a connection does not survive a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import apsw

from foliot.common.threads import on_thread
from foliot.common.waits import Waits
from foliot.errors import Unavailable
from foliot.store import queries
from foliot.store.base import Size
from foliot.store.database_clock import steady
from foliot.store.sqlite.file import (
    READ_PATIENCE,
    OpenFiles,
    SqliteConnection,
    connect,
    explain,
    lease_offset,
    leave_log,
    prepare,
    refresh_statistics,
    resolve,
    shrink,
    told_in_words,
)
from foliot.store.sqlite.readers import ReaderThreads
from foliot.store.sqlite.writer import WriteJob, Writer, fetch
from foliot.store.transaction import Row, Tx

P = ParamSpec("P")
T = TypeVar("T")

# How often a waiting process looks for commits of other processes. One look costs about two microseconds.
_LOOK_EVERY = 0.02
_SIZES = ("page_count", "freelist_count", "page_size")


# Grows in a child that this process forks off. Asking for the process id instead is a system call for every write.
_lives = 0


def _forked() -> None:
    global _lives
    _lives += 1


os.register_at_fork(after_in_child=_forked)


class SqliteDatabase:
    """One SQLite file. Make it with `await SqliteDatabase.open(path)`."""

    def __init__(
        self, path: Path, reader: SqliteConnection, lease_offset: float | None = None, waits: Waits | None = None
    ) -> None:
        """Use `open`; `reader` is a connection to the prepared file, which keeps its log from being removed."""
        self.path = path
        self._waits = waits or Waits()
        self._life = _lives
        self._texts = queries.load()
        self._columns: dict[str, tuple[str, ...]] = {}
        self._readers = {threading.get_ident(): reader}
        self._writer: Writer | None = None
        self._long = queries.long_reads()
        self._threads = ReaderThreads(self._reader, self._fetch, waits=self._waits)
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}
        self._gathered: dict[asyncio.AbstractEventLoop, list[WriteJob]] = {}
        self._closed = False
        self._files = OpenFiles(path)
        self._lease_offset = lease_offset
        self._lost: Unavailable | None = None
        self._stranded: list[SqliteConnection] = []  # to files that are no longer the store

    @classmethod
    async def open(cls, path: str | os.PathLike[str], waits: Waits | None = None) -> SqliteDatabase:
        """Open the file, made or brought up to date when needed. Raises `InvalidInput`, `Unavailable`."""
        file = resolve(path)
        reader = prepare(file)
        with told_in_words(file):
            offset = lease_offset(reader)  # and this first read opens the log, which so stays where it is
        return cls(file, reader, offset, waits)

    async def read(self, name: str, /, **params: Any) -> list[Row]:
        if name in self._long:
            if self._closed or self._life != _lives:
                self._refuse()
            return await self._threads.read(name, params)
        connection = self._readers.get(threading.get_ident()) or self._connect_reader()
        if self._life != _lives:
            self._refuse()
        return self._fetch(connection, name, params)

    def _fetch(self, connection: SqliteConnection, name: str, params: dict[str, Any]) -> list[Row]:
        try:
            return fetch(connection.execute(self._texts[name], params), name, self._columns)  # type: ignore[return-value]  # list is invariant; the rows are new dicts
        except apsw.InterruptError:
            raise
        except (apsw.Error, UnicodeEncodeError) as error:
            raise explain(error, self.path) from error

    def _reader(self) -> SqliteConnection:
        """Returns the connection of this thread."""
        return self._readers.get(threading.get_ident()) or self._connect_reader()

    def write(self, body: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        if self._writer is None:
            self._start_writer()
        if self._life != _lives:
            self._refuse()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = asyncio.Future(loop=loop)
        job = WriteJob(future, loop, body, args, kwargs)
        gathered = self._gathered.get(loop)
        if gathered is None:
            # Handed over together when everyone whose turn it is has had it: waking the writer for each one would let
            # it fight with this thread for the interpreter, and commit fewer at a time.
            self._gathered[loop] = [job]
            loop.call_soon(self._hand_over, loop)
        else:
            gathered.append(job)
        return future

    def change_mark(self) -> object:
        return self.version()

    async def wait_for_change(self, seen: object, *, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self._closed and self.version() == seen:
            left = deadline - loop.time()
            if left <= 0:
                return
            await self._nap(loop, min(left, _LOOK_EVERY))

    # The machine's own clock: all processes on one file have the same. Asked sixteen times a step, so it is no method.
    clock = staticmethod(time.time)

    def lease_clock(self) -> float:
        return time.time() if self._lease_offset is None else self._lease_offset + steady()

    def version(self) -> tuple[int, int]:
        connection = self._readers.get(threading.get_ident()) or self._connect_reader()
        if self._life != _lives:
            self._refuse()
        # Numbers of different connections mean nothing to each other.
        return id(connection), self._fresh_version(connection)

    def commit_sizes(self) -> tuple[tuple[int, ...], int]:
        """How many commits of this process held up to 1, 2, 4 … 1024 transactions or more, and all transactions."""
        writer = self._writer
        return ((0,) * 12, 0) if writer is None else (tuple(writer.commit_sizes), writer.committed)

    async def size(self) -> Size:
        connection = self._readers.get(threading.get_ident()) or self._connect_reader()
        try:
            pages, free, page = (connection.execute(f"PRAGMA {name}").fetchall()[0][0] for name in _SIZES)
        except apsw.Error as error:
            raise explain(error, self.path) from error
        return Size(pages * page, (pages - free) * page, shrinks=True)

    async def shrink(self) -> int:
        before = await self.size()
        if before.total == before.used:
            return 0
        await on_thread(shrink, self.path)
        return before.total - (await self.size()).total

    async def refresh_statistics(self) -> None:
        if not self._closed and self._lost is None:
            await on_thread(refresh_statistics, self.path)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            writer, self._writer = self._writer, None
            readers, self._readers = [*self._readers.values(), *self._stranded], {}
        if self._life != _lives:
            return  # the connections belong to the parent
        self._wake()
        await on_thread(self._threads.stop)
        if writer is not None:
            writer.submit(self._gathered.pop(asyncio.get_running_loop(), ()))
            await on_thread(writer.stop)
        for connection in readers:
            if self._lost is not None:
                leave_log(connection)
            connection.close()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        writer = self._writer
        jobs = self._gathered.pop(loop, ())
        if writer is not None:
            writer.submit(jobs)
            return
        for job in jobs:
            if not job.future.done():  # another thread has closed the store meanwhile
                job.future.set_exception(self._refusal())

    async def _nap(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Sleep until a commit of this process, or for `seconds`."""
        alarm: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _ring, alarm)
        self._waiting.setdefault(loop, set()).add(alarm)
        try:
            await alarm
        finally:
            timer.cancel()
            waiting = self._waiting[loop]
            waiting.discard(alarm)
            if not waiting:
                del self._waiting[loop]

    def _wake(self) -> None:
        """Ring every waiter; called on the writer's thread after a commit."""
        for loop in list(self._waiting):
            with suppress(RuntimeError):  # the loop was closed with its waiters
                loop.call_soon_threadsafe(self._ring_all, loop)

    def _ring_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for alarm in self._waiting.get(loop, ()):
            _ring(alarm)

    def _fresh_version(self, connection: SqliteConnection) -> int:
        try:
            return connection.execute("PRAGMA data_version").fetchall()[0][0]
        except apsw.Error as error:
            raise explain(error, self.path) from error

    def _connect_reader(self) -> SqliteConnection:
        with self._lock:
            if self._closed or self._life != _lives or self._lost is not None:
                self._refuse()
            try:
                connection = connect(self.path, patience=READ_PATIENCE, read_only=True)
            except apsw.Error as error:
                raise explain(error, self.path) from error
            self._readers[threading.get_ident()] = connection
            return connection

    def _start_writer(self) -> None:
        with self._lock:
            if self._closed or self._life != _lives:
                self._refuse()
            if self._writer is None:
                self._writer = Writer(
                    self.path, files=self._files, waits=self._waits, on_commit=self._wake, on_loss=self._lose
                )

    def _lose(self, error: Unavailable) -> None:
        """The files are gone: what is read from them must not be taken for the store. On the writer's thread."""
        with self._lock:
            self._lost = self._lost or error
            self._stranded += self._readers.values()
            self._readers = {}
            for connection in self._stranded:
                leave_log(connection)

    def _refuse(self) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> Unavailable:
        if self._lost is not None:
            return self._lost
        if self._life != _lives:
            return Unavailable(
                f"the store {self.path} was opened before this process was forked",
                hint="open the store again in the child process",
                retryable=False,
            )
        return Unavailable(f"the store {self.path} is closed", hint="open it again", retryable=False)


def _ring(alarm: asyncio.Future[None]) -> None:
    if not alarm.done():
        alarm.set_result(None)
