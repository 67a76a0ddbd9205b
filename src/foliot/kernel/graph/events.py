"""The vocabulary of a task's journal: every fact that can be recorded of a task, in one file.

Written by:  the transaction that accepts, advances or ends the task; it names the revision of the task it follows.
Read by:     `graph.fold`, and everyone who shows a task: list, show, graph, events, why.
Promise:     as for the facts of runs (events.py): what was once written is decoded for ever, and names never change.

One message activates exactly one run. A message to a node with a join waits there, and the join sends one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from foliot.kernel.messages import Usage
from foliot.kernel.run.codec import Codec, type_of

SYSTEM = "system"  # who sends the first messages of a task
JOIN = "join"  # who sends the message with what a join collected


class TaskFact(Struct, frozen=True, omit_defaults=True):
    """Base of all facts about tasks."""


class Source(Struct, frozen=True, omit_defaults=True):
    """One message that arrived at a join. `failed`: what it carries is what went wrong."""

    message_id: str
    agent: str
    payload: str
    branch: str = ""
    failed: bool = False


class Envelope(Struct, frozen=True, omit_defaults=True):
    """A message from one agent to the next.

    `id` is `namespace/task/a001/h001/from/to`: sending again gives the same one.

    `hop` counts messages along the ancestry, and so does `turns` (see `Plan.max_turns`); `round` counts the fillings
    of the receiver's join, and is 0 for the message that starts a task at such a node. `sources` are what the join
    collected, in the order of the graph; `payload` is then the text of all of them. `laps` are the rounds of joins in
    the ancestry. `replaces` is the message of an earlier attempt that is sent again; `told` are those who were told of
    its failure then, and hear nothing more of it.
    """

    id: str
    sender: str
    to: str
    payload: str
    attempt: int = 1
    hop: int = 1
    turns: int = 1
    round: int = 1
    branch: str = "b001"
    parent_branch: str = ""
    parent_id: str = ""
    kind: Literal["task_start", "task_handoff"] = "task_handoff"
    sources: tuple[Source, ...] = ()
    required: int = 0
    failed: bool = False
    laps: dict[str, int] = {}
    replaces: str = ""
    told: tuple[str, ...] = ()


class TaskAccepted(TaskFact, frozen=True, tag="task.accepted"):
    """The first fact. `message` is what the first agents are told; `input` is everything that was given."""

    message: str
    input: dict[str, str] = {}
    by: str = ""


class MessageSent(TaskFact, frozen=True, tag="message.sent"):
    """`activates`: a run begins with it. Otherwise it waits at the join of its receiver."""

    message: Envelope
    activates: bool = True


class MessageEnded(TaskFact, frozen=True, tag="message.ended"):
    """The run of a message has ended. `route` are labels for conditional edges; `held` are the positions of the
    node's edges whose expressions held. `attempts` is how often the run was tried, `worker` who had it last."""

    message_id: str
    outcome: Literal["succeeded", "failed", "cancelled"]
    run_id: str = ""
    output: str = ""
    route: dict[str, str] = {}
    held: tuple[int, ...] = ()
    code: str = ""
    reason: str = ""
    error: str = ""
    attempts: int = 1
    usage: Usage = Usage()
    worker: str = ""


class BranchEnded(TaskFact, frozen=True, tag="branch.ended"):
    """A line of messages stops here although the graph goes on: why (`turn_limit`, `no_edge`, `late`, `skipped`)."""

    message_id: str
    reason: Literal["turn_limit", "no_edge", "late", "skipped", "message_limit"]
    detail: str = ""


class JoinClosed(TaskFact, frozen=True, tag="join.closed"):
    """A join cannot fill, or waited too long; its `on_failure` decides what follows."""

    node: str
    round: int
    reason: Literal["timeout", "cannot_fill"]
    then: Literal["deadletter", "skip", "continue_partial"]
    missing: tuple[str, ...] = ()


class TimerWentOff(TaskFact, frozen=True, tag="timer.went_off"):
    """The time that `timer` named has passed; what is overdue is decided now."""


class TaskCancelRequested(TaskFact, frozen=True, tag="task.cancel_requested"):
    by: str = ""
    reason: str = ""


class TaskRequeued(TaskFact, frozen=True, tag="task.requeued"):
    """A task that had ended badly is tried again: a new attempt that goes on behind what had succeeded.

    `payloads` replaces what failed messages carry, by message id.
    """

    attempt: int
    by: str = ""
    reason: str = ""
    payloads: dict[str, str] = {}


class TaskSucceeded(TaskFact, frozen=True, tag="task.succeeded"):
    """`output` is what the last agents said: of one, its text; of several, each under its name."""

    output: str
    outputs: dict[str, str] = {}
    usage: Usage = Usage()


class TaskFailed(TaskFact, frozen=True, tag="task.failed"):
    code: str
    reason: str
    message: str
    usage: Usage = Usage()


class TaskCancelled(TaskFact, frozen=True, tag="task.cancelled"):
    by: str = ""
    reason: str = ""
    usage: Usage = Usage()


class TaskDeadLettered(TaskFact, frozen=True, tag="task.dead_lettered"):
    """Given up after all attempts; it waits for someone to look, and can be requeued."""

    reason: str
    message: str
    message_id: str = ""
    usage: Usage = Usage()


TaskEvent: TypeAlias = (
    TaskAccepted
    | MessageSent
    | MessageEnded
    | BranchEnded
    | JoinClosed
    | TimerWentOff
    | TaskCancelRequested
    | TaskRequeued
    | TaskSucceeded
    | TaskFailed
    | TaskCancelled
    | TaskDeadLettered
)
TaskEnd: TypeAlias = TaskSucceeded | TaskFailed | TaskCancelled | TaskDeadLettered


# --- codec -----------------------------------------------------------------------------------------------------------

# Facts about tasks as bytes, and back, for ever: JSON that names its own type, by the rules of kernel/run/codec.py.

FACT_TYPES: Final[tuple[type[TaskFact], ...]] = get_args(TaskEvent)
# Shapes that are no longer written, each with the step to the next newer one. Only ever added to.
RETIRED: Final[Mapping[type[TaskFact], Callable[[Any], Any]]] = {}
_codec: Final[Codec[TaskFact]] = Codec(FACT_TYPES, RETIRED)


def encode_fact(fact: TaskEvent) -> bytes:
    """Encodes a fact as JSON; decoding and encoding it again gives the same bytes. Raises `Unencodable`."""
    return _codec.encode(fact)


def decode_fact(data: bytes) -> TaskEvent:
    """Decodes a fact that this or any earlier version encoded. Raises `UnknownEvent`: do not act on such a task."""
    return _codec.decode(data)  # pyright: ignore[reportReturnType] - the codec was built from the members of TaskEvent


def fact_type(fact: TaskEvent) -> str:
    """The name of the fact's type without its version, for example `message.sent`."""
    return type_of(fact)
