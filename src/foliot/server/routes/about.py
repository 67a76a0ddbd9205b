"""Routes about this server: version, namespaces, capabilities, OpenAPI."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from foliot.common.times import iso
from foliot.runtime.tools import listed_capabilities
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.responses import Json
from foliot.version import __version__

router = new_router("server")


@router.get("/")
async def root() -> Response:
    """Tells what this server is, and where its parts are."""
    return Json(
        {
            "name": "Foliot",
            "about": "An agent runtime, by HTTP. There is no console here; `foliot --server URL` is its command line.",
            "version": __version__,
            "api": "/v1",
            "openapi": "/openapi.json",
            "health": "/v1/health",
        }
    )


@router.get("/v1/version")
async def version() -> Response:
    """The version of this server."""
    return Json({"version": __version__})


@router.get("/v1/namespaces")
async def namespaces(services: Services, caller: Caller) -> Response:
    """The namespaces that have something in them, of those that the caller can see."""
    found = {str(row["namespace"]) for row in await services.database.read("namespace_list")}
    seen = sorted(name for name in found if caller.sees(name))
    return Json({"namespaces": seen or ["default"], "items": seen or ["default"]})


@router.get("/v1/capabilities")
async def capabilities() -> Response:
    """Lists the capabilities of this server, for clients that ask before they try."""
    return Json(
        {
            "generated_at": iso(time.time()),
            "capabilities": listed_capabilities(),
        }
    )


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The description of this API (OpenAPI 3.1)."""
    from foliot.server.openapi.document import describe  # with schemas of everything: long to load, seldom asked for

    return Json(describe(request.app.router.table))
