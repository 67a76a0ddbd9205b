"""The MCP server itself: the official SDK's, with our answers. The same for every way to connect."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Final, TypeVar, cast

import mcp_types as types
import msgspec
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from starlette.requests import Request

from foliot.engine.explain.trace import read_trace
from foliot.engine.telemetry.context import asked_within
from foliot.errors import FoliotError, NotFound
from foliot.resources.wording import as_written
from foliot.runtime.results import result_of
from foliot.runtime.runtime import Runtime
from foliot.server.auth.run_access import may_read, private_to
from foliot.server.mcp.calls import CallResult, Calls
from foliot.server.mcp.tools import Context, Knows, McpCaller, list_tools
from foliot.version import __version__
from foliot.work.views.document import outline

# --- resources -------------------------------------------------------------------------------------------------------

# MCP resources: the traces of runs, and the results of tasks.

RUNS: Final = "foliot://runs/"
TASKS: Final = "foliot://tasks/"
JSON: Final = "application/json"
NEWEST: Final = 50
_URI: Final = re.compile(r"foliot://(runs|tasks)/([A-Za-z0-9._-]{1,253})")


def templates() -> list[types.ResourceTemplate]:
    return [
        types.ResourceTemplate(
            name="run", uri_template=f"{RUNS}{{id}}", mime_type=JSON, description="What a run did, step by step."
        ),
        types.ResourceTemplate(
            name="task", uri_template=f"{TASKS}{{name}}", mime_type=JSON, description="A task: where it is, its result."
        ),
    ]


async def list_resources(runtime: Runtime, who: McpCaller) -> list[types.Resource]:
    """The newest runs and tasks of the namespace."""
    if not who.caller.sees(who.namespace):
        return []
    runs = await runtime.inside.runs.journal.list(
        namespace=who.namespace, limit=NEWEST, private_to=private_to(who.caller, who.namespace)
    )
    tasks, _ = await runtime.inside.tasking.tasks.list(namespace=who.namespace, limit=NEWEST)
    return [
        *(
            types.Resource(
                name=info.id, title=f"Run of {info.agent} ({info.phase})", uri=RUNS + info.id, mime_type=JSON
            )
            for info in runs
        ),
        *(
            types.Resource(
                name=task.name, title=f"Task of {task.target} ({task.phase})", uri=TASKS + task.name, mime_type=JSON
            )
            for task in tasks
        ),
    ]


async def read_resource(runtime: Runtime, who: McpCaller, uri: str) -> types.ReadResourceResult:
    """Raises `MCPError` for what is not there, or not the caller's to see."""
    found = _URI.fullmatch(uri)
    try:
        if found is None or not who.caller.sees(who.namespace):
            raise NotFound(uri)
        data = await (_run(runtime, who, found[2]) if found[1] == "runs" else _task(runtime, who, found[2]))
    except NotFound:
        raise MCPError(INVALID_PARAMS, f"there is no resource {uri[:300]!r}", {"uri": uri[:300]}) from None
    text = msgspec.json.encode(data).decode()
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=JSON, text=text)])


async def _run(runtime: Runtime, who: McpCaller, id: str) -> dict[str, Any]:
    info = await runtime.inside.runs.journal.get(id)
    if info.namespace != who.namespace or not may_read(who.caller, info):
        raise NotFound(id)
    _, state = await runtime.inside.runs.load(id)
    result = result_of(state, info.phase)
    return {
        "id": info.id,
        "agent": info.agent,
        "namespace": info.namespace,
        "phase": info.phase,
        "output": result.output,
        "value": result.value,
        "error": result.error,
        "usage": result.usage,
        "trace": await read_trace(id, await runtime.inside.runs.facts(id)),
    }


async def _task(runtime: Runtime, who: McpCaller, name: str) -> dict[str, Any]:
    info = await runtime.inside.tasking.tasks.get(who.namespace, name)
    story = await runtime.inside.tasking.stories.of(who.namespace, name, looks=False)
    return {**as_written(outline(info)), "output": story.output}


# --- server ----------------------------------------------------------------------------------------------------------

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
