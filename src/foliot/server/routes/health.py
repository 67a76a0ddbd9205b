"""Whether the server lives, can work, and what exactly it can reach."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.responses import Response

from foliot.errors import FoliotError
from foliot.server.auth.guard import new_router
from foliot.server.context import Services
from foliot.server.http.problems import RETRY_AFTER
from foliot.server.http.responses import Json
from foliot.store.base import WITHIN, round_trip
from foliot.store.queue.workers import list_workers

router = new_router("health")


@router.get("/healthz")
async def healthz(services: Services) -> Response:
    """Whether the server can work, for whoever watches it: 503 while the store does not answer."""
    return await _asked(services)


@router.get("/livez")
async def livez() -> Response:
    """Ok as long as the process answers; it asks nobody else. Restart the process when this fails."""
    return Json({"status": "ok"})


@router.get("/readyz")
async def readyz(services: Services) -> Response:
    """Whether requests should be sent here: 503 while the store does not answer, or the server is stopping."""
    if services.closing.is_set():
        return Json({"status": "stopping"}, 503, {"Retry-After": RETRY_AFTER})
    return await _asked(services)


async def _asked(services: Services) -> Response:
    if await round_trip(services.database) is None:
        return Json({"status": "store unavailable"}, 503, {"Retry-After": RETRY_AFTER})
    return Json({"status": "ok"})


@router.get("/v1/health")
async def health(services: Services) -> Response:
    """Reports what this server can reach, part by part."""
    parts: dict[str, Any] = {}
    took = await round_trip(services.database)
    if took is not None:
        now = time.time()
        try:
            async with asyncio.timeout(WITHIN):
                workers = await list_workers(services.database)
        except (FoliotError, TimeoutError):
            took = None  # it went away between the two questions
        else:
            ready = sum(1 for worker in workers if worker.state(now) == "ready")
            parts["workers"] = {"status": "ok" if ready else "none", "ready": ready, "known": len(workers)}
    parts["store"] = {"status": "unavailable"} if took is None else {"status": "ok", "ms": round(took * 1000, 3)}
    status = "ok" if took is not None else "degraded"
    return Json({"status": status, "parts": parts}, 200 if took is not None else 503)
