"""The state of one call on its way through the stages, and the calls that did not end when cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeAlias

from msgspec import Struct

from foliot.common.threads import ThreadJob, begin, on_thread
from foliot.kernel.run.events import UnknownReason
from foliot.tools.base import Invocation, MayAct, OnOutput, ToolCancelled, ToolError, ToolRateLimited
from foliot.tools.network_notes import NetworkNotes
from foliot.tools.processes import Processes

log = logging.getLogger(__name__)

P = ParamSpec("P")

# How long what was told to end is waited for; a bound of the call may allow less.
END_WITHIN: Final = 1.0
# How many calls of one tool may go on after they were told to end, before no other is started.
MOST_GOING_ON: Final = 32
_NOT_CALLED: Final = object()


class CallProgress:
    """`failures` are those of the attempts before the last: one entry for each time the call was tried again.

    `began`: the backend was called; before that nothing can have acted. `returned`: the last attempt gave a value.
    `left` is what the last attempt was told to end and has not: threads, and tasks that it waited for. Once the call is
    `over`, what it left behind starts nothing more.
    """

    __slots__ = ("_network", "_processes", "began", "failures", "left", "may_act", "on_output", "over", "returned")

    def __init__(self, on_output: OnOutput | None = None, may_act: MayAct | None = None) -> None:
        self.on_output = on_output
        self.may_act = may_act
        self.failures: tuple[ToolError, ...] = ()
        self.left: tuple[LeftCall, ...] = ()
        self.began = False
        self.returned = False
        self.over = False
        self._processes: Processes | None = None
        self._network: NetworkNotes | None = None

    @property
    def network(self) -> NetworkNotes:
        """The notes on its network. Made for the first who has something to note: almost no call has."""
        if self._network is None:
            self._network = NetworkNotes()
        return self._network

    def network_text(self, *, failed: bool) -> str:
        """The lines of these notes for the result; blank when there is nothing to say."""
        return "" if self._network is None else self._network.text(failed=failed)

    @property
    def attempts(self) -> int:
        return len(self.failures) + 1

    @property
    def goes_on(self) -> bool:
        """Whether something of it still goes on, although it was told to end."""
        return any(not each.over for each in self.left)

    def processes(self) -> Processes | None:
        """Returns the tracker to report a new process to; None when it need not be tracked.

        Raises `PermissionError` for what was told to end.
        """
        if self.over:
            if self.goes_on:
                raise PermissionError("the call that starts this process was told to end")
            return None
        if self._processes is None:
            self._processes = Processes()
        return self._processes

    @property
    def has_processes(self) -> bool:
        return self._processes is not None

    async def end_processes(self, call: Invocation) -> None:
        """End what was started and lives. It goes on by itself if nobody waits for it."""
        processes, self._processes = self._processes, None
        if processes is None:
            return
        try:
            count = await on_thread(processes.end)
        except OSError as error:
            log.warning("the processes of call %s of %s cannot be seen: %s", call.call_id, call.tool, error.strerror)
        else:
            if count:
                log.warning("call %s of %s left %d processes, which were ended", call.call_id, call.tool, count)

    def ask_processes_to_end(self) -> None:
        if self._processes is not None:
            self._processes.ask_to_end()

    async def check_right(self) -> None:
        """Checks after a wait that the caller may still act. Raises `ToolCancelled` if not.

        A machine that was suspended meanwhile wakes up with its work in other hands.
        """
        if self.may_act is not None and not await self.may_act():
            gone = ToolCancelled("the run is in other hands by now; the tool was not called (again)")
            gone.before_effect = True
            raise gone

    def unknown(self, error: ToolError) -> UnknownReason | None:
        """Why nobody knows whether the call, which ended with this error, has acted in one of its attempts.

        A tool that has told how an attempt ended has told it of those before, which were made under the same key.
        """
        if not self.began:
            return None
        if self.returned:
            return "broken"  # the tool was done, and what stands around it has lost the value
        if error.before_effect:
            return next((why for failure in self.failures if (why := failure.unknown) is not None), None)
        return error.unknown

    def may_go_on(self) -> bool:
        """Whether the right to act is certain, without asking anybody. From any thread."""
        return self.may_act is None or self.may_act.holds()


Handler: TypeAlias = Callable[[Invocation, CallProgress], Awaitable[Any]]

# The call that is made here, for a backend: it is handed the call, and not what goes with it.
current: Final[ContextVar[CallProgress | None]] = ContextVar("foliot_running", default=None)


def call_network() -> NetworkNotes | None:
    """The notes on the network of the call that is made here; None outside of calls."""
    running = current.get()
    return None if running is None else running.network


# --- what did not end --------------------------------------------------------------------------------------------


class GoingOn(Struct, frozen=True):
    """A call that was told to end at `since` and still goes on in this process. `what` is a thread or a task."""

    tool: str
    run_id: str
    call_id: str
    what: str
    since: float


class LeftCall:
    """One thread or task of a call that goes on. It is in the register until it has ended."""

    __slots__ = ("_began", "facts", "over", "owner")

    def __init__(self, facts: GoingOn, owner: object) -> None:
        self.facts = facts
        self.owner = owner
        self.over = False
        self._began = time.monotonic()

    def end(self, *_: object) -> None:
        self.over = True
        if _register.pop(id(self), None) is not None:
            facts, late = self.facts, time.monotonic() - self._began
            log.warning("call %s of %s ended %.1f s after it was told to", facts.call_id, facts.tool, late)


_register: Final[dict[int, LeftCall]] = {}


def going_on() -> list[GoingOn]:
    """The calls of this process that were told to end and have not, the oldest first."""
    return sorted((each.facts for each in list(_register.values())), key=lambda facts: facts.since)


def count_going_on(owner: object) -> int:
    """How many calls of one function, or of whatever else has calls, go on although they were told to end."""
    return sum(each.owner is owner for each in list(_register.values())) if _register else 0


async def blocking(
    call: Invocation, owner: object, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs
) -> Any:
    """Calls a blocking function on a thread. When cancelled, it asks the function to end, and records a function that
    does not. `owner` is whose calls are counted: with too many left over, no more are started.

    Raises what the function raises, and `ToolCancelled` when the run was lost before the function was called.
    """
    if (stuck := count_going_on(owner)) >= MOST_GOING_ON:
        raise ToolRateLimited(
            f"{stuck} earlier calls of {call.tool!r} were told to end and still go on; no other is started",
            hint="the tool should not block without a bound; a restart of the process ends those calls",
        )
    running = current.get()
    if running is None or running.may_act is None:
        work: Callable[[], Any] = partial(function, *args, **kwargs)
    else:
        work = partial(_if_allowed, running, partial(function, *args, **kwargs))
    while True:
        job = begin(work)
        try:
            value = await job.future
        except GeneratorExit:
            job.tell_to_end()
            leave(call, job, owner)
            raise
        except asyncio.CancelledError:
            job.tell_to_end()
            if running is not None:
                running.ask_processes_to_end()  # should it wait for one of them, it hears what it was told
            try:
                await job.ends_within(END_WITHIN)
            finally:
                leave(call, job, owner)
            raise
        if value is not _NOT_CALLED or running is None:
            return value
        await running.check_right()  # this process slept: if the run is still its own, it may


def _if_allowed(running: CallProgress, function: Callable[[], Any]) -> Any:
    """The last look, on the thread itself: between the one before and this a process may have slept for hours."""
    return function() if running.may_go_on() else _NOT_CALLED


def leave(call: Invocation, what: ThreadJob | asyncio.Future[Any], owner: object) -> None:
    """Say of a thread or a task of a call that it was told to end and has not, if it has not."""
    if what.over if isinstance(what, ThreadJob) else what.done():
        return
    kind = "thread" if isinstance(what, ThreadJob) else "task"
    left = LeftCall(GoingOn(call.tool, call.run_id, call.call_id, kind, time.time()), owner)
    _register[id(left)] = left
    if isinstance(what, ThreadJob):
        if not what.when_over(left.end):
            _register.pop(id(left), None)
            return
    else:
        what.add_done_callback(left.end)
    if (running := current.get()) is not None:
        running.left += (left,)
    log.warning("call %s of %s was told to end and goes on (%s)", call.call_id, call.tool, kind)
