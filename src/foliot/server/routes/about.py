"""What this server is."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from foliot.server.context import CallerDep, ServicesDep
from foliot.server.guard import new_router
from foliot.server.responses import Json
from foliot.version import __version__
from foliot.work.story.happenings import iso

router = new_router("server")

CAPABILITIES: Final = {
    "core.api.crud": "resources of every kind, with versions, selectors and paging",
    "core.api.watch": "streams that go on where they broke off",
    "core.runtime.sequential": "runs one after the other",
    "core.runtime.message_driven": "systems of agents, done by any number of workers",
    "core.governance.agent_roles": "rules for every tool call",
    "core.governance.approvals": "calls that wait for consent, bound to their arguments",
    "core.auth.tokens": "tokens with roles by namespace",
    "core.auth.sessions": "accounts with passwords, sessions of browsers, identity providers",
    "core.self_host": "one process, one file",
}
# Clients ask for these too, and are told that they are not here.
MISSING: Final = {"core.ui.baseline": "a console in the browser"}


@router.get("/v1/version")
async def version() -> Response:
    """The version of this server."""
    return Json({"version": __version__})


@router.get("/v1/namespaces")
async def namespaces(services: ServicesDep, caller: CallerDep) -> Response:
    """The namespaces that have something in them, of those that the caller can see."""
    found = {str(row["namespace"]) for row in await services.database.read("namespace_list")}
    seen = sorted(name for name in found if caller.sees(name))
    return Json({"namespaces": seen or ["default"], "items": seen or ["default"]})


@router.get("/v1/capabilities")
async def capabilities() -> Response:
    """What this server can do, for clients that ask before they try."""
    return Json(
        {
            "generated_at": iso(time.time()),
            "capabilities": [
                {"id": name, "enabled": name not in MISSING, "description": text, "source": "foliot"}
                for name, text in (CAPABILITIES | MISSING).items()
            ],
        }
    )


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The description of this API (OpenAPI 3.1)."""
    from foliot.server.description import describe  # with schemas of everything: long to load, seldom asked for

    return Json(describe(request.app))
