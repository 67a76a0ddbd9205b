"""How much a folder takes of the disk while programs write to it, looked at as seldom as is safe.

The exact size costs a walk through the tree, so a cheap question comes first: how much space of the file system is gone
since the last walk. Only when that could be too much, or after a while, the tree is walked, and no more than a part of
the time: a walk that took long is not repeated for some times as long. Others who write to the same disk cause walks
that find nothing, and no more than that.

What has no name any more still takes space: files that a program has open, or mapped, and deleted.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Final

from foliot.engine.workspaces.scan import DEEPEST, FOLDER, Bounds, OverBounds, room_of

# How often the file system is asked.
LOOK_EVERY: Final = 0.25
# How long the tree is not walked when nothing says that it should be.
WALK_EVERY: Final = 10.0
# The part of the time that walks may take: when there is a suspicion, and when there is none.
SUSPECTED: Final = 1 / 4
UNSUSPECTED: Final = 1 / 20


class FolderRoom:
    """The room that one folder takes, by an open descriptor: it stays the same folder when that is moved away."""

    def __init__(self, folder: str | os.PathLike[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `OSError`."""
        self._folder = os.open(folder, FOLDER)
        self._clock = clock
        self.device, self.inode = (found := os.fstat(self._folder)).st_dev, found.st_ino
        self._began = clock()
        self._took = 0.0
        self._size = self._files = 0
        self._free = self._free_files = -1

    def is_due(self, bounds: Bounds) -> bool:
        """Whether it is time to walk the tree. Costs one system call."""
        if self._free < 0:
            return True
        now, space = self._clock(), os.fstatvfs(self._folder)
        size = self._size + max(0, self._free - space.f_bfree * space.f_frsize)
        files = self._files + max(0, self._free_files - space.f_ffree)
        is_suspected = size > bounds.size or files > bounds.files
        rest = self._took / SUSPECTED if is_suspected else max(WALK_EVERY, self._took / UNSUSPECTED)
        return now >= self._began + rest

    def check(self, bounds: Bounds, unlinked: Callable[[], int]) -> None:
        """Walk the tree. `unlinked` counts what has no name. Blocks; raises `OverBounds`."""
        self._began, space = self._clock(), os.fstatvfs(self._folder)
        try:
            walk = _Walk(bounds, unlinked())
            walk.add_folder(self._folder, 0)
            self._size, self._files = walk.size, walk.files
        finally:
            self._free, self._free_files = space.f_bfree * space.f_frsize, space.f_ffree
            self._took = self._clock() - self._began

    def close(self) -> None:
        os.close(self._folder)


class _Walk:
    """Counts what is below a folder; nothing is opened but folders, and no link is followed."""

    def __init__(self, bounds: Bounds, size: int) -> None:
        self._bounds = bounds
        self.size = size
        self.files = 0
        self._check()

    def add_folder(self, folder: int, depth: int) -> None:
        if depth > DEEPEST:
            raise OverBounds(f"folders are more than {DEEPEST} deep", "depth")
        below: list[str] = []
        # A descriptor of its own: whoever else reads this folder by the same one would share its place.
        own = os.open(".", FOLDER, dir_fd=folder)
        try:
            with os.scandir(own) as found:
                for item in found:
                    try:
                        status = item.stat(follow_symlinks=False)
                    except OSError:
                        continue  # gone since
                    self.files += 1
                    if stat.S_ISREG(status.st_mode):
                        self.size += room_of(status)
                    elif stat.S_ISDIR(status.st_mode):
                        below.append(item.name)
                    self._check()
            for name in below:
                try:
                    inner = os.open(name, FOLDER, dir_fd=own)
                except OSError:
                    continue  # exchanged for something else, or closed by its owner: the call's end looks into it
                try:
                    self.add_folder(inner, depth + 1)
                finally:
                    os.close(inner)
        finally:
            os.close(own)

    def _check(self) -> None:
        if self.size > self._bounds.size:
            raise OverBounds(f"its files have more than {self._bounds.size:,} bytes", "size")
        if self.files > self._bounds.files:
            raise OverBounds(f"there are more than {self._bounds.files:,} files", "files")
