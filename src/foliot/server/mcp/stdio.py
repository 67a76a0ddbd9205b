"""MCP over the standard streams of a process: for a client that starts Foliot itself.

Whoever can start the process could as well use the command line, so they may do what it may: everything, in one
namespace.
"""

from __future__ import annotations

from typing import Final

from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import Caller, granted
from foliot.server.mcp.tools import Context, McpCaller
from foliot.tools.mcp.sdk import require_sdk

# What was cancelled because the client left has so long to end; otherwise it is left as it is.
GRACE: Final = 5.0


async def serve_stdio(runtime: Runtime, *, namespace: str, user: str) -> None:
    """Serve until the client closes our input. Raises `Unavailable` when the SDK is not installed."""
    require_sdk()
    from mcp.server.stdio import stdio_server

    from foliot.server.mcp.calls import Calls
    from foliot.server.mcp.server import new_server

    who = McpCaller(Caller(user or "local", "session", granted([namespace], ["admin"])), namespace)

    def knows(_: Context) -> McpCaller:
        return who

    drives = runtime.inside.background
    calls = Calls(runtime, drives)
    server = new_server(runtime, calls, knows)
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        await calls.close()
        await drives.close(within=GRACE)
