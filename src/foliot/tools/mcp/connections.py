"""The live connections of one process: one for each declared server and fence of it, made when first needed.

Callers share the connection of a server as long as the same holds for them. Whoever is under a stricter rule gets a
server of his own, in a fence that is as narrow: nobody ever uses one that is wider than his. Servers in the fence of a
few are ended when they have been idle for a while, or when others need their place. One that is being started or used
keeps its place: whoever finds none waits in line, first come, first served.

Whoever needs a server gets the connection that is there, or waits together with all others for the one attempt to make
it. A server that cannot be reached is tried again as its `reconnect` says, and then left alone for a while, so that
calls fail at once instead of each waiting in vain.

A program that was started with secrets keeps what it was given: when one of them has changed, or is gone, the next call
gets another program.

A server that dies is replaced at the next call. One that hangs looks like one that works: when a call has taken too
long, the server is pinged, calls that come meanwhile wait for that, and if it does not answer they get another one.
Calls that are still under way may end where they are, as their own limits allow.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from foliot.errors import FoliotError
from foliot.kernel.backoff import backoff
from foliot.tools.base import (
    OnOutput,
    ToolAnswerLost,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
    before_effect,
)
from foliot.tools.fences import FenceRequest, Fences, Narrowed, image_granted
from foliot.tools.mcp.http import EXCHANGE, Exchange
from foliot.tools.mcp.pins import Announced
from foliot.tools.mcp.process import ResolveSecret, SecretHosts, ServerSpec, no_headers, no_secrets, secret_refs
from foliot.tools.mcp.results import protocol_error
from foliot.tools.mcp.sdk import require_sdk
from foliot.tools.mcp.session import PONG_SECONDS, McpSession, SessionFence, SessionServices, server_owner
from foliot.tools.workspaces import FenceOwner, FolderIdentity, folder_identity

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from foliot.tools.mcp.http import Authorize, Guard

T = TypeVar("T")
MAX_MESSAGE: Final = 10 * 1024 * 1024
LONGEST_WAIT: Final = 60.0
CHORE_SECONDS: Final = 10.0
PING_SECONDS: Final = 60.0
# How long a server in the fence of a few may be idle, and how many such fences of one server there are at once.
IDLE_SECONDS: Final = 300.0
MOST_FENCES: Final = 8
# How long to wait in line for one of them, at most, and the share of a call's own time: the rest is for the reason.
LINE_SECONDS: Final = 60.0
LINE_SHARE: Final = 0.9

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """How one connection is. `state`: connecting, ready, lost (made again when needed) or failed (left alone)."""

    namespace: str
    name: str
    state: str
    protocol: str = ""
    implementation: str = ""
    pid: int | None = None
    tools: int = 0
    in_flight: int = 0
    last_error: str = ""


@dataclass(slots=True)
class _Slot:
    """A place for one connection. `folder` is the workspace that its fence shows, if it does.

    `secrets` is the mark of the secrets that it was made with, `callers` are the namespaces and names of those for whom
    it was used. As long as there are `users` it is not taken away from them; `free` is set while there are none. Once
    it is `over`, nothing is opened in it any more.
    """

    server: ServerSpec
    fence: SessionFence | None = None
    folder: FolderIdentity | None = None
    secrets: bytes = b""
    callers: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    used_at: float = 0.0
    session: McpSession | None = None
    opening: asyncio.Task[McpSession] | None = None
    failure: ToolError | None = None
    retry_at: float = 0.0
    users: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    @property
    def is_busy(self) -> bool:
        return self.users > 0 or self.opening is not None or (self.session is not None and bool(self.session.in_flight))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The needs of a caller; `secrets` as in `_Slot`."""

    server: ServerSpec
    fence: SessionFence | None
    folder: FolderIdentity | None
    secrets: bytes


class HeldServer:
    """A server whose place is kept for one caller, for requests that follow each other."""

    def __init__(self, connections: McpConnections, slot: _Slot, owner: FenceOwner | None) -> None:
        self._connections = connections
        self.slot = slot
        self._owner = owner

    async def tools(self, *, refresh: bool = False) -> Mapping[str, Announced]:
        """Return its tools, as `McpConnections.tools` does."""
        if not refresh:
            return (await self._connections.opened(self.slot)).tools
        return await self._connections.use(self.slot, "tools/list", Exchange, lambda session, _: session.refresh())

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        meta: dict[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool, as `McpConnections.call` does."""

        async def call(session: McpSession, exchange: Exchange) -> CallToolResult:
            bound = timeout if session.policy is None else session.policy.limits.seconds_of(timeout)
            result = await session.call(tool, arguments, exchange, timeout=bound, meta=meta)
            await self._connections.keep_files(session, self._owner)
            return result

        return await self._connections.use(self.slot, tool, lambda: Exchange(on_output), call)


class McpConnections:
    """Make one per process, and close it. To be used on one event loop.

    `resolve_secret(reference, namespace)` gives clear values for environments, `authorize` the headers of HTTP servers
    (`process.py` makes both), and `guard(host, port)` the addresses that may be connected to. `on_tools_changed` hears
    of a server whose tools are not what they were. Only commands in `allowed_commands` are started, in fences that
    `fences` opens: without it none is. Servers that others than the operator declared see only `granted_mounts`, and
    run only `granted_images`. `secret_hosts` says where a Secret is bound to. Who is not `patient` hears at
    once of a server that cannot be reached.
    """

    def __init__(
        self,
        *,
        allowed_commands: Collection[str] = (),
        fences: Fences | None = None,
        granted_mounts: Collection[str] = (),
        granted_images: Collection[str] = (),
        resolve_secret: ResolveSecret | None = None,
        secret_hosts: SecretHosts | None = None,
        authorize: Authorize | None = None,
        guard: Guard | None = None,
        on_tools_changed: Callable[[ServerSpec], Awaitable[None]] | None = None,
        environ: Mapping[str, str] | None = None,
        max_message: int = MAX_MESSAGE,
        ping_seconds: float = PING_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        patient: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self._means = SessionServices(
            allowed_commands=frozenset(allowed_commands),
            resolve_secret=resolve_secret or no_secrets,
            authorize=authorize or no_headers,
            guard=guard,
            environ=os.environ if environ is None else environ,
            max_message=max_message,
            ping_seconds=ping_seconds,
            fences=fences,
            secret_hosts=secret_hosts,
        )
        self._granted_mounts = tuple(granted_mounts)
        self._granted_images = tuple(granted_images)
        self._idle_seconds = idle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._on_tools_changed = on_tools_changed
        self._patient = patient
        self._clock = clock
        self._sleep = sleep
        self._slots: dict[tuple[str, str], list[_Slot]] = {}
        # Those who wait for a place, by server; each is woken when it may be his turn.
        self._lines: dict[tuple[str, str], deque[asyncio.Event]] = {}
        self._replaced: list[_Slot] = []
        self._suspected: dict[McpSession, asyncio.Event] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._closed = False
        self._key = os.urandom(32)

    async def tools(
        self,
        server: ServerSpec,
        *,
        refresh: bool = False,
        owner: FenceOwner | None = None,
        timeout: float | None = None,
    ) -> Mapping[str, Announced]:
        """Returns the tools that the server announces, by name; asks it again with `refresh`. Raises `ToolError`."""
        async with self.held(server, owner, timeout=timeout) as held:
            return await held.tools(refresh=refresh)

    async def call(
        self,
        server: ServerSpec,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        meta: dict[str, Any] | None = None,
        owner: FenceOwner | None = None,
    ) -> CallToolResult:
        """Call a tool by the server's own name for it, on behalf of `owner`. Raises `ToolError` without a result.

        A result that says it is an error is returned. When the server forgot our session it did nothing, and the call
        is made once more on a new one; nothing else is repeated here.
        """
        async with self.held(server, owner, timeout=timeout) as held:
            return await held.call(tool, arguments, timeout=timeout, on_output=on_output, meta=meta)

    @asynccontextmanager
    async def held(
        self, server: ServerSpec, owner: FenceOwner | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[HeldServer]:
        """Keeps the place of a server for `owner`. Nobody else is shut out: those under the same rules share it.

        Raises `ToolError`: `ToolRateLimited` when all places are in use for as long as a call with this `timeout` can
        wait. Then nothing was done.
        """
        self._check_open()
        require_sdk()
        with before_effect():
            fence, folder = await self._fence(server, owner or server_owner(server))
        slot = await self._place(_Wanted(server, fence, folder, await self._secrets_of(server)), timeout)
        if owner is not None:
            slot.callers.add((owner.caller.namespace, owner.caller.user))
        try:
            yield HeldServer(self, slot, owner)
        finally:
            slot.users -= 1
            slot.used_at = self._clock()
            if not slot.users:
                slot.free.set()
                self._wake(server.key)

    async def keep_files(self, session: McpSession, owner: FenceOwner | None) -> None:
        """Keep what a call of `owner` changed in the workspace of its run, if the server sees that."""
        if owner is not None and session.policy is not None and self._means.fences is not None:
            await self._means.fences.changed(session.policy, owner)

    async def use(
        self,
        slot: _Slot,
        what: str,
        make_exchange: Callable[[], Exchange],
        request: Callable[[McpSession, Exchange], Awaitable[T]],
    ) -> T:
        """Send a request over the connection of a place that is held. Raises `ToolError`."""
        server = slot.server
        for attempt in (1, 2):
            session, exchange = await self.opened(slot), make_exchange()
            before = EXCHANGE.set(exchange)
            try:
                return await request(session, exchange)
            except asyncio.CancelledError:
                self._suspect(session)  # mostly a call whose time was over
                task = asyncio.current_task()
                if task is not None and not task.cancelling():
                    # Nobody cancelled the call: its bound in the SDK has passed, and lost its way out of a scope there.
                    words = f"{server} did not answer the call of {what!r} in time"
                    raise ToolTimeout(words, mcp_server=server.name, mcp_tool=what) from None
                raise
            except Exception as error:
                if _is_timeout(error):
                    self._suspect(session)
                if exchange.session_gone:
                    session.end("the server forgot the session")
                    if attempt == 1:
                        continue
                raise _as_tool_error(server, what, error, exchange, session) from error
            finally:
                EXCHANGE.reset(before)
        raise AssertionError("the second attempt returns or raises")

    async def session(self, server: ServerSpec, owner: FenceOwner | None = None) -> McpSession:
        """The open session of this server for `owner`, made if there is none. Raises `ToolError`."""
        async with self.held(server, owner) as held:
            return await self.opened(held.slot)

    async def opened(self, slot: _Slot) -> McpSession:
        """The open session of a place that is held, made if there is none. Raises `ToolError`."""
        self._check_open()
        if slot.session is not None and (decided := self._suspected.get(slot.session)) is not None:
            await decided.wait()  # a server that hangs would swallow this call too
        if slot.session is not None:
            if slot.session.alive:
                return slot.session
            self._retire(slot.session)
            slot.session = None
        if slot.over:
            raise _gone(slot)
        if slot.opening is None:
            if slot.failure is not None and self._clock() < slot.retry_at:
                raise _again(slot.failure)
            slot.opening = asyncio.create_task(self._open(slot), name=f"open mcp {slot.server.name}")
            slot.opening.add_done_callback(_look_at)
        opening = slot.opening
        await asyncio.wait({opening})  # it goes on for others when this caller is cancelled
        if opening.cancelled():
            # Only whoever cancelled this caller may end it like that: that the server was let go is an error.
            raise _gone(slot)
        return opening.result()

    def _check_open(self) -> None:
        if self._closed:
            closed = ToolUnreachable("the connections to MCP servers are closed", retryable=False)
            closed.before_effect = True
            raise closed

    async def _fence(self, server: ServerSpec, owner: FenceOwner) -> tuple[SessionFence | None, FolderIdentity | None]:
        """The fence of a server for one of its callers, with the folder of the run that it shows. Raises `ToolError`.

        A fence that shows nothing of a run belongs to the server: several runs use it.
        """
        fences = self._means.fences
        if server.transport != "stdio":
            return None, None
        if fences is None:
            raise ToolIsolationMissing(
                f"{server} is a program, and nothing here opens a sandbox for it", wanted=server.mode
            )
        if not server.fenced:
            await fences.check_unfenced(str(server), owner.caller)
            return None, None
        found = replace(await fences.narrowed(self._granted(server), owner.caller), taken=())
        folder, access = await fences.workspace(found.request.workspace, owner)
        if folder is not None:
            found = replace(found, request=replace(found.request, workspace=access))
            of_run = replace(owner, tool=server.name, call_id="", notes=None)
            return SessionFence(found, of_run), folder_identity(folder)
        return SessionFence(found, server_owner(server)), None

    def _granted(self, server: ServerSpec) -> FenceRequest:
        """The fence as whoever declared it may have it. Raises `ToolDenied`."""
        wanted = server.fence
        if server.operator:
            return wanted
        if wanted.image and not any(image_granted(wanted.image, each) for each in self._granted_images):
            raise ToolDenied(
                f"{server}: this image may not be run here",
                hint="the operator can add it to the setting container_images (FOLIOT_CONTAINER_IMAGES)",
                layer="deployment",
                server=server.name,
            )
        return replace(wanted, mounts_within=self._granted_mounts)

    def health(self) -> list[ServerHealth]:
        """Every server that was needed so far, by namespace and name."""
        return [_health(slot) for key in sorted(self._slots) for slot in self._slots[key]]

    def renew(self, namespace: str, user: str) -> None:
        """Let go of the servers that calls of this user have used; calls under way end where they are."""
        for slots in [*self._slots.values()]:
            for slot in [each for each in slots if (namespace, user) in each.callers]:
                self._end(slot)

    async def forget(self, namespace: str, name: str) -> None:
        """Close the connections of a server that is not declared any more, if there are some."""
        for slot in self._slots.pop((namespace, name), ()):
            await _close_slot(slot)
        self._wake((namespace, name))

    async def close(self) -> None:
        """Close every connection and end every server that was started. Calls under way fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for line in self._lines.values():
            line[0].set()
        slots, self._slots = [*(slot for each in self._slots.values() for slot in each), *self._replaced], {}
        await asyncio.gather(*(_close_slot(slot) for slot in slots))
        if self._chores:
            await asyncio.wait(set(self._chores), timeout=CHORE_SECONDS)
        for chore in set(self._chores):
            chore.cancel()

    async def __aenter__(self) -> McpConnections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _secrets_of(self, server: ServerSpec) -> bytes:
        """Marks the secrets that a program is started with; another mark when one of them, or its hosts, is another."""
        if server.transport != "stdio" or not (refs := secret_refs(server)):
            return b""
        mark = hmac.new(self._key, digestmod="sha256")
        for ref in refs:
            try:
                value = await self._means.resolve_secret(ref, server.namespace)
                hosts = await self._means.secret_hosts(ref, server.namespace) if self._means.secret_hosts else None
            except FoliotError as error:
                return type(error).__name__.encode()  # the attempt to start it tells what is wrong
            mark.update(repr((ref, value, hosts)).encode(errors="surrogatepass"))
        return mark.digest()

    async def _place(self, wanted: _Wanted, timeout: float | None) -> _Slot:
        """The place for this fence, with one user more; waits in line for it. Raises `ToolRateLimited`."""
        server = wanted.server
        slot = self._slot(wanted, may_evict=server.key not in self._lines)
        if slot is None:
            line, turn = self._lines.setdefault(server.key, deque()), asyncio.Event()
            line.append(turn)
            within = LINE_SECONDS if timeout is None else min(LINE_SECONDS, LINE_SHARE * timeout)
            try:
                async with asyncio.timeout(within):
                    while slot is None:
                        await turn.wait()
                        turn.clear()
                        self._check_open()
                        slot = self._slot(wanted, may_evict=line[0] is turn)
            except TimeoutError:
                raise ToolRateLimited(
                    f"{server} runs in {MOST_FENCES} sandboxes for other callers, all in use for {within:g} s",
                    hint="try again later, or run fewer calls of this server at once",
                    mcp_server=server.name,
                ) from None
            finally:
                line.remove(turn)
                if not line:
                    del self._lines[server.key]
                self._wake(server.key)
        slot.users += 1
        slot.free.clear()
        return slot

    def _wake(self, key: tuple[str, str]) -> None:
        """Have the first in line look whether there is a place for him now."""
        if line := self._lines.get(key):
            line[0].set()

    def _slot(self, wanted: _Wanted, *, may_evict: bool) -> _Slot | None:
        """The slot for this fence; None where all places are in use, or others are to have the next one."""
        server, folder, narrowed = wanted.server, wanted.folder, _narrowed(wanted.fence)
        slots = self._slots.setdefault(server.key, [])
        for slot in [*slots]:
            known = slot.server.digest, slot.server.operator, slot.secrets
            replaced = folder is not None and slot.folder is not None and slot.folder.is_replaced_by(folder)
            if replaced or known != (server.digest, server.operator, wanted.secrets):
                self._end(slot)
        found = next((slot for slot in slots if _narrowed(slot.fence) == narrowed and slot.folder == folder), None)
        if found is None:
            if not may_evict:
                return None
            if len(slots) >= MOST_FENCES:
                idle = [slot for slot in slots if not slot.is_busy]
                if not idle:
                    return None
                self._end(min(idle, key=lambda slot: slot.used_at))
            found = _Slot(server, wanted.fence, folder, wanted.secrets)
            slots.append(found)
        found.used_at = self._clock()
        if _is_of_few(found) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)
        return found

    def _end(self, slot: _Slot) -> None:
        """Let a server go, once nobody uses it any more."""
        self._slots[slot.server.key].remove(slot)
        self._chore(self._drain(slot))

    def _end_idle(self) -> None:
        """End servers in the fence of a few that nobody used for a while, and look again later."""
        self._timer, now = None, self._clock()
        few = [slot for slots in self._slots.values() for slot in slots if _is_of_few(slot)]
        for slot in few:
            if not slot.is_busy and now - slot.used_at >= self._idle_seconds:
                self._end(slot)
                few = [each for each in few if each is not slot]
        if few and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)

    async def _open(self, slot: _Slot) -> McpSession:
        server = slot.server
        try:
            for attempt in range(1 + (server.max_attempts if self._patient else 0)):
                if attempt:
                    await self._sleep(_wait(server, attempt))
                session = McpSession(server, self._means, self._changed, slot.fence)
                try:
                    await session.open()
                except ToolError as error:
                    error.before_effect = True
                    slot.failure = error
                    if not error.retryable:
                        break
                else:
                    slot.session, slot.failure = session, None
                    return session
            assert slot.failure is not None, "there is at least one attempt, and it failed"
            slot.retry_at = self._clock() + (_wait(server, 1 + server.max_attempts) if slot.failure.retryable else 0.0)
            raise slot.failure
        finally:
            slot.opening = None
            self._wake(server.key)

    def _suspect(self, session: McpSession) -> None:
        """Find out whether a server hangs, once at a time."""
        if session.alive and session not in self._suspected and not self._closed:
            self._suspected[session] = asyncio.Event()
            self._chore(self._probe(session))

    async def _probe(self, session: McpSession) -> None:
        why = f"{session.server} did not answer a ping within {PONG_SECONDS:g} s"
        try:
            if await session.answers() or not session.alive:
                return
            log.warning("%s; it is replaced", why)
            for slot in self._slots.get(session.server.key, ()):
                if slot.session is session:
                    slot.session, slot.failure, slot.retry_at = None, ToolUnreachable(why), 0.0
        finally:
            self._suspected.pop(session).set()
        await self._drain(_Slot(session.server, session=session), why)

    async def _drain(self, slot: _Slot, why: str = "") -> None:
        """The declaration changed, or the server hangs: calls under way end on the old connection."""
        self._replaced.append(slot)
        if slot.users:
            await slot.free.wait()
        if slot.session is not None:
            await slot.session.idle.wait()
            if why:
                slot.session.end(why)
        await _close_slot(slot)
        self._replaced.remove(slot)

    def _changed(self, server: ServerSpec) -> None:
        if self._on_tools_changed is not None and not self._closed:
            self._chore(self._on_tools_changed(server))

    def _retire(self, session: McpSession) -> None:
        self._chore(session.close())

    def _chore(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        task.add_done_callback(_look_at)


def _narrowed(fence: SessionFence | None) -> Narrowed | None:
    return fence.narrowed if fence is not None else None


def _is_of_few(slot: _Slot) -> bool:
    """Whether it is not for everybody: rules took something away, or it shows the workspace of a run."""
    if slot.fence is None:
        return False
    found = slot.fence.narrowed.request
    # Links are followed, and containers get a default image, for everybody alike.
    everybody = replace(slot.server.fence, image=found.image, mounts=found.mounts, mounts_within=found.mounts_within)
    return slot.folder is not None or slot.fence.narrowed != Narrowed(everybody)


async def _close_slot(slot: _Slot) -> None:
    slot.over = True
    if slot.opening is not None:
        slot.opening.cancel()
        await asyncio.wait({slot.opening})
    if slot.session is not None:
        await slot.session.close()


def _health(slot: _Slot) -> ServerHealth:
    session = slot.session
    if session is None:
        state = "connecting" if slot.opening is not None else "failed"
        error = slot.failure.message if slot.failure else ""
        return ServerHealth(*slot.server.key, state, last_error=error)
    return ServerHealth(
        *slot.server.key,
        state="ready" if session.alive else "lost",
        protocol=session.protocol,
        implementation=session.implementation,
        pid=session.pid,
        tools=len(session.tools),
        in_flight=len(session.in_flight),
        last_error=session.lost,
    )


def _wait(server: ServerSpec, attempt: int) -> float:
    return backoff(attempt, server.backoff, LONGEST_WAIT)


def _again(error: ToolError) -> ToolError:
    """The same failure for another caller, with a traceback of its own."""
    again = type(error)(error.message, hint=error.hint, retryable=error.retryable, **error.details)
    again.retry_after = error.retry_after
    again.before_effect = True
    return again


def _gone(slot: _Slot) -> ToolUnreachable:
    """The failure of a call whose server was let go before it was ready."""
    gone = ToolUnreachable(f"{slot.server} was closed or declared anew while it was being started")
    gone.before_effect = True
    return gone


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieves the exception of a task whose waiter may have given up, so that the loop does not warn of it."""
    if not task.cancelled():
        task.exception()


def _is_timeout(error: Exception) -> bool:
    from mcp import MCPError
    from mcp_types import REQUEST_TIMEOUT

    return isinstance(error, TimeoutError) or (isinstance(error, MCPError) and error.code == REQUEST_TIMEOUT)


def _as_tool_error(
    server: ServerSpec, tool: str, error: Exception, exchange: Exchange, session: McpSession
) -> ToolError:
    from mcp import MCPError

    if isinstance(error, ToolError):
        return error
    if isinstance(error, MCPError):
        return protocol_error(server, tool, error, exchange, lost=session.lost)
    # What is left is an answer that does not follow the protocol, or does not fit the tool's own schema.
    text = " ".join(str(error).split())[:500]
    return ToolAnswerLost(
        f"{server} answered the call of {tool!r} with something that is no valid result: {text}",
        retryable=False,
        mcp_server=server.name,
        mcp_tool=tool,
    )
