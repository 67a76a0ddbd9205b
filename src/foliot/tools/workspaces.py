"""The seam to the files of runs: which folder the calls of a run work on, and what becomes of what they change.

Each run has a folder of its own. A call that works on files asks for it with `folder`, and says with `changed` that it
is over; between the two the folder is the call's. What a call changed is in the journal before its result is, and what
a call without a result changed is undone before the next call works on the folder.

    folder(owner)   ->  the call runs  ->  changed(owner)  ->  the result becomes durable, with the snapshot
                                 └─ it is cut off: the next folder(owner) undoes what it did

A program that goes on when its call is over, a job or a warm interpreter for example, is a resident of the folder
(`resides`). The folder is held for it, and before anything is undone there, residents are ended.

`CallFiles` is how the snapshot finds its way into the journal: the driver of a run sets it around each call, as it
does with what a call spends, and takes from it what the call left.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from foliot.kernel.run.events import WorkspaceSnapshot
from foliot.sandbox.base import SandboxSession, WorkspaceAccess
from foliot.tools.base import Caller, ToolDenied, ToolError
from foliot.tools.network_notes import NetworkNotes

# Where the frozen spec of a run keeps what its agent declares of the workspace.
WORKSPACE_RULES: Final = "workspace"
# What a tool that writes files tells a model of `data/`, where that is kept.
DATA_NOTE: Final = "Files in data/ are kept for the user: other conversations and runs with this agent have them too."
MAKE_DATA: Final = "The folder is there once something is in it: make it with mkdir -p data."
# How many names of what was not kept a result mentions.
MOST_NAMED: Final = 5
NOT_UNDONE: Final = (
    "[An earlier call was cut off while something else worked on the workspace. What it changed was not undone: look "
    "at the files that it may have left half written]"
)


EndResident: TypeAlias = Callable[[], Awaitable[object]]
"""Ends a program that works on a folder, with all that it started. Ending it twice is harmless."""


class FenceOwner(Struct, frozen=True):
    """The call of a run that a fence and a folder belong to. A call outside any run has no `run_id`.

    `notes` collects what the network refuses, for the result of the call; None where there is no such result.
    """

    tool: str
    caller: Caller
    run_id: str = ""
    call_id: str = ""
    notes: NetworkNotes | None = None


class FolderIdentity(Struct, frozen=True):
    """Tells a folder from another one that was put in its place meanwhile."""

    path: str
    device: int
    inode: int

    def is_replaced_by(self, other: FolderIdentity) -> bool:
        """Whether the other one stands where this one stood."""
        return self.path == other.path and self != other


def folder_identity(folder: str | Path) -> FolderIdentity:
    """Returns which folder is at this path now."""
    found = os.stat(folder)
    return FolderIdentity(str(folder), found.st_dev, found.st_ino)


class WorkspaceFolders(Protocol):
    """The folders of all runs that are driven by one process."""

    async def access(self, owner: FenceOwner) -> WorkspaceAccess:
        """The most that calls of this run may do with its folder, as its agent declares. Without a folder: none."""
        ...

    def keeps_data(self, namespace: str, agent: str, rules: Mapping[str, Any]) -> bool:
        """Whether what runs of an agent leave in `data/` is kept for their user, with these rules on its workspace."""
        ...

    async def folder(self, owner: FenceOwner, *, writes: bool = True) -> Path | None:
        """The folder that calls of this run work on, ready: made, or restored to the newest snapshot in its journal.

        None where there is none for this caller. A call that `writes` says with `changed` that it is over; what one
        left that has not said so when its task ends is undone.
        Raises `ToolDenied` for one that writes where the agent may only read, `WorkspaceLost` when the folder cannot
        be restored.
        """
        ...

    def is_shared(self, folder: Path) -> bool:
        """Whether others than the run use this folder: it is shown as it is, and not made for the run."""
        ...

    async def changed(self, owner: FenceOwner) -> None:
        """A call that could write is over, and nothing of it runs any more: keep what it changed.

        Raises `WorkspaceFull` when it is more than the run may keep: then it was undone, but for when others still
        work on the folder, which the message says.
        """
        ...

    async def take_over(self, owner: FenceOwner, before: WorkspaceSnapshot | None, after: WorkspaceSnapshot) -> None:
        """Have a call leave what another run changed that began with the files `before`, and left those `after`.

        What has been changed here meanwhile stays, and is named in `CallFiles.left_out` where both changed it.
        Raises as `folder` and `changed`.
        """
        ...

    def watch(self, owner: FenceOwner, session: SandboxSession) -> None:
        """Programs of this fence write to the folder of the run: look at what it takes of the disk while it is open.

        Above what it may hold, the fences on it are ended (`EndedBy` is `workspace`), and what no call is there to be
        told of is undone at once.
        """
        ...

    def resides(self, owner: FenceOwner, end: EndResident, *, firm: bool = False) -> Callable[[], None]:
        """A program of this run works on its folder from now on, also between calls. Call what is returned at its end.

        Said between `folder` and `changed` by the call that started it, or, by an owner without a `call_id`, instead of
        `changed`. What it writes is kept by the calls that follow. Before the folder is restored it is ended with
        `end`, which returns when nothing of it runs any more. A `firm` one is ended only when another process had the
        run meanwhile: as long as it runs, nothing that calls of this claim left is undone.
        """
        ...


class SharedWorkspace:
    """One folder for all runs of one namespace, which the operator chose: nothing of it is kept or undone."""

    def __init__(self, path: Path | None, namespace: str) -> None:
        self._path = None if path is None else path.absolute()
        self._namespace = namespace

    async def access(self, owner: FenceOwner) -> WorkspaceAccess:
        """Returns `read_write` for callers of its namespace, `none` for others."""
        return "none" if await self.folder(owner) is None else "read_write"

    def keeps_data(self, namespace: str, agent: str, rules: Mapping[str, Any]) -> bool:
        """Returns False: all of it is of all runs."""
        return False

    async def folder(self, owner: FenceOwner, *, writes: bool = True) -> Path | None:
        """The folder, for callers of its namespace. Namespaces are kept apart: only one has it."""
        return self._path if owner.caller.namespace == self._namespace else None

    def is_shared(self, folder: Path) -> bool:
        """Returns True: it is the operator's own."""
        return True

    async def changed(self, owner: FenceOwner) -> None:
        """Do nothing."""

    async def take_over(self, owner: FenceOwner, before: WorkspaceSnapshot | None, after: WorkspaceSnapshot) -> None:
        """Do nothing: the other run worked on the same folder."""

    def watch(self, owner: FenceOwner, session: SandboxSession) -> None:
        """Do nothing: it has no bounds."""

    def resides(self, owner: FenceOwner, end: EndResident, *, firm: bool = False) -> Callable[[], None]:
        """Do nothing: what works there is never ended for the sake of the folder."""
        return no_resident


def no_resident() -> None:
    """The end of a program that is no resident of any folder."""


class WorkspaceReadOnly(ToolDenied):
    """The call writes, and the agent may only read its workspace."""


class WorkspaceFull(ToolError):
    """The call left more than the workspace may hold. What it changed was undone, or the message says why not."""

    retryable = False


class WorkspaceLost(ToolError):
    """The folder of the run could not be made what the journal says it was."""

    retryable = False
    before_effect = True


class CallFiles:
    """The files of a run as one call has to do with them: `at` is the snapshot that the driver knows of.

    `epoch` is that of the claim under which the call is made, `rules` is what the agent declares. `kept` is the
    snapshot that the call left; `left_out` are names of what could not be kept, with the reason. `not_undone`: an
    earlier call was cut off, and what it did is still there, because others were at work on the folder.
    """

    __slots__ = ("_dropped", "at", "epoch", "kept", "left_out", "not_undone", "rules", "run_id")

    def __init__(self, run_id: str, epoch: int, at: WorkspaceSnapshot | None, rules: Mapping[str, Any]) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.at = at
        self.rules = rules
        self.kept: WorkspaceSnapshot | None = None
        self.left_out: tuple[str, ...] = ()
        self.not_undone = False
        self._dropped: Callable[[], None] | None = None

    def keep(self, snapshot: WorkspaceSnapshot, dropped: Callable[[], None]) -> None:
        """Have a snapshot recorded with the result; `dropped` is called if there will be none."""
        self.kept, self._dropped = snapshot, dropped

    def drop(self) -> None:
        """The call has no result: what it left is not recorded."""
        if self._dropped is not None:
            self._dropped()
            self.kept, self._dropped = None, None

    @property
    def note(self) -> str:
        """The text for the result on files that are not as one may expect; blank when all are."""
        if not self.left_out and not self.not_undone:
            return ""
        notes: list[str] = []
        if self.left_out:
            named = ", ".join(self.left_out[:MOST_NAMED])
            more = f" and {len(self.left_out) - MOST_NAMED} more" if len(self.left_out) > MOST_NAMED else ""
            notes.append(f"[Not kept in the workspace: {named}{more}]")
        if self.not_undone:
            notes.append(NOT_UNDONE)
        return "\n".join(notes)


call_files: ContextVar[CallFiles | None] = ContextVar("foliot_call_files", default=None)
