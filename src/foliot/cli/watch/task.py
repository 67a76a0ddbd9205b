"""Staying with a task until it ends: showing it, doing its work here when nobody else would, Ctrl-C, the exit code.

As with `foliot run`, Ctrl-C cancels the task, and a second one does not wait for its end. A worker in this process
takes whatever is due, so it also helps other tasks; when this one has ended, it takes nothing more and lets what it
began come to an end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from foliot.cli.errors import INTERRUPTED, say
from foliot.cli.invocation import current, is_terminal
from foliot.cli.local import LocalClient
from foliot.cli.runtimes import whoami
from foliot.cli.show.task import JsonTaskView, PlainTaskView, QuietTaskView, TaskView
from foliot.cli.terminal import emit, live_console, out, paint
from foliot.cli.watch.run import CANCELLING, FRAME, WAITS, Client, aside, on_ctrl_c
from foliot.common.cancellation import stop_tasks
from foliot.common.process import is_gone
from foliot.common.text import one_line
from foliot.engine.live.hub import Streamed
from foliot.errors import FoliotError, UsageError
from foliot.kernel.messages import TextDelta
from foliot.kernel.run import events as e
from foliot.runtime.groups.groups import Groups
from foliot.runtime.runtime import Runtime
from foliot.store.queue.placement import Offer, fits
from foliot.store.queue.workers import list_workers
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.events import Happening, RunHappening
from foliot.work.views.story import RunRow, TaskStory
from foliot.work.worker.worker import Worker

PLACES: Final = 8
LOOK_EVERY: Final = 1.0
# The store of a busy system changes all the time; a person reads no faster than this.
PAUSE: Final = 0.05
# How long nobody may be alive who could do the work before it is done here.
MISSED: Final = 5.0


@dataclass(slots=True)
class Followed:
    """How it went. `story` is None when the person left before the end."""

    story: TaskStory | None = None
    interrupted: bool = False
    shown: bool = False


@dataclass(slots=True)
class _Following:
    work: Groups
    runtime: Runtime | None
    view: TaskView
    namespace: str
    name: str
    worker: Worker | None = None
    working: asyncio.Task[None] | None = None
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: bool = False
    complained: bool = False
    pumps: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])


def choose_task_view(*, json: bool, quiet: bool) -> TaskView:
    """Chooses the view of a task for the current streams, as `choose_view` does for runs."""

    if json:
        return JsonTaskView()
    if quiet:
        return QuietTaskView()
    if not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        return PlainTaskView()
    from foliot.cli.show.task_terminal import TerminalTaskView

    console = live_console(no_color=current().color is False or None)
    return TerminalTaskView(console, answer=is_terminal(sys.stdout))


async def follow(client: Client, view: TaskView, task: TaskInfo, *, here: bool | None, stays: bool) -> Followed:
    """Show the task until it has ended, or waits for a person and `stays` is False.

    `here`: True does its work in this process too; None does so when no worker is alive that could; False never.
    """
    # Work can be done in this process only on its own runtime: that of a server is done by the workers there.
    runtime = client.runtime if isinstance(client, LocalClient) else None
    if here and runtime is None:
        raise UsageError("The work is done where the server is, not here.", hint="Leave out --here.")
    following = _Following(client, runtime, view, task.namespace, task.name)
    followed = Followed()
    begun = False
    try:
        with aside(view), on_ctrl_c(lambda times: _interrupt(following, times)):
            view.begin(await client.tasks.story(task.name, namespace=task.namespace, looks=False))
            begun = True
            async with _ticking(view), _at_work(following):
                story = await _until_it_rests(following, here=here, stays=stays)
            followed.story = story
    finally:
        if begun:
            followed.shown = view.end(followed.story, _lasted(followed.story))
        followed.interrupted = following.interrupted
    return followed


def _lasted(story: TaskStory | None) -> float:
    """How long the task took, or has taken so far: whoever looks may have come when it was over."""
    if story is None:
        return 0.0
    ended = story.info.ended_at if story.info.ended_at is not None else time.time()
    return max(0.0, ended - story.info.created_at)


async def _until_it_rests(following: _Following, *, here: bool | None, stays: bool) -> TaskStory | None:
    work, namespace, name = following.work, following.namespace, following.name
    cursor: str | None = None
    told, alone_since = -1, time.monotonic() - MISSED
    while not following.leaving.is_set():
        info = await work.tasks.get(name, namespace=namespace)
        batch = await work.tasks.events(name, namespace=namespace, cursor=cursor)
        cursor = batch.cursor
        _watch_writing(following, batch.events)
        if following.view.draws:
            following.view.graph(await work.tasks.story(name, namespace=namespace, looks=False))
        following.view.show(batch.events)
        if info.phase in ENDED:
            return await work.tasks.story(name, namespace=namespace)
        if info.phase == "waiting":
            if not stays:
                return await work.tasks.story(name, namespace=namespace)
            if info.revision != told:
                told = info.revision
                await _tell_wait(following)
        if following.working is not None and following.working.done():
            following.working.result()  # it should work as long as we stay: say why it does not
            following.worker = following.working = None
        if following.worker is None and following.runtime is not None:
            if here is not True and await _somebody_could(following, following.runtime):
                alone_since = time.monotonic()
            elif here or time.monotonic() - alone_since >= MISSED:
                _do_it_here(following, following.runtime, here=here)
        await _pause(following, cursor)
    with suppress(FoliotError):
        if (await work.tasks.get(name, namespace=namespace)).phase in ENDED:
            return await work.tasks.story(name, namespace=namespace)
    return None


async def _pause(following: _Following, cursor: str | None) -> None:
    """Waits until something may have happened, or the person leaves."""
    await asyncio.sleep(PAUSE)
    change = following.work.tasks.changed(
        following.name, namespace=following.namespace, cursor=cursor, timeout=LOOK_EVERY
    )
    changed = asyncio.create_task(change)
    leaving = asyncio.create_task(following.leaving.wait())
    try:
        await asyncio.wait({leaving, changed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        changed.cancel()
        await asyncio.gather(leaving, changed, return_exceptions=True)


# --- working here ------------------------------------------------------------------------------------------------


async def _somebody_could(following: _Following, runtime: Runtime) -> bool:
    """Whether a worker is alive that may take what is due of the task, or was left behind; True while nothing is."""
    tasking, now = runtime.inside.tasking, time.time()
    rows = await tasking.stories.rows(following.namespace, following.name)
    due = [row for row in rows if not row.ended and _is_free(row, now)]
    if not due:
        return True
    alive = [
        each.offer
        for each in await list_workers(tasking.database)
        if each.state(now) == "ready" and not is_gone(each.identity)
    ]
    return all(any(fits(offer, row.requirements) for offer in alive) for row in due)


def _is_free(row: RunRow, now: float) -> bool:
    """Whether anybody could take the run: it waits for a worker, or the one that held it is no more."""
    if row.held:
        return is_gone(row.worker) or (row.lease_until is not None and row.lease_until < now)
    return row.due_at is not None


def _do_it_here(following: _Following, runtime: Runtime, *, here: bool | None) -> None:
    """Starts a worker in this process, or notes once that no worker could do the task."""
    if here is not False:
        _start_worker(following, runtime)
    elif not following.complained:
        following.complained = True
        following.view.note("No worker is alive that could do it: start `foliot worker`, or use --here.")


def _start_worker(following: _Following, runtime: Runtime) -> None:
    tasking = runtime.inside.tasking
    tasking.performer.stream = following.view.draws
    worker = runtime.inside.runs.worker
    offer = Offer(f"{socket.gethostname()}-{os.getpid()}", worker, capacity=PLACES)
    following.worker = tasking.worker(offer)
    following.working = asyncio.create_task(following.worker.run(), name="worker")


@asynccontextmanager
async def _at_work(following: _Following) -> AsyncGenerator[None]:
    """Stops everything that was started meanwhile: the worker, and the readers of what agents write."""
    try:
        yield
    finally:
        if following.worker is not None and following.working is not None:
            following.worker.drain()
            if following.leaving.is_set() or await _only_waits(following, following.worker):
                following.worker.drain()
            await asyncio.gather(following.working, return_exceptions=True)
        await stop_tasks(*following.pumps.values())


async def _only_waits(following: _Following, worker: Worker) -> bool:
    """Whether the task waits, and the worker here has nothing else: its runs that wait for runs below are let go then.

    Other tasks that it has taken may be at work: those have their time to end.
    """
    with suppress(FoliotError):
        info = await following.work.tasks.get(following.name, namespace=following.namespace)
        if info.phase == "waiting" and following.runtime is not None:
            inside = following.runtime.inside
            rows = await inside.tasking.stories.rows(following.namespace, following.name)
            return worker.current <= sum(row.held and row.worker == inside.runs.worker for row in rows)
    return False


def _watch_writing(following: _Following, happenings: Sequence[Happening]) -> None:
    """Read along with what agents write that work in this process."""
    runtime = following.runtime
    if runtime is None or following.worker is None or not following.view.draws:
        return
    for happening in happenings:
        if not isinstance(happening, RunHappening):
            continue
        match happening.fact:
            case e.RunClaimed(worker=worker) if worker == runtime.inside.runs.worker:
                if happening.run_id not in following.pumps:
                    pump = _pump(following, runtime, happening.agent, happening.run_id)
                    following.pumps[happening.run_id] = asyncio.create_task(pump)
            case e.RunSucceeded() | e.RunFailed() | e.RunCancelled() | e.RunDeadLettered():
                if (done := following.pumps.get(happening.run_id)) is not None:
                    done.cancel()
            case _:
                pass


async def _pump(following: _Following, runtime: Runtime, agent: str, run_id: str) -> None:
    with runtime.inside.watch(run_id) as reader:
        async for item in reader:
            if isinstance(item, Streamed) and isinstance(item.delta, TextDelta):
                following.view.piece(agent, item.delta.text)


@asynccontextmanager
async def _ticking(view: TaskView) -> AsyncGenerator[None]:
    async def tick() -> None:
        while True:
            await asyncio.sleep(FRAME)
            view.tick()

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        await stop_tasks(ticking)


# --- people ------------------------------------------------------------------------------------------------------


async def _interrupt(following: _Following, times: int) -> None:
    following.interrupted = True
    if times > 1:
        following.leaving.set()
        return
    following.view.note(CANCELLING)
    try:
        await following.work.tasks.cancel(following.name, namespace=following.namespace, by=whoami(), reason="Ctrl-C")
    except FoliotError:  # it has ended this very moment
        return


async def _tell_wait(following: _Following) -> None:
    told = await following.work.tasks.why(following.name, namespace=following.namespace)
    for cause in told.causes:
        if cause.kind == "waiting":
            following.view.note(f"{'  ' * cause.depth}{cause.text}")
    for hint in told.next:
        following.view.note(f"  {hint.command}  # {one_line(hint.effect)}")


async def finish_task(work: Groups, view: TaskView, task: TaskInfo, followed: Followed) -> int:
    """Print the result where it belongs, and say what to do next. The exit code of the command."""
    story = followed.story
    where = "" if task.namespace == "default" else f" -n {task.namespace}"
    if story is None:
        view.note(f"Left before the task had ended. `foliot task wait {task.name}{where}` follows it on.")
        return INTERRUPTED
    match story.info.phase:
        case "succeeded":
            if not followed.shown:
                emit(story.output)
            return 0
        case "waiting":
            told = await work.tasks.why(task.name, namespace=task.namespace)
            out(f"\n{one_line(told.headline)}", err=True)
            for cause in told.causes:
                out(f"  {'  ' * cause.depth}{one_line(cause.text)}", err=True)
            for hint in told.next:
                out(f"  {paint(hint.command, fg='cyan')}  # {one_line(hint.effect)}", err=True)
            return WAITS
        case "cancelled":
            say("cancelled", story.info.summary.get("reason") or task.name, fg="yellow")
            return INTERRUPTED
        case phase:
            word = "dead-lettered" if phase == "dead_lettered" else phase
            error = story.info.summary.get("error") or f"task {task.name} was {word}"
            say("error", f"{word}: {error}", fg="red")
            hint = f"`foliot why {task.name}{where}` tells why; `foliot task retry {task.name}{where}` tries again."
            say("hint", hint, fg="cyan")
            return 1
