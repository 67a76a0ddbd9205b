"""Runs that go on beside the run that started them.

A child is driven by a task of this process, and ends when its parent's run ends, wherever that run is driven then.
When only the process ends, children stay as they are: whoever goes on with the parent and waits for them goes on with
them too. Nothing here is the truth about a child; that is its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foliot.engine.runs import Runs
from foliot.engine.signals import signal
from foliot.errors import FoliotError, NotFound
from foliot.kernel.budget import Spent
from foliot.kernel.events import CancelRequested
from foliot.kernel.state import State
from foliot.stopping import stop_tasks
from foliot.store.runs import TERMINAL
from foliot.tools.base import ToolDenied
from foliot.waits import Waits

log = logging.getLogger(__name__)

# How many children of one run may be under way beside it.
MOST_BESIDE: Final = 10
ENDS_WITH_PARENT: Final = CancelRequested("parent", "the run that started it has ended")


class Child:
    """One run in the background. `state` is how it ended; `call_id` is the call that started it, if known here."""

    def __init__(self, run_id: str, parent: str, call_id: str = "") -> None:
        self.run_id = run_id
        self.parent = parent
        self.call_id = call_id
        self.state: State | None = None
        self.task: asyncio.Task[None] | None = None
        self.starting = False

    @property
    def open(self) -> bool:
        return self.starting or (self.task is not None and not self.task.done())


class Children:
    """The background runs of this process, by their parents. `pause` waits until something may have changed."""

    def __init__(
        self, runs: Runs, *, clock: Callable[[], float], pause: Callable[[], Awaitable[None]], most: int = MOST_BESIDE
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._pause = pause
        self._most = most
        self._of: dict[str, dict[str, Child]] = {}
        self._minders: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def starting(self, run_id: str, parent: str, call_id: str) -> Generator[None]:
        """Take the place of a child while it is being started. Raises `ToolDenied` when one more would be too many."""
        family = self._of.setdefault(parent, {})
        under_way = sum(child.open for child in family.values())
        if under_way >= self._most:
            raise ToolDenied(
                f"{under_way} agents are under way beside this run, and no more than {self._most} may be; "
                "wait for one of them",
                layer="delegation",
                rule="fan_out",
            )
        child = family.setdefault(run_id, Child(run_id, parent, call_id))
        child.starting = True
        try:
            yield
        finally:
            child.starting = False

    def keep(self, run_id: str, parent: str, drive: Callable[[], Coroutine[Any, Any, State]]) -> Child:
        """Drive a run in the background. One that is driven here already is left to the task that it has."""
        child = self._of.setdefault(parent, {}).setdefault(run_id, Child(run_id, parent))
        if child.task is None or child.task.done():
            child.task = asyncio.create_task(self._driven(child, drive))
            minder = self._minders.get(parent)
            if minder is None or minder.done():
                self._minders[parent] = asyncio.create_task(self._mind(parent))
        return child

    async def _driven(self, child: Child, drive: Callable[[], Coroutine[Any, Any, State]]) -> None:
        try:
            child.state = await drive()
        except FoliotError as error:
            # Whoever waits for it looks at its journal, and sees that it has not ended.
            log.warning("run %s, started by %s, cannot go on here: %s", child.run_id, child.parent, error)

    def unpaid(self, parent: State) -> Spent:
        """What the children of a run have spent, or may still spend, that is in nobody's account yet.

        Without those of calls that are under way: the step's share for each call is theirs.
        """
        total = Spent()
        for child in self._of.get(parent.run_id, {}).values():
            driver = self._runs.local(child.run_id)
            state = driver.state if driver is not None else child.state
            call = parent.call(child.call_id)
            if state is None or child.run_id in parent.paid or (call is not None and call.phase != "done"):
                continue
            limits, spent, over = state.spec.limits, state.spent, state.ended is not None
            total.input_tokens += spent.tokens if over or limits.max_tokens is None else limits.max_tokens
            total.cost_usd += spent.cost_usd if over or limits.max_cost_usd is None else limits.max_cost_usd
        return total

    async def wait(self, children: Sequence[Child], *, all: bool, seconds: float) -> None:
        """Until all of them (or any) have ended, or the time is over."""
        tasks = {child.task for child in children if child.task is not None}
        when = asyncio.ALL_COMPLETED if all else asyncio.FIRST_COMPLETED
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=when)

    async def close(self) -> None:
        """Let go of every child. Those whose parents have ended are ended; the others stay as they are."""
        for parent in list(self._of):
            if await self.has_ended(parent):
                await self._end(parent)
        tasks = [child.task for family in self._of.values() for child in family.values() if child.task is not None]
        await _stopped([*list(self._minders.values()), *tasks])
        self._of.clear()
        self._minders.clear()

    # --- ending with the parent ----------------------------------------------------------------------------------

    async def _mind(self, parent: str) -> None:
        """Stay until the parent's run has ended, and end its children then.

        Also until it waits, when nothing is under way beside it: a run that waits costs nothing.
        """
        try:
            while not await self.has_ended(parent):
                under_way = any(child.open for child in self._of.get(parent, {}).values())
                if not under_way and self._runs.local(parent) is None:
                    self._of.pop(parent, None)
                    return
                with contextlib.suppress(FoliotError):  # a store that fails for a moment is asked again
                    await self._pause()
            await self._end(parent)
        finally:
            self._minders.pop(parent, None)

    async def has_ended(self, parent: str) -> bool:
        """Whether a run has ended, for its children: one that nobody remembers has."""
        driver = self._runs.local(parent)
        if driver is not None and driver.state.ended is None:
            return False
        try:
            return (await self._runs.journal.get(parent)).phase in TERMINAL
        except NotFound:
            return True  # forgotten, so long over
        except FoliotError:
            return False

    async def _end(self, parent: str) -> None:
        ending = [child for child in self._of.pop(parent, {}).values() if child.open]
        for child in ending:
            stop = signal(child.run_id, ENDS_WITH_PARENT, self._clock())
            with contextlib.suppress(FoliotError):  # it has ended by itself
                await self._runs.journal.signal(stop)
                if (driver := self._runs.local(child.run_id)) is not None:
                    driver.deliver(stop)
        tasks = [child.task for child in ending if child.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=Waits(self._runs.lease_seconds).child)
            await _stopped(tasks)


async def _stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    waited = list(tasks)
    await stop_tasks(*waited)
