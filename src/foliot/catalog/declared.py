"""The declared part of a document, without what the store added: the part that apply and diff compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foliot.errors import Conflict
from foliot.resources.field_owners import managed_fields
from foliot.resources.names import MANAGED_BY
from foliot.store.base import Document, Key, Owned, ResourceStore
from foliot.store.resources.documents import same as same_json
from foliot.store.resources.documents import same_spec

MASK: Final = "***"


def key_of(document: Document) -> Key:
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace") or "default", metadata["name"])


def version_of(document: Document) -> str:
    return str(document["metadata"].get("resourceVersion") or "")


def exact(version: str) -> str:
    """A version that somebody names as a precondition. Raises `Conflict` for what is none: no resource is at it."""
    if version.isascii() and version.isdigit():
        return version
    raise Conflict(f"{version[:40]!r} is the version of no resource", hint="read it again and repeat the change")


def managed(document: Document) -> bool:
    """Whether `apply` made it. Only this may be pruned: nothing that was made otherwise disappears."""
    annotations: dict[str, str] = document["metadata"].get("annotations") or {}
    return annotations.get(MANAGED_BY) == "apply"


def stamped(document: Document) -> Document:
    """The document as apply stores it: marked as made by apply, and without what only the store may say."""
    metadata = {key: value for key, value in document["metadata"].items() if key in _DECLARED}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), MANAGED_BY: "apply"}
    stored = {key: value for key, value in document.items() if key != "status"}
    return {**stored, "metadata": metadata}


_DECLARED: Final = ("name", "namespace", "labels", "annotations")


def declared(document: Document) -> Document:
    """The comparable form: no status, no volatile metadata, no mark of apply, nothing empty in metadata."""
    metadata: dict[str, Any] = {}
    for field in _DECLARED:
        value = document["metadata"].get(field)
        if field == "annotations" and value:
            value = {key: text for key, text in value.items() if key != MANAGED_BY}
        if value:
            metadata[field] = value
    return {
        "apiVersion": document.get("apiVersion"),
        "kind": document["kind"],
        "metadata": metadata,
        "spec": document.get("spec") or {},
    }


async def with_owners(store: ResourceStore, documents: Sequence[Document]) -> list[Document]:
    """The documents with `metadata.managedFields`: who owns which field. One that is not stored has none."""
    owned = await store.owned([key_of(document) for document in documents])
    return [_with_owners(document, owned.get(key_of(document))) for document in documents]


def _with_owners(document: Document, owned: Owned | None) -> Document:
    if owned is None:
        return document
    return {**document, "metadata": {**document["metadata"], "managedFields": managed_fields(owned.owners)}}


def same(before: Document, after: Document) -> bool:
    """Whether storing `after` over `before` would change nothing that anyone declared (secret values aside)."""
    one, other = declared(before), declared(after)
    return same_spec(one["spec"], other["spec"]) and same_json(one, other) and managed(before) == managed(after)
