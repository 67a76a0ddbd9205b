"""Routes, and the router that finds the one of a request by the words of its path.

A route is one method and one path with its handler. In a path `{name}` is one word, and `{name:path}` at its end the
rest, slashes included. `/v1/{kind}` is only for words that are the plural of a kind. Where several paths fit, the one
whose last words are written out is meant: `/v1/{kind}/watch` goes before `/v1/workers/{name}`. So the order in which
routes are declared does not matter.

A path that is not there, or is there for other methods only, is answered by the router: no route and no guard is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Lifespan, Receive, Scope, Send

from foliot.resources.kinds import KINDS
from foliot.server.context import PARTS
from foliot.server.errors import MethodNotAllowed, NoRoute
from foliot.server.http.parameters import Signature

Handler: TypeAlias = Callable[..., Awaitable[Response]]
H = TypeVar("H", bound=Handler)

METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")
PLURALS: Final = {kind.plural: kind for kind in KINDS.values()}
# Made by those who ask and decided by those who may, not edited: what the routes of all kinds refuse for these.
NOT_EDITED: Final = frozenset({"ToolApproval"})
_REFUSED: Final = {(KINDS[name].plural, 3): ("PATCH", "PUT") for name in NOT_EDITED}
_HINT: Final = f"the kinds are {', '.join(sorted(PLURALS))}"


class Route:
    """One method and path, and the handler that answers. `tags` and `reads` are for the description of the API.

    `reads` are parameters, as OpenAPI tells them, that the handler takes from the request itself.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        tags: Sequence[str] = (),
        reads: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.tags = (*tags,)
        self.reads = (*reads,)
        words = path.split("/")
        # Names of what stands for a word, in their order.
        self.names = tuple(word[1:-1].partition(":")[0] for word in words if word.startswith("{"))
        # The lowest goes first where several fit: from the last word on, written out, any word, any words.
        self.rank = tuple(word.startswith("{") + word.endswith(":path}") for word in reversed(words))

    @cached_property
    def signature(self) -> Signature:
        """The parameters of the handler. Read when first asked for: most servers never use most routes."""
        return Signature(self.handler, self.names, PARTS)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises `InvalidParameters`, and what the handler raises."""
        request = Request(scope, receive, send)
        response = await self.handler(**self.signature.read(request))
        await response(scope, receive, send)


class RouteGroup:
    """The routes of one module: `@routes.get("/v1/agents/{name}")` adds one."""

    def __init__(self, make: Callable[..., Route], *tags: str) -> None:
        self._make = make
        self._tags = tags
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def get(self, path: str, *, reads: Sequence[Mapping[str, Any]] = ()) -> Callable[[H], H]:
        return self._added("GET", path, reads)

    def post(self, path: str, *, reads: Sequence[Mapping[str, Any]] = ()) -> Callable[[H], H]:
        return self._added("POST", path, reads)

    def put(self, path: str) -> Callable[[H], H]:
        return self._added("PUT", path)

    def patch(self, path: str) -> Callable[[H], H]:
        return self._added("PATCH", path)

    def delete(self, path: str) -> Callable[[H], H]:
        return self._added("DELETE", path)

    def _added(self, method: str, path: str, reads: Sequence[Mapping[str, Any]] = ()) -> Callable[[H], H]:
        def add(handler: H) -> H:
            self._routes.append(self._make(method, path, handler, tags=self._tags, reads=reads))
            return handler

        return add


class _Node:
    """A node of the route tree: further words, and the routes whose paths end here, by method."""

    __slots__ = ("any", "kind", "rest", "routes", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.kind: _Node | None = None
        self.any: _Node | None = None
        self.routes: dict[str, Route] = {}
        self.rest: dict[str, Route] = {}


# A route that fits, and what stands for its names.
_Found: TypeAlias = tuple[Route, tuple[str, ...]]


class PathRouter(Router):
    """The routes of an application by the words of their paths. The search takes as long for one route as for many."""

    def __init__(self, routes: Iterable[Route], lifespan: Lifespan[Any] | None = None) -> None:
        super().__init__(lifespan=lifespan)
        self.table: Final = tuple(routes)
        self._root = _Node()
        for route in self.table:
            self._add(route)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the route of a request answer it. Raises `MethodNotAllowed`, `NoRoute`."""
        if scope["type"] != "http":
            await super().app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        found = self.find(method, path)
        if found is None:
            if allowed := self.allowed(path):
                raise MethodNotAllowed(f"{method[:20]} cannot be done here", allow=", ".join(allowed))
            raise NoRoute("there is nothing at this path", hint=_HINT)
        route, scope["path_params"] = found
        scope["route"] = route  # whose path the audit log names
        await route.handle(scope, receive, send)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the route of a request, and what stands in the path for each of its names, if there is one."""
        found: list[_Found] = []
        _collect(self._root, path.split("/"), 1, method, (), found)
        if not found:
            return None
        route, taken = found[0] if len(found) == 1 else min(found, key=lambda each: each[0].rank)
        return route, dict(zip(route.names, taken, strict=True))

    def allowed(self, path: str) -> list[str]:
        """Return the methods that there are at a path."""
        words = path.split("/")[1:]
        refused = _REFUSED.get((words[1], len(words)), ()) if len(words) > 1 else ()
        return [method for method in METHODS if method not in refused and self.find(method, path) is not None]

    def _add(self, route: Route) -> None:
        node = self._root
        for word in route.path.split("/")[1:]:
            if word.endswith(":path}"):
                node.rest[route.method] = route
                return
            if word == "{kind}":
                node.kind = node = node.kind or _Node()
            elif word.startswith("{"):
                node.any = node = node.any or _Node()
            else:
                node = node.words.setdefault(word, _Node())
        node.routes[route.method] = route


def _collect(node: _Node, words: list[str], at: int, method: str, taken: tuple[str, ...], found: list[_Found]) -> None:
    """Add to `found` the routes behind a node that fit the words from `at` on, with what stands for their names."""
    if at == len(words):
        if (route := node.routes.get(method)) is not None:
            found.append((route, taken))
        return
    word = words[at]
    if (behind := node.words.get(word)) is not None:
        _collect(behind, words, at + 1, method, taken, found)
    if node.kind is not None and word in PLURALS:
        _collect(node.kind, words, at + 1, method, (*taken, word), found)
    if node.any is not None and word:
        _collect(node.any, words, at + 1, method, (*taken, word), found)
    if (route := node.rest.get(method)) is not None:
        found.append((route, (*taken, "/".join(words[at:]))))
