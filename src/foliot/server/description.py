"""The description of the API, OpenAPI 3.1: what the framework knows of the routes, and what only we know.

Bodies are read by the rooms below and not by the framework, errors are problems, and who may call what stands in the
table of permissions: so all three are added here, from where they are defined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from fastapi import FastAPI
from msgspec import Struct

from foliot.resources.kinds import KINDS
from foliot.resources.schema import bundle_schema
from foliot.server.openai.requests import ChatRequest, ResponsesRequest
from foliot.server.permissions import RULES
from foliot.server.problems import MEDIA_TYPE
from foliot.server.routes import approvals, runs, tasks, work_runs, work_tasks
from foliot.work.base import Command

SCHEMAS: Final = "#/components/schemas/"
# As the description writes paths: without how a parameter is matched.
PLAIN_RULES: Final = {(method, re.sub(r":\w+}", "}", path)): rule for (method, path), rule in RULES.items()}
_OBJECT: Final = {"type": "object", "additionalProperties": True}
_RESOURCE: Final = {"oneOf": [{"$ref": SCHEMAS + name} for name in KINDS]}
_READ: Final = {
    "type": "object",
    "required": ["kind", "metadata"],
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"enum": [*KINDS]},
        "metadata": {"$ref": SCHEMAS + "StoredMetadata"},
        "spec": _OBJECT,
        "status": _OBJECT,
    },
}
_FORMS: Final[Mapping[tuple[str, str], type[Struct]]] = {
    ("post", "/v1/tasks/{name}/cancel"): tasks.Reason,
    ("post", "/v1/tasks/{name}/requeue"): tasks.Requeue,
    ("post", "/v1/runs/{run_id}/cancel"): tasks.Reason,
    ("post", "/v1/runs/{run_id}/input"): runs.Said,
    ("post", "/v1/runs/{run_id}/answer"): runs.Answered,
    ("post", "/v1/tool-approvals/{name}/approve"): approvals.Comment,
    ("post", "/v1/tool-approvals/{name}/deny"): approvals.Comment,
    ("post", "/v1/tool-approvals/{name}/edit"): approvals.Edited,
    ("post", "/v1/work/tasks"): Command,
    ("post", "/v1/work/tasks/{name}/cancel"): work_tasks.Act,
    ("post", "/v1/work/tasks/{name}/archive"): work_tasks.Act,
    ("post", "/v1/work/tasks/{name}/requeue"): work_tasks.Act,
    ("post", "/v1/work/runs/{name}/cancel"): work_tasks.Act,
    ("post", "/v1/work/runs/{name}/answer"): work_runs.Reply,
    ("post", "/v1/work/approvals"): work_runs.Grant,
    ("post", "/v1/work/approvals/{name}/decide"): work_runs.Verdict,
    ("post", "/v1/work/approvals/{name}/revoke"): work_tasks.Act,
    ("post", "/v1/chat/completions"): ChatRequest,
    ("post", "/v1/responses"): ResponsesRequest,
}
_MANIFESTS: Final = {
    ("post", "/v1/{kind}"),
    ("put", "/v1/{kind}/{name}"),
    ("post", "/v1/tasks"),
    ("put", "/v1/tasks/{name}"),
    ("post", "/v1/apply"),
    ("post", "/v1/work/declared"),
}
_OBJECTS: Final = {
    ("patch", "/v1/{kind}/{name}"),
    ("put", "/v1/{kind}/{name}/status"),
    ("put", "/v1/tasks/{name}/status"),
}
_STREAMS: Final = {
    "/v1/events/watch",
    "/v1/{kind}/watch",
    "/v1/tasks/watch",
    "/v1/tasks/{name}/events",
    "/v1/runs/{run_id}/events",
    "/v1/work/tasks/{name}/watch",
}
# What answers with a JSON array.
_ARRAYS: Final = {
    ("post", "/v1/work/declared"),
    ("get", "/v1/work/tasks/{name}/records"),
    ("get", "/v1/work/runs"),
    ("get", "/v1/work/runs/{name}/facts"),
    ("get", "/v1/work/approvals"),
    ("get", "/v1/work/questions"),
}
# Routes whose errors have the shape that clients of OpenAI read.
_OPENAI: Final = ("/v1/models", "/v1/chat/completions", "/v1/responses")
# Answered whole, or with a stream when the request asks for one.
_EITHER: Final = ("/v1/chat/completions", "/v1/responses")
_LISTS: Final = {"/v1/resources", "/v1/{kind}", "/v1/tasks", "/v1/workers"}
# Codes of success, where it is not 200 alone.
_CODES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("post", "/v1/{kind}"): ("200", "201"),
    ("post", "/v1/tasks"): ("200", "201"),
    ("get", "/v1/{kind}/{name}"): ("200", "304"),
    ("delete", "/v1/{kind}/{name}"): ("200", "204"),
    ("post", "/v1/runs/{run_id}/input"): ("202",),
    ("post", "/v1/runs/{run_id}/answer"): ("202",),
    ("post", "/v1/work/tasks"): ("200", "201"),
    ("delete", "/v1/work/tasks/{name}"): ("204",),
    ("post", "/v1/work/approvals"): ("201",),
    ("post", "/v1/webhook-deliveries/{endpoint_id}"): ("200", "202"),
    ("post", "/v1/tool-callbacks/{request_id}"): ("202",),
}
_TEXTS: Final = {"200": "Done.", "201": "Created.", "202": "Accepted.", "204": "Deleted.", "304": "Not changed."}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description. It is made once for an application."""
    described = app.openapi()  # which the application keeps
    return described if "securitySchemes" in described.get("components", {}) else _completed(described)


def _completed(described: dict[str, Any]) -> dict[str, Any]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            _complete(method, path, operation)
    components = described.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.update(_schemas())
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "fol_…"}}
    return described


def _complete(method: str, path: str, operation: dict[str, Any]) -> None:
    rule = PLAIN_RULES[method.upper(), path]
    operation["security"] = [] if rule.where == "public" else [{"token": []}]
    if rule.where != "public":
        operation["x-foliot-role"] = rule.role
    if (body := _body(method, path)) is not None:
        operation["requestBody"] = body
    responses: dict[str, Any] = operation["responses"]
    responses.pop("422", None)
    errors = {MEDIA_TYPE: {"schema": {"$ref": SCHEMAS + "Problem"}}}
    if path.startswith(_OPENAI):
        errors["application/json"] = {"schema": {"$ref": SCHEMAS + "OpenAiError"}}
    responses["default"] = {"description": "What went wrong.", "content": errors}
    codes = _CODES.get((method, path), ("200",))
    if "200" not in codes:
        responses.pop("200", None)
    for code in codes:
        responses[code] = {"description": _TEXTS[code], **_content(method, path, code)}


def _body(method: str, path: str) -> dict[str, Any] | None:
    place = method, path
    if place in _MANIFESTS:
        media = {
            "schema": _RESOURCE if path not in ("/v1/apply", "/v1/work/declared") else {"anyOf": [_RESOURCE, _OBJECT]}
        }
        return {"required": True, "content": {"application/json": media, "application/yaml": {"schema": {}}}}
    if place in _OBJECTS:
        return {"required": True, "content": {"application/json": {"schema": _OBJECT}}}
    if (form := _FORMS.get(place)) is not None:
        needed = bool(msgspec.json.schema(form).get("$defs", {}).get(form.__name__, {}).get("required"))
        schema = {"$ref": SCHEMAS + form.__name__}
        return {"required": needed, "content": {"application/json": {"schema": schema}}}
    return None


def _content(method: str, path: str, code: str) -> dict[str, Any]:
    if code in ("204", "304"):
        return {}
    if path in _STREAMS:
        return {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    named = path.startswith(("/v1/{kind}/{name}", "/v1/tasks/{name}", "/v1/workers/{name}"))
    schema: dict[str, Any] = _OBJECT
    if (method, path) in _ARRAYS:
        schema = {"type": "array", "items": {}}
    elif path in _LISTS and code == "200":
        schema = {"anyOf": [{"$ref": SCHEMAS + "ResourceList"}, _READ]} if path != "/v1/workers" else _OBJECT
    elif named and path.count("/") == 3:
        schema = _READ
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if path in _EITHER:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"content": content}


def _schemas() -> dict[str, Any]:
    kinds = cast("dict[str, Any]", _moved(bundle_schema()["$defs"]))
    forms = [*dict.fromkeys(_FORMS.values())]
    _, shapes = msgspec.json.schema_components(forms, ref_template=SCHEMAS + "{name}")
    plain = msgspec.json.decode(msgspec.json.encode(shapes), type=dict[str, Any])  # defaults may be tuples
    return {**kinds, **plain, **_OWN}


def _moved(schema: Any) -> Any:
    """References, as they read inside the description."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {k: v.replace("#/$defs/", SCHEMAS) if k == "$ref" else _moved(v) for k, v in items}
    if isinstance(schema, list):
        return [_moved(item) for item in cast("list[Any]", schema)]
    return schema


_OWN: Final[dict[str, Any]] = {
    "OpenAiError": {
        "type": "object",
        "description": "An error as clients of OpenAI read it. `param` is the member that is wrong.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "Problem": {
        "type": "object",
        "description": "Problem details (RFC 9457). `code` never changes; the texts are for people.",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string"},
            "detail": {"type": "string"},
            "hint": {"type": "string"},
            "errors": {"type": "array", "items": _OBJECT},
        },
    },
    "StoredMetadata": {
        "type": "object",
        "required": ["name", "namespace"],
        "properties": {
            "name": {"type": "string"},
            "namespace": {"type": "string"},
            "uid": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            "resourceVersion": {"type": "string"},
            "generation": {"type": "integer"},
            "createdAt": {"type": "string"},
        },
    },
    "ResourceList": {
        "type": "object",
        "required": ["items", "metadata"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"const": "List"},
            "metadata": {"type": "object", "properties": {"resourceVersion": {"type": "string"}}},
            "items": {"type": "array", "items": _READ},
            "continue": {"type": "string", "description": "`after` of the next page; missing on the last one."},
        },
    },
}
