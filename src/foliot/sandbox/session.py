"""The part of a session that is alike for all backends: streams, terminals, time limits, cancelling, files.

A backend says how one program is started (`Session._started`), and gives a `Running` for it: something that can be
killed, and that has ended when all that the program started is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import IO, Final, Protocol, cast

from foliot.common.threads import on_thread
from foliot.sandbox import files
from foliot.sandbox.base import (
    MIB,
    WORKSPACE,
    EndedBy,
    Finished,
    OnOutput,
    SandboxError,
    SandboxGone,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxStartFailed,
    Stream,
)
from foliot.sandbox.program import Descriptors, Ended, PipeReader, PipeWriter, Tail, open_terminal, resize_terminal

# Longer words and lists of them the kernel does not take (MAX_ARG_STRLEN, and a part of the stack).
LONGEST_WORD: Final = 128 * 1024 - 1
LONGEST_ARGV: Final = 1 * MIB


class Running(Protocol):
    """A program that was started. `ended` is set when it and all that it started are gone."""

    @property
    def ended(self) -> asyncio.Future[Ended]: ...

    def kill(self, by: EndedBy) -> None: ...


class Session(ABC):
    """A policy, and the programs that run by it now. Backends say how a program is started, and how it ended."""

    def __init__(self, policy: SandboxPolicy) -> None:
        self._policy = policy
        self._programs: set[Running] = set()
        self._alive = True
        # Whose the files are that are written; None for us.
        self._file_owner: int | None = None

    @property
    def policy(self) -> SandboxPolicy:
        return self._policy

    @property
    def alive(self) -> bool:
        return self._alive

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Finished:
        """Run a program to its end; see `SandboxSession.exec`."""
        most = self._policy.limits.output
        tails = Tail("stdout", most, on_output), Tail("stderr", most, on_output)
        with contextlib.ExitStack() as own:
            with Descriptors() as given, _starting():
                program = self._start(
                    argv,
                    environment,
                    cwd,
                    _written(stdin, own, given),
                    _heard(tails[0], own, given),
                    _heard(tails[1], own, given),
                )
            if (bound := self._policy.limits.seconds_of(seconds)) is not None:
                own.callback(asyncio.get_running_loop().call_later(bound, program.kill, "timeout").cancel)
            ended = await self._gone(program)
        stdout, stderr = tails
        if (failure := self._failure(program, argv, stderr.kept)) is not None:
            raise failure
        truncated = frozenset[Stream](name for name, tail in (("stdout", stdout), ("stderr", stderr)) if tail.truncated)  # pyright: ignore[reportArgumentType]
        finished = self.finished(program, ended)
        return Finished(
            finished.exit_code,
            finished.signal,
            stdout.kept,
            stderr.kept,
            truncated,
            ended.seconds,
            finished.ended_by,
            stdout.size,
            stderr.size,
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        pty: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> ProgramInFence:
        """Start a program and return at once; see `SandboxSession.start`."""
        kept: int | None = None
        with Descriptors() as own, Descriptors() as given, _starting():
            if pty:
                kept, inside = open_terminal(rows, columns)
                ours, theirs = [own.take(kept)], [given.take(inside)] * 3
                ours.insert(0, own.take(os.dup(kept)))
                environment = {"TERM": "xterm-256color", **(environment or {})}
            else:
                pipes = own.pipe_to(given), own.pipe_from(given), own.pipe_from(given)
                ours, theirs = [mine for mine, _ in pipes], [its for _, its in pipes]
            program = self._start(argv, environment, cwd, *theirs, terminal=pty)
            own.pop_all()
        try:
            with _starting():
                return await ProgramInFence.connect(self, program, ours, terminal=kept)
        except BaseException:
            program.kill("cancelled")
            await undisturbed(asyncio.wait([program.ended]))
            raise

    async def read(self, path: str, limit: int = 16 * MIB) -> bytes:
        """Read a file by its path inside. Raises `SandboxPathRefused`, `SandboxGone`."""
        self._check_alive()
        return await on_thread(files.read, self._policy, path, limit)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file by its path inside. Raises `SandboxPathRefused`, `SandboxGone`."""
        self._check_alive()
        await on_thread(files.write, self._policy, path, data, self._file_owner)

    async def disconnect(self) -> None:  # noqa: B027 - the same for all backends
        """Do nothing: who has a network has it by a broker; see `BrokeredSession`."""

    def unlinked(self, device: int) -> int:
        """How much its programs hold in files without a name, as far as this backend can tell."""
        return 0

    async def kill(self, by: EndedBy = "killed") -> None:
        """End everything in it now; it takes no more programs."""
        self._alive = False
        programs = list(self._programs)
        for program in programs:
            program.kill(by)
        if programs:
            await undisturbed(asyncio.wait([program.ended for program in programs]))

    # --- for backends -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _started(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        terminal: bool,
    ) -> Running:
        """Start a program in this folder with these streams, which stay open. Raises `SandboxError`."""

    def _judged(self, program: Running, ended: Ended) -> Ended:
        """How it ended, looked at again: whether memory was short."""
        return ended

    @abstractmethod
    def _failure(self, program: Running, argv: Sequence[str], stderr: bytes) -> SandboxError | None:
        """Why the program did not run, if it did not. `stderr` is what was said of it."""

    @abstractmethod
    async def close(self) -> None:
        """Kill it and remove what it held."""

    # --- programs -----------------------------------------------------------------------------------------------------

    def _start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None,
        cwd: str | None,
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        terminal: bool = False,
    ) -> Running:
        self._check_alive()
        _check_argv(argv)
        for name, value in (environment or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise SandboxStartFailed(f"{name!r} cannot be the name or value of a variable")
        default = WORKSPACE if self._policy.shows_workspace else "/tmp"
        folder = cwd or self._policy.cwd or default
        folder = folder if folder.startswith("/") else f"{default}/{folder}"
        made = self._started(argv, environment or {}, folder, stdin, stdout, stderr, terminal=terminal)
        self._programs.add(made)
        made.ended.add_done_callback(lambda _: self._programs.discard(made))
        return made

    def _check_alive(self) -> None:
        if not self.alive:
            raise SandboxGone("this sandbox was killed or closed", hint="open another one")

    def finished(self, program: Running, ended: Ended) -> Finished:
        """How a program ended, without its output; 127 for one that did not run."""
        ended = self._judged(program, ended)
        code = 127 if ended.exit_code is None else ended.exit_code
        return Finished(code, code - 128 if 128 < code <= 192 else 0, seconds=ended.seconds, ended_by=ended.ended_by)

    async def _gone(self, program: Running) -> Ended:
        """Wait until it is gone; when cancelled, end it first."""
        try:
            return await asyncio.shield(program.ended)
        except asyncio.CancelledError:
            program.kill("cancelled")
            await undisturbed(asyncio.wait([program.ended]))
            raise


class ProgramInFence:
    """A program with its streams; see `SandboxProcess`."""

    def __init__(self, session: Session, program: Running, streams: _Streams, terminal: int | None) -> None:
        self._session = session
        self._program = program
        self.stdin, self.stdout, self.stderr = streams
        self._terminal = terminal
        program.ended.add_done_callback(lambda _: self.stdin.close())

    @classmethod
    async def connect(
        cls, session: Session, program: Running, ends: Sequence[int], *, terminal: int | None = None
    ) -> ProgramInFence:
        """Make streams of the ends that are ours: of its input, its output and perhaps its errors. They are closed if
        that fails, or is cancelled.
        """
        with contextlib.ExitStack() as held:
            files = [
                held.enter_context(os.fdopen(each, "rb" if number else "wb", 0)) for number, each in enumerate(ends)
            ]
            writer = await _writer(files[0])
            held.callback(writer.transport.abort)
            readers: list[asyncio.StreamReader] = []
            for file in files[1:]:
                reader, transport = await _reader(file)
                held.callback(transport.close)
                readers.append(reader)
            made = cls(session, program, (writer, readers[0], readers[1] if readers[1:] else None), terminal)
            held.pop_all()
        return made

    @property
    def finished(self) -> Finished | None:
        if not self._program.ended.done():
            return None
        return self._session.finished(self._program, self._program.ended.result())

    async def wait(self) -> Finished:
        await asyncio.shield(self._program.ended)
        finished = self.finished
        assert finished is not None
        return finished

    async def kill(self) -> Finished:
        self._program.kill("killed")
        await undisturbed(asyncio.wait([self._program.ended]))
        return await self.wait()

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None and not self._program.ended.done():
            with contextlib.suppress(OSError):
                resize_terminal(self._terminal, rows, columns)


_Streams = tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader | None]


class _EndsQuietly(asyncio.StreamReaderProtocol):
    """The end of a terminal is an error of input, which means no more than the end of a pipe."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None if isinstance(exc, OSError) else exc)


async def _reader(file: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _EndsQuietly(reader), file)
    return reader, transport


async def _writer(file: IO[bytes]) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    protocol = _EndsQuietly(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _written(data: bytes, own: contextlib.ExitStack, given: Descriptors) -> int:
    """The end for the program of a pipe that `data` is written into. Raises `OSError`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    given.take(read)
    own.callback(PipeWriter(write, data).close)
    return read


def _heard(tail: Tail, own: contextlib.ExitStack, given: Descriptors) -> int:
    """The end for the program of a pipe that is read into `tail`. Raises `OSError`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    given.take(write)
    own.callback(PipeReader(read, tail).close)
    return write


@contextlib.contextmanager
def _starting() -> Generator[None]:
    """Around what makes a program: an error of the system is one of the fence. Nothing has run then."""
    try:
        yield
    except OSError as error:
        short = error.errno in (errno.EMFILE, errno.ENFILE)
        raise SandboxError(
            f"no program can be started in the sandbox: {error.strerror or error}",
            hint="raise the limit of open files of the worker (`ulimit -n`), or let it do less at once"
            if short
            else None,
        ) from None


async def undisturbed(work: Awaitable[object]) -> None:
    """Wait to the end for something that takes a moment, and hear of a cancellation only then."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


def _check_argv(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise SandboxStartFailed("there is no program to start", hint="give the program and its arguments")
    if any("\0" in word for word in argv):
        raise SandboxStartFailed("an argument holds a NUL")
    sizes = [len(os.fsencode(word)) for word in argv]
    if max(sizes) > LONGEST_WORD or sum(sizes) > LONGEST_ARGV:
        raise SandboxStartFailed(
            f"the arguments are longer than the system takes ({LONGEST_WORD} bytes each, {LONGEST_ARGV} together)",
            hint="write it into a file of the workspace, or give it as standard input",
        )


def check_host(policy: SandboxPolicy) -> None:
    """Refuse what is not on this host, before a backend fails at it. Raises `SandboxPolicyRefused`."""
    if policy.shows_workspace and not os.path.isdir(cast("str", policy.workspace)):
        raise SandboxPolicyRefused("workspace", f"{policy.workspace} is not a folder", hint="create it first")
    for number, mount in enumerate(policy.mounts):
        if not os.path.exists(mount.source):
            raise SandboxPolicyRefused(f"mounts[{number}].source", f"{mount.source} does not exist")
    if policy.broker_socket and not os.path.exists(policy.broker_socket):
        raise SandboxPolicyRefused("broker_socket", f"{policy.broker_socket} does not exist")
