"""MCP over streamable HTTP, in front of the routes' guard: one door for all clients of a server.

The SDK is loaded, and its tasks are started, when the first client comes. The current revision needs no session; of
the earlier ones a session lives in this process, and belongs to whoever opened it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from foliot.common.cancellation import stop_tasks
from foliot.errors import Unavailable
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.runtime import Runtime
from foliot.server.auth.authentication import is_loopback
from foliot.server.auth.guard import namespace_of
from foliot.server.auth.identity import Caller
from foliot.server.auth.sessions import CrossSite
from foliot.server.context import CALLER
from foliot.server.errors import TooMany, Unauthenticated
from foliot.server.http.bodies import refuse_repeated, replayed
from foliot.server.mcp.tools import Context, McpCaller
from foliot.server.streams.streams import Streams
from foliot.settings.settings import Settings
from foliot.tools.mcp.sdk import require_sdk

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from foliot.server.mcp.calls import Calls


MOST_SESSIONS: Final = 1000
MOST_OF_ONE: Final = 64
IDLE_SECONDS: Final = 1800.0
"""How many sessions of earlier revisions there may be, in all and of one caller, and how long one may rest."""


class McpEndpoint:
    """Lets MCP clients in until the server is `closing`. Runs that they began are then gone on with elsewhere.

    What a client waits for, an answer or the stream of an earlier revision, is one of the `streams` that the caller may
    have, and lasts no longer than what lets the caller in.
    """

    def __init__(self, runtime: Runtime, drives: BackgroundRuns, closing: asyncio.Event, streams: Streams) -> None:
        self._runtime = runtime
        self._drives = drives
        self._opening = asyncio.Lock()
        self._closing = closing
        self._streams = streams
        self._manager: StreamableHTTPSessionManager | None = None
        self._calls: Calls | None = None
        self._task: asyncio.Task[None] | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request that the guard has let through.

        Raises `CrossSite` for a page that is not known here; `Unavailable` when stopping, or without the SDK;
        `TooMany`; `Unauthenticated` when the caller may no longer wait, unless the answer has begun: then it ends.
        """
        check_page(scope)
        manager = await self._opened()
        waits = scope["method"] == "GET"
        if scope["method"] == "POST":
            body = await Request(scope, receive).body()
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the SDK says what is wrong
                refuse_repeated(body)
            waits, receive = _expects_answer(body), replayed(body, receive)
            _check_sessions(manager, scope)
        with ExitStack() as place:
            if waits:
                place.enter_context(self._streams.hold(scope[CALLER]))
            await self._pass_on(manager, scope, receive, _Line(send, place.close))

    async def _pass_on(
        self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, line: _Line
    ) -> None:
        caller: Caller = scope[CALLER]
        known = {**scope, "user": _owner(caller)}
        work = asyncio.create_task(manager.handle_request(known, receive, line.send))
        stopping = asyncio.create_task(self._closing.wait())
        try:
            await self._streams.last(caller, scope, {work, stopping})
            if work.done():
                await work
            else:
                self._stop()
        except Unauthenticated:
            await stop_tasks(work)
            if not line.begun:
                raise
            await line.end()
        finally:
            await stop_tasks(work, stopping)
        if not line.begun:
            raise Unavailable("this server is stopping")

    async def close(self) -> None:
        """Wait until the SDK has stopped. Only for a server that is closing."""
        if self._task is not None:
            await self._task

    def _stop(self) -> None:
        if self._calls is not None:
            self._calls.stopping = True

    async def _opened(self) -> StreamableHTTPSessionManager:
        async with self._opening:
            if self._manager is None:
                require_sdk()
                ready: asyncio.Future[StreamableHTTPSessionManager] = asyncio.get_running_loop().create_future()
                # It outlives the request that it begins in, and has nothing of its context.
                self._task = asyncio.create_task(self._stand(ready), context=contextvars.Context())
                self._manager = await ready
        return self._manager

    async def _stand(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """The SDK's tasks must be left by the task that entered them."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from foliot.server.mcp.calls import Calls
        from foliot.server.mcp.server import new_server

        self._calls = calls = Calls(self._runtime, self._drives)
        manager = StreamableHTTPSessionManager(
            new_server(self._runtime, calls, _knows), session_idle_timeout=IDLE_SECONDS, max_sessions=MOST_SESSIONS
        )
        async with manager.run():
            ready.set_result(manager)
            await self._closing.wait()
            self._stop()
        await calls.close()


def _check_sessions(manager: StreamableHTTPSessionManager, scope: Scope) -> None:
    """Raises `TooMany` for a request that would open one session more than a caller may have: each is a task here."""
    from mcp.server.auth.middleware.bearer_auth import authorization_context
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    headers = {bytes(name): str(value, "latin-1") for name, value in scope["headers"]}
    version = headers.get(b"mcp-protocol-version")
    if b"mcp-session-id" in headers or (version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS):
        return
    owner = authorization_context(_owner(scope[CALLER]))
    # The SDK counts sessions of all callers together, and has no public way to ask whose they are.
    owners: dict[str, Any] = manager._session_owners  # pyright: ignore[reportPrivateUsage, reportAssignmentType]
    if sum(each == owner for each in owners.values()) >= MOST_OF_ONE:
        raise TooMany(
            f"you have {MOST_OF_ONE} sessions open here",
            hint="end some (DELETE), or use the current revision of MCP",
        )


class _Line:
    """The way out: whether an answer has begun, and how to end it. `ended` is called before its last part leaves:
    whoever has heard it may ask for the next one."""

    def __init__(self, send: Send, ended: Callable[[], None]) -> None:
        self._send = send
        self._on_end = ended
        self._ended = False
        self.begun = False

    async def send(self, message: Message) -> None:
        self.begun = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._ended = True
            self._on_end()
        await self._send(message)

    async def end(self) -> None:
        if not self._ended:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def check_page(scope: Scope) -> None:
    """Raises `CrossSite` for a request of a page in a browser, unless the settings name where it is from, or it is from
    this machine. Also with a good bearer: a page that has caught one shall not use it. By DNS rebinding a page is at
    the same name as the server, so the `Host` proves nothing.
    """
    given = [str(value, "latin-1").lower() for name, value in scope["headers"] if name == b"origin"]
    if not given:
        return
    settings: Settings = scope["app"].state.services.settings
    known = {origin_of(settings.public_url or ""), *(each.rstrip("/").lower() for each in settings.cors_origins)}
    if len(given) > 1 or not (given[0] in known or is_loopback(host_of(given[0]))):
        raise CrossSite(
            "this request was made by a page that is not known here", hint="name its origin in cors_origins"
        )


def origin_of(url: str) -> str:
    scheme, _, rest = url.lower().partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def host_of(origin: str) -> str:
    place = origin.partition("://")[2]
    name, _, port = place.rpartition(":")
    return name if name and port.isdigit() else place


class _Message(Struct):
    """The head of a JSON-RPC message: a request has both, a notification no id, an answer no method."""

    method: str | UnsetType = UNSET
    id: Any = UNSET


def _expects_answer(body: bytes) -> bool:
    """Whether a client waits for something. What cannot be read is left to the SDK to refuse."""
    try:
        message = msgspec.json.decode(body, type=_Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True
    return message.method is not UNSET and message.id is not UNSET


def _knows(ctx: Context) -> McpCaller:
    """Returns the sender of the very request that a message came in, not the opener of the session."""
    request = ctx.request
    assert isinstance(request, Request), "every message comes in a request"
    return McpCaller(request.scope[CALLER], namespace_of(request.scope))


def _owner(caller: Caller) -> Any:
    """The caller as the SDK compares them: a session is not found by anybody else."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    return AuthenticatedUser(AccessToken(token="", client_id=caller.principal, scopes=[]))
