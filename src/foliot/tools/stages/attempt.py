"""Bounds one attempt, and gets control back at that bound whether or not the backend listens.

The backend runs as a task of its own. At the bound it is told to stop; a moment later the call goes on without it. What
such a task still does is out of reach (a thread cannot be killed), but nothing of it is believed any more: its output
is dropped and its result is discarded.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal, TypeAlias

from foliot.tools.base import Invocation, OnOutput, ToolCancelled, ToolDefinition, ToolTimeout
from foliot.tools.running import Handler, Running

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["attempt", "total", "idle"]

# How long a backend that was told to stop may take to tidy up before the call goes on without it.
GRACE: Final = 0.05
# The same when the run itself is being ended: nobody waits for the next step then, so it may take longer.
STOP_GRACE: Final = 2.0
# Tasks that did not stop are held here, or the garbage collector would end them in the middle.
_abandoned: set[asyncio.Task[None]] = set()


class Attempt:
    def __init__(self, definition: ToolDefinition, clock: Callable[[], float], *, grace: float = GRACE) -> None:
        self._name = definition.name
        self._timeout = definition.attempt_timeout
        self._idle = definition.idle_timeout
        self._clock = clock
        self._grace = grace

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        seconds, scope = self._bound(call)
        if seconds is None and self._idle is None:
            return await next(call, running)
        if seconds is not None and seconds <= 0:
            raise ToolTimeout(f"there is no time left to call {self._name!r}", timeout_scope=scope, forced=False)
        watch = Watch(self._grace)
        heard = running.on_output
        if heard is not None:
            running.on_output = watch.listen(heard)
        try:
            value = await watch.run(next(call, running), seconds, scope, self._idle)
        finally:
            running.on_output = heard
        if watch.expired is not None:
            raise self._took_too_long(watch, seconds)
        return value

    def _bound(self, call: Invocation) -> tuple[float | None, Scope]:
        if call.deadline is None:
            return self._timeout, "attempt"
        left = call.deadline - self._clock()
        if self._timeout is not None and self._timeout < left:
            return self._timeout, "attempt"
        return left, "total"

    def _took_too_long(self, watch: Watch, seconds: float | None) -> ToolTimeout:
        if watch.expired == "idle":
            said = f"the tool {self._name!r} was silent for more than {self._idle:g} s"
        else:
            said = f"the tool {self._name!r} took longer than {seconds:.3g} s"
        end = "did not stop when told to and was left behind" if watch.forced else "was stopped"
        return ToolTimeout(f"{said} and {end}", timeout_scope=watch.expired, forced=watch.forced)


class Watch:
    """One piece of work under a clock. `expired` says which bound it passed, `forced` that it did not stop in time."""

    __slots__ = ("_begun", "_done", "_grace", "_heard", "_idle_timer", "_loop", "_task", "_timer", "expired", "forced")

    def __init__(self, grace: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()
        self._begun = False
        self._grace = grace
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.expired: Scope | None = None
        self.forced = False

    def listen(self, heard: OnOutput) -> OnOutput:
        """Output counts as a sign of life, and is dropped once the call is over."""

        def on_output(text: str) -> None:
            if not self._done.done():
                self._heard = self._loop.time()
                heard(text)

        return on_output

    async def run(self, work: Awaitable[Any], seconds: float | None, scope: Scope, idle: float | None) -> Any:
        """The value of `work`; nothing in particular when a bound was passed. Raises what it raises."""
        self._task = _start(self._loop, self._report(work))
        if not self._done.done():
            if seconds is not None:
                self._timer = self._loop.call_later(seconds, self._expire, scope)
            if idle is not None:
                self._heard = self._loop.time()
                self._idle_timer = self._loop.call_later(idle, self._check_idle, idle)
        try:
            value, error = await self._done
        except asyncio.CancelledError:
            await self._stop(self._task)
            raise
        finally:
            if not self._begun and asyncio.iscoroutine(work):
                work.close()  # stopped before its first step: Python would warn that nobody awaited it
            if self._timer is not None:
                self._timer.cancel()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
        if error is None or self.expired is not None:
            return value
        if isinstance(error, asyncio.CancelledError):
            raise ToolCancelled("the tool was cancelled from inside") from error
        raise error

    async def _report(self, work: Awaitable[Any]) -> None:
        self._begun = True
        try:
            outcome: tuple[Any, BaseException | None] = await work, None
        except BaseException as raised:
            outcome = None, raised
        if not self._done.done():
            self._done.set_result(outcome)
        if isinstance(outcome[1], KeyboardInterrupt | SystemExit):
            raise outcome[1]

    def _check_idle(self, idle: float) -> None:
        silent = self._loop.time() - self._heard
        if silent >= idle:
            self._expire("idle")
        else:
            self._idle_timer = self._loop.call_later(idle - silent, self._check_idle, idle)

    def _expire(self, scope: Scope) -> None:
        if self.expired is None and not self._done.done():
            self.expired = scope
            assert self._task is not None
            self._task.cancel()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._grace, self._go_on_without)

    def _go_on_without(self) -> None:
        if not self._done.done():
            self.forced = True
            self._done.set_result((None, None))
            assert self._task is not None
            _leave_behind(self._task)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        """The caller was told to stop: pass it on, and wait a moment for the work to tidy up."""
        task.cancel()
        try:
            if not task.done():
                await asyncio.wait([task], timeout=STOP_GRACE)
        finally:
            if not task.done():
                _leave_behind(task)


def _leave_behind(task: asyncio.Task[None]) -> None:
    log.warning("a tool did not stop when it was told to; it is left behind")
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)


def _start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task. Where Python can (3.12), it begins at once: work that never waits then costs no turn of the loop."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)
