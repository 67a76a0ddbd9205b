"""Tools outside any run: what there is, and one call of one of them, governed as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.runtime.answers import Acceptance
from foliot.runtime.local.tools import accept_offered, call_tool, test_tool
from foliot.server.audit import record
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import Name, Namespace, space
from foliot.server.http.responses import Json
from foliot.store.base import Key

if TYPE_CHECKING:
    from foliot.runtime.tools import ToolCaller

router = new_router("tools")

# What a tool prints while it works is told with its result; of more than this only the end.
LONGEST_OUTPUT: Final = 64 * 1024


class ToolOrder(msgspec.Struct, frozen=True):
    """One call. With `agent` it has the roles and tools of that agent; calls with one `key` are one call, for a day."""

    arguments: dict[str, Any] = {}
    agent: str = ""
    user: str = ""
    key: str = ""


@router.get("/v1/all-tools")
async def list_all(services: Services, namespace: Namespace = None) -> Response:
    """Lists the tools, whether they can be called, and what the deployment has and lacks."""
    return Json(await services.runtime.tools.list(namespace=space(namespace)))


@router.get("/v1/all-tools/{name}")
async def describe(name: Name, services: Services, namespace: Namespace = None) -> Response:
    """One tool: what it takes, how it is run, and the rules that speak of it."""
    return Json(await services.runtime.tools.get(name, namespace=space(namespace)))


@router.post("/v1/tools/{name}/call")
async def call(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Call one tool, through the same rules as any other call. One that needs consent is not made."""
    order, where = await form(request, ToolOrder), space(namespace)
    asker = _asker(where, order, caller)
    printed: list[str] = []
    offering = services.runtime.inside.tools
    called = await call_tool(offering, asker, name, order.arguments, key=order.key, on_output=printed.append)
    await record(services.runtime, caller, "called", "Tool", where, name, request=request.scope[REQUEST_ID])
    return Json(msgspec.structs.replace(called, printed="".join(printed)[-LONGEST_OUTPUT:]))


@router.post("/v1/tools/{name}/test")
async def judged(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Judges a hypothetical call. Nothing is run."""
    order = await form(request, ToolOrder)
    asker = _asker(space(namespace), order, caller)
    return Json(await test_tool(services.runtime.inside.tools, asker, name, order.arguments))


@router.get("/v1/mcp-servers/{name}/tools")
async def offered(name: Name, services: Services, namespace: Namespace = None) -> Response:
    """List the tools that an MCP server offers right now, compared with what was accepted. Stores nothing."""
    return Json({"tools": await services.runtime.tools.offered(name, namespace=space(namespace))})


@router.post("/v1/mcp-servers/{name}/accept")
async def accept(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Agree to the definition of a tool that an MCP server announces now, so that it can be called (again).

    409 when it announces another definition than the one that was seen.
    """
    order, where, inside = await form(request, Acceptance), space(namespace), services.runtime.inside
    found = await accept_offered(inside, Key("McpServer", where, name), order)
    said = {"tool": found["name"], "digest": found["digest"], **order.levels()}
    act = (caller, "accepted", "McpServer", where, name)
    await record(services.runtime, *act, request=request.scope[REQUEST_ID], accepted=said)
    return Json({"tool": found["tool"], "digest": found["digest"]})


def _asker(where: str, order: ToolOrder, caller: Caller) -> ToolCaller:
    from foliot.runtime.tools import ToolCaller

    return ToolCaller(where, order.agent, caller.identity(where, "http", user=order.user))
