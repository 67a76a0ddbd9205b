"""Finds the route of a request by the words of its path, where a router would try one route after the other.

With eighty routes the search took longer than everything else about a read. A path that leads nowhere, or is there for
other methods only, is answered here and reaches no route. Only what lies below a mounted application is searched for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, TypeAlias

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from foliot.errors import NotFound
from foliot.resources.kinds import KINDS
from foliot.server.errors import MethodNotAllowed
from foliot.server.http.names import NOT_EDITED

_METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")
_PLURALS: Final = frozenset(kind.plural for kind in KINDS.values())
_HINT: Final = f"the kinds are {', '.join(sorted(_PLURALS))}"
# What the routes of all kinds refuse for some.
_REFUSED: Final = {(KINDS[name].plural, 3): ("PATCH", "PUT") for name in NOT_EDITED}

# Method, number of words, and the second word, or "" for those whose second word may be any kind.
_Place: TypeAlias = tuple[str, int, str]
_Numbered: TypeAlias = tuple[int, APIRoute]


def index_routes(app: FastAPI) -> None:
    """Put the index in front of the router. It has the routes that there are now."""
    app.router.middleware_stack = RouteIndex(app)


class RouteIndex:
    """The routes of an application by method and path."""

    def __init__(self, app: FastAPI) -> None:
        self._router = app.router
        self._search = app.router.middleware_stack
        # Second words below which there is something else than routes.
        self._other: set[str] = set()
        self._deep: defaultdict[str, list[APIRoute]] = defaultdict(list)
        places: defaultdict[_Place, list[_Numbered]] = defaultdict(list)
        for number, route in enumerate(app.routes):
            words = getattr(route, "path", "").split("/")[1:]
            second = words[1] if len(words) > 1 else ""
            if not isinstance(route, APIRoute):
                self._other.add(second)
            elif ":" in route.path:  # what lies below may have any number of words
                self._deep[second].append(route)
            else:
                for method in route.methods or ():
                    places[method, len(words), "" if second.startswith("{") else second].append((number, route))
        self._routes = {place: self._with_general(place, found, places) for place, found in places.items()}
        self._own = {place: [route for _, route in found] for place, found in places.items()}

    @staticmethod
    def _with_general(place: _Place, found: list[_Numbered], places: dict[_Place, list[_Numbered]]) -> list[APIRoute]:
        """Merges the routes of a word with those of any word, in the order in which they were declared."""
        method, count, second = place
        general = places.get((method, count, ""), []) if second else []
        return [route for _, route in sorted([*found, *general], key=lambda each: each[0])]

    def _is_elsewhere(self, scope: Scope) -> bool:
        """Whether the path lies below something that is no route."""
        return bool(self._other) and (scope["path"].split("/", 3)[2:3] or [""])[0] in self._other

    def find(self, scope: Scope) -> tuple[BaseRoute, Scope] | None:
        """The route of a request and what it adds to the scope, if there is one."""
        words = scope["path"].split("/")
        second = words[2] if len(words) > 2 else ""
        method, place = scope["method"], (scope["method"], len(words) - 1)
        if second in _PLURALS:
            routes = self._routes.get((*place, second)) or self._routes.get((*place, ""), ())
        else:
            routes = self._own.get((*place, second), ())
        for route in routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return route, child
        for route in self._deep.get(second, ()):
            if method in (route.methods or ()) and (found := route.matches(scope))[0] is Match.FULL:
                return route, found[1]
        return None

    def allowed(self, scope: Scope) -> list[str]:
        """The other methods that there are at the path of a request for which no route was found."""
        words = scope["path"].split("/")[1:]
        refused = _REFUSED.get((words[1], len(words)), ()) if len(words) > 1 else ()
        methods = (method for method in _METHODS if method not in refused)
        return [method for method in methods if self.find({**scope, "method": method}) is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_elsewhere(scope):
            await self._search(scope, receive, send)
            return
        found = self.find(scope)
        if found is None:
            # Never searched for: the router would take a route of the same path for another method, or of any kind.
            if allowed := self.allowed(scope):
                raise MethodNotAllowed(f"{scope['method'][:20]} cannot be done here", allow=", ".join(allowed))
            raise NotFound("there is nothing at this path", hint=_HINT)
        route, child = found
        scope["router"] = self._router
        scope.update(child)
        await route.handle(scope, receive, send)
