"""A session is its user's: what others of the same namespace, and other tenants, can find out and do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens

CANARY = "the code is 4711"
CALLERS = {
    "ann": ("team-a", ("operator",)),
    "rob": ("team-a", ("reader",)),
    "bob": ("team-a", ("operator",)),
    "ima": ("team-a", ("operator", "impersonator")),
    "ada": ("team-a", ("admin",)),
    "mallory": ("team-b", ("admin", "impersonator")),
    "root": ("*", ("admin",)),
}
READS = ("", "/history", "/inputs", "/stream?input=1")
ACTS = {
    "/say": {"message": "pay all"},
    "/change": {"title": "mine"},
    "/archive": {},
    "/resume": {},
    "/regenerate": {},
    "/select-branch": {"turn": 1},
    "/compact": {},
    "/stop": {},
    "/delete": {},
}


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Clients of every caller, on a server whose team-a has an agent, and where Ann has a session."""
    settings = load_settings({"home": str(tmp_path)}, {})
    async with Runtime(settings=settings) as runtime:
        database = runtime.inside.tasking.database
        auth = TokenAuth(database, local=True, settings=settings)
        app, tokens = create_app(runtime, settings=settings, auth=auth), SqlTokens(database)
        made: dict[str, httpx.AsyncClient] = {}
        for name, (space, roles) in CALLERS.items():
            token = (await tokens.create(name, namespaces=(space,), roles=roles, now=time.time()))[1]
            made[name] = httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://test",
                headers={"Authorization": f"Bearer {token}"},
                timeout=60,
            )
        for space in ("team-a", "team-b"):
            for path, spec in (
                ("model-endpoints", {"provider": "scripted", "script": {"turns": [], "otherwise": "{first_input}"}}),
                ("agents", {"model_ref": "x"}),
            ):
                body = {"metadata": {"name": "x", "namespace": space}, "spec": spec}
                assert (await made["root"].post(f"/v1/{path}", json=body)).status_code == 201
        order = {"agent": "x", "id": "hers", "title": CANARY}
        created = await made["ann"].post("/v1/sessions", params={"namespace": "team-a"}, json=order)
        assert created.status_code == 201, created.text
        assert (await made["ann"].post("/v1/sessions/hers/say", json={"message": CANARY})).status_code == 202
        yield made
        for client in made.values():
            await client.aclose()
        await auth.close()


@pytest.mark.parametrize("who", ["rob", "mallory"])
async def test_whoever_may_not_see_a_session_is_told_that_there_is_none(callers, who: str) -> None:
    for path in READS:
        hidden, missing = [(await callers[who].get(f"/v1/sessions/{id}{path}")) for id in ("hers", "none")]
        assert hidden.status_code == missing.status_code == 404
        assert hidden.json()["detail"].replace("hers", "none") == missing.json()["detail"]
    for path, body in ACTS.items():
        hidden, missing = [(await callers[who].post(f"/v1/sessions/{id}{path}", json=body)) for id in ("hers", "none")]
        assert hidden.status_code == missing.status_code in (403, 404)
        assert CANARY not in hidden.text


@pytest.mark.parametrize("who", ["rob", "bob", "mallory"])
@pytest.mark.parametrize("path", ACTS)
async def test_nobody_else_acts_in_a_session(callers, who: str, path: str) -> None:
    refused = await callers[who].post(f"/v1/sessions/hers{path}", json=ACTS[path])

    assert refused.status_code in (403, 404), refused.text
    session = (await callers["ann"].get("/v1/sessions/hers")).json()
    assert (session["title"], session["archived_at"]) == (CANARY, None)
    assert len((await callers["ann"].get("/v1/sessions/hers/inputs")).json()["items"]) == 1


async def test_an_operator_reads_and_an_admin_puts_away(callers) -> None:
    for path in READS:
        assert (await callers["bob"].get(f"/v1/sessions/hers{path}")).status_code == 200
    assert (await callers["ada"].post("/v1/sessions/hers/say", json={"message": "hi"})).status_code == 403
    assert (await callers["ada"].post("/v1/sessions/hers/archive")).status_code == 200


async def test_whoever_speaks_for_others_is_named_with_what_they_said(callers) -> None:
    assert (await callers["ima"].post("/v1/sessions/hers/say", json={"message": "hi"})).status_code == 202
    heard = (await callers["ann"].get("/v1/sessions/hers/inputs")).json()["items"]
    assert [each["by"] for each in heard] == ["", "ima"]


async def test_lists_and_searches_show_ones_own(callers) -> None:
    for who, count in (("ann", 1), ("bob", 1), ("rob", 0)):
        found = (await callers[who].get("/v1/sessions", params={"namespace": "team-a"})).json()["items"]
        assert len(found) == count, who
    for user in ("ann", "rob"):
        asked = {"namespace": "team-a", "user": user}
        assert (await callers["rob"].get("/v1/sessions", params=asked)).json()["items"] == []
    for who in ("rob", "mallory"):
        asked = {"namespace": "team-a", "agent": "x", "user": "ann"}
        found = await callers[who].get("/v1/active-session", params=asked)
        assert CANARY not in found.text
    hidden = await callers["mallory"].get("/v1/sessions", params={"namespace": "team-a"})
    assert hidden.status_code == 404


@pytest.mark.parametrize("path", ["", "/resolve", "/rotate"])
@pytest.mark.parametrize("who", ["bob", "mallory"])
async def test_nobody_opens_a_session_in_the_name_of_another(callers, who: str, path: str) -> None:
    for space in ("team-a", "team-b"):
        order = {"agent": "x", "user": "ann"}
        answer = await callers[who].post(f"/v1/sessions{path}", params={"namespace": space}, json=order)
        if (who, space) != ("mallory", "team-b"):  # in her own namespace she may act for whom she likes
            assert answer.status_code in (403, 404), answer.text
        assert "hers" not in answer.text
    assert (await callers["ann"].get("/v1/sessions/hers")).json()["archived_at"] is None


async def test_the_namespace_of_the_body_is_that_of_the_request(callers) -> None:
    order = {"agent": "x", "namespace": "team-a"}
    answer = await callers["mallory"].post("/v1/sessions", params={"namespace": "team-b"}, json=order)
    assert answer.status_code == 400, answer.text
    twice = await callers["mallory"].get("/v1/sessions?namespace=team-b&namespace=team-a")
    assert twice.status_code == 400


async def test_an_id_of_another_tenant_is_taken_and_nothing_is_told_of_it(callers) -> None:
    order = {"agent": "x", "id": "hers"}
    answer = await callers["mallory"].post("/v1/sessions", params={"namespace": "team-b"}, json=order)
    assert answer.status_code == 409
    assert "team-a" not in answer.text
    assert CANARY not in answer.text


async def test_a_session_with_an_agent_of_another_namespace_is_not_begun(callers) -> None:
    order = {"agent": "team-a/x"}
    answer = await callers["mallory"].post("/v1/sessions", params={"namespace": "team-b"}, json=order)
    assert answer.status_code in (403, 404, 422), answer.text
