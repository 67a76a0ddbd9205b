"""The verbs on sessions, on a runtime in this process; see groups/sessions.py.

Whoever can open the store can read every session. What is said is said for the user of the session, by the caller.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, cast

from foliot.common.pages import Part, read_first
from foliot.kernel.identity import NOBODY, Identity, acting
from foliot.kernel.messages import Message
from foliot.runtime.agent import Agent, named, within
from foliot.runtime.groups.sessions import SessionGroup
from foliot.runtime.inside import Inside
from foliot.runtime.local.groups import whoami
from foliot.sessions.base import Found, TurnOptions, TurnView
from foliot.sessions.chat_events import ChatEvent
from foliot.sessions.checks import check_place
from foliot.sessions.service import SessionService
from foliot.store.journal.base import RunHeld
from foliot.store.sessions.base import Input, Place, Said, Session, SessionKind

# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class LocalSessions(SessionGroup):
    """Implements `SessionGroup`."""

    def __init__(self, inside: Inside, *, caller: Identity = NOBODY) -> None:
        self._inside = inside
        self._caller = caller

    @property
    def _sessions(self) -> SessionService:
        return self._inside.sessions

    def _place(self, agent: Agent | str, namespace: str, user: str, channel: str) -> Place:
        """Returns the place of a session; an agent that is an object is remembered, with its functions and hooks."""
        name = agent
        if not isinstance(agent, str):
            within(agent, namespace)
            namespace, name = named(agent)
            self._inside.know(agent)
        return Place(namespace, cast("str", name), user or self._me, channel)

    @property
    def _me(self) -> str:
        """The user whose sessions are meant where none is named."""
        return self._caller.user or whoami()

    async def _identity(self, id: str) -> Identity | None:
        """Returns the identity to act with in a session: its user's, and by whom; None for one of nobody."""
        user = (await self.get(id)).place.user
        return acting(user, self._caller.user, self._caller.via or "python") if user else None

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
        place = self._place(agent, namespace, user, channel)
        given: dict[str, Any] = {"kind": kind, "title": title, "model": model, "options": options}
        return await self._sessions.create(place, identity=None, id=id, **given)

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
        place = self._place(agent, namespace, user, channel)
        return await self._sessions.resolve(place, identity=None, kind=kind, title=title, model=model, options=options)

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
        place = self._place(agent, namespace, user, channel)
        return await self._sessions.rotate(place, identity=None, kind=kind, title=title, model=model, options=options)

    async def active(
        self, agent: Agent | str, *, namespace: str = "default", user: str = "", channel: str = ""
    ) -> Session | None:
        return await self._sessions.active(self._place(agent, namespace, user, channel), identity=None)

    async def get(self, id: str) -> Session:
        return await self._sessions.get(id, identity=None)

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
        async def ask(*, cursor: str | None, limit: int) -> Part[Session]:
            return await self._sessions.list(
                namespace,
                identity=Identity(self._me, via=self._caller.via) if mine else None,
                agent=agent,
                user=user,
                channel=channel,
                archived=archived,
                limit=limit,
                cursor=cursor or "",
            )

        return await read_first(limit, ask, cursor=cursor)

    async def change(
        self, id: str, *, title: str | None = None, model: str | None = None, options: dict[str, Any] | None = None
    ) -> Session:
        return await self._sessions.change(id, identity=None, title=title, model=model, options=options)

    async def archive(self, id: str) -> Session:
        return await self._sessions.archive(id, identity=None)

    async def delete(self, id: str) -> None:
        await self._sessions.delete(id, identity=None)

    async def search(
        self, text: str, *, namespace: str = "default", session: str | None = None, limit: int = 20
    ) -> Rows[Found]:
        return [*await self._sessions.search(namespace, text, identity=None, session=session, limit=limit)]

    async def history(self, id: str, *, before: int | None = None, limit: int = 50) -> Rows[TurnView]:
        return [*await self._sessions.history(id, identity=None, before=before, limit=limit)]

    async def inputs(self, id: str, *, after: int = 0, limit: int = 50) -> Rows[Input]:
        return [*await self._sessions.inputs(id, identity=None, after=after, limit=limit)]

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
        identity = await self._identity(id)
        return await self._sessions.say(
            id, message, identity=identity, mode=mode, key=key, place=place, options=options
        )

    async def chat(
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
        given: dict[str, Any] = {"mode": mode, "key": key, "place": place, "options": options, "pauses": pauses}
        identity = await self._identity(id)
        async with aclosing(self._inside.chat.chat(id, message, identity=identity, **given)) as events:
            async for event in events:
                yield event

    async def watch(self, id: str, *, after: str = "") -> AsyncGenerator[ChatEvent]:
        async with aclosing(self._inside.chat.watch(id, identity=None, after=after)) as events:
            async for event in events:
                yield event

    async def regenerate(self, id: str, *, options: TurnOptions | None = None) -> Said:
        return await self._sessions.regenerate(id, identity=await self._identity(id), options=options)

    async def select_branch(self, id: str, turn: int) -> Session:
        return await self._sessions.select_branch(id, turn, identity=None)

    async def compact(self, id: str) -> Said:
        return await self._sessions.compact(id, identity=await self._identity(id))

    async def resume(self, id: str) -> Session:
        return await resume_session(self._inside, await self.get(id))

    async def invalidate(self, *, user: str = "", namespace: str = "default") -> None:
        whose = user or self._me
        check_place(Place(namespace, "", whose))
        await self._inside.audit.act(_invalidated(whose, namespace, by=self._me))  # what cannot be recorded is not done
        await self._sessions.invalidate(namespace, whose)

    async def stop(self, id: str, *, drop: bool = False) -> bool:
        return await self._sessions.stop(id, identity=await self._identity(id), drop=drop)


def _invalidated(user: str, namespace: str, *, by: str) -> dict[str, Any]:
    """The members of the audit record of an invalidation by whoever can open the store."""
    return {
        "at": time.time(),
        "moment": "act",
        "outcome": "sessions_invalidated",
        "namespace": namespace,
        "agent": "",
        "tool": "",
        "run_id": "",
        "call_id": "",
        "caller": {"user": by, "known_by": "store"},
        "decision": {"asks": [], "by": by},
        "resource": {"kind": "User", "name": user},
        "request": "",
    }


async def resume_session(inside: Inside, session: Session) -> Session:
    """Does as `SessionGroup.resume`."""
    if session.turn:
        with suppress(RunHeld):  # another process drives it
            await inside.background.resume(await inside.runs.journal.get(session.turn))
    else:
        await inside.sessions.keeper.begin_next(session.id)
    return await inside.sessions.get(session.id, identity=None)
