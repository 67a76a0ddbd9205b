"""What this server is, and who it takes the caller for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from foliot.server.context import CallerDep
from foliot.server.guard import new_router
from foliot.server.responses import Json
from foliot.version import __version__

router = new_router("server")


@router.get("/v1/version")
async def version() -> Response:
    """The version of this server."""
    return Json({"version": __version__})


@router.get("/v1/auth/me")
async def me(caller: CallerDep) -> Response:
    """Who the caller is, and the roles by namespace."""
    return Json(
        {
            "authenticated": caller.known_by != "anonymous",
            "username": caller.name,
            "method": {"token": "bearer", "session": "session", "anonymous": "none"}[caller.known_by],
            "roles": {namespace: sorted(roles) for namespace, roles in caller.grants.items()},
        }
    )


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The description of this API (OpenAPI 3.1)."""
    return Json(request.app.openapi())
