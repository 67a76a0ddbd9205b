from __future__ import annotations

from unittest.mock import patch

import httpx2 as httpx
from starlette.applications import Starlette

from foliot.errors import Unavailable
from foliot.runtime.runtime import Runtime


async def test_a_server_with_a_store_is_ready(http: httpx.AsyncClient) -> None:
    assert (await http.get("/livez")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).json() == {"status": "ok"}
    deep = (await http.get("/v1/health")).json()
    assert deep["status"] == "ok"
    assert deep["parts"]["workers"] == {"status": "none", "ready": 0, "known": 0}


async def test_without_its_store_it_lives_but_is_not_ready(http: httpx.AsyncClient, runtime: Runtime) -> None:
    with patch.object(runtime.inside.tasking.database, "read", side_effect=Unavailable("gone")):
        alive, ready, deep = [await http.get(path) for path in ("/livez", "/readyz", "/v1/health")]

    assert (alive.status_code, ready.status_code, deep.status_code) == (200, 503, 503)
    assert ready.headers["retry-after"]
    assert (await http.get("/readyz")).status_code == 200


async def test_a_server_that_stops_takes_no_more_requests(http: httpx.AsyncClient, app: Starlette) -> None:
    app.state.services.closing.set()

    assert (await http.get("/readyz")).status_code == 503


async def test_metrics_are_served_to_whoever_may_read_everywhere(app, runtime, http):
    async with app.router.lifespan_context(app):
        answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "foliot_queue" in answer.text


async def test_the_root_says_what_answers_here_and_every_place_it_names_exists(http: httpx.AsyncClient) -> None:
    root = (await http.get("/")).json()

    assert (root["name"], root["version"]) == ("Foliot", (await http.get("/v1/version")).json()["version"])
    for place in (root["openapi"], root["health"], f"{root['api']}/version"):
        assert (await http.get(place)).status_code == 200, place


async def test_the_default_configuration_of_an_agent_is_shown_before_it_is_declared(http: httpx.AsyncClient) -> None:
    shown = (await http.get("/v1/agents/defaults", params={"agent_key": " coder "})).json()
    assert (shown["runner"], shown["workspace_dir"]) == ("claude_code", "/workspace/agents/coder")
    assert (await http.get("/v1/agents/defaults")).json()["workspace_dir"] == "/workspace"
