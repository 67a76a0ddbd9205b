"""Resumption after a decision: the process that still waits with the run resumes it, or else this one."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from foliot.cli.commands.run import going_on
from foliot.cli.errors import warn
from foliot.cli.terminal import out
from foliot.cli.watch.run import WAITS, choose_view, finish, watch_run
from foliot.engine.driver.process import in_words, is_gone
from foliot.errors import FoliotError
from foliot.runtime.local.groups import LocalGroups
from foliot.runtime.runtime import Runtime
from foliot.store.journal.base import TERMINAL, Held, LeaseLost

# How long another process that stays with the run has to take it up. If it does so later, it finds it taken.
PATIENCE: Final = 5.0
LOOK_EVERY: Final = 0.05


async def go_on_elsewhere_or_here(runtime: Runtime, run_id: str, *, attended_by: str | None, quiet: bool) -> int:
    """The exit code of the command: 0 when the run goes on elsewhere, else as `foliot run`.

    `attended_by` is the worker that stays with the run, as far as is known: it has the first go, while it lives.
    """
    if await _goes_on_elsewhere(runtime, run_id, PATIENCE if attended_by and not is_gone(attended_by) else 0.0):
        return await _told_who_goes_on(runtime, run_id)
    view = choose_view(json=False, quiet=quiet)
    try:
        opening = await going_on(LocalGroups(runtime.inside, wakes=False), run_id)
        watched = await watch_run(
            runtime, view, opening, lambda: runtime.inside.resume(run_id, stream=not quiet, check=False)
        )
    except (Held, LeaseLost):
        return await _told_who_goes_on(runtime, run_id)
    except FoliotError as error:
        return not_from_here(run_id, error)
    return await finish(LocalGroups(runtime.inside, wakes=False), view, watched)


def not_from_here(run_id: str, error: FoliotError) -> int:
    """Decided is decided. Only the rest of the run needs what is not here: its tools, for example."""
    warn(f"The run cannot go on from here: {error.message}\n`foliot resume {run_id}` where its tools are goes on.")
    return WAITS


async def _told_who_goes_on(runtime: Runtime, run_id: str) -> int:
    info = await runtime.inside.runs.journal.get(run_id)
    if info.worker is None:  # it has been let go again meanwhile
        out(f"Run {run_id} goes on where it is driven.", err=True)
    else:
        out(f"Run {run_id} goes on where it is driven: {in_words(info.worker)} has it.", err=True)
    return 0


async def _goes_on_elsewhere(runtime: Runtime, run_id: str, patience: float) -> bool:
    """Whether another process has the run in hand, or takes it within the time that it is given."""
    until = time.monotonic() + patience
    while True:
        info = await runtime.inside.runs.journal.get(run_id)
        if info.phase == "running" and not runtime.inside.runs.is_left_alone(info):
            return True
        if info.phase != "waiting":
            return patience > 0 and info.phase in TERMINAL  # as quick as that
        if patience and not await runtime.inside.runs.journal.signals([run_id]):
            return True  # taken, and it waits again: for another approval
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(LOOK_EVERY)
