"""The shapes of answers about the server and about resources, as far as no type in the code has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foliot.resources.kinds import KINDS
from foliot.server.openapi.kinds import listed
from foliot.server.openapi.schema import (
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
    "AgentDefaults": shape(dict.fromkeys(("runner", "provider", "workspace_dir", "system_prompt"), TEXT)),
    "Root": shape(dict.fromkeys(("name", "about", "version", "api", "openapi", "health"), TEXT)),
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
    "ChannelAnswer": shape(
        {"accepted": YES_NO},
        optional={"duplicate": YES_NO, "session": TEXT, "outcome": TEXT, "reply": TEXT, "error": TEXT},
        about="What became of a message to a channel.",
    ),
    "ResultTaken": shape({"accepted": {"const": True}}),
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
    "InputTokens": shape({"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}),
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


# --- access ----------------------------------------------------------------------------------------------------------

# What is answered about who one is: logins, accounts, tokens.

_ROLES: Final[Schema] = {"type": "object", "additionalProperties": listof(TEXT)}
_TOKEN: Final[Mapping[str, Schema]] = {
    "id": TEXT,
    "name": TEXT,
    "roles": listof(TEXT),
    "namespaces": listof(TEXT),
    "createdBy": TEXT,
    "createdAt": TIME,
}
_TIMES: Final[Mapping[str, Schema]] = {"expiresAt": TIME, "revokedAt": TIME, "usedAt": TIME}

ACCESS_SHAPES: Final[dict[str, Schema]] = {
    "Me": shape(
        {
            "authenticated": YES_NO,
            "username": TEXT,
            "method": {"enum": ["bearer", "session", "none"]},
            "roles": _ROLES,
        },
        optional={"csrf_token": TEXT, "expires_at": TIME},
        about="Who the caller is. `roles` are by namespace; `*` is all of them. A session has a `csrf_token`, which "
        "its writes must carry in `X-CSRF-Token`.",
    ),
    "LoginConfig": shape(
        {
            "mode": {"enum": ["native", "off"]},
            "setup_required": YES_NO,
            "login_methods": listof({"enum": ["password", "oidc"]}),
        },
        about="How one can log in.",
    ),
    "LoggedOut": shape({"authenticated": {"const": False}}),
    "PasswordChanged": shape({"username": TEXT, "sessions_ended": COUNT}),
    "Token": shape(_TOKEN, optional=_TIMES, about="Everything about a token but its text."),
    "NewTokenText": shape(
        {**_TOKEN, "token": TEXT}, optional=_TIMES, about="A token and its text, which is shown this once."
    ),
    "User": shape(
        {"username": TEXT, "roles": _ROLES, "createdBy": TEXT, "createdAt": TIME, "passwordAt": TIME},
        optional={"disabledAt": TIME, "loginAt": TIME},
        about="An account of somebody who logs in. `passwordAt` is when its password was set.",
    ),
    "UserList": shape({"items": listof(ref("User"))}),
    "TokenList": shape({"items": listof(ref("Token"))}),
}


# --- operating -------------------------------------------------------------------------------------------------------

# What Foliot's own client is answered about records, budgets, workers, tools and triggers.

OPERATIONS_SHAPES: Final[dict[str, Schema]] = {
    "AuditRecord": shape(
        {"seq": COUNT, "hash": TEXT, "body": ANYTHING}, about="One record; `body` has the hash of the one before."
    ),
    "AuditRecords": shape({"records": listof(ref("AuditRecord"))}, optional={"continue": TEXT}),
    "AuditVerified": shape(
        {"records": COUNT, "head": shape({"seq": COUNT, "hash": TEXT}), "broken": maybe(ANYTHING)},
        optional={"first": COUNT, "missing": listof(TEXT)},
        about="`broken` says where the log was changed, if it was; `first` is the first record that is kept; `missing` "
        "are finished calls (`RUN/CALL`) that the journals tell of and the log does not.",
    ),
    "Limits": shape({"limits": listof(ref("Limit"))}),
    "Classes": shape({"classes": listof(ANYTHING)}),
    "ToolFacts": shape(
        {"name": TEXT, "from": TEXT, "available": YES_NO},
        optional={"problem": TEXT, "type": TEXT, "effect": TEXT, "description": TEXT, "rules": listof(TEXT)},
        about="A tool; `problem` says why it cannot be called.",
    ),
}
