"""Nobody reaches, or hears of, what is in a namespace that is not theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.identity import Caller, granted
from foliot.server.errors import Unauthenticated
from foliot.settings.settings import Settings

MANIFEST = """\
kind: ModelEndpoint
metadata: {name: talker, namespace: team-a}
spec: {provider: scripted, default_model: scripted, script: echo}
---
kind: Agent
metadata: {name: private, namespace: team-a}
spec: {model_ref: talker}
"""


CALLERS = {
    b"ann": Caller("ann", "token", granted(["team-a"], ["operator"])),
    b"art": Caller("art", "token", granted(["team-a"], ["operator"])),
    b"bob": Caller("bob", "token", granted(["default"], ["operator"])),
    b"rae": Caller("rae", "token", granted(["team-a"], ["reader"])),
}


class Known:
    """Everybody is who the header says."""

    async def identify(self, scope: Any) -> Caller:
        name = dict(scope["headers"]).get(b"x-name", b"")
        if name not in CALLERS:
            raise Unauthenticated("who are you?")
        return CALLERS[name]

    async def describe(self) -> str:
        return "by name"


@pytest.fixture
async def http(runtime: Runtime, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    from foliot.catalog.apply import apply_documents
    from foliot.resources.reader import parse_text

    bundle = parse_text(MANIFEST, "a.yaml")
    await apply_documents(runtime.inside.resources, [item.document for item in bundle.items])
    app = create_app(runtime, settings=settings, auth=Known())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]}


async def test_models_are_those_of_ones_own_namespaces(http: httpx.AsyncClient) -> None:
    hers = (await http.get("/v1/models", headers={"X-Name": "ann"})).json()["data"]
    his = (await http.get("/v1/models", headers={"X-Name": "bob"})).json()["data"]

    assert [model["id"] for model in hers] == ["team-a/private"]
    assert "echo" in {model["id"] for model in his}
    assert not any("private" in model["id"] for model in his)


@pytest.mark.parametrize("where", ["team-a/private", "team-a/nothing", "nowhere/private"])
async def test_a_hidden_agent_is_as_missing_as_one_that_is_not_there(http: httpx.AsyncClient, where: str) -> None:
    answers = [
        await http.post("/v1/chat/completions", json=chat(where), headers={"X-Name": "bob"}),
        await http.post("/v1/responses", json={"model": where, "input": "x"}, headers={"X-Name": "bob"}),
        await http.get(f"/v1/models/{where}", headers={"X-Name": "bob"}),
    ]

    for answer in answers:
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["message"].startswith(f"the model {where!r} does not exist")


async def test_a_hidden_response_cannot_be_read_gone_on_from_cancelled_or_deleted(http: httpx.AsyncClient) -> None:
    said = await http.post("/v1/responses", json={"model": "team-a/private", "input": "x"}, headers={"X-Name": "ann"})
    id = said.json()["id"]
    his = {"X-Name": "bob"}
    order = {"model": "echo", "input": "x", "previous_response_id": id}

    assert (await http.get(f"/v1/responses/{id}", headers={"X-Name": "ann"})).status_code == 200
    assert (await http.get(f"/v1/responses/{id}", headers=his)).status_code == 404
    assert (await http.get(f"/v1/responses/{id}?stream=true", headers=his)).status_code == 404
    assert (await http.get(f"/v1/responses/{id}/input_items", headers=his)).status_code == 404
    assert (await http.delete(f"/v1/responses/{id}", headers=his)).status_code == 404
    assert (await http.post(f"/v1/responses/{id}/cancel", headers=his)).status_code == 404
    assert (await http.post("/v1/responses", json=order, headers=his)).status_code == 404


async def test_the_namespace_of_the_address_is_where_a_short_name_is_looked_for(http: httpx.AsyncClient) -> None:
    hers = {"X-Name": "ann"}
    here = await http.post("/v1/chat/completions?namespace=team-a", json=chat("private"), headers=hers)

    assert here.json()["choices"][0]["message"]["content"] == "hello"
    assert (await http.post("/v1/chat/completions", json=chat("private"), headers=hers)).status_code == 404


async def test_who_only_reads_has_nothing_done(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=chat("team-a/private"), headers={"X-Name": "rae"})

    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"


async def test_strangers_are_told_so_in_the_shape_that_clients_read(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=chat("echo"))

    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_budgets_go_by_the_holder_of_the_token_whatever_the_request_says(
    http: httpx.AsyncClient, runtime: Runtime
) -> None:

    body = {**chat("team-a/private"), "user": "somebody-else"}
    answer = await http.post("/v1/chat/completions", json=body, headers={"X-Name": "ann"})
    info, state = await runtime.inside.runs.load(answer.headers["x-foliot-run"])

    assert state.identity.user == "ann"
    assert info.labels["openai.com/user"] == "somebody-else"


async def test_the_same_key_of_two_callers_is_two_requests(http: httpx.AsyncClient, runtime: Runtime) -> None:
    ids = [
        (
            await http.post(
                "/v1/chat/completions",
                json=chat("team-a/private"),
                headers={"X-Name": name, "Idempotency-Key": "k"},
            )
        ).json()["id"]
        for name in ("ann", "art")
    ]

    assert ids[0] != ids[1]
