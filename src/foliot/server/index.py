"""Finds the route of a request by the words of its path, where a router would try one route after the other.

With eighty routes the search took longer than everything else about a read. What is not in the index (a wrong method, a
mounted application, a path of any depth) is searched for as ever, so the index decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from foliot.server.errors import MethodNotAllowed

# Method, number of words, and the second word, or "" for those whose second word may be any.
_Place: TypeAlias = tuple[str, int, str]


def index_routes(app: FastAPI) -> None:
    """Put the index in front of the router. Routes that are added later are found by the router."""
    app.router.middleware_stack = RouteIndex(app)


class RouteIndex:
    """The routes of an application by method and path."""

    def __init__(self, app: FastAPI) -> None:
        self._router = app.router
        self._search = app.router.middleware_stack
        self._deep: set[str] = set()
        places: defaultdict[_Place, list[tuple[int, APIRoute]]] = defaultdict(list)
        for number, route in enumerate(app.routes):
            words = getattr(route, "path", "").split("/")[1:]
            second = words[1] if len(words) > 1 else ""
            if not isinstance(route, APIRoute) or ":" in route.path:
                self._deep.add(second)  # what lies below may have any number of words
                continue
            for method in route.methods or ():
                places[method, len(words), "" if second.startswith("{") else second].append((number, route))
        self._routes = {place: self._with_general(place, found, places) for place, found in places.items()}

    @staticmethod
    def _with_general(
        place: _Place, found: list[tuple[int, APIRoute]], places: dict[_Place, list[tuple[int, APIRoute]]]
    ) -> list[BaseRoute]:
        """Those of a word and those of any word, in the order in which they were declared."""
        method, count, second = place
        general = places.get((method, count, ""), []) if second else []
        return [route for _, route in sorted([*found, *general], key=lambda each: each[0])]

    def find(self, scope: Scope) -> tuple[BaseRoute, Scope] | None:
        """The route of a request and what it adds to the scope; None when the router has to search."""
        words = scope["path"].split("/")
        second = words[2] if len(words) > 2 else ""
        if second in self._deep:
            return None
        place = scope["method"], len(words) - 1
        for route in self._routes.get((*place, second)) or self._routes.get((*place, ""), ()):
            match, child = route.matches(scope)
            if match is Match.FULL:
                return route, child
        return None

    def allowed(self, scope: Scope) -> list[str]:
        """The other methods that there are at the path of a request for which no route was found."""
        words = scope["path"].split("/")
        if len(words) > 2 and words[2] in self._deep:
            return []
        methods = {method for method, count, _ in self._routes if count == len(words) - 1} - {scope["method"]}
        return sorted(method for method in methods if self.find({**scope, "method": method}) is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope) if scope["type"] == "http" else None
        if found is None:
            # The router knows only the methods of the first route that it tried.
            if scope["type"] == "http" and (allowed := self.allowed(scope)):
                raise MethodNotAllowed(f"{scope['method'][:20]} cannot be done here", allow=", ".join(allowed))
            await self._search(scope, receive, send)
            return
        route, child = found
        scope["router"] = self._router
        scope.update(child)
        await route.handle(scope, receive, send)
