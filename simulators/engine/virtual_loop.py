"""An asyncio event loop in virtual time, whose every choice is the seed's.

Time stands still while anything is ready and jumps to the next timer when nothing is. Of the callbacks that are ready
any may come next, by the seeded chance: a superset of what a real loop does, so nothing here depends on luck in order.

A callback belongs to the simulated process in whose context it was scheduled. Those of a dead process never run again,
so not even a `finally` has an effect after a crash; those of a paused one wait until it wakes up.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Schedulable(Protocol):
    """The part of a simulated process that the loop uses."""

    dead: bool
    backlog: list[asyncio.Handle] | None  # what was due while it is paused; None when it is awake


OWNER: ContextVar[Schedulable | None] = ContextVar("foliot-simulated-process", default=None)


class Stuck(Exception):
    """The loop ran out of work, or passed its bound on callbacks or time, before the awaited thing happened."""


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self, chance: Random, *, most_callbacks: int = 200_000, latest: float = 10_000.0) -> None:
        self.problems: list[str] = []
        self.callbacks = 0
        self._chance = chance.random
        self._most_callbacks = most_callbacks
        self._latest = latest
        self._now = 0.0
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._dropped: list[asyncio.Handle] = []
        self._over = False
        self._closed = False

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = OwnedHandle(callback, args, self, context)
        handle.owner = OWNER.get() if context is None else context.get(OWNER)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = OwnedTimer(when, callback, args, self, context)
        handle.owner = OWNER.get() if context is None else context.get(OWNER)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asked for by `TimerHandle.cancel`; a cancelled timer is dropped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "simulated", context=context)
        self._tasks.append(task)  # kept: a dead process's task must not be collected, that would run its `finally`
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._over:
            self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- running

    def run(self, main: Coroutine[Any, Any, T], *, closing: Callable[[], None] = lambda: None) -> T:
        """Run until `main` is done; then call `closing`, and unwind all that is left, which may have no effect now.

        Raises `Stuck`, and what `main` raises.
        """
        with self._as_running_loop():
            task = self.create_task(main)
            try:
                while not task.done():
                    self._turn()
            finally:
                closing()
                self._unwind()
            return task.result()

    def wake(self, process: Schedulable) -> None:
        """End the pause of a process: what was due meanwhile is due now."""
        backlog, process.backlog = process.backlog, None
        self._ready.extend(backlog or ())

    def _turn(self) -> None:
        ready = self._ready
        if not ready:
            self._jump()
            return
        self.callbacks += 1
        if self.callbacks > self._most_callbacks:
            raise Stuck(f"{self._most_callbacks} callbacks, and no end in sight (a busy loop?)")
        index = int(self._chance() * len(ready))
        handle = ready[index]
        ready[index] = ready[-1]
        ready.pop()
        if handle.cancelled():
            return
        owner = _owner(handle)
        if owner is not None:
            if owner.dead:
                self._dropped.append(handle)
                return
            if owner.backlog is not None:
                owner.backlog.append(handle)
                return
        _call(handle)

    def _jump(self) -> None:
        """Jumps to the next timer, and to all that go off at the same moment."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing is left to do")
        self._now = max(self._now, timers[0][0])
        if self._now > self._latest:
            raise Stuck(f"{self._latest:g} simulated seconds, and no end in sight")
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def _unwind(self) -> None:
        """Cancel what is left, the dead processes' tasks as well: Python wants coroutines finished, not forgotten."""
        self._over = True
        self._ready += self._dropped
        for _ in range(1000):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            for _ in range(10 * len(left)):
                if not self._ready and self._timers:
                    self._ready.append(heapq.heappop(self._timers)[2])
                if not self._ready:
                    break
                handle = self._ready.pop(0)
                if not handle.cancelled():
                    _call(handle)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.exception()  # seen
        self._tasks.clear()

    @contextmanager
    def _as_running_loop(self) -> Generator[None]:
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)
            self._closed = True


def context_of(process: Schedulable | None) -> Context:
    """A context in which everything that is scheduled belongs to the process, or to none."""
    context = copy_context()
    context.run(OWNER.set, process)
    return context


class OwnedHandle(asyncio.Handle):
    owner: Schedulable | None = None


class OwnedTimer(asyncio.TimerHandle):
    owner: Schedulable | None = None


def _owner(handle: asyncio.Handle) -> Schedulable | None:
    return handle.owner if isinstance(handle, (OwnedHandle, OwnedTimer)) else None


def _call(handle: asyncio.Handle) -> None:
    handle._run()  # pyright: ignore[reportPrivateUsage] - the one way to run a handle in its context
