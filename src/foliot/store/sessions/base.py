"""The values that cross the store of sessions.

Written by:  the room `sessions`; what is said to a run outside of sessions by `runtime/inputs`.
Read by:     the same, lists and searches.
Invariant:   a session has at most one turn at work. Its inputs are numbered without gaps, in the order in which they
             were stored, and each that is `consumed` names the run that answers it, or took it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from foliot.errors import Conflict
from foliot.kernel.inbox import Outcome, Waiting
from foliot.kernel.messages import Message
from foliot.kernel.run.events import InputMode
from foliot.store.journal.base import Signal, TransactionBody
from foliot.store.taken import MessageKey

SessionKind: TypeAlias = Literal["main", "chat", "delegate", "task", "scheduler"]
InputStatus: TypeAlias = Literal["pending", "offered", "consumed", "dropped"]
OwnerKind: TypeAlias = Literal["session", "run"]
NO_TURN: Final = ""
# Among the details of an input: the others whose order it is, as in `Identity`.
ORDERED_BY: Final = "ordered_by"


class SessionArchived(Conflict):
    """The session is archived: it can be read, and takes nothing new."""

    code = "session_archived"


class SessionBusy(Conflict):
    """Another turn of the session is at work."""

    code = "session_busy"


class InboxFull(Conflict):
    """So much waits to be answered that the session takes nothing more for now."""


class Place(Struct, frozen=True):
    """The place that one session is active for: an agent, a user and a channel of a namespace."""

    namespace: str
    agent: str
    user: str = ""
    channel: str = ""


class NewSession(Struct, frozen=True):
    """A session to be stored. `model` is the one that its turns ask, blank for that of the agent."""

    id: str
    place: Place
    kind: SessionKind = "chat"
    title: str = ""
    model: str = ""
    options: dict[str, Any] = {}


class Session(Struct, frozen=True):
    """A session as stored. `head` is the run that the next turn goes on after, `turn` the run at work."""

    key: int
    id: str
    place: Place
    kind: SessionKind
    title: str
    model: str
    options: dict[str, Any]
    created_at: float
    active_at: float
    archived_at: float | None
    head: str
    turn: str
    turns: int
    arrivals: int

    @property
    def mark(self) -> SessionMark:
        """The part of it that changes when something happens to it."""
        return SessionMark(self.head, self.turn, self.turns, self.arrivals, self.active_at)


class SessionMark(NamedTuple):
    """A mark of a session: another one when a turn began or ended, or something was said."""

    head: str
    turn: str
    turns: int
    arrivals: int
    active_at: float


class Turn(Struct, frozen=True):
    """One turn of a session. `parent` is the number of the turn that it goes on after, 0 for none."""

    number: int
    run_id: str
    parent: int
    began_at: float
    ended_at: float | None


class FoundTurn(Struct, frozen=True):
    """A turn in which something was said that somebody searched for."""

    session: str
    title: str
    number: int
    run_id: str
    at: float


class QuestionClosed(Conflict):
    """The question that an input was to answer is not open any more, or another answer was faster."""


class InputAnswer(Struct, frozen=True):
    """The answer that an input is to a question of the `turn` at work, or of a run below it.

    The run that asks has `seq` events while the question is open. What `record` writes is stored with the answer.
    """

    turn: str
    signal: Signal
    seq: int
    record: TransactionBody | None = None


class NewInput(Struct, frozen=True):
    """An input to be stored. The same `id` twice is one input; `digest` tells whether it is the same.

    `place` is where it came from (channel, thread): inputs of two places are never joined. `details` are routing,
    provenance and options of its turn, as the rooms above write them; `ORDERED_BY` among them are the others whose
    order it is. `once` is the key of a message that is taken once whatever session it goes to. `answer`: it is heard by
    the turn at work as the answer to its question, and by no later one.
    """

    id: str
    mode: InputMode
    message: Message
    digest: str
    by: str = ""
    place: str = ""
    details: dict[str, Any] = {}
    once: MessageKey | None = None
    answer: InputAnswer | None = None


class Input(Struct, frozen=True):
    """An input as stored. `message` is None once it stands in the journal of `run_id`.

    Before that, `run_id` is the turn that it was offered to, or that it signalled to end.
    """

    seq: int
    id: str
    mode: InputMode
    message: Message | None
    digest: str
    by: str
    place: str
    details: dict[str, Any]
    status: InputStatus
    steered: bool
    outcome: Outcome
    reason: str
    run_id: str
    at: float

    def waiting(self) -> Waiting:
        """Returns what the rules of the inbox need to know of it."""
        return Waiting(self.seq, self.mode, self.at, self.place, offered=self.status == "offered", steered=self.steered)


class Dropped(Struct, frozen=True):
    """Inputs of a place that had to make room and stand in no turn yet: the `newest`, by arrival, of `count`."""

    newest: tuple[Input, ...] = ()
    count: int = 0


NONE_DROPPED: Final = Dropped()


class Said(Struct, frozen=True):
    """The outcome of an input. `run_id` is the turn that has to hear of it, if one is at work.

    `act` is what is left to do after the commit: `start` a turn, `wake` the run that was signalled, or nothing.
    `again`: it had been said before, and this is what became of it; `act` is what was left undone. `problem` is why no
    turn can begin yet. `session` is where it was said, if that is another one than was asked. `answered` is the call
    whose question it has answered.
    """

    seq: int
    outcome: Outcome
    act: Literal["start", "wake", "wait"] = "wait"
    run_id: str = ""
    dropped: tuple[int, ...] = ()
    again: bool = False
    problem: str = ""
    session: str = ""
    answered: str = ""
