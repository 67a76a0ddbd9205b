"""The interface of this room: commands in, tasks out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from foliot.bus.base import Ticket
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.execution import ExecutionPolicy
from foliot.kernel.graph.events import TaskEvent
from foliot.kernel.graph.plan import Plan
from foliot.kernel.graph.state import GraphState
from foliot.kernel.identity import NOBODY, Identity, acting
from foliot.kernel.run.spec import RunSpec
from foliot.resources.references import Origin
from foliot.store.base import Document
from foliot.store.journal.base import Lease
from foliot.store.queue.placement import Needs
from foliot.store.transaction import Tx

TargetKind: TypeAlias = Literal["agent", "system"]
Priority: TypeAlias = Literal["low", "normal", "high", "critical"]
# What a worker must have to take the runs of a task.
Requirements: TypeAlias = Needs
PRIORITIES: dict[str, int] = {"low": 0, "normal": 10, "high": 20, "critical": 30}


class Command(Struct, frozen=True, omit_defaults=True):
    """A request for work. What is blank is chosen: the name of the task, its key.

    `message` is what the first agent is told, by default `input["topic"]`. `input` goes to every agent. `identity` is
    on whose behalf it is done, and every run of it; `user` and `by` are what a request says of it, which counts only
    where there is no `identity`, as in a program that has the store open. `timeout` is in seconds for the whole task,
    `expires_at` the time after which it must not begin any more. `attachments` and `routing` are carried along, and
    not looked into. `trace` is the `traceparent` that the task is traced under. `template` is the Task that it was
    made after, as `namespace/name`. `written` is how the Task was written, in an older version of the format (see
    resources/wording.py); it says nothing that the rest does not. `execution_policy` narrows that of each agent.
    """

    target_kind: TargetKind
    target: str
    namespace: str = "default"
    name: str = ""
    message: str = ""
    input: dict[str, str] = {}
    idempotency_key: str = ""
    priority: Priority = "normal"
    lane: str = ""
    labels: dict[str, str] = {}
    spawned_by: str = ""
    parent: str = ""
    by: str = ""
    user: str = ""
    max_turns: int = 0
    timeout: float | None = None
    expires_at: float | None = None
    requirements: Requirements = Requirements()
    retry: RetryPolicy = RetryPolicy()
    extra_system_prompt: str = ""
    attachments: tuple[dict[str, Any], ...] = ()
    routing: dict[str, Any] = {}
    trace: str = ""
    template: str = ""
    identity: Identity = NOBODY
    written: dict[str, Any] = {}
    execution_policy: ExecutionPolicy | None = None

    @property
    def acts_as(self) -> Identity:
        """The identity on whose behalf it is done."""
        return self.identity if self.identity != NOBODY else acting(self.user, self.by, "")


class TaskInfo(Struct, frozen=True):
    """A task as listings show it. `summary` is written with every change: output, error, counts, usage, waiting.

    `spec` is what was asked for, in the words of a Task, and `written` how its author put it, as `Command` has it.
    `claimed_by` is a worker that has one of its runs now, and `heartbeat_at` when it was last heard of. At
    `next_attempt_at` a run that nobody has goes on by itself: after a failure, or when its turn at a model comes.
    """

    key: int
    uid: str
    namespace: str
    name: str
    target_kind: TargetKind
    target: str
    phase: str
    revision: int
    attempt: int
    priority: int
    lane: str
    spawned_by: str
    parent: str
    labels: dict[str, str]
    summary: dict[str, Any]
    timer_at: float | None
    created_at: float
    updated_at: float
    started_at: float | None
    ended_at: float | None
    archived_at: float | None
    spec: dict[str, Any] = {}
    written: dict[str, Any] = {}
    claimed_by: str = ""
    lease_until: float | None = None
    heartbeat_at: float | None = None
    next_attempt_at: float | None = None

    @property
    def id(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class NewTaskParts(Struct, frozen=True):
    """The parts of a new task that accepting it made: its story is told from them, and nothing is read again."""

    command: Command
    plan: Plan
    state: GraphState
    facts: Sequence[TaskEvent]
    tickets: Sequence[Ticket]


class Accepted(Struct, frozen=True):
    """`duplicate`: this call made nothing, the task was there already. Otherwise `begun` holds what it made."""

    task: TaskInfo
    duplicate: bool
    begun: NewTaskParts | None = None


# More of the transaction that does something to a task, told its name and uid: what it raises undoes all of it.
TaskBody: TypeAlias = Callable[[str, str], Tx[None]]


class Tasks(Protocol):
    """The tasks as schedules, webhooks, the command line and the server use them.

    What `in_transaction` writes is stored with what is done, or not at all. When nothing is done, it is not run.
    """

    async def accept(
        self,
        command: Command,
        *,
        in_transaction: TaskBody | None = None,
        keyed_by: str = "",
        may_fail: bool = False,
        content: str | None = None,
    ) -> Accepted:
        """Durable on return. Raises `InvalidInput`, `NotFound` (the target), `Conflict` (same key, other content).

        `keyed_by` is whoever the idempotency key belongs to: the same key of somebody else is another key. `may_fail`:
        a task whose target is not there is accepted, and fails at once with that reason; once the target is there, the
        same task is begun when it is retried or asked for again. `content` is `content_digest` of the command, from who
        has put it into normal form.
        """
        ...

    async def accept_template(
        self, ref: str, command: Command, *, origin: Origin, by_operator: bool = False
    ) -> Accepted:
        """A task after the Task resource `ref` (`namespace/name`) of mode `template`; what `command` gives wins.

        `origin` refers to it; `by_operator` says that it acts for the operator, who declared it. `command.target` may
        be blank. Raises as `accept`, and for the template `NotFound`, `InvalidInput`, and `Denied` when it is in
        another namespace that has not granted it, or when it would act for somebody who may do nothing any more.
        """
        ...

    async def get(self, namespace: str, name: str) -> TaskInfo:
        """Raises `NotFound`."""
        ...

    async def list(
        self,
        *,
        namespace: str | None = None,
        target: str | None = None,
        phases: tuple[str, ...] = (),
        labels: dict[str, str] | None = None,
        lane: str | None = None,
        spawned_by: str | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[TaskInfo], str | None]:
        """Newest first, and the cursor of the next page. Raises `InvalidInput` for a cursor that was not issued."""
        ...

    async def cancel(
        self, namespace: str, name: str, *, by: str = "", reason: str = "", in_transaction: TaskBody | None = None
    ) -> TaskInfo:
        """Ask it to end; runs that nobody holds end now. Raises `NotFound`, `Conflict` when it has ended."""
        ...

    async def archive(
        self, namespace: str, name: str, *, by: str = "", in_transaction: TaskBody | None = None
    ) -> TaskInfo:
        """Hide an ended task from lists; a live one is cancelled first. Doing it again changes nothing."""
        ...

    async def requeue(
        self,
        namespace: str,
        name: str,
        *,
        by: str = "",
        payloads: dict[str, str] | None = None,
        in_transaction: TaskBody | None = None,
    ) -> TaskInfo:
        """A new attempt of a task that ended badly, behind what had succeeded. Raises `NotFound`, `Conflict`."""
        ...

    async def events(self, namespace: str, name: str, *, after: int = 0, limit: int = 500) -> list[TaskRecord]: ...

    async def delete(self, namespace: str, name: str, *, in_transaction: TaskBody | None = None) -> None:
        """Forget an ended task with its events. Its runs stay until they are purged. Raises `Conflict` when live."""
        ...


class TaskRecord(Struct, frozen=True):
    """One fact of a task as stored."""

    seq: int
    at: float
    event: TaskEvent


class Definitions(Protocol):
    """The declared resources as tasks use them."""

    async def version(self) -> Hashable:
        """Equal as long as nothing that is declared has changed."""
        ...

    async def agent(self, namespace: str, name: str, *, user: str = "") -> tuple[RunSpec, str]:
        """An agent, frozen as a run of it for `user` would be, and the digest of its definition. Raises `NotFound`."""
        ...

    async def has_skills(self, namespace: str, user: str, version: Hashable) -> bool:
        """Whether there are skills of this user in a namespace: then agents are frozen for them. Costs no look-up.

        `version` is the one that was asked for last.
        """
        ...

    async def system(self, namespace: str, name: str) -> tuple[Document, str]:
        """A system and the digest of its definition. Raises `NotFound`."""
        ...

    async def template(self, ref: str, origin: Origin) -> Document:
        """The Task resource that `origin` refers to. Raises `NotFound`, `InvalidInput`, `Denied`."""
        ...


class Performer(Protocol):
    """Drives one claimed run until it ends or is let go."""

    async def prepare(self, leases: Sequence[Lease]) -> None:
        """Prepares leases that were just claimed and are performed next: their common data may be read at once.

        Never raises.
        """
        ...

    async def perform(self, lease: Lease) -> None:
        """Returns when the lease is given back, whatever became of the run. Does not raise for a run that failed."""
        ...
