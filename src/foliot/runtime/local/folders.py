"""The verbs on folders, on a runtime in this process; see groups/folders.py."""

from __future__ import annotations

from foliot.engine.audit.entry import act_entry
from foliot.kernel.identity import NOBODY, Identity
from foliot.runtime.groups.folders import FolderGroup
from foliot.runtime.inside import Inside
from foliot.runtime.local.groups import whoami
from foliot.store.audit.log import append_records
from foliot.store.folders import FolderKey, SqlFolders, UserFolder
from foliot.store.transaction import Tx

# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class LocalFolders(FolderGroup):
    """Implements `FolderGroup`. Whoever can open the store can read every folder."""

    def __init__(self, inside: Inside, *, caller: Identity = NOBODY) -> None:
        self._inside = inside
        self._caller = caller

    @property
    def _stored(self) -> SqlFolders:
        return SqlFolders(self._inside.database)

    @property
    def _me(self) -> str:
        return self._caller.user or whoami()

    def _key(self, agent: str, namespace: str, user: str, system: bool) -> FolderKey:
        return FolderKey(namespace, agent, "" if system else user or self._me)

    async def list(
        self,
        *,
        namespace: str = "default",
        agent: str = "",
        user: str = "",
        mine: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Rows[UserFolder], str | None]:
        whose = self._me if mine and not user else user or None
        return await self._stored.list(namespace, agent=agent, user=whose, limit=limit, cursor=cursor)

    async def get(self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False) -> UserFolder:
        return await self._stored.get(self._key(agent, namespace, user, system))

    async def content(
        self, agent: str, digest: str, *, namespace: str = "default", user: str = "", system: bool = False
    ) -> bytes:
        return await self._stored.content(self._key(agent, namespace, user, system), digest)

    async def delete(self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False) -> None:
        key = self._key(agent, namespace, user, system)
        entry = act_entry(self._me, "store", "folder_deleted", "Folder", namespace, agent, user=key.user)

        def record() -> Tx[None]:
            yield from append_records([entry])

        await self._stored.delete(key, in_transaction=record)
