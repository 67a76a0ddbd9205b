"""Making manifests true: plan, check, and write in one transaction; again from the start when somebody was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foliot.catalog.checks import check_against_store
from foliot.catalog.plan import Applier, Step, make_plan
from foliot.errors import Conflict, UsageError
from foliot.resources.field_owners import check_manager
from foliot.store.base import DeclaredBy, Delete, Document, Filter, Key, Put, Requirement, ResourceStore
from foliot.store.resources.selectors import matches

ATTEMPTS: Final = 20
"""How often a plan is made anew after a conflict. So many losses in a row are a quarrel: tell the user."""


@dataclass(frozen=True, slots=True)
class Result:
    """The steps that were carried out (or would be), and warnings, in sentences."""

    steps: list[Step]
    warnings: list[str]


async def apply_documents(
    store: ResourceStore,
    documents: Sequence[Document],
    *,
    dry_run: bool = False,
    prune: tuple[Requirement, ...] | None = None,
    prune_namespace: str = "default",
    allow_empty: bool = False,
    applier: Applier | None = None,
    judge: Callable[[Sequence[Put | Delete]], Awaitable[object]] | None = None,
    check: Callable[[Sequence[Document], Sequence[Key]], Awaitable[None]] | None = None,
    by: DeclaredBy | None = None,
) -> Result:
    """Create, update and (with `prune`) delete so that the store says what `documents` say; all of it or nothing.

    What a document says is set, and what this manager applied before and no longer says goes; other managers keep what
    they own (see resources/field_owners.py).

    `by` is recorded as their declarer. `judge` is asked whether all of it may be written, in a dry run too, before
    anything is told of what is stored. `check` is told of what the documents become
    and of everything that prune is about to delete, in a dry run too; what it raises stops all of it.

    Raises `ManifestError` for references that cannot be, `Conflict` for a version named in a document that has passed,
    or when other writers were faster every time; `FieldConflict` for fields that others own, unless it is
    forced; `UsageError` when prune would delete something although none of the documents has its labels, unless
    `allow_empty`.
    """
    applier = applier or Applier()
    check_manager(applier.manager)
    for attempt in range(1, ATTEMPTS + 1):
        plan = await make_plan(store, documents, applier=applier, prune=prune, prune_namespace=prune_namespace)
        steps = plan.steps
        if judge is not None:
            deletes = [step.change for step in steps if isinstance(step.change, Delete)]
            await judge([*map(Put, plan.documents), *deletes])
        if plan.refused is not None:
            raise plan.refused
        warnings = [*plan.warnings, *await check_against_store(store, plan.documents)]
        doomed = [step.change.key for step in steps if isinstance(step.change, Delete)]
        if doomed and not allow_empty:
            _refuse_empty(plan.documents, Filter(namespace=prune_namespace, labels=prune or ()), len(doomed))
        if check is not None:
            await check(plan.documents, doomed)
        try:
            return Result(await _carry_out(store, steps, by, dry=dry_run), warnings)
        except Conflict:
            if attempt == ATTEMPTS:
                raise
            # Two that lost to each other must not try again at the same moment.
            await asyncio.sleep(random.uniform(0, 0.005 * attempt))
    raise AssertionError("the loop returns or raises")


def _refuse_empty(documents: Sequence[Document], pruned: Filter, count: int) -> None:
    """A wrong folder or a misspelt label must not read as the wish to delete everything. Raises `UsageError`."""
    if any(matches(document, pruned) for document in documents):
        return
    what = "none of the manifests matches the selector of prune" if documents else "there are no manifests"
    raise UsageError(
        f"{what}: {count} resource{'s' if count > 1 else ''} would be deleted, and none kept",
        hint="check the files and the labels; --allow-empty (in HTTP ?allowEmpty=true) deletes them all the same",
    )


async def _carry_out(store: ResourceStore, steps: Sequence[Step], by: DeclaredBy | None, *, dry: bool) -> list[Step]:
    changes = [step.change for step in steps if step.change is not None]
    written = iter(await store.write(changes, by=by, dry=dry) if changes else [])
    done: list[Step] = []
    for step in steps:
        if step.change is None:
            done.append(step)
        else:
            result = next(written)
            document = _with_marks(result.document, step.document) if dry else result.document
            done.append(replace(step, action=result.action, document=document))
    return done


def _with_marks(document: Document, planned: Document) -> Document:
    """The document with the plan's marks at secret values that would change: a diff shows them."""
    if document["kind"] != "Secret":
        return document
    return {**document, "spec": {**document["spec"], "data": planned["spec"].get("data") or {}}}
