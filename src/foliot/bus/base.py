"""The protocol of transports: how workers learn that there is work.

The database is the truth. It says which runs are due, who may take them and in which order; a transport only saves
workers from asking it all the time. So a ticket is permission to look, not a run: the worker that receives one claims
whatever the database gives it first, and a ticket too many, too few, late or twice changes nothing but the delay.

Tickets are published after the commit that made the run due. A worker that hears nothing for a while looks by itself,
which is how work that was committed and never published is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct


class Ticket(Struct, frozen=True, omit_defaults=True):
    """One run that became due. `id` names this becoming-due: publishing it twice delivers it once where possible.

    `agent` is who is to work, `task` the name of its task. The fields behind `due_at` describe the message that the
    run answers, for those who read the stream of a bus; no worker needs them.
    """

    id: str
    run_id: str
    namespace: str
    agent: str
    task: str = ""
    message_id: str = ""
    attempt: int = 1
    due_at: float = 0.0
    system: str = ""
    sender: str = ""
    branch: str = ""
    parent_branch: str = ""
    parent_id: str = ""
    kind: Literal["task_start", "task_handoff"] = "task_handoff"
    payload: str = ""


class Delivery(Protocol):
    """A ticket in the hands of one worker, until it says what became of it."""

    @property
    def ticket(self) -> Ticket | None:
        """The ticket; None from a transport that only rings: something is due.

        Look until the database gives nothing more, because one ring may stand for many tickets.
        """
        ...

    async def done(self) -> None:
        """Forget it. Saying so twice is harmless."""
        ...

    async def again(self, *, delay: float) -> None:
        """Give it to somebody, this worker or another, after `delay` seconds."""
        ...

    async def extend(self) -> None:
        """Still at it: do not give it to anybody else yet."""
        ...


class Transport(Protocol):
    """Never raises because the other side is away: what cannot be sent is found later, in the database."""

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        """Tell workers, now or when the tickets are due. Returns when it was handed over, or could not be."""
        ...

    async def receive(self, *, want: int, timeout: float) -> Sequence[Delivery]:
        """Up to `want` deliveries as soon as there is one; none after `timeout` seconds: time to look by oneself."""
        ...

    async def close(self) -> None:
        """Deliveries that were not said to be done go to others."""
        ...
