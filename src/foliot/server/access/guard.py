"""Stands in front of every route: finds out who calls, and looks the route up in the table of permissions.

It runs before parameters are parsed and before a body is read. Deny by default is kept twice: an application with a
route that has no row does not start (`check_routes`), and a request that finds none is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from foliot.errors import Denied, FoliotError
from foliot.server.access.identity import EVERYWHERE, HIDDEN, Caller
from foliot.server.access.permissions import RULES, Rule
from foliot.server.context import CALLER, Services
from foliot.server.edge.query import NAMESPACE, check_names, query_of
from foliot.server.errors import MethodNotAllowed
from foliot.server.keys.answering import answer_once
from foliot.server.late import LateRoute

DEFAULT: Final = "default"
# Where a route that knows the namespace only later finds the role that it must ask for.
ROLE: Final = "foliot.role"


class GuardedRoute(LateRoute):
    """A route that nobody passes whom the table does not let through."""

    _known: frozenset[str] | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method not in (self.methods or ()):  # a router tries routes of other methods too
            raise MethodNotAllowed("this cannot be done here", allow=", ".join(sorted(self.methods or ())))
        rule = _rule(method, self.path)
        await admit(scope, rule)
        if query_of(scope):
            check_names(scope, self._names(rule), others=rule.others)
        if method == "POST":
            await answer_once(self.path, super().handle, scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def _names(self, rule: Rule) -> frozenset[str]:
        """Return the parameters that the query of a request may have."""
        if self._known is None:
            self._known = frozenset((*rule.query, *(each.alias for each in self.dependant.query_params)))
        return self._known


class GuardedApp:
    """Another ASGI application below a path: `app.mount(path, GuardedApp(path, other))`. Its row is `("*", path)`."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self.path = path
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await admit(scope, _rule("*", self.path))
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
    """Raises `FoliotError` for a route that the table does not speak of, or that has no guard."""
    for what, method, path, guarded in all_routes(app):
        if not guarded:
            raise FoliotError(f"{what} is not guarded", hint="make its router with server.access.guard.new_router()")
        if (method, path) not in RULES:
            raise FoliotError(f"{what} has no row in the table of permissions", hint="see server/access/permissions.py")


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


def _rule(method: str, path: str) -> Rule:
    rule = RULES.get((method, path))
    if rule is None:
        raise Denied("nobody may call this", hint="it is not in the table of permissions")
    return rule
