"""The system that a WebAssembly module sees: functions of WASI preview 1, and nothing else of the machine.

A module reads its request, writes its answer, asks for random bytes and for the time in whole milliseconds, sleeps, and
reads files of the folders that it was granted. It has no arguments, no environment, no network, and nothing to write
to: functions for that are there, because compilers import them, and refuse.

No function waits for longer than the call may last, none raises (an exception could surface in another thread's call),
and no address or length of the module is used before it was checked.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

from foliot.sandbox.files import open_beneath

MODULE: Final = "wasi_snapshot_preview1"

_OK, _BADF, _FAULT, _INTR, _INVAL, _IO, _ISDIR, _MFILE = 0, 8, 21, 27, 28, 29, 31, 33
_NOENT, _NOSPC, _NOSYS, _NOTDIR, _ROFS, _SPIPE, _NOTCAPABLE = 44, 51, 52, 54, 69, 70, 76
_ERRORS: Final[Mapping[int, int]] = {2: _NOENT, 13: 2, 18: _NOTCAPABLE, 20: _NOTDIR, 21: _ISDIR, 36: 37, 40: 32}

_CHARACTERS, _FOLDER, _FILE = 2, 3, 4
# What can be done with a granted file or folder: read, seek, tell, open, list, look at.
_RIGHTS: Final = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 13 | 1 << 14 | 1 << 18 | 1 << 21
_READ, _WRITE = 1 << 1, 1 << 6
_MOST_OPEN: Final = 64
_MOST_PARTS: Final = 1024
_PIECE: Final = 1 << 20
_MILLISECOND: Final = 1_000_000

_u32, _u64, _pair = Struct("<I"), Struct("<Q"), Struct("<II")
_fdstat, _filestat, _dirent = Struct("<BxHxxxxQQ"), Struct("<QQB7xQQQQQ"), Struct("<QQIB3x")
_subscription, _event = Struct("<QB7xI4xQQH6x"), Struct("<QHB5xQH6x")


class Memory(Protocol):
    """The memory of a module, as far as it is used here."""

    def read(self, store: Any, start: int | None = None, stop: int | None = None) -> bytearray: ...
    def write(self, store: Any, value: bytes | bytearray, start: int | None = None) -> int: ...
    def data_len(self, store: Any) -> int: ...


class _FaultError(Exception):
    """An address outside the memory of the module."""


class _Open:
    """A file or folder that a module has open. `listed` are the names that `fd_readdir` goes through."""

    def __init__(self, descriptor: int, *, folder: bool, preopened: str = "") -> None:
        self.descriptor = descriptor
        self.folder = folder
        self.preopened = preopened
        self.offset = 0
        self.listed: list[tuple[str, int, int]] | None = None


class Guest:
    """One call, seen from inside: its streams, its clock and its folders.

    `end` makes the module stop at its next step: after it said that it is done, or wrote more than it may. `stopping`
    wakes it when it sleeps.
    """

    def __init__(self, stdin: bytes, *, output: int, folders: Mapping[str, str], end: Callable[[], None]) -> None:
        self.exit_code: int | None = None
        self.overflow = False
        self.stopping = threading.Event()
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._stdin = memoryview(stdin)
        self._output = output
        self._end = end
        self._began = time.monotonic_ns()
        self._memory: Memory | None = None
        self._files: dict[int, _Open] = {}
        for number, (inside, outside) in enumerate(sorted(folders.items()), start=3):
            descriptor = os.open(outside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._files[number] = _Open(descriptor, folder=True, preopened=inside)

    def close(self) -> None:
        """Close what the module left open."""
        files, self._files = self._files, {}
        for each in files.values():
            os.close(each.descriptor)

    def serve(self, name: str, caller: Any, values: tuple[int, ...]) -> int:
        """Carry out one function; returns its error number, 0 for none."""
        if self.exit_code is not None or self.overflow or self.stopping.is_set():
            return _INTR
        try:
            if self._memory is None:
                self._memory = caller.get("memory")
            # A module whose memory is something else entirely.
            if not hasattr(self._memory, "data_len"):
                return _FAULT
            return _SERVED[name](self, caller, *values)
        except _FaultError:
            return _FAULT
        except OSError as error:
            return _ERRORS.get(error.errno or 0, _IO)
        except Exception:
            return _IO

    # --- memory --------------------------------------------------------------------------------------------------

    def _read(self, at: Any, start: int, size: int) -> bytes:
        assert self._memory is not None
        if start + size > self._memory.data_len(at):
            raise _FaultError
        return bytes(self._memory.read(at, start, start + size))

    def _write(self, at: Any, start: int, data: bytes | bytearray | memoryview) -> None:
        assert self._memory is not None
        if start + len(data) > self._memory.data_len(at):
            raise _FaultError
        if len(data):
            self._memory.write(at, bytes(data), start)

    def _parts(self, at: Any, start: int, count: int) -> list[tuple[int, int]]:
        """Addresses and lengths of the buffers of one read or write."""
        if count > _MOST_PARTS:
            raise _FaultError
        return [(each[0], each[1]) for each in _pair.iter_unpack(self._read(at, start, count * _pair.size))]

    # --- itself --------------------------------------------------------------------------------------------------

    def count_none(self, at: Any, count: int, size: int) -> int:
        """There are no arguments and no variables."""
        self._write(at, count, _u32.pack(0))
        self._write(at, size, _u32.pack(0))
        return _OK

    def succeed(self, at: Any, *values: int) -> int:
        return _OK

    def proc_exit(self, at: Any, code: int) -> int:
        self.exit_code = code
        self._end()
        return _OK

    def random_get(self, at: Any, start: int, size: int) -> int:
        while size > 0:
            piece = os.urandom(min(size, _PIECE))
            self._write(at, start, piece)
            start, size = start + len(piece), size - len(piece)
        return _OK

    # --- time ----------------------------------------------------------------------------------------------------

    def _now(self, clock: int) -> int:
        """Whole milliseconds, so that nothing finer can be measured; only the time of day is that of the machine."""
        now = time.time_ns() if clock == 0 else time.monotonic_ns() - self._began
        return now - now % _MILLISECOND

    def clock_time_get(self, at: Any, clock: int, precision: int, into: int) -> int:
        self._write(at, into, _u64.pack(self._now(clock)))
        return _OK if clock <= 3 else _INVAL

    def clock_res_get(self, at: Any, clock: int, into: int) -> int:
        self._write(at, into, _u64.pack(_MILLISECOND))
        return _OK if clock <= 3 else _INVAL

    def poll_oneoff(self, at: Any, start: int, into: int, count: int, counted: int) -> int:
        """Sleep until the first clock has passed. Streams and files never have to be waited for."""
        if not 0 < count <= _MOST_PARTS:
            return _INVAL
        asked = [*_subscription.iter_unpack(self._read(at, start, count * _subscription.size))]
        clocks = list[tuple[int, int]]()
        ready = list[tuple[int, int]]()
        for data, kind, clock, timeout, _, flags in asked:
            if kind == 0:
                clocks.append((max(timeout - self._now(clock), 0) if flags & 1 else timeout, data))
            else:
                ready.append((data, kind))
        if not ready:
            first = min(wait for wait, _ in clocks)
            if self.stopping.wait(min(first / 1e9, threading.TIMEOUT_MAX)):
                return _INTR
            ready = [(data, 0) for wait, data in clocks if wait == first]
        self._write(at, into, b"".join(_event.pack(data, _OK, kind, 0, 0) for data, kind in ready))
        self._write(at, counted, _u32.pack(len(ready)))
        return _OK

    # --- streams and files ---------------------------------------------------------------------------------------

    def fd_read(self, at: Any, fd: int, start: int, count: int, read: int) -> int:
        file = self._files.get(fd)
        if fd != 0 and file is None:
            return _BADF
        total = 0
        for address, size in self._parts(at, start, count):
            if file is None:
                data = bytes(self._stdin[:size])
                self._stdin = self._stdin[len(data) :]
            elif file.folder:
                return _ISDIR
            else:
                data = os.pread(file.descriptor, min(size, _PIECE), file.offset)
                file.offset += len(data)
            self._write(at, address, data)
            total += len(data)
            if len(data) < size:
                break
        self._write(at, read, _u32.pack(total))
        return _OK

    def fd_pread(self, at: Any, fd: int, start: int, count: int, offset: int, read: int) -> int:
        file = self._files.get(fd)
        if file is None or file.folder or offset >= 1 << 62:
            return _BADF if file is None else _INVAL
        kept, file.offset = file.offset, offset
        try:
            return self.fd_read(at, fd, start, count, read)
        finally:
            file.offset = kept

    def fd_write(self, at: Any, fd: int, start: int, count: int, written: int) -> int:
        if fd not in (1, 2):
            return _ROFS if fd in self._files else _BADF
        total = 0
        for address, size in self._parts(at, start, count):
            if fd == 1 and len(self.stdout) + size > self._output:
                self.overflow = True
                self._end()
                return _NOSPC
            # Of what it says besides, the end is kept.
            kept = min(size, self._output)
            data = self._read(at, address + size - kept, kept)
            (self.stdout if fd == 1 else self.stderr).extend(data)
            del self.stderr[: -self._output or None]
            total += size
        self._write(at, written, _u32.pack(total & 0xFFFF_FFFF))
        return _OK

    def fd_close(self, at: Any, fd: int) -> int:
        if fd <= 2:
            return _OK
        file = self._files.pop(fd, None)
        if file is None:
            return _BADF
        os.close(file.descriptor)
        return _OK

    def fd_fdstat_get(self, at: Any, fd: int, into: int) -> int:
        file = self._files.get(fd)
        if file is not None:
            answer = _fdstat.pack(_FOLDER if file.folder else _FILE, 0, _RIGHTS, _RIGHTS)
        elif fd <= 2:
            answer = _fdstat.pack(_CHARACTERS, 0, _READ if fd == 0 else _WRITE, 0)
        else:
            return _BADF
        self._write(at, into, answer)
        return _OK

    def fd_filestat_get(self, at: Any, fd: int, into: int) -> int:
        file = self._files.get(fd)
        if file is None:
            if fd > 2:
                return _BADF
            self._write(at, into, _filestat.pack(0, fd, _CHARACTERS, 1, 0, 0, 0, 0))
            return _OK
        self._write(at, into, _stat(os.fstat(file.descriptor)))
        return _OK

    def fd_seek(self, at: Any, fd: int, offset: int, whence: int, into: int) -> int:
        file = self._files.get(fd)
        if file is None or file.folder:
            return _BADF if file is None and fd > 2 else _SPIPE
        offset = offset - (1 << 64) if offset >= 1 << 63 else offset
        start = (0, file.offset, os.fstat(file.descriptor).st_size)[whence] if whence <= 2 else -1
        if start < 0 or not 0 <= start + offset < 1 << 62:
            return _INVAL
        file.offset = start + offset
        self._write(at, into, _u64.pack(file.offset))
        return _OK

    def fd_tell(self, at: Any, fd: int, into: int) -> int:
        return self.fd_seek(at, fd, 0, 1, into)

    def fd_prestat_get(self, at: Any, fd: int, into: int) -> int:
        file = self._files.get(fd)
        if file is None or not file.preopened:
            return _BADF
        self._write(at, into, _pair.pack(0, len(file.preopened.encode())))
        return _OK

    def fd_prestat_dir_name(self, at: Any, fd: int, into: int, size: int) -> int:
        file = self._files.get(fd)
        if file is None or not file.preopened:
            return _BADF
        self._write(at, into, file.preopened.encode()[:size])
        return _OK

    def fd_readdir(self, at: Any, fd: int, into: int, size: int, cookie: int, used: int) -> int:
        file = self._files.get(fd)
        if file is None or not file.folder:
            return _BADF if file is None else _NOTDIR
        if file.listed is None or cookie == 0:
            with os.scandir(file.descriptor) as entries:
                file.listed = sorted((each.name, each.inode(), _kind_of(each)) for each in entries)
        answer = bytearray()
        for number, (name, inode, kind) in enumerate(file.listed[cookie:], start=cookie + 1):
            text = os.fsencode(name)
            answer += _dirent.pack(number, inode, len(text), kind) + text
            if len(answer) >= size:
                break
        self._write(at, into, answer[:size])
        self._write(at, used, _u32.pack(min(len(answer), size)))
        return _OK

    def _opened(self, at: Any, fd: int, start: int, size: int) -> int:
        """Open what a path below an open folder leads to: the kernel keeps to the folder, and to files that are."""
        folder = self._files.get(fd)
        if folder is None or not folder.folder:
            raise OSError(20 if folder is not None else 2, "")
        path = os.fsdecode(self._read(at, start, min(size, 4097)))
        if not path or "\0" in path or size > 4096:
            raise OSError(2, "")
        # Opening a pipe would wait for its other end.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = open_beneath(folder.descriptor, path, flags)
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            os.close(descriptor)
            raise OSError(18, "")
        return descriptor

    def path_open(
        self,
        at: Any,
        fd: int,
        follow: int,
        start: int,
        size: int,
        how: int,
        base: int,
        rest: int,
        flags: int,
        into: int,
    ) -> int:
        # To create, to have it new, to empty it, to append to it, to write at all.
        if how & 0b1101 or flags & 1 or base & (1 << 6):
            return _ROFS
        if len(self._files) >= _MOST_OPEN:
            return _MFILE
        descriptor = self._opened(at, fd, start, size)
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if how & 0b10 and not folder:
            os.close(descriptor)
            return _NOTDIR
        number = max((*self._files, 2)) + 1
        self._files[number] = _Open(descriptor, folder=folder)
        self._write(at, into, _u32.pack(number))
        return _OK

    def path_filestat_get(self, at: Any, fd: int, follow: int, start: int, size: int, into: int) -> int:
        descriptor = self._opened(at, fd, start, size)
        try:
            self._write(at, into, _stat(os.fstat(descriptor)))
        finally:
            os.close(descriptor)
        return _OK

    def refuse_writing(self, at: Any, *values: int) -> int:
        return _ROFS

    def lack(self, at: Any, *values: int) -> int:
        return _NOSYS


def _stat(found: os.stat_result) -> bytes:
    kind = _FOLDER if stat.S_ISDIR(found.st_mode) else _FILE
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _filestat.pack(0, found.st_ino, kind, 1, found.st_size, *(max(each, 0) for each in times))


def _kind_of(entry: os.DirEntry[str]) -> int:
    if entry.is_dir(follow_symlinks=False):
        return _FOLDER
    return _FILE if entry.is_file(follow_symlinks=False) else 0


Function: TypeAlias = tuple[str, Callable[..., int]]
# Every function of the preview with its parameters: i for 32 bits, I for 64.
FUNCTIONS: Final[Mapping[str, Function]] = {
    "args_get": ("ii", Guest.succeed),
    "args_sizes_get": ("ii", Guest.count_none),
    "environ_get": ("ii", Guest.succeed),
    "environ_sizes_get": ("ii", Guest.count_none),
    "clock_res_get": ("ii", Guest.clock_res_get),
    "clock_time_get": ("iIi", Guest.clock_time_get),
    "fd_advise": ("iIIi", Guest.succeed),
    "fd_allocate": ("iII", Guest.refuse_writing),
    "fd_close": ("i", Guest.fd_close),
    "fd_datasync": ("i", Guest.succeed),
    "fd_fdstat_get": ("ii", Guest.fd_fdstat_get),
    "fd_fdstat_set_flags": ("ii", Guest.lack),
    "fd_fdstat_set_rights": ("iII", Guest.lack),
    "fd_filestat_get": ("ii", Guest.fd_filestat_get),
    "fd_filestat_set_size": ("iI", Guest.refuse_writing),
    "fd_filestat_set_times": ("iIIi", Guest.refuse_writing),
    "fd_pread": ("iiiIi", Guest.fd_pread),
    "fd_prestat_get": ("ii", Guest.fd_prestat_get),
    "fd_prestat_dir_name": ("iii", Guest.fd_prestat_dir_name),
    "fd_pwrite": ("iiiIi", Guest.refuse_writing),
    "fd_read": ("iiii", Guest.fd_read),
    "fd_readdir": ("iiiIi", Guest.fd_readdir),
    "fd_renumber": ("ii", Guest.lack),
    "fd_seek": ("iIii", Guest.fd_seek),
    "fd_sync": ("i", Guest.succeed),
    "fd_tell": ("ii", Guest.fd_tell),
    "fd_write": ("iiii", Guest.fd_write),
    "path_create_directory": ("iii", Guest.refuse_writing),
    "path_filestat_get": ("iiiii", Guest.path_filestat_get),
    "path_filestat_set_times": ("iiiiIIi", Guest.refuse_writing),
    "path_link": ("iiiiiii", Guest.refuse_writing),
    "path_open": ("iiiiiIIii", Guest.path_open),
    "path_readlink": ("iiiiii", Guest.lack),
    "path_remove_directory": ("iii", Guest.refuse_writing),
    "path_rename": ("iiiiii", Guest.refuse_writing),
    "path_symlink": ("iiiii", Guest.refuse_writing),
    "path_unlink_file": ("iii", Guest.refuse_writing),
    "poll_oneoff": ("iiii", Guest.poll_oneoff),
    "proc_exit": ("i", Guest.proc_exit),
    "proc_raise": ("i", Guest.lack),
    "random_get": ("ii", Guest.random_get),
    "sched_yield": ("", Guest.succeed),
    "sock_accept": ("iii", Guest.lack),
    "sock_recv": ("iiiiii", Guest.lack),
    "sock_send": ("iiiii", Guest.lack),
    "sock_shutdown": ("ii", Guest.lack),
}
_SERVED: Final = {name: served for name, (_, served) in FUNCTIONS.items()}
WITHOUT_RESULT: Final = "proc_exit"
