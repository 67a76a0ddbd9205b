"""The work that Task resources stand for: accepted when they are applied, shown with them, ended with them.

A Task of mode `run` is a resource, which says what is wanted, and a task of the same name, which is the work. The
resource never changes while the work goes on; whoever reads it sees the status of the work in it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.identity import Identity
from foliot.runtime.outcomes import Ends, InUse, Taken
from foliot.store.base import Database, Document, Key
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import TaskBody
from foliot.work.tasks.commands import command_of, is_declared_by
from foliot.work.tasks.list import TaskList
from foliot.work.views.document import outline, status_outline

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside


# Told the namespace of a task that is about to be accepted; gives more of its transaction.
Recorded: TypeAlias = Callable[[str], TaskBody]


class DeclaredWork:
    """The work of the Tasks declared in one store.

    `inside` opens what accepts and ends work, only when needed.
    """

    def __init__(self, database: Database, inside: Callable[[], AbstractAsyncContextManager[Inside]]) -> None:
        self._database = database
        self._list = TaskList(database)
        self._inside = inside

    async def shown(self, documents: Iterable[Document]) -> list[Document]:
        """The documents, those of tasks with the status of their work."""
        return [await self._with_status(each) if is_work(each) else each for each in documents]

    async def _with_status(self, document: Document) -> Document:
        metadata = document["metadata"]
        try:
            info = await self._list.get(metadata["namespace"], metadata["name"])
        except NotFound:
            return document
        return {**document, "status": {**(document.get("status") or {}), **status_outline(info)}}

    async def alone(self, namespace: str, name: str) -> Document | None:
        """Work of this name that no resource declares."""
        try:
            return outline(await self._list.get(namespace, name))
        except NotFound:
            return None

    async def opposed(self, documents: Sequence[Document]) -> list[Taken]:
        """Returns the Tasks whose manifest differs from the accepted work of that name: each with its `Conflict`."""
        found: list[Taken] = []
        for document in documents:
            if document["kind"] != "Task":
                continue
            space, name = document["metadata"]["namespace"], document["metadata"]["name"]
            rows = await self._database.read("task_identity", namespace=space, name=name)
            if rows and not (is_work(document) and is_declared_by(rows[0], command_of(document))):
                found.append(Taken(space, name, await self._list.get(space, name), error=_done_once(space, name)))
        return found

    async def check_unopposed(self, documents: Sequence[Document]) -> None:
        """Raises the `Conflict` of the first that is `opposed`."""
        for each in await self.opposed(documents):
            if each.error is not None:
                raise each.error

    async def accept(
        self, documents: Sequence[Document], *, identity: Identity, recorded: Recorded | None = None
    ) -> list[Taken]:
        """Have the tasks among these documents done. Each by itself: one that cannot does not keep the others.

        `identity` is on whose behalf.         `recorded` is asked for what is stored together with each that is new.
        """
        wanted = [document for document in documents if is_work(document)]
        if not wanted:
            return []
        taken: list[Taken] = []
        async with self._inside() as inside:
            for document in wanted:
                space, name = document["metadata"]["namespace"], document["metadata"]["name"]
                try:
                    in_transaction = recorded(space) if recorded is not None else None
                    accepted = await inside.tasking.tasks.accept_declared(
                        document, identity=identity, in_transaction=in_transaction
                    )
                except FoliotError as error:
                    taken.append(Taken(space, name, error=error))
                else:
                    assert accepted is not None, "only work was chosen"
                    taken.append(Taken(space, name, accepted.task, not accepted.duplicate))
        return taken

    async def check_unused(
        self, keys: Iterable[Key], agents: Iterable[Document], *, ending: Container[tuple[str, str]] = ()
    ) -> None:
        """Raises `InUse` when tasks that have not ended use one of these agents or systems, or what an agent names.

        So do open sessions with one of the agents. `agents` are all of the namespaces of tools and endpoints. Tasks
        that are `ending` (namespace and name) are left out.
        """
        users: dict[Key, list[str]] = {}
        for agent in agents:
            for named in _named(agent):
                users.setdefault(named, []).append(agent["metadata"]["name"])
        asked: dict[Key, list[str]] = {}
        for key in keys:
            if key.kind == "Agent" and (sessions := await self._open_sessions(key)):
                raise InUse(
                    f"Agent {key.name} is used by open sessions: {_listed(sessions)}",
                    hint="archive or delete them; --force (in HTTP ?force=true) deletes it all the same",
                    tasks=[],
                )
            by_agents = key.kind in ("Tool", "ModelEndpoint")
            open_tasks: dict[str, None] = {}
            for user in [Key("Agent", key.namespace, name) for name in users.get(key, ())] if by_agents else [key]:
                if user not in asked:
                    asked[user] = await self._open_for(user)
                open_tasks.update({name: None for name in asked[user] if (key.namespace, name) not in ending})
            if open_tasks:
                names = [*open_tasks]
                raise InUse(
                    f"{key.kind} {key.name} is used by tasks that have not ended: {_listed(names)}",
                    hint="wait for them or cancel them; --force (in HTTP ?force=true) deletes it all the same",
                    tasks=names,
                )

    async def _open_for(self, user: Key) -> list[str]:
        """Tasks of an agent or a system that have not ended."""
        target = "system" if user.kind == "AgentSystem" else "agent"
        rows = await self._database.read("task_open_for", namespace=user.namespace, kind=target, name=user.name)
        return [row["name"] for row in rows]

    async def _open_sessions(self, agent: Key) -> list[str]:
        """Sessions with an agent that are not archived, a few of them."""
        rows = await self._database.read("session_open_of", namespace=agent.namespace, agent=agent.name)
        return [row["id"] for row in rows]

    async def ends(self, namespace: str, name: str) -> Ends:
        """Tell what `end` would do to the work of this name."""
        try:
            info = await self._list.get(namespace, name)
        except NotFound:
            return ""
        return "" if info.phase in ENDED else "cancelled"

    async def end(
        self,
        namespace: str,
        name: str,
        *,
        by: str = "",
        in_transaction: TaskBody | None = None,
        wait: float = 0.0,
    ) -> Document | None:
        """Delete the work of this name, after cancelling it if it is live. None when there is none.

        `in_transaction` and `wait` are as in `TaskService.end`.
        """
        try:
            await self._list.get(namespace, name)
            async with self._inside() as inside:
                info = await inside.tasking.tasks.end(namespace, name, by=by, in_transaction=in_transaction, wait=wait)
        except NotFound:
            return None
        return outline(info)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _done_once(namespace: str, name: str) -> Conflict:
    where = "" if namespace == "default" else f" -n {namespace}"
    return Conflict(
        f"task/{name} asks for something else than the work that was accepted under its name.",
        hint="A Task is done once: of one that was accepted, only labels and annotations can be changed. Give the "
        "changed one another name, or take the old one away first:\n"
        f"`foliot delete task {name}{where}`.",
    )


def is_work(document: Document) -> bool:
    """Whether the document is a Task that is to be done, not one that others are made after."""
    return document["kind"] == "Task" and document.get("spec", {}).get("mode", "run") != "template"


def _named(agent: Document) -> set[Key]:
    """The tools and endpoints of its own namespace that an agent names."""
    space, spec = agent["metadata"]["namespace"], agent.get("spec", {})
    delegation: Document = spec.get("delegation") or {}
    presets: list[str] = [each.get("model", "") for each in delegation.get("presets") or ()]
    refs: list[str] = [
        spec.get("model_ref", ""),
        *(spec.get("fallbacks") or ()),
        *(delegation.get("models") or ()),
        *presets,
    ]
    return {Key("Tool", space, str(each).partition("@")[0]) for each in spec.get("tools") or ()} | {
        Key("ModelEndpoint", space, str(ref).removeprefix(f"{space}/")) for ref in refs
    }
