"""Making manifests true: plan, check, and write in one transaction; again from the start when somebody was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from foliot.catalog.plan import Step, make_plan
from foliot.catalog.references import check_against_store
from foliot.errors import Conflict
from foliot.store.base import DeclaredBy, Document, Requirement, ResourceStore

ATTEMPTS: Final = 6
"""How often a plan is made anew after a conflict. Six losses in a row is not bad luck but a quarrel: tell the user."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was done (or would be), and what is worth a warning, in sentences."""

    steps: list[Step]
    warnings: list[str]


async def apply_documents(
    store: ResourceStore,
    documents: Sequence[Document],
    *,
    dry_run: bool = False,
    prune: tuple[Requirement, ...] | None = None,
    prune_namespace: str = "default",
    by: DeclaredBy | None = None,
) -> Result:
    """Create, update and (with `prune`) delete so that the store says what `documents` say; all of it or nothing.

    `by` is recorded as their declarer.

    Raises `ManifestError` for references that cannot be, `Conflict` for a version named in a document that has passed,
    or when other writers were faster every time.
    """
    for attempt in range(1, ATTEMPTS + 1):
        steps = await make_plan(store, documents, prune=prune, prune_namespace=prune_namespace)
        warnings = await check_against_store(store, documents)
        if dry_run:
            return Result(steps, warnings)
        try:
            return Result(await _carry_out(store, steps, by), warnings)
        except Conflict:
            if attempt == ATTEMPTS:
                raise
            # Two that lost to each other must not try again at the same moment.
            await asyncio.sleep(random.uniform(0, 0.02 * attempt))
    raise AssertionError("the loop returns or raises")


async def _carry_out(store: ResourceStore, steps: Sequence[Step], by: DeclaredBy | None) -> list[Step]:
    changes = [step.change for step in steps if step.change is not None]
    written = iter(await store.write(changes, by=by) if changes else [])
    done: list[Step] = []
    for step in steps:
        if step.change is None:
            done.append(step)
        else:
            result = next(written)
            done.append(replace(step, action=result.action, document=result.document))
    return done
