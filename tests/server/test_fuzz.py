"""Whatever is sent to whichever route: an answer with a code, never a mistake of the server."""

from __future__ import annotations

import asyncio
import json
import tempfile
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app, described
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import load_settings

OPERATIONS = [
    (method, path, operation)
    for path, item in described()["paths"].items()
    for method, operation in item.items()
    # Streams do not end, and the protocols in front of runs have tests of their own.
    if not path.endswith(("/watch", "/events")) and not path.startswith(("/mcp", "/v1/chat", "/v1/responses"))
]
WORD = st.one_of(
    st.sampled_from(["agents", "secrets", "tasks", "default", "x", "..", "%00", "a/b", "status", "-", "é"]),
    st.text(max_size=20),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
MANIFEST = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": WORD}) | JSON, "spec": JSON},
    optional={"kind": WORD, "apiVersion": WORD, "status": JSON},
)
BODY = st.one_of(
    st.none(),
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    MANIFEST.map(lambda value: json.dumps(value).encode()),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, str], dict[str, str], bytes | None]:
    method, path, operation = draw(st.sampled_from(OPERATIONS))
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    for parameter in operation.get("parameters", ()):
        value = draw(WORD)
        if parameter["in"] == "path":
            choice = parameter["schema"].get("enum")
            word = draw(st.sampled_from(choice)) if choice and draw(st.booleans()) else value
            path = path.replace("{" + parameter["name"] + "}", quote(word or "x", safe=""))
        elif parameter["in"] == "query" and draw(st.booleans()):
            query[parameter["name"]] = draw(st.integers(-2, 3).map(str) | st.just(value))
        elif parameter["in"] == "header" and draw(st.booleans()):
            headers[parameter["name"]] = value.encode("ascii", "ignore").decode().strip()
    headers = {name: value for name, value in headers.items() if value.isprintable()}
    return method.upper(), path, query, headers, draw(BODY)


async def _send(many: list[tuple[str, str, dict[str, str], dict[str, str], bytes | None]]) -> list[Any]:
    with tempfile.TemporaryDirectory() as home:
        told = load_settings({"home": home}, {})
        async with Runtime(settings=told) as runtime:
            app = create_app(runtime, settings=told, auth=Anonymous())
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return [
                    (method, path, await http.request(method, path, params=query, headers=headers, content=body))
                    for method, path, query, headers, body in many
                ]


@settings(
    max_examples=8,
    deadline=None,
    # Without making a failure smaller: each example opens a store, and the request that failed is shown as it is.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(requests(), min_size=5, max_size=25))
def test_no_request_makes_the_server_make_a_mistake(
    many: list[tuple[str, str, dict[str, str], dict[str, str], bytes | None]],
) -> None:
    for method, path, answer in asyncio.run(_send(many)):
        assert answer.status_code < 500, (method, path, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] in ("application/problem+json", "application/json"), answer.text
