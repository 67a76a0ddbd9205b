"""The description of the API, OpenAPI 3.1, made of the routes: nothing about one is said here.

Parameters come from the signatures of handlers, summaries from their names and docstrings, bodies, answers, errors,
roles and keys from the route table, schemas from the types of the rooms below; `shapes.py` and `work_shapes.py` have
those of answers that have no type.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from msgspec import Struct

from foliot.resources.kinds import KINDS, Kind
from foliot.server.auth.rules import RouteRule
from foliot.server.http.problems import MEDIA_TYPE
from foliot.server.http.request_keys import KEY
from foliot.server.http.routing import NOT_EDITED, Route
from foliot.server.openapi import events, kinds, shapes, work_shapes
from foliot.server.openapi.failures import failures, responses
from foliot.server.openapi.operation import Operation
from foliot.server.openapi.schema import TEXT, ref
from foliot.server.route_table import ROUTES
from foliot.server.routes.resources import WITHOUT_STATUS
from foliot.version import __version__

INFO: Final = {
    "title": "Foliot",
    "version": __version__,
    "summary": "Durable runs of agents, with tools that are governed.",
}
ANY_KIND: Final = "/v1/{kind}"
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


@cache
def describe(routes: tuple[Route, ...]) -> dict[str, Any]:
    """Return the whole description of these routes. It is made once."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if ROUTES[route.method, route.path].operation is None:
            continue
        path = _plain(route.path)
        if path.startswith(ANY_KIND):
            for kind in _kinds(route, routes):
                own = path.replace("{kind}", kind.plural)
                paths.setdefault(own, {})[route.method.lower()] = _operation(own, route, kind)
        else:
            paths.setdefault(path, {})[route.method.lower()] = _operation(path, route, None)
    tags = {tag for item in paths.values() for operation in item.values() for tag in operation["tags"]}
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "paths": dict(sorted(paths.items())),
        "tags": [{"name": tag} for tag in sorted(tags)],
        "components": {
            "schemas": {**kinds.schemas(), **work_shapes.derived(*forms()), **_written()},
            "responses": responses(),
            "securitySchemes": dict(SCHEMES),
        },
    }


def _plain(path: str) -> str:
    """Return a path as the description writes it: without how a parameter is matched."""
    return re.sub(r":\w+}", "}", path)


def _kinds(route: Route, routes: tuple[Route, ...]) -> Iterator[Kind]:
    """Yield the kinds that a route for all kinds serves.

    A client that is generated then has `getAgent` with an Agent as its answer, and no operation that some kinds refuse.
    """
    own = {(each.method, each.path) for each in routes}
    for kind in KINDS.values():
        if (route.method, route.path.replace("{kind}", kind.plural)) in own:
            continue
        if route.path.endswith("/status") and kind.name in WITHOUT_STATUS:
            continue
        if route.method in ("PUT", "PATCH") and kind.name in NOT_EDITED and not route.path.endswith("/status"):
            continue
        yield kind


def forms() -> list[type[Struct]]:
    """Return the classes of all bodies that have one, each once."""
    operations = (row.operation for row in ROUTES.values())
    bodies = (each.body for each in operations if isinstance(each, Operation) and each.body is not None)
    return [*dict.fromkeys(shape for body in bodies if (shape := body.shape()) is not None)]


def _written() -> dict[str, Any]:
    own = {**shapes.ACCESS_SHAPES, **shapes.OPERATIONS_SHAPES, **shapes.SHAPES, **shapes.OPENAI}
    return {**own, **work_shapes.SHAPES, **events.SHAPES}


def _operation(path: str, route: Route, kind: Kind | None) -> dict[str, Any]:
    row = ROUTES[route.method, route.path]
    told, rule = row.described(kind), row.rule
    keyed = row.key is not None and row.key.kept
    tags, summary = [*route.tags], route.handler.__name__.replace("_", " ").title()
    parameters = [each.described() for each in route.signature.parameters] + [dict(each) for each in route.reads]
    if kind is not None:
        rule = RouteRule(rule.where, rule.kinds.get(kind.plural, rule.role))
        tags, summary = [kind.plural], f"{summary}: {kind.plural}"
        parameters = [each for each in parameters if each["name"] != "kind"]
    if told.events is not None:
        parameters.append(_LAST_EVENT)
    if keyed:
        parameters.append(_KEY)
    made: dict[str, Any] = {
        "tags": tags,
        "summary": summary,
        "description": inspect.cleandoc(route.handler.__doc__ or ""),
        "operationId": told.id,
        "security": [] if rule.where == "public" else list(SECURITY),
        "parameters": parameters,
        "responses": _responses(path, told, rule, keyed=keyed),
    }
    if told.deprecated:
        made["deprecated"] = True
    if rule.where != "public":
        made["x-foliot-role"] = rule.role
    if told.body is not None:
        made["requestBody"] = told.body.described()
    return made


def _responses(path: str, told: Operation, rule: RouteRule, *, keyed: bool) -> dict[str, Any]:
    refused = failures(path, rule.where, body=told.body is not None, more=(*told.fails, *((409,) if keyed else ())))
    made = {**refused, **told.responses()}
    for code in told.others.keys() & refused.keys():  # before it comes to that, it may be refused as any other
        made[code]["content"][MEDIA_TYPE] = {"schema": ref("Problem")}
    return made


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
