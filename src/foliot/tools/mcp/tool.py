"""A Tool of the type `mcp`: one tool of one server, under the name and the rules of its declaration."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from foliot.errors import Denied, FoliotError, InvalidInput, NotFound
from foliot.resources.references import May, Origin, Target, refused, target_of
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolPolicyInvalid,
    ToolTimeout,
    ToolUnsupported,
)
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.pins import PIN, Announced, in_words, read_pin
from foliot.tools.mcp.results import parts_of, reported_error
from foliot.tools.mcp.server import ServerSpec, server_spec

FindServer: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""`(namespace, name)` to the McpServer document; raises `NotFound`."""

META_KEY = "foliot.dev/idempotency-key"


class McpTool:
    """Looks its server up at each call, because where a tool is reached may change under a run."""

    def __init__(
        self,
        definition: ToolDefinition,
        document: Mapping[str, Any],
        connections: McpConnections,
        find_server: FindServer,
        may: May | None = None,
    ) -> None:
        """`document` is the normalised Tool resource that `definition` was made from.

        `may` says whether a server of another namespace has been granted; without it none has.
        """
        self._definition = definition
        self._spec = document["spec"]
        annotations: Mapping[str, str] = document["metadata"].get("annotations") or {}
        self._pin = annotations.get(PIN)
        self._connections = connections
        self._find_server = find_server
        self._may = may

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        server = await self._server()
        tool = str(self._spec["mcp_tool_name"])
        self._check(server, tool, (await self._connections.tools(server)).get(tool))
        result = await self._connections.call(
            server,
            tool,
            call.arguments,
            timeout=self._seconds_left(call),
            on_output=on_output,
            meta={META_KEY: call.idempotency_key, **({"traceparent": call.trace} if call.trace else {})},
        )
        if result.is_error:
            raise reported_error(server, tool, result)
        return parts_of(result)

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

    def _check(self, server: ServerSpec, tool: str, now: Announced | None) -> None:
        """Refuse what the server does not offer, or offers under another definition than the one agreed to."""
        if now is None:
            raise ToolUnsupported(f"{server} does not offer {tool!r} (any more)", mcp_server=server.name, mcp_tool=tool)
        if self._pin is None:
            return
        changed = read_pin(self._pin).changed(now.pin)
        if changed:
            raise ToolDenied(
                f"{tool!r} of {server} is quarantined: since it was accepted, the server changed {in_words(changed)}",
                hint=f"look at it with `foliot mcp tools {server.name}`; `foliot mcp accept {server.name} {tool}` lets"
                " it be used again",
                layer="pin",
                mcp_server=server.name,
                mcp_tool=tool,
                changed=",".join(changed),
            )

    def _seconds_left(self, call: Invocation) -> float | None:
        bounds = [self._definition.attempt_timeout, self._definition.timeout]
        if call.deadline is not None:
            left = call.deadline - time.time()
            if left <= 0:
                late = ToolTimeout(f"the deadline of the call of {call.tool!r} had passed before it began")
                late.before_effect = True
                raise late
            bounds.append(left)
        return min((bound for bound in bounds if bound), default=None)
