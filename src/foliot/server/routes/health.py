"""Whether the server lives, can work, and what exactly it can reach."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from starlette.responses import Response

from foliot.errors import FoliotError
from foliot.server.access.guard import new_router
from foliot.server.context import Services, ServicesDep
from foliot.server.problems import RETRY_AFTER
from foliot.server.responses import Json
from foliot.store.workers import list_workers

router = new_router("health")

# A database that takes longer than this to answer a query of one row is not there.
WITHIN: Final = 2.0


@router.get("/healthz")
async def healthz() -> Response:
    """Always ok, as long as the process answers; it asks nobody else."""
    return Json({"status": "ok"})


@router.get("/livez")
async def livez() -> Response:
    """As `/healthz`: restart the process when this fails."""
    return Json({"status": "ok"})


@router.get("/readyz")
async def readyz(services: ServicesDep) -> Response:
    """Whether requests should be sent here: 503 while the store does not answer, or the server is stopping."""
    if services.closing.is_set():
        return Json({"status": "stopping"}, 503, {"Retry-After": RETRY_AFTER})
    if await _store_ms(services) is None:
        return Json({"status": "store unavailable"}, 503, {"Retry-After": RETRY_AFTER})
    return Json({"status": "ok"})


@router.get("/v1/health")
async def health(services: ServicesDep) -> Response:
    """What this server can reach, part by part."""
    parts: dict[str, Any] = {}
    took = await _store_ms(services)
    parts["store"] = {"status": "unavailable"} if took is None else {"status": "ok", "ms": took}
    if took is not None:
        now = time.time()
        workers = await list_workers(services.database)
        ready = sum(1 for worker in workers if worker.state(now) == "ready")
        parts["workers"] = {"status": "ok" if ready else "none", "ready": ready, "known": len(workers)}
    status = "ok" if took is not None else "degraded"
    return Json({"status": status, "parts": parts}, 200 if took is not None else 503)


async def _store_ms(services: Services) -> float | None:
    """How long the store takes to answer; None when it does not."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(WITHIN):
            await services.database.read("feed_bounds")
    except (FoliotError, TimeoutError):
        return None
    return round((time.perf_counter() - began) * 1000, 3)
