"""Messages over the pipes of a server that is a program: one JSON text per line, bounded in both directions.

The SDK has such a transport too. This one bounds how much a server may send in one message, keeps the last words of its
stderr for error messages, and starts the server in a fence; without one, under the warden. It cannot outlive this
process either way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from foliot.common.call_processes import outlives_call
from foliot.common.threads import unhurried
from foliot.kernel.json_texts import has_more_values
from foliot.sandbox.base import MIB, WORKSPACE_FULL, SandboxError, SandboxProcess, SandboxSession
from foliot.tools.base import ToolUnreachable
from foliot.tools.fences import Fences
from foliot.tools.isolation import sandbox_failure
from foliot.tools.mcp.process import Launch
from foliot.tools.mcp.results import TOO_LARGE
from foliot.tools.workspaces import FenceOwner

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

log = logging.getLogger(__name__)

WARDEN: Final = str(Path(__file__).with_name("warden.py"))
CHUNK: Final = 64 * 1024
STDERR_KEPT: Final = 4096
TOLD_OF_STDERR: Final = 500
# How long a server may take to leave by itself once its stdin is closed; the warden then gives it another second.
LEAVE_SECONDS: Final = 2.0
END_SECONDS: Final = 5.0
# Output ends a moment before the exit code is known, and the code is worth the moment.
EXIT_CODE_SECONDS: Final = 0.5
LONGEST_LIST: Final = 500


HEAD_KEPT: Final = 1024
TAIL_KEPT: Final = 1024
# Where the id of a response stands: in front (Python), or at the end (TypeScript).
_ID: Final = rb'"id"\s*:\s*(?P<id>\d{1,18}|"[^"\\]{1,200}")\s*'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_IN_FRONT: Final = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb',\s*"(?:result|error)"')
_AT_THE_END: Final = re.compile(
    rb"[}\]]\s*,\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z"
)


@dataclass(slots=True)
class Oversized:
    """The part of a message above the limit that was kept: enough to tell whose answer it is."""

    head: bytes
    tail: bytes = b""

    def add(self, more: bytes) -> None:
        self.tail = (self.tail + more[-TAIL_KEPT:])[-TAIL_KEPT:]

    @property
    def answers(self) -> int | str | None:
        """The id of the request that it answers; None when it answers none, or that cannot be seen."""
        found = _IN_FRONT.match(self.head) or _AT_THE_END.search(self.tail)
        return None if found is None else json.loads(found["id"])


class ServerProcess(ABC):
    """A server that was started, with its streams."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._said = b""

    @property
    def pid(self) -> int | None:
        """The number of the process, if it has one here: in a fence it has another."""
        return None

    @property
    @abstractmethod
    def exit_code(self) -> int | None: ...

    @abstractmethod
    async def end(self) -> None:
        """Close its input, wait a little, and end what is left. Bounded; nothing of it survives."""

    async def listen_to_stderr(self) -> None:
        """Read it all, or a server that complains a lot would block; keep the end."""
        while chunk := await self.stderr.read(CHUNK):
            self._said = (self._said + chunk)[-STDERR_KEPT:]

    def last_words(self) -> str:
        text = self._launch.mask(self._said.decode(errors="replace")).strip()
        return text[-TOLD_OF_STDERR:]

    def describe_end(self) -> str:
        code = self.exit_code
        how = "closed its output" if code is None else f"ended with exit code {code}"
        words = self.last_words()
        return f"the server process {how}" + (f"; its last words: {words}" if words else "")

    async def ended_within(self, seconds: float) -> bool:
        """Polls, because waiting for a process of asyncio also waits for whoever else holds its pipes."""
        until = asyncio.get_running_loop().time() + seconds
        while self.exit_code is None:
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(0.01)
        return True


class FencedProcess(ServerProcess):
    """A server in its fence. The fence ends with it, and everything in it."""

    def __init__(self, session: SandboxSession, process: SandboxProcess, launch: Launch) -> None:
        super().__init__(launch)
        self.session = session
        self._process = process
        assert process.stderr is not None, "it was started without a terminal"
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @property
    def exit_code(self) -> int | None:
        finished = self._process.finished
        return None if finished is None else finished.exit_code

    def describe_end(self) -> str:
        finished, told = self._process.finished, super().describe_end()
        if finished is not None and finished.ended_by == "memory":
            most = (self.session.policy.limits.memory or 0) // MIB
            told = f"{told}; it used more than {most} MiB of memory (spec.sandbox.limits.memory)"
        if finished is not None and finished.ended_by == "workspace":
            told = f"{told}; {WORKSPACE_FULL}"
        if finished is not None and self._launch.unseen:
            told = (
                f"{told}; not seen in its sandbox: {', '.join(self._launch.unseen)[:LONGEST_LIST]} "
                "(add what it needs to spec.sandbox.mounts)"
            )
        return told

    async def end(self) -> None:
        self.stdin.close()
        if not await self.ended_within(LEAVE_SECONDS):
            await self._process.kill()
        await self.session.close()


class UnfencedProcess(ServerProcess):
    """A server with all rights of this process, and the end of its lifeline."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, launch: Launch) -> None:
        super().__init__(launch)
        self.process = process
        self._lifeline: int | None = lifeline
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.returncode

    async def end(self) -> None:
        """Close its input, wait a little, and have the warden end what is left. Bounded; nothing survives it."""
        self.stdin.close()
        try:
            if not await self.ended_within(LEAVE_SECONDS):
                self._cut_lifeline()
                if not await self.ended_within(END_SECONDS):
                    with suppress(ProcessLookupError):
                        self.process.kill()
                    await self.ended_within(END_SECONDS)
        finally:
            self._cut_lifeline()  # also when it is cancelled meanwhile: the warden goes on alone
        # Streams of asyncio have no public way to say that nobody reads them any more.
        transport = getattr(self.process, "_transport", None)
        if transport is not None:
            transport.close()

    def _cut_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


Start: TypeAlias = Callable[[], Awaitable[ServerProcess]]


async def start_fenced(launch: Launch, fences: Fences, owner: FenceOwner) -> FencedProcess:
    """Start the server in its fence. Raises `ToolError`."""
    assert launch.fence is not None
    session = await fences.open_narrowed(launch.fence, owner)
    try:
        with outlives_call():  # it may be a call that needs the server first; the connection is kept
            return FencedProcess(session, await session.start(launch.command), launch)
    except SandboxError as error:
        await session.close()
        raise sandbox_failure(error) from None
    except BaseException:
        await session.close()
        raise


async def start_unfenced(launch: Launch) -> UnfencedProcess:
    """Start the server under its warden. Raises `ToolUnreachable`."""
    reading, writing = os.pipe()
    try:
        with outlives_call():  # it may be a call that needs the server first; the connection is kept
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", WARDEN, str(reading), *launch.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(launch.environment),
                pass_fds=(reading,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(writing)
        raise ToolUnreachable(f"{launch.command[0]} cannot be started: {error.strerror}") from error
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return UnfencedProcess(process, writing, launch)


@asynccontextmanager
async def stdio_transport(
    start: Start, *, max_message: int, on_start: Callable[[ServerProcess], None], on_end: Callable[[str], None]
) -> AsyncGenerator[TransportStreams]:
    """A transport for the SDK's client. `on_end` is told why, once, when the server is not to be talked to any more."""
    from mcp.shared.message import SessionMessage

    child = await start()
    on_start(child)
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        why = "the connection was closed"
        try:
            await _read_messages(child, incoming, max_message)
            await child.ended_within(EXIT_CODE_SECONDS)
            why = child.describe_end()
        finally:
            on_end(why)
            incoming.close()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(child.listen_to_stderr)
        group.start_soon(_write_messages, child, outgoing)
        try:
            yield read_stream, write_stream
        finally:
            with anyio.CancelScope(shield=True):
                write_stream.close()
                read_stream.close()
                await child.end()
            group.cancel_scope.cancel()


async def _read_messages(
    child: ServerProcess, incoming: MemoryObjectSendStream[SessionMessage | Exception], max_message: int
) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

    async for line in _lines(child, max_message):
        if isinstance(line, Oversized):
            if (answered := line.answers) is None:
                log.warning("an MCP server sent a message of more than %d bytes, or too many values", max_message)
                continue
            # It fails the call that it answers, and no other.
            error = ErrorData(
                code=TOO_LARGE, message=f"it answered with more than {max_message} bytes, or too many values"
            )
            message: Any = JSONRPCError(jsonrpc="2.0", id=answered, error=error)
        else:
            try:
                message = await unhurried(len(line), jsonrpc_message_adapter.validate_json, line, by_name=False)
            except ValueError:
                continue  # a banner or a stray print: servers do that, and it is no message
        try:
            await incoming.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


async def _lines(child: ServerProcess, max_message: int) -> AsyncIterator[bytes | Oversized]:
    """Lines of stdout. Of one above the limit only its ends are kept, and its end is waited for."""
    pieces: list[bytes] = []
    size = 0
    over: Oversized | None = None
    while chunk := await child.stdout.read(CHUNK):
        *whole, rest = chunk.split(b"\n")
        for index, part in enumerate([*whole, rest]):
            if over is not None:
                over.add(part)
            elif size + len(part) > max_message:
                over = Oversized(b"".join((*pieces, part))[:HEAD_KEPT])
                over.add(part)
                pieces, size = [], 0
            else:
                pieces.append(part)
                size += len(part)
            if index < len(whole):  # its end
                yield await _bounded(b"".join(pieces)) if over is None else over
                pieces, size, over = [], 0, None


async def _bounded(line: bytes) -> bytes | Oversized:
    """A message; one of so many values that it would be read for seconds is too large as well."""
    if not await unhurried(len(line), has_more_values, line):
        return line
    return Oversized(line[:HEAD_KEPT], line[-TAIL_KEPT:])


async def _write_messages(child: ServerProcess, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    # Closed in any case: whoever wants to send then learns that nobody takes it, instead of waiting.
    with outgoing, suppress(OSError, anyio.ClosedResourceError):
        async for item in outgoing:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            child.stdin.write(text.encode() + b"\n")
            await child.stdin.drain()
