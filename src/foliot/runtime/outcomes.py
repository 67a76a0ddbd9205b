"""The outcomes of verbs on resources, and what is said of a resource that is not there: the same everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from foliot.common.suggestions import did_you_mean, nearest
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.resources.kinds import KINDS
from foliot.store.base import DeclaredBy, Document, Filter, Key, Page, Requirement

if TYPE_CHECKING:
    from foliot.work.tasks.base import TaskInfo


class InUse(Conflict):
    """Work that has not ended, or an open session, needs what was to be deleted; the details name the `tasks`."""

    code = "in_use"


Ends: TypeAlias = Literal["", "cancelled", "archived"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of apply, or with `dry_run` of its rehearsal, for one resource. `before` is None for a new one.

    `ends` is what became of the work of a Task that prune deleted: live work is cancelled, and deleted when it has
    ended. A worker that is at it may take a moment. (`archived` is what earlier servers say of work that had ended.)
    `owners` are who owns its fields afterwards, `owned` who did before, as `metadata.managedFields`. `warning` is what
    an edit has to be told.
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


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of one applied Task: the work, and whether it is new; or why it was not accepted."""

    namespace: str
    name: str
    task: TaskInfo | None = None
    new: bool = False
    error: FoliotError | None = None


def kept_declarer(document: Document) -> str:
    """The sentence about a resource that the operator changed, and that somebody else still declares."""
    metadata = document["metadata"]
    by = DeclaredBy.of(document).user or "somebody unknown"
    return (
        f"{document['kind']}/{metadata['name']} stays declared by {by}, who put the rest of it there: it does not get "
        "the rights of the operator. ?takeOver=true (`foliot edit --take-over`), or an apply that says all of it, "
        "makes it yours"
    )


# --- missing ---------------------------------------------------------------------------------------------------------

# What is said of a resource that is not there, the same by every client.

_LOOKED_AT: Final = 1000
"""Names compared with a wrong one. More would make a typing mistake in a large namespace slow."""


class Lister(Protocol):
    def __call__(self, filter: Filter, *, limit: int = ...) -> Awaitable[Page]: ...


async def not_found(key: Key, list: Lister, *, elsewhere: bool = True) -> NotFound:
    """Says what is missing, and names what may have been meant: alike here, or the same in another namespace.

    Not `elsewhere` for somebody who may not see other namespaces.
    """
    here = await list(Filter(key.kind, key.namespace), limit=_LOOKED_AT)
    names = [str(document["metadata"]["name"]) for document in here.items]
    near = nearest(key.name, names, most=3)
    near = near or [name for name in names if key.name in name][:3]
    hint = did_you_mean(*near) if near else await _elsewhere(key, list) if elsewhere else None
    if hint is None and key.kind in KINDS:
        hint = f"`foliot get {KINDS[key.kind].plural}` lists them."
    return NotFound(f"{key} does not exist.", hint=hint, kind=key.kind, name=key.name, namespace=key.namespace)


async def _elsewhere(key: Key, list: Lister) -> str | None:
    by_name = (Requirement("metadata.name", "=", (key.name,)),)
    page = await list(Filter(key.kind, None, fields=by_name), limit=3)
    spaces = [str(document["metadata"]["namespace"]) for document in page.items]
    return f"There is one in namespace {' and in '.join(spaces)}: add `-n {spaces[0]}`." if spaces else None


SCHEDULE: Final = "TaskSchedule"
WEBHOOK: Final = "TaskWebhook"
CHANNEL: Final = "Channel"
_WORDS: Final = {SCHEDULE: "schedule", WEBHOOK: "webhook", CHANNEL: "channel"}


def no_trigger(key: Key, here: Iterable[Document]) -> NotFound:
    """Builds the error for a schedule, webhook or channel that is missing; `here` are those of its namespace."""
    names = [str(document["metadata"]["name"]) for document in here]
    near = nearest(key.name, names, most=3) or names[:5]
    word = _WORDS[key.kind]
    hint = f"There are: {', '.join(near)}." if near else f"There is none in this namespace: apply a {key.kind}."
    return NotFound(f"There is no {word} {key.name!r} in namespace {key.namespace!r}.", hint=hint)
