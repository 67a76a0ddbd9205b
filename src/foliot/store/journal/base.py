"""The protocol of run journals, and the values that cross it.

A run has one row (who holds it, in which phase it is) and one journal. Only the holder of its lease writes the journal;
everyone else leaves a *signal* (cancel, a decision, something said), which the holder takes into the journal in order.

Written by:  the engine's driver, under the lease of the run; signals by anyone.
Read by:     resume and replay, trace, why, the live stream.
Invariant:   `seq` has no gaps and one writer. An append begins with one statement that names the seq it follows and
             the epoch it was given, and changes nothing when either is old: then the whole append is refused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from msgspec import Struct

from foliot.errors import Conflict, UsageError
from foliot.kernel.identity import Identity
from foliot.kernel.run.codec import decode
from foliot.store.transaction import Tx

Phase: TypeAlias = Literal["pending", "running", "waiting", "succeeded", "failed", "cancelled"]
ALL_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
# The label that a run of a task carries: the name of its task.
TASK_LABEL = "foliot.dev/task"
# What listings show of a run's identity, which stands in its first event. Foliot alone writes these labels.
USER_LABEL = "foliot.dev/user"
BY_LABEL = "foliot.dev/by"
# The label of a run that is a turn of a session, and of all runs that have words of one: what it delegates, what goes
# on after it, what is forked from it. It is the id of the session; who may read a session may read these.
CONVERSATION_LABEL = "foliot.dev/conversation"
# Digests of other content that content names: whoever begins with the one needs the other too.
NAMED: Final = re.compile(rb"sha256:[0-9a-f]{64}")
# A transaction body that is run inside that of an append: both commit, or neither does.
TransactionBody: TypeAlias = Callable[[], Tx[None]]


class LockingBody(Struct, frozen=True):
    """A `TransactionBody` that also needs rows which are locked ahead of the run (see the order in transaction.py).

    `locks` is run before the statements of the append, and `then` behind them.
    """

    locks: TransactionBody
    then: TransactionBody | None = None

    def __call__(self) -> Tx[None]:
        if self.then is not None:
            yield from self.then()


TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


class Entry(Struct, frozen=True, gc=False):
    """One event as stored. `at` is in seconds since the epoch; `data` is the encoded event.

    `link` chains it to the event before it (see chain.py).
    """

    seq: int
    at: float
    type: str
    data: bytes
    link: bytes = b""


class Lease(Struct, frozen=True, gc=False):
    """The right to write one journal until `until`. `epoch` is the fence; `key` is the store's short name for it.

    `queued`: the run belongs to a task, so letting it go puts it back into the queue, and its end takes it out.
    `released`: whoever wrote the last event has released the run in order, and neither died nor lost it. `name` is that
    of the worker.
    """

    run_id: str
    key: int
    epoch: int
    worker: str
    until: float
    queued: bool = False
    released: bool = False
    name: str = ""


class NewRun(Struct, frozen=True):
    """`spec` is the digest of the frozen definition the run is pinned to.

    `content` is what the run needs by digest, the spec included: stored with it, in the same transaction. `root` is the
    task or the run that it belongs to together with others, as in `RunCreated`. `after` is the run whose conversation
    it goes on with: that is kept for as long as this one.
    """

    id: str
    namespace: str
    agent: str
    spec: str
    created_at: float
    parent: str | None = None
    parent_seq: int | None = None
    labels: dict[str, str] = {}
    content: dict[str, bytes] = {}
    root: str | None = None
    after: str | None = None


class RunInfo(Struct, frozen=True):
    """A run's row. `summary` is what listings show, written when the phase changes."""

    id: str
    key: int
    namespace: str
    agent: str
    phase: Phase
    spec: str
    epoch: int
    worker: str | None
    lease_until: float | None
    created_at: float
    updated_at: float
    parent: str | None
    parent_seq: int | None
    labels: dict[str, str]
    summary: dict[str, Any]

    @property
    def is_child(self) -> bool:
        """Whether another run started it. A fork, which branched off another one, was started by a person."""
        return self.parent is not None and self.parent_seq is None


def identity_labels(identity: Identity) -> dict[str, str]:
    """The labels that show on whose behalf a run acts."""
    shown = {USER_LABEL: identity.user, BY_LABEL: identity.by}
    return {name: value for name, value in shown.items() if value}


class Signal(Struct, frozen=True):
    """An event that someone without the lease wants in the journal. `id` makes sending it twice harmless."""

    id: str
    run_id: str
    at: float
    type: str
    data: bytes


class LeaseLost(Conflict):
    """The lease is lost: another process holds the run, or it was ended. Stop at once, write nothing more."""

    code = "lease_lost"


class StoreSetBack(LeaseLost):
    """The store is older than what this process has seen of it: stop, write nothing more, and say so."""

    code = "store_set_back"


class JournalConflict(Conflict):
    """The journal is not where the writer believes it is."""

    code = "journal_conflict"


class RunTaken(Conflict):
    """A run of this id exists, and does other work."""

    code = "run_taken"


class RunHeld(Conflict):
    """The run is held by a live lease."""

    code = "held"


class SignalsPending(Conflict):
    """The run cannot be let go to wait, or succeed: there are signals that only its holder would take."""

    code = "signals_pending"


class CancelPending(Conflict):
    """The run was told to end, and its holder has not heard it: nothing is appended before, so nothing begins."""

    code = "cancel_pending"


class ParentCancelled(UsageError):
    """The run that would start this one was told to end: nothing begins below it."""

    code = "parent_cancelled"


class DecidedBefore(Conflict):
    """Another decision about the same call was there first. `winner` is that one, as an event."""

    def __init__(self, message: str, winner: bytes) -> None:
        super().__init__(message)
        self.winner = winner


def is_second(signal: Signal, others: Iterable[bytes]) -> bool:
    """Whether this decision about a call was made before. Raises `DecidedBefore` when another one was."""
    mine = decode(signal.data)
    for data in others:
        other = decode(data)
        if getattr(other, "call_id", "") == getattr(mine, "call_id", ""):
            if other != mine:
                raise DecidedBefore(f"somebody else has decided about a call of run {signal.run_id} already", data)
            return True
    return False


class Renewal(NamedTuple):
    """The outcome of a renewal by run id:

    `lost` leases belong to another process or are gone. All others but `passed_by` are renewed.

    Those had a row that somebody else kept locked: they are as they were, and nothing is known of them.
    """

    lost: Set[str] = frozenset()
    passed_by: Set[str] = frozenset()


ASKING: Final = ("step.started", "question.asked", "question.answered", "approval.requested", "run.waiting")
"""The types of the events that say what a run asks people."""


class RunFilter(NamedTuple):
    """Which runs a list shows. With `private_to`, runs with words of a session only if they act for this user."""

    namespace: str | None = None
    agent: str | None = None
    phases: Sequence[Phase] = ()
    private_to: str | None = None


class Journal(Protocol):
    async def create(
        self,
        run: NewRun,
        first: Sequence[Entry],
        *,
        worker: str | None = None,
        lease_until: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Lease | None:
        """Store a new run with its first events; with `worker`, claimed by it from birth.

        What `in_transaction` writes is stored with it or not at all. Raises `Conflict` when the id is taken, and
        `ParentCancelled`.
        """
        ...

    async def claim(self, run_id: str, *, worker: str, now: float, until: float, dead: int | None = None) -> Lease:
        """Take the run under a new epoch. `dead` is the epoch of a holder known to have died: its lease is void.

        Raises `NotFound`; `RunHeld` while another lease lives; `Conflict` when the run has ended.
        """
        ...

    async def renew(self, leases: Sequence[Lease], *, until: float) -> Renewal:
        """Prolong many leases in one write, never shorten one, and wait for nobody's lock.

        Raises `StoreSetBack`.
        """
        ...

    def append(
        self,
        lease: Lease,
        entries: Sequence[Entry],
        *,
        phase: Phase | None = None,
        summary: dict[str, Any] | None = None,
        taken: Sequence[str] = (),
        answered: Sequence[str] = (),
        due: float | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Awaitable[None]:
        """Add entries, all or none; durable when awaited. Any `phase` but "running" also gives the lease back.

        `taken` are ids of signals that these entries carry; they are removed in the same transaction. `answered` are
        those of inputs that wait for this run no longer. `due` is when a queued run that is let go may be taken again
        (None: as soon as it can go on, in the place that it had). `in_transaction` commits with the entries.
        Raises `LeaseLost`, `JournalConflict`; `SignalsPending` when `phase` is "waiting" and a signal is not
        taken, or it is "succeeded" and an input is not. Without a `phase`, `CancelPending` when the first
        cancel of the run was stored before and is neither among the entries nor taken.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Records behind seq `after`, oldest first; empty for an unknown run."""
        ...

    async def turns(self, run_id: str, *, first: str = "") -> dict[str, list[Entry]]:
        """The journals of the conversation that the run goes on with, by run, from the turn `first` on, oldest first.

        The run itself is not among them; turns of other branches may be. Without `first`, from the beginning.
        """
        ...

    async def get(self, run_id: str) -> RunInfo:
        """Raises `NotFound`."""
        ...

    async def find(self, prefix: str) -> RunInfo:
        """The one run whose id starts with `prefix`. Raises `NotFound`, `Conflict` when it is not unique."""
        ...

    async def list(
        self,
        *,
        namespace: str | None = None,
        agent: str | None = None,
        phases: Sequence[Phase] = (),
        limit: int = 50,
        before: str | int | None = None,
        private_to: str | None = None,
    ) -> list[RunInfo]:
        """Newest first; `before` is the id of the last one already seen, or its key, also when it is gone.

        With `private_to`, runs with words of a session are only there if they act for this user.
        """
        ...

    async def keys(self, wanted: RunFilter, *, limit: int, before: int | None = None) -> list[int]:
        """The keys of what `list` gives: for a page of many namespaces, of each of which little is shown."""
        ...

    async def of_keys(self, keys: Sequence[int]) -> list[RunInfo]:
        """The runs of these keys that there are, newest first."""
        ...

    async def alike(self, prefix: str, *, namespaces: Sequence[str] = (), limit: int) -> list[RunInfo]:
        """The runs whose ids start with `prefix`, by id; of some namespaces, or of all."""
        ...

    async def many(self, run_ids: Sequence[str]) -> list[RunInfo]:
        """The runs of these ids that there are, oldest first."""
        ...

    async def delegated(self, root: str) -> int:
        """How many runs were started by others below this root, as `NewRun.root` names it."""
        ...

    async def last_turn(self, run_id: str) -> str:
        """The last delegated turn of the conversation that this run began; itself when none followed."""
        ...

    async def asking(
        self, *, namespaces: Sequence[str] = (), after: int = 0, limit: int
    ) -> list[tuple[RunInfo, list[Entry]]]:
        """The runs that wait for people, oldest first, behind the key `after`; of some namespaces, or of all.

        Each with those of its events that say what it asks (`ASKING`). They are not held against its chain.
        """
        ...

    async def asking_below(self, run_id: str) -> list[tuple[RunInfo, list[Entry]]]:
        """Lists as `asking` does, of a run, those that it has started, and those below them.

        Also one that a process holds just now and that waited before: whether it still asks, its fold says.
        """
        ...

    async def waiting_below(self, root: str) -> list[RunInfo]:
        """Lists the runs that wait for anything, oldest first, of those that have this `root` (see `asking_below`)."""
        ...

    async def signal(
        self, signal: Signal, *, after: int | None = None, in_transaction: TransactionBody | None = None
    ) -> None:
        """Leave a signal for the holder. Raises `NotFound`; `Conflict` when the run has ended.

        A cancel is left for all runs below that one as well, in the same transaction: nothing begins there after it.

        `after` is for a decision about a call, made by somebody who knows the run up to this seq: when another one
        waits, or was recorded since, this raises `DecidedBefore`. The same decision again changes nothing.
        What `in_transaction` writes is stored with it or not at all, and not when a signal of this id waits already.
        """
        ...

    async def signals(self, run_ids: Sequence[str]) -> list[Signal]:
        """Returns the signals to these runs that are not consumed yet, in the order in which they were stored."""
        ...

    async def put_blob(self, data: bytes, *, run_id: str = "") -> str:
        """Store content once, for a run if there is one; its digest, `sha256:<hex>`.

        It stays as long as its run; without one, until a purge finds that it is old and no run refers to it.
        """
        ...

    async def put_blobs(self, contents: Sequence[bytes], *, run_id: str = "") -> Sequence[str]:
        """Store many contents in one transaction; their digests, in the same order. As `put_blob`."""
        ...

    async def get_blob(self, digest: str, *, run_id: str = "") -> bytes:
        """Returns content by its digest; with `run_id`, only what its conversation refers to. Raises `NotFound`."""
        ...

    async def purge(self, *, ended_before: float, limit: int = 1000) -> int:
        """Forget runs that ended before a time, with events and content nobody else refers to; how many."""
        ...

    async def forget(self, run_id: str) -> None:
        """Forget one run and its events. What it shared with others may stay until the next purge.

        Raises `NotFound`; `Conflict` for a run that has not ended, or whose task lives.
        """
        ...
