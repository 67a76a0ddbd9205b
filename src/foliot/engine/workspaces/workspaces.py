"""The folders that runs work on: made, kept in step with their journals, and removed when they have been idle.

    ROOT/runs/DIGEST/files    what calls of the run see as their workspace
    ROOT/runs/DIGEST/lock     held while a call of the run works on it, in whatever process; says which run it is

A program can read where its workspace really lies (`/proc/self/mountinfo`), so that path names no namespace and no run,
and by default not the home folder.

`data/` of it is the folder of the user that the run acts for, as the run has it; see folders.py.

A folder is held for calls, each from `folder` to `changed`, and for residents: programs that go on between calls. It is
restored only while no call is at work on it, and residents are ended first. Files that were recorded beside them under
the same claim, by a program that a call ran for example, are brought in path by path: nothing is ended for that.

A folder is only ever a copy of what the journal says. It is compared with the journal before each call (by what is in
memory, so that costs nothing) and made equal to it again where it is not: in a process that has not seen it, after
another process had the run, after a call that was cut off. So a folder that nobody uses may be removed at any time.

A process that lost a run may not know it yet, and what it started may still write. Whoever takes the run over finds
its lock held then, leaves the folder to it and makes a new one: the old one is moved away as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from foliot.common.threads import on_thread
from foliot.engine.workspaces.folders import FOLDER as DATA
from foliot.engine.workspaces.folders import UserFolders, key_of
from foliot.engine.workspaces.restore import FetchMany, merge, remove, restore
from foliot.engine.workspaces.scan import FOLDER, Bounds, KnownFolder, OverBounds, Seen, Store, counted, look, opened
from foliot.engine.workspaces.trees import EMPTY, WorkspaceTree, newest
from foliot.engine.workspaces.watch import LOOK_EVERY, FolderRoom
from foliot.errors import FoliotError, InvalidInput, NotFound
from foliot.kernel.run.events import FolderFiles, WorkspaceSnapshot
from foliot.kernel.run.spec import decode_spec
from foliot.sandbox.base import SandboxSession, WorkspaceAccess
from foliot.store.journal.base import TERMINAL, Journal
from foliot.tools.workspaces import (
    WORKSPACE_RULES,
    CallFiles,
    EndResident,
    FenceOwner,
    WorkspaceFull,
    WorkspaceLost,
    WorkspaceReadOnly,
    call_files,
    no_resident,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

QUOTA: Final = 1024**3
MOST_FILES: Final = 100_000
# Trees of so many runs are remembered while no call works on them.
REMEMBERED: Final = 64
# How long a call that was told to stop may take to do so, before its folder is left to it.
STOPS_WITHIN: Final = 10.0
# How long a folder was not taken when the store is asked whether its run is over, and how many at once.
LEFT_FOR: Final = 60.0
MOST_SWEPT: Final = 1000
# How many contents are fetched at once.
AT_ONCE: Final = 32
FILES: Final = "files"
LOCK: Final = "lock"
RUNS: Final = "runs"
SCRATCH: Final = Path("/var/tmp")
NO_BOUNDS: Final = Bounds(1 << 62, 1 << 62)
_PROC: Final = os.path.isdir("/proc/self/fd")
_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
# Begins the name of a folder that was left to whoever may still write to it. No run or namespace has such a name.
_LEFT: Final = "."


class _Base(NamedTuple):
    """The files of a run by its journal: the newest snapshot, under which claim, and the agent's rules."""

    at: WorkspaceSnapshot | None
    epoch: int
    rules: Mapping[str, Any]


class _Use(NamedTuple):
    """One call that may write. A task that is over, or told to stop, has no result. `began` is in nanoseconds."""

    task: asyncio.Task[Any] | None
    files: CallFiles | None
    began: int


class _Resident(NamedTuple):
    """One program that may write between calls; see `WorkspaceFolders.resides`."""

    end: EndResident
    firm: bool
    began: int
    over: asyncio.Future[None]


class _Watch:
    """The fences in which programs may write to one folder, and the room that it takes of the disk."""

    def __init__(self, room: FolderRoom) -> None:
        self.room = room
        self.sessions: list[SandboxSession] = []


class _RunFolder:
    """The folder of one run as this process knows it. `sure`: it is what `tree` says, which `head` is the snapshot of.

    Otherwise `tree` is what was seen last, which still tells files that have changed since from those that have not.
    """

    def __init__(self, place: Path, name: str = "") -> None:
        self.place = place
        self.name = name  # namespace/run
        self.turn = asyncio.Lock()
        self.uses: dict[str, _Use] = {}
        self.residents: dict[object, _Resident] = {}
        self.moved: set[str] = set()  # calls whose folder was left to others under them
        self.coming = 0  # calls that wait for their turn, or have it
        # A call was cut off while a firm resident was at work, and the next one has not been told.
        self.half_done = False
        # When the oldest of those began who lived during the last look: they may have changed files unseen since.
        self.doubted: int | None = None
        self.tree: KnownFolder | None = None
        self.sure = False
        self.head: WorkspaceSnapshot | None = None
        self.epoch = -1
        self.inode = 0
        self.stamp = 0  # when the lock was last taken here: who else takes it leaves another time
        self.bounds = Bounds(QUOTA, MOST_FILES)
        self.lock: int | None = None
        self.watch: _Watch | None = None

    @property
    def files(self) -> Path:
        return self.place / FILES

    @property
    def is_idle(self) -> bool:
        return not (self.uses or self.residents or self.coming or self.watch or self.turn.locked())

    @property
    def is_firm(self) -> bool:
        """Whether somebody is at work of whom nothing may be undone."""
        return any(each.firm for each in self.residents.values())


class RunWorkspaces:
    """`WorkspaceFolders` below one folder. `shared` is the one folder that runs of `namespace` share, if there is one.

    Without a `root` the folders are where `scratch_root` has a place for those of a `home`; without that, too, they are
    temporary, and removed on `close`.
    """

    def __init__(
        self,
        journal: Journal,
        root: Path | None,
        *,
        home: Path | None = None,
        shared: Path | None = None,
        namespace: str = "default",
        sources: Sequence[str] = (),
        folders: UserFolders | None = None,
        granted: Mapping[str, float] | None = None,
    ) -> None:
        """`sources` are the folders that runs may begin with a copy of, besides those that the operator declares.

        `folders` are those of agents and users; without them `data/` of a run is as all else. `granted` is the setting
        `sandbox_limits`.
        """
        self._journal = journal
        self._given_root = root
        self._home = home if root is None else None
        self._temporary: str | None = None
        self._shared = shared
        self._namespace = namespace
        self._sources = sources
        self._folders = folders
        # What a folder may hold whose agent says nothing: the operator's bound, where it is less than the default.
        granted = granted or {}
        self._quota = min(QUOTA, int(granted.get("quota", QUOTA)))
        self._most_files = min(MOST_FILES, int(granted.get("max_files", MOST_FILES)))
        self._known: OrderedDict[str, _RunFolder] = OrderedDict()
        self._under_way: set[asyncio.Future[Any]] = set()
        # One folder is walked at a time, so that watching never takes more than a part of one processor.
        self._walking = asyncio.Lock()
        self._watching: set[asyncio.Task[None]] = set()

    def is_shared(self, folder: Path) -> bool:
        """Whether this is the folder that runs share; see `WorkspaceFolders`."""
        return folder == self._shared

    async def access(self, owner: FenceOwner) -> WorkspaceAccess:
        """The most that calls of this run may do with its folder; see `WorkspaceFolders`."""
        base = await self._base(owner)
        if base is None:
            return "read_write" if self._shared_by(owner, {}) is not None else "none"
        declared: WorkspaceAccess = base.rules.get("access", "read_write")
        return declared

    def keeps_data(self, namespace: str, agent: str, rules: Mapping[str, Any]) -> bool:
        """Whether what runs of an agent leave in `data/` is kept for their user; see `WorkspaceFolders`."""
        if self._folders is None or rules.get("access", "read_write") != "read_write":
            return False
        mode = rules.get("mode", "")
        is_shared = mode == "shared" or (mode != "run" and self._shared is not None and namespace == self._namespace)
        return not is_shared and key_of(namespace, agent, "", rules) is not None

    async def folder(self, owner: FenceOwner, *, writes: bool = True) -> Path | None:
        """The folder that calls of this run work on, ready; see `WorkspaceFolders`."""
        base = await self._base(owner)
        rules: Mapping[str, Any] = {} if base is None else base.rules
        access = rules.get("access", "read_write")
        if access == "none":
            return None
        if writes and access == "read_only":
            raise WorkspaceReadOnly(
                f"agent {owner.caller.agent!r} may only read its workspace", layer="workspace", rule="spec.workspace"
            )
        if (shared := self._shared_by(owner, rules)) is not None or base is None:
            return shared
        held = self._run_folder(owner)
        files, key = self._files_of(owner), _lease(owner)
        held.coming += 1
        try:
            async with held.turn:
                try:
                    await self._whole(self._make_ready(held, owner, base, files))
                    if writes:
                        held.uses[key] = use = _Use(asyncio.current_task(), files, time.time_ns())
                        if use.task is not None:
                            use.task.add_done_callback(lambda _: self._gave_up(held, key, use))
                finally:
                    _rest(held)
        finally:
            held.coming -= 1
        return held.files

    async def changed(self, owner: FenceOwner) -> None:
        """Keep what a call changed that is over; see `WorkspaceFolders`."""
        held, key = self._known.get(_key(owner)) if owner.run_id else None, _lease(owner)
        use = held.uses.get(key) if held is not None else None
        if held is not None and key in held.moved:
            raise WorkspaceLost("what the call changed in the workspace is lost: its folder was left to another call")
        if held is None or use is None:
            return
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            self._gave_up(held, key, use)
            return
        try:
            async with held.turn:
                await self._keep(held, owner, use)
        except WorkspaceFull:
            raise
        except BaseException:
            _doubt(held)
            raise
        finally:
            held.uses.pop(key, None)
            _rest_soon(held)

    def resides(self, owner: FenceOwner, end: EndResident, *, firm: bool = False) -> Callable[[], None]:
        """A program works on the folder of the run between calls; see `WorkspaceFolders`."""
        held = self._known.get(_key(owner)) if owner.run_id else None
        use = held.uses.get(_lease(owner)) if held is not None else None
        if held is None or use is None:
            return no_resident
        mark = object()
        over = asyncio.get_running_loop().create_future()
        held.residents[mark] = _Resident(end, firm, use.began, over)
        if not owner.call_id:
            del held.uses[_lease(owner)]

        def gone() -> None:
            if not over.done():
                over.set_result(None)
            if held.residents.pop(mark, None) is not None:
                _rest_soon(held)

        return gone

    def watch(self, owner: FenceOwner, session: SandboxSession) -> None:
        """End a fence when the folder takes more than it may, and undo what is too much; see `WorkspaceFolders`."""
        held = self._known.get(_key(owner)) if owner.run_id else None
        if held is None:
            return
        watch = held.watch
        if watch is None or watch.room.inode != held.inode:
            try:
                watch = held.watch = _Watch(FolderRoom(held.files))
            except OSError:
                return  # the folder was left to others meanwhile, and the call fails for that
            task = asyncio.get_running_loop().create_task(self._watch(held, watch, owner.run_id))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
            task.add_done_callback(self._ended)
        watch.sessions.append(session)

    def ended(self, namespace: str, run_id: str) -> None:
        """A run is over: end what still works on its folder, and remove that. Whatever goes on has the journal."""
        held = self._known.pop(f"{namespace}/{run_id}", None)
        if held is not None:
            task = asyncio.get_running_loop().create_task(self._remove(held))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    async def _remove(self, held: _RunFolder) -> None:
        async with held.turn:
            await self._end_residents(held)
            if not held.uses:  # a call that was told to stop, and has not: what is idle is swept
                await on_thread(_sweep_away, held)

    async def sweep(self, *, idle_for: float) -> int:
        """Remove the folders on this machine that no call has worked on for so many seconds, and those of runs that are
        over. How many that were.

        A run that goes on later has its files restored from the journal.
        """
        removed = 0
        for root in await on_thread(self._roots):
            removed += await on_thread(_sweep, root, time.time() - idle_for)
            for name, place in await on_thread(_left_behind, root):
                with contextlib.suppress(NotFound):
                    info = await self._journal.get(name.partition("/")[2])
                    if info.phase in TERMINAL and name not in self._known:
                        removed += await on_thread(_sweep_away, _RunFolder(place))
        return removed

    async def close(self) -> None:
        """Wait for what is being kept, and remove what is temporary."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching, timeout=STOPS_WITHIN)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=STOPS_WITHIN)
        for held in self._known.values():
            _unlock(held)
        self._known.clear()
        if self._home is not None and self._given_root is not None:
            for place in (self._given_root / RUNS, self._given_root):
                with contextlib.suppress(OSError):  # of others who work there, or of runs that go on
                    place.rmdir()
        if self._temporary is not None:
            place, self._temporary = self._temporary, None
            await on_thread(_remove_all, Path(place))

    async def take_over(self, owner: FenceOwner, before: WorkspaceSnapshot | None, after: WorkspaceSnapshot) -> None:
        """Bring in what a run that began with files of this one has changed; see `WorkspaceFolders`."""
        await self.folder(owner)
        held = self._known.get(_key(owner))
        use = held.uses.get(owner.call_id) if held is not None else None
        if held is None or use is None:
            return  # both work on the same folder
        async with held.turn:
            contested = await self._whole(self._merged(held, owner.run_id, before, after))
        await self.changed(owner)
        if use.files is not None:
            named = (f"{ascii(path)[1:-1][:200]} (something else has changed it meanwhile)" for path in contested)
            use.files.left_out = (*named, *use.files.left_out)

    # --- which folder --------------------------------------------------------------------------------------------

    def _shared_by(self, owner: FenceOwner, rules: Mapping[str, Any]) -> Path | None:
        """The folder that all runs of a namespace share. Raises `WorkspaceLost` when an agent wants one in vain."""
        mode = rules.get("mode", "")
        shared = self._shared if owner.caller.namespace == self._namespace else None
        if mode == "shared" and shared is None:
            raise WorkspaceLost(
                f"agent {owner.caller.agent!r} works on a shared workspace, and there is none here",
                hint="set FOLIOT_WORKSPACE, or leave spec.workspace.mode out",
            )
        return None if mode == "run" else shared

    def _files_of(self, owner: FenceOwner) -> CallFiles | None:
        files = call_files.get()
        return files if files is not None and files.run_id == owner.run_id else None

    async def _base(self, owner: FenceOwner) -> _Base | None:
        """Returns the files of a run by its journal; None outside of any run."""
        if not owner.run_id:
            return None
        if (files := self._files_of(owner)) is not None:
            return _Base(files.at, files.epoch, files.rules)
        info = await self._journal.get(owner.run_id)
        spec = decode_spec(await self._journal.get_blob(info.spec))
        at = newest(await self._journal.read(owner.run_id))
        return _Base(at, info.epoch, spec.extra.get(WORKSPACE_RULES, {}))

    @property
    def _root(self) -> Path:
        if self._given_root is None and self._home is not None:
            self._given_root = scratch_root(self._home)
        if self._given_root is not None:
            return self._given_root
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="foliot-workspaces-")
        return Path(self._temporary)

    def _roots(self) -> list[Path]:
        """The folders below which those of runs may be."""
        roots = [self._given_root, None if self._temporary is None else Path(self._temporary)]
        if self._home is not None:
            roots += [_scratch_place(self._home), self._home / "workspaces"]
        return list(dict.fromkeys(root for root in roots if root is not None and root.is_dir()))

    def _run_folder(self, owner: FenceOwner) -> _RunFolder:
        return self._run_folder_of(owner.caller.namespace, owner.run_id)

    def _run_folder_of(self, namespace: str, run_id: str) -> _RunFolder:
        key = f"{namespace}/{run_id}"
        held = self._known.get(key)
        if held is None:
            for part in (namespace, run_id):
                if not _PART.fullmatch(part):
                    raise InvalidInput(f"{part!r} cannot be the name of a folder for the workspace of a run")
            held = self._known[key] = _RunFolder(place_of(self._root, namespace, run_id), key)
        self._known.move_to_end(key)
        for name in [name for name, each in self._known.items() if each.is_idle]:
            if len(self._known) <= REMEMBERED:
                break
            if name != key:
                del self._known[name]
        return held

    def _gave_up(self, held: _RunFolder, key: str, use: _Use) -> None:
        """Ends a use without a result: the next call begins where the last result left off."""
        held.moved.discard(key)
        if held.uses.get(key) is use:
            del held.uses[key]
            _doubt(held)
            _rest_soon(held)

    # --- before a call -------------------------------------------------------------------------------------------

    async def _make_ready(self, held: _RunFolder, owner: FenceOwner, base: _Base, files: CallFiles | None) -> None:
        run_id = owner.run_id
        await self._end_of_stopped(held, base.epoch)
        held.bounds = Bounds(base.rules.get("quota", self._quota), base.rules.get("max_files", self._most_files))
        # A snapshot of this claim that is newer than what the driver knew when it started the call is on its way into
        # the journal. One of an earlier claim never arrived.
        same_claim = held.epoch == base.epoch
        newer = same_claim and _number(held.head) > _number(base.at)
        wanted = held.head if newer or (same_claim and _is_same(held.head, base.at)) else base.at
        source = base.rules.get("source", "")
        if not (wanted is None and source):
            wanted = await self._with_folder(held, owner, base, wanted, files)
        behind = _digest(wanted) != _digest(held.head)
        # Half done, or not by somebody else's leave: it is undone, but for when others are at work who would lose too.
        stays = held.sure or bool(held.uses) or held.is_firm
        if stays and (same_claim or not behind) and await on_thread(_take_as_it_was, held):
            if behind:
                await self._bring(held, run_id, wanted)
            held.epoch, held.head = base.epoch, wanted
            if files is not None and (held.half_done or not held.sure):
                files.not_undone, held.half_done = True, False
            return
        if held.uses:
            raise WorkspaceLost(
                f"the workspace of run {run_id} has to be restored, and another call is still at work on it",
                hint="call again when it is over",
            )
        await self._end_residents(held)
        held.epoch, held.head, held.sure, held.half_done = base.epoch, wanted, False, False
        if wanted is None and source:
            await self._seed(held, owner, base, source, files)
        else:
            await self._restore(held, run_id, wanted)

    async def _with_folder(
        self,
        held: _RunFolder,
        owner: FenceOwner,
        base: _Base,
        at: WorkspaceSnapshot | None,
        files: CallFiles | None,
    ) -> WorkspaceSnapshot | None:
        """Returns the files of a run with the folder of its user, which it comes to now if it has not done so."""
        caller = owner.caller
        key = key_of(caller.namespace, caller.agent, caller.user, base.rules)
        if self._folders is None or key is None:
            return at
        if at is not None and at.data is not None and at.data.owner == key.owner:
            return at
        try:
            begun = await self._folders.begin(key, owner.run_id, at)
        except FoliotError as error:
            raise _not_restored(owner.run_id, error) from error
        if files is not None and begun.number != _number(at):
            files.keep(begun, lambda: _forget(held, begun, at))
        return begun

    async def _end_of_stopped(self, held: _RunFolder, epoch: int) -> None:
        """Wait for calls that were told to stop, or are of an earlier claim. Folders of those that stay are left."""
        for key, use in list(held.uses.items()):
            old = use.files is not None and use.files.epoch < epoch
            if use.task is None or not (old or use.task.done() or use.task.cancelling()):
                continue
            if not use.task.done():
                await asyncio.wait([use.task], timeout=STOPS_WITHIN)
            if key in held.uses:
                del held.uses[key]
                _doubt(held)
                if not use.task.done():
                    held.moved.add(key)
                    await self._end_residents(held)
                    await self._leave_to_others(held)

    async def _end_residents(self, held: _RunFolder) -> None:
        """End the programs that work on a folder between calls. It is left to those that stay."""
        if not held.residents:
            return
        ending = [asyncio.ensure_future(each.end()) for each in held.residents.values()]
        for task in ending:
            self._under_way.add(task)
            task.add_done_callback(self._ended)
        await asyncio.wait(ending, timeout=STOPS_WITHIN)
        if held.residents:
            log.warning("%s: a program did not end, and keeps its folder; the run gets a new one", held.place)
            await self._leave_to_others(held)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a program that worked on a workspace could not be ended: %s", error)

    async def _leave_to_others(self, held: _RunFolder) -> None:
        held.residents.clear()
        held.moved |= held.uses.keys()
        held.uses.clear()
        held.sure = False
        await on_thread(_leave, held)

    async def _bring(self, held: _RunFolder, run_id: str, snapshot: WorkspaceSnapshot | None) -> None:
        """Bring what a later snapshot of the same claim changed into the folder, beside whoever works on it."""
        await self._merged(held, run_id, held.head, snapshot, careful=False)

    async def _merged(
        self,
        held: _RunFolder,
        run_id: str,
        before: WorkspaceSnapshot | None,
        after: WorkspaceSnapshot | None,
        *,
        careful: bool = True,
    ) -> list[str]:
        try:
            was = await WorkspaceTree.load(self._journal.get_blob, _digest(before))
            now = await WorkspaceTree.load(self._journal.get_blob, _digest(after))
            return await on_thread(_merge_into, held, was, now, self._fetching(), careful)
        except (OSError, FoliotError) as error:
            raise _not_restored(run_id, error) from error

    async def _restore(self, held: _RunFolder, run_id: str, snapshot: WorkspaceSnapshot | None) -> None:
        """Make the folder equal to a snapshot, and take its lock."""
        held.sure = False
        wanted = _digest(snapshot)
        try:
            tree = await WorkspaceTree.load(self._journal.get_blob, wanted)
            seen = await on_thread(_make_equal, held, tree, self._fetching())
        except (OSError, FoliotError) as error:
            raise _not_restored(run_id, error) from error
        if seen.digest != wanted:
            raise WorkspaceLost(f"the workspace of run {run_id} changes while it is restored")
        held.tree, held.head, held.sure, held.doubted = seen.root, snapshot, True, None

    async def _seed(
        self, held: _RunFolder, owner: FenceOwner, base: _Base, source: str, files: CallFiles | None
    ) -> None:
        """Begin with a copy of a folder, which is in the journal before the first call that sees it has a result."""
        run_id, held.sure = owner.run_id, False
        try:
            granted = None if base.rules.get("trusted") else self._sources
            copied = await on_thread(_look_at_source, source, granted, held.bounds, self._storing(run_id))
        except (OverBounds, OSError) as error:
            why = error.message if isinstance(error, OverBounds) else (error.strerror or type(error).__name__)
            raise WorkspaceLost(f"spec.workspace.source: {source} cannot be copied: {why}") from None
        copy = WorkspaceSnapshot(copied.digest, 1, copied.files, copied.size)
        snapshot = await self._with_folder(held, owner, base, copy, None) or copy
        await self._restore(held, run_id, snapshot)
        if files is not None:
            files.keep(snapshot, lambda: _forget(held, snapshot, None))

    # --- after a call --------------------------------------------------------------------------------------------

    async def _keep(self, held: _RunFolder, owner: FenceOwner, use: _Use) -> None:
        others = [each.began for each in held.uses.values() if each is not use]
        others += [each.began for each in held.residents.values()]
        try:
            seen = await self._whole(on_thread(_look_at, held, self._storing(owner.run_id)))
        except OverBounds as error:
            del held.uses[_lease(owner)]
            undone = await self._whole(self._undo(held, owner.run_id))
            raise WorkspaceFull(
                f"the workspace may not hold what this call left: {error.message}; {undone}",
                hint="write less, or delete what is no longer needed; spec.workspace.quota of the agent is the limit",
                bound=error.what,
            ) from None
        except OSError as error:
            raise WorkspaceLost(
                f"what the call changed in the workspace could not be kept: {error.strerror or error}"
            ) from error
        held.doubted = min(others, default=None)
        self._note(held, seen, use.files)
        if use.files is not None:
            use.files.left_out = seen.left_out

    async def _undo(self, held: _RunFolder, run_id: str) -> str:
        """Go back to what was kept last, unless others are at work; says what was done."""
        if held.watch is not None and not any(each.alive for each in held.watch.sessions):
            await _end_of_jobs(held)
        if held.is_firm:
            return "it was not undone, because a job is running: delete what is too much, or the job is ended as well"
        if held.uses:
            held.sure = False
            return "it was not undone yet, because other calls are at work: delete what is too much"
        ended = ", and programs that worked on it were ended" if held.residents else ""
        await self._end_residents(held)
        await self._restore_anew(held, run_id)
        before = "there was nothing in it before"
        if held.head is not None:
            before = f"before it there were {held.head.files:,} files of {held.head.size:,} bytes"
        return f"what it changed was undone{ended} ({before})"

    async def _restore_anew(self, held: _RunFolder, run_id: str) -> None:
        """Go back to what was kept last, in a new folder: what is set aside for files is in no snapshot."""
        await on_thread(_remove_all, held.files)
        held.tree = None
        await self._restore(held, run_id, held.head)

    async def _watch(self, held: _RunFolder, watch: _Watch, run_id: str) -> None:
        """Look at what a folder takes of the disk for as long as a fence is open on it."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY)
                watch.sessions = [each for each in watch.sessions if each.alive]
                if not watch.sessions:
                    return
                if not watch.room.is_due(held.bounds):
                    continue
                sessions, room = watch.sessions, watch.room

                def unlinked(sessions: Sequence[SandboxSession] = sessions, room: FolderRoom = room) -> int:
                    return sum(each.unlinked(room.device) for each in sessions)

                try:
                    async with self._walking:
                        await self._whole(on_thread(watch.room.check, held.bounds, unlinked))
                except OverBounds as error:
                    log.warning("run %s: its programs were ended: in the workspace %s", run_id, error.message)
                    await asyncio.gather(*(each.kill("workspace") for each in watch.sessions))
                    await self._undo_unwatched(held, watch, run_id)
                except OSError as error:
                    log.warning("run %s: its workspace cannot be watched: %s", run_id, error.strerror)
        finally:
            if held.watch is watch:
                held.watch = None
            watch.room.close()

    async def _undo_unwatched(self, held: _RunFolder, watch: _Watch, run_id: str) -> None:
        """Undo what programs left that were ended between calls. A call that is at work is told at its end."""
        await _end_of_jobs(held)
        async with held.turn:
            if held.uses or held.inode != watch.room.inode or held not in self._known.values():
                return
            await self._whole(self._end_residents(held))
            await self._whole(self._restore_anew(held, run_id))
            _rest(held)

    def _note(self, held: _RunFolder, seen: Seen, files: CallFiles | None) -> None:
        """Remember what was seen, and have it recorded with the result of the call if it is something new."""
        held.tree, held.sure = seen.root, True
        before = held.head
        if seen.digest == _digest(before):
            return
        data = None if before is None or before.data is None else _data_in(seen.root, before.data)
        held.head = snapshot = WorkspaceSnapshot(seen.digest, _number(before) + 1, seen.files, seen.size, data)
        if files is not None:
            files.keep(snapshot, lambda: _forget(held, snapshot, before))

    # --- how it is done ------------------------------------------------------------------------------------------

    async def _whole(self, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
        """Await work to its end even when whoever waits for it is cancelled: threads cannot be stopped halfway."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # nobody wants it any more
            raise

    def _storing(self, run_id: str) -> Store:
        loop = asyncio.get_running_loop()

        def store(contents: Sequence[bytes]) -> None:
            asyncio.run_coroutine_threadsafe(self._journal.put_blobs(contents, run_id=run_id), loop).result()

        return store

    def _fetching(self) -> FetchMany:
        loop = asyncio.get_running_loop()

        async def get(digests: Sequence[str]) -> dict[str, bytes]:
            found: dict[str, bytes] = {}
            wanted = sorted(set(digests))
            for begin in range(0, len(wanted), AT_ONCE):
                some = wanted[begin : begin + AT_ONCE]
                found.update(zip(some, await asyncio.gather(*map(self._journal.get_blob, some)), strict=True))
            return found

        def fetch(digests: Sequence[str]) -> Mapping[str, bytes]:
            return asyncio.run_coroutine_threadsafe(get(digests), loop).result()

        return fetch


async def _end_of_jobs(held: _RunFolder) -> None:
    """Wait for jobs whose fences were ended: each notes how it ended, and lets the folder go."""
    if jobs := [each.over for each in held.residents.values() if each.firm]:
        await asyncio.wait(jobs, timeout=STOPS_WITHIN)


def _number(snapshot: WorkspaceSnapshot | None) -> int:
    return 0 if snapshot is None else snapshot.number


def _digest(snapshot: WorkspaceSnapshot | None) -> str:
    return EMPTY if snapshot is None else snapshot.digest


def _is_same(known: WorkspaceSnapshot | None, at: WorkspaceSnapshot | None) -> bool:
    """Whether these are the same files, of which more may be known here: that the run has come to a folder."""
    return known is not None and (known.digest, known.number) == (_digest(at), _number(at))


def _data_in(root: KnownFolder, data: FolderFiles) -> FolderFiles:
    """Returns the folder of a user as it was seen. Something else in its place leaves it as it was."""
    found = next((entry for entry in root.entries if entry.name == DATA), None)
    if found is not None and found.kind != "folder":
        return data
    if found is None:
        return replace(data, now=EMPTY, files=0, size=0)
    if found.content == data.now:
        return data
    files, size = counted(root.folders[DATA][1])
    return replace(data, now=found.content, files=files, size=size)


def _forget(held: _RunFolder, snapshot: WorkspaceSnapshot, before: WorkspaceSnapshot | None) -> None:
    """Go back behind a snapshot that is not recorded, unless a later one was taken, which holds it too."""
    if held.head is snapshot:
        held.head = before
        _doubt(held)


def _doubt(held: _RunFolder) -> None:
    """Have what a call left that has no result undone before the next one. Never while a firm resident is at work."""
    if held.is_firm:
        held.half_done = True
    else:
        held.sure = False


def _rest(held: _RunFolder) -> None:
    """Give the folder up when it is not held any more. Only the one who has the turn does so."""
    if not held.uses and not held.residents:
        _unlock(held)


def _rest_soon(held: _RunFolder) -> None:
    """Give the folder up as `_rest`, unless another has the turn, who does it at its end."""
    if not held.turn.locked():
        _rest(held)


def _not_restored(run_id: str, error: OSError | FoliotError) -> FoliotError:
    if isinstance(error, FoliotError) and error.retryable:
        return error
    what = error.message if isinstance(error, FoliotError) else (error.strerror or type(error).__name__)
    return WorkspaceLost(f"the workspace of run {run_id} could not be restored: {what}")


def _key(owner: FenceOwner) -> str:
    return f"{owner.caller.namespace}/{owner.run_id}"


def _lease(owner: FenceOwner) -> str:
    """The name under which a folder is held: that of the call, or of the task of whoever has none."""
    return owner.call_id or f" {id(asyncio.current_task())}"


# --- on threads ------------------------------------------------------------------------------------------------------


def _take_as_it_was(held: _RunFolder) -> bool:
    """Take the lock of a folder that no other process has worked on since this one did. False when it is not so.

    What jobs of the run, which go on between its calls, have changed there meanwhile stays. One that is locked already
    may have been moved away by another process.
    """
    try:
        if os.stat(held.files, follow_symlinks=False).st_ino != held.inode:
            return False
        lock = os.stat(held.place / LOCK, follow_symlinks=False)
        if held.lock is not None:
            return os.path.samestat(lock, os.fstat(held.lock))
        if lock.st_mtime_ns != held.stamp:
            return False
    except OSError:
        return False
    return _lock(held)


def _lock(held: _RunFolder) -> bool:
    """Take the lock of a folder, which must be there; False when another process has it."""
    if held.lock is not None:
        return True
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(held.place / LOCK, flags, 0o600)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.path.samestat(os.fstat(descriptor), os.stat(held.place / LOCK, follow_symlinks=False))
    except OSError:
        same = False
    if not same:
        os.close(descriptor)
        return False
    if held.name and not os.fstat(descriptor).st_size:
        os.write(descriptor, held.name.encode())
    os.utime(descriptor)  # when it was last used, for whoever sweeps
    held.lock, held.stamp = descriptor, os.fstat(descriptor).st_mtime_ns
    return True


def _unlock(held: _RunFolder) -> None:
    if held.lock is not None:
        os.close(held.lock)
        held.lock = None


def _claim(held: _RunFolder) -> None:
    """Take the folder of a run, made if need be. One that somebody else holds is left to them."""
    for _ in range(8):
        with contextlib.suppress(FileNotFoundError):  # somebody tidied up an empty folder on the way
            held.place.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held.place.parent.mkdir(mode=0o700, exist_ok=True)
            held.place.mkdir(mode=0o700, exist_ok=True)
            if _lock(held):
                held.files.mkdir(mode=0o700, exist_ok=True)
                return
            _leave(held)
    raise OSError("the folder cannot be taken")


def _leave(held: _RunFolder) -> None:
    """Leave the folder to whoever still writes to it, by moving it out of the way."""
    _unlock(held)
    with contextlib.suppress(FileNotFoundError):
        os.rename(held.place, held.place.parent / f"{_LEFT}{held.place.name}-{secrets.token_hex(4)}")


@contextlib.contextmanager
def _open_files(held: _RunFolder) -> Generator[int]:
    """A descriptor of the files of a run, which its owner may read and write whatever a call made of that."""
    outer = os.open(held.place, FOLDER)
    try:
        root = opened(outer, FILES, FOLDER, 0o700)
    finally:
        os.close(outer)
    try:
        os.fchmod(root, 0o700)
        held.inode = os.fstat(root).st_ino
        yield root
    finally:
        os.close(root)


def _make_equal(held: _RunFolder, tree: WorkspaceTree, fetch: FetchMany) -> Seen:
    if held.lock is not None and not _take_as_it_was(held):
        _unlock(held)
    _claim(held)
    inode = held.inode
    with _open_files(held) as root:
        hint = held.tree if held.inode == inode else None
        try:
            now = look(root, hint, held.bounds, doubted=held.doubted)
        except OverBounds:  # what a call that was cut off left may be more than it may leave
            now = None
        if now is not None and now.digest == tree.root and not now.left_out:
            return now
        restore(root, None if now is None else now.root, tree, fetch)
        return look(root, None if now is None else now.root, NO_BOUNDS)


def _merge_into(
    held: _RunFolder, before: WorkspaceTree, after: WorkspaceTree, fetch: FetchMany, careful: bool
) -> list[str]:
    with _open_files(held) as root:
        return merge(root, before, after, fetch, careful=careful)


def _look_at(held: _RunFolder, store: Store) -> Seen:
    if held.lock is None or not _take_as_it_was(held):
        raise OSError(errno.ESTALE, "another process has taken the folder")
    with _open_files(held) as root:
        return look(root, held.tree, held.bounds, store, doubted=held.doubted)


def _look_at_source(source: str, granted: Sequence[str] | None, bounds: Bounds, store: Store) -> Seen:
    """Look through the folder that a run begins with, which must lie in a granted one; None for any.

    Whoever granted it is trusted with what is hard-linked there.
    """
    root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if granted is not None:
            place = Path(os.path.realpath(f"/proc/self/fd/{root}") if _PROC else os.path.realpath(source))
            if not any(place.is_relative_to(os.path.realpath(each)) for each in granted):
                raise PermissionError(0, "it does not lie in a folder that is granted (workspace_sources)")
        return look(root, None, bounds, store, outside_links=True)
    finally:
        os.close(root)


def _sweep(root: Path, before: float) -> int:
    """Remove folders whose lock is free and was last taken before a time."""
    removed = 0
    for space in _folders_in(root):
        for place in _folders_in(space):
            with contextlib.suppress(OSError):
                used = place / LOCK if (place / LOCK).exists() else place
                if os.stat(used, follow_symlinks=False).st_mtime < before:
                    removed += _sweep_away(_RunFolder(place))
    return removed


def _sweep_away(held: _RunFolder) -> bool:
    """Remove the folder of a run that nobody works on. False when somebody does, or there is none."""
    with contextlib.suppress(OSError):
        if held.lock is None and not _lock(held):
            return False
        try:
            # Moved away under its lock: whoever takes up the run at this moment makes a new one.
            away = held.place.parent / f"{_LEFT}swept-{secrets.token_hex(8)}"
            os.rename(held.place, away)
            _remove_all(away)
            return True
        finally:
            _unlock(held)
    return False


def _left_behind(root: Path) -> list[tuple[str, Path]]:
    """The names of runs, with the folder of each, that nobody has taken for a moment."""
    found: list[tuple[str, Path]] = []
    for place in _folders_in(root / RUNS):
        with contextlib.suppress(OSError):
            idle = time.time() - os.stat(place / LOCK, follow_symlinks=False).st_mtime
            if idle > LEFT_FOR and not place.name.startswith(_LEFT):
                found.append(((place / LOCK).read_text(encoding="utf-8", errors="replace"), place))
    return found[:MOST_SWEPT]


def place_of(root: Path, namespace: str, run_id: str) -> Path:
    """The folder of a run below a root. Its name tells a program that can read it nothing."""
    return root / RUNS / hashlib.sha256(f"{namespace}/{run_id}".encode()).hexdigest()[:32]


def scratch_root(home: Path) -> Path:
    """The root of the folders of runs of an installation: in `/var/tmp`, so that its path says nothing of anybody.

    In the home folder where there is no such place, or somebody else has it.
    """
    place = _scratch_place(home)
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(place)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return place
    return home / "workspaces"


def _scratch_place(home: Path) -> Path:
    return SCRATCH / f"foliot-{hashlib.sha256(f'{os.geteuid()} {home}'.encode()).hexdigest()[:16]}"


def _folders_in(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as found:
            return [Path(item.path) for item in found if item.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _remove_all(place: Path) -> None:
    with contextlib.suppress(OSError):
        outer = os.open(place.parent, FOLDER)
        try:
            remove(outer, outer, place.name)
        finally:
            os.close(outer)
