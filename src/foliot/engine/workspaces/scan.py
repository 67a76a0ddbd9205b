"""Reading a folder into a snapshot: what changed since the last look is read, the rest is known by its inode.

Whatever runs in a workspace is hostile and may change the tree while it is walked. So every step is relative to an
open descriptor, no link is ever followed, nothing but plain files is opened, and every bound (files, bytes, depth) is
held while walking, not afterwards. What is opened is what is looked at.

A file is unchanged when inode, size, permissions, time of change and time of its inode are: the last of these cannot
be set by a program. Clocks of file systems are coarse, so a file that was changed moments before a look is read again
at the next one (`FRESH`).

Who writes to a file through a mapping leaves a new time with the first write, and none with those that follow. So a
program that lived during a look may change files unseen after it, but only such as have a time of its own lifetime:
they are read again (`doubted`). Where a file system is not known to tell of the first write, all are.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final, NamedTuple

from foliot.engine.workspaces.trees import (
    PIECE,
    TreeEntry,
    encode_folder,
    encode_pieces,
    to_stored,
)
from foliot.errors import FoliotError
from foliot.kernel.run.spec import digest as digest_of

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PATH: Final = getattr(os, "O_PATH", 0)
# Folders within folders; each is an open descriptor while it is walked.
DEEPEST: Final = 100
# The coarsest clock of a file system that is provided for.
FRESH: Final = 20_000_000
# Content is handed over in batches of about this size.
BATCH: Final = 16 * 1024 * 1024
# So much may be set aside for a file of any size.
AHEAD: Final = 1024 * 1024
MOST_LEFT_OUT: Final = 100
_NEVER: Final = 1 << 63
# File systems that give a file a new time with the first write through a mapping.
_TELLING: Final = frozenset({"ext4", "xfs"})

Signature = tuple[int, int, int, int, int]
# Takes contents and stores them; called from the thread that walks.
Store = Callable[[Sequence[bytes]], None]


class OverBounds(FoliotError):
    """The folder holds more than it may: `what` names the bound."""

    code = "workspace_full"

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class Bounds(NamedTuple):
    """The most that a workspace may hold, in bytes and in names."""

    size: int
    files: int


class KnownFile(NamedTuple):
    """A file as it was seen. A `signature` that no file has says that it must be read again."""

    signature: Signature | None
    entry: TreeEntry


class KnownFolder:
    """A folder as it was seen, with all that is below."""

    __slots__ = ("digest", "entries", "files", "folders")

    def __init__(self) -> None:
        self.files: dict[str, KnownFile] = {}
        self.folders: dict[str, tuple[TreeEntry, KnownFolder]] = {}
        self.entries: list[TreeEntry] = []
        self.digest = ""


def room_of(status: os.stat_result) -> int:
    """How much a file takes of what a workspace may hold: its size, or what is set aside for it where that is far more.

    A file system gives each file whole blocks, and a growing one some more; `fallocate` gives as many as are asked for.
    """
    blocks = status.st_blocks * 512
    return blocks if blocks > 2 * status.st_size + AHEAD else status.st_size


def counted(folder: KnownFolder) -> tuple[int, int]:
    """Returns how many names there are below a folder that was seen, and how many bytes."""
    files, size = len(folder.entries), sum(entry.size for entry in folder.entries)
    for _, below in folder.folders.values():
        more = counted(below)
        files, size = files + more[0], size + more[1]
    return files, size


class Seen(NamedTuple):
    """The outcome of a look: the tree, how much there is, and what is not part of it."""

    root: KnownFolder
    files: int
    size: int
    left_out: tuple[str, ...]

    @property
    def digest(self) -> str:
        return self.root.digest


def look(
    root: int,
    known: KnownFolder | None,
    bounds: Bounds,
    store: Store | None = None,
    *,
    outside_links: bool = False,
    doubted: int | None = None,
) -> Seen:
    """Look through the folder that the descriptor `root` is of, and hand contents that are new to `store`.

    With `outside_links` a file that has a name outside too is kept like any other. `doubted` is when the oldest program
    began, in nanoseconds, that lived during the last look. Raises `OverBounds`, `OSError`.
    """
    walk = _Look(root, bounds, store, outside_links, doubted)
    found = walk.folder(root, known, 0, "")
    walk.hand_over()
    return Seen(found, walk.count, walk.size, tuple(walk.left_out))


class _Look:
    def __init__(
        self, root: int, bounds: Bounds, store: Store | None, outside_links: bool, doubted: int | None
    ) -> None:
        self._root = root
        self._outside_links = outside_links
        self._device = os.fstat(root).st_dev
        self._doubted = _NEVER
        if doubted is not None:
            self._doubted = doubted - FRESH if _tells_of_mapped_writes(self._device) else 0
        self._bounds = bounds
        self._store = store
        self._fresh = time.time_ns() - FRESH
        self._names: dict[int, int] | None = None
        self._batch: list[bytes] = []
        self._batch_size = 0
        self.count = 0
        self.size = 0
        self._aside = 0
        self.left_out: list[str] = []

    def folder(self, fd: int, known: KnownFolder | None, depth: int, path: str) -> KnownFolder:
        if depth > DEEPEST:
            raise OverBounds(f"folders are more than {DEEPEST} deep", "depth")
        seen = KnownFolder()
        entries: list[TreeEntry] = []
        old_files = known.files if known is not None else {}
        files = seen.files
        fresh, doubted = self._fresh, self._doubted
        with os.scandir(fd) as found:
            for item in found:
                name = item.name
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone since
                mode = status.st_mode
                self.count += 1
                if self.count > self._bounds.files:
                    raise OverBounds(f"there are more than {self._bounds.files:,} files", "files")
                if stat.S_ISREG(mode):
                    changed = status.st_ctime_ns
                    signature = (status.st_ino, status.st_size, status.st_mtime_ns, changed, mode)
                    was = old_files.get(name)
                    if was is not None and was.signature == signature and status.st_nlink == 1 and changed < doubted:
                        self.size += status.st_size
                        self._set_aside(status)
                        if changed >= fresh:
                            was = KnownFile(None, was.entry)
                        files[name] = was
                        entries.append(was.entry)
                    elif (read := self._file(fd, name, status, was, path)) is not None:
                        files[name] = read
                        entries.append(read.entry)
                elif stat.S_ISDIR(mode):
                    entry = self._below(fd, name, status, known, seen, depth, path)
                    if entry is not None:
                        entries.append(entry)
                elif stat.S_ISLNK(mode):
                    try:
                        target = os.readlink(name, dir_fd=fd)
                    except OSError:
                        continue  # it is no link any more
                    entries.append(TreeEntry(to_stored(name), "link", 0, 0, to_stored(target)))
                else:
                    self._leave_out(path + name, _what(mode))
        entries.sort(key=_by_name)
        seen.entries = entries
        if known is not None and entries == known.entries:
            seen.digest = known.digest
        else:
            data = encode_folder(entries)
            seen.digest = digest_of(data)
            self._keep(data)
        return seen

    def _below(
        self,
        fd: int,
        name: str,
        status: os.stat_result,
        known: KnownFolder | None,
        seen: KnownFolder,
        depth: int,
        path: str,
    ) -> TreeEntry | None:
        if status.st_dev != self._device:
            self._leave_out(path + name, "another file system")
            return None
        was = known.folders.get(name) if known is not None else None
        try:
            with _entered(fd, name) as inner:
                below = self.folder(inner, was[1] if was else None, depth + 1, f"{path}{name}/")
        except (FileNotFoundError, NotADirectoryError):
            return None  # exchanged for something else meanwhile
        entry = TreeEntry(to_stored(name), "folder", stat.S_IMODE(status.st_mode) & 0o777, 0, below.digest)
        if was is not None and was[0] == entry:
            entry = was[0]
        seen.folders[name] = entry, below
        return entry

    def _file(self, fd: int, name: str, status: os.stat_result, was: KnownFile | None, path: str) -> KnownFile | None:
        """Read a file that is new or may have changed; None when it is not to be kept."""
        if status.st_nlink > 1 and not self._outside_links and self._linked_outside(status):
            self._leave_out(path + name, "a hard link to a file outside")
            return None
        try:
            descriptor = opened(fd, name, _FILE, 0o400)
        except FileNotFoundError:
            return None
        except OSError:
            self._leave_out(path + name, "it cannot be opened")
            return None
        try:
            read = self._read_whole(descriptor, path + name)
        finally:
            os.close(descriptor)
        if read is None:
            return None
        status, size, content, stored = read
        self.size += size
        self._set_aside(status)
        entry = TreeEntry(to_stored(name), "file", stat.S_IMODE(status.st_mode) & 0o777, size, content)
        if was is None or was.entry.content != content:
            for each in stored:
                self._keep(each)
        if was is not None and was.entry == entry:
            entry = was.entry
        # One that is not steady, or may have changed within the same tick of the clock, is read again next time.
        return KnownFile(signature_of(status) if status.st_ctime_ns < self._fresh else None, entry)

    def _read_whole(self, descriptor: int, path: str) -> tuple[os.stat_result, int, str, list[bytes]] | None:
        """Read a file, again if it changes meanwhile; its status, and what `_content` says of it."""
        for last in (False, False, True):
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                self._leave_out(path, _what(before.st_mode))
                return None
            if self.size + before.st_size > self._bounds.size:
                self.size += before.st_size
                self._check_size()
            size, content, stored = self._content(descriptor, before.st_size)
            steady = size == before.st_size and signature_of(before) == signature_of(os.fstat(descriptor))
            if steady or last:  # as much of it as was read: whoever writes to it is not done
                return before, size, content, stored
        return None

    def _content(self, descriptor: int, size: int) -> tuple[int, str, list[bytes]]:
        """The size and digest of what was read, and what is to be stored. A large file is handed over in between."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        if size <= PIECE:
            data = _read(descriptor, size)
            return len(data), digest_of(data), [data]
        pieces: list[str] = []
        data, left = b"", size
        while left > 0 and (data := _read(descriptor, min(PIECE, left))):
            pieces.append(digest_of(data))
            self._keep(data)
            left -= len(data)
        if size - left <= PIECE:  # it was cut meanwhile
            return size - left, pieces[0] if pieces else digest_of(b""), [] if pieces else [b""]
        listed = encode_pieces(pieces)
        return size - left, digest_of(listed), [listed]

    def _linked_outside(self, status: os.stat_result) -> bool:
        """Whether a file has names that are not in this tree."""
        if self._names is None:
            self._names = {}
            # A descriptor of its own: the one of the root is being read, and copies of it share its place.
            root = os.open(".", FOLDER, dir_fd=self._root)
            try:
                _count_names(root, self._names, 0)
            finally:
                os.close(root)
        return self._names.get(status.st_ino, 0) < status.st_nlink

    def _set_aside(self, status: os.stat_result) -> None:
        self._aside += room_of(status) - status.st_size
        self._check_size()

    def _check_size(self) -> None:
        if self.size + self._aside > self._bounds.size:
            raise OverBounds(f"its files have more than {self._bounds.size:,} bytes", "size")

    def _leave_out(self, path: str, why: str) -> None:
        if len(self.left_out) < MOST_LEFT_OUT:
            self.left_out.append(f"{ascii(path)[1:-1][:200]} ({why})")

    def _keep(self, data: bytes) -> None:
        if self._store is not None:
            self._batch.append(data)
            self._batch_size += len(data)
            if self._batch_size >= BATCH:
                self.hand_over()

    def hand_over(self) -> None:
        if self._store is not None and self._batch:
            batch, self._batch, self._batch_size = self._batch, [], 0
            self._store(batch)


@cache
def _tells_of_mapped_writes(device: int) -> bool:
    """Whether the file system with this number is one of those known to tell."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            found = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number]
    except (OSError, IndexError):
        return False
    return bool(found) and _TELLING.issuperset(found)


def _by_name(entry: TreeEntry) -> str:
    return entry.name


def signature_of(status: os.stat_result) -> Signature:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def opened(folder: int, name: str, flags: int, needed: int) -> int:
    """Open a name in a folder. Where its permissions forbid that to its owner, they are changed for the moment."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        if not _PATH:
            raise
    # By a descriptor and not by name: a link in its place would have the permissions of something else changed.
    handle = os.open(name, _PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise PermissionError(name)
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, stat.S_IMODE(mode) | needed)
        try:
            # `.` of a folder and the file itself are what the handle is of, whatever has its name by now.
            return os.open(place, flags & ~os.O_NOFOLLOW)
        finally:
            os.chmod(place, stat.S_IMODE(mode))
    finally:
        os.close(handle)


@contextmanager
def _entered(folder: int, name: str) -> Generator[int]:
    """A descriptor of a folder. One that its owner may not look through has other permissions meanwhile."""
    inner = opened(folder, name, FOLDER, 0o500)
    try:
        mode = stat.S_IMODE(os.fstat(inner).st_mode)
        closed = mode & 0o500 != 0o500 and os.geteuid() != 0
        if closed:
            os.fchmod(inner, mode | 0o500)
        try:
            yield inner
        finally:
            if closed:
                os.fchmod(inner, mode)
    finally:
        os.close(inner)


def _read(descriptor: int, size: int) -> bytes:
    """So many bytes, or all that there are."""
    data = os.read(descriptor, size) if size else b""
    if len(data) == size:
        return data
    parts = [data]
    left = size - len(data)
    while left > 0 and (more := os.read(descriptor, left)):
        parts.append(more)
        left -= len(more)
    return b"".join(parts)


def _count_names(fd: int, names: dict[int, int], depth: int) -> None:
    """How many names each file with several of them has in this tree."""
    if depth > DEEPEST:
        return
    with os.scandir(fd) as found:
        for item in found:
            try:
                status = item.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    names[status.st_ino] = names.get(status.st_ino, 0) + 1
                elif stat.S_ISDIR(status.st_mode):
                    with _entered(fd, item.name) as inner:
                        _count_names(inner, names, depth + 1)
            except (FileNotFoundError, NotADirectoryError):
                continue


def _what(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "no file"


def entry_at(root: int, path: Sequence[str]) -> TreeEntry | None:
    """Returns what is at one path of the folder that `root` is of; of a folder without what is in it.

    None where there is nothing that a snapshot would have. Raises `NotADirectoryError` when the path leads through
    something that is no folder.
    """
    fd = os.dup(root)
    try:
        for name in path[:-1]:
            outer, fd = fd, -1
            try:
                if not stat.S_ISDIR(os.stat(name, dir_fd=outer, follow_symlinks=False).st_mode):
                    raise NotADirectoryError(name)
                fd = opened(outer, name, FOLDER, 0o700)
            finally:
                os.close(outer)
        name = path[-1]
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return TreeEntry(to_stored(name), "folder", stat.S_IMODE(status.st_mode) & 0o777)
        if stat.S_ISLNK(status.st_mode):
            return TreeEntry(to_stored(name), "link", 0, 0, to_stored(os.readlink(name, dir_fd=fd)))
        look = _Look(fd, Bounds(1 << 62, 1 << 62), None, True, None)
        read = look._file(fd, name, status, None, "") if stat.S_ISREG(status.st_mode) else None  # pyright: ignore[reportPrivateUsage]
        return read.entry if read is not None else None
    except FileNotFoundError:
        return None
    finally:
        if fd >= 0:
            os.close(fd)
