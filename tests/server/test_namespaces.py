"""What somebody may not see does not exist for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.route_table import ROUTES
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Put


def endpoint(name: str, space: str) -> dict[str, object]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name, "namespace": space},
        "spec": {"provider": "mock"},
    }


@pytest.fixture
async def app(runtime: Runtime, settings: Settings) -> AsyncIterator[Starlette]:
    auth = TokenAuth(runtime.inside.tasking.database, local=True)
    await runtime.inside.resources.write([Put(endpoint(f"of-{space}", space)) for space in ("a", "b", "c")])
    yield create_app(runtime, settings=settings, auth=auth)
    await auth.close()


async def token(runtime: Runtime, *roles: str, spaces: tuple[str, ...]) -> dict[str, str]:
    tokens = SqlTokens(runtime.inside.tasking.database)
    _, text = await tokens.create(
        "-".join((*roles, *spaces)).replace("*", "all"), namespaces=spaces, roles=roles, now=0.0
    )
    return {"Authorization": f"Bearer {text}"}


PATH = "/v1/model-endpoints"


async def test_lists_show_only_what_the_caller_can_see(http: httpx.AsyncClient, runtime: Runtime) -> None:
    one = await token(runtime, "reader", spaces=("a",))
    two = await token(runtime, "reader", spaces=("a", "c"))

    async def names(headers: dict[str, str], **query: str) -> list[str]:
        answer = await http.get(PATH, headers=headers, params=query)
        assert answer.status_code == 200
        return [item["metadata"]["name"] for item in answer.json()["items"]]

    assert await names(one) == ["of-a"]
    assert await names(two) == ["of-a", "of-c"]
    assert await names(two, namespace="b") == []
    assert await names(two, namespace="nowhere") == []


async def test_hidden_and_missing_cannot_be_told_apart(http: httpx.AsyncClient, runtime: Runtime) -> None:
    mine = await token(runtime, "author", spaces=("a",))

    for method in ("GET", "PUT", "PATCH", "DELETE"):
        hidden = await http.request(method, f"{PATH}/of-b?namespace=b", headers=mine, json={})
        missing = await http.request(method, f"{PATH}/no-such?namespace=nowhere", headers=mine, json={})
        assert hidden.status_code == missing.status_code == 404
        assert hidden.json() == missing.json()
    posted = await http.post(PATH, headers=mine, json=endpoint("new", "b"))
    assert posted.status_code == 404


async def test_a_reader_may_read_and_nothing_else(http: httpx.AsyncClient, runtime: Runtime) -> None:
    mine = await token(runtime, "reader", spaces=("a",))

    assert (await http.get(f"{PATH}/of-a?namespace=a", headers=mine)).status_code == 200
    for method, path in (("POST", PATH), ("PUT", f"{PATH}/of-a"), ("DELETE", f"{PATH}/of-a")):
        answer = await http.request(method, f"{path}?namespace=a", headers=mine, json=endpoint("of-a", "a"))
        assert (answer.status_code, answer.json()["code"]) == (403, "denied")


async def test_only_the_operator_of_the_installation_declares_what_starts_programs(
    http: httpx.AsyncClient, runtime: Runtime
) -> None:
    author = await token(runtime, "author", spaces=("a",))
    admin = await token(runtime, "admin", spaces=("a",))
    server = {"metadata": {"name": "m", "namespace": "a"}, "spec": {"transport": "stdio", "command": "x"}}

    assert (await http.post("/v1/mcp-servers", headers=author, json=server)).status_code == 403
    assert (await http.post("/v1/mcp-servers", headers=admin, json=server)).status_code == 403  # not granted
    root = await token(runtime, "admin", spaces=("*",))
    assert (await http.post("/v1/mcp-servers", headers=root, json=server)).status_code == 201
    bundle = {"kind": "McpServer", **server}
    assert (await http.post("/v1/apply", headers=author, json=bundle)).status_code == 403


async def test_every_route_refuses_somebody_without_a_token(
    http: httpx.AsyncClient, app: Starlette, runtime: Runtime
) -> None:
    await token(runtime, "reader", spaces=("a",))

    for (method, path), row in ROUTES.items():
        if row.rule.where == "public":
            continue
        concrete = path.replace("{kind}", "agents").replace("{", "").replace("}", "")
        answer = await http.request(method, concrete)
        assert answer.status_code == 401, (method, path)


ORDERS: dict[str, dict[str, object]] = {
    "/v1/sessions": {"agent": "x"},
    "/v1/sessions/resolve": {"agent": "x"},
    "/v1/sessions/rotate": {"agent": "x"},
    "/v1/sessions/invalidate": {},
    "/v1/runs": {"agent": "x", "input": "hello", "run_id": "r"},
    "/v1/tasks/submit": {"target_kind": "agent", "target": "x", "message": "hello"},
}


@pytest.mark.parametrize("path", ORDERS)
async def test_a_namespace_in_the_body_alone_is_the_one_that_is_meant(
    path: str, http: httpx.AsyncClient, runtime: Runtime
) -> None:
    order, mine = ORDERS[path], await token(runtime, "operator", spaces=("a",))
    author = await token(runtime, "author", spaces=("a",))
    agent = {"metadata": {"name": "x", "namespace": "a"}, "spec": {"model_ref": "of-a"}}
    assert (await http.post("/v1/agents", headers=author, json=agent)).status_code == 201

    done = await http.post(path, headers=mine, json={**order, "namespace": "a"})
    twice = await http.post(f"{path}?namespace=a", headers=mine, json={**order, "namespace": "a"})

    assert done.status_code < 300, done.text
    assert twice.status_code < 300, twice.text
    for body in ({}, {"namespace": "b"}, {"namespace": "nowhere"}):
        hidden = await http.post(path, headers=mine, json={**order, **body})
        assert hidden.status_code == 404, (body, hidden.text)
        assert hidden.json()["detail"] == "there is nothing of this name that you can see"
    for query, said in (("a", "b"), ("b", "a"), ("a", "nowhere")):
        two = await http.post(f"{path}?namespace={query}", headers=mine, json={**order, "namespace": said})
        assert (two.status_code, two.json()["code"]) == (400, "usage"), two.text
        assert "say it once" in two.json()["hint"]
    reader = await token(runtime, "reader", spaces=("a",))
    assert (await http.post(path, headers=reader, json={**order, "namespace": "a"})).status_code == 403


@pytest.mark.parametrize("said", ["a/b", " a", "a b", 7, ["a"], "x" * 300, 0, False, [], {}, 0.0])
async def test_what_cannot_be_a_namespace_is_none_in_a_body(
    said: object, http: httpx.AsyncClient, runtime: Runtime
) -> None:
    everywhere = await token(runtime, "admin", spaces=("*",))
    answer = await http.post("/v1/sessions", headers=everywhere, json={"agent": "x", "namespace": said})
    assert (answer.status_code, answer.json()["code"]) == (400, "usage"), answer.text
