"""The seam between what a person types and where it happens.

`LocalClient` works on a store in this process. A client that speaks to a server is the second implementation; nothing
in `cli/` can tell them apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from foliot.kernel.identity import NOBODY, Identity
from foliot.resources.field_owners import APPLY
from foliot.store.base import Change, DeclaredBy, Document, Filter, Page, Requirement, Rotation

if TYPE_CHECKING:
    from foliot.client.task_resources import Taken

Ends: TypeAlias = Literal["", "cancelled", "archived"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of apply, or with `dry_run` of its rehearsal, for one resource. `before` is None for a new one.

    `ends` is what became of the work of a Task that prune deleted: live work is cancelled, and then archived as that
    which has ended. A worker that is at it may take a moment. `owners` are who owns its fields afterwards, `owned` who
    did before, as `metadata.managedFields`. `warning` is what an edit has to be told.
    """

    action: Literal["created", "updated", "unchanged", "deleted"]
    document: Document
    before: Document | None = None
    ends: Ends = ""
    owners: Sequence[Document] = ()
    owned: Sequence[Document] = ()
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcomes in the order given (deletions by prune last), and what is worth a warning, in sentences."""

    outcomes: list[Outcome]
    warnings: list[str]


def kept_declarer(document: Document) -> str:
    """The sentence about a resource that the operator changed, and that somebody else still declares."""
    metadata = document["metadata"]
    by = DeclaredBy.of(document).user or "somebody unknown"
    return (
        f"{document['kind']}/{metadata['name']} stays declared by {by}, who put the rest of it there: it does not get "
        "the rights of the operator. ?takeOver=true (`foliot edit --take-over`), or an apply that says all of it, "
        "makes it yours"
    )


class Client(Protocol):
    async def get(self, kind: str, name: str, *, namespace: str, show_owners: bool = False) -> Document:
        """One resource, with `metadata.managedFields` if `show_owners`.

        Raises `NotFound` with near names as its hint.
        """
        ...

    async def list(
        self, filter: Filter, *, limit: int = 500, cursor: str | None = None, show_owners: bool = False
    ) -> Page: ...

    async def apply(
        self,
        documents: Sequence[Document],
        *,
        dry_run: bool = False,
        prune: tuple[Requirement, ...] | None = None,
        prune_namespace: str = "default",
        allow_empty: bool = False,
        force: bool = False,
        field_manager: str = APPLY,
        force_conflicts: bool = False,
    ) -> Applied:
        """Create or update all `documents` in one transaction.

        What a document says is set and owned by the manager; what the manager applied before and no longer says goes;
        what others own stays, and is a `FieldConflict` where a document says something else, unless `force_conflicts`.
        A document says what is in it: give `Loaded.given` of resources/reader.py, without defaults.

        References are checked against the store and the documents together. With `prune`, resources in
        `prune_namespace` that match the selector, were made by apply, and are not among the documents are deleted, as
        `delete` does it: the work of a Task ends, and what open tasks use is a `Conflict` unless `force`. When none of
        the documents matches the selector, nothing is deleted unless `allow_empty`. What other managers own fields of
        is kept with a warning, unless `force_conflicts`.
        Raises `ManifestError`, `Conflict`, `UsageError`.
        """
        ...

    async def opposed(self, documents: Sequence[Document]) -> Sequence[Taken]:
        """Returns the Tasks of mode `run` whose manifest differs from the accepted work of that name, each with its
        `Conflict` as its error.
        """
        ...

    async def accept(self, documents: Sequence[Document], *, identity: Identity = NOBODY) -> Sequence[Taken]:
        """Have the Tasks of mode `run` among these documents done, once each, however often this is called.

        `identity` is on whose behalf; a server goes by the credential.
        """
        ...

    async def replace(self, document: Document, *, take_over: bool = False, dry_run: bool = False) -> Outcome:
        """Store an edited document; its resourceVersion must still be the current one, else `Conflict`.

        `take_over`: also what somebody else put there counts as declared by whoever writes it.
        """
        ...

    async def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str,
        version: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Document:
        """Raises `NotFound`, `Conflict` at another version; also while a task that has not ended uses it, unless
        `force`: its details name the `tasks`."""
        ...

    def watch(self, filter: Filter, *, after: int) -> AsyncIterator[Change]: ...

    async def rotate_key(self, *, forget: bool = False) -> Rotation: ...

    async def close(self) -> None: ...
