"""`/mcp`: this server as an MCP server, over streamable HTTP. `?namespace=` chooses the namespace."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foliot.server.auth.guard import new_router
from foliot.server.mcp.http import McpEndpoint

router = new_router("mcp")


class _Handed(Response):
    """The whole exchange is left to the door: it reads the body, and writes the answer."""

    def __init__(self, door: McpEndpoint) -> None:
        super().__init__()
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._door.handle(scope, receive, send)


@router.post("/mcp")
async def post(request: Request) -> Response:
    """A message of a client."""
    return _Handed(request.app.state.mcp)


@router.get("/mcp")
async def listen(request: Request) -> Response:
    """The stream on which clients of earlier revisions hear what they did not ask for."""
    return _Handed(request.app.state.mcp)


@router.delete("/mcp")
async def leave(request: Request) -> Response:
    """The end of a session of an earlier revision."""
    return _Handed(request.app.state.mcp)
