"""The Run document: `apiVersion, kind, metadata, spec, status`, the same wherever a run is shown.

The summary of the run (steps, tokens, cost, what it waits for) is part of its status. `run_of` reads the info of a run
out of its document.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, cast

from foliot.common.process import is_gone
from foliot.common.times import iso
from foliot.store.base import Document
from foliot.store.journal.base import TASK_LABEL, TERMINAL, RunInfo
from foliot.work.views.document import API_VERSION

# The members of the status that are not part of the summary.
_OWN: Final = ("phase", "interrupted", "worker", "leaseUntil", "updatedAt")


def run_document(info: RunInfo, now: float) -> Document:
    """Makes the document of a run as of `now`."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Run",
        "metadata": {
            "name": info.id,
            "namespace": info.namespace,
            "labels": info.labels,
            "createdAt": iso(info.created_at),
        },
        "spec": {
            "agent": info.agent,
            "definition": info.spec,
            "parent": info.parent,
            "parentSeq": info.parent_seq,
        },
        "status": {
            **info.summary,
            "phase": info.phase,
            "interrupted": interrupted(info, now),
            "worker": info.worker,
            "leaseUntil": None if info.lease_until is None else iso(info.lease_until),
            "updatedAt": iso(info.updated_at),
        },
    }


def run_of(document: Document) -> RunInfo:
    """Reads the info of a run out of its document. What only the store knows, its key and its epoch, is 0."""
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    lease = status.get("leaseUntil")
    return RunInfo(
        id=metadata["name"],
        key=0,
        namespace=metadata["namespace"],
        agent=spec["agent"],
        phase=status["phase"],
        spec=spec["definition"],
        epoch=0,
        worker=status.get("worker"),
        lease_until=None if lease is None else _seconds(lease),
        created_at=_seconds(metadata["createdAt"]),
        updated_at=_seconds(status["updatedAt"]),
        parent=spec.get("parent"),
        parent_seq=spec.get("parentSeq"),
        labels=metadata["labels"],
        summary={name: value for name, value in status.items() if name not in _OWN},
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def interrupted(info: RunInfo, now: float) -> bool:
    """Returns whether the run should be driven and is not.

    A run of a task is not: a worker takes it. Neither is one that was let go because a run below it waits.
    """
    return TASK_LABEL not in info.labels and not waits_below(info) and is_undriven(info, now)


def waits_below(info: RunInfo) -> bool:
    """Returns whether nobody needs to drive the run, because all that it does is to wait for a run that waits."""
    waiting = cast("Mapping[str, object]", info.summary.get("waiting") or {})
    return info.phase == "pending" and bool(waiting.get("run"))


def is_undriven(info: RunInfo, now: float) -> bool:
    """Returns whether the run could continue, and no process has it."""
    if info.phase in TERMINAL or info.phase == "waiting":
        return False
    return info.phase == "pending" or is_left_behind(info, now)


def is_left_behind(info: RunInfo, now: float) -> bool:
    """Returns whether the process that held the run is gone."""
    return is_gone(info.worker) or (info.lease_until is not None and info.lease_until < now)
