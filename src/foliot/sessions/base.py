"""The values and protocols of sessions, for whoever stands beside or above them.

`Session`, `Place`, `Input`, `Said` and `Turn` are as they are stored (store/sessions/base.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from foliot.engine.definition.run_options import RunOptions
from foliot.errors import InvalidInput
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.store.journal.base import Phase, TransactionBody
from foliot.store.sessions.base import Place, Session
from foliot.store.sessions.inbox_rules import AgentObject


class TurnOptions(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of one turn. Blank fields leave what the session and the agent say.

    `exclude_tools` are tools that the turn does not have, nor any run below it. After `max_seconds` it ends.
    """

    model: str = ""
    system: str = ""
    exclude_tools: tuple[str, ...] = ()
    max_seconds: float | None = None

    def for_run(self) -> RunOptions:
        """Returns what these options change in the spec of a run."""
        return RunOptions(model=self.model, system=self.system, exclude_tools=self.exclude_tools)


def check_said(message: object) -> None:
    """Raises `InvalidInput` for what is neither a text nor a message."""
    if not isinstance(message, str | Message):
        raise InvalidInput(
            f"what is said to a session is a text or a Message, and not {type(message).__name__}", field="message"
        )


class NewTurn(Struct, frozen=True):
    """A turn that is about to begin. `in_transaction` begins it in the rows of its session.

    `after` is the run that it goes on after, blank for the first. One that `compacts` answers nothing, and summarises
    the conversation. `labels` say where its newest input came from. `instead` is the run whose answer it gives again.
    """

    session: Session
    run_id: str
    number: int
    after: str
    input: tuple[Message, ...]
    inputs: tuple[int, ...]
    identity: Identity
    options: TurnOptions
    in_transaction: TransactionBody
    compacts: bool = False
    labels: dict[str, str] = {}
    instead: str = ""


class TurnRuns(Protocol):
    """The runs of turns, as the runtime drives them."""

    async def begin(self, turn: NewTurn) -> None:
        """Stores the run of a turn and drives it in the background; durable on return.

        Raises `SessionBusy` when another turn began meanwhile, and what keeps a run of its agent from beginning.
        """
        ...

    async def wake(self, run_id: str) -> None:
        """Lets a run hear what is stored for it, wherever it is driven; one that no one drives is resumed here.

        Never raises.
        """
        ...

    async def cancel(self, run_id: str, *, by: str, reason: str, wait: bool = True) -> None:
        """Cancels a run; returns when it has ended and nothing of it acts any more. One that has ended stays so.

        Without `wait` it returns as soon as it is stored that it is to end.
        Raises `Unavailable` for one that does not end in time, and what keeps it from ending.
        """
        ...

    def agent_object(self, place: Place) -> AgentObject | None:
        """Returns the rules of an agent that is an object of this process; None for one that is looked up."""
        ...

    async def check(self, namespace: str, agent: str, model: str) -> None:
        """Raises `NotFound` or `InvalidInput` unless there is such an agent, and such a model if one is named."""
        ...

    async def check_active(self, place: Place) -> None:
        """Raises `InactiveAgent` for an agent that takes no new work."""
        ...

    async def check_turn(self, place: Place, options: TurnOptions, files: Sequence[str]) -> None:
        """Raises `NotFound`, `Denied` or `InvalidInput` unless a turn of the agent may have these options.

        `files` are media types that come with what is said: a model that does not read one of them is asked nothing.
        """
        ...

    async def check_compaction(self, place: Place, head: str) -> None:
        """Raises `Conflict` when a summary could replace nothing in the conversation that ends with this run."""
        ...


class TurnView(Struct, frozen=True):
    """One turn of a session with its messages. `number` counts turns; `parent` is the turn that it goes on after.

    `current`: it stands between the beginning and the head of the session; other branches were asked for again.
    """

    number: int
    run_id: str
    parent: int
    began_at: float
    ended_at: float | None
    phase: Phase
    messages: tuple[Message, ...]
    current: bool = True


class Found(Struct, frozen=True):
    """A place in the history of a session that was searched for. `excerpt` is the text around the words."""

    session: str
    title: str
    turn: int
    run_id: str
    role: str
    excerpt: str
    at: float
