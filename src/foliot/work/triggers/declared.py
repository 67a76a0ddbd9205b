"""The resources of one kind in memory, kept up to date by one small query for each look."""

from __future__ import annotations

from collections.abc import Iterable

from foliot.common.pages import read_pages
from foliot.store.base import Database, Document, Filter, ResourceStore
from foliot.store.resources.documents import decode

# Changes read in one query.
WINDOW = 500


class FollowedResources:
    """`documents` by uid, as of the last `look`."""

    def __init__(self, database: Database, store: ResourceStore, kind: str) -> None:
        self._database = database
        self._store = store
        self._kind = kind
        self._revision: int | None = None
        self.documents: dict[str, Document] = {}

    @property
    def revision(self) -> int:
        """The revision of the last look; 0 before the first."""
        return self._revision or 0

    async def have_changed(self, kinds: Iterable[str], after: int) -> bool:
        """Whether resources of these kinds may have changed between a revision and the last look."""
        if self.revision - after > WINDOW:
            return True
        for kind in kinds if self.revision > after else ():
            if await self._database.read("change_list_kind", kind=kind, after=after, upto=self.revision):
                return True
        return False

    async def look(self) -> set[str]:
        """The uids of those that were made, deleted, or declared otherwise since the last look.

        A change of the status alone is taken over, and not told: whoever writes it looks here too.
        """
        bounds = (await self._database.read("feed_bounds"))[0]
        upto: int = bounds["revision"]
        if self._revision is None or not bounds["compacted"] <= self._revision <= upto:
            return await self._load()
        told: set[str] = set()
        while self._revision < upto:
            window = min(upto, self._revision + WINDOW)
            for row in await self._database.read(
                "change_list_kind", kind=self._kind, after=self._revision, upto=window
            ):
                told |= self._take(row["action"], decode(row["document"]))
            self._revision = window
        return told

    def _take(self, action: str, document: Document) -> set[str]:
        uid: str = document["metadata"]["uid"]
        if action == "deleted":
            return {uid} if self.documents.pop(uid, None) is not None else set()
        before = self.documents.get(uid)
        self.documents[uid] = document
        return set() if before is not None and _declared(before) == _declared(document) else {uid}

    async def _load(self) -> set[str]:
        """Loads all documents. A change that comes meanwhile is found again by the next look."""
        pages = [page async for page in read_pages(self._store.list, Filter(self._kind))]
        revision, found = pages[0].revision, [document for page in pages for document in page.items]
        before, self.documents = self.documents, {each["metadata"]["uid"]: each for each in found}
        self._revision = revision
        changed = {
            uid
            for uid, document in self.documents.items()
            if uid not in before or _declared(before[uid]) != _declared(document)
        }
        return changed | (before.keys() - self.documents.keys())


def _declared(document: Document) -> tuple[object, ...]:
    metadata = document["metadata"]
    return metadata.get("generation"), metadata.get("name"), metadata.get("namespace")
