"""Runs that wait for people because a run below them does."""

from __future__ import annotations

from foliot.engine.budgets.wakeups import is_short
from foliot.engine.driver.journal import load_run
from foliot.errors import NotFound
from foliot.kernel.errors import KernelError
from foliot.kernel.run.state import Call, State
from foliot.store.journal.base import Journal
from foliot.store.journal.chain import JournalChanged
from foliot.tools.backends.agent import child_ids


async def asking_below(journal: Journal, state: State, now: float) -> tuple[str, ...]:
    """Lists the runs below one that wait for people or a budget, when all that it does is to wait for them."""
    found: list[str] = []
    for call in state.calls:
        if state.ended is not None or call.phase != "running":
            continue
        below = [child for each in _children(state, call) for child in await _asking_in(journal, each, now)]
        if not below or "" in below:
            return ()
        found += below
    return tuple(found)


async def _asking_in(journal: Journal, child: str, now: float) -> tuple[str, ...]:
    """Lists the runs that wait in a child; a blank one stands for a child that goes on."""
    try:
        _, state = await load_run(journal, child)
    except NotFound:  # not begun yet: there is a limit to how many go on at once
        return ()
    except (JournalChanged, KernelError):  # no person can be asked for it
        return ("",)
    if state.ended is not None:
        return ()
    if state.waiting is not None and not is_short(state.waiting, now):
        return (child,)
    return await asking_below(journal, state, now) or ("",)


def _children(state: State, call: Call) -> list[str]:
    return child_ids(state.spec.namespace, state.run_id, call.name, call.id, call.arguments)
