"""Stands in front of every route: finds out who calls, and whether the row of the route lets them pass.

It runs before parameters are parsed and before a body is read. Deny by default: a handler without a row cannot be
registered, a row without a handler keeps the application from starting (`check_routes`), and a request that finds no
route reaches none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from foliot.errors import Denied, FoliotError
from foliot.server.auth.identity import EVERYWHERE, HIDDEN, Caller
from foliot.server.auth.rules import Rule
from foliot.server.context import CALLER, Services
from foliot.server.errors import MethodNotAllowed
from foliot.server.http.query import NAMESPACE, check_names, query_of
from foliot.server.http.request_keys import answer_once
from foliot.server.http.routing import LateRoute
from foliot.server.route_table import ROUTES, Row

DEFAULT: Final = "default"
# Where a route that knows the namespace only later finds the role that it must ask for.
ROLE: Final = "foliot.role"
_HINT: Final = "see server/route_table.py"


class GuardedRoute(LateRoute):
    """A route that nobody passes whom its row of the route table does not let through."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Raise `FoliotError` for a handler without a row: it is never registered."""
        super().__init__(path, endpoint, **options)
        self.rows = {method: _row(method, path) for method in self.methods}
        self._known: frozenset[str] | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = self.rows.get(scope["method"])
        if row is None:  # a router tries routes of other methods too
            raise MethodNotAllowed("this cannot be done here", allow=", ".join(sorted(self.rows)))
        await admit(scope, row.rule)
        if query_of(scope):
            check_names(scope, self._names(row.rule), others=row.rule.others)
        if row.key is not None:
            await answer_once(row.key, super().handle, scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def _names(self, rule: Rule) -> frozenset[str]:
        """Return the parameters that the query of a request may have."""
        if self._known is None:
            self._known = frozenset((*rule.query, *(each.alias for each in self.dependant.query_params)))
        return self._known


class GuardedApp:
    """An ASGI application mounted below a path:

    `app.mount(path, GuardedApp(path, other))`. Its row is `("*", path)`.
    """

    def __init__(self, path: str, app: ASGIApp) -> None:
        self.path = path
        self._row = _row("*", path)
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await admit(scope, self._row.rule)
        await self._app(scope, receive, send)


def new_router(*tags: str) -> APIRouter:
    """A router whose routes are guarded. `tags` group its routes in the description of the API."""
    return APIRouter(route_class=GuardedRoute, tags=[*tags])


async def admit(scope: Scope, rule: Rule) -> None:
    """Let the caller pass, and remember who it is. Raises `Unauthenticated`, `TooMany`, `Denied`, `NotFound`."""
    services: Services = scope["app"].state.services
    if rule.where == "public":
        services.rates.count_peer(scope)
        return
    caller: Caller = await services.rates.identify(scope, services.auth)
    scope[CALLER] = caller
    services.rates.count_caller(caller)
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


def check_routes(app: FastAPI) -> None:
    """Raises `FoliotError` for a route that has no guard, or no row, and for a row that has no handler."""
    found: set[tuple[str, str]] = set()
    for what, method, path, guarded in all_routes(app):
        if not guarded:
            raise FoliotError(f"{what} is not guarded", hint="make its router with server.access.guard.new_router()")
        _row(method, path)
        found.add((method, path))
    for method, path in ROUTES.keys() - found:
        raise FoliotError(f"{method} {path} has a row and no handler", hint=_HINT)


def all_routes(app: FastAPI) -> Iterator[tuple[str, str, str, bool]]:
    """Each route of an application: what it is, its method, its path, and whether a guard stands in front."""
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        path = str(context.path)
        if isinstance(route, Mount):
            guarded = isinstance(route.app, GuardedApp) and route.app.path == path
            yield f"the mount {path}", "*", path, guarded
            continue
        guarded = isinstance(route, GuardedRoute) and route.path == path
        for method in sorted(context.methods or {"*"}):
            yield f"the route {method} {path}", method, path, guarded


def _row(method: str, path: str) -> Row:
    row = ROUTES.get((method, path))
    if row is None:
        raise FoliotError(f"the route {method} {path} has no row", hint=_HINT)
    if (method == "POST") != (row.key is not None):
        raise FoliotError(f"{method} {path}: a POST, and nothing else, says what a key means", hint=_HINT)
    return row
