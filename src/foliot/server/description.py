"""The description of the API, OpenAPI 3.1: what the framework knows of the routes, and what only we know.

Bodies are read by the rooms below and not by the framework, answers are documents that nobody validates a second time,
errors are problems, and who may call what stands in the table of permissions. All of it is added here, from where it is
defined; `foliot.server.describing` has what is defined nowhere else.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

from fastapi import FastAPI

from foliot.server.access.permissions import RULES, Rule
from foliot.server.describing import access, events, kinds, operating, shapes, work_shapes
from foliot.server.describing.failures import failures, responses
from foliot.server.describing.kinds import ANY_KIND, expanded
from foliot.server.describing.operations import FORMS, OPERATIONS, otherwise
from foliot.server.describing.schema import TEXT, ref
from foliot.server.describing.told import Told
from foliot.server.keys.answering import KEY
from foliot.server.keys.table import keeps_answers
from foliot.server.problems import MEDIA_TYPE

# As the description writes paths: without how a parameter is matched.
PLAIN_RULES: Final = {(method, re.sub(r":\w+}", "}", path)): rule for (method, path), rule in RULES.items()}
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
            told = OPERATIONS.get((method, path)) or otherwise(method, path)
            keyed = method == "post" and keeps_answers(path)
            _complete(path, operation, told, PLAIN_RULES[method.upper(), path], keyed=keyed)
    for method, path, route, operation, told in of_kinds:
        rule = PLAIN_RULES[method.upper(), route]
        plural = path.split("/")[2]
        keyed = method == "post" and keeps_answers(path)
        _complete(path, operation, told, Rule(rule.where, rule.kinds.get(plural, rule.role)), keyed=keyed)
        paths.setdefault(path, {})[method] = operation
    described["paths"] = dict(sorted(paths.items()))
    described["tags"] = [{"name": tag} for tag in sorted(_tags(described["paths"]))]
    components = described.setdefault("components", {})
    components["schemas"] = {**kinds.schemas(), **work_shapes.derived(*FORMS), **_written()}
    components["responses"] = responses()
    components["securitySchemes"] = dict(SCHEMES)
    return described


def _written() -> dict[str, Any]:
    own = {**access.SHAPES, **operating.SHAPES}
    return {**own, **shapes.SHAPES, **shapes.OPENAI, **work_shapes.SHAPES, **events.SHAPES}


def _complete(path: str, operation: dict[str, Any], told: Told, rule: Rule, *, keyed: bool) -> None:
    operation["operationId"] = told.id
    operation["security"] = [] if rule.where == "public" else list(SECURITY)
    if rule.where != "public":
        operation["x-foliot-role"] = rule.role
    operation["parameters"] = [_parameter(each) for each in operation.get("parameters", ())]
    if told.body is not None:
        operation["requestBody"] = told.body.described()
    given = cast("dict[str, Any]", operation["responses"])
    own = {code: each for code, each in given.items() if code != "422" and _says_something(each)}
    told_of = failures(path, rule, body=told.body is not None, more=(*told.fails, *((409,) if keyed else ())))
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
    """As it is sent: an address has no null, and headers have capitals."""
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
