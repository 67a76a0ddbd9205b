"""Threads for what blocks: none of them keeps the process from ending, and a stuck one holds up nobody else.

The threads of `asyncio.to_thread` are few and shared, and the interpreter waits for each of them when it ends. These
are daemons, as many as there is work; a few that are idle are kept, because starting one costs more than most calls.

Nothing can end a thread from outside. It can be told to end: an exception is raised in it at the next instruction of
Python that it comes to. Until it has been seen to end, it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

KEPT_IDLE: Final = 16
IDLE_SECONDS: Final = 30.0
# How long the end of an event loop waits for what is still done on threads of its executor.
LEAVE_WITHIN: Final = 1.0
# So many characters are looked through in about a millisecond. What is longer would keep everybody else waiting.
LARGE: Final = 100_000


class ToldToEnd(BaseException):
    """Raised in a thread whose result nobody waits for any more. Not an `Exception`, so that few catch it."""


class ThreadJob:
    """One function on one thread. `future` is its result; `over` is True once it cannot do anything any more."""

    __slots__ = ("_context", "_ended", "_function", "_lock", "_loop", "_on_end", "_thread", "future", "over", "told")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._context = copy_context()
        self._loop = loop
        self._lock = threading.Lock()
        self._thread = 0
        self._ended: asyncio.Future[None] | None = None
        self._on_end: Callable[[], None] | None = None
        self.future: asyncio.Future[Any] = loop.create_future()
        self.over = False
        self.told = False

    def tell_to_end(self) -> None:
        """Have `ToldToEnd` raised in it. It is heard between two instructions of Python: not in a call that blocks."""
        with self._lock:
            if not self.over:
                self.told = True
                if self._thread:
                    _raise_in(self._thread)

    async def ends_within(self, seconds: float) -> bool:
        """Whether it is over by then. Only for who has given up its `future`."""
        with self._lock:
            if self.over:
                return True
            self._ended = self._loop.create_future()
        await asyncio.wait([self._ended], timeout=seconds)
        return self.over

    def when_over(self, do: Callable[[], None]) -> bool:
        """Have something done on its thread when it ends. False when it is over already."""
        with self._lock:
            if not self.over:
                self._on_end = do
        return not self.over

    def run(self, idle: Callable[[], None]) -> None:
        """Do it, on this thread. `idle` is called before anybody can have the result, unless it was told to end."""
        value = error = None
        try:
            try:
                with self._lock:
                    self._thread = threading.get_ident()
                    if self.told:
                        raise ToldToEnd
                value = self._context.run(self._function)
            except BaseException as raised:
                error = raised
            with self._lock:
                self.over = True
        except ToldToEnd as raised:  # it came after the function had ended
            error, self.over = raised, True
        if not self.told:
            idle()
        self._deliver(value, error)

    def _deliver(self, value: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._settle, value, error)
        if self._on_end is not None:
            self._on_end()

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if not self.future.done():
            if error is None:
                self.future.set_result(value)
            else:
                self.future.set_exception(error)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _raise_in(thread: int) -> None:
    import ctypes  # here, because most programs never need it

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(ToldToEnd))


class _Threads:
    """A pool of daemon threads, one per job in progress. A thread that was asked to end is never given other work."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[Callable[[], None]], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._started = 0

    def give(self, work: Callable[[Callable[[], None]], None]) -> None:
        """Have `work` done on a thread. It calls what it is given when the thread may have something else."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._jobs.put(work)
                return
            self._started += 1
        threading.Thread(target=self._serve, args=(work,), name=f"foliot-{self._started}", daemon=True).start()

    def _serve(self, work: Callable[[Callable[[], None]], None] | None) -> None:
        with contextlib.suppress(ToldToEnd):  # late, between two things
            while work is not None:
                stays = False

                def idle() -> None:
                    nonlocal stays
                    with self._lock:
                        if self._idle < KEPT_IDLE:
                            self._idle += 1
                            stays = True

                work(idle)
                work = self._next() if stays else None

    def _next(self) -> Callable[[Callable[[], None]], None] | None:
        while True:
            try:
                return self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return None


_threads = _Threads()


def _forked() -> None:
    """A child has none of the threads that wait for work here, and may have got a lock that one of them held."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_forked)


def begin(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> ThreadJob:
    """Have a function called on a thread, with the context variables of whoever asks for it."""
    job = ThreadJob(partial(function, *args, **kwargs), asyncio.get_running_loop())
    _threads.give(job.run)
    return job


async def on_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`, on a thread that keeps nothing from ending. Who is cancelled leaves it to itself."""
    return await begin(function, *args, **kwargs).future


async def unhurried(size: int, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Calls `work` on so many characters or bytes; a large amount on a thread, beside the event loop."""
    return work(*given, **named) if size < LARGE else await on_thread(work, *given, **named)


class LeavingExecutor(ThreadPoolExecutor):
    """An executor for an event loop, which looks up names on it: its end is not waited for without a bound.

    A `ThreadPoolExecutor` by name only, because a loop accepts nothing else.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)  # which it never starts
        self._open: set[Future[Any]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)

        def work(idle: Callable[[], None]) -> None:
            if not future.set_running_or_notify_cancel():
                return idle()
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                idle()
                future.set_exception(error)
            else:
                idle()
                future.set_result(value)

        _threads.give(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait a moment for what is under way; it is left to itself then."""
        from concurrent.futures import wait as wait_for

        if wait and self._open:
            wait_for(list(self._open), timeout=LEAVE_WITHIN)
