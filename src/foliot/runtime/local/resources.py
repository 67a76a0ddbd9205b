"""The verbs on resources, on a store in this process; see groups/store.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from foliot.catalog.declared import exact
from foliot.engine.definition.references import list_all
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.identity import NOBODY, Identity
from foliot.resources.field_owners import EDIT, managed_fields
from foliot.resources.kinds import find_kind
from foliot.resources.wording import WRITTEN_AS, as_written
from foliot.runtime.groups.store import MANAGER, ResourceGroup
from foliot.runtime.outcomes import Applied, Ends, Outcome, Taken, kept_declarer, not_found
from foliot.store.base import (
    Change,
    DeclaredBy,
    Delete,
    Document,
    Filter,
    Key,
    Page,
    Put,
    Requirement,
    ResourceStore,
)

if TYPE_CHECKING:
    from foliot.catalog.apply import Applier, Step
    from foliot.engine.definition.missing import Brings
    from foliot.runtime.local.declared_work import DeclaredWork, Recorded
    from foliot.work.tasks.base import TaskBody


# Where a verb is called `list`, the type of that name is hidden.
Rows = list
# Deleting one of these is refused while a task that has not ended needs it.
NAMED_BY_AGENTS: Final = frozenset({"Tool", "ModelEndpoint"})
USED_BY_WORK: Final = NAMED_BY_AGENTS | {"Agent", "AgentSystem"}
# How long deleting a live Task waits for the worker that has it to end it, in seconds.
ENDING_WAIT = 5.0


class LocalResources(ResourceGroup):
    """Implements `ResourceGroup`. Whoever opened the store closes it."""

    def __init__(
        self,
        store: ResourceStore,
        *,
        budgets_changed: Callable[[str], Awaitable[object]] | None = None,
        models_changed: Callable[[str], Awaitable[object]] | None = None,
        work: Callable[[], DeclaredWork] | None = None,
        by: DeclaredBy | None = None,
        caller: Identity = NOBODY,
        brings: Brings | None = None,
    ) -> None:
        """`by` is recorded as the declarer of what is written, by default the process itself; `caller` is on whose
        behalf Tasks are done.

        `budgets_changed` is called with the namespace of a Budget that was written, for runs that wait for one;
        `models_changed` with that of a ModelEndpoint or a Secret, for runs that wait for a model.

        `brings` says what this process has without a declaration: see `engine/definition/missing.py`.

        `work` gives the work that Tasks stand for; it is asked for when a Task is concerned, and not before.
        """
        self._store = store
        self._by = by
        self._caller = caller
        self._work = work
        self._brings = brings
        self._budgets_changed = budgets_changed
        self._models_changed = models_changed

    async def get(self, kind: str, name: str, *, namespace: str = "default", show_owners: bool = False) -> Document:
        kind = find_kind(kind).name
        key = Key(kind, namespace, name)
        try:
            document = await self._store.get(key)
        except NotFound:
            alone = await self._work().alone(namespace, name) if kind == "Task" and self._work else None
            if alone is None:
                raise await not_found(key, self._store.list) from None
            return as_written(alone)
        return (await self._shown([document], show_owners))[0]

    async def list(
        self, filter: Filter, *, limit: int = 500, cursor: str | None = None, show_owners: bool = False
    ) -> Page:
        page = await self._store.list(_checked(filter), limit=limit, cursor=cursor)
        return replace(page, items=await self._shown(page.items, show_owners))

    async def _shown(self, documents: Sequence[Document], show_owners: bool) -> Rows[Document]:
        """Adds the status of the work to tasks, and the owners of fields if they are asked for."""
        if show_owners:
            from foliot.catalog.declared import with_owners

            documents = await with_owners(self._store, documents)
        if self._work is not None and any(document["kind"] == "Task" for document in documents):
            documents = await self._work().shown(documents)
        return [as_written(each) for each in await self._told(documents)]

    async def _told(self, documents: Sequence[Document]) -> Rows[Document]:
        """Adds what is missing to the status of each, as whoever reads it is shown it."""
        from foliot.engine.definition.missing import add_conditions

        return await add_conditions(self._store, documents, self._brings)

    async def _told_after(self, steps: Sequence[Step]) -> Rows[Document]:
        """Adds what is missing to the status of each document of these steps, as if they were done."""
        from foliot.engine.definition.missing import StoreAfter, add_conditions, key_of

        gone = [key_of(step.document) for step in steps if step.action == "deleted"]
        put = [step.document for step in steps if step.action != "deleted"]
        return await add_conditions(StoreAfter(self._store, gone, put), [step.document for step in steps], self._brings)

    async def opposed(self, documents: Sequence[Document]) -> Sequence[Taken]:
        if self._work is None or not any(document["kind"] == "Task" for document in documents):
            return []
        return await self._work().opposed(documents)

    async def _check_unopposed(self, *documents: Document) -> None:
        """Raises `Conflict` when a Task would say something else than the work that was accepted for it."""
        if self._work is not None and any(document["kind"] == "Task" for document in documents):
            await self._work().check_unopposed(documents)

    async def accept(self, documents: Sequence[Document]) -> Sequence[Taken]:
        return await self._accept_for(documents, self._caller)

    async def _accept_for(
        self, documents: Sequence[Document], identity: Identity, *, recorded: Recorded | None = None
    ) -> Sequence[Taken]:
        """Do as `accept`, on behalf of `identity`. `recorded` is as in `DeclaredWork.accept`."""
        if self._work is None or not any(document["kind"] == "Task" for document in documents):
            return []
        return await self._work().accept(documents, identity=identity, recorded=recorded)

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
        from foliot.catalog.apply import Applier

        return await self._apply_for(
            documents,
            dry_run=dry_run,
            prune=prune,
            prune_namespace=prune_namespace,
            allow_empty=allow_empty,
            allow_missing=allow_missing,
            force=force,
            applier=Applier(field_manager, force_conflicts, self._by),
        )

    async def _apply_for(
        self,
        documents: Sequence[Document],
        *,
        applier: Applier,
        dry_run: bool = False,
        prune: tuple[Requirement, ...] | None = None,
        prune_namespace: str = "default",
        allow_empty: bool = False,
        allow_missing: bool = False,
        force: bool = False,
        judge: Callable[[Sequence[Put | Delete]], Awaitable[object]] | None = None,
    ) -> Applied:
        """Do as `apply`, for whom `applier` says. `judge` is as in `apply_documents`."""
        from foliot.catalog.apply import apply_documents

        ends: dict[Key, Ends] = {}

        async def check(planned: Sequence[Document], doomed: Sequence[Key]) -> None:
            await self._check_unopposed(*planned)
            if not force:
                await self._check_unused(doomed)
            ends.clear()
            for key in doomed:
                if key.kind == "Task" and self._work is not None:
                    ends[key] = await self._work().ends(key.namespace, key.name)

        result = await apply_documents(
            self._store,
            documents,
            dry_run=dry_run,
            prune=prune,
            prune_namespace=prune_namespace,
            allow_empty=allow_empty,
            allow_missing=allow_missing,
            brings=self._brings,
            applier=applier,
            judge=judge,
            check=check,
            by=self._by,
        )
        if not dry_run:
            await self._written(*(step.document for step in result.steps if step.change is not None))
            await self._end(ends)
        told = await self._told_after(result.steps) if result.warnings else [step.document for step in result.steps]
        outcomes = [
            Outcome(
                step.action,
                as_written(step.document if step.action == "deleted" else document),
                None if step.before is None else as_written(step.before),
                _ends(step.change, ends),
                managed_fields(step.owners),
                managed_fields(step.owned),
            )
            for step, document in zip(result.steps, told, strict=True)
        ]
        return Applied(outcomes, result.warnings)

    async def _check_unused(self, doomed: Sequence[Key]) -> None:
        """Raises `InUse` when a task needs one of them that has not ended, and does not end with them."""
        if self._work is None:
            return
        ending = {(key.namespace, key.name) for key in doomed if key.kind == "Task"}
        used = [key for key in doomed if key.kind in USED_BY_WORK]
        agents: list[Document] = []
        for space in {key.namespace: None for key in used if key.kind in NAMED_BY_AGENTS}:
            agents += await list_all(self._store, Filter("Agent", space))
        if used:
            await self._work().check_unused(used, agents, ending=ending)

    async def _end(self, tasks: Iterable[Key], *, wait: float = 0.0) -> None:
        """End the work of Tasks that were deleted. One that cannot be ended does not keep the others."""
        if self._work is None:
            return
        failed: list[FoliotError] = []
        for key in tasks:
            try:
                await self._work().end(key.namespace, key.name, wait=wait)
            except FoliotError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def replace(self, document: Document, *, take_over: bool = False, dry_run: bool = False) -> Outcome:
        metadata = document["metadata"]
        key = Key(document["kind"], metadata["namespace"], metadata["name"])
        version = str(metadata.get("resourceVersion") or "")
        if not version:
            raise Conflict(f"{key} was given without the version it was read at.", hint="Read it again.")
        before = await self.get(key.kind, key.name, namespace=key.namespace)
        from foliot.catalog.checks import check_against_store
        from foliot.resources.defaults import Sent

        sent = Sent(document, document)
        if (owned := (await self._store.owned([key])).get(key)) is not None:
            sent = sent.after_reading(owned.document, owned.owners)
        document = sent.document
        await self._check_unopposed(document)

        doubts = await check_against_store(self._store, [document], before={key: before}, brings=self._brings)
        words: Document = metadata.get(WRITTEN_AS) or {}
        put = Put(document, claim=sent.claim(EDIT), expect=exact(version), takes_over=take_over, written=words)
        (written,) = await self._store.write([put], by=self._by, dry=dry_run)
        if not dry_run:
            await self._written(written.document)
        warning = kept_declarer(written.document) if written.kept else ""
        (stored,) = await self._told([written.document]) if doubts else [written.document]
        return Outcome(written.action, as_written(stored), before, warning=warning)

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
        return await self._delete_with(kind, name, namespace=namespace, version=version, force=force, dry_run=dry_run)

    async def _delete_with(
        self,
        kind: str,
        name: str,
        *,
        namespace: str,
        version: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        in_transaction: TaskBody | None = None,
    ) -> Document:
        """Do as `delete`. `in_transaction` is as in `DeclaredWork.end`, for work that no resource declares."""
        kind = find_kind(kind).name
        key = Key(kind, namespace, name)
        if not force:
            await self._check_unused([key])
        try:
            expect = exact(version) if version else "present"
            (written,) = await self._store.write([Delete(key, expect=expect)], dry=dry_run)
        except NotFound:
            if dry_run and kind == "Task" and self._work and (alone := await self._work().alone(namespace, name)):
                return as_written(alone)
            ended = (
                await self._work().end(namespace, name, in_transaction=in_transaction, wait=ENDING_WAIT)
                if kind == "Task" and self._work
                else None
            )
            if ended is None:
                raise await not_found(key, self._store.list) from None
            return as_written(ended)
        if dry_run:
            return as_written(written.document)
        await self._written(written.document)
        if kind == "Task":
            await self._end([key], wait=ENDING_WAIT)
        return as_written(written.document)

    async def watch(self, filter: Filter, *, after: int) -> AsyncGenerator[Change]:
        async for change in self._store.watch(_checked(filter), after=after):
            yield replace(change, document=as_written(change.document))

    async def _written(self, *documents: Document) -> None:
        """Notifies the parts that wait for these documents: another client on the same store wrote them."""
        for kinds, changed in (
            (("Budget",), self._budgets_changed),
            (("ModelEndpoint", "Secret"), self._models_changed),
        ):
            spaces = {document["metadata"]["namespace"] for document in documents if document["kind"] in kinds}
            if changed is not None:
                for namespace in sorted(spaces):
                    await changed(namespace)


def _checked(filter: Filter) -> Filter:
    """The filter with its kind and fields as they are stored. Raises `UsageError`, `InvalidInput` for what is none."""
    kind = None if filter.kind is None else find_kind(filter.kind).name
    if not filter.fields:
        return replace(filter, kind=kind)
    from foliot.resources.paths import stored_path  # the models of kinds: only a field selector needs them

    fields = (replace(each, key=stored_path(each.key, () if kind is None else (kind,))) for each in filter.fields)
    return replace(filter, kind=kind, fields=tuple(fields))


def _ends(change: Put | Delete | None, ends: Mapping[Key, Ends]) -> Ends:
    return ends.get(change.key, "") if isinstance(change, Delete) else ""
