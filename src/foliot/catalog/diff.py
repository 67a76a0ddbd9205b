"""The difference between two states of a resource, as a unified diff of their YAML."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from foliot.catalog.declared import declared
from foliot.store.base import Document


def unified_diff(
    before: Document | None,
    after: Document | None,
    *,
    label: str,
    render: Callable[[Document], str],
    owners: tuple[Sequence[Document], Sequence[Document]] = ((), ()),
) -> str:
    """Empty when there is no difference that anyone declared. `before` is live, `after` is what manifests say.

    Secret values must be masked already; `catalog.plan` does so, and marks those that differ. `owners` are the
    `managedFields` before and after, when they are to be shown.
    """
    old = render(_with(before, owners[0])).splitlines(keepends=True) if before else []
    new = render(_with(after, owners[1])).splitlines(keepends=True) if after else []
    lines = difflib.unified_diff(
        old, new, f"{label} (live)" if before else "/dev/null", f"{label} (manifest)" if after else "/dev/null"
    )
    return "".join(lines)


def _with(document: Document, owners: Sequence[Document]) -> Document:
    shown = declared(document)
    return {**shown, "metadata": {**shown["metadata"], "managedFields": [*owners]}} if owners else shown
