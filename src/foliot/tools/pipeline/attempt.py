"""Bounds one attempt: how long it may take, and how long it may be silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from foliot.tools.base import Invocation, MayAct, OnOutput, ToolCancelled, ToolDefinition, ToolTimeout
from foliot.tools.pipeline.running import CallProgress, Handler, leave

# --- bounded ---------------------------------------------------------------------------------------------------------

# Awaits work under a clock, and gets control back at the bound whether or not the work listens.
#
# Nothing is started beside: the work is driven from here, step by step, in the task that awaits it. Work that never
# waits for anything therefore costs neither a timer nor a turn of the event loop. At the bound the work is cancelled
# as always; if it goes on nevertheless, it is simply not driven any more, and closed.
#
# What it waits for is never handed to the task itself, but stands behind a future of ours. So a cancellation reaches
# us at once even when what the work waits for (another task that does not listen, say) cannot be cancelled.

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["attempt", "total", "idle"]

# How long work that was told to stop may take to tidy up.
GRACE: Final = 0.25
# The same when the caller itself is being stopped: nobody waits for the next step then, so it may take longer.
STOP_GRACE: Final = 2.0


class BoundedWork:
    """`await Bounded(…)` gives the value of the work, or raises what it raises.

    When a bound was passed the value means nothing: `expired` says which one, `forced` that the work did not stop in
    time and was closed. `left` is what it waited for then, if that goes on: a task that does not listen either.
    Each time before the work goes on `right` is asked whether it may: whoever slept meanwhile may have lost it.
    """

    __slots__ = (
        "_cancels",
        "_closing",
        "_grace",
        "_heard",
        "_idle",
        "_loop",
        "_over",
        "_right",
        "_robbed",
        "_scope",
        "_seconds",
        "_task",
        "_timers",
        "_work",
        "expired",
        "forced",
        "left",
    )

    def __init__(
        self,
        work: Awaitable[Any],
        *,
        seconds: float | None,
        scope: Scope,
        idle: float | None,
        grace: float = GRACE,
        right: MayAct | None = None,
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._scope: Scope = scope
        self._idle = idle
        self._grace = grace
        self._right = right
        self._over = False
        self._closing = self._robbed = False
        self._cancels = 0
        self.expired: Scope | None = None
        self.forced = False
        self.left: asyncio.Future[Any] | None = None

    def listen(self, heard: OnOutput) -> OnOutput:
        """Output counts as a sign of life, and is dropped once the work is over."""

        def on_output(text: str) -> None:
            if not self._over:
                self._heard = asyncio.get_running_loop().time()
                heard(text)

        return on_output

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        try:
            waits_for = next(steps)
        except StopIteration as done:
            return done.value
        except asyncio.CancelledError as error:
            raise ToolCancelled("the tool was cancelled from inside") from error
        except GeneratorExit as error:  # its own: nothing was thrown into it
            raise ToolCancelled("the tool broke off: GeneratorExit") from error
        else:
            return (yield from self._drive(steps, waits_for))
        finally:
            self._over = True

    def _drive(self, steps: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None, "it is awaited in a task"
        self._task, self._loop = task, task.get_loop()
        cancelling = task.cancelling()
        self._arm()
        try:
            while True:
                error = yield from self._wait(waits_for)
                if self._closing:
                    self._leave(waits_for)
                    self._close(steps)
                    raise asyncio.CancelledError
                if self._right is not None and error is None and not self._right.holds():
                    error = yield from self._ask(self._right, task.cancelling() > cancelling)
                try:
                    waits_for = steps.send(None) if error is None else steps.throw(error)
                except GeneratorExit as raised:  # its own: who closes us is heard where we wait
                    raise ToolCancelled("the tool broke off: GeneratorExit") from raised
        except StopIteration as done:
            self._settle(cancelling)
            return done.value
        except GeneratorExit:
            self._close(steps)
            raise
        except BaseException as error:
            self._settle(cancelling)
            if self.expired is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
                return None
            if isinstance(error, asyncio.CancelledError) and task.cancelling() == cancelling:
                if self._robbed:
                    raise ToolCancelled(
                        "the run went to another while this process slept; the tool was stopped"
                    ) from None
                raise ToolCancelled("the tool was cancelled from inside") from error
            raise
        finally:
            for timer in self._timers:
                timer.cancel()

    def _wait(self, waits_for: Any) -> Generator[Any, Any, BaseException | None]:
        """Waits until the work can continue; returns the exception to raise in it, if any."""
        if getattr(waits_for, "_asyncio_future_blocking", None) is None:
            return (yield from _turn(waits_for))  # only a turn of the loop, or nothing that asyncio knows
        waits_for._asyncio_future_blocking = False  # as the task would do, were it handed over
        while not waits_for.done():
            ours = self._loop.create_future()
            waits_for.add_done_callback(_wakes(ours))
            try:
                yield from ours
            except asyncio.CancelledError as error:
                # Cancelled: by us, by the caller, or by a timeout inside the work. It is the work's to answer.
                if self._closing or not waits_for.cancel():
                    return error
                self._timers.append(self._loop.call_later(STOP_GRACE, self._close_if_deaf, self._task.cancelling()))
        try:
            waits_for.result()
        except BaseException as error:
            return error
        return None

    def _ask(self, right: MayAct, ending: bool) -> Generator[Any, Any, BaseException | None]:
        """Whether the work may go on, of whoever knows; what is to be raised in it then, if anything.

        Not while it is `ending`: it was told so, has a bound for it, and may tidy up until then.
        """
        if ending:
            return None
        try:
            if (yield from right().__await__()):
                return None
        except asyncio.CancelledError as error:
            return error
        self._closing = self._robbed = True  # should it wait once more, it is closed
        return asyncio.CancelledError()

    def _leave(self, waits_for: Any) -> None:
        """Remember what does not end when it is cancelled. A plain future does: nothing stands behind it."""
        if getattr(waits_for, "_asyncio_future_blocking", None) is not None:
            waits_for.cancel()
            self.left = None if waits_for.done() else waits_for

    # --- the clock -----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._timers: list[asyncio.TimerHandle] = []
        if self._seconds is not None:
            self._timers.append(self._loop.call_later(self._seconds, self._expire, self._scope))
        if self._idle is not None:
            self._heard = self._loop.time()
            self._timers.append(self._loop.call_later(self._idle, self._check_idle, self._idle))

    def _check_idle(self, idle: float) -> None:
        silent = self._loop.time() - self._heard
        if silent >= idle:
            self._expire("idle")
        else:
            self._timers.append(self._loop.call_later(idle - silent, self._check_idle, idle))

    def _expire(self, scope: Scope) -> None:
        if self.expired is None:
            self.expired = scope
            self._cancel()
            self._timers.append(self._loop.call_later(self._grace, self._force))

    def _force(self) -> None:
        self._closing = self.forced = True
        self._cancel()

    def _close_if_deaf(self, cancelling: int) -> None:
        """Closes work that ignores the cancellation of its caller. A timeout inside would have taken it back."""
        if self._task.cancelling() >= cancelling > 0 and not self._closing:
            self._closing = True
            self._cancel()

    def _cancel(self) -> None:
        self._cancels += 1
        self._task.cancel()

    def _settle(self, cancelling: int) -> None:
        """Take our own cancellations back. One that came from outside stays, and is raised."""
        for _ in range(self._cancels):
            self._task.uncancel()
        self._cancels = 0
        if self.expired is not None and self._task.cancelling() > cancelling:
            raise asyncio.CancelledError

    def _close(self, steps: Generator[Any, Any, Any]) -> None:
        try:
            steps.close()
        except BaseException as error:
            # It goes on even now, or breaks while it is closed. Nobody drives it any more, so nothing comes of it.
            log.warning("a tool did not end when it was closed: %s: %s", type(error).__name__, error)


def _wakes(ours: asyncio.Future[None]) -> Any:
    def wake(_: object) -> None:
        if not ours.done():
            ours.set_result(None)

    return wake


def _turn(waits_for: Any) -> Generator[Any, Any, BaseException | None]:
    try:
        yield waits_for
    except GeneratorExit:
        raise
    except BaseException as error:
        return error
    return None


# --- attempt ---------------------------------------------------------------------------------------------------------

# The end of what is said of a call that ran out of time and has not ended: true while its process lives.
GOES_ON: Final = " and goes on: it was told to stop and has not, so it may still act"


class Attempt:
    """Control comes back at the bound, whether or not the backend listens; nothing late is believed."""

    def __init__(self, definition: ToolDefinition, clock: Callable[[], float], *, grace: float = GRACE) -> None:
        self._name = definition.name
        self._timeout = definition.attempt_timeout
        self._idle = definition.idle_timeout
        # A module has no way to anything outside.
        self._acts = definition.isolation != "wasm"
        self._clock = clock
        self._grace = grace

    async def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Any:
        seconds, scope = self._bound(call)
        right = running.may_act
        if seconds is None and self._idle is None and right is None:
            return await next(call, running)
        if seconds is not None and seconds <= 0:
            late = ToolTimeout(f"there is no time left to call {self._name!r}", timeout_scope=scope, forced=False)
            late.before_effect = True
            raise late
        running.left = ()
        heard = running.on_output
        work = next(call, running) if heard is None else _late(next, call, running)
        bounded = BoundedWork(work, seconds=seconds, scope=scope, idle=self._idle, grace=self._grace, right=right)
        if heard is not None:
            running.on_output = bounded.listen(heard)
        try:
            value = await bounded
        finally:
            running.on_output = heard
            if bounded.left is not None:
                leave(call, bounded.left, self)
        if bounded.expired is not None:
            await running.end_processes(call)
            raise self._took_too_long(bounded, seconds, running.goes_on)
        return value

    def _bound(self, call: Invocation) -> tuple[float | None, Scope]:
        if call.deadline is None:
            return self._timeout, "attempt"
        left = call.deadline - self._clock()
        if self._timeout is not None and self._timeout < left:
            return self._timeout, "attempt"
        return left, "total"

    def _took_too_long(self, bounded: BoundedWork, seconds: float | None, goes_on: bool) -> ToolTimeout:
        if bounded.expired == "idle":
            said = f"the tool {self._name!r} was silent for more than {self._idle:g} s"
        else:
            said = f"the tool {self._name!r} took longer than {_in_words(bounded, seconds)} s"
        # That it was told to stop says nothing of what it has done by then, and of a server not even that it did.
        end = " and did not stop when it was told to" if bounded.forced else ""
        if goes_on:
            end = GOES_ON
        error = ToolTimeout(f"{said}{end}", timeout_scope=bounded.expired, forced=bounded.forced)
        error.before_effect = not self._acts
        if goes_on:
            error.still_running = error.details["still_running"] = True
        return error


def _in_words(bounded: BoundedWork, seconds: float | None) -> str:
    """The bound as somebody wrote it: of one for all attempts a moment was used before this attempt began."""
    assert seconds is not None, "it ran out"
    rough = bounded.expired == "total" and seconds > 0.5
    return f"{round(seconds, 1):g}" if rough else f"{seconds:.3g}"


async def _late(next: Handler, call: Invocation, running: CallProgress) -> Any:
    """Calls `next` when it is awaited: only then is `running.on_output` the one that is listened to."""
    return await next(call, running)


# --- deadline --------------------------------------------------------------------------------------------------------

# Bounds a whole call, with its retries and the waits between them.


class Deadline:
    """Sets the time by which the call must be over; what stands inside keeps it. A deadline is never moved back."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock

    def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Awaitable[Any]:
        until = self._clock() + self._seconds
        if call.deadline is None or until < call.deadline:
            call = replace(call, deadline=until)
        return next(call, running)
