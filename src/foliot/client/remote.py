"""The groups of verbs over HTTP, those on resources among them, and questions about a server itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct

from foliot.client import wire
from foliot.client.http import RemoteGroup, new_key
from foliot.client.remote_folders import RemoteFolders
from foliot.client.remote_operations import (
    RemoteAudit,
    RemoteBudgets,
    RemoteChannels,
    RemotePolicies,
    RemoteSchedules,
    RemoteTools,
    RemoteWebhooks,
    RemoteWorkers,
)
from foliot.client.remote_sessions import RemoteSessions
from foliot.client.remote_work import RemoteApprovals, RemoteQuestions, RemoteRuns, RemoteTasks
from foliot.errors import Conflict, NotFound, UsageError
from foliot.resources.field_owners import EDIT
from foliot.resources.kinds import find_kind
from foliot.resources.references import TAKEN_NAMES
from foliot.resources.wording import as_written
from foliot.runtime.groups.groups import Groups
from foliot.runtime.groups.store import MANAGER, ResourceGroup
from foliot.runtime.outcomes import Applied, Ends, Outcome, Taken, not_found
from foliot.store.base import Change, Document, Filter, Key, Page, Requirement

# --- remote about ----------------------------------------------------------------------------------------------------

# What a server is, and whom it takes the caller for.


class Me(Struct, frozen=True):
    """The caller as the server knows it, and its roles by namespace (`*` is all of them)."""

    authenticated: bool
    username: str
    roles: dict[str, list[str]] = {}


class Health(Struct, frozen=True):
    """Part by part; each has a `status`."""

    status: str
    parts: dict[str, dict[str, Any]] = {}


class Capability(Struct, frozen=True):
    id: str
    enabled: bool
    description: str = ""


class _Version(Struct, frozen=True):
    version: str


class _Capabilities(Struct, frozen=True):
    capabilities: list[Capability]


class RemoteAbout(RemoteGroup):
    """Questions to a server about itself."""

    async def version(self) -> str:
        """Needs no token."""
        return (await self._get("/v1/version", _Version)).version

    async def me(self) -> Me:
        """Raises `Denied` when the server does not know the token."""
        return await self._get("/v1/auth/me", Me)

    async def health(self) -> Health:
        """Raises `Unavailable` while it cannot reach its store."""
        return await self._get("/v1/health", Health)

    async def capabilities(self) -> list[Capability]:
        return (await self._get("/v1/capabilities", _Capabilities)).capabilities


# --- selecting -------------------------------------------------------------------------------------------------------

# Selectors as the text that `store/resources/selectors.py` reads.


def selector_text(requirements: Sequence[Requirement]) -> str | None:
    """Formats requirements as a selector; None for no clause. Raises `UsageError`."""
    return ",".join(_clause(each) for each in requirements) or None


def _clause(requirement: Requirement) -> str:
    for value in requirement.values:
        if set(value) & set(",()=!") or value != value.strip():
            raise UsageError(f"{value!r} cannot stand in a selector", hint="values have no , ( ) = ! in them")
    match requirement.op:
        case "=" | "!=":
            return f"{requirement.key}{requirement.op}{requirement.values[0]}"
        case "in" | "notin":
            return f"{requirement.key} {requirement.op} ({', '.join(requirement.values)})"
        case "exists":
            return requirement.key
        case "absent":
            return f"!{requirement.key}"


# --- remote ----------------------------------------------------------------------------------------------------------

# Where a verb is called `list`, the type of that name is hidden.
Rows = list
TASK: Final = "Task"
_ACTIONS: Final[dict[str, Literal["created", "updated", "deleted"]]] = {
    "added": "created",
    "updated": "updated",
    "deleted": "deleted",
}


class _Told(msgspec.Struct, frozen=True):
    action: Literal["created", "updated", "unchanged", "deleted"]
    resource: Document
    before: Document | None = None
    ends: Ends = ""
    owners: list[Document] = []
    owned: list[Document] = []


class _Bundle(msgspec.Struct, frozen=True):
    outcomes: list[_Told]
    warnings: list[str] = []


class _ListMetadata(msgspec.Struct, frozen=True):
    resourceVersion: str


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[Document]
    after: str | None = msgspec.field(default=None, name="continue")


class _Changed(msgspec.Struct, frozen=True):
    type: str
    resource: Document


class RemoteResources(RemoteGroup, ResourceGroup):
    """Implements `ResourceGroup`."""

    async def get(self, kind: str, name: str, *, namespace: str = "default", show_owners: bool = False) -> Document:
        key = Key(find_kind(kind).name, namespace, name)
        if key.kind == TASK:
            return await self._task_document(key, show_owners)
        if name in TAKEN_NAMES:  # of an older version: the path of its own means something else
            return await self._listed(key, show_owners)
        try:
            params = {"namespace": namespace, "managedFields": show_owners or None}
            answer = await self._http.ask("GET", _path(key), params=params)
        except NotFound:
            raise await not_found(key, self.list) from None
        return wire.read(answer.body, Document)

    async def _listed(self, key: Key, show_owners: bool) -> Document:
        named = (Requirement("metadata.name", "=", (key.name,)),)
        found = await self.list(Filter(key.kind, key.namespace, fields=named), limit=1, show_owners=show_owners)
        if not found.items:
            raise await not_found(key, self.list)
        return found.items[0]

    async def _task_document(self, key: Key, show_owners: bool) -> Document:
        """Returns the Task with the status of its work; also work that no resource declares."""
        named = (Requirement("metadata.name", "=", (key.name,)),)
        wanted = Filter(key.kind, key.namespace, fields=named)
        found = (await self.list(wanted, limit=1, show_owners=show_owners)).items
        if found:
            return found[0]
        try:
            return await self._get(f"/v1/tasks/{quote(key.name, safe='')}", Document, namespace=key.namespace)
        except NotFound:
            raise await not_found(key, self.list) from None

    async def list(
        self, filter: Filter, *, limit: int = 500, cursor: str | None = None, show_owners: bool = False
    ) -> Page:
        params: dict[str, Any] = {**_selected(filter), "limit": limit, "managedFields": show_owners or None}
        kind = None if filter.kind is None else find_kind(filter.kind)
        if kind is None or kind.name == TASK:
            # What is listed below /v1/tasks is work; here tasks are resources, as they are declared.
            path, params = "/v1/resources", {**params, "kind": kind and kind.name, "after": cursor}
        else:
            # `after` would take what is no cursor for a name.
            path, params = f"/v1/{kind.plural}", {**params, "continue": cursor}
        found = wire.read((await self._http.ask("GET", path, params=params)).body, _List)
        return Page(found.items, found.after, int(found.metadata.resourceVersion))

    async def apply(
        self,
        documents: Sequence[Document],
        *,
        dry_run: bool = False,
        prune: tuple[Requirement, ...] | None = None,
        prune_namespace: str = "default",
        allow_empty: bool = False,
        allow_missing: bool = False,
        force: bool = False,
        field_manager: str = MANAGER,
        force_conflicts: bool = False,
    ) -> Applied:
        params: dict[str, Any] = {"dryRun": dry_run or None, "namespace": prune_namespace}
        params |= {"allowEmpty": allow_empty or None, "force": force or None}
        params |= {"allowMissing": allow_missing or None}
        params |= {"fieldManager": field_manager, "forceConflicts": force_conflicts or None}
        if prune is not None:
            params["prune"] = selector_text(prune) or ""
        if not documents and prune is None:
            return Applied([], [])
        answer = await self._http.ask(
            "POST", "/v1/apply", params=params, body=_body(documents), headers=new_key(), repeatable=True
        )
        bundle = wire.read(answer.body, _Bundle)
        outcomes = [
            Outcome(each.action, each.resource, each.before, each.ends, each.owners, each.owned)
            for each in bundle.outcomes
        ]
        return Applied(outcomes, bundle.warnings)

    async def opposed(self, documents: Sequence[Document]) -> Sequence[Taken]:
        return await self._declared(documents, dryRun=True)

    async def accept(self, documents: Sequence[Document]) -> Sequence[Taken]:
        return await self._declared(documents)

    async def _declared(self, documents: Sequence[Document], **params: bool) -> Rows[Taken]:
        wanted = [document for document in documents if document["kind"] == TASK]
        if not wanted:
            return []
        path = "/v1/tasks/declared"
        answer = await self._http.ask(
            "POST", path, params=params, body=_body([as_written(each) for each in wanted]), repeatable=True
        )
        return [wire.taken_from_wire(each) for each in wire.read(answer.body, Rows[wire.TakenWire])]

    async def replace(self, document: Document, *, take_over: bool = False, dry_run: bool = False) -> Outcome:
        metadata = document["metadata"]
        key = Key(document["kind"], metadata["namespace"], metadata["name"])
        version = str(metadata.get("resourceVersion") or "")
        if not version:
            raise Conflict(f"{key} was given without the version it was read at.", hint="Read it again.")
        before = await self.get(key.kind, key.name, namespace=key.namespace)
        answer = await self._http.ask(
            "PUT",
            _path(key),
            params={
                "namespace": key.namespace,
                "fieldManager": EDIT,
                **({"takeOver": "true"} if take_over else {}),
                **({"dryRun": "All"} if dry_run else {}),
            },
            headers={"If-Match": f'"{version}"'},
            body=msgspec.json.encode(as_written(document)),
        )
        after = wire.read(answer.body, Document)
        same = after["metadata"].get("resourceVersion") == before["metadata"].get("resourceVersion")
        warning = answer.headers.get("Warning", "").removeprefix('299 - "').removesuffix('"')
        return Outcome("unchanged" if same else "updated", after, before, warning=warning)

    async def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str = "default",
        version: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Document:
        key = Key(find_kind(kind).name, namespace, name)
        document = await self.get(key.kind, name, namespace=namespace)
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        try:
            params = {"namespace": namespace, **({"force": "true"} if force else {})}
            if dry_run:
                params["dryRun"] = "All"
            await self._http.ask("DELETE", _path(key), params=params, headers=headers)
        except NotFound:
            raise await not_found(key, self.list) from None
        return document

    async def watch(self, filter: Filter, *, after: int) -> AsyncGenerator[Change]:
        """Watches resources. A connection that breaks off is resumed behind the last change."""
        kind = None if filter.kind is None else find_kind(filter.kind)
        if kind is None or kind.name == TASK:
            path, params = "/v1/resources/watch", {**_selected(filter), "resourceVersion": after}
        else:
            path = f"/v1/{kind.plural}/watch"
            params = {**_selected(filter), "resourceVersion": after}
        async with aclosing(self._http.stream(path, params=params)) as events:
            async for event in events:
                if event.name != "resource" or event.id is None:
                    continue
                told = wire.read(event.data, _Changed)
                # Told as deleted when it no longer matches: only the server knows what it was before. A watch of all
                # kinds serves for tasks too.
                if kind is None or kind.name == told.resource["kind"]:
                    yield Change(int(event.id), _ACTIONS[told.type], told.resource)


def _path(key: Key) -> str:
    return f"/v1/{find_kind(key.kind).plural}/{quote(key.name, safe='')}"


def _selected(filter: Filter) -> dict[str, Any]:
    return {
        "namespace": filter.namespace,
        "labelSelector": selector_text(filter.labels),
        "fieldSelector": selector_text(filter.fields),
    }


def _body(documents: Sequence[Document]) -> bytes:
    return msgspec.json.encode({"apiVersion": "foliot.dev/v1", "kind": "List", "items": [*documents]})


# --- all of them -----------------------------------------------------------------------------------------------------


class RemoteClient(RemoteAbout, Groups):
    """All groups over one connection. `close()` closes it."""

    async def close(self) -> None:
        await self._http.close()

    @property
    def runs(self) -> RemoteRuns:
        return RemoteRuns(self._http)

    @property
    def tasks(self) -> RemoteTasks:
        return RemoteTasks(self._http)

    @property
    def approvals(self) -> RemoteApprovals:
        return RemoteApprovals(self._http)

    @property
    def questions(self) -> RemoteQuestions:
        return RemoteQuestions(self._http)

    @property
    def sessions(self) -> RemoteSessions:
        return RemoteSessions(self._http)

    @property
    def folders(self) -> RemoteFolders:
        return RemoteFolders(self._http)

    @property
    def tools(self) -> RemoteTools:
        return RemoteTools(self._http)

    @property
    def resources(self) -> RemoteResources:
        return RemoteResources(self._http)

    @property
    def schedules(self) -> RemoteSchedules:
        return RemoteSchedules(self._http)

    @property
    def channels(self) -> RemoteChannels:
        return RemoteChannels(self._http)

    @property
    def webhooks(self) -> RemoteWebhooks:
        return RemoteWebhooks(self._http)

    @property
    def audit(self) -> RemoteAudit:
        return RemoteAudit(self._http)

    @property
    def budgets(self) -> RemoteBudgets:
        return RemoteBudgets(self._http)

    @property
    def policies(self) -> RemotePolicies:
        return RemotePolicies(self._http)

    @property
    def workers(self) -> RemoteWorkers:
        return RemoteWorkers(self._http)
