"""Making a folder equal to a snapshot: what is right stays, what is not is removed, written or put right.

As with `look`, every step is relative to an open descriptor and no link is followed, so nothing outside of the folder
is ever written, whatever stands in it. Files are written beside their place and moved there whole.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

from foliot.engine.workspaces.scan import BATCH, FOLDER, KnownFolder, entry_at, opened
from foliot.engine.workspaces.trees import PIECE, FileChange, TreeEntry, WorkspaceTree, decode_pieces, differences

# Gets contents by their digests; called from the thread that writes.
FetchMany: TypeAlias = Callable[[Sequence[str]], Mapping[str, bytes]]
# A folder this deep is moved up before it is removed, so that no tree needs more descriptors than this.
_SHALLOW: Final = 64


def restore(
    root: int, now: KnownFolder | None, tree: WorkspaceTree, fetch: FetchMany, without: Collection[str] = ()
) -> None:
    """Make the folder that `root` is a descriptor of equal to a snapshot, but for the paths in `without`.

    `now` is what was seen in it; files of which it says nothing are written anew. Raises `OSError`, and what `fetch`
    raises.
    """
    writing = _Restore(root, tree, fetch, without)
    writing.shape(root, now, tree.root, ())
    writing.write_files()
    writing.close_folders()


def merge(
    root: int, before: WorkspaceTree, after: WorkspaceTree, fetch: FetchMany, *, careful: bool = False
) -> list[str]:
    """Bring what differs between two snapshots into a folder, which others may be at work on; all else in it stays.

    Of a path that has been changed there too, what `after` says is left; if it is `careful`, what is there, and such
    paths are returned. A folder that went is removed unless there is something else in it. Raises as `restore`.
    """
    changes = differences(before, after)
    contested = _contested(root, changes) if careful else []
    changes = [change for change in changes if change.path not in contested]
    writing = _Restore(root, after, fetch)
    for change in reversed(changes):
        if change.before is not None and (change.after is None or change.after.kind != change.before.kind):
            writing.take_away(tuple(change.path.split("/")), change.before)
    for change in changes:
        if change.after is not None:
            writing.bring(tuple(change.path.split("/")), change.after)
    writing.write_files()
    writing.close_folders()
    return contested


def _contested(root: int, changes: Iterable[FileChange]) -> list[str]:
    """The paths at which there is neither what was before a change nor what is after it, and all below them."""
    found: list[str] = []
    for change in changes:  # a folder comes before what is in it
        try:
            there = entry_at(root, change.path.split("/"))
            meant = any(_same(there, entry) for entry in (change.before, change.after))
        except NotADirectoryError:
            meant = change.after is None
        if not meant or any(change.path.startswith(f"{path}/") for path in found):
            found.append(change.path)
    return found


def _same(there: TreeEntry | None, entry: TreeEntry | None) -> bool:
    if there is None or entry is None:
        return there is entry
    return there.kind == entry.kind and (there.kind == "folder" or there == entry)


class _Restore:
    def __init__(self, root: int, tree: WorkspaceTree, fetch: FetchMany, without: Collection[str] = ()) -> None:
        self._root = root
        self._without = without
        self._tree = tree
        self._fetch = fetch
        self._wanted: list[tuple[tuple[str, ...], TreeEntry]] = []
        self._modes: list[tuple[tuple[str, ...], int]] = []

    def shape(self, fd: int, now: KnownFolder | None, digest: str, path: tuple[str, ...]) -> None:
        """Remove what does not belong here, make folders and links, and take note of the files to write."""
        entries = {entry.path_name: entry for entry in self._tree.entries(digest)}
        if self._without:
            entries = {name: each for name, each in entries.items() if "/".join((*path, name)) not in self._without}
        there: dict[str, int] = {}
        with os.scandir(fd) as found:
            for item in found:
                there[item.name] = item.stat(follow_symlinks=False).st_mode
        for name, mode in there.items():
            entry = entries.get(name)
            if entry is None or _kind(mode) != entry.kind:
                remove(self._root, fd, name)
        for name, entry in entries.items():
            mode = there.get(name)
            here = mode is not None and _kind(mode) == entry.kind
            if entry.kind == "folder":
                self._folder(fd, name, entry, here, now, path)
            elif entry.kind == "link":
                if here and os.readlink(name, dir_fd=fd) == entry.target:
                    continue
                if here:
                    os.unlink(name, dir_fd=fd)
                os.symlink(entry.target, name, dir_fd=fd)
            else:
                was = now.files.get(name) if now is not None and here else None
                if was is None or was.entry.content != entry.content:
                    self._wanted.append(((*path, name), entry))
                elif was.entry.mode != entry.mode:
                    handle = opened(fd, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o400)
                    try:
                        os.fchmod(handle, entry.mode)
                    finally:
                        os.close(handle)

    def _folder(
        self, fd: int, name: str, entry: TreeEntry, here: bool, now: KnownFolder | None, path: tuple[str, ...]
    ) -> None:
        if not here:
            os.mkdir(name, 0o700, dir_fd=fd)
        inner = opened(fd, name, FOLDER, 0o700)
        try:
            mode = stat.S_IMODE(os.fstat(inner).st_mode)
            if mode != entry.mode or mode & 0o700 != 0o700:
                os.fchmod(inner, entry.mode | 0o700)  # until everything in it is written
                if entry.mode & 0o700 != 0o700:
                    self._modes.append(((*path, name), entry.mode))
            was = now.folders.get(name) if now is not None and here else None
            self.shape(inner, was[1] if was else None, entry.content, (*path, name))
        finally:
            os.close(inner)

    def take_away(self, path: tuple[str, ...], entry: TreeEntry) -> None:
        """Remove what an entry was, unless it is something else by now."""
        try:
            folder = self._parent(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return  # a link stands where a folder was
        try:
            with self._writable(folder), suppress(OSError):
                os.rmdir(path[-1], dir_fd=folder) if entry.kind == "folder" else os.unlink(path[-1], dir_fd=folder)
        finally:
            os.close(folder)

    def bring(self, path: tuple[str, ...], entry: TreeEntry) -> None:
        """Have an entry at a path, with the folders on the way: folders and links now, files with `write_files`."""
        folder = os.dup(self._root)
        try:
            for depth, name in enumerate(path[:-1]):
                inner = self._entered(folder, name, path[: depth + 1])
                os.close(folder)
                folder = inner
            name = path[-1]
            if entry.kind == "folder":
                inner = self._entered(folder, name, path)
                os.close(inner)
                self._modes = [*(each for each in self._modes if each[0] != path), (path, entry.mode)]
                return
            if _kind_of(folder, name) != entry.kind:
                remove(self._root, folder, name)
            if entry.kind == "file":
                self._wanted.append((path, entry))
            else:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                os.symlink(entry.target, name, dir_fd=folder)
        finally:
            os.close(folder)

    def _entered(self, folder: int, name: str, path: tuple[str, ...]) -> int:
        """A descriptor of a folder that may be written to until all is done. It is made where there is none."""
        kind = _kind_of(folder, name)
        if kind != "folder":
            if kind is not None:
                remove(self._root, folder, name)
            os.mkdir(name, 0o755, dir_fd=folder)
        inner = opened(folder, name, FOLDER, 0o700)
        mode = stat.S_IMODE(os.fstat(inner).st_mode)
        if mode & 0o700 != 0o700:
            os.fchmod(inner, mode | 0o700)
            self._modes.append((path, mode))
        return inner

    @staticmethod
    @contextmanager
    def _writable(folder: int) -> Generator[None]:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & 0o700 != 0o700:
            os.fchmod(folder, mode | 0o700)
        try:
            yield
        finally:
            if mode & 0o700 != 0o700:
                os.fchmod(folder, mode)

    def write_files(self) -> None:
        """Write the files that are missing or different, in batches of contents that fit in memory."""
        batch: list[tuple[tuple[str, ...], TreeEntry]] = []
        size = 0
        for path, entry in self._wanted:
            if entry.size > PIECE:
                self._write_large(path, entry)
                continue
            batch.append((path, entry))
            size += entry.size
            if size >= BATCH or len(batch) >= 256:
                self._write_batch(batch)
                batch, size = [], 0
        self._write_batch(batch)

    def _write_batch(self, batch: Sequence[tuple[tuple[str, ...], TreeEntry]]) -> None:
        if not batch:
            return
        contents = self._fetch([entry.content for _, entry in batch])
        for path, entry in batch:
            self._write(path, entry, (contents[entry.content],))

    def _write_large(self, path: tuple[str, ...], entry: TreeEntry) -> None:
        pieces = decode_pieces(self._fetch([entry.content])[entry.content])
        self._write(path, entry, (self._fetch([each])[each] for each in pieces))

    def _write(self, path: tuple[str, ...], entry: TreeEntry, parts: Iterable[bytes]) -> None:
        folder, name = self._parent(path), path[-1]
        temporary = f".foliot-{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                for part in parts:
                    _write_all(descriptor, part)
                os.fchmod(descriptor, entry.mode)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def close_folders(self) -> None:
        """Give folders that nobody may write to their permissions, the innermost first."""
        for path, mode in reversed(self._modes):
            folder = self._parent((*path, ""))
            try:
                os.fchmod(folder, mode)
            finally:
                os.close(folder)

    def _parent(self, path: Sequence[str]) -> int:
        """A descriptor of the folder that a path ends in."""
        folder = os.dup(self._root)
        for name in path[:-1]:
            outer, folder = folder, -1
            try:
                folder = os.open(name, FOLDER, dir_fd=outer)
            finally:
                os.close(outer)
        return folder


def remove(root: int, folder: int, name: str) -> None:
    """Remove a name and everything below it, however deep; what it links to stays. Nothing there is no error.

    `root` is a folder on the same file system, to which the depths of a deep tree are moved before they are removed.
    """
    left = [(folder, name)]
    while left:
        where, each = left.pop()
        try:
            os.unlink(each, dir_fd=where)
            continue
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError):
            pass
        inner = opened(where, each, FOLDER, 0o700)
        try:
            left += [(root, moved) for moved in _empty(root, inner, 0)]
        finally:
            os.close(inner)
        os.rmdir(each, dir_fd=where)


def _empty(root: int, folder: int, depth: int) -> list[str]:
    """Remove all that is in a folder; what is too deep is moved to `root`, under the names that are returned."""
    if stat.S_IMODE(os.fstat(folder).st_mode) & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    with os.scandir(folder) as found:
        names = [(item.name, item.is_dir(follow_symlinks=False)) for item in found]
    moved: list[str] = []
    for name, is_folder in names:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        if depth >= _SHALLOW:
            moved.append(f".foliot-{secrets.token_hex(8)}")
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=root)
            continue
        inner = opened(folder, name, FOLDER, 0o700)
        try:
            moved += _empty(root, inner, depth + 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
    return moved


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _kind_of(folder: int, name: str) -> str | None:
    """Returns the kind of a name in a folder; None when there is none."""
    try:
        return _kind(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else ""


def restore_into(folder: str, tree: WorkspaceTree, fetch: FetchMany, without: Collection[str] = ()) -> None:
    """Make a folder equal to a snapshot, as `restore` does. What else is in it is removed."""
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        restore(root, None, tree, fetch, without)
    finally:
        os.close(root)
