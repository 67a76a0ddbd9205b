"""Tools outside any run: what there is, and one call of one of them, governed as any other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.errors import Conflict
from foliot.server.audit import record
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import CallerDep, Services, ServicesDep
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import Name, Namespace, space
from foliot.server.http.responses import Json
from foliot.store.base import Key

if TYPE_CHECKING:
    from foliot.runtime.tools import Asker
    from foliot.tools.mcp.connections import McpConnections

router = new_router("tools")

# What a tool prints while it works is told with its result; of more than this only the end.
LONGEST_OUTPUT: Final = 64 * 1024


class ToolOrder(msgspec.Struct, frozen=True):
    """One call. With `agent` it has the roles and tools of that agent; calls with one `key` are one call, for a day."""

    arguments: dict[str, Any] = {}
    agent: str = ""
    user: str = ""
    key: str = ""


class Acceptance(msgspec.Struct, frozen=True):
    """The agreement to one tool of an MCP server as it was seen: `digest` is of the definition, or its beginning.

    What is given besides is the least that Tools have to say of it from now on, which may be less than before.
    """

    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    digest: Annotated[str, msgspec.Meta(pattern="^(sha256:)?[0-9a-f]{12,64}$")]
    risk_level: Literal["low", "medium", "high", "critical"] | None = None
    effect: Literal["read", "idempotent", "once"] | None = None
    isolation_mode: Literal["none", "sandboxed", "container", "wasm"] | None = None
    operation_classes: tuple[Literal["read", "write", "delete", "admin"], ...] = ()

    def levels(self) -> dict[str, Any]:
        fields = ("risk_level", "effect", "isolation_mode", "operation_classes")
        return {field: value for field in fields if (value := getattr(self, field))}


@router.get("/v1/toolset")
async def toolset(services: ServicesDep, namespace: Namespace = None) -> Response:
    """Lists the tools, whether they can be called, and what the deployment has and lacks."""
    return Json(await services.runtime.tools.list(namespace=space(namespace)))


@router.get("/v1/tools/{name}/facts")
async def describe(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """One tool: what it takes, how it is run, and the rules that speak of it."""
    return Json(await services.runtime.tools.get(name, namespace=space(namespace)))


@router.post("/v1/tools/{name}/call")
async def call(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Call one tool, through the same rules as any other call. One that needs consent is not made."""
    order, where = await form(request, ToolOrder), space(namespace)
    asker = _asker(where, order, caller)
    printed: list[str] = []
    called = await services.runtime.tools.call_for(
        asker, name, order.arguments, key=order.key, on_output=printed.append
    )
    await record(services.runtime, caller, "called", "Tool", where, name, request=request.scope[REQUEST_ID])
    return Json(msgspec.structs.replace(called, printed="".join(printed)[-LONGEST_OUTPUT:]))


@router.post("/v1/tools/{name}/test")
async def judged(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Judges a hypothetical call. Nothing is run."""
    order = await form(request, ToolOrder)
    asker = _asker(space(namespace), order, caller)
    return Json(await services.runtime.tools.test_for(asker, name, order.arguments))


@router.get("/v1/mcp-servers/{name}/tools")
async def offered(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """List the tools that an MCP server offers right now, compared with what was accepted. Stores nothing."""
    from foliot.catalog.mcp import offered_tools

    store = services.resources
    document = await store.get(Key("McpServer", space(namespace), name))
    async with _connected(services) as connections:
        return Json({"tools": await offered_tools(store, document, connections)})


@router.post("/v1/mcp-servers/{name}/accept")
async def accept(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Agree to the definition of a tool that an MCP server announces now, so that it can be called (again).

    409 when it announces another definition than the one that was seen.
    """
    from foliot.catalog.mcp import accept_tool

    order, store, where = await form(request, Acceptance), services.resources, space(namespace)
    document = await store.get(Key("McpServer", where, name))
    async with _connected(services) as connections:
        synced = await accept_tool(store, document, connections, order.tool, digest=order.digest, levels=order.levels())
    found = next(each for each in synced.discovered if order.tool in (each["name"], each.get("tool")))
    said = {"tool": found["name"], "digest": found["digest"], **order.levels()}
    act = (caller, "accepted", "McpServer", where, name)
    await record(services.runtime, *act, request=request.scope[REQUEST_ID], accepted=said)
    return Json({"tool": found["tool"], "digest": found["digest"]})


@asynccontextmanager
async def _connected(services: Services) -> AsyncGenerator[McpConnections]:
    """Connections for one request. A server that cannot be asked is a conflict: this one is well."""
    from foliot.catalog.mcp import opened_connections
    from foliot.tools.base import ToolError

    try:
        async with opened_connections(services.resources, services.settings) as connections:
            yield connections
    except ToolError as error:
        raise Conflict(error.message, hint=error.hint) from None


def _asker(where: str, order: ToolOrder, caller: Caller) -> Asker:
    from foliot.runtime.tools import Asker

    return Asker(where, order.agent, caller.identity(where, "http", user=order.user))
