"""The folders that agents keep for users: one row each, with the digest of its newest tree and all content of that.

A folder is changed in the transaction that stores the event of the run that changed it, and only if it still is what
the change was worked out from (`change`): of two who change it at once, the second works its change out again.

Written by:  the driver of a run (`engine/workspaces/folders.py`), and whoever deletes one.
Read by:     runs that begin, and the verbs that show folders.
Invariant:   `folder_content` names exactly the content of `tree`; a purge keeps it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from foliot.common.cursors import read_cursor, write_cursor
from foliot.common.pages import Part
from foliot.errors import Conflict, NotFound
from foliot.store.base import Database
from foliot.store.content import put_content
from foliot.store.journal.base import LockingBody, TransactionBody
from foliot.store.transaction import Row, Tx, one, run

TRIES: Final = 3
_CURSOR: Final = "folders"


class FolderKey(Struct, frozen=True):
    """The name of a folder: an agent's for a user, in a namespace. A blank user is for runs that have none."""

    namespace: str
    agent: str
    user: str = ""

    @property
    def owner(self) -> str:
        """The name that journals have for it: the same for the same three texts, and for no others."""
        text = json.dumps([self.namespace, self.agent, self.user], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class UserFolder(Struct, frozen=True):
    """A folder as it is now: `tree` is the digest of its root, `run_id` the run that changed it last.

    `files` counts folders and links too; `size` is in bytes. `life` tells it from one that was deleted before.
    """

    namespace: str
    agent: str
    user: str
    life: str
    tree: str
    files: int
    size: int
    run_id: str
    created_at: float
    changed_at: float

    @property
    def key(self) -> FolderKey:
        return FolderKey(self.namespace, self.agent, self.user)


class FolderChange(NamedTuple):
    """A change of a folder that was worked out from the tree `before` of its `life`; a blank life for none yet.

    `digests` is all content of the new tree, and `content` that of it which is not stored yet. `new_life` is what a
    folder is called that begins with it.
    """

    key: FolderKey
    life: str
    before: str
    tree: str
    files: int
    size: int
    digests: Set[str]
    content: Mapping[str, bytes]
    new_life: str
    run_id: str


class FolderMoved(Conflict):
    """The folder is not what the change was worked out from any more."""

    code = "folder_moved"


class SqlFolders:
    """The folders of an installation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def find(self, key: FolderKey) -> UserFolder | None:
        """Returns a folder; None when nothing was ever kept there."""
        found = await self._db.read("folder_get", **_named(key))
        return _folder(found[0]) if found else None

    async def get(self, key: FolderKey) -> UserFolder:
        """Returns a folder. Raises `NotFound`."""
        if (found := await self.find(key)) is None:
            raise no_folder(key)
        return found

    async def list(
        self, namespace: str, *, agent: str = "", user: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Part[UserFolder]:
        """Lists folders by agent and user; None is any user, a blank one is for runs without a user.

        Raises `InvalidInput` for a cursor of another list.
        """
        after = read_cursor(cursor, tuple[str, str], kind=_CURSOR) if cursor else ("", "")
        found = await self._db.read(
            "folder_list",
            namespace=namespace,
            agent=agent,
            one_user=int(user is not None),
            user_name=user or "",
            after_agent=after[0],
            after_user=after[1],
            count=limit + 1,
        )
        page = [_folder(row) for row in found[:limit]]
        more = len(found) > limit
        return Part(page, write_cursor((page[-1].agent, page[-1].user), kind=_CURSOR) if more else None)

    async def content(self, key: FolderKey, digest: str) -> bytes:
        """Returns content of a folder by its digest. Raises `NotFound`."""
        found = await self._db.read("folder_blob", digest=digest, **_named(key))
        if not found:
            raise NotFound(f"the folder has no content {digest}", hint="it may have been changed meanwhile: ask again")
        data: bytes = found[0]["data"]
        return data

    async def lend(self, key: FolderKey, run_id: str) -> UserFolder | None:
        """Returns a folder that a run begins with, whose content the conversation of the run refers to from now on."""
        return await self._db.write(_lend, key, run_id)

    async def delete(self, key: FolderKey, *, in_transaction: TransactionBody | None = None) -> UserFolder:
        """Deletes a folder. What runs have of it in their own files stays with them. Raises `NotFound`.

        What `in_transaction` writes is stored with it or not at all.
        """
        return await self._db.write(_delete, key, in_transaction)


def change_body(change: FolderChange, at: float) -> LockingBody:
    """Returns what an append does to a folder. The append raises `FolderMoved` when it is another one by now."""

    def locks() -> Tx[None]:
        there = yield from one("folder_lock", **_named(change.key))
        if there is None and not change.life:
            added = yield from one("folder_add", life=change.new_life, tree=change.before, at=at, **_named(change.key))
            if added is not None:
                return
        if there is None or (there["life"], there["tree"]) != (change.life, change.before):
            raise FolderMoved(f"the folder of agent {change.key.agent!r} was changed meanwhile")

    def then() -> Tx[None]:
        there = yield from one("folder_get", **_named(change.key))
        assert there is not None, "it is locked"
        key, digests = there["key"], msgspec.json.encode(sorted(change.digests)).decode()
        yield from run("folder_let_go", key=key, digests=digests)
        for _ in range(TRIES):  # what was there at first may have been purged when it is to be held
            yield from put_content(change.content, at)
            yield from run("folder_hold", key=key, digests=digests)
            held = yield from one("folder_held", key=key)
            if held is not None and held["held"] == len(change.digests):
                break
        else:
            raise NotFound("content of the folder is not in the store any more")
        fields: dict[str, Any] = {"tree": change.tree, "files": change.files, "size": change.size}
        yield from run("folder_set", key=key, run_id=change.run_id, at=at, **fields)

    return LockingBody(locks, then)


def _lend(key: FolderKey, run_id: str) -> Tx[UserFolder | None]:
    there = yield from one("folder_lock", **_named(key))
    if there is None:
        return None
    # A conversation is kept from its first turn on: what that one refers to stays for all that follow.
    ends = yield from one("conversation_ends", id=run_id, namespace=key.namespace)
    if ends is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`foliot runs` lists them")
    yield from run("folder_lend", key=there["key"], run=ends["first_key"])
    return _folder(there)


def _delete(key: FolderKey, in_transaction: TransactionBody | None) -> Tx[UserFolder]:
    there = yield from one("folder_lock", **_named(key))
    if there is None:
        raise no_folder(key)
    yield from run("folder_forget", key=there["key"])
    yield from run("folder_delete", key=there["key"])
    if in_transaction is not None:
        yield from in_transaction()
    return _folder(there)


def no_folder(key: FolderKey) -> NotFound:
    """Returns the error for a folder that is not there, or not for whoever asks."""
    whose = f"for {key.user!r}" if key.user else "for runs without a user"
    return NotFound(f"agent {key.agent!r} keeps no folder {whose}", hint="`foliot workspace folder list` lists them")


def _named(key: FolderKey) -> dict[str, str]:
    return {"namespace": key.namespace, "agent": key.agent, "user_name": key.user}


def _folder(row: Row) -> UserFolder:
    return UserFolder(
        row["namespace"],
        row["agent"],
        row["user_name"],
        row["life"],
        row["tree"],
        row["files"],
        row["size"],
        row["run_id"],
        row["created_at"],
        row["changed_at"],
    )
