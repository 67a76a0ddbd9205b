"""A folder is its user's: what others of the same namespace, and other tenants, can find out and do."""

from __future__ import annotations

import json
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
from foliot.store.folders import FolderKey, SqlFolders

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
WRITES = {
    "provider": "scripted",
    "script": {"turns": [{"call": {"write": {"path": "data/secret", "content": CANARY}}}, {"say": "done"}]},
}
HERS = {"namespace": "team-a", "user": "ann"}


class Desk:
    """A server whose team-a has an agent that has kept something for Ann, and clients of every caller."""

    def __init__(self, runtime: Runtime, clients: dict[str, httpx.AsyncClient]) -> None:
        self.runtime = runtime
        self.clients = clients
        self.stored = SqlFolders(runtime.inside.database)

    def __getitem__(self, name: str) -> httpx.AsyncClient:
        return self.clients[name]

    async def hers(self) -> str:
        folder = await self.stored.find(FolderKey("team-a", "x", "ann"))
        return "" if folder is None else folder.tree


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
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
            for path, spec in (("model-endpoints", WRITES), ("agents", {"model_ref": "x", "tools": ["write"]})):
                body = {"metadata": {"name": "x", "namespace": space}, "spec": spec}
                assert (await made["root"].post(f"/v1/{path}", json=body)).status_code == 201
        await runtime.run("x", "go", namespace="team-a", user="ann", run_id="ann-1")
        await runtime.run("x", "go", namespace="team-a", run_id="nobody-1")
        yield Desk(runtime, made)
        for client in made.values():
            await client.aclose()
        await auth.close()


def said(answer: httpx.Response) -> str:
    """What an answer says, without the id of its request."""
    return json.dumps({name: value for name, value in answer.json().items() if "request" not in name})


async def test_a_user_lists_reads_and_deletes_what_is_kept_about_them(desk: Desk) -> None:
    space = {"namespace": "team-a"}
    listed = (await desk["ann"].get("/v1/folders", params=space)).json()["items"]
    assert [(each["agent"], each["user"], each["files"]) for each in listed] == [("x", "ann", 1)]
    folder = (await desk["ann"].get("/v1/folders/x", params=space)).json()
    data = await desk["ann"].get(f"/v1/folders/x/content/{folder['tree']}", params=space)
    assert data.status_code == 200
    gone = await desk["ann"].post("/v1/folders/x/delete", params=space, json={"namespace": "team-a"})
    assert gone.status_code == 204
    assert await desk.hers() == ""
    assert (await desk["ann"].get("/v1/folders/x", params=space)).status_code == 404
    again = await desk["ann"].post("/v1/folders/x/delete", params=space, json={"namespace": "team-a"})
    assert again.status_code == 404
    records = (await desk["ada"].get("/v1/audit", params=space)).text
    assert "folder_deleted" in records


@pytest.mark.parametrize("who", ["rob", "bob", "ima", "mallory"])
async def test_for_others_it_does_not_exist(desk: Desk, who: str) -> None:
    tree = await desk.hers()
    hidden = await desk[who].get("/v1/folders/x", params=HERS)
    missing = await desk[who].get("/v1/folders/x", params={**HERS, "user": "zoe"})
    assert hidden.status_code == missing.status_code == 404
    assert said(hidden) == said(missing).replace("zoe", "ann")
    for name in ("ann", who):  # a digest that somebody has heard of opens no folder of others
        found = await desk[who].get(f"/v1/folders/x/content/{tree}", params={**HERS, "user": name})
        assert found.status_code == 404
    listed = await desk[who].get("/v1/folders", params=HERS)
    assert listed.status_code == 404 or listed.json()["items"] == []
    everybody = await desk[who].get("/v1/folders", params={"namespace": "team-a"})
    assert everybody.status_code == 404 or everybody.json()["items"] == []
    system = await desk[who].get("/v1/folders/x", params={"namespace": "team-a", "system": True})
    assert system.status_code == 404
    for body in (HERS, {"namespace": "team-a", "system": True}):
        deleted = await desk[who].post("/v1/folders/x/delete", params={"namespace": "team-a"}, json=body)
        assert deleted.status_code == 404
    assert await desk.hers() == tree


@pytest.mark.parametrize("who", ["ada", "root"])
async def test_an_admin_reads_and_deletes_those_of_all(desk: Desk, who: str) -> None:
    space = {"namespace": "team-a"}
    listed = (await desk[who].get("/v1/folders", params={**space, "limit": 1})).json()
    more = (await desk[who].get("/v1/folders", params={**space, "continue": listed["continue"]})).json()
    assert [each["user"] for each in (*listed["items"], *more["items"])] == ["", "ann"]
    assert "continue" not in more
    assert (await desk[who].get("/v1/folders/x", params=HERS)).status_code == 200
    for body in (HERS, {**space, "system": True}):
        assert (await desk[who].post("/v1/folders/x/delete", params=space, json=body)).status_code == 204
    assert (await desk[who].get("/v1/folders", params=space)).json()["items"] == []


@pytest.mark.parametrize(("who", "status"), [("rob", 403), ("mallory", 404), ("ann", 200), ("bob", 200)])
async def test_the_files_of_a_run_are_for_its_user_and_for_operators(desk: Desk, who: str, status: int) -> None:
    """A run refers to all that it began with: whoever reads it may not read the folder through it."""
    later = await desk.runtime.run("x", "go", namespace="team-a", user="ann")
    found = await desk[who].get(f"/v1/runs/{later.run_id}/content/{await desk.hers()}")
    assert found.status_code == status
    assert (await desk["rob"].get("/v1/runs/nobody-1")).status_code == 200


@pytest.mark.parametrize("user", ["../ann", "ann/..", "%2e%2e/ann", "\u0430nn", "ANN", "ann ", "\0ann", "a" * 254])
async def test_a_name_that_looks_like_another_opens_nothing(desk: Desk, user: str) -> None:
    found = await desk["ada"].get("/v1/folders/x", params={**HERS, "user": user})
    assert found.status_code in (400, 404, 422)
    body = {"namespace": "team-a", "user": user}
    gone = await desk["ada"].post("/v1/folders/x/delete", params={"namespace": "team-a"}, json=body)
    assert gone.status_code in (400, 404, 422)
    assert await desk.hers()
