"""Runs that other runs start: how deep, by whom, with how much, and how they end together.

A child is a run like any other, with a journal of its own that names its parent. It gets what its parent has left,
narrowed by its own limits; children of one step share it. It ends when its parent's run ends. When only the process
ends, it stays, and whoever goes on with the parent goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from foliot.assembly import Assembly
from foliot.engine.runs import Runs, user_message
from foliot.engine.signals import signal
from foliot.errors import Conflict, FoliotError, NotFound, UsageError
from foliot.kernel.budget import Limits, narrow, remaining
from foliot.kernel.events import CancelRequested, RunCreated, RunSucceeded
from foliot.kernel.state import State
from foliot.resources.digest import definition_digest
from foliot.store.runs import Held
from foliot.tools.backends.agent import PREFIX, Delegated, Order
from foliot.tools.base import ToolDenied, ToolError, ToolUnsupported
from foliot.tools.spending import spend

MAX_DEPTH: Final = 5
# How long a child that was told to end may take before its parent ends without it. Less than a driver waits.
STOP_WITHIN: Final = 4.0


class Delegator:
    """A `Delegate` on the runs of this process. `pause` waits until something may have changed in the store."""

    def __init__(
        self,
        runs: Runs,
        assembly: Assembly,
        *,
        clock: Callable[[], float],
        pause: Callable[[], Awaitable[None]],
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._runs = runs
        self._assembly = assembly
        self._clock = clock
        self._pause = pause
        self._max_depth = max_depth

    async def __call__(self, order: Order) -> Delegated:
        """See `Delegate`. Raises `ToolDenied`, `ToolUnsupported`, `ToolError`."""
        task = asyncio.create_task(self._run(order))
        try:
            state = await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._let_go(order, task)
            raise
        except ToolError:
            raise
        except FoliotError as error:
            raise ToolError(f"agent {order.agent!r} cannot be run: {error.message}", retryable=False) from error
        finally:
            await self._account(order)
        return _delegated(state)

    # --- starting ------------------------------------------------------------------------------------------------

    async def _run(self, order: Order) -> State:
        if not await self._begun(order):
            await self._guard(order)
            with contextlib.suppress(Conflict):  # another attempt of the same call was faster: it is the same child
                return await self._drive(order, await self._start(order))
        return await self._drive(order, None)

    async def _begun(self, order: Order) -> bool:
        """Whether the child is there. Raises `ToolError` when a run with its id is somebody else's."""
        facts = await self._runs.facts(order.run_id, limit=1)
        if not facts:
            return False
        created = facts[0][1]
        if not isinstance(created, RunCreated) or (created.parent, created.agent) != (order.parent, order.agent):
            raise ToolError(f"the run {order.run_id} is not a child of this call", retryable=False)
        return True

    async def _guard(self, order: Order) -> None:
        """Neither too deep nor in a circle."""
        if order.depth > self._max_depth:
            raise ToolDenied(
                f"agents may delegate {self._max_depth} deep, and {order.agent!r} would be one deeper",
                layer="delegation",
                rule="depth",
            )
        chain = await self._ancestors(order)
        if (order.namespace, order.agent) in chain:
            way = " -> ".join((*(name for _, name in reversed(chain)), order.agent))
            raise ToolDenied(f"agents would call each other in a circle: {way}", layer="delegation", rule="cycle")

    async def _ancestors(self, order: Order) -> list[tuple[str, str]]:
        """Who called, nearest first, by the journals: nothing that a model wrote has a say in it."""
        chain: list[tuple[str, str]] = []
        run_id = order.parent
        while run_id and len(chain) <= self._max_depth:
            facts = await self._runs.facts(run_id, limit=1)
            if not facts or not isinstance(created := facts[0][1], RunCreated):
                break
            chain.append((created.namespace, created.agent))
            run_id = created.parent
        return chain

    async def _start(self, order: Order) -> State:
        where = f"{order.namespace}/{order.agent}"
        try:
            agent = self._assembly.known(order.namespace, order.agent) or await self._assembly.agent(where)
            spec = await self._assembly.freeze(agent)
            tools = await self._assembly.pipeline(spec)
        except (NotFound, UsageError) as error:
            raise ToolUnsupported(f"agent {order.agent!r} cannot be run: {error.message}", hint=error.hint) from None
        spec = replace(spec, limits=narrow(self._share(order), spec.limits))
        driver = await self._runs.start(
            spec,
            (user_message(order.input),),
            run_id=order.run_id,
            definitions={f"Agent/{agent.name}": definition_digest(agent.document)},
            parent=order.parent,
            depth=order.depth,
            tools=tools,
        )
        return await self._runs.drive(driver)

    def _share(self, order: Order) -> Limits:
        """What the parent has left, divided among the children that its step asks for."""
        parent = self._parent(order)
        if parent is None:
            return Limits(max_steps=None)
        left = remaining(parent.spec.limits, parent.spent, now=self._clock(), deadline=parent.deadline)
        open_calls = sum(call.phase != "done" and call.name.startswith(PREFIX) for call in parent.calls)
        shares = max(1, open_calls)
        return replace(
            left,
            max_tokens=None if left.max_tokens is None else left.max_tokens // shares,
            max_cost_usd=None if left.max_cost_usd is None else left.max_cost_usd / shares,
        )

    def _parent(self, order: Order) -> State | None:
        driver = self._runs.local(order.parent)
        return driver.state if driver is not None else None

    # --- until it ends -------------------------------------------------------------------------------------------

    async def _drive(self, order: Order, state: State | None) -> State:
        """Stay with the child: through waits for people and timers, and while another process drives it."""
        while state is None or state.ended is None:
            info, state = await self._runs.load(order.run_id)
            if state.ended is not None:
                break
            if info.phase == "waiting" and not await self._may_go_on(state):
                await self._pause()
                continue
            try:
                driver = await self._runs.take(order.run_id, tools=await self._assembly.pipeline(state.spec))
                state = await self._runs.drive(driver)
            except Held:
                await self._pause()
            except Conflict:
                continue  # ended, or taken over, this moment: the journal tells which
        return state

    async def _may_go_on(self, state: State) -> bool:
        waiting = state.waiting
        if waiting is not None and waiting.until is not None and waiting.until <= self._clock():
            return True
        return bool(await self._runs.journal.signals([state.run_id]))

    async def _let_go(self, order: Order, task: asyncio.Task[State]) -> None:
        """The call was stopped: the child ends with its parent's run, and waits for it when only the process ends."""
        if self._is_over(order):
            stop = signal(order.run_id, CancelRequested("parent", "the run that asked for it has ended"), self._clock())
            with contextlib.suppress(FoliotError):  # it was not there yet, or has ended by itself
                await self._runs.journal.signal(stop)
                if (driver := self._runs.local(order.run_id)) is not None:
                    driver.deliver(stop)
                await asyncio.wait({task}, timeout=STOP_WITHIN)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _is_over(self, order: Order) -> bool:
        now = self._clock()
        if order.deadline is not None and now >= order.deadline:
            return True
        parent = self._parent(order)
        if parent is None:
            return False
        late = parent.deadline is not None and now >= parent.deadline
        return late or parent.ending is not None or parent.ended is not None

    async def _account(self, order: Order) -> None:
        with contextlib.suppress(FoliotError):  # never started: nothing was spent
            _, state = await self._runs.load(order.run_id)
            spend(order.run_id, state.spent.usage())


def _delegated(state: State) -> Delegated:
    ended, usage = state.ended, state.spent.usage()
    if isinstance(ended, RunSucceeded):
        return Delegated(state.run_id, "succeeded", ended.output, ended.value, usage)
    phase = "cancelled" if state.ending is not None and state.ending.cancelled is not None else "failed"
    reason = getattr(ended, "reason", "")
    return Delegated(state.run_id, phase, usage=usage, error=getattr(ended, "message", ""), reason=reason)
