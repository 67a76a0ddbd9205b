"""One live connection to one server.

A task of its own opens the connection, holds it and closes it, because the SDK's contexts must be left by the task that
entered them. Calls come from any task and share the connection; the SDK keeps their answers apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from foliot.common.threads import on_thread
from foliot.errors import FoliotError
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.sandbox.base import SandboxPolicy
from foliot.tools.base import Caller, OnOutput, ToolUnreachable
from foliot.tools.fences import Fences, Narrowed
from foliot.tools.mcp.http import EXCHANGE, Exchange
from foliot.tools.mcp.pins import Announced, announced
from foliot.tools.mcp.process import ResolveSecret, SecretHosts, ServerSpec, prepare
from foliot.tools.mcp.stdio import FencedProcess, ServerProcess, start_fenced, start_unfenced, stdio_transport
from foliot.tools.workspaces import FenceOwner, no_resident
from foliot.version import __version__

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.session import IncomingMessage
    from mcp_types import CallToolResult, LoggingMessageNotificationParams

    from foliot.tools.mcp.http import Authorize, Guard

OPEN_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 15.0
REQUEST_SECONDS: Final = 30.0
PONG_SECONDS: Final = 10.0
RELISTEN_SECONDS: Final = 1.0
MOST_PAGES: Final = 100
MOST_TOOLS: Final = 5000
LONGEST_OUTPUT: Final = 64 * 1024
METHOD_NOT_FOUND: Final = -32601


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The services of every session: how to start, reach and authenticate to servers."""

    allowed_commands: Collection[str]
    resolve_secret: ResolveSecret
    authorize: Authorize
    guard: Guard | None
    environ: Mapping[str, str]
    max_message: int
    ping_seconds: float = 60.0
    fences: Fences | None = None
    secret_hosts: SecretHosts | None = None


@dataclass(frozen=True, slots=True)
class SessionFence:
    """The fence of a server for some of its callers, `narrowed` by what holds for them.

    It belongs to `owner`: the server itself, or the run whose workspace it shows.
    """

    narrowed: Narrowed
    owner: FenceOwner


class McpSession:
    """Open it, use it, close it; it is not opened a second time. `lost` says why it ended, empty while it lives.

    A server that is fenced has a `fence`.
    """

    def __init__(
        self,
        server: ServerSpec,
        means: SessionServices,
        on_change: Callable[[ServerSpec], None],
        fence: SessionFence | None = None,
    ) -> None:
        self.server = server
        self.fence = fence
        self.policy: SandboxPolicy | None = None
        self.tools: Mapping[str, Announced] = {}
        self.lost = ""
        self.in_flight: set[Exchange] = set()
        self.protocol = ""
        self.implementation = ""
        self.pid: int | None = None
        self._means = means
        self._on_change = on_change
        self._client: Client | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self._ended = asyncio.Event()
        self._list_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gone = no_resident

    @property
    def alive(self) -> bool:
        return self._client is not None and not self.lost

    async def open(self) -> None:
        """Connect, agree on a protocol revision, and learn the server's tools.

        Raises `ToolError`: `ToolUnreachable` when another attempt may help, others when it cannot.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=f"mcp {self.server.name}")
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.shield(ready)
        except TimeoutError:
            await self.close()
            raise ToolUnreachable(
                f"{self.server} did not answer within {OPEN_SECONDS:g} s", hint="see whether it starts by hand"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        exchange: Exchange,
        *,
        timeout: float | None = None,
        meta: dict[str, Any] | None = None,
    ) -> CallToolResult:
        """Raises what the SDK raises; `exchange`, which the caller put into the context, then knows more.

        Cancelling the caller cancels the call on the server.
        """
        assert self._client is not None, "only an open session is called"

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            tell(exchange.on_output, message or f"{progress:g}" + (f" of {total:g}" if total else ""))

        self.in_flight.add(exchange)
        self.idle.clear()
        try:
            exchange.sent = self.server.transport == "stdio"
            return await self._client.call_tool(
                tool,
                arguments,
                read_timeout_seconds=timeout if timeout is not None else float("inf"),
                progress_callback=progressed if exchange.on_output else None,
                meta=meta,  # pyright: ignore[reportArgumentType] - a TypedDict that allows extra keys
            )
        finally:
            self.in_flight.discard(exchange)
            if not self.in_flight:
                self.idle.set()

    async def refresh(self) -> Mapping[str, Announced]:
        """Ask for the tools anew. Raises what the SDK raises."""
        assert self._client is not None, "only an open session is asked"
        found: dict[str, Announced] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools[: MOST_TOOLS - len(found)]:
                with suppress(ValueError):  # what cannot be pinned is not offered
                    found[tool.name] = announced(tool)
            cursor = page.next_cursor
            if cursor is None or len(found) >= MOST_TOOLS:
                break
        self.tools = found
        return found

    async def answers(self, within: float = PONG_SECONDS) -> bool:
        """Whether the server still answers anything at all, also with an error: one that hangs does not."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client = self._client
        if client is None or self.lost:
            return False
        before = EXCHANGE.set(Exchange())
        try:
            async with asyncio.timeout(within):
                if _is_modern(self.protocol):  # which has no ping any more
                    await client.list_tools()
                else:
                    await client.session.send_ping()
        except TimeoutError:
            return False
        except MCPError as error:
            return error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
        except Exception:
            return self.alive  # whatever it was, it came from somebody
        finally:
            EXCHANGE.reset(before)
        return True

    def end(self, why: str) -> None:
        """Let go of the connection; calls under way fail. Does not wait."""
        self.lost = self.lost or why
        self._ended.set()

    async def close(self) -> None:
        """End the connection and, with stdio, the server with all it started. Bounded."""
        self.end("the connection was closed")
        task = self._task
        if task is None:
            return
        if self._client is not None:
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        exchange = Exchange()
        EXCHANGE.set(exchange)  # of this task alone
        try:
            async with self._connected() as client:
                self._client = client
                await self.refresh()
                EXCHANGE.set(None)
                if not ready.done():
                    ready.set_result(None)
                await self._stay(client)
        except BaseException as error:
            trouble = exchange.failure or _trouble(self.server, error, exchange, self.lost)
            self.end(trouble.message)
            if not ready.done():
                ready.set_exception(trouble)
                ready.exception()  # looked at, even if nobody waits any more
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.end("the connection was closed")
            self._gone()

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Client]:
        from mcp import Client
        from mcp_types import Implementation

        async with self._transport() as transport:
            client = Client(
                transport,
                read_timeout_seconds=REQUEST_SECONDS,
                client_info=Implementation(name="foliot", version=__version__),
                logging_callback=self._logged,
                log_level="info",
                message_handler=self._heard,
                cache=None,  # a pinned definition is compared with what the server says now
            )
            async with client:
                # The SDK would match patterns that the server wrote with an engine that may take for ever.
                client.session.validate_tool_result = self._check_result
                self.protocol = client.protocol_version
                info = client.server_info
                self.implementation = f"{info.name} {info.version}" if info else ""
                yield client

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[Any]:
        """Yields the transport whose streams the SDK's client uses."""
        means = self._means
        if self.server.transport == "stdio":
            yield stdio_transport(self._start, max_message=means.max_message, on_start=self._started, on_end=self.end)
            return
        from mcp.client.streamable_http import streamable_http_client

        from foliot.tools.mcp.http import ServerTransport, http_client

        sender = ServerTransport(
            self.server, authorize=means.authorize, guard=means.guard, max_message=means.max_message
        )
        async with http_client(sender) as http:
            yield streamable_http_client(self.server.endpoint, http_client=http, max_sse_event_size=means.max_message)

    async def _check_result(self, name: str, result: CallToolResult) -> None:
        """Hold a result against the schema that the server declares for it. Raises `RuntimeError`."""
        tool = self.tools.get(name)
        schema = tool.output_schema if tool is not None else None
        if schema is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"tool {name} has an output schema but did not return structured content")
        if problem := await on_thread(_misfit, schema, result.structured_content):
            raise RuntimeError(f"the structured content of tool {name} does not fit its schema: {problem}")

    async def _start(self) -> ServerProcess:
        """Start the program as it is declared: fenced, or recorded first. Raises `ToolError`."""
        means, server, fence = self._means, self.server, self.fence
        launch = await prepare(
            server,
            allowed=means.allowed_commands,
            resolve_secret=means.resolve_secret,
            environ=means.environ,
            fence=fence.narrowed if fence is not None else None,
            secret_hosts=means.secret_hosts,
        )
        assert means.fences is not None, "without it no program is started"
        if fence is not None:
            return await start_fenced(launch, means.fences, fence.owner)
        await means.fences.record_unfenced(server_owner(server), launch.command)
        return await start_unfenced(launch)

    def _started(self, child: ServerProcess) -> None:
        self.pid = child.pid
        self.policy = child.session.policy if isinstance(child, FencedProcess) else None
        if self.policy is not None and self.fence is not None and self._means.fences is not None:
            self._gone = self._means.fences.resides(self.policy, self.fence.owner, self.close)

    async def _stay(self, client: Client) -> None:
        capabilities = client.server_capabilities.tools
        from anyio import create_task_group

        async with create_task_group() as group:
            group.start_soon(self._follow_changes)
            if self.server.transport == "stdio":
                group.start_soon(self._ping)
            if _is_modern(client.protocol_version) and capabilities is not None and capabilities.list_changed:
                group.start_soon(self._subscribe, client)
            await self._ended.wait()
            group.cancel_scope.cancel()

    async def _ping(self) -> None:
        """Checks that an idle server still lives. A busy one may be too busy to answer, and is asked when a call has
        taken too long; see `connections.py`.
        """
        while True:
            await asyncio.sleep(self._means.ping_seconds)
            if not self.in_flight and not await self.answers() and not self.in_flight:
                self.end(f"the server did not answer a ping within {PONG_SECONDS:g} s")
                return

    async def _subscribe(self, client: Client) -> None:
        """Servers of the current revision tell of changes on a stream that is asked for; it may break and come back."""
        from mcp import MCPError
        from mcp.client.subscriptions import SubscriptionLost

        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._list_changed.set()
            except MCPError as error:
                if not self.alive or error.code == METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            await asyncio.sleep(RELISTEN_SECONDS)
            self._list_changed.set()  # what was said meanwhile was missed

    async def _follow_changes(self) -> None:
        """One listing at a time, however often the server says that something changed."""
        while True:
            await self._list_changed.wait()
            self._list_changed.clear()
            before = self.tools
            try:
                after = await self.refresh()
            except Exception:
                if not self.alive:
                    return
                continue  # the next call or sync asks again
            if {tool.pin.digest for tool in before.values()} != {tool.pin.digest for tool in after.values()}:
                self._on_change(self.server)

    async def _heard(self, message: IncomingMessage) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._list_changed.set()

    async def _logged(self, params: LoggingMessageNotificationParams) -> None:
        """Passes a log line to the call it belongs to. Pipes do not say which one that is, so it must be the only one:
        the log of one agent's call is not shown to another.
        """
        exchange = EXCHANGE.get()
        if exchange not in self.in_flight:
            exchange = next(iter(self.in_flight)) if len(self.in_flight) == 1 else None
        if exchange is not None:
            data: Any = params.data
            tell(exchange.on_output, data if isinstance(data, str) else str(data))


def server_owner(server: ServerSpec) -> FenceOwner:
    """The owner of what a server does by itself, for all of its callers: no run of any of them."""
    return FenceOwner(server.name, Caller(server.namespace))


def _misfit(schema: Mapping[str, Any], value: Any) -> str:
    """Say what is wrong with a value; empty when it fits. Bounded in steps, whatever the patterns are."""
    try:
        return "; ".join(validator_of(schema).problems(value, whole="the value")[:3])[:500]
    except UnusableSchema as error:
        return f"the schema cannot be used: {error.message}"


def tell(on_output: OnOutput | None, text: str) -> None:
    """Live output, a line each, bounded."""
    if on_output is not None and text:
        on_output(text[:LONGEST_OUTPUT] + "\n")


def _is_modern(protocol: str) -> bool:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return protocol in MODERN_PROTOCOL_VERSIONS


def _trouble(server: ServerSpec, error: BaseException, exchange: Exchange, lost: str) -> FoliotError:
    """Why a connection could not be made or held, as one error of ours."""
    from foliot.tools.mcp.results import refusal

    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, FoliotError):
        return error
    if exchange.status is not None:
        return refusal(server, exchange)
    words = lost or str(error) or type(error).__name__
    return ToolUnreachable(f"{server} cannot be used: {words}")
