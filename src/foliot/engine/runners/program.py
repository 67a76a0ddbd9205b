"""A program in its fence, while it runs: what it is told, its output, and what of that one turn is made of.

Everything that is kept is bounded, whatever a program prints: the end of its answer, of its log and of its complaints.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from foliot.engine.runners.lines import (
    CallAsked,
    Said,
    SaidCalls,
    SaidEnd,
    SaidError,
    SaidLog,
    SaidQuestion,
    SaidSession,
    SaidText,
    SaidUsage,
    clean,
    stripped,
)
from foliot.kernel.messages import ReasoningDelta, TextDelta
from foliot.kernel.run.budget import Spent
from foliot.models.base import OnDelta
from foliot.sandbox.base import KIB, MIB, Finished, SandboxProcess, SandboxSession
from foliot.tools.fences import Narrowed
from foliot.tools.workspaces import FenceOwner, folder_identity, no_resident

# What is kept of an answer, of the log of a turn, and of standard error in a failure: the end of each.
LONGEST_ANSWER: Final = 1 * MIB
LONGEST_LOG: Final = 16 * KIB
LONGEST_REASON: Final = 4 * KIB
# A line that is longer is dropped as it comes: nothing that means something is.
LONGEST_LINE: Final = 4 * MIB
_CHUNK: Final = 64 * KIB


class TextEnd:
    """The end of a text that is longer than is kept of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: list[str] = []
        self._size = 0
        self.cut = False

    def add(self, text: str) -> None:
        self._pieces.append(text[-self._most :])
        self._size += len(self._pieces[-1])
        self.cut = self.cut or len(text) > self._most
        if self._size > 2 * self._most:
            self._pieces, self.cut = ["".join(self._pieces)[-self._most :]], True
            self._size = len(self._pieces[0])

    @property
    def text(self) -> str:
        whole = "".join(self._pieces)
        self.cut = self.cut or len(whole) > self._most
        return whole[-self._most :]


class Turn:
    """The output of a program in one turn, by what it means."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self._on_delta = on_delta
        self.answer = TextEnd(LONGEST_ANSWER)
        self.log = TextEnd(LONGEST_LOG)
        self.session = ""
        self.used = Spent()
        self.calls: tuple[CallAsked, ...] = ()
        self.question: SaidQuestion | None = None
        self.whole: str | None = None
        self.error: SaidError | None = None
        self.notes: dict[str, None] = {}
        self.is_over = False

    @property
    def is_silent(self) -> bool:
        """Whether nothing came that a conversation could be made of."""
        return not (self.is_over or self.answer.text.strip())

    def say(self, text: str) -> None:
        self.answer.add(text)
        if self._on_delta is not None and text:
            self._on_delta(TextDelta(text))

    def note_line(self, text: str) -> None:
        """A line of the log: shown, and kept without what only a terminal understands. Empty ones are dropped."""
        if self._on_delta is not None and text:
            self._on_delta(ReasoningDelta(text))
        if plain := "\n".join(line for line in stripped(clean(text)).split("\n") if line.strip()):
            self.log.add(f"{plain}\n")

    def take(self, said: Said) -> None:
        match said:
            case SaidText():
                self.say(said.text)
            case SaidLog():
                self.note_line(f"{said.text}\n")
            case SaidSession():
                self.session = said.id
            case SaidUsage():
                self.used.add(said.usage)
                self.used.steps += 1
            case SaidCalls():
                self.calls, self.is_over = said.calls, True
            case SaidQuestion():
                self.question, self.is_over = said, True
            case SaidEnd():
                self.whole, self.is_over = said.text, True
            case SaidError():
                self.error, self.is_over = said, True


# --- the program -----------------------------------------------------------------------------------------------------


class RunningProgram:
    """A program in its fence. `turn` names the turn after which it waits for us; blank while one is under way.

    `fence` is what the session was opened for, `folder` the workspace that it shows.
    """

    def __init__(
        self, session: SandboxSession, process: SandboxProcess, owner: FenceOwner, session_name: str, fence: Narrowed
    ) -> None:
        self.session = session
        self.process = process
        self.owner = owner
        self.name = session_name
        self.fence = fence
        shown = session.policy.workspace
        self.folder = None if shown is None else folder_identity(shown)
        self.turn = ""
        self.hear: Callable[[str], None] = nobody
        self.errors = TextEnd(LONGEST_REASON)
        self._lines = deque[bytes]()
        self._rest = b""
        self._skipping = False
        self.dropped = False
        self.gone = no_resident
        self.reports = False  # whether it has ever said what it used
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._watching = None if process.stderr is None else asyncio.create_task(self._watch(process.stderr))
        self._writing: asyncio.Task[None] | None = None

    def write(self, data: bytes, *, last: bool) -> None:
        """Give it something to read, while it is read itself: a program may print before it has read all."""
        self._writing = asyncio.create_task(self._write(data, last, self._writing))

    async def _write(self, data: bytes, last: bool, before: asyncio.Task[None] | None) -> None:
        stdin = self.process.stdin
        with contextlib.suppress(OSError, RuntimeError):  # it has closed its input, or is gone
            if before is not None:
                await before
            if data:
                stdin.write(data)
                await stdin.drain()
            if last:
                stdin.close()

    async def text(self) -> str | None:
        """The next piece of its output; None at its end."""
        chunk = await self.process.stdout.read(_CHUNK)
        piece = self._decoder.decode(chunk, final=not chunk)
        return piece if chunk or piece else None

    async def line(self) -> bytes | None:
        """The next line of its output, without its end; None when there are no more. Those too long are dropped."""
        while not self._lines:
            chunk = await self.process.stdout.read(_CHUNK)
            *lines, rest = (self._rest + chunk).split(b"\n")
            if lines and self._skipping:
                lines, self._skipping = lines[1:], False
            if len(rest) > LONGEST_LINE:
                self._skipping = self.dropped = True
            self._rest = b"" if self._skipping else rest
            self._lines.extend(lines)
            if not chunk:
                if self._rest:  # the last one has no end of its own
                    self._lines.append(self._rest)
                    self._rest = b""
                elif not self._lines:
                    return None
        return self._lines.popleft()

    async def _watch(self, stderr: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while chunk := await stderr.read(_CHUNK):
            text = decoder.decode(chunk)
            self.errors.add(text)
            self.hear(text)

    async def ended(self, grace: float) -> Finished | None:
        """How it ended by itself; None when it does not, and has to be ended."""
        try:
            async with asyncio.timeout(grace):
                done = await self.process.wait()
                if self._watching is not None:
                    await asyncio.wait((self._watching,))
                return done
        except TimeoutError:
            return None

    async def close(self) -> None:
        """End it with all that it started, and its fence."""
        try:
            await self.session.close()
            self.gone()
        finally:
            for task in (self._watching, self._writing):
                if task is not None:
                    task.cancel()


def nobody(text: str) -> None:
    """Hears of a log that nobody reads."""
