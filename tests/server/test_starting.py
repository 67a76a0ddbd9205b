"""What a server does not do before it is ready."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from foliot.errors import UsageError
from foliot.server.http import start as starting

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
        "from foliot.server.app import load_routes; from foliot.server.auth.guard import check_routes\n"
        "check_routes(load_routes())\n"
        "print(*sorted(sys.modules))"
    ).split()

    assert "foliot.server.routes.resources" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_garbage_is_not_looked_for_while_a_server_starts() -> None:
    said = python(
        "import gc; from foliot.server.http.start import begin, settle\n"
        "begin(); print(gc.isenabled()); settle(); print(gc.isenabled(), gc.get_freeze_count() > 1_000)"
    )

    assert said.split() == ["False", "True", "True"]


def test_where_the_packages_of_a_server_are_missing_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "NEEDED", ("starlette", "no_such_package_anywhere"))

    with pytest.raises(UsageError, match="no_such_package_anywhere") as error:
        starting.begin()

    assert error.value.hint == "pip install 'foliot-runtime[server]'"
    assert gc.isenabled()


def test_handlers_are_analysed_when_they_are_first_called() -> None:
    """With more than a hundred routes that is a good part of the time until a server is ready."""
    said = python(
        "from foliot.server.app import load_routes; from foliot.server.auth.guard import check_routes\n"
        "routes = load_routes(); check_routes(routes); print(sum('signature' in vars(route) for route in routes))"
    )

    assert said.split() == ["0"]


def test_without_fastapi_the_server_answers() -> None:
    """It was used once; the packages of a server are those that pyproject.toml names."""
    said = python(
        "import sys; sys.modules['fastapi'] = None\n"
        "import asyncio, tempfile, httpx2 as httpx\n"
        "from foliot.runtime.runtime import Runtime; from foliot.server.app import create_app\n"
        "from foliot.server.auth.authentication import Anonymous; from foliot.settings.settings import load_settings\n"
        "async def main(home):\n"
        "    settings = load_settings({'home': home}, {})\n"
        "    async with Runtime(settings=settings) as runtime:\n"
        "        app = create_app(runtime, settings=settings, auth=Anonymous())\n"
        "        transport = httpx.ASGITransport(app)\n"
        "        async with httpx.AsyncClient(transport=transport, base_url='http://localhost') as http:\n"
        "            for path in ('/v1/agents', '/openapi.json', '/v1/audit?limit=x'):\n"
        "                print((await http.get(path)).status_code)\n"
        "with tempfile.TemporaryDirectory() as home: asyncio.run(main(home))\n"
    )

    assert said.split() == ["200", "200", "400"]


@pytest.fixture
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


def test_a_server_looks_for_garbage_often_once_it_has_started(collector: None) -> None:
    starting.begin()
    assert not gc.isenabled()
    starting.settle()
    assert gc.isenabled()
    young, middle, old = gc.get_threshold()
    assert young * middle * old <= 1_000_000, "what is in cycles stays in memory until then"
