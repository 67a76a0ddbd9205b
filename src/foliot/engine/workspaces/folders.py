"""The folders of agents and users: laid into `data/` of the workspaces of runs, and changed by what runs leave there.

A run comes to the folder of its user with its first call that works on files (`begin`); a run without such a call reads
and writes nothing of it. What a call changes in `data/` is in the snapshot of its result first. Then the driver brings
it into the folder (`work_out`), in the transaction that stores a `FolderKept`: so it is done once, whoever goes on with
the run, and whoever takes up a run brings in first what it had recorded.

Runs of one user may change the folder at the same time. What a run changed is worked out from what it began with, path
by path: what only one of them changed is taken as it is, and where both changed a file, the folder keeps both. The one
that came first keeps its name; that of the run is beside it, as `NAME.conflict-RUN.SUFFIX`.

A folder is a row in the store and trees by digest. No name of a user or an agent is ever a part of a path.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from foliot.engine.workspaces.trees import (
    EMPTY,
    PIECE,
    Fetch,
    TreeEntry,
    WorkspaceTree,
    content_of,
    decode_pieces,
    entries_of,
    fetching,
    from_stored,
    newest,
    put_folder,
    to_stored,
)
from foliot.kernel.identity import is_name
from foliot.kernel.run.events import FolderFiles, FolderKept, WorkspaceSnapshot
from foliot.kernel.run.state import State
from foliot.store.folders import FolderChange, FolderKey, SqlFolders, change_body
from foliot.store.journal.base import Journal, LockingBody
from foliot.tools.workspaces import WORKSPACE_RULES

FOLDER: Final = "data"
# What a folder may have when its agent does not declare a quota: as much as the workspace of a run, of which it is a
# part. So a call that leaves too much fails, and nothing that a call was told is kept is refused at the end of the run.
QUOTA: Final = 1024**3
MOST_FILES: Final = 100_000
# In bytes of UTF-8, as file systems allow it.
LONGEST_NAME: Final = 255
LONGEST_SUFFIX: Final = 16
DELETED: Final = "the folder was deleted after the run had begun with it"
_MODE: Final = 0o755


def key_of(namespace: str, agent: str, user: str, rules: Mapping[str, Any]) -> FolderKey | None:
    """Returns the folder of a run that acts for `user`; None where its agent keeps none.

    An agent whose runs begin with a copy of a folder has what that has in `data/`, unless it says otherwise.
    """
    kept = rules.get("data", "none" if rules.get("source") else "user")
    if kept == "none" or not agent or (user and not is_name(user)):
        return None
    return FolderKey(namespace, agent, user)


class WorkedOut(NamedTuple):
    """The event to record of a change to a folder, and the transaction body that makes it; None when none is."""

    event: FolderKept
    body: LockingBody | None = None


class UserFolders:
    """The folders of agents and users, for the runs that work on them."""

    def __init__(self, journal: Journal, stored: SqlFolders, *, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._stored = stored
        self._clock = clock

    async def begin(self, key: FolderKey, run_id: str, at: WorkspaceSnapshot | None) -> WorkspaceSnapshot:
        """Returns the files of a run with the folder of its user in `data/`, which is the run's content from now on.

        What the files had there already stays, but for what the folder has under the same path.
        """
        snapshot = WorkspaceSnapshot(EMPTY, 0) if at is None else at
        root = await entries_of(self._journal.get_blob, snapshot.digest)
        own = root.get(FOLDER)
        mine = own.content if own is not None and own.kind == "folder" else EMPTY
        folder = await self._stored.find(key)
        if folder is not None and folder.tree != EMPTY:
            folder = await self._stored.lend(key, run_id)
        life, tree = ("", EMPTY) if folder is None else (folder.life, folder.tree)
        if tree == EMPTY:
            counted = await _measured(self._journal.get_blob, mine)
            return replace(snapshot, data=FolderFiles(key.owner, EMPTY, mine, life, counted.files, counted.size))
        content: dict[str, bytes] = {}
        now = await _Merge(self._journal.get_blob, "", content).overlay(mine, tree)
        before, after = (
            await _measured(self._journal.get_blob, mine),
            await _measured(fetching(self._journal, content), now),
        )
        mode = own.mode if own is not None and own.kind == "folder" else _MODE
        root[FOLDER] = TreeEntry(FOLDER, "folder", mode, 0, now)
        digest = put_folder(root, content)
        await self._journal.put_blobs(list(content.values()), run_id=run_id)
        gone = 0 if own is None else own.size
        return WorkspaceSnapshot(
            digest,
            snapshot.number + 1,
            snapshot.files - before.files + after.files + (own is None),
            snapshot.size - before.size - gone + after.size,
            FolderFiles(key.owner, tree, now, life, after.files, after.size),
        )

    async def work_out(self, state: State) -> WorkedOut:
        """Works out what a run changes in the folder of its user: what to record, and how it is done with that.

        Raises `NotFound` when content is gone.
        """
        data = None if state.workspace is None else state.workspace.data
        assert data is not None, "asked only when there is something to keep"
        rules = state.spec.extra.get(WORKSPACE_RULES, {})
        key = key_of(state.spec.namespace, state.spec.agent, state.identity.user, rules)
        if key is None or key.owner != data.owner:
            return WorkedOut(FolderKept(data.now, refused="the run keeps no folder for this user"))
        folder = await self._stored.find(key)
        life, theirs = ("", EMPTY) if folder is None else (folder.life, folder.tree)
        if (known := state.folder_life or data.life) and known != life:
            return WorkedOut(FolderKept(data.now, refused=DELETED))
        content: dict[str, bytes] = {}
        fetch = fetching(self._journal, content)
        merge = _Merge(fetch, state.run_id, content)
        tree = await merge.folder(state.folder_base, theirs, data.now, "")
        new_life = life or secrets.token_hex(8)
        event = FolderKept(data.now, tree, dict(sorted(merge.conflicts.items())), life=new_life)
        if tree == theirs:
            return WorkedOut(event if life else replace(event, life=""))
        size = await _measured(fetch, tree)
        most, largest = rules.get("max_files", MOST_FILES), rules.get("quota", QUOTA)
        if size.files > most or size.size > largest:
            had, has = f"{size.files:,} files of {size.size:,} bytes", f"{most:,} of {largest:,}"
            return WorkedOut(FolderKept(data.now, refused=f"the folder would have {had}, and may have {has}"))
        content = {name: blob for name, blob in content.items() if name in size.digests}
        change = FolderChange(
            key, life, theirs, tree, size.files, size.size, size.digests, content, new_life, state.run_id
        )
        return WorkedOut(event, change_body(change, self._clock()))


async def without_data(journal: Journal, snapshot: WorkspaceSnapshot) -> tuple[WorkspaceSnapshot, dict[str, bytes]]:
    """Returns a snapshot without the folder of a user in it, and the content of it that is new.

    For a run that goes on with the files of another: it comes to the folder of its own user as that is by then.
    """
    if snapshot.data is None:
        return snapshot, {}
    root, content = await entries_of(journal.get_blob, snapshot.digest), dict[str, bytes]()
    own, data = root.get(FOLDER), snapshot.data
    if own is None or own.kind != "folder":
        return replace(snapshot, data=None), {}
    del root[FOLDER]
    files, size = snapshot.files - data.files - 1, snapshot.size - data.size
    return WorkspaceSnapshot(put_folder(root, content), snapshot.number + 1, files, size), content


async def begun_by(journal: Journal, run_id: str) -> FolderFiles | None:
    """Returns the folder that a run has begun with; None when it never came to one."""
    found = newest(await journal.read(run_id))
    return None if found is None else found.data


async def with_data(
    journal: Journal, snapshot: WorkspaceSnapshot | None, data: FolderFiles, known: Mapping[str, bytes]
) -> tuple[WorkspaceSnapshot, dict[str, bytes]]:
    """Returns a snapshot with the folder of a user as another run began with it, and the content that it names.

    For a run that shares the past of that one: what the other changed in it since is not there, so it is not done a
    second time on top of it. `known` is content that is not stored yet.
    """
    snapshot = snapshot or WorkspaceSnapshot(EMPTY, 0)
    fetch = fetching(journal, known)
    begun = await _measured(fetch, data.begun)
    data = replace(data, now=data.begun, files=begun.files, size=begun.size)
    if data.begun == EMPTY:
        return replace(snapshot, data=data), {}
    root, content = await entries_of(fetch, snapshot.digest), dict[str, bytes]()
    own = root.get(FOLDER)
    if own is not None:  # what was there came to be outside of any folder
        return snapshot, {}
    root[FOLDER] = TreeEntry(FOLDER, "folder", _MODE, 0, data.begun)
    digest = put_folder(root, content)
    files, size = snapshot.files + begun.files + 1, snapshot.size + begun.size
    grafted = WorkspaceSnapshot(digest, snapshot.number + 1, files, size, data)
    return grafted, {**content, **await content_of(journal, grafted, {**known, **content})}


# --- trees -----------------------------------------------------------------------------------------------------------


class _Measured(NamedTuple):
    files: int
    size: int
    digests: frozenset[str]


async def _measured(fetch: Fetch, root: str) -> _Measured:
    """Counts what a tree has, and names all of its content."""
    if root == EMPTY:
        return _Measured(0, 0, frozenset())
    tree = await WorkspaceTree.load(fetch, root)
    digests, files, size = set(tree.blobs), 0, 0
    for _, entry in tree.walk():
        files += 1
        size += entry.size
        if entry.kind == "file":
            digests.add(entry.content)
            if entry.size > PIECE:
                digests.update(decode_pieces(await fetch(entry.content)))
    return _Measured(files, size, frozenset(digests))


class _Merge:
    """Merges trees; folders that are new are put into `content`. Equal folders are not looked into."""

    def __init__(self, fetch: Fetch, run_id: str, content: dict[str, bytes]) -> None:
        self._fetch = fetch
        self._run_id = run_id
        self._content = content
        self.conflicts: dict[str, str] = {}

    async def overlay(self, lower: str, upper: str) -> str:
        """Returns a folder with what is in both; where both have something, that of `upper`."""
        if lower in (EMPTY, upper) or upper == EMPTY:
            return lower if upper == EMPTY else upper
        entries = await entries_of(self._fetch, lower)
        for name, over in (await entries_of(self._fetch, upper)).items():
            under = entries.get(name)
            if under is not None and under.kind == over.kind == "folder":
                over = replace(over, content=await self.overlay(under.content, over.content))
            entries[name] = over
        return put_folder(entries, self._content)

    async def folder(self, base: str, theirs: str, ours: str, path: str) -> str:
        """Returns a folder that has what both sides changed since `base`."""
        if ours in (base, theirs):
            return theirs
        if theirs == base:
            return ours
        sides = [await entries_of(self._fetch, digest) for digest in (base, theirs, ours)]
        merged: dict[str, TreeEntry] = {}
        beside: list[tuple[str, TreeEntry | None, TreeEntry]] = []
        for name in sorted(sides[0].keys() | sides[1].keys() | sides[2].keys()):
            was, their, our = (side.get(name) for side in sides)
            found = await self._entry(was, their, our, path + from_stored(name), beside)
            if found is not None:
                merged[name] = found
        for where, was, our in beside:
            self._put_beside(merged, where, was, our)
        return put_folder(merged, self._content)

    def _put_beside(self, merged: dict[str, TreeEntry], path: str, was: TreeEntry | None, our: TreeEntry) -> None:
        """Keeps our version of a file beside that of others, where it takes the place of nothing but `was`.

        What is there under its name may be another file's, or was changed by others since this run kept it: then it
        has a name that its content is a part of.
        """
        mine = [(each.kind, each.content) for each in (was, our) if each is not None]
        name = _conflict_name(our.path_name, self._run_id)
        there = merged.get(to_stored(name))
        if there is not None and (there.kind, there.content) not in mine:
            name = _conflict_name(our.path_name, f"{self._run_id} {path} {our.content}")
        merged[to_stored(name)] = replace(our, name=to_stored(name))
        above, slash, _ = path.rpartition("/")
        self.conflicts[_shown(path)] = _shown(f"{above}{slash}{name}")

    async def _entry(
        self,
        was: TreeEntry | None,
        their: TreeEntry | None,
        our: TreeEntry | None,
        path: str,
        beside: list[tuple[str, TreeEntry | None, TreeEntry]],
    ) -> TreeEntry | None:
        if our in (was, their):
            return their
        if their == was:
            return our
        if _is_folder(their) and _is_folder(our):
            return await self._both(was, their, our, path)
        if our is None or their is None:
            kept = their if our is None else our
            if _is_folder(kept) and _is_folder(was):
                # Deleted on one side: what the other has changed in it stays.
                found = await self._both(was, their, our, path)
                return None if found.content == EMPTY else found
            if kept is not None:
                self.conflicts[_shown(path)] = _shown(path)
            return kept
        beside.append((path, was, our))
        return their

    async def _both(
        self, was: TreeEntry | None, their: TreeEntry | None, our: TreeEntry | None, path: str
    ) -> TreeEntry:
        base, left, right = (each.content if _is_folder(each) and each else EMPTY for each in (was, their, our))
        kept = their or our
        assert kept is not None, "one side has a folder"
        mode = kept.mode
        if was is not None and their is not None and our is not None and their.mode == was.mode:
            mode = our.mode
        return replace(kept, mode=mode, content=await self.folder(base, left, right, f"{path}/"))


def _is_folder(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.kind == "folder"


def _conflict_name(name: str, whose: str) -> str:
    """Returns where a version of a file is kept: the same name for the same run, or whatever tells it from others."""
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix.encode("utf-8", "surrogateescape")) > LONGEST_SUFFIX:
        stem, dot, suffix = name, "", ""
    mark = hashlib.sha256(whose.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    tail = f".conflict-{mark}{dot}{suffix}"
    room = LONGEST_NAME - len(tail.encode("utf-8", "surrogateescape"))
    return stem.encode("utf-8", "surrogateescape")[:room].decode("utf-8", "ignore") + tail


def _shown(path: str) -> str:
    return f"{FOLDER}/{path}".encode("utf-8", "replace").decode()
