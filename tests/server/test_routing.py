from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from foliot.server.app import load_routes
from foliot.server.http.routing import METHODS, PLURALS, PathRouter, Route


async def nothing(request: Request) -> Response:
    return Response()


ROUTES = load_routes()
router = PathRouter(ROUTES)
# The same routes for Starlette's own search, which takes the first that fits.
SEARCHED = [
    StarletteRoute(route.path, nothing, methods=[route.method], name=f"{route.method} {route.path}")
    for route in sorted(ROUTES, key=lambda route: route.rank)
]
WORDS = sorted({word for route in ROUTES for word in route.path.split("/") if word})
word = st.sampled_from([*WORDS, "", "x", "agents", "%2e", "watch", "status"])


@settings(deadline=None)
@given(st.lists(word, min_size=0, max_size=6), st.sampled_from([*METHODS, "HEAD"]))
def test_the_router_finds_what_a_search_would_have_found(words: list[str], method: str) -> None:
    path = "/" + "/".join(words)
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    first, values = None, {}
    for route in SEARCHED:
        match, child = route.matches(dict(scope))
        of_no_kind = child.get("path_params", {}).get("kind", "agents") not in PLURALS
        if match is Match.FULL and method != "HEAD" and not of_no_kind:
            first, values = route.name, child["path_params"]
            break

    found = router.find(method, path)

    assert (None if found is None else f"{found[0].method} {found[0].path}") == first
    assert found is None or found[1] == values


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_declaration_does_not_matter(order: int) -> None:
    paths = ("/v1/{kind}/{name}", "/v1/{kind}/watch", "/v1/workers/{name}", "/v1/workers/x", "/v1/models/{model:path}")
    small = PathRouter([Route("GET", path, nothing) for path in paths[::order]])

    def find(path: str) -> str | None:
        found = small.find("GET", path)
        return found[0].path if found else None

    assert find("/v1/workers/x") == "/v1/workers/x"
    assert find("/v1/workers/y") == "/v1/workers/{name}"
    assert find("/v1/workers/watch") == "/v1/{kind}/watch"
    assert find("/v1/agents/x") == "/v1/{kind}/{name}"
    assert find("/v1/models/a/b") == "/v1/models/{model:path}"
    assert find("/v1/nothing/x") is None


def test_a_path_that_is_only_there_for_other_methods_names_them() -> None:
    assert router.allowed("/v1/agents/a") == ["DELETE", "GET", "PATCH", "PUT"]
    assert router.allowed("/v1/tool-approvals/a") == ["DELETE", "GET"]
    assert router.allowed("/v1/nothing") == []


async def test_a_request_carries_its_route_for_those_who_record_it() -> None:
    seen: list[object] = []

    async def look(request: Request) -> Response:
        seen.append(request.scope["route"])
        return Response()

    async def send(_: object) -> None: ...

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    route = Route("GET", "/v1/{kind}/{name}", look)
    scope = {"type": "http", "method": "GET", "path": "/v1/agents/a", "query_string": b"", "headers": []}
    await PathRouter([route])(scope, receive, send)  # pyright: ignore[reportArgumentType]  # a plain ASGI exchange

    assert seen == [route]
    assert scope["path_params"] == {"kind": "agents", "name": "a"}
