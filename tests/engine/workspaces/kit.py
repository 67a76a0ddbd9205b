"""Runs with folders, in a test's hands: a journal, calls that change files, and trees that can be compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.kernel.run.events import WorkspaceSnapshot
from foliot.store.journal.base import Entry, Journal, NewRun
from foliot.tools.base import Caller
from foliot.tools.workspaces import CallFiles, FenceOwner, call_files

SPEC = b'{"agent":"clerk","model":"m"}'


def owner(run_id: str = "r1", call_id: str = "c1", namespace: str = "default", user: str = "") -> FenceOwner:
    return FenceOwner("bash", Caller(namespace=namespace, agent="clerk", user=user), run_id, call_id)


class Played:
    """One run as its driver sees it: `at` is the newest snapshot that is recorded."""

    def __init__(self, workspaces: RunWorkspaces, run_id: str = "r1", *, user: str = "", **rules: Any) -> None:
        self.workspaces = workspaces
        self.user = user
        self.run_id = run_id
        self.rules = rules
        self.at: WorkspaceSnapshot | None = None
        self.epoch = 1
        self._calls = 0

    def begin(self) -> tuple[FenceOwner, CallFiles]:
        self._calls += 1
        files = CallFiles(self.run_id, self.epoch, self.at, self.rules)
        call_files.set(files)
        return owner(self.run_id, f"c{self._calls}", user=self.user), files

    async def call(self, do: Callable[[Path], object] = lambda folder: None) -> CallFiles:
        """A call that changes files, with its result recorded."""
        by, files = self.begin()
        folder = await self.workspaces.folder(by)
        assert folder is not None
        do(folder)
        await self.workspaces.changed(by)
        self.at = files.kept or self.at
        return files

    async def seen(self) -> dict[str, Any]:
        """What a call of the run would find."""
        by, _ = self.begin()
        folder = await self.workspaces.folder(by, writes=False)
        assert folder is not None
        return tree_of(folder)


def tree_of(folder: Path) -> dict[str, Any]:
    """Everything in a folder that a snapshot keeps, by path."""
    found: dict[str, Any] = {}
    base = os.fsencode(folder)
    for where, names, files in os.walk(base):
        for name in (*names, *files):
            path = os.path.join(where, name)
            status = os.lstat(path)
            key = os.fsdecode(os.path.relpath(path, base))
            if stat.S_ISLNK(status.st_mode):
                found[key] = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                found[key] = stat.S_IMODE(status.st_mode)
            elif stat.S_ISREG(status.st_mode):
                found[key] = stat.S_IMODE(status.st_mode), Path(os.fsdecode(path)).read_bytes()
    return found


def writes(files: Mapping[str, str | None]) -> Callable[[Path], None]:
    """A call that writes these files; None deletes one."""

    def do(folder: Path) -> None:
        for name, text in files.items():
            place = folder / name
            if text is None:
                place.unlink()
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)

    return do


async def created(journal: Journal, run_id: str = "r1", namespace: str = "default") -> None:
    from foliot.kernel.run.spec import digest

    run = NewRun(run_id, namespace, "clerk", digest(SPEC), 1.0, content={digest(SPEC): SPEC})
    first = b'{"type":"run.created","agent":"clerk","spec":"sha256:00"}'
    await journal.create(run, [Entry(1, 1.0, "run.created", first)], worker="w", lease_until=9e9)
