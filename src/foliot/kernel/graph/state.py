"""The state of one task: what the fold of its facts knows, in as few bytes as will do.

It is stored in the task's row after every change, so it holds no text that nobody needs any more. Kept are: messages
with a run under way, messages that wait at a join, messages that failed (a requeue sends them again), and what the last
agents said (the task's output). The plan is not in here; it never changes and is passed along.

Purity means the same as for runs: the same facts give the same state, and nothing but `graph_folds.apply` changes it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from foliot.kernel.errors import Unencodable, UnknownEvent
from foliot.kernel.graph.events import Envelope, TaskEnd
from foliot.kernel.messages import Number
from foliot.kernel.run.budget import Spent

VERSION = 1

BranchEnd: TypeAlias = Literal["turn_limit", "no_edge", "late", "skipped", "message_limit"]


class RunningMessage(Struct, omit_defaults=True):
    """A message whose run has not ended."""

    message: Envelope
    since: Number


class Handoff(Struct, omit_defaults=True):
    """The pending consequences of an ended message: it is sent `to` its followers, or its branch `ends`.

    `message` is without its payload. `fan` is how many receivers there were at first, so that branches keep their
    numbers. While a task is ending, nothing is handed on; a requeue goes on from here.
    """

    message: Envelope
    text: str
    to: list[str] = []
    fan: int = 0
    failed: bool = False
    ends: BranchEnd | None = None
    detail: str = ""


class Lost(Struct, omit_defaults=True):
    """A message whose agent failed or was stopped. `missed` are the rounds of joins that count it as absent.

    `tolerated`: the graph went on without it; `told` are those who got the error instead.
    """

    message: Envelope
    error: str = ""
    missed: list[tuple[str, int]] = []
    tolerated: bool = False
    told: list[str] = []


class Round(Struct, omit_defaults=True):
    """One filling of a join. `seen` are the agents that had their turn: they arrived, or are known to be absent."""

    since: Number = 0.0
    waiting: list[Envelope] = []
    absent: dict[str, str] = {}
    seen: list[str] = []
    done: Literal["", "started", "closed", "given_up"] = ""
    partial: bool = False


class Dropped(Struct, omit_defaults=True):
    """A message whose branch is to be declared ended."""

    message: Envelope
    reason: BranchEnd
    detail: str = ""


class AgentOutput(Struct, omit_defaults=True):
    agent: str
    text: str
    hop: int
    branch: str


class TaskEnding(Struct, frozen=True, omit_defaults=True):
    """How the task will end once no run is under way. The first reason stands."""

    how: Literal["failed", "cancelled", "dead_lettered"]
    reason: str = ""
    message: str = ""
    code: str = ""
    message_id: str = ""
    by: str = ""


class GraphState(Struct, omit_defaults=True):
    """The state of a task: the fold of its facts.

    `sent` counts ids by (sender, receiver) and hop, `messages` all of this attempt.

    `floors` are, by node, the rounds up to which all are over and forgotten. `since` is when this attempt began, and 0
    for the first, which began when the task was accepted.
    """

    v: int = VERSION
    accepted: bool = False
    attempt: int = 1
    since: Number = 0.0
    text: str = ""  # what the first agents are told, until they were
    starts: list[str] = []
    resend: list[Envelope] = []
    handoffs: dict[str, Handoff] = {}
    dropped: list[Dropped] = []
    running: dict[str, RunningMessage] = {}
    joins: dict[str, dict[int, Round]] = {}
    floors: dict[str, int] = {}
    lost: dict[str, Lost] = {}
    outputs: list[AgentOutput] = []
    limited: list[str] = []  # where the turn limit has cut a branch
    sent: dict[int, dict[str, int]] = {}
    messages: int = 0
    spent: Spent = field(default_factory=Spent)
    ending: TaskEnding | None = None
    ended: TaskEnd | None = None
    told_by: list[str] = []  # who has put other texts into messages that failed


def new_state() -> GraphState:
    """Returns the state before `TaskAccepted`."""
    return GraphState()


def round_of(state: GraphState, node: str, number: int, at: float) -> Round:
    """This round of the node's join, opened if it was not."""
    return state.joins.setdefault(node, {}).setdefault(number, Round(since=at))


def open_rounds(state: GraphState, node: str) -> list[int]:
    """The rounds of this node's join that wait, oldest first."""
    return sorted(number for number, round in state.joins.get(node, {}).items() if not round.done)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GraphState)


def encode_state(state: GraphState) -> bytes:
    """Raises `Unencodable`, as the facts behind the state would."""
    try:
        return _encoder.encode(state)
    except UnicodeEncodeError as error:
        raise Unencodable(f"the state of a task cannot be written: {error}") from error


def decode_state(data: bytes) -> GraphState:
    """Raises `UnknownEvent` when the bytes are no state, or one of a newer version: fold the facts instead."""
    try:
        state = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownEvent(f"not the state of a task: {error}") from error
    if state.v > VERSION:
        raise UnknownEvent(f"the state of a task in version {state.v}; this version of foliot reads up to {VERSION}")
    return state
