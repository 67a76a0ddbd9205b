"""Staying with a run while it goes on: the view that fits, Ctrl-C, people who are asked, the exit code.

The run goes on in the background of this process, or on a server: the same client has it begun, resumed and read, and
nothing here can tell which. One on a server does not need whoever watches: it goes on when the connection breaks, and
when the person leaves. A server that is killed meanwhile is waited for, and the run with it.

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
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from msgspec.structs import replace as replace_fields

from foliot.cli.errors import INTERRUPTED, warn
from foliot.cli.invocation import current, is_terminal
from foliot.cli.show.run import MARKS, JsonView, Opening, PlainView, QuietView, View
from foliot.cli.terminal import emit, live_console, out, paint
from foliot.cli.watch.questions import answered_here, asks_something, note_what_is_asked
from foliot.common.cancellation import stop_tasks
from foliot.common.durations import duration
from foliot.common.process import in_words
from foliot.common.text import counted, one_line
from foliot.engine.budgets.wakeups import is_short
from foliot.engine.live.hub import Live, Recorded
from foliot.errors import Conflict, FoliotError, NotFound, Unavailable
from foliot.kernel.run.events import RunWaiting
from foliot.runtime.answers import RunStanding
from foliot.runtime.local.groups import whoami
from foliot.runtime.results import RunFailedError, RunResult
from foliot.store.journal.base import TERMINAL, LeaseLost, RunHeld, RunInfo

if TYPE_CHECKING:
    from foliot.cli.local import LocalClient
    from foliot.cli.served import ServedClient

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
# How often to look whether a run rests, when nothing tells of it.
LOOK_EVERY: Final = 2.0
Begin: TypeAlias = Callable[[], Awaitable[RunInfo]] | None
Client: TypeAlias = "LocalClient | ServedClient"


class Words(NamedTuple):
    """The words for a run that this process leaves, or that another process resumes.

    They are all that differs between a run of this process, which stops with it, and one of a server, which does not.
    """

    left: str
    where: str


HERE: Final = Words("Left before it had ended: `foliot resume` brings it to its end.", "where it is driven")
THERE: Final = Words("Left before it had ended: it is cancelled where the server is.", "where the server is")
CANCELLING: Final = "Cancelling: nothing new begins. Ctrl-C again leaves without waiting for the end."


def _words(client: Client) -> Words:
    return HERE if client.runs.drives_here else THERE


@dataclass(slots=True)
class Watched:
    """How it went. `result` is None when the person left before the end, or before it had `begun`."""

    result: RunResult | None
    interrupted: bool = False
    answer_shown: bool = False
    begun: bool = True


@dataclass(frozen=True, slots=True)
class WatchOptions:
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
        return JsonView()
    if quiet:
        return QuietView()
    if not is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        return PlainView()
    from foliot.cli.show.run_terminal import TerminalView  # loads rich, which most commands do without

    console = live_console(no_color=current().color is False or None)
    return TerminalView(console, answer=is_terminal(sys.stdout))


async def stay(client: Client, opening: Opening, begin: Begin, look: WatchOptions) -> int:
    """Starts a run by `begin`, and watches it until it has ended or rests; returns the exit code of the command."""
    with ctrl_c() as keys:
        view, watched = await _stay(client, opening, begin, look, keys)
    return await finish(client, view, watched)


async def _stay(
    client: Client, opening: Opening, begin: Begin, look: WatchOptions, keys: CtrlC
) -> tuple[View, Watched]:
    while True:
        view = look.view()
        watch = Watch(client, view, opening, look)
        watched = await watch.to_the_end(begin, keys)
        if not (look.ask_here and asks_something(watched.result)):
            return view, watched
        # Whoever answers elsewhere is as welcome: the run goes on meanwhile, and what its tools print is no answer.
        await client.runs.attend(watch.run_id)
        with aside(None):
            answered = await _answered_unless_cancelled(client, watch.run_id, keys)
        if answered is None:
            return view, await _cancelled_at_question(client, watch, look, keys)
        if not answered:
            return view, watched
        opening, begin = replace(await going_on(client, watch.run_id), seq=watch.seq), None


async def _answered_unless_cancelled(client: Client, run_id: str, keys: CtrlC) -> bool | None:
    """Asks the person at the terminal; None when the person says Ctrl-C."""
    asking = asyncio.create_task(answered_here(client, run_id))

    async def stop(times: int) -> None:
        asking.cancel()

    with keys.heard_by(stop):
        try:
            await asyncio.wait({asking})
        finally:
            await stop_tasks(asking)
    return None if asking.cancelled() else asking.result()


async def _cancelled_at_question(client: Client, watch: Watch, look: WatchOptions, keys: CtrlC) -> Watched:
    """Cancels a run whose question was answered with Ctrl-C, and stays until it has ended."""
    out(err=True)  # behind the prompt
    with suppress(Conflict):  # it has ended this very moment
        await client.runs.cancel(watch.run_id, by=whoami(), reason="Ctrl-C")
    opening = Opening(watch.run_id, "", seq=watch.seq)
    watched = await Watch(client, QuietView(), opening, look).to_the_end(None, keys)
    watched.interrupted = True
    if not look.quiet and watched.result is not None and watched.result.phase == "cancelled":
        out(f"{paint(MARKS['bad'], fg='red')}cancelled  {watch.run_id}", err=True)
    return watched


async def resumed(client: Client, run_id: str, look: WatchOptions) -> int:
    """Resumes a run and watches it; returns the exit code of the command.

    After a turn of a session, what waited there is answered before this process leaves.
    """
    code = await stay(client, await going_on(client, run_id), lambda: client.runs.resume(run_id), look)
    await client.runs.follow_turns(lambda: out("What waited in the session is answered now …", err=True))
    return code


async def resumed_after_decision(
    client: Client, run_id: str, *, attended_by: str | None = None, left: bool = False, quiet: bool
) -> int:
    """Resumes a run after a decision about it; returns the exit code, 0 when another process resumes it.

    `left`: not here while somebody stays with the run, such as `attended_by`. Of a child that nobody drives, the run
    that started it goes on, and the child with it.
    """
    try:
        if left and await client.runs.is_taken_up(run_id, attended_by=attended_by):
            return await _tell_who_goes_on(client, run_id)
        run_id = await client.runs.outermost(run_id)
        return await resumed(client, run_id, WatchOptions(quiet=quiet))
    except (RunHeld, LeaseLost):
        return await _tell_who_goes_on(client, run_id)
    except RunFailedError:
        raise  # it went on, and that is how it ended
    except FoliotError as error:
        # Decided is decided. Only the rest of the run needs what is not here: its tools, for example.
        warn(f"The run cannot go on from here: {error.message}\n`foliot resume {run_id}` where its tools are goes on.")
        return WAITS


async def _tell_who_goes_on(client: Client, run_id: str) -> int:
    words = _words(client)
    worker = (await client.runs.find(run_id)).worker if words is HERE else None
    has = f": {in_words(worker)} has it" if worker is not None else ""  # it may have been released again meanwhile
    out(f"Run {run_id} goes on {words.where}{has}.", err=True)
    return 0


async def rested(client: Client, run_id: str) -> RunResult:
    """Resumes a run and waits, without a view, until it has ended or rests."""
    opening = Opening(run_id, "", seq=(await client.runs.get(run_id)).seq)
    return await Watch(client, QuietView(), opening, WatchOptions(quiet=True)).followed(
        lambda: client.runs.resume(run_id)
    )


async def going_on(client: Client, run_id: str) -> Opening:
    """Describes an existing run that is about to be resumed."""
    stood = await client.runs.get(run_id)
    info = stood.info
    agent = info.agent if info.namespace == "default" else f"{info.namespace}/{info.agent}"
    if info.phase in TERMINAL:
        ended = f"had ended already ({info.phase}); nothing is done again"
        return Opening(run_id, agent, done=ended, calls=stood.calls, seq=stood.seq)
    kept = f"{counted(stood.result.steps, 'step')}, {counted(stood.results, 'tool result')}"
    since = duration(max(0.0, time.time() - stood.at))
    return Opening(
        run_id,
        agent,
        done=f"goes on where it was {since} ago; kept and not repeated: {kept}",
        calls=stood.calls,
        asked=stood.asked,
        seq=stood.seq,
        free=info.phase in ("pending", "waiting"),
    )


class Watch:
    """One look at a run, from behind the event `seq` until it has ended or rests."""

    def __init__(self, client: Client, view: View, opening: Opening, look: WatchOptions) -> None:
        self.run_id = opening.run_id
        self.seq = opening.seq
        self._client = client
        self._view = view
        self._opening = opening
        self._look = look
        self._waits = asyncio.Event()
        self._told: set[str] = set()
        self._shown = False
        self._children_ask = False
        self._begins = False  # it is being begun, and may not be stored yet
        self._cancels = False
        self._unheard = False  # Ctrl-C came before there was a run to cancel

    async def to_the_end(self, begin: Begin, keys: CtrlC | None = None) -> Watched:
        """Shows the run until it has ended, rests, or the person leaves.

        Ctrl-C cancels it; a second one does not wait for its end.
        """
        started, watched = time.monotonic(), Watched(None)
        try:
            with aside(self._view):
                task = asyncio.create_task(self.followed(begin))
                try:
                    with on_ctrl_c(lambda times: self._interrupt(task, watched, times), keys):
                        watched.result = result = await asyncio.shield(task)
                        if watched.interrupted and result.phase not in TERMINAL:
                            await self._cancel()  # it came to rest in the same moment
                            task = asyncio.create_task(self.followed(None))
                            watched.result = await asyncio.shield(task)
                except asyncio.CancelledError:
                    if not (watched.interrupted and task.cancelled()):
                        raise
                    if self._begins:
                        watched.result = await self._taken_back()
                        watched.begun = watched.result is not None
                finally:
                    await stop_tasks(task)
        finally:
            if watched.result is not None:
                self._begin()
            if self._shown:
                watched.answer_shown = self._view.end(watched.result, time.monotonic() - started)
        return watched

    async def followed(self, begin: Begin) -> RunResult:
        """Shows the run until it has ended or rests; returns how it stands then."""
        if begin is not None:
            self._begins = True
            self.run_id = (await begin()).id
            self._begins = False
            self._opening = replace(self._opening, run_id=self.run_id)
            if self._unheard:
                await self._cancel()
        following = asyncio.create_task(self._follow())
        resting = asyncio.create_task(self._rest())
        try:
            await asyncio.wait({following, resting}, return_when=asyncio.FIRST_COMPLETED)
            await (following if following.done() else resting)
            if self._children_ask:  # it is driven still: what it does is to wait for them
                return replace_fields((await self._client.runs.get(self.run_id)).result, phase="waiting")
            return await self._client.runs.outcome(self.run_id)
        finally:
            await stop_tasks(following, resting)

    async def _follow(self) -> None:
        async with aclosing(self._client.runs.watch(self.run_id, after=self.seq)) as live:
            async for item in with_ticks(live, self._view):
                self._begin()
                self._view.show(item)
                if isinstance(item, Recorded):
                    self.seq = item.seq
                    if isinstance(item.event, RunWaiting):
                        self._waits.set()

    async def _rest(self) -> None:
        """Returns when the run waits for something that this command does not wait for, or its children do."""
        seen = -1
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._waits.wait()
            self._waits.clear()
            with suppress(Unavailable):  # `_follow` says when the server stays away
                # One that goes on is looked at where nothing has happened since the last look.
                quiet, seen = self.seq == seen, self.seq
                if (await self._client.runs.find(self.run_id)).phase != "waiting" and not quiet:
                    continue
                stood = await self._client.runs.get(self.run_id)
                if self._cancels:  # it does not rest any more: it ends
                    if stood.info.phase == "waiting":
                        await self._cancel()  # it was let go in the moment in which its driver was told
                    continue
                if stood.asking and stood.seq <= self.seq and await self._ask_for(stood.asking):
                    self._children_ask = True
                    return
                if stood.info.phase == "waiting" and stood.seq <= self.seq and await self._is_over(stood):
                    return

    async def _is_over(self, stood: RunStanding) -> bool:
        waiting = stood.result.waiting
        if waiting is None or is_short(waiting, time.time()):
            return False
        if not self._look.wait or waiting.reason not in ("approval", "input", "budget"):
            return True
        if waiting.reason == "input" and self._look.ask_here:
            return True  # the person at the terminal is asked, when the view is out of the way
        self._begin()
        if waiting.reason == "budget" and waiting.message not in self._told:
            self._told.add(waiting.message)
            self._view.note(waiting.message)
        await note_what_is_asked(self._client, self._view, self.run_id, self._told)
        await self._client.runs.attend(self.run_id)
        return False

    async def _ask_for(self, children: Sequence[str]) -> bool:
        """Says what the children of the run ask; returns whether this command leaves then."""
        if self._look.wait:
            self._begin()
            for child in children:
                await note_what_is_asked(self._client, self._view, child, self._told)
        return not self._look.wait

    def _begin(self) -> None:
        """Begins the view, not before the first event: what fails before that is no run."""
        if not self._shown:
            self._shown = True
            self._view.begin(self._opening)

    async def _interrupt(self, task: asyncio.Task[RunResult], watched: Watched, times: int) -> None:
        watched.interrupted = self._cancels = True
        if times > 1:
            task.cancel()
            return
        self._view.note(CANCELLING)
        try:
            await self._cancel()
        except NotFound:  # not stored yet
            self._unheard = True
            if self._client.runs.drives_here:  # a server may have it already: it is cancelled when it has answered
                task.cancel()

    async def _cancel(self) -> None:
        with suppress(Conflict, Unavailable):  # it has ended this very moment, or cannot be told now
            await self._client.runs.cancel(self.run_id, by=whoami(), reason="Ctrl-C")

    async def _taken_back(self) -> RunResult | None:
        """Ends what was stored of a run while it was begun, so that nobody resumes it; None when there is none."""
        try:
            await self._cancel()
            return await self._client.runs.outcome(self.run_id)
        except NotFound:
            return None


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


async def finish(client: Client, view: View, watched: Watched) -> int:
    """Print the answer where it belongs, and say what to do next. The exit code of the command.

    Raises `RunFailedError` for a run that failed: it is told as every error is.
    """
    result = watched.result
    if result is None:
        view.note(_words(client).left if watched.begun else "Cancelled before it had begun.")
        return INTERRUPTED
    if result.phase == "succeeded":
        if not watched.answer_shown:
            emit(result.output)
        return 0
    if result.phase == "waiting":
        await _tell_wait(client, result.run_id)
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
    return [thread.name for thread in threading.enumerate()]


async def _tell_wait(client: Client, run_id: str) -> None:
    """Prints what the run waits for and the commands to type, on stderr."""
    told = await client.runs.why(run_id)
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


class CtrlC:
    """Ctrl-C while a command stays: whoever listens hears each. One that comes between two listeners the next hears."""

    def __init__(self) -> None:
        self._heard: Callable[[int], Awaitable[None]] | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._missed = 0

    def press(self) -> None:
        if self._heard is None:
            self._missed += 1
        else:
            self._tasks.append(asyncio.ensure_future(self._heard(len(self._tasks) + 1)))

    @contextmanager
    def heard_by(self, heard: Callable[[int], Awaitable[None]]) -> Generator[None]:
        """Call `heard` with 1, 2, … for each Ctrl-C while this lasts."""
        self._heard, missed, self._missed = heard, self._missed, 0
        for _ in range(missed):
            self.press()
        try:
            yield
        finally:
            self._heard, tasks, self._tasks = None, self._tasks, []
            for task in tasks:
                task.cancel()


@contextmanager
def ctrl_c() -> Generator[CtrlC]:
    """Take Ctrl-C over from Python, which would end the process wherever it is."""
    loop, keys = asyncio.get_running_loop(), CtrlC()
    try:
        loop.add_signal_handler(signal.SIGINT, keys.press)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread: whoever runs us hears it
        yield keys
        return
    try:
        yield keys
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def on_ctrl_c(heard: Callable[[int], Awaitable[None]], keys: CtrlC | None = None) -> Generator[None]:
    """Call `heard` with 1, 2, … for each Ctrl-C while this lasts; `keys` are those that were taken over before."""
    if keys is not None:
        with keys.heard_by(heard):
            yield
        return
    with ctrl_c() as keys, keys.heard_by(heard):
        yield
