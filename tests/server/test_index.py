from __future__ import annotations

from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import Match

from foliot.server.app import include_routers
from foliot.server.http.index import RouteIndex

app = FastAPI(openapi_url=None)  # without routes that are not ours
include_routers(app)
index = RouteIndex(app)

WORDS = sorted({word for route in app.routes for word in getattr(route, "path", "").split("/") if word})
word = st.sampled_from([*WORDS, "", "x", "agents", "%2e", "watch"])


@settings(deadline=None)
@given(st.lists(word, min_size=0, max_size=6), st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]))
def test_the_index_finds_what_the_router_would_have_found(words: list[str], method: str) -> None:
    path = "/" + "/".join(words)
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    first = next((route for route in app.routes if route.matches(dict(scope))[0] is Match.FULL), None)

    found = index.find(scope)

    assert found is None or found[0] is first


def test_most_requests_are_found_without_a_search() -> None:
    scope = {"type": "http", "method": "GET", "path": "/v1/agents/a", "root_path": "", "headers": []}

    assert index.find(scope) is not None
