"""References, followed: the one way from what a document names to the resource that is meant.

    key = await references.resolve(Origin("Agent", "team-b"), "ModelEndpoint", "team-a/paid")

Within a namespace everything may be named. Another namespace must have granted it, by a ReferenceGrant that stands
there this moment: whoever takes the grant back is obeyed from the next use on, by work that is under way as well. What
is refused is refused in the same words whether or not there is anything of that name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Protocol

from foliot.common.pages import read_all
from foliot.resources.references import GRANT, Origin, ReferenceGrants, Target, foreign, refused, target_of
from foliot.store.base import Document, Filter, Key, Page, ResourceStore


class Lists(Protocol):
    """A store, or a client on one."""

    def list(self, filter: Filter, *, cursor: str | None = None) -> Awaitable[Page]: ...


class References:
    """The references of whoever works on one store. Without a store nothing is granted."""

    def __init__(self, store: ResourceStore | None) -> None:
        self._store = store
        self._known: tuple[int, ReferenceGrants] | None = None

    async def resolve(self, origin: Origin, kind: str, text: str) -> Key:
        """Resolves `text` for `origin`: `name`, or `namespace/name` where a grant allows it.

        Raises `InvalidInput` for any other spelling, `Denied` without a grant. Whether it is there is not looked at.
        """
        target = target_of(kind, text, origin.namespace)
        await self.allow(origin, target)
        return Key(*target)

    async def allow(self, origin: Origin, target: Target) -> None:
        """Allows `origin` to use `target`, or raises `Denied`. Grants are read only for another namespace."""
        if origin.namespace == target.namespace:
            return
        if self._store is None or not (await self._grants(self._store)).allow(origin, target):
            raise refused(origin, target)

    async def _grants(self, store: ResourceStore) -> ReferenceGrants:
        """Read anew only when something in the store has changed."""
        revision = await store.revision()
        if self._known is None or self._known[0] != revision:
            self._known = revision, ReferenceGrants(await list_all(store, Filter(GRANT)))
        return self._known[1]


async def check_declared(lists: Lists, documents: Iterable[Document]) -> None:
    """Hold what documents name in other namespaces against the grants there, of the store and among the documents.

    Raises `Denied` for the first reference that is not granted. The store refuses it too (store/resources/changes.py);
    this is for whoever wants to know before, or writes nothing.
    """
    given = list(documents)
    crossing = [(document, found) for document in given if (found := foreign(document))]
    if not crossing:
        return
    replaced = {_place(document) for document in given if document["kind"] == GRANT}
    stored = [each for each in await list_all(lists, Filter(GRANT)) if _place(each) not in replaced]
    grants = ReferenceGrants([*stored, *given])
    for document, found in crossing:
        grants.check(document, found)


async def granted_roles(lists: Lists, namespace: str) -> list[Document]:
    """The AgentRoles that agents of a namespace can have, and the grants by which they have those of others."""
    grants = await list_all(lists, Filter(GRANT))
    found = [*grants, *await list_all(lists, Filter("AgentRole", namespace))]
    for other in ReferenceGrants(grants).namespaces(Origin("Agent", namespace), "AgentRole"):
        found += await list_all(lists, Filter("AgentRole", other))
    return found


async def list_all(lists: Lists, filter: Filter) -> list[Document]:
    """Every page of a list."""
    return await read_all(lists.list, filter)


def _place(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("namespace", "default"), metadata["name"]
