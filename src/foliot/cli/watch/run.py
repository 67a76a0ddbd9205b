"""Driving a run while a person watches: the view that fits, Ctrl-C, the exit code.

The answer goes to stdout and everything else to stderr, so that `foliot run … | less` and `> answer.txt` do what one
means. On a terminal the answer is part of the live view and appears once. What tools print goes to stderr as well.

Exit codes: 0 succeeded; 1 failed or cancelled; 8 it waits for a person; 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from foliot.cli.errors import INTERRUPTED
from foliot.cli.invocation import current, is_terminal
from foliot.cli.runtimes import whoami
from foliot.cli.show.run import Opening, View
from foliot.cli.terminal import emit, live_console, out, paint
from foliot.common.cancellation import stop_tasks
from foliot.common.text import one_line
from foliot.engine.live.hub import Live
from foliot.errors import Conflict, NotFound
from foliot.runtime.groups.groups import Groups
from foliot.runtime.results import RunResult
from foliot.runtime.runtime import Runtime
from foliot.store.journal.base import TERMINAL

# --- aside -----------------------------------------------------------------------------------------------------------

# What tools print while they are watched: on stderr, and never into a picture that is being drawn there.


@runtime_checkable
class Draws(Protocol):
    """A view that keeps part of the terminal moving, and so has to know what else is printed there."""

    def printed(self, line: str) -> None:
        """Show a line that somebody printed. Called on whichever thread printed it."""
        ...


@contextmanager
def aside(view: object) -> Generator[None]:
    """Send what is printed meanwhile to stderr: the answer alone is for stdout. A view that draws shows it itself."""
    if not isinstance(view, Draws):
        stderr = sys.stderr
        # Set in, and safe: what a tool prints may be what a model told it to print.
        plain = _Lines(lambda line: out(f"    {line}", file=stderr))
        try:
            with redirect_stdout(plain):
                yield
        finally:
            plain.finish()
        return
    lines = _Lines(view.printed)
    try:
        # stderr too: what libraries log there would land in the picture as well.
        with redirect_stdout(lines), redirect_stderr(lines):
            yield
    finally:
        lines.finish()


class _Lines(io.TextIOBase):
    """A file that hands on whole lines. Each thread has its own unfinished one, so that two never share a line."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._begun: dict[int, str] = {}
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        me = threading.get_ident()
        with self._lock:
            *ended, rest = (self._begun.pop(me, "") + text).split("\n")
            if rest:
                self._begun[me] = rest
        for line in ended:
            self._show(line.rpartition("\r")[2])  # of a line that was drawn over itself, the last state
        return len(text)

    def finish(self) -> None:
        """Hand on what was begun and never ended."""
        with self._lock:
            begun, self._begun = list(self._begun.values()), {}
        for line in begun:
            self._show(line.rpartition("\r")[2])


# --- live ------------------------------------------------------------------------------------------------------------

WAITS: Final = 8
FRAME: Final = 0.08
Drive: TypeAlias = Callable[[], Coroutine[Any, Any, RunResult]]


@dataclass(slots=True)
class Watched:
    """How it went. `result` is None when the person left the run as it was."""

    result: RunResult | None
    interrupted: bool = False
    answer_shown: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """How somebody wants to watch a run: `wait` is to stay while people are asked, `ask_here` to be asked oneself."""

    as_json: bool = False
    quiet: bool = False
    wait: bool = False
    ask_here: bool = False

    def view(self) -> View:
        return choose_view(json=self.as_json, quiet=self.quiet)


def choose_view(*, json: bool, quiet: bool) -> View:
    """Chooses the view for the current streams:

    JSON lines on request, the live view on a terminal, else plain lines.
    """
    if json:
        from foliot.cli.show.run import JsonView

        return JsonView()
    from foliot.cli.show.run import PlainView, QuietView

    if quiet:
        return QuietView()
    if not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        return PlainView()
    from foliot.cli.show.run_terminal import TerminalView

    console = live_console(no_color=current().color is False or None)
    return TerminalView(console, answer=is_terminal(sys.stdout))


async def watch_run(runtime: Runtime, view: View, opening: Opening, drive: Drive) -> Watched:
    """Drive the run of `opening` with `drive` and show it. Ctrl-C once cancels the run, twice leaves it as it is."""
    started = time.monotonic()
    watched = Watched(None)
    shown = False
    try:
        with runtime.inside.watch(opening.run_id) as reader, aside(view):
            task = asyncio.create_task(drive())
            task.add_done_callback(lambda _: reader.close())
            with on_ctrl_c(lambda times: _interrupt(runtime, view, opening.run_id, task, watched, times)):
                try:
                    async for item in with_ticks(reader, view):
                        if not shown:  # not earlier: what fails before anything happened is no run
                            view.begin(opening)
                            shown = True
                        view.show(item)
                    watched.result = await task
                except asyncio.CancelledError:
                    if not watched.interrupted:
                        raise
                    watched.result = await _ended_meanwhile(runtime, opening.run_id)
                finally:
                    await stop_tasks(task)
    finally:
        if watched.result is not None and not shown:
            view.begin(opening)
            shown = True
        if shown:
            watched.answer_shown = view.end(watched.result, time.monotonic() - started)
    return watched


async def with_ticks(reader: AsyncIterable[Live], view: View) -> AsyncIterator[Live]:
    """Yields from the reader, and keeps the view moving meanwhile."""
    ticking: asyncio.Task[None] | None = None
    try:
        async for item in reader:
            yield item
            ticking = ticking or asyncio.create_task(_tick(view))
    finally:
        if ticking is not None:
            await stop_tasks(ticking)


async def finish(work: Groups, view: View, watched: Watched) -> int:
    """Print the answer where it belongs, and say what to do next. The exit code of the command.

    Raises `RunFailedError` for a run that failed: it is told as every error is.
    """
    result = watched.result
    if result is None:
        view.note("Left as it is. `foliot resume` goes on with it.")
        return INTERRUPTED
    if result.phase == "succeeded":
        if not watched.answer_shown:
            emit(result.output)
        return 0
    if result.phase == "waiting":
        await _tell_wait(work, result.run_id)
        return WAITS
    if watched.interrupted and result.phase == "cancelled":
        return INTERRUPTED
    result.check()
    return 0


def leave(code: int) -> int:
    """End the process now if a person asked for it: a tool that blocks in a thread would hold it back for minutes.

    Everything is recorded and closed by then; the thread's work is over for this run in any case.
    """
    if code == INTERRUPTED and any(thread.startswith("asyncio_") for thread in _threads()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _threads() -> list[str]:
    import threading

    return [thread.name for thread in threading.enumerate()]


async def _tell_wait(work: Groups, run_id: str) -> None:
    """Prints what the run waits for and the commands to type, on stderr."""
    told = await work.runs.why(run_id)
    out(f"\n{one_line(told.headline)}", err=True)
    for line in told.chain:
        out(f"  {one_line(line)}", err=True)
    width = max((len(hint.command) for hint in told.next), default=0)
    for hint in told.next:
        out(f"  {paint(hint.command.ljust(width), fg='cyan')}  # {one_line(hint.effect)}", err=True)


async def _tick(view: View) -> None:
    while True:
        await asyncio.sleep(FRAME)
        view.tick()


@contextmanager
def on_ctrl_c(heard: Callable[[int], Awaitable[None]]) -> Generator[None]:
    """Call `heard` with 1, 2, … for each Ctrl-C while this lasts."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Future[None]] = []

    def on_signal() -> None:
        tasks.append(asyncio.ensure_future(heard(len(tasks) + 1)))

    try:
        loop.add_signal_handler(signal.SIGINT, on_signal)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread: whoever runs us hears it
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for task in tasks:
            task.cancel()


async def _interrupt(
    runtime: Runtime, view: View, run_id: str, task: asyncio.Task[RunResult], watched: Watched, times: int
) -> None:
    watched.interrupted = True
    if times > 1:
        task.cancel()
        return
    view.note("Cancelling; Ctrl-C again leaves at once, and the run can be resumed.")
    try:
        info = await runtime.inside.cancel(run_id, by=whoami(), reason="Ctrl-C")
    except (NotFound, Conflict):  # not stored yet, or ended this very moment
        if runtime.inside.runs.local(run_id) is None:
            task.cancel()
        return
    if info.phase in TERMINAL and runtime.inside.runs.local(run_id) is None:
        task.cancel()  # it slept until a timer would go off


async def _ended_meanwhile(runtime: Runtime, run_id: str) -> RunResult | None:
    with suppress(NotFound):
        if (await runtime.inside.runs.journal.get(run_id)).phase in TERMINAL:
            return await runtime.inside.resume(run_id, check=False)
    return None
