"""The short way and the long way lead to the same place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import httpx2 as httpx
import pytest
from fastapi import APIRouter, Body, Cookie, Depends, FastAPI, Header, Path, Query
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from foliot.server.app import include_routers
from foliot.server.http.routing import LateRoute, shortcut


async def part(request: Request) -> str:
    return request.url.path


async def echo(
    kind: Annotated[str, Path(max_length=5)],
    request: Request,
    part: Annotated[str, Depends(part)],
    wanted: str,
    limit: Annotated[int, AfterValidator(lambda limit: min(limit, 9)), Query(ge=0)] = 3,
    kind_of: Annotated[Literal["a", "b"] | None, Query(alias="kindOf")] = None,
    flag: bool = False,
    if_match: Annotated[str | None, Header(max_length=4)] = None,
    x_count: Annotated[int, Header()] = 0,
) -> Response:
    return JSONResponse([kind, request.method, part, wanted, limit, kind_of, flag, if_match, x_count])


def served(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=route_class)
    router.get("/{kind}/x")(echo)
    app = FastAPI(openapi_url=None)
    app.router.routes.extend(router.routes)
    return app


SHORT, LONG = served(LateRoute), served(APIRoute)


async def ask(app: FastAPI, path: str, query: list[tuple[str, str]], headers: list[tuple[str, str]]) -> tuple[int, Any]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get(path, params=query, headers=headers)
    return answer.status_code, answer.json()


value = st.sampled_from(["", "0", "7", "12", "-1", "a", "b", "true", "no", "é", "1.5", "longer", "a b&c"])
query = st.lists(
    st.tuples(st.sampled_from(["wanted", "limit", "kindOf", "flag", "kind_of", "other"]), value),
    max_size=5,
    unique_by=lambda pair: pair[0],  # a parameter that is given twice is refused before it comes to a route
)
headers = st.lists(
    st.tuples(
        st.sampled_from(["if-match", "If-Match", "x-count", "if_match"]), st.sampled_from(["1", "*", '"12"', "-"])
    ),
    max_size=3,
)


@settings(deadline=None)
@given(st.sampled_from(["agent", "toolong", "é"]), query, headers)
async def test_both_ways_answer_alike(kind: str, query: list[tuple[str, str]], headers: list[tuple[str, str]]) -> None:
    path = f"/{kind}/x"

    assert await ask(SHORT, path, query, headers) == await ask(LONG, path, query, headers)


async def test_only_an_unusual_request_goes_the_long_way() -> None:
    async def long_way(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse("long")(scope, receive, send)

    route = APIRoute("/{kind}/x", echo)
    route.app = long_way
    route.app = shortcut(route) or long_way
    app = FastAPI(openapi_url=None)
    app.router.routes[:] = [route]

    assert (await ask(app, "/agent/x", [("wanted", "yes")], []))[1][3] == "yes"
    assert (await ask(app, "/agent/x", [], []))[1] == "long"
    assert (await ask(app, "/agent/x", [("wanted", "yes"), ("limit", "many")], []))[1] == "long"


async def plain() -> dict[str, str]:
    return {}


def blocking() -> Response:
    return Response()


async def with_body(body: Annotated[dict[str, str], Body()]) -> Response:
    return Response(str(body))


async def with_list(x: Annotated[list[str], Query()]) -> Response:
    return Response(str(x))


async def with_cookie(x: Annotated[str, Cookie()]) -> Response:
    return Response(x)


async def closing(x: Annotated[str, Depends(blocking)]) -> Response:
    return Response(x)


@pytest.mark.parametrize("endpoint", [plain, blocking, with_body, with_list, with_cookie, closing])
def test_an_endpoint_that_wants_more_goes_the_long_way(endpoint: Callable[..., Awaitable[Response]]) -> None:
    assert shortcut(APIRoute("/", endpoint)) is None


def test_nearly_every_route_of_the_server_has_a_short_way() -> None:
    app = FastAPI(openapi_url=None)
    include_routers(app)
    ways = {
        (route.path, *route.methods): "shortcut" in getattr(route.app, "__qualname__", "")
        for route in app.routes
        if isinstance(route, LateRoute)
    }

    assert ways["/v1/{kind}/{name}", "GET"]
    assert ways["/v1/{kind}", "GET"]
    assert ways["/v1/tasks", "POST"]
    assert sum(ways.values()) > 0.8 * len(ways)
