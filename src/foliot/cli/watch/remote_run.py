"""Watching a run that a server drives: the same views, Ctrl-C and exit codes as for one in this process.

The run does not need whoever watches: it goes on when the connection breaks, and when the person leaves. A server that
is killed meanwhile is waited for, and the run with it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from foliot.cli.errors import INTERRUPTED
from foliot.cli.runtimes import whoami
from foliot.cli.show.run import Opening, QuietView, View
from foliot.cli.watch.questions import answered_here
from foliot.cli.watch.run import Look, Watched, finish, on_ctrl_c, with_ticks
from foliot.cli.watch.waits import note_what_is_asked
from foliot.common.cancellation import stop_tasks
from foliot.engine.budgets.wakeups import is_short
from foliot.engine.live.hub import Recorded
from foliot.errors import Conflict, NotFound, Unavailable
from foliot.kernel.run.events import RunWaiting
from foliot.runtime.answers import ForkOrder, RunOrder, RunStanding
from foliot.runtime.results import RunResult

if TYPE_CHECKING:
    from foliot.client.remote import RemoteClient

# How often to look whether a run rests, when nothing tells of it.
LOOK_EVERY: Final = 2.0


async def run_there(client: RemoteClient, opening: Opening, order: RunOrder, look: Look) -> int:
    """Begin a run on the server, or go on with one, and stay with it. The exit code of the command."""
    if opening.done:  # it exists: what it was asked for is not asked again
        return await resume_there(client, opening, look)
    await client.runs.start(
        order.agent,
        order.input,
        namespace=order.namespace,
        run_id=order.run_id,
        labels=order.labels,
        user=order.user,
    )
    return await _watched(client, opening, 0, look)


async def resume_there(client: RemoteClient, opening: Opening, look: Look) -> int:
    """Have a run go on on the server, and stay with it. The exit code of the command."""
    seq = (await client.runs.get(opening.run_id)).seq
    await client.runs.resume(opening.run_id)
    return await _watched(client, opening, seq, look)


async def fork_there(client: RemoteClient, opening: Opening, original: str, order: ForkOrder, look: Look) -> int:
    """Begin a run on the server that shares the past of another, and stay with it. The exit code of the command."""
    await client.runs.fork(
        original, at=order.at, prompt=order.prompt, model=order.model, input=order.input, new_id=order.new_id
    )
    return await _watched(client, opening, 0, look)


async def rest_there(client: RemoteClient, run_id: str) -> RunResult:
    """Have a run go on on the server until it has ended or waits, without a view."""
    seq = (await client.runs.get(run_id)).seq
    await client.runs.resume(run_id)
    watched = await _Watch(client, QuietView(), Opening(run_id, ""), seq, Look(quiet=True)).watch()
    assert watched.result is not None, "nobody interrupts what nobody watches"
    return watched.result


async def _watched(client: RemoteClient, opening: Opening, seq: int, look: Look) -> int:
    from foliot.cli.commands.run import going_on

    async def told(run_id: str) -> bool:
        return False  # the server goes on with a run as soon as it is told something

    while True:
        view = look.view()
        watched = await _Watch(client, view, opening, seq, look).watch()
        if watched.result is None:
            view.note(f"Left. Run {opening.run_id} goes on where the server is.")
            return INTERRUPTED
        if not (look.ask_here and await answered_here(client, watched.result, told=told)):
            return await finish(client, view, watched)
        opening, seq = await going_on(client, opening.run_id), (await client.runs.get(opening.run_id)).seq


class _Watch:
    """One look at a run, from behind the event `seq` until it has ended or rests."""

    def __init__(self, client: RemoteClient, view: View, opening: Opening, seq: int, look: Look) -> None:
        self._client = client
        self._view = view
        self._opening = opening
        self._seq = seq
        self._look = look
        self._waits = asyncio.Event()
        self._told: set[str] = set()
        self._begun = False

    async def watch(self) -> Watched:
        """Watches the run until it has ended, rests, or the person leaves."""
        started, watched = time.monotonic(), Watched(None)
        task = asyncio.create_task(self._followed())
        try:
            with on_ctrl_c(lambda times: self._interrupt(task, watched, times)):
                try:
                    watched.result = await asyncio.shield(task)
                except asyncio.CancelledError:
                    if not (watched.interrupted and task.cancelled()):
                        raise
        finally:
            await stop_tasks(task)
            if watched.result is not None:
                self._begin()
            if self._begun:
                watched.answer_shown = self._view.end(watched.result, time.monotonic() - started)
        return watched

    async def _followed(self) -> RunResult:
        following = asyncio.create_task(self._follow())
        resting = asyncio.create_task(self._rested())
        try:
            await asyncio.wait({following, resting}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                await following
                return (await self._client.runs.get(self._opening.run_id)).result
            return await resting
        finally:
            await stop_tasks(following, resting)

    async def _follow(self) -> None:
        live = self._client.runs.watch(self._opening.run_id, after=self._seq)
        async with aclosing(live):
            async for item in with_ticks(live, self._view):
                self._begin()
                self._view.show(item)
                if isinstance(item, Recorded):
                    self._seq = item.seq
                    if isinstance(item.event, RunWaiting):
                        self._waits.set()

    async def _rested(self) -> RunResult:
        """The result of a run that waits for something that is not waited for here."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._waits.wait()
            self._waits.clear()
            with suppress(Unavailable):  # whoever follows says when the server stays away
                if (await self._client.runs.find(self._opening.run_id)).phase != "waiting":
                    continue
                stood = await self._client.runs.get(self._opening.run_id)
                if stood.info.phase == "waiting" and stood.seq <= self._seq and await self._is_over(stood):
                    return stood.result

    async def _is_over(self, stood: RunStanding) -> bool:
        waiting = stood.result.waiting
        if waiting is None or is_short(waiting, time.time()):
            return False
        if not self._look.wait or waiting.reason not in ("approval", "input", "budget"):
            return True
        if waiting.reason == "input" and self._look.ask_here:
            return True
        self._begin()
        if waiting.reason == "budget" and waiting.message not in self._told:
            self._told.add(waiting.message)
            self._view.note(waiting.message)
        await note_what_is_asked(self._client, self._view, self._opening.run_id, self._told)
        return False

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._view.begin(self._opening)

    async def _interrupt(self, task: asyncio.Task[RunResult], watched: Watched, times: int) -> None:
        watched.interrupted = True
        if times > 1:
            task.cancel()
            return
        self._view.note("Cancelling; Ctrl-C again leaves at once, and the run goes on there.")
        with suppress(NotFound, Conflict, Unavailable):  # it has ended this very moment, or cannot be told now
            await self._client.runs.cancel(self._opening.run_id, by=whoami(), reason="Ctrl-C")
