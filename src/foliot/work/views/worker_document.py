"""The Worker document of a process that does the runs of tasks: a resource of the kind Worker that is not declared.

`live` tells it from one that is only declared. `worker_of` reads the info of a worker out of its document.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from foliot.common.times import iso
from foliot.store.base import Document
from foliot.store.queue.workers import State, WorkerInfo
from foliot.work.views.document import API_VERSION

# Clients that know two phases ask whether it takes runs; `state` has it exactly.
_LACKING: Final[dict[State, str]] = {
    "draining": "worker draining",
    "stopped": "worker stopped",
    "lost": "worker heartbeat stale",
}


def worker_document(info: WorkerInfo, now: float, *, shows_process: bool = True) -> Document:
    """Makes the document of a worker as of `now`. `shows_process`: with the machine and process that it is."""
    state = info.state(now)
    return {
        "apiVersion": API_VERSION,
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
            "capabilities": {
                "gpu": bool(info.gpu),
                "supported_models": [*info.models],
                **({"isolation": [*info.isolation]} if info.isolation else {}),
            },
            "max_concurrent_tasks": info.capacity,
        },
        "status": {
            "phase": "Ready" if state == "ready" else "NotReady",
            "state": state,
            **({"lastError": _LACKING[state]} if state in _LACKING else {}),
            "lastHeartbeat": iso(info.heartbeat_at),
            "currentTasks": info.current,
            "live": True,
            "process": info.identity if shows_process else "",
            "clockOff": info.clock_off,
        },
    }


def worker_of(document: Document) -> WorkerInfo:
    """Reads the info of a worker out of its document."""
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    state = status["state"]
    return WorkerInfo(
        name=metadata["name"],
        identity=status["process"],
        region=spec["region"],
        gpu=spec["capabilities"]["gpu"],
        models=tuple(spec["capabilities"]["supported_models"]),
        labels=metadata["labels"],
        capacity=spec["max_concurrent_tasks"],
        current=status["currentTasks"],
        phase=state if state in ("draining", "stopped", "lost") else "ready",
        started_at=_seconds(metadata["createdAt"]),
        heartbeat_at=_seconds(status["lastHeartbeat"]),
        clock_off=status["clockOff"],
        isolation=tuple(spec["capabilities"].get("isolation", ())),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
