"""The work that Task resources stand for, on the runtime of this server."""

from __future__ import annotations

from collections.abc import Sequence

from foliot.client.declared_work import DeclaredWork, Taken, is_work
from foliot.errors import FoliotError, NotFound
from foliot.runtime import Runtime
from foliot.settings import Settings
from foliot.store.base import Document
from foliot.store.tasks import ENDED
from foliot.work.story.document import outline


class ServerWork(DeclaredWork):
    """As its base, without opening a runtime for each request."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        super().__init__(runtime.tasking.database, settings)
        self._service = runtime.tasking.tasks

    async def accept(self, documents: Sequence[Document], *, by: str) -> list[Taken]:
        """See `DeclaredWork`."""
        taken: list[Taken] = []
        for document in filter(is_work, documents):
            space, name = document["metadata"]["namespace"], document["metadata"]["name"]
            try:
                accepted = await self._service.accept_declared(document, by=by)
            except FoliotError as error:
                taken.append(Taken(space, name, error=error))
            else:
                assert accepted is not None, "only work was chosen"
                taken.append(Taken(space, name, accepted.task, not accepted.duplicate))
        return taken

    async def end(self, namespace: str, name: str, *, by: str = "") -> Document | None:
        """See `DeclaredWork`."""
        try:
            info = await self._service.get(namespace, name)
        except NotFound:
            return None
        if info.archived_at is None:
            if info.phase not in ENDED:
                info = await self._service.cancel(namespace, name, by=by, reason="its Task was deleted")
            if info.phase in ENDED:
                info = await self._service.archive(namespace, name, by=by)
        return outline(info)
