"""Schemas of streams: the data of each server-sent event, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foliot.server.openapi.schema import ANYTHING, COUNT, NUMBER, TEXT, Schema, listof, ref, shape

_END: Final = ref("StreamEnd")
_FAILED: Final = ref("Problem")


def changes(resource: str) -> Mapping[str, Schema]:
    """Returns the schemas of the events in a watch of such resources."""
    changed = shape({"type": {"enum": ["added", "updated", "deleted"]}, "resource": ref(resource)})
    return {"resource": changed, "bookmark": ref("BookmarkEvent"), "error": _FAILED}


HAPPENED: Final[Mapping[str, Schema]] = {
    "event": ref("ResourceEvent"),
    "error": _FAILED,
}
TASK_CHANGES: Final = changes("StoredTask")
TASK_EVENTS: Final[Mapping[str, Schema]] = {"event": ref("TaskEvent"), "end": _END, "error": _FAILED}
RUN_EVENTS: Final[Mapping[str, Schema]] = {
    "event": ref("RunEvent"),
    "delta": shape({"type": {"const": "delta"}, "step": COUNT, "delta": ANYTHING}),
    "output": shape({"type": {"const": "output"}, "call": TEXT, "text": TEXT}),
    "missed": shape({"type": {"const": "missed"}, "pieces": COUNT}),
    "end": _END,
    "error": _FAILED,
}
SESSION_EVENTS: Final[Mapping[str, Schema]] = {
    "chat": ref("ChatEvent"),
    "bookmark": ANYTHING,
    "end": shape({"type": {"const": "end"}, "session": TEXT}),
    "error": _FAILED,
}
WORK_EVENTS: Final[Mapping[str, Schema]] = {"events": ref("BatchWire"), "end": ANYTHING, "error": _FAILED}


def stream(events: Mapping[str, Schema]) -> Schema:
    """The schema of each event of a stream: `data` is JSON, and its shape goes by the name of the event."""
    return {
        "description": "One server-sent event. Comments are signs of life.",
        "oneOf": [_event(name, data) for name, data in events.items()],
    }


def _event(name: str, data: Schema) -> Schema:
    told = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    if not name:  # as clients of OpenAI read it: events without names
        return shape({"data": told}, optional={"id": TEXT})
    return shape({"event": {"const": name}, "data": told}, optional={"id": TEXT, "retry": COUNT})


SHAPES: Final[dict[str, Schema]] = {
    "ResourceEvent": shape(
        {
            "id": COUNT,
            "timestamp": TEXT,
            "source": TEXT,
            "type": {"enum": ["resource.created", "resource.updated", "resource.deleted"]},
            "kind": TEXT,
            "name": TEXT,
            "namespace": TEXT,
            "action": TEXT,
            "message": TEXT,
            "data": ANYTHING,
        },
        about="What happened to a resource or a task. `data.resource` is how it stood then; the id is a place to go on "
        "from.",
    ),
    "RunEvent": shape(
        {"type": TEXT, "run": TEXT, "seq": COUNT, "at": NUMBER, "data": ANYTHING},
        about="One event of a run's journal. `seq` has no gaps, and is the id of the event in a stream.",
    ),
    "TaskEvent": shape(
        {"type": TEXT, "task": TEXT, "seq": COUNT, "at": NUMBER, "data": ANYTHING},
        optional={"run": TEXT, "agent": TEXT},
        about="What happened to a task; with `run`, what happened in that run of it.",
    ),
    "StreamEnd": shape(
        {"type": {"const": "end"}, "phase": TEXT},
        optional={"task": TEXT, "run": TEXT},
        about="Nothing comes behind it: close the stream, or a browser opens it again.",
    ),
    "BookmarkEvent": shape(
        {"type": {"const": "bookmark"}, "resourceVersion": TEXT}, about="All up to this revision was told."
    ),
    "Journal": shape({"run": TEXT, "events": listof(ref("RunEvent"))}),
}
