"""The work that Task resources stand for: accepted when they are applied, shown with them, ended with them.

A Task of mode `run` is a resource, which says what is wanted, and a task of the same name, which is the work. The
resource never changes while the work goes on; whoever reads it sees the status of the work in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from foliot.errors import FoliotError, NotFound
from foliot.store.base import Database, Document
from foliot.store.tasks import ENDED
from foliot.work.base import TaskInfo
from foliot.work.listing import TaskList
from foliot.work.story.document import outline, status_outline

if TYPE_CHECKING:
    from foliot.settings import Settings


class Taken(Struct, frozen=True):
    """What became of one Task that was applied: the work, and whether it is new; or why it was not accepted."""

    namespace: str
    name: str
    task: TaskInfo | None = None
    new: bool = False
    error: FoliotError | None = None


class DeclaredWork:
    """Of one store."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._tasks = TaskList(database)
        self._settings = settings

    async def shown(self, documents: Iterable[Document]) -> list[Document]:
        """The documents, those of tasks with the status of their work."""
        return [await self._with_status(each) if is_work(each) else each for each in documents]

    async def _with_status(self, document: Document) -> Document:
        metadata = document["metadata"]
        try:
            info = await self._tasks.get(metadata["namespace"], metadata["name"])
        except NotFound:
            return document
        return {**document, "status": {**(document.get("status") or {}), **status_outline(info)}}

    async def alone(self, namespace: str, name: str) -> Document | None:
        """Work of this name that no resource declares."""
        try:
            return outline(await self._tasks.get(namespace, name))
        except NotFound:
            return None

    async def accept(self, documents: Sequence[Document], *, by: str) -> list[Taken]:
        """Have the tasks among these documents done. Each by itself: one that cannot does not keep the others."""
        wanted = [document for document in documents if is_work(document)]
        if not wanted:
            return []
        from foliot.runtime import Runtime

        taken: list[Taken] = []
        async with Runtime(settings=self._settings) as runtime:
            for document in wanted:
                space, name = document["metadata"]["namespace"], document["metadata"]["name"]
                try:
                    accepted = await runtime.tasking.tasks.accept_declared(document, by=by)
                except FoliotError as error:
                    taken.append(Taken(space, name, error=error))
                else:
                    assert accepted is not None, "only work was chosen"
                    taken.append(Taken(space, name, accepted.task, not accepted.duplicate))
        return taken

    async def end(self, namespace: str, name: str, *, by: str = "") -> Document | None:
        """Cancel the work of this name if it is live, and archive it. None when there is none."""
        try:
            info = await self._tasks.get(namespace, name)
        except NotFound:
            return None
        if info.archived_at is None:
            from foliot.runtime import Runtime

            async with Runtime(settings=self._settings) as runtime:
                tasks = runtime.tasking.tasks
                if info.phase not in ENDED:
                    info = await tasks.cancel(namespace, name, by=by, reason="its Task was deleted")
                if info.phase in ENDED:  # otherwise a worker is ending it, and it stays in the lists until then
                    info = await tasks.archive(namespace, name, by=by)
        return outline(info)


def is_work(document: Document) -> bool:
    """Whether the document is a Task that is to be done, not one that others are made after."""
    return document["kind"] == "Task" and document.get("spec", {}).get("mode", "run") != "template"
