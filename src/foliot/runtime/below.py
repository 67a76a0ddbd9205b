"""Runs that wait for people because a run below them does."""

from __future__ import annotations

from foliot.engine.budgets.wakeups import is_short
from foliot.engine.driver.runs import Runs
from foliot.errors import NotFound
from foliot.kernel.run.state import State
from foliot.runtime.delegation import children_of


async def asking_below(runs: Runs, state: State, now: float) -> tuple[str, ...]:
    """Lists the runs below one that wait for people or a budget, when all that it does is to wait for them."""
    found: list[str] = []
    for call in state.calls:
        if state.ended is not None or call.phase != "running":
            continue
        below = [child for each in children_of(state, call) for child in await _asking_in(runs, each, now)]
        if not below or "" in below:
            return ()
        found += below
    return tuple(found)


async def _asking_in(runs: Runs, child: str, now: float) -> tuple[str, ...]:
    """Lists the runs that wait in a child; a blank one stands for a child that goes on."""
    try:
        _, state = await runs.load(child)
    except NotFound:  # not begun yet: there is a limit to how many go on at once
        return ()
    if state.ended is not None:
        return ()
    if state.waiting is not None and not is_short(state.waiting, now):
        return (child,)
    return await asking_below(runs, state, now) or ("",)
