"""Programs in a sandbox: all of Python, in a process without a network that sees installed packages and nothing else.

A process stays between two questions, waiting for its answers, so that a program is not run again for each call it
makes. What is not there any more (another machine, a crash, a long wait for a person) is run again from its start; a
program that then asks for something else, because it depends on the time or on chance, is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from foliot.common.threads import on_thread, unhurried
from foliot.engine.code.conversation import (
    MOST_AT_ONCE,
    MOST_PRINTED,
    MOST_VALUE,
    Answer,
    Batch,
    Call,
    Course,
    Ended,
    ProgramError,
    Turn,
    allowed,
    answers_to,
    asked_for,
    failure,
)
from foliot.engine.code.fence_worker import LENGTH
from foliot.models.base import ModelOverloaded, ModelRequestError
from foliot.models.routing.limits import ASKER
from foliot.sandbox.base import MIB, Limits, SandboxError, SandboxProcess, SandboxSession
from foliot.tools.backends.fenced_function import FencedCode, shown
from foliot.tools.base import ToolError
from foliot.tools.builtin.code import parameters
from foliot.tools.fences import FenceRequest

LIMITS: Final = Limits(memory=512 * MIB, processes=64, seconds=None)
# Processes that wait for answers, at most, and for how long.
MOST_KEPT: Final = 8
KEPT_SECONDS: Final = 300.0
START_SECONDS: Final = 60.0
# Larger frames are not sent to a program, and not read from it. The arguments of one call may have half of the latter.
LARGEST: Final = 64 * MIB
LARGEST_SAID: Final = 8 * MIB
_PYTHON: Final = os.path.realpath(sys.executable)

T = TypeVar("T")

Open = Callable[[FenceRequest, str], Awaitable[SandboxSession]]
"""Opens a sandbox for a run, by its id. Raises `ToolError`, `SandboxError`."""


class _Asked(Struct):
    number: int
    function: str
    arguments: dict[str, Any]


class _Frame(Struct):
    """A message of a process: which calls it waits for, or how its program ended."""

    ready: bool = False
    calls: list[_Asked] | None = None
    ended: bool = False
    failed: str | None = None
    printed: str = ""
    value: str = ""
    shown: str = ""
    unawaited: list[str] = []


_decode: Final = msgspec.json.Decoder(_Frame).decode


class FencedPython:
    """A `Runner`. Belongs to one event loop."""

    def __init__(self, open: Open) -> None:
        self._open = open
        # The processes that wait, by the first of the calls that they wait for; the one that has waited longest first.
        self._kept: dict[str, _Process] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, course: Course) -> Turn:
        """Run a program, or go on with it; see `Runner`."""
        process = self._kept.pop(course.key, None)
        try:
            if process is not None and process.alive:
                turn = await process.answered(course.batches[-1])
            else:
                if process is not None:
                    await process.end()
                process = await self._started(course)
                turn = await process.begun()
                for batch in course.batches:
                    turn = await process.answered(batch, turn)
            if not isinstance(turn, Ended):
                allowed(course, turn)
        except BaseException:
            if process is not None:
                await process.end()
            raise
        if isinstance(turn, Ended):
            await process.end()
        else:
            self._keep(turn[0].id, process)
        return turn

    async def close(self) -> None:
        for process in list(self._kept.values()):
            self._end_soon(process)
        self._kept.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _started(self, course: Course) -> _Process:
        parts, paths = await on_thread(shown, FencedCode(""))
        # Texts have the same order in a set whenever a program is run.
        wanted = FenceRequest(parts=parts, cwd="/tmp", limits=LIMITS, environment={"PYTHONHASHSEED": "0"})
        try:
            session = await self._open(wanted, ASKER.get()[0])
            try:
                argv = [_PYTHON, "-s", "-P", "-S", "-c", _inside(), "\n".join(paths[:-1])]
                return _Process(course, session, await session.start(argv))
            except BaseException:
                await session.close()
                raise
        except (ToolError, SandboxError) as error:
            raise ModelRequestError(error.message, hint=error.hint) from None

    def _keep(self, key: str, process: _Process) -> None:
        while len(self._kept) >= MOST_KEPT:
            self._end_soon(self._kept.pop(next(iter(self._kept))))
        self._kept[key] = process
        process.timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, key, process)

    def _forget(self, key: str, process: _Process) -> None:
        if self._kept.get(key) is process:
            self._end_soon(self._kept.pop(key))

    def _end_soon(self, process: _Process) -> None:
        task = asyncio.get_running_loop().create_task(process.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


@cache
def _inside() -> str:
    text = resources.files("foliot.engine.code").joinpath("fence_worker.py").read_text(encoding="utf-8")
    return f"{text}\nsys.path += sys.argv[1].split('\\n')\nmain()\n"


class _Process:
    """One program under way. `_waiting` are the calls that it waits for."""

    def __init__(self, course: Course, session: SandboxSession, process: SandboxProcess) -> None:
        self._course = course
        self._session = session
        self._process = process
        self._waiting: Sequence[Call] = ()
        self.timer: asyncio.TimerHandle | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @property
    def alive(self) -> bool:
        return self._process.finished is None and not self._process.stdout.at_eof()

    async def begun(self) -> Turn:
        """Give it its program, and wait for what it says first. Raises `ProgramError`, `ModelOverloaded`."""
        course = self._course
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._read(self._check_ready)
        except TimeoutError:
            raise ModelOverloaded(f"Python did not start in the sandbox within {START_SECONDS:g} seconds") from None
        functions = {name: [key for key, _, _ in parameters(tool.schema)] for name, tool in course.functions.items()}
        return await self._said(
            {
                "source": course.source,
                "functions": functions,
                "most_printed": MOST_PRINTED,
                "most_value": MOST_VALUE,
                "most_asked": LARGEST_SAID // 2,
                "at_once": MOST_AT_ONCE,
            }
        )

    async def answered(self, batch: Batch, turn: Turn | None = None) -> Turn:
        """Give it the answers that it waits for. `turn` is what it said when it was run again, to be compared."""
        if isinstance(turn, Ended):
            raise ProgramError(
                "run again, the program ended where it had asked for calls",
                hint="a program must not depend on the time, on chance, or on what changes outside of it",
            )
        if self.timer is not None:
            self.timer.cancel()
        return await self._said(await on_thread(self._answers, batch))

    def _answers(self, batch: Batch) -> Mapping[str, Any]:
        answers = answers_to(self._waiting, batch)
        return {"answers": {str(number): _told(answer) for number, answer in answers.items()}}

    async def end(self) -> None:
        """End it with everything in it. Doing so twice is harmless."""
        if self.timer is not None:
            self.timer.cancel()
        self._listening.cancel()
        await self._session.close()

    async def _said(self, told: Mapping[str, Any]) -> Turn:
        data = await on_thread(msgspec.json.encode, told)
        if len(data) > LARGEST:
            raise ProgramError(f"what its calls gave at once has {len(data):,} bytes; {LARGEST:,} are the most")
        stdin = self._process.stdin
        stdin.write(LENGTH.pack(len(data)))
        stdin.write(data)
        seconds = self._session.policy.limits.seconds_of(self._course.program.seconds)
        try:
            with contextlib.suppress(ConnectionError):  # it has ended, which reading tells
                async with asyncio.timeout(seconds):
                    await stdin.drain()
                    return await self._read(self._turn)
        except TimeoutError:
            raise ProgramError(f"the program computed for more than {seconds:g} seconds, and was ended") from None
        raise await self._broken()

    async def _read(self, meaning: Callable[[bytes], T]) -> T:
        """Read what it says next. Raises `ProgramError`, whatever it says: its code can write there as well as ours."""
        try:
            (size,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
            if size > LARGEST_SAID:
                raise ProgramError(f"the program answered with {size:,} bytes; {LARGEST_SAID:,} are the most")
            data = await self._process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            raise await self._broken() from None
        try:
            return await unhurried(size, meaning, data)
        except (msgspec.MsgspecError, RecursionError, LookupError, ValueError):
            raise ProgramError("the program spoke out of turn with what runs it") from None

    def _check_ready(self, data: bytes) -> None:
        """Raises `ValueError` for anything but its first word."""
        if not _decode(data).ready:
            raise ValueError("a program cannot have begun")

    def _turn(self, data: bytes) -> Turn:
        """Raises `ProgramError`, and `LookupError` or `ValueError` for what no program says through ours."""
        frame = _decode(data)
        if len(frame.printed) > MOST_PRINTED or len(frame.value) > MOST_VALUE:
            raise ValueError("more than it may say")
        if frame.failed is not None:
            raise failure(frame.failed, frame.printed)
        if frame.ended:
            unawaited = tuple(self._course.functions[name].name for name in frame.unawaited)
            return Ended(frame.printed, frame.value, unawaited, frame.shown)
        if not 0 < len(frame.calls or ()) <= MOST_AT_ONCE:
            raise ValueError("no calls, or more than it may ask for at once")
        try:
            self._waiting = [
                asked_for(self._course, each.number, each.function, (), each.arguments) for each in frame.calls or ()
            ]
        except (NameError, TypeError) as error:
            raise failure(str(error), "") from None
        return self._waiting

    async def _broken(self) -> ProgramError:
        finished = await self._process.kill()
        if finished.ended_by == "memory":
            return ProgramError(f"the program used more than {(LIMITS.memory or 0) // MIB} MiB of memory")
        how = f"by signal {finished.signal}" if finished.signal else f"with the code {finished.exit_code}"
        return ProgramError(f"the program ended its process {how}, without a last word")

    async def _listen(self) -> None:
        """Read what programs of the program print, so that they are not held back. Nobody is shown it."""
        stderr = self._process.stderr
        while stderr is not None and await stderr.read(65536):
            pass


def _told(answer: Answer) -> Mapping[str, Any]:
    return {"error": answer.error} if answer.error else {"value": answer.value}
