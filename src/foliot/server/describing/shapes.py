"""The shapes of answers about the server and about resources, as far as no type in the code has them."""

from __future__ import annotations

from typing import Any, Final

from foliot.resources.kinds import KINDS
from foliot.server.describing.kinds import listed
from foliot.server.describing.schema import (
    ANYTHING,
    COUNT,
    NUMBER,
    TEXT,
    TEXTS,
    TIME,
    YES_NO,
    Schema,
    listof,
    maybe,
    ref,
    shape,
)

_FINDING: Final = shape(
    {"field": TEXT, "message": TEXT},
    optional={
        "severity": {"enum": ["error", "warning"]},
        "file": TEXT,
        "at": TEXT,
        "line": COUNT,
        "column": COUNT,
        "kind": TEXT,
        "name": TEXT,
        "hint": TEXT,
        "expected": TEXT,
    },
)

SHAPES: Final[dict[str, Schema]] = {
    "Problem": shape(
        {"type": TEXT, "title": TEXT, "status": COUNT, "code": TEXT, "detail": TEXT},
        optional={
            "hint": TEXT,
            "tasks": listof(TEXT),
            "errors": listof(_FINDING),
            "conflicts": listof(
                shape({"resource": TEXT, "field": TEXT, "managers": listof(TEXT), "live": TEXT, "wanted": TEXT})
            ),
        },
        about="Problem details (RFC 9457). `code` never changes; the texts are for people.",
    ),
    "StoredMetadata": shape(
        {"name": TEXT, "namespace": TEXT},
        optional={
            "uid": TEXT,
            "labels": TEXTS,
            "annotations": TEXTS,
            "resourceVersion": TEXT,
            "generation": COUNT,
            "createdAt": TIME,
            "updatedAt": TIME,
            "managedFields": listof(ref("FieldOwner")),
        },
    ),
    "StoredResource": {
        "description": "A resource of any kind; `kind` says which.",
        "oneOf": [ref(f"Stored{name}") for name in KINDS],
        "discriminator": {
            "propertyName": "kind",
            "mapping": {name: f"#/components/schemas/Stored{name}" for name in KINDS},
        },
    },
    "ResourceList": listed("StoredResource"),
    "ManifestList": shape(
        {"kind": {"const": "List"}, "items": listof({"oneOf": [ref(name) for name in KINDS]})},
        optional={"apiVersion": TEXT, "metadata": ANYTHING},
        about="Several manifests in one document; YAML may hold several documents too.",
    ),
    "Deleted": shape({"deleted": TEXT}, about="The name of what was deleted."),
    "FieldOwner": shape({"manager": TEXT, "fields": listof(TEXT)}, about="The fields of a manager, as JSON pointers."),
    "Applied": shape(
        {
            "outcomes": listof(
                shape(
                    {
                        "action": {"enum": ["created", "updated", "unchanged", "deleted"]},
                        "resource": ref("StoredResource"),
                    },
                    optional={
                        "before": ref("StoredResource"),
                        "ends": {"enum": ["cancelled", "archived"]},
                        "owners": listof(ref("FieldOwner")),
                        "owned": listof(ref("FieldOwner")),
                    },
                )
            ),
            "warnings": listof(TEXT),
            "tasks": listof(
                shape(
                    {"namespace": TEXT, "name": TEXT, "new": YES_NO},
                    optional={"error": shape({"code": TEXT, "detail": TEXT})},
                )
            ),
        },
        about="What was done to each, in their order; with `dryRun`, what would be.",
    ),
    "Health": shape({"status": TEXT}),
    "DeepHealth": shape(
        {
            "status": {"enum": ["ok", "degraded"]},
            "parts": {
                "type": "object",
                "additionalProperties": shape(
                    {"status": TEXT}, optional={"ms": NUMBER, "ready": COUNT, "known": COUNT}
                ),
            },
        }
    ),
    "Version": shape({"version": TEXT}),
    "Namespaces": shape({"namespaces": listof(TEXT), "items": listof(TEXT)}),
    "Capabilities": shape(
        {
            "generated_at": TIME,
            "capabilities": listof(shape({"id": TEXT, "enabled": YES_NO, "description": TEXT, "source": TEXT})),
        }
    ),
    "MemoryEntries": shape(
        {"entries": listof(shape({"key": TEXT, "value": TEXT}, optional={"score": NUMBER})), "count": COUNT}
    ),
    "DeliveryAnswer": shape(
        {},
        optional={
            "accepted": YES_NO,
            "duplicate": YES_NO,
            "filtered": YES_NO,
            "event_id": TEXT,
            "task": TEXT,
            "message": TEXT,
            "error": TEXT,
            "challenge": {},
        },
        about="What became of a delivery; or the challenge of a sender that tries the address.",
    ),
    "Taken": shape({"accepted": {"const": True}}),
}

# --- as clients of OpenAI read it --------------------------------------------------------------------------------

_USAGE: Final[Schema] = ANYTHING
_ERROR: Final = shape(
    {
        "message": TEXT,
        "type": TEXT,
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    }
)
OPENAI: Final[dict[str, Any]] = {
    "OpenAiError": shape({"error": _ERROR}, about="An error as clients of OpenAI read it."),
    "Model": shape({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT, "foliot": ANYTHING}),
    "ModelList": shape({"object": {"const": "list"}, "data": listof(ref("Model"))}),
    "ChatCompletion": shape(
        {
            "id": TEXT,
            "object": {"const": "chat.completion"},
            "created": COUNT,
            "model": TEXT,
            "choices": listof(shape({"index": COUNT, "message": ANYTHING, "finish_reason": TEXT})),
        },
        optional={"usage": _USAGE, "foliot": ANYTHING},
        about="`foliot` shows the tools that were called, and what a run waits for.",
    ),
    "ChatCompletionChunk": shape(
        {"id": TEXT, "object": {"const": "chat.completion.chunk"}, "created": COUNT, "model": TEXT},
        optional={"choices": listof(ANYTHING), "usage": maybe(_USAGE), "foliot": ANYTHING},
    ),
    "DeletedResponse": shape({"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}}),
    "InputItemList": shape(
        {
            "object": {"const": "list"},
            "data": listof(ANYTHING),
            "first_id": TEXT,
            "last_id": TEXT,
            "has_more": {"type": "boolean"},
        }
    ),
    "Response": shape(
        {
            "id": TEXT,
            "object": {"const": "response"},
            "created_at": NUMBER,
            "status": {"enum": ["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]},
            "model": TEXT,
            "output": listof(ANYTHING),
        },
        optional={"error": maybe(ANYTHING), "incomplete_details": maybe(ANYTHING), "usage": maybe(_USAGE)},
    ),
    "ResponseEvent": shape({"type": TEXT, "sequence_number": COUNT}),
}
