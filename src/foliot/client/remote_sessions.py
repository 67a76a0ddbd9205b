"""The verbs on sessions, over the connection to a server; see runtime/groups/sessions.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from foliot.client import wire
from foliot.client.http import Params, RemoteGroup, new_key
from foliot.client.remote_work import declared_name
from foliot.common.pages import read_first
from foliot.kernel.messages import Message
from foliot.runtime.answers import InvalidateOrder, SayOrder, SessionOrder
from foliot.runtime.groups.sessions import SessionGroup
from foliot.sessions.base import Found, TurnOptions, TurnView, check_said
from foliot.sessions.chat_events import ChatEvent, EndEvent, ErrorEvent
from foliot.store.sessions.base import Input, Said, Session, SessionKind

if TYPE_CHECKING:
    from foliot.runtime.agent import Agent

SESSIONS: Final = "/v1/sessions"
# Stopping a turn ends what its tools started: longer than other requests take.
STOP_WITHIN: Final = 120.0
# Where a verb is called `list`, the type of that name is hidden.
Rows = list


# A name of a union: `read` takes a type.
_ChatEvent: Any = ChatEvent


class _Sessions(Struct, frozen=True):
    items: list[Session]
    cursor: str | None = msgspec.field(default=None, name="continue")


class _Active(Struct, frozen=True):
    session: Session | None


class _Turns(Struct, frozen=True):
    items: list[TurnView]


class _Inputs(Struct, frozen=True):
    items: list[Input]


class _FoundItems(Struct, frozen=True):
    items: list[Found]


class _Stopped(Struct, frozen=True):
    stopped: bool


class RemoteSessions(RemoteGroup, SessionGroup):
    """Implements `SessionGroup`."""

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
        order = SessionOrder(
            declared_name(agent), namespace, user, channel, id or "", kind, title, model, options or {}
        )
        return await self._post(SESSIONS, order, Session, namespace=namespace)

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
        order = SessionOrder(declared_name(agent), namespace, user, channel, "", kind, title, model, options or {})
        return await self._post(f"{SESSIONS}/resolve", order, Session, namespace=namespace, repeatable=True)

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
        order = SessionOrder(declared_name(agent), namespace, user, channel, "", kind, title, model, options or {})
        return await self._post(f"{SESSIONS}/rotate", order, Session, namespace=namespace)

    async def active(
        self, agent: Agent | str, *, namespace: str = "default", user: str = "", channel: str = ""
    ) -> Session | None:
        asked = {"namespace": namespace, "agent": declared_name(agent), "user": user, "channel": channel}
        return (await self._get("/v1/active-session", _Active, **asked)).session

    async def get(self, id: str) -> Session:
        return await self._get(_at(id), Session)

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
        async def ask(*, cursor: str | None, limit: int) -> _Sessions:
            asked = {"namespace": namespace, "agent": agent, "user": user, "channel": channel}
            more = {"mine": mine, "archived": archived, "limit": limit, "continue": cursor}
            return await self._get(SESSIONS, _Sessions, **asked, **more)

        return await read_first(limit, ask, cursor=cursor)

    async def change(
        self, id: str, *, title: str | None = None, model: str | None = None, options: dict[str, Any] | None = None
    ) -> Session:
        body = {"title": title, "model": model, "options": options}
        return await self._post(f"{_at(id)}/change", body, Session, repeatable=True)

    async def archive(self, id: str) -> Session:
        return await self._post(f"{_at(id)}/archive", {}, Session, repeatable=True)

    async def delete(self, id: str) -> None:
        await self._http.ask("POST", f"{_at(id)}/delete", headers=new_key())

    async def search(
        self, text: str, *, namespace: str = "default", session: str | None = None, limit: int = 20
    ) -> Rows[Found]:
        asked = {"namespace": namespace, "text": text, "session": session, "limit": limit}
        return (await self._get("/v1/session-search", _FoundItems, **asked)).items

    async def history(self, id: str, *, before: int | None = None, limit: int = 50) -> Rows[TurnView]:
        return (await self._get(f"{_at(id)}/history", _Turns, before=before, limit=limit)).items

    async def inputs(self, id: str, *, after: int = 0, limit: int = 50) -> Rows[Input]:
        return (await self._get(f"{_at(id)}/inputs", _Inputs, after=after, limit=limit)).items

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
        """Says something. What comes without a key is given one, so that a retry says it once."""
        check_said(message)
        said = message if isinstance(message, str) else msgspec.to_builtins(message)
        order = SayOrder(said, mode, key or new_key()["Idempotency-Key"], place, options or TurnOptions())
        return await self._post(f"{_at(id)}/say", order, Said, repeatable=True)

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
        said = await self.say(id, message, mode=mode, key=key, place=place, options=options)
        if said.problem:
            yield ErrorEvent("", code="not_started", message=said.problem, retries=True)
            yield EndEvent("", status="waiting", message=f"no turn can begin yet: {said.problem}")
            return
        async with aclosing(self._events(id, {"input": said.seq, "pauses": pauses})) as events:
            async for event in events:
                yield event

    async def watch(self, id: str, *, after: str = "") -> AsyncGenerator[ChatEvent]:
        """Watches a session. A connection that breaks off is resumed behind the last event."""
        async with aclosing(self._events(id, {}, after)) as events:
            async for event in events:
                yield event

    async def _events(self, id: str, params: Params, after: str = "") -> AsyncGenerator[ChatEvent]:
        path = f"{_at(id)}/stream"
        async with aclosing(self._http.stream(path, params=params, after=after or None)) as events:
            async for event in events:
                if event.name == "chat":
                    yield wire.read(event.data, _ChatEvent)

    async def regenerate(self, id: str, *, options: TurnOptions | None = None) -> Said:
        return await self._post(f"{_at(id)}/regenerate", {"options": options or TurnOptions()}, Said)

    async def select_branch(self, id: str, turn: int) -> Session:
        return await self._post(f"{_at(id)}/select-branch", {"turn": turn}, Session, repeatable=True)

    async def compact(self, id: str) -> Said:
        return await self._post(f"{_at(id)}/compact", {}, Said)

    async def resume(self, id: str) -> Session:
        return await self._post(f"{_at(id)}/resume", {}, Session, repeatable=True)

    async def invalidate(self, *, user: str = "", namespace: str = "default") -> None:
        order = msgspec.json.encode(InvalidateOrder(namespace, user))
        asked = {"namespace": namespace}
        await self._http.ask(
            "POST", f"{SESSIONS}/invalidate", params=asked, body=order, headers=new_key(), repeatable=True
        )

    async def stop(self, id: str, *, drop: bool = False) -> bool:
        return (await self._post(f"{_at(id)}/stop", {"drop": drop}, _Stopped, timeout=STOP_WITHIN)).stopped


def _at(id: str) -> str:
    return f"{SESSIONS}/{quote(id, safe='')}"
