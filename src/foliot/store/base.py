"""The protocols of what lasts. One conformance suite in tests/conformance/ holds for every implementation of each.

Documents are plain JSON objects (`dict[str, Any]`), not models: reading a list must not pay for validation, and what
was stored by an older version must stay readable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

from foliot.errors import Conflict, FoliotError
from foliot.resources.agreed import Agreed
from foliot.resources.field_owners import BY_SYSTEM, Claim, Owners
from foliot.store.transaction import Row, Tx

P = ParamSpec("P")
T = TypeVar("T")
Document: TypeAlias = dict[str, Any]
# Called before something is read. What it returns is awaited afterwards, until something may have changed since.
NextChange: TypeAlias = Callable[[], Callable[[], Awaitable[None]]]


class Database(Protocol):
    """A thin layer over one driver. Query texts are in queries/*.sql, by name."""

    async def read(self, name: str, /, **params: Any) -> list[Row]:
        """Rows of one query, outside any transaction, from the last committed state."""
        ...

    def write(self, body: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run `body(*args, **kwargs)` as one transaction; what it returns is there when it is durable.

        Raises what the body raises (nothing of it is then stored), `Unavailable` when the database does not answer.
        """
        ...

    def change_mark(self) -> object:
        """Returns a mark of all commits that this process has heard of. Take it before you read, to wait after it."""
        ...

    async def wait_for_change(self, seen: object, *, timeout: float) -> None:
        """Return when something may have been committed since the mark `seen`, or after `timeout` seconds.

        A commit between the mark and the call ends the wait at once, whoever has read it meanwhile.
        """
        ...

    def version(self) -> object | None:
        """Equal to what it was before only if nothing was committed in between, by any process.

        None where that cannot be told without asking over a network.
        """
        ...

    async def size(self) -> Size:
        """How large the store is. Raises `Unavailable`."""
        ...

    async def shrink(self) -> int:
        """Give what is free in the store back to the disk, as far as others can go on meanwhile; how many bytes."""
        ...

    async def refresh_statistics(self) -> None:
        """Let the database count how its tables have changed, where it does not do so by itself. Never takes long."""
        ...

    def clock(self) -> float:
        """The time, by a clock that all processes with this database share. Asks nobody, and may be set."""
        ...

    def lease_clock(self) -> float:
        """The time that leases are judged by, for all processes alike. Setting a machine's clock does not move it."""
        ...

    async def close(self) -> None:
        """Finish the writes that were accepted, then let go of every thread, connection and file."""
        ...


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a store on disk, and those of them that are in use.

    `shrinks`: forgetting something makes `used` smaller at once. PostgreSQL keeps the space for what comes next.
    """

    total: int
    used: int
    shrinks: bool


# How many of the newest changes of resources are kept, for watches that resume.
KEPT_CHANGES: Final = 100_000
# A database that takes longer than this to answer a query of one row is not there.
WITHIN: Final = 2.0


async def round_trip(database: Database) -> float | None:
    """How many seconds the database takes to answer; None when it does not."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(WITHIN):
            await database.read("feed_bounds")
    except (FoliotError, TimeoutError):
        return None
    return time.perf_counter() - began


@runtime_checkable
class Notices(Protocol):
    """A database that also carries short messages between the processes that have it open. They are hints: they are
    kept nowhere, and lost with the connection."""

    def post(self, channel: str, payload: str, *, urgent: bool = False) -> None:
        """Send soon, together with others, or at once when `urgent`. Never waits and never raises.

        A payload is text of at most 7,999 bytes without NUL. Notices of one process keep their order.
        """
        ...

    def listen(self, channel: str, heard: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `heard` with each payload of any process, this one included, on the event loop; returns how to stop.

        With None when some may have been missed: when listening begins, and after a lost connection.
        """
        ...


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The name of one resource. `kind` is the canonical spelling, e.g. `AgentSystem`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name} in namespace {self.namespace!r}"


@dataclass(frozen=True, slots=True)
class Put:
    """Create or replace one resource.

    `document` carries kind, metadata (name, namespace, labels, annotations), spec, and status when `status` is set.
    `expect` is the precondition: "any", "absent" (create only), "present" (update only), or the exact
    resourceVersion. `only="status"` leaves spec and metadata as they are; `only="spec"` keeps the stored status.
    `own`: Foliot itself writes it, with labels and annotations that nobody else can set (see resources/names.py).
    `merge` makes the document out of the resource as it is under its lock, so that nothing written meanwhile is lost;
    `document` is what it made of the resource as it was read. When the two have different specs, nobody has judged the
    one that would be stored: `StaleMerge`.
    `lowers`: whoever writes it may lower what was agreed to about a tool of an MCP server (see resources/agreed.py).
    `takes_over`: whoever writes it declares all of it, also what others put there (see docs/powers.md).
    `written` is how its author wrote it, in an older version (see resources/wording.py), and nothing for the present
    one; None when only a part of it is changed. What the document says of it is never taken.
    `claim` says who becomes the owner of which fields (see resources/field_owners.py), by default Foliot itself of
    what changes.
    """

    document: Document
    expect: str = "any"
    only: Literal["spec", "status"] = "spec"
    own: bool = False
    merge: Callable[[Document, Owners], Document] | None = None
    lowers: bool = False
    takes_over: bool = False
    written: Mapping[str, Any] | None = None
    claim: Claim = BY_SYSTEM


class StaleMerge(Conflict):
    """The spec was changed between the look at which a merge was judged and its write: look and merge again."""


@dataclass(frozen=True, slots=True)
class DeclaredBy:
    """The writer of a resource's spec. `operator`: they administrate the whole installation, or own its store.

    The store itself writes it into `metadata.declaredBy`; what a document says there is never taken.
    """

    user: str = ""
    operator: bool = False

    @classmethod
    def of(cls, document: Document) -> DeclaredBy:
        """The declarer of a stored resource. Of one that was stored before this was kept nobody is known."""
        kept: dict[str, Any] = document["metadata"].get("declaredBy") or {}
        return cls(str(kept.get("user", "")), kept.get("operator") is True)

    def knows(self, secret: Document) -> bool:
        """Whether they may be told that a value is the one that a Secret has: to others that confirms a guess."""
        return self.operator or self == DeclaredBy.of(secret)


# A process that writes on nobody's behalf: whoever owns the store has started it.
THE_PROCESS = DeclaredBy("", operator=True)


@dataclass(frozen=True, slots=True)
class Delete:
    key: Key
    expect: str = "present"


@dataclass(frozen=True, slots=True)
class Owned:
    """A resource, secrets masked, and who owns its fields: both of one version."""

    document: Document
    owners: Owners


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of one Put or Delete. `document` is as stored (secrets masked); for a delete, as it last was.

    `kept`: the spec was changed, and stays declared by somebody with fewer rights than whoever changed it.
    """

    action: Literal["created", "updated", "unchanged", "deleted"]
    document: Document
    kept: bool = False


class Revealed(dict[str, bytes]):
    """The clear values of a Secret, by key, and the hosts to which this very version of it may be sent.

    `set_by` says by key who set the value, which is not always who declared the rest.
    """

    def __init__(
        self, values: Mapping[str, bytes], hosts: Sequence[str] = (), set_by: Mapping[str, DeclaredBy] | None = None
    ) -> None:
        super().__init__(values)
        self.hosts = tuple(hosts)
        self.set_by = dict(set_by or {})


# More of the same transaction: what it raises undoes the write. It may be run again from its start.
WriteBody: TypeAlias = Callable[[Sequence[Written]], Tx[None]]


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change, in commit order. `revision` is the position to resume a watch behind."""

    revision: int
    action: Literal["created", "updated", "deleted"]
    document: Document


@dataclass(frozen=True, slots=True)
class ChangedSince:
    """The changes behind a revision, in commit order: all that there are up to `revision`, of the kinds asked for."""

    revision: int
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One clause of a label or field selector, e.g. `tier in (a, b)`, `!legacy`, `status.phase!=Ready`."""

    key: str
    op: Literal["=", "!=", "in", "notin", "exists", "absent"]
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `cursor` is None on the last page. `revision` is where a watch takes over without a gap."""

    items: list[Document]
    cursor: str | None
    revision: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which resources: one kind (or all), one namespace (or all), and what labels and fields must say."""

    kind: str | None = None
    namespace: str | None = None
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of `rotate_key`. `retired` are keys that are gone for good, `kept` older ones that open backups."""

    key_id: str
    secrets: int
    values: int
    retired: tuple[str, ...] = field(default=())
    kept: tuple[str, ...] = field(default=())


class ResourceStore(Protocol):
    """Declared resources with versions, and every change to them in order.

    `metadata.resourceVersion` is the store-wide revision of the last change to the object, as a decimal string: it is
    never used twice, not even by an object that was deleted and made again, and any of them is a place from which a
    watch can go on. `generation` starts at 1 and grows only when the spec changes.
    """

    async def get(self, key: Key) -> Document:
        """The resource, secrets masked. Raises `NotFound`."""
        ...

    async def owned(self, keys: Sequence[Key]) -> dict[Key, Owned]:
        """Resources with the owners of their fields; those that are not there are left out."""
        ...

    async def list(self, filter: Filter, *, limit: int = 500, cursor: str | None = None) -> Page:
        """Ordered by (kind, namespace, name). A resource that exists throughout is on exactly one page.

        Raises `InvalidInput` for a cursor that was not issued for this filter.
        """
        ...

    async def write(
        self,
        changes: Sequence[Put | Delete],
        *,
        in_transaction: WriteBody | None = None,
        by: DeclaredBy | None = None,
        dry: bool = False,
    ) -> list[Written]:
        """Writes all changes in one transaction, or none.

        A Put that changes nothing is "unchanged" and makes no version.

        `in_transaction` gets what became of each, and what it writes is stored with them or not at all. `by` is
        recorded as the declarer of each spec that is new or differs, by default the process itself; other writes leave
        it. `dry` does all of it, `in_transaction` included, and takes it back: it returns and raises what the write
        would. What only the write could give (version, time, and uid of what would be new) is left out of them.

        Raises `Conflict` (stale or present), `NotFound` (expected but absent); the error names the key.
        """
        ...

    def watch(self, filter: Filter, *, after: int) -> AsyncIterator[Change]:
        """Every change behind revision `after`, in order, each once; then those to come, from any process.

        Raises `Gone` when changes behind `after` are no longer kept: list again and go on from `Page.revision`.
        """
        ...

    async def changed(self, after: int, kinds: Sequence[str]) -> ChangedSince | None:
        """The changes of these kinds behind a revision, up to the newest.

        None when not every change since then is kept, or when there are so many that reading anew costs less.
        """
        ...

    async def revision(self) -> int:
        """The newest revision."""
        ...

    def revision_at_hand(self) -> int | None:
        """The newest revision, if somebody has looked in this turn of the event loop. Costs no look."""
        ...

    async def reveal(self, key: Key) -> Revealed:
        """The clear values of a Secret, by key, with its hosts: of one version. Raises `NotFound`, `SecretError`."""
        ...

    async def agreed(self, namespace: str, server: str = "", tool: str = "") -> list[Agreed]:
        """Read the agreement about one tool of an MCP server, or, without a server, about all tools of all servers."""
        ...

    async def rotate_key(self, *, forget: bool = False) -> Rotation:
        """Make a new key the active one and seal every stored secret value with it, in place.

        Older keys are kept for backups; `forget` gives up those that earlier rotations retired.
        """
        ...

    async def compact(self, *, keep: int) -> int:
        """Forget all but the newest `keep` changes; the number forgotten. Resources themselves stay."""
        ...
