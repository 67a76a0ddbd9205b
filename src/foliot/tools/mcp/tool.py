"""A Tool of the type `mcp`: one tool of one server, under the name and the rules of its declaration."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

from foliot.errors import Denied, FoliotError, InvalidInput, NotFound
from foliot.resources.agreed import ISOLATIONS, Agreed, Levels, lowered
from foliot.resources.references import Origin, ReferenceCheck, Target, refused, target_of
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolPolicyInvalid,
    ToolTimeout,
    ToolUnsupported,
    before_effect,
)
from foliot.tools.fences import fence_of
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.pins import Announced, in_words, read_pin
from foliot.tools.mcp.process import ServerSpec, server_spec
from foliot.tools.mcp.results import parts_of, reported_error

FindServer: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""`(namespace, name)` to the McpServer document; raises `NotFound`."""

FindAgreed: TypeAlias = Callable[[str, str, str], Awaitable[Agreed | None]]
"""`(namespace, server, tool)` to what was agreed to about a tool; None when nobody has agreed to anything."""

META_KEY = "foliot.dev/idempotency-key"


def stronger(one: str, other: str) -> str:
    """The isolation of two that lets least pass."""
    return max(one, other, key=ISOLATIONS.index)


class McpTool:
    """Looks its server up at each call, because where a tool is reached may change under a run."""

    def __init__(
        self,
        definition: ToolDefinition,
        document: Mapping[str, Any],
        connections: McpConnections,
        find_server: FindServer,
        find_agreed: FindAgreed | None = None,
        may: ReferenceCheck | None = None,
        *,
        isolation: str = "none",
    ) -> None:
        """`document` is the normalised Tool resource that `definition` was made from.

        `isolation` is what its server runs in, as far as it is known: calls of one that says less are refused.
        Without `find_agreed` nothing was agreed to, and every call is refused. `may` says whether a server of another
        namespace has been granted; without it none has.
        """
        self._definition = definition
        self._spec = document["spec"]
        self._connections = connections
        self._find_server = find_server
        self._find_agreed = find_agreed
        self._may = may
        self.isolation = isolation

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        async with AsyncExitStack() as stack:
            with before_effect():
                server, owner = await self._server(), fence_of(call)
                self._check_isolation(server)
                tool = str(self._spec["mcp_tool_name"])
                agreed = await self._agreed(server, tool)
                place = self._connections.held(server, owner, timeout=self._seconds_left(call))
                held = await stack.enter_async_context(place)
                announced = (await held.tools()).get(tool)
                if agreed is not None and (announced is None or announced.pin.digest != read_pin(agreed.pin).digest):
                    # The connection may be older than what was agreed to since.
                    announced = (await held.tools(refresh=True)).get(tool)
                self._check(server, tool, agreed, announced)
            result = await held.call(
                tool,
                call.arguments,
                timeout=self._seconds_left(call),
                on_output=on_output,
                meta={META_KEY: call.idempotency_key, **({"traceparent": call.trace} if call.trace else {})},
            )
        if result.is_error:
            raise reported_error(server, tool, result)
        return parts_of(result)

    async def server(self) -> ServerSpec | None:
        """The server that a call would be made on now; None when that cannot be said before a call."""
        try:
            return await self._server()
        except ToolError:
            return None

    async def _server(self) -> ServerSpec:
        reference = str(self._spec.get("mcp_server_ref", ""))
        if not reference or not self._spec.get("mcp_tool_name"):
            raise ToolPolicyInvalid(f"tool {self._definition.name!r} needs spec.mcp_server_ref and spec.mcp_tool_name")
        try:
            target = target_of("McpServer", reference, self._definition.namespace)
        except InvalidInput as error:
            raise ToolPolicyInvalid(f"tool {self._definition.name!r}: {error.message}", hint=error.hint) from None
        await self._cross(target)
        _, there, name = target
        try:
            return server_spec(await self._find_server(there, name))
        except NotFound:
            raise ToolUnsupported(
                f"the MCP server {name!r} of tool {self._definition.name!r} is not there",
                hint=f"apply an McpServer {name!r} in namespace {there!r}",
                mcp_server=name,
            ) from None
        except ToolError:
            raise
        except FoliotError as error:
            raise ToolUnsupported(
                f"the MCP server {name!r} cannot be looked up: {error.message}", retryable=True, mcp_server=name
            ) from error

    def _check_isolation(self, server: ServerSpec) -> None:
        """Refuse a server that runs in something weaker than what the tool stands for. Raises `ToolIsolationMissing`.

        It may have been declared anew since the tool was looked at.
        """
        wanted = self._definition.isolation
        if wanted == "none" or stronger(wanted, server.mode) == server.mode:
            return
        raise ToolIsolationMissing(
            f"the tool {self._definition.name!r} must run {wanted!r}, and {server} runs {server.mode!r}",
            hint="declare the McpServer with that isolation, or accept the tool without it: "
            f"`foliot mcp accept {server.name} TOOL --isolation {server.mode}`",
            wanted=wanted,
        )

    async def _cross(self, target: Target) -> None:
        """Raises `ToolDenied` for a server of another namespace that has not granted it."""
        origin = Origin("Tool", self._definition.namespace)
        if target.namespace == origin.namespace:
            return
        try:
            if self._may is None:
                raise refused(origin, target)
            await self._may(origin, target)
        except Denied as error:
            message = f"tool {self._definition.name!r}: {error.message}"
            raise ToolDenied(message, hint=error.hint, layer="namespace") from None

    async def _agreed(self, server: ServerSpec, tool: str) -> Agreed | None:
        if self._find_agreed is None:
            return None
        try:
            return await self._find_agreed(server.namespace, server.name, tool)
        except ToolError:
            raise
        except FoliotError as error:
            raise ToolUnsupported(
                f"what was agreed to about {tool!r} of {server} cannot be looked up: {error.message}",
                retryable=True,
                mcp_server=server.name,
            ) from error

    def _check(self, server: ServerSpec, tool: str, agreed: Agreed | None, now: Announced | None) -> None:
        """Refuse what the server does not offer, nobody has agreed to, or is not what somebody has agreed to.

        Whatever the Tool is called and whoever declared it: what was agreed to is about the tool of the server.
        """
        if now is None:
            raise ToolUnsupported(f"{server} does not offer {tool!r} (any more)", mcp_server=server.name, mcp_tool=tool)
        if server.include and tool not in server.include:
            raise self._denied(server, tool, f"spec.tool_filter of {server} leaves {tool!r} out", "")
        if agreed is None or not agreed.pin:
            way = f"`foliot mcp sync {server.name} -n {server.namespace}` agrees to what is seen for the first time"
            if agreed is not None:
                way = f"{agreed.way()} shows it, and lets it be used"
            raise self._denied(server, tool, f"nobody has agreed to the definition of {tool!r} of {server}", way)
        look = f"look at it with `foliot mcp tools {server.name} -n {server.namespace}`; {agreed.way()} lets it be used"
        if changed := read_pin(agreed.pin).changed(now.pin):
            said = f"since it was accepted, the server changed {in_words(changed)}"
            raise self._denied(
                server, tool, f"{tool!r} of {server} is quarantined: {said}", f"{look} again", ",".join(changed)
            )
        if agreed.held:
            raise self._denied(server, tool, f"{tool!r} of {server} is quarantined: {agreed.held}", f"{look} again")
        if less := Levels.of(self._spec).below(agreed.levels):
            refused = lowered(f"tool {self._definition.name!r}", agreed, less, agreed.levels)
            raise self._denied(server, tool, refused.message, refused.hint or "")

    def _denied(self, server: ServerSpec, tool: str, message: str, hint: str, changed: str = "") -> ToolDenied:
        """Builds the refusal, with the hint in the message: a result carries no hint."""
        more: dict[str, Any] = {"changed": changed} if changed else {}
        message = f"{message}; {hint}" if hint else message
        return ToolDenied(message, layer="pin", mcp_server=server.name, mcp_tool=tool, **more)

    def _seconds_left(self, call: Invocation) -> float | None:
        bounds = [self._definition.attempt_timeout, self._definition.timeout]
        if call.deadline is not None:
            left = call.deadline - time.time()
            if left <= 0:
                raise ToolTimeout(f"the deadline of the call of {call.tool!r} had passed before it began")
            bounds.append(left)
        return min((bound for bound in bounds if bound), default=None)
