"""The description of the API, OpenAPI 3.1: what the framework knows of the routes, and what only we know.

Bodies are read by the rooms below and not by the framework, answers are documents that nobody validates a second time,
errors are problems, and what a route is stands in the route table. All of it is added here, from where it is defined;
`foliot.server.describing` has what is defined nowhere else.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

from fastapi import FastAPI
from msgspec import Struct

from foliot.server.auth.rules import Rule
from foliot.server.http.problems import MEDIA_TYPE
from foliot.server.http.request_keys import KEY
from foliot.server.openapi import events, kinds, shapes, work_shapes
from foliot.server.openapi.failures import failures, responses
from foliot.server.openapi.kinds import ANY_KIND, expanded
from foliot.server.openapi.operation import Operation
from foliot.server.openapi.schema import TEXT, ref
from foliot.server.route_table import ROUTES, Row

# As the description writes paths: without how a parameter is matched.
ROWS: Final = {(method, re.sub(r":\w+}", "}", path)): row for (method, path), row in ROUTES.items()}
SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}, {"session": []}]
SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "fol_…"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "foliot_session",
        "description": "Of a browser that has logged in; `__Host-foliot_session` under TLS.",
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description. It is made once for an application."""
    described = app.openapi()  # which the application keeps
    return described if "securitySchemes" in described.get("components", {}) else _completed(described)


def _completed(described: dict[str, Any]) -> dict[str, Any]:
    paths: dict[str, Any] = described["paths"]
    of_kinds = list(expanded(paths))
    for path in [path for path in paths if path.startswith(ANY_KIND)]:
        del paths[path]
    for path, item in paths.items():
        for method, operation in item.items():
            row = ROWS[method.upper(), path]
            _complete(path, operation, row.described(), row.rule, keyed=_is_keyed(row))
    for method, path, route, operation, kind in of_kinds:
        row = ROWS[method.upper(), route]
        rule = Rule(row.rule.where, row.rule.kinds.get(kind.plural, row.rule.role))
        _complete(path, operation, row.described(kind), rule, keyed=_is_keyed(row))
        paths.setdefault(path, {})[method] = operation
    described["paths"] = dict(sorted(paths.items()))
    described["tags"] = [{"name": tag} for tag in sorted(_tags(described["paths"]))]
    components = described.setdefault("components", {})
    components["schemas"] = {**kinds.schemas(), **work_shapes.derived(*forms()), **_written()}
    components["responses"] = responses()
    components["securitySchemes"] = dict(SCHEMES)
    return described


def forms() -> list[type[Struct]]:
    """Return the classes of all bodies that have one, each once."""
    operations = (row.operation for row in ROUTES.values())
    bodies = (each.body for each in operations if isinstance(each, Operation) and each.body is not None)
    return [*dict.fromkeys(shape for body in bodies if (shape := body.shape()) is not None)]


def _is_keyed(row: Row) -> bool:
    return row.key is not None and row.key.kept


def _written() -> dict[str, Any]:
    own = {**shapes.ACCESS_SHAPES, **shapes.OPERATIONS_SHAPES, **shapes.SHAPES, **shapes.OPENAI}
    return {**own, **work_shapes.SHAPES, **events.SHAPES}


def _complete(path: str, operation: dict[str, Any], told: Operation, rule: Rule, *, keyed: bool) -> None:
    operation["operationId"] = told.id
    operation["security"] = [] if rule.where == "public" else list(SECURITY)
    if rule.where != "public":
        operation["x-foliot-role"] = rule.role
    operation["parameters"] = [_parameter(each) for each in operation.get("parameters", ())]
    if told.body is not None:
        operation["requestBody"] = told.body.described()
    given = cast("dict[str, Any]", operation["responses"])
    own = {code: each for code, each in given.items() if code != "422" and _says_something(each)}
    told_of = failures(path, rule.where, body=told.body is not None, more=(*told.fails, *((409,) if keyed else ())))
    operation["responses"] = {**told_of, **told.responses(), **own}
    for code in told.others.keys() & told_of.keys():  # before it comes to that, it may be refused as any other
        operation["responses"][code]["content"][MEDIA_TYPE] = {"schema": ref("Problem")}
    if told.events is not None:
        operation["parameters"].append(_LAST_EVENT)
    if keyed:
        operation["parameters"].append(_KEY)


_LAST_EVENT: Final = {
    "in": "header",
    "name": "Last-Event-ID",
    "required": False,
    "description": "The id of the last event that was read; what follows comes.",
    "schema": TEXT,
}
_KEY: Final = {
    "in": "header",
    "name": "Idempotency-Key",
    "required": False,
    "description": "The same request again with the same key is done once, and answered as the first one was.",
    "schema": {"type": "string", "pattern": f"^{KEY}$"},
}


def _says_something(response: dict[str, Any]) -> bool:
    """Whether a route told of an answer itself, and it is not what the framework says of all."""
    content = response.get("content", {}).get("application/json", {})
    return bool(content.get("schema")) or response.get("description") not in ("Successful Response", None)


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    """Describes a parameter as it is sent: an address has no null, and headers have capitals."""
    schema = dict(parameter["schema"])
    kept = [each for each in schema.pop("anyOf", ()) if each != {"type": "null"}]
    if len(kept) == 1:
        schema |= kept[0]
    elif kept:
        schema["anyOf"] = kept
    for said in ("title", "description"):
        schema.pop(said, None)
    name = parameter["name"]
    if parameter["in"] == "header":
        name = "-".join(word.capitalize() if word != "id" else "ID" for word in name.split("-"))
    return {**parameter, "name": name, "schema": schema}


def _tags(paths: dict[str, Any]) -> set[str]:
    return {tag for item in paths.values() for operation in item.values() for tag in operation.get("tags", ())}
