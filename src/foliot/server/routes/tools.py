"""Tools outside any run: what there is, and one call of one of them, governed as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.server.access.guard import new_router
from foliot.server.access.identity import Caller
from foliot.server.acts import record
from foliot.server.bodies import form
from foliot.server.context import CallerDep, Services, ServicesDep
from foliot.server.edge.envelope import REQUEST_ID
from foliot.server.naming import Name, Namespace, space
from foliot.server.responses import Json

if TYPE_CHECKING:
    from foliot.client.local_tooling import LocalTooling
    from foliot.offering import Asker

router = new_router("tools")

# What a tool prints while it works is told with its result; of more than this only the end.
LONGEST_OUTPUT: Final = 64 * 1024


class ToolOrder(msgspec.Struct, frozen=True):
    """One call. With `agent` it has the roles and tools of that agent; calls with one `key` are the same call."""

    arguments: dict[str, Any] = {}
    agent: str = ""
    user: str = ""
    key: str = ""


@router.get("/v1/work/tools")
async def toolset(services: ServicesDep, namespace: Namespace = None) -> Response:
    """What tools there are, whether they can be called, and what the deployment has and lacks."""
    return Json(await _tooling(services).toolset(space(namespace)))


@router.get("/v1/work/tools/{name}")
async def describe(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """One tool: what it takes, how it is run, and the rules that speak of it."""
    return Json(await _tooling(services).tool(name, space(namespace)))


@router.post("/v1/work/tools/{name}/call")
async def call(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """Call one tool, through the same rules as any other call. One that needs consent is not made."""
    order, where = await form(request, ToolOrder), space(namespace)
    asker = _asker(where, order, caller)
    printed: list[str] = []
    called = await _tooling(services).call_tool(name, order.arguments, asker, key=order.key, on_output=printed.append)
    await record(services.runtime, caller, "called", "Tool", where, name, request=request.scope[REQUEST_ID])
    return Json(msgspec.structs.replace(called, printed="".join(printed)[-LONGEST_OUTPUT:]))


@router.post("/v1/work/tools/{name}/test")
async def judged(
    name: Name, request: Request, services: ServicesDep, caller: CallerDep, namespace: Namespace = None
) -> Response:
    """What would become of a call. Nothing is run."""
    order = await form(request, ToolOrder)
    asker = _asker(space(namespace), order, caller)
    return Json(await _tooling(services).test_tool(name, order.arguments, asker))


def _asker(where: str, order: ToolOrder, caller: Caller) -> Asker:
    from foliot.offering import Asker

    return Asker(where, order.agent, caller.identity(where, "http", user=order.user))


def _tooling(services: Services) -> LocalTooling:
    from foliot.client.local_tooling import LocalTooling  # with every tool there is: loaded when somebody asks for one

    return LocalTooling(services.runtime, services.settings)
