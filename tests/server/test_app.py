from __future__ import annotations

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response

from foliot.errors import FoliotError
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app, load_routes
from foliot.server.auth.authentication import Anonymous
from foliot.server.auth.guard import GuardedRoute, check_routes, new_router
from foliot.server.http.envelope import RequestLimits
from foliot.server.http.routing import Route
from foliot.server.route_table import ROUTES
from foliot.settings.settings import Settings


async def answer() -> Response:
    return Response()


def test_each_route_has_a_row_in_the_table_and_each_row_a_route() -> None:
    routes = load_routes()

    assert {(route.method, route.path) for route in routes} == set(ROUTES)
    assert all(isinstance(route, GuardedRoute) for route in routes)


def test_a_handler_without_a_row_cannot_be_registered() -> None:
    router = new_router()

    with pytest.raises(FoliotError, match="GET /v1/forgotten has no row"):
        router.get("/v1/forgotten")(answer)


def test_a_row_without_a_handler_keeps_the_application_from_starting() -> None:
    routes = [route for route in load_routes() if route.path != "/v1/version"]

    with pytest.raises(FoliotError, match="GET /v1/version has a row and no handler"):
        check_routes(routes)


def test_a_route_without_a_guard_keeps_the_application_from_starting() -> None:
    with pytest.raises(FoliotError, match="is not guarded"):
        check_routes([*load_routes(), Route("GET", "/healthz", answer)])


def test_two_handlers_for_one_path_keep_the_application_from_starting() -> None:
    router = new_router()
    router.get("/healthz")(answer)

    with pytest.raises(FoliotError, match="GET /healthz has two handlers"):
        check_routes([*load_routes(), *router])


async def test_an_unknown_path_is_a_problem_with_a_code(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v2/nothing")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "not_found"


async def test_a_wrong_method_is_a_problem_that_names_the_right_one(http: httpx.AsyncClient) -> None:
    answer = await http.delete("/healthz")

    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


async def test_answers_carry_the_id_of_the_request_and_careful_headers(http: httpx.AsyncClient) -> None:
    given = await http.get("/healthz", headers={"X-Request-ID": "abc-1"})
    made = await http.get("/healthz", headers={"X-Request-ID": "a b<script>"})

    assert given.headers["x-request-id"] == "abc-1"
    assert len(made.headers["x-request-id"]) == 16
    assert given.headers["x-content-type-options"] == "nosniff"
    assert given.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in given.headers


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [({"X-Long": "a" * 40_000}, "/healthz", 431), ({}, "/healthz?" + "a" * 5000, 413)],
)
async def test_headers_and_addresses_have_limits(
    http: httpx.AsyncClient, headers: dict[str, str], path: str, status: int
) -> None:
    answer = await http.get(path, headers=headers)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_body_that_is_announced_too_large_is_not_read(runtime: Runtime, settings: Settings) -> None:
    app = create_app(runtime, settings=settings, auth=Anonymous(), limits=RequestLimits(body=10))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        answer = await http.request("GET", "/healthz", content=b"12345678901")

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_strangers_get_nothing_but_health(app: Starlette) -> None:
    transport = httpx.ASGITransport(app, client=("203.0.113.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        answer = await http.get("/v1/auth/me")

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
