"""The MCP server itself: the official SDK's, with our answers. The same for every way to connect."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, TypeVar, cast

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from starlette.requests import Request

from foliot.engine.telemetry.context import asked_within
from foliot.errors import FoliotError
from foliot.runtime.runtime import Runtime
from foliot.server.mcp.calls import CallResult, Calls
from foliot.server.mcp.resources import list_resources, read_resource, templates
from foliot.server.mcp.tools import Context, Knows, list_tools
from foliot.version import __version__

T = TypeVar("T")
INSTRUCTIONS: Final = (
    "Agents (agent-…), systems of agents (system-…) and governed tools. An agent works on its own and answers when it "
    "is done; what it did can be read as foliot://runs/<id>."
)


def new_server(runtime: Runtime, calls: Calls, knows: Knows) -> Server[Any]:
    """`knows` says on whose behalf a message is handled."""

    async def on_list_tools(ctx: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=await _told(list_tools(runtime, knows(ctx))))

    async def on_call_tool(ctx: Context, params: types.CallToolRequestParams) -> CallResult:
        with asked_within(_trace(ctx, params)):
            return await calls.call(ctx, knows(ctx), params)

    async def on_list_resources(ctx: Context, _: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await _told(list_resources(runtime, knows(ctx))))

    async def on_list_templates(
        ctx: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=templates())

    async def on_read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return await _told(read_resource(runtime, knows(ctx), str(params.uri)))

    return Server(
        "foliot",
        version=__version__,
        title="Foliot",
        instructions=INSTRUCTIONS,
        # No argument of ours travels in a header. Without this the SDK lists all tools at every call to find out.
        get_tool_input_schema=lambda _: None,
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
        on_list_resources=on_list_resources,
        on_list_resource_templates=on_list_templates,
        on_read_resource=on_read_resource,
    )


def _trace(ctx: Context, params: types.CallToolRequestParams) -> str:
    """The trace that the caller is in: of this call, or else of the request that it came in."""
    told = (params.meta or {}).get("traceparent")
    request = cast("object", ctx.request)
    if told is None and isinstance(request, Request):
        told = request.headers.get("traceparent")
    return told if isinstance(told, str) else ""


async def _told(work: Awaitable[T]) -> T:
    """Translates our errors into MCP errors, so that a failed lookup does not look like a fault of this server."""
    try:
        return await work
    except FoliotError as error:
        raise MCPError(INTERNAL_ERROR, error.message) from error
