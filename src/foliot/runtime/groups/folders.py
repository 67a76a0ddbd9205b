"""The verbs on folders: what agents keep for a user over all sessions and runs; see groups.py."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from foliot.errors import InvalidInput, NotFound
from foliot.runtime.groups.arguments import Group

if TYPE_CHECKING:
    from foliot.engine.workspaces.trees import WorkspaceTree
    from foliot.store.folders import UserFolder

# Where a verb is called `list`, the type of that name is hidden.
Rows = list
PAGE: Final = 100


class FolderGroup(Group):
    """Folders: `data/` of workspaces, which an agent keeps for each user.

    `user` is whose folder it is, the caller's by default; `system` is the one for runs without a user.
    """

    @abstractmethod
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
        """List folders by agent and user, with the cursor of the next page; blank fields are any.

        With `mine`, and on a server without the role admin, they are the caller's own. Raises `InvalidInput`.
        """

    @abstractmethod
    async def get(self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False) -> UserFolder:
        """Return a folder. Raises `NotFound`, also for one that the caller may not see."""

    @abstractmethod
    async def content(
        self, agent: str, digest: str, *, namespace: str = "default", user: str = "", system: bool = False
    ) -> bytes:
        """Return content that a folder has, by its digest. Raises `NotFound`."""

    async def tree(
        self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False
    ) -> WorkspaceTree:
        """Return the files of a folder, without their contents. Raises `NotFound`."""
        from foliot.engine.workspaces.trees import WorkspaceTree

        async def fetch(digest: str) -> bytes:
            return await self.content(agent, digest, namespace=namespace, user=user, system=system)

        found = await self.get(agent, namespace=namespace, user=user, system=system)
        return await WorkspaceTree.load(fetch, found.tree)

    @abstractmethod
    async def delete(self, agent: str, *, namespace: str = "default", user: str = "", system: bool = False) -> None:
        """Delete a folder with all that is in it. What runs have of it in their own files goes with those runs.

        A run that had begun with it does not bring it back. Raises `NotFound`.
        """

    async def delete_all(
        self, *, namespace: str = "default", agent: str = "", user: str = "", mine: bool = False
    ) -> int:
        """Delete the folders of an agent, or those that all agents keep for a user; return how many that were.

        With `mine`, and on a server without the role admin, they are the caller's own. For an agent or an account
        that is gone: its folders are kept until somebody deletes them. Raises `InvalidInput` when neither is named.
        """
        if not (agent or user or mine):
            raise InvalidInput(
                "these would be the folders of all agents for all users", hint="name an agent, a user, or both"
            )
        deleted, cursor = 0, None
        while True:
            page, cursor = await self.list(
                namespace=namespace, agent=agent, user=user, mine=mine, limit=PAGE, cursor=cursor
            )
            for each in page:
                with suppress(NotFound):  # somebody else has deleted it meanwhile
                    await self.delete(each.agent, namespace=namespace, user=each.user, system=not each.user)
                    deleted += 1
            if cursor is None:
                return deleted
