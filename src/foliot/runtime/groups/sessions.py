"""The verbs on sessions: conversations of a person with an agent; see groups.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from foliot.runtime.groups.arguments import Group

if TYPE_CHECKING:
    from foliot.kernel.messages import Message
    from foliot.runtime.agent import Agent
    from foliot.sessions.base import Found, TurnOptions, TurnView
    from foliot.sessions.chat_events import ChatEvent
    from foliot.store.sessions.base import Input, Said, Session, SessionKind

# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class SessionGroup(Group):
    """Sessions: conversations that last. A turn is a run; `user` is whose session it is, the caller's by default."""

    @abstractmethod
    async def create(
        self,
        agent: Agent | str,
        *,
        namespace: str = "default",
        user: str = "",
        channel: str = "",
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Create a session of a user with an agent, which is then the active one of its channel.

        An `Agent` object has its functions and hooks in this process, as with `run`: give it again after a start.
        `model` is an endpoint that its turns ask instead of the agent's. Raises `NotFound` (the agent), `Conflict` when
        the id is taken, `InvalidInput`.
        """

    @abstractmethod
    async def resolve(
        self,
        agent: Agent | str,
        *,
        namespace: str = "default",
        user: str = "",
        channel: str = "",
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Return the active session of a channel, or create it; all who ask at once get the same one.

        Raises as `create`.
        """

    @abstractmethod
    async def rotate(
        self,
        agent: Agent | str,
        *,
        namespace: str = "default",
        user: str = "",
        channel: str = "",
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Archive the active session of a channel, if there is one, and create another. Raises as `create`."""

    @abstractmethod
    async def active(
        self, agent: Agent | str, *, namespace: str = "default", user: str = "", channel: str = ""
    ) -> Session | None:
        """Return the active session of a channel, if there is one."""

    @abstractmethod
    async def get(self, id: str) -> Session:
        """Return a session. Raises `NotFound`, also for one that the caller may not see."""

    @abstractmethod
    async def list(
        self,
        *,
        namespace: str = "default",
        agent: str = "",
        user: str = "",
        channel: str = "",
        mine: bool = False,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Rows[Session], str | None]:
        """List sessions, the last used first, with the cursor of the next page; blank fields are any.

        With `mine`, and on a server without the role operator, they are the caller's own. Raises `InvalidInput`.
        """

    @abstractmethod
    async def change(
        self, id: str, *, title: str | None = None, model: str | None = None, options: dict[str, Any] | None = None
    ) -> Session:
        """Change what is given; a turn at work keeps its model. Raises `NotFound`, `SessionArchived`."""

    @abstractmethod
    async def archive(self, id: str) -> Session:
        """Archive a session: it can be read, and takes nothing new. Raises `NotFound`."""

    @abstractmethod
    async def delete(self, id: str) -> None:
        """Delete a session; its runs stay. Raises `NotFound`, `SessionBusy` while a turn is at work."""

    @abstractmethod
    async def search(
        self, text: str, *, namespace: str = "default", session: str | None = None, limit: int = 20
    ) -> Rows[Found]:
        """Search what was said in sessions, or in one, the newest first. Raises `InvalidInput`, `NotFound`."""

    @abstractmethod
    async def history(self, id: str, *, before: int | None = None, limit: int = 50) -> Rows[TurnView]:
        """List turns with their messages, the newest last, of all branches; `before` is the number of a turn.

        Nothing that was compacted is missing from it. Raises `NotFound`.
        """

    @abstractmethod
    async def inputs(self, id: str, *, after: int = 0, limit: int = 50) -> Rows[Input]:
        """List what was said to a session behind the arrival number `after`, and what became of it.

        Raises `NotFound`.
        """

    @abstractmethod
    async def say(
        self,
        id: str,
        message: Message | str,
        *,
        mode: str = "followup",
        key: str | None = None,
        place: str = "",
        options: TurnOptions | None = None,
    ) -> Said:
        """Say something to a session; durable on return. It begins a turn, is heard by the one at work, or waits.

        The same `key` twice is one input, with the same outcome. `place` is where it came from: inputs of two places
        are never answered together. `options` hold for the turn that answers it.
        Raises `NotFound`, `SessionArchived`, `InvalidInput`, `Conflict` when the inbox is full or the key belongs to
        other words.
        """

    @abstractmethod
    def chat(
        self,
        id: str,
        message: Message | str,
        *,
        mode: str = "followup",
        key: str | None = None,
        place: str = "",
        options: TurnOptions | None = None,
        pauses: bool = False,
    ) -> AsyncGenerator[ChatEvent]:
        """Say something and yield what happens in the turn that answers it, up to its one `EndEvent`.

        A reader who leaves does not stop the turn. With `pauses` the last event may be one of status `waiting`, when
        a person has to decide before the turn goes on. Raises as `say`.
        """

    @abstractmethod
    def watch(self, id: str, *, after: str = "") -> AsyncGenerator[ChatEvent]:
        """Yield what happens in a session, turn after turn, each with one `EndEvent`, until the reader leaves.

        It begins with the turn at work, or behind the event whose `place` is `after`. Raises `NotFound`,
        `InvalidInput`.
        """

    @abstractmethod
    async def regenerate(self, id: str, *, options: TurnOptions | None = None) -> Said:
        """Answer again what the newest turn has answered; the earlier answer stays as a branch.

        The new turn has the options of the earlier one, but for those given here; `run_id` is the new turn. Raises
        `NotFound`, `SessionArchived`, `SessionBusy` while a turn is at work, `Conflict` when nothing was said.
        """

    @abstractmethod
    async def select_branch(self, id: str, turn: int) -> Session:
        """Continue after this turn from now on: what is said next belongs to its branch, the others stay readable.

        Raises `NotFound`, `SessionArchived`, `SessionBusy` while a turn is at work.
        """

    @abstractmethod
    async def compact(self, id: str) -> Said:
        """Compact the conversation: older messages are sent to the model as a summary, and all stay readable.

        The turn at work does so before its next question; else it is a turn of its own, which answers nothing:
        `run_id`. Raises `NotFound`, `SessionArchived`, `SessionBusy`, `Conflict` when there is nothing to replace yet.
        """

    @abstractmethod
    async def resume(self, id: str) -> Session:
        """Have a session go on that no process looks after: its turn at work is resumed, what waits is answered.

        One that goes on already stays as it is. Raises `NotFound`, and what keeps the turn from going on.
        """

    @abstractmethod
    async def invalidate(self, *, user: str = "", namespace: str = "default") -> None:
        """Mark what all processes have warm for the sessions of a user as stale; by default for your own.

        The next turn of the user is built anew; a turn at work is not touched. It is recorded in the audit log.
        Another user than the caller needs the role admin. Raises `Denied`, `InvalidInput`.
        """

    @abstractmethod
    async def stop(self, id: str, *, drop: bool = False) -> bool:
        """Stop the turn at work; return when nothing of it acts any more, and whether there was one.

        What waits is answered next; with `drop` it is taken out. Raises `NotFound`.
        """
