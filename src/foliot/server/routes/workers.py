"""Workers as they are: processes that have made themselves known, shown as resources of the kind Worker."""

from __future__ import annotations

import time
from typing import Final

from starlette.responses import Response

from foliot.errors import NotFound
from foliot.server.context import ServicesDep
from foliot.server.guard import new_router
from foliot.server.naming import Name, Namespace
from foliot.server.responses import Json, resource
from foliot.server.routes.resources import listed
from foliot.store.base import Document, Page
from foliot.store.workers import WorkerInfo, list_workers
from foliot.work.story.happenings import iso

router = new_router("workers")

PHASES: Final = {"ready": "Ready", "draining": "Draining", "stopped": "Stopped", "lost": "NotReady"}


@router.get("/v1/workers")
async def list_all(services: ServicesDep, namespace: Namespace = None) -> Response:
    """Every worker that gave a sign of life lately. They serve all namespaces; `namespace` changes nothing."""
    now = time.time()
    items = [_document(info, now) for info in await list_workers(services.database)]
    return Json(listed(Page(items, None, await services.resources.revision())))


@router.get("/v1/workers/{name}")
async def get_worker(name: Name, services: ServicesDep, namespace: Namespace = None) -> Response:
    """One worker."""
    now = time.time()
    for info in await list_workers(services.database):
        if info.name == name:
            return resource(_document(info, now))
    raise NotFound(f"there is no worker {name!r}", hint="`foliot workers` shows them")


def _document(info: WorkerInfo, now: float) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "Worker",
        "metadata": {
            "name": info.name,
            "namespace": "default",
            "labels": info.labels,
            "createdAt": iso(info.started_at),
            "resourceVersion": str(round(info.heartbeat_at * 1000)),
        },
        "spec": {
            "region": info.region,
            "capabilities": {"gpu": bool(info.gpu), "supported_models": [*info.models]},
            "max_concurrent_tasks": info.capacity,
        },
        "status": {
            "phase": PHASES[info.state(now)],
            "lastHeartbeat": iso(info.heartbeat_at),
            "currentTasks": info.current,
        },
    }
