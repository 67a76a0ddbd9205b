"""The verbs on folders, over the connection to a server; see runtime/groups/folders.py."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from foliot.client.http import RemoteGroup
from foliot.common.pages import read_first
from foliot.runtime.answers import FolderOrder, RunContent
from foliot.runtime.groups.folders import FolderGroup
from foliot.store.folders import UserFolder

FOLDERS: Final = "/v1/folders"
# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class _Folders(Struct, frozen=True):
    items: list[UserFolder]
    cursor: str | None = msgspec.field(default=None, name="continue")


class RemoteFolders(RemoteGroup, FolderGroup):
    """Implements `FolderGroup`."""

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
        async def ask(*, cursor: str | None, limit: int) -> _Folders:
            asked = {"namespace": namespace, "agent": agent, "user": user, "mine": mine}
            return await self._get(FOLDERS, _Folders, **asked, limit=limit, **{"continue": cursor})

        return await read_first(limit, ask, cursor=cursor)

    async def get(self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False) -> UserFolder:
        return await self._get(_at(agent), UserFolder, namespace=namespace, user=user, system=system)

    async def content(
        self, agent: str, digest: str, *, namespace: str = "default", user: str = "", system: bool = False
    ) -> bytes:
        path = f"{_at(agent)}/content/{quote(digest, safe='')}"
        return (await self._get(path, RunContent, namespace=namespace, user=user, system=system)).data

    async def delete(self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False) -> None:
        body = msgspec.json.encode(FolderOrder(namespace, user, system))
        await self._http.ask("POST", f"{_at(agent)}/delete", body=body, params={"namespace": namespace})


def _at(agent: str) -> str:
    return f"{FOLDERS}/{quote(agent, safe='')}"
