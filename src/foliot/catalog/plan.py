"""What a set of documents would change: found out by looking, before anything is written.

Read by: catalog/apply.py, which carries a plan out. Each change of a plan names the version it was planned against, so
a plan that has become untrue meanwhile is refused by the store instead of overwriting somebody's work.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from foliot.catalog.declared import MASK, key_of, managed, same, stamped, version_of
from foliot.errors import Conflict, InvalidInput, NotFound, SecretError
from foliot.store.base import Delete, Document, Filter, Key, Put, Requirement, ResourceStore

_FEW: Final = 32
"""Up to this many resources are looked up one by one; for more, their whole kind is listed, page by page."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one resource. `before` and `document` are fit to be shown: secret values are masked.

    A secret value that would differ is shown as `*** (changed)`. `change` is None when there is nothing to do.
    """

    action: Literal["created", "updated", "unchanged", "deleted"]
    document: Document
    before: Document | None
    change: Put | Delete | None


async def make_plan(
    store: ResourceStore,
    documents: Sequence[Document],
    *,
    prune: tuple[Requirement, ...] | None = None,
    prune_namespace: str = "default",
) -> list[Step]:
    """One step for each document in the order given, then those of prune.

    Raises `InvalidInput` when two documents declare the same resource, `Conflict` when a document names a version
    that is no longer the current one.
    """
    keys = _distinct(documents)
    live = await _live(store, keys)
    steps = [await _step(store, document, live.get(key)) for key, document in zip(keys, documents, strict=True)]
    if prune is not None:
        steps += await _prune(store, set(keys), Filter(namespace=prune_namespace, labels=prune))
    return steps


def _distinct(documents: Sequence[Document]) -> list[Key]:
    keys = [key_of(document) for document in documents]
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise InvalidInput(f"{key} is declared twice.", hint="Keep one of the two manifests.")
        seen.add(key)
    return keys


async def _live(store: ResourceStore, keys: Sequence[Key]) -> dict[Key, Document]:
    if len(keys) <= _FEW:
        return {key: document for key in keys if (document := await find(store, key)) is not None}
    wanted = set(keys)
    live: dict[Key, Document] = {}
    for kind, namespace in sorted({(key.kind, key.namespace) for key in keys}):
        for document in await list_all(store, Filter(kind, namespace)):
            if (key := key_of(document)) in wanted:
                live[key] = document
    return live


async def find(store: ResourceStore, key: Key) -> Document | None:
    try:
        return await store.get(key)
    except NotFound:
        return None


async def list_all(store: ResourceStore, filter: Filter) -> list[Document]:
    """Every page of a list."""
    documents: list[Document] = []
    cursor: str | None = None
    while True:
        page = await store.list(filter, limit=1000, cursor=cursor)
        documents.extend(page.items)
        cursor = page.cursor
        if cursor is None:
            return documents


async def _step(store: ResourceStore, document: Document, before: Document | None) -> Step:
    asked = version_of(document)
    if asked and asked != (version_of(before) if before else ""):
        raise Conflict(
            f"{key_of(document)} is not at version {asked} any more.",
            hint="Take metadata.resourceVersion out of the manifest to apply it over whatever is there.",
        )
    wanted = stamped(document)
    shown, secret_changed = await _shown(store, wanted, before)
    if before is None:
        return Step("created", shown, None, Put(wanted, expect="absent"))
    if same(before, shown) and not secret_changed and before["metadata"].get("declaredBy"):
        return Step("unchanged", before, before, None)
    return Step("updated", shown, before, Put(wanted, expect=version_of(before)))


async def _shown(store: ResourceStore, wanted: Document, before: Document | None) -> tuple[Document, bool]:
    """The document as it may be shown, and whether a secret value in it differs from the stored one."""
    if wanted["kind"] != "Secret":
        return wanted, False
    stored = await _stored_values(store, before)
    keys_before = _data_of(before) if before else {}
    masked: dict[str, str] = {}
    for key, value in _data_of(wanted).items():
        known = key in keys_before
        masked[key] = f"{MASK} (changed)" if known and value != MASK and stored.get(key) != _decoded(value) else MASK
    return {**wanted, "spec": {**wanted.get("spec", {}), "data": masked}}, any(
        value != MASK for value in masked.values()
    )


def _data_of(secret: Document) -> dict[str, str]:
    spec: dict[str, Any] = secret.get("spec") or {}
    return spec.get("data") or {}


async def _stored_values(store: ResourceStore, before: Document | None) -> Mapping[str, bytes]:
    if before is None:
        return {}
    try:
        return await store.reveal(key_of(before))
    except SecretError:
        return {}  # the old value cannot be opened: whatever comes is a change, and must be possible to apply


def _decoded(value: str) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


async def _prune(store: ResourceStore, kept: set[Key], filter: Filter) -> list[Step]:
    if not filter.labels:
        raise InvalidInput("Prune needs a label selector.", hint="Say which resources are yours, e.g. `-l app=report`.")
    found = [document for document in await list_all(store, filter) if managed(document)]
    return [
        Step("deleted", document, document, Delete(key_of(document), expect=version_of(document)))
        for document in found
        if key_of(document) not in kept
    ]
