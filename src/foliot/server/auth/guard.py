"""Stands in front of every route: finds out who calls, and whether the row of the route lets them pass.

It runs before parameters are parsed and before a body is read. Deny by default: a handler without a row cannot be
registered, a row without a handler keeps the application from starting (`check_routes`), and a request that finds no
route reaches none.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from foliot.errors import Denied, FoliotError
from foliot.server.auth.identity import EVERYWHERE, HIDDEN, Caller
from foliot.server.auth.rules import RouteRule
from foliot.server.context import CALLER, ROLE, Services
from foliot.server.errors import Unauthenticated
from foliot.server.http.query import NAMESPACE, check_names, query_of
from foliot.server.http.request_keys import answer_once
from foliot.server.http.routing import Handler, Route, RouteGroup
from foliot.server.route_table import ROUTES, RouteRow

DEFAULT: Final = "default"
_HINT: Final = "see server/route_table.py"


class GuardedRoute(Route):
    """A route that nobody passes whom its row of the route table does not let through."""

    def __init__(self, method: str, path: str, handler: Handler, **told: Any) -> None:
        """Raise `FoliotError` for a handler without a row: it is never registered."""
        super().__init__(method, path, handler, **told)
        self.row = _row(method, path)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = self.row
        await admit(scope, row.rule)
        if query_of(scope):
            check_names(scope, self._known, others=row.rule.others)
        if row.key is not None:
            await answer_once(row.key, super().handle, scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    @cached_property
    def _known(self) -> frozenset[str]:
        """The parameters that the query of a request may have."""
        return self.signature.query.union(self.row.rule.query)


def new_router(*tags: str) -> RouteGroup:
    """Return a group whose routes are guarded. `tags` group its routes in the description of the API."""
    return RouteGroup(GuardedRoute, *tags)


async def admit(scope: Scope, rule: RouteRule) -> None:
    """Let the caller pass, and remember who it is. Raises `Unauthenticated`, `TooMany`, `Denied`, `NotFound`."""
    services: Services = scope["app"].state.services
    if rule.where == "public":
        services.rates.count_peer(scope)
        return
    rates = services.rates
    rates.check_peer(scope)
    try:
        caller: Caller = await services.auth.identify(scope)
    except Unauthenticated:
        rates.failed(scope)
        rates.count_peer(scope)
        raise
    if caller.known_by != "anonymous":
        rates.succeeded(scope)
    scope[CALLER] = caller
    rates.count_caller(caller)
    scope[ROLE] = role = rule.kinds.get(scope["path_params"].get("kind", ""), rule.role) if rule.kinds else rule.role
    match rule.where:
        case "everywhere":
            caller.require(role, EVERYWHERE, missing=HIDDEN)
        case "named":
            caller.require(role, namespace_of(scope), missing=HIDDEN)
        case "anywhere" | "listed" | "inside":
            if not caller.somewhere(role):
                raise Denied(f"this needs the role {role}", hint="ask whoever gave you your token", role=role)
        case _:
            raise AssertionError(f"a rule for {rule.where}")


def namespace_of(scope: Scope) -> str:
    """The namespace that a request names, `default` when it names none."""
    return query_of(scope).get(NAMESPACE, DEFAULT)


def check_routes(routes: Iterable[Route]) -> None:
    """Raise `FoliotError` for a route that has no guard, for two of the same path, and for a row without a handler."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        place = route.method, route.path
        if not isinstance(route, GuardedRoute):
            raise FoliotError(
                f"the route {' '.join(place)} is not guarded", hint="make it with auth.guard.new_router()"
            )
        if place in found:
            raise FoliotError(f"the route {' '.join(place)} has two handlers", hint=_HINT)
        found.add(place)
    for method, path in ROUTES.keys() - found:
        raise FoliotError(f"{method} {path} has a row and no handler", hint=_HINT)


def _row(method: str, path: str) -> RouteRow:
    row = ROUTES.get((method, path))
    if row is None:
        raise FoliotError(f"the route {method} {path} has no row", hint=_HINT)
    if (method == "POST") != (row.key is not None):
        raise FoliotError(f"{method} {path}: a POST, and nothing else, says what a key means", hint=_HINT)
    return row
