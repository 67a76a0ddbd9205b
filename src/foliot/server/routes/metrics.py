"""The numbers of this process and of its store, for Prometheus."""

from __future__ import annotations

from starlette.responses import Response

from foliot.errors import NotFound
from foliot.server.auth.guard import new_router
from foliot.server.context import Services
from foliot.version import install_command

router = new_router("health")


@router.get("/metrics")
async def metrics(services: Services) -> Response:
    """All metrics as text. Raises `NotFound` where the package for it is not installed."""
    if services.metrics is None:
        raise NotFound("this server counts nothing", hint=f"{install_command('metrics')}, and start it again")
    return Response(await services.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
