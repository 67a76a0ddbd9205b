"""What a server does not do before it is ready."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from foliot.errors import UsageError
from foliot.server.http import start as starting
from foliot.server.http.routing import LateRoute

# Each costs tens of milliseconds, and a server that does nothing yet needs none of them.
HEAVY = (
    "aiohttp",
    "argon2",
    "asyncpg",
    "cel_expr_python",
    "jwt",
    "mcp",
    "openai",
    "opentelemetry.sdk",
    "prometheus_client",
    "pydantic.v1",
    "yaml",
)


def python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_few_servers_need_is_not_loaded_before_it_is_needed() -> None:
    loaded = python(
        "import sys; import foliot.cli.runtimes, foliot.server.http.serve, foliot.server.auth.authentication\n"
        "from fastapi import FastAPI; from foliot.server.app import include_routers\n"
        "from foliot.server.auth.guard import check_routes\n"
        "app = FastAPI(openapi_url=None); include_routers(app); check_routes(app)\n"
        "print(*sorted(sys.modules))"
    ).split()

    assert "foliot.server.routes.resources" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_fastapi_is_imported_with_models_that_are_built_when_they_are_used() -> None:
    said = python(
        "import gc; from foliot.server.http.start import begin, settle\n"
        "begin(); from fastapi.openapi.models import OpenAPI; from pydantic import BaseModel\n"
        "class Later(BaseModel): x: int\n"
        "print(OpenAPI.__pydantic_complete__, Later.__pydantic_complete__, gc.isenabled())\n"
        "settle(); print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
        "document = OpenAPI.model_validate({'openapi': '3.1.0', 'info': {'title': 'a', 'version': '1'}, 'paths': {}})\n"
        "print(document.info.title)"
    )

    assert said.split() == ["False", "True", "False", "True", "True", "a"]


def test_where_the_packages_of_a_server_are_missing_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "NEEDED", ("fastapi", "no_such_package_anywhere"))

    with pytest.raises(UsageError, match="no_such_package_anywhere") as error:
        starting.begin()

    assert error.value.hint == "pip install 'foliot[server]'"
    assert gc.isenabled()


async def answer(x: int) -> dict[str, int]:
    """What it is for."""
    return {"x": x}


def test_a_route_knows_its_path_and_methods_before_it_is_analysed() -> None:
    route = LateRoute("/a/{x}", answer, methods=["get"], tags=["t"])

    assert (route.path, route.methods, route.name) == ("/a/{x}", {"GET"}, "answer")
    assert "dependant" not in vars(route)


def test_a_late_route_is_in_the_end_what_it_would_have_been_at_once() -> None:
    late, soon = (each("/a/{x}", answer, methods=["GET"], tags=["t"]) for each in (LateRoute, APIRoute))

    assert late.description == "What it is for."

    different = {"app", "dependant", "response_field"}  # made anew for each route
    assert vars(late).keys() == vars(soon).keys()
    assert {name: value for name, value in vars(late).items() if name not in different} == {
        name: value for name, value in vars(soon).items() if name not in different
    }


def test_what_no_route_has_a_late_one_has_not() -> None:
    route = LateRoute("/a/{x}", answer)

    assert not hasattr(route, "colour")
    assert not hasattr(route, "colour")


def test_a_mistake_in_a_declaration_is_told_each_time() -> None:
    async def mistaken(x: FastAPI) -> None: ...

    route = LateRoute("/a/{x}", mistaken)

    for _ in range(2):
        with pytest.raises(Exception, match="FastAPI"):
            _ = route.dependant
