"""The seam to workspaces: the folder that the calls of one run work on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from foliot.tools.base import Caller


class FenceOwner(Struct, frozen=True):
    """The call of a run that a fence and a folder belong to. A call outside any run has no `run_id`."""

    tool: str
    caller: Caller
    run_id: str = ""
    call_id: str = ""


class WorkspaceFolders(Protocol):
    """The folders of runs."""

    async def folder(self, owner: FenceOwner) -> Path | None:
        """The folder that calls of this run work on, ready: made, or restored to the last snapshot of its journal.

        None when there is none for this caller. Raises `ToolError` when it cannot be made ready.
        """
        ...

    async def changed(self, owner: FenceOwner) -> None:
        """Keep what a call changed, before its result becomes durable.

        Raises `ToolError` when that is more than may be kept; the folder is as it was before the call then.
        """
        ...


class SharedWorkspace:
    """One folder for all runs of one namespace, which the operator chose: nothing of it is kept or undone."""

    def __init__(self, path: Path | None, namespace: str) -> None:
        self._path = path
        self._namespace = namespace

    async def folder(self, owner: FenceOwner) -> Path | None:
        """The folder, for callers of its namespace. Namespaces are kept apart: only one has it."""
        return self._path if owner.caller.namespace == self._namespace else None

    async def changed(self, owner: FenceOwner) -> None:
        """Do nothing."""
