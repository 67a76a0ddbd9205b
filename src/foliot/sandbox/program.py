"""One program in the fence: started, held back until its limits hold, and ended together with all that it started.

Two processes stand between this one and the program: bubblewrap outside, and the first process of the new PID
namespace. The second is held by a pidfd. When it is killed the kernel kills everything in its namespace, and the pidfd
says that it is gone only when all others are: so nothing of the program is left once `ended` is set. bubblewrap kills
it too when it ends itself, for whatever reason, and is killed when this process dies. That is why it must be started on
the thread of the event loop: the kernel takes the end of the thread that started it for the end of its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import DecodeError, Struct, json

from foliot.common.call_processes import outlives_call
from foliot.common.threads import on_thread
from foliot.sandbox.base import EndedBy, OnOutput, Stream

_CHUNK: Final = 65536
# Makes standard input the terminal of the session that it leads, and becomes another program (bubblewrap, podman).
# Nothing can do this between `fork` and `exec` without running Python there, beside the threads of this process.
# Python sets a variable of its own where there is no locale.
ON_TERMINAL: Final = (
    "import fcntl, os, sys, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.environ.pop('LC_CTYPE', None)\nos.execv(sys.argv[1], [os.path.basename(sys.argv[1]), *sys.argv[2:]])"
)


class Descriptors(contextlib.ExitStack):
    """Descriptors that are closed when it is left, whatever happened: all but those that `pop_all` has taken out."""

    def take(self, descriptor: int) -> int:
        self.callback(os.close, descriptor)
        return descriptor

    def pipe_to(self, given: Descriptors) -> tuple[int, int]:
        """A pipe to a program: our end, and the one that is given to it. Raises `OSError`."""
        read, write = os.pipe2(os.O_CLOEXEC)
        return self.take(write), given.take(read)

    def pipe_from(self, given: Descriptors, flags: int = 0) -> tuple[int, int]:
        """A pipe from a program: our end, and the one that is given to it. Raises `OSError`."""
        read, write = os.pipe2(os.O_CLOEXEC | flags)
        return self.take(read), given.take(write)


class _Status(Struct, rename="kebab"):
    """A line that bubblewrap writes: the first process inside, or how the program ended."""

    child_pid: int | None = None
    exit_code: int | None = None


class Ended(Struct, frozen=True):
    """How it ended. `exit_code` is None when the program was never started: the fence itself failed."""

    exit_code: int | None
    ended_by: EndedBy
    seconds: float


class Program:
    """Start it on the thread of the event loop. `hold` is given the first process inside before anything runs there."""

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str],
        argv: Sequence[str],
        descriptors: Sequence[int],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        hold: Callable[[int], None],
        terminal: bool = False,
        report: int | None = None,
    ) -> None:
        """Run `command` (bubblewrap) with `arguments`, which may refer to `descriptors`, for the program `argv`.

        `report` is where a launcher says by the number of an error why it could not start the program; it is closed
        when that has ended. Raises `OSError`: then nothing runs, and `report` is still open.
        """
        self._loop = asyncio.get_running_loop()
        self._hold = hold
        self._began = time.monotonic()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        self._killed_by: EndedBy = ""
        self._exit_code: int | None = None
        self._inner: int | None = None
        self._inner_pid = 0
        self._inner_gone = False
        self._holding: asyncio.Future[None] | None = None
        self._report = report
        # The number of the error for which the launcher could not start the program; 0 when it did.
        self.refused = 0
        # Why its limits could not be set, if so: then it has not run.
        self.not_held: BaseException | None = None
        # How often memory had been short in its session before.
        self.killed_before = 0
        self._text = b""
        self._outer: int | None = None
        with Descriptors() as own, Descriptors() as given:
            self._status, status_write = own.pipe_from(given, os.O_NONBLOCK)
            self._block, block_read = own.pipe_to(given)
            # Arguments go through a file: other users see the command lines of processes, and the kernel bounds them.
            words = given.take(os.memfd_create("arguments", os.MFD_CLOEXEC))
            more = ["--json-status-fd", str(status_write), "--block-fd", str(block_read)]
            os.write(words, b"".join(os.fsencode(word) + b"\0" for word in [*arguments, *more]))
            os.lseek(words, 0, os.SEEK_SET)
            # The first process inside is bubblewrap: where it is installed is nobody's business there.
            path, *more = command
            line = [os.path.basename(path), *more, "--args", str(words), "--", *argv]
            if terminal:
                line = [sys.executable, "-I", "-S", "-c", ON_TERMINAL, path, *line[1:]]
            with outlives_call():  # who has the session ends it, also for a call that is made here
                self._outside = subprocess.Popen(
                    line,
                    executable=None if terminal else path,
                    # Nothing of the environment is left: LD_PRELOAD of a policy would be loaded before the fence is.
                    env={},
                    cwd="/",
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=[status_write, block_read, words, *descriptors],
                    start_new_session=True,
                )
            given.close()
            try:
                self._outer = own.take(os.pidfd_open(self._outside.pid))
                self._loop.add_reader(self._status, self._read_status)
                self._loop.add_reader(self._outer, self._outer_ended)
            except BaseException:
                self._abandon()
                raise
            own.pop_all()

    def _abandon(self) -> None:
        """End what cannot be watched. The first process inside waits to be let run: it is killed before that."""
        self._loop.remove_reader(self._status)
        os.set_blocking(self._status, True)
        text = b""
        while b"\n" not in text and (piece := os.read(self._status, _CHUNK)):
            text += piece
        with contextlib.suppress(DecodeError, ProcessLookupError):
            inside = json.decode(text.partition(b"\n")[0], type=_Status).child_pid
            if inside is not None:
                os.kill(inside, signal.SIGKILL)
        self._outside.kill()
        self._outside.wait()

    @property
    def pid(self) -> int:
        return self._outside.pid

    @property
    def inside(self) -> int:
        """The number of the first process inside; 0 while there is none that is watched."""
        return 0 if self._inner_gone else self._inner_pid

    def kill(self, by: EndedBy) -> None:
        """End it with all that it started. `ended` is set when they are gone."""
        if self.ended.done() or self._killed_by:
            return
        self._killed_by = by
        # Until bubblewrap has said who is inside, killing it could leave that process waiting: it is soon killed below.
        if self._inner is not None:
            self._kill_both()

    def _read_status(self) -> None:
        try:
            data = os.read(self._status, _CHUNK)
        except BlockingIOError:
            return
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            with contextlib.suppress(DecodeError):
                status = json.decode(line, type=_Status)
                if status.child_pid is not None and self._inner is None:
                    self._let_run(status.child_pid)
                if status.exit_code is not None:
                    self._exit_code = status.exit_code
        if not data:
            self._loop.remove_reader(self._status)

    def _let_run(self, pid: int) -> None:
        try:
            self._inner = self._watched(pid)
        except ProcessLookupError:
            return  # setting up failed, which bubblewrap tells
        except OSError as error:  # it waits to be let run, and is not
            self.not_held, self._killed_by = error, "killed"
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._kill_both()
            return
        self._inner_pid = pid
        if self._killed_by:
            self._kill_both()
            return
        # On a thread: moving a process into a control group makes the caller wait for all processors.
        self._holding = asyncio.ensure_future(on_thread(self._hold, pid))
        self._holding.add_done_callback(self._held)

    def _watched(self, pid: int) -> int:
        """A descriptor of the first process inside, whose end is heard. Raises `OSError`."""
        with Descriptors() as own:
            descriptor = own.take(os.pidfd_open(pid))
            self._loop.add_reader(descriptor, self._inner_ended)
            own.pop_all()
        return descriptor

    def _held(self, holding: asyncio.Future[None]) -> None:
        """Let it run, now that its limits hold. Without them it must not."""
        if self.ended.done():
            if not holding.cancelled():
                holding.exception()  # looked at: it has ended, perhaps before it could be held
            return
        failure = asyncio.CancelledError() if holding.cancelled() else holding.exception()
        if isinstance(failure, ProcessLookupError):
            return  # setting up failed meanwhile, which bubblewrap tells
        if failure is not None:
            self.not_held = failure
            self.kill("killed")
        elif not self._killed_by:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._block, b"1")

    def _kill_both(self) -> None:
        if self._inner is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
        if self._outer is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._outer, signal.SIGKILL)

    def _outer_ended(self) -> None:
        assert self._outer is not None
        self._loop.remove_reader(self._outer)
        os.close(self._outer)
        self._outer = None
        self._outside.wait()
        self._read_status()  # what was written last
        if self._inner is not None and not self._inner_gone:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            if self._exit_code is not None and self._is_alone():
                self._inner_ended()
        self._settle()

    def _is_alone(self) -> bool:
        """Whether the first process inside, which is bubblewrap, is the only one left there.

        It is being killed, and taking down its mounts and its network takes longer than most programs run. Everything
        else inside is a child of it, or of one. An empty list is read at one moment, so nobody is missed.
        """
        try:
            with open(f"/proc/{self._inner_pid}/task/{self._inner_pid}/children", "rb") as file:
                return not file.read()
        except OSError:
            return False

    def _inner_ended(self) -> None:
        assert self._inner is not None
        self._inner_gone = True
        self._loop.remove_reader(self._inner)
        self._settle()

    def _settle(self) -> None:
        """Say that it has ended, once both are gone. The first to go takes the other with it."""
        if self._outer is not None or (self._inner is not None and not self._inner_gone) or self.ended.done():
            return
        self._loop.remove_reader(self._status)
        code = self._exit_code
        if self._report is not None:
            with contextlib.suppress(BlockingIOError):
                if said := os.read(self._report, 4):
                    self.refused, code = int.from_bytes(said, sys.byteorder), None
        for descriptor in (self._status, self._block, self._inner, self._report):
            if descriptor is not None:
                os.close(descriptor)
        if code is None and self._killed_by:
            code = 128 + signal.SIGKILL
        self.ended.set_result(Ended(code, self._killed_by, time.monotonic() - self._began))


class Tail:
    """The end of a stream, bounded while it comes."""

    def __init__(self, stream: Stream, most: int, on_output: OnOutput | None) -> None:
        self._stream: Stream = stream
        self._most = most
        self._on_output = on_output
        self._kept = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._kept += data
        # Cut in large pieces: a cut moves all that is kept.
        if len(self._kept) > 2 * self._most + _CHUNK:
            del self._kept[: len(self._kept) - self._most]
        if self._on_output is not None:
            self._on_output(self._stream, data)

    def trim(self) -> None:
        """Drop what is not shown, since nothing more comes."""
        del self._kept[: max(0, len(self._kept) - self._most)]

    @property
    def kept(self) -> bytes:
        return bytes(self._kept[-self._most :]) if self._most else b""

    @property
    def truncated(self) -> bool:
        return self.size > self._most


class PipeReader:
    """Reads a pipe into a `Tail` until its end, or until it is closed: a program may hand its end to another."""

    def __init__(self, descriptor: int, tail: Tail) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._tail = tail
        with Descriptors() as own:  # it is closed also when it cannot be watched
            own.take(descriptor)
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read)
            own.pop_all()

    def _read(self) -> bool:
        """Read a piece; False when there is nothing to read now, or never again."""
        if self._descriptor is None:
            return False
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._tail.add(data)
            return True
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        return False

    def close(self) -> None:
        """Take what the pipe holds, and close it. Nobody writes any more."""
        while self._read():
            pass
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


class PipeWriter:
    """Writes all of `data` into a pipe, as fast as it is read, and closes it."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._left = memoryview(data)
        with Descriptors() as own:  # it is closed also when it cannot be watched
            own.take(descriptor)
            os.set_blocking(descriptor, False)
            if not self._write():
                self._loop.add_writer(descriptor, self._write)
            own.pop_all()

    def _write(self) -> bool:
        """Write what the pipe takes now; True when there is no more to write."""
        if self._descriptor is None:
            return True
        try:
            while self._left:
                self._left = self._left[os.write(self._descriptor, self._left) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass
        self.close()
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def open_terminal(rows: int, columns: int) -> tuple[int, int]:
    """A new terminal: the end that is kept, and the end for the program."""
    with Descriptors() as own:
        kept, given = map(own.take, pty.openpty())
        resize_terminal(kept, rows, columns)
        own.pop_all()
    return kept, given


def resize_terminal(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
