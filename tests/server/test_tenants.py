"""A tenant calls every route of the table about what another one has: nothing is told, and nothing is changed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.server.route_table import ROUTES
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Filter
from foliot.store.queue.placement import Offer
from tests.server.contract_kit import MANIFESTS, pay

# In every document and every text of the other tenant, and in nothing that the caller sends.
MARK = "sesame-of-theirs"
THEIRS, MINE, NOWHERE = "ns-of-theirs", "ns-of-mine", "ns-of-nobody"
WITHIN = 60.0


@dataclass
class Place:
    """A server; what the other tenant has in it; and the caller, who may do everything in a namespace of his own."""

    runtime: Runtime
    url: str
    mine: dict[str, str]
    admin: dict[str, str]
    names: dict[str, str] = field(default_factory=dict[str, str])

    async def theirs(self) -> str:
        """All that the other tenant has, as text; without what the server itself notes in their status."""
        page = await self.runtime.inside.resources.list(Filter(None, THEIRS), limit=1000)
        runs = await self.runtime.inside.runs.journal.list(namespace=THEIRS, limit=1000)
        tasks, _ = await self.runtime.inside.tasking.tasks.list(namespace=THEIRS, limit=200)
        kept = [
            {
                **item,
                "metadata": {k: v for k, v in item["metadata"].items() if k not in ("resourceVersion", "updatedAt")},
            }
            | ({"status": {}} if item["kind"] in ("TaskWebhook", "TaskHook", "Channel") else {})
            for item in page.items
        ]
        return json.dumps([kept, [(run.id, run.phase) for run in runs], [(t.name, t.phase) for t in tasks]])


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Place]:
    async with Runtime(settings=settings, tools=[pay]) as runtime:
        database = runtime.inside.tasking.database
        tokens = SqlTokens(database)
        roles = ("admin", "author", "operator", "approver", "reader")
        _, mine = await tokens.create("me", namespaces=(MINE,), roles=roles, now=0.0)
        _, root = await tokens.create("root", namespaces=("*",), roles=("admin",), now=0.0)
        auth = TokenAuth(database, local=True)
        app = create_app(runtime, settings=settings, auth=auth)
        worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=4), grace=0)
        working = asyncio.create_task(worker.run())
        async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
            found = Place(runtime, server.url, _bearer(mine), _bearer(root))
            async with httpx.AsyncClient(base_url=server.url, headers=found.admin, timeout=WITHIN) as http:
                found.names = await _furnished(http)
            worker.drain()
            await working
            yield found
        await auth.close()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def _furnished(http: httpx.AsyncClient) -> dict[str, str]:
    """Something of every kind, marked; a task that has ended, and one that waits for consent."""
    text = re.sub(r"metadata: {name: ([\w-]+)", rf"metadata: {{annotations: {{note: {MARK}}}, name: \1", MANIFESTS)
    text = text.replace("Hello there.", f"Hello, {MARK}.")
    applied = await http.post("/v1/apply", params={"namespace": THEIRS, "allowMissing": "true"}, content=text)
    assert applied.status_code == 200, applied.text
    for name, agent in (("greet", "greeter"), ("pay", "payer")):
        body = {"metadata": {"name": name}, "spec": {"agent": agent, "input": {"topic": MARK}}}
        made = await http.post("/v1/tasks", params={"namespace": THEIRS}, json=body)
        assert made.status_code == 201, made.text
    await http.get("/v1/tasks/greet/events", params={"namespace": THEIRS})  # until it has ended
    approval = await _first(http, f"/v1/tool-approvals/watch?namespace={THEIRS}")
    run = (await http.get(f"/v1/runs?namespace={THEIRS}&agent=greeter")).json()["items"][0]["metadata"]["name"]
    return {"approval": approval["metadata"]["name"], "run": run}


async def _first(http: httpx.AsyncClient, path: str) -> Any:
    async with asyncio.timeout(WITHIN), http.stream("GET", path) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and "resource" in (data := json.loads(line[6:])):
                return data["resource"]
    raise EOFError(path)


NAMED = {
    "agents": "greeter",
    "model-endpoints": "talker",
    "tasks": "greet",
    "workers": "planned",
    "memories": "notes",
    "task-webhooks": "push",
    "webhooks": "push",
    "schedules": "nightly",
    "tools": "lookup",
}
BODY = {
    "apiVersion": "foliot.dev/v1",
    "kind": "AgentRole",
    "metadata": {"name": "intruder", "namespace": THEIRS},
    "spec": {"permissions": ["x"]},
}
COMMAND = {"target_kind": "agent", "target": "greeter", "namespace": THEIRS}
FORMS: dict[str, Any] = {
    "/v1/tasks/submit": COMMAND,
    "/v1/chat/completions": {"model": f"{THEIRS}/greeter", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": f"{THEIRS}/greeter", "input": "hi"},
    "/v1/runs/{run_id}/say": {"message": "x"},
    "/v1/runs/{run_id}/input": {"message": "x"},
    "/v1/runs/{run_id}/answer": {"text": "x"},
    "/v1/runs/{name}/answer": {"text": "x"},
    "/v1/tool-approvals/grants": {"tool": "pay", "seconds": 60},
    "/v1/tool-approvals/{name}/edit": {"arguments": {"amount": 1}},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
}
TABLE = sorted(
    (method, path)
    for method, path in ROUTES
    if method != "*" and ROUTES[method, path].rule.where != "public" and not path.startswith(("/v1/auth", "/v1/tokens"))
)


def concrete(place: Place, path: str, kind: str) -> str:
    words = [*path.replace("{kind}", kind).split("/"), "", ""]
    sort = words[3] if words[2] == "work" else words[2]
    name = NAMED.get(sort, "greeter")
    if sort == "runs":
        name = place.names["run"]
    elif "approvals" in sort:
        name = place.names["approval"]
    path = path.replace("{kind}", kind).replace("{name}", name).replace("{run_id}", place.names["run"])
    path = path.replace("{model:path}", f"{THEIRS}/greeter").replace("{response_id}", f"resp_{place.names['run']}")
    return re.sub(r"{[^}]*}", "1", path)


async def _answer(http: httpx.AsyncClient, method: str, path: str, route: str, namespace: str) -> tuple[int, str]:
    """The status and what was said; of a stream that does not end, as much as comes at once."""
    body = None
    if method in ("POST", "PUT", "PATCH"):
        body = json.dumps(FORMS.get(route, BODY if "{name}" not in route else {})).replace(THEIRS, namespace)
    headers = {"If-Match": "*", "Accept": "application/json, text/event-stream"}
    path = path.replace(f"{THEIRS}/", f"{namespace}/")
    query = {"namespace": namespace}
    async with http.stream(method, path, params=query, content=body, headers=headers) as answer:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, (await answer.aread()).decode()
        said = ""
        async for line in answer.aiter_lines():
            said += line + "\n"
            if line.startswith(("data: ", ": changes from here on")):
                break
        return answer.status_code, said


def _plain(text: str, namespace: str) -> str:
    """Return `text` without what differs in any two answers.

    A bookmark names the revision of the whole store, which also the caller's own work moves between two requests.
    """
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d+\.\d+|under request \w+", "…", text)
    text = re.sub(r"(?:[0-9a-f]+\r\n)?id: \d+\nevent: bookmark\ndata: \{[^}]*\}", "bookmark", text)
    text = re.sub(r"(?<=: changes from here on\n)id: \d+", "bookmark", text)
    return text.replace(namespace, "…")


async def test_what_another_tenant_has_is_neither_told_nor_changed(place: Place) -> None:
    before = await place.theirs()
    assert before.count(MARK) > 15

    async with httpx.AsyncClient(base_url=place.url, headers=place.mine, timeout=WITHIN) as http:
        for method, route in TABLE:
            for kind in ("agents", "model-endpoints") if "{kind}" in route else ("",):
                path = concrete(place, route, kind)
                async with asyncio.timeout(WITHIN):
                    status, said = await _answer(http, method, path, route, THEIRS)
                    missing, unsaid = await _answer(http, method, path, route, NOWHERE)
                assert MARK not in said, (method, path, said)
                assert status < 500, (method, path, said)
                assert (status, _plain(said, THEIRS)) == (missing, _plain(unsaid, NOWHERE)), (method, path)

    assert await place.theirs() == before


async def test_lists_without_a_namespace_hold_nothing_of_others(place: Place) -> None:
    async with httpx.AsyncClient(base_url=place.url, headers=place.mine, timeout=WITHIN) as http:
        looked = 0
        for method, route in TABLE:
            if method != "GET" or "{" in route.replace("{kind}", "") or route.endswith("/watch") or route == "/mcp":
                continue
            for kind in ("agents", "secrets", "tool-approvals") if "{kind}" in route else ("",):
                answer = await http.get(route.replace("{kind}", kind))
                assert MARK not in answer.text, (route, answer.text)
                assert answer.status_code in (200, 403, 404), (route, answer.text)
                looked += 1
        assert looked > 15
        assert (await http.get("/v1/namespaces")).json()["namespaces"] == ["default"]


async def test_searches_and_selectors_find_nothing_of_others(place: Place) -> None:
    async with httpx.AsyncClient(base_url=place.url, headers=place.mine, timeout=WITHIN) as http:
        for query in ("fieldSelector=metadata.name=greeter", "after=greeter", "labelSelector=app=shop"):
            answer = await http.get(f"/v1/agents?{query}")
            other = await http.get(f"/v1/agents?{query.replace('greeter', 'nobody').replace('shop', 'none')}")
            assert MARK not in answer.text
            assert answer.status_code == other.status_code
        run = place.names["run"]
        for word in (run, run[:6], run[-6:]):
            found = await http.get(f"/v1/runs/{word}?alike=true")
            unknown = await http.get(f"/v1/runs/{'x' * len(word)}?alike=true")
            assert found.status_code == unknown.status_code == 404
            assert found.text.replace(word, "…") == unknown.text.replace("x" * len(word), "…")
        for prefix in ("after", "limit=1&after"):
            answer = await http.get(f"/v1/runs?{prefix}={run}")
            unknown = await http.get(f"/v1/runs?{prefix}={'x' * len(run)}")
            assert answer.status_code == unknown.status_code == 400
            assert answer.text == unknown.text


async def test_a_watch_passes_over_what_happens_to_others(place: Place) -> None:
    mark = {"kind": "AgentRole", "metadata": {"name": "mine", "namespace": MINE}, "spec": {"permissions": ["x"]}}
    theirs = {"kind": "AgentRole", "metadata": {"name": MARK, "namespace": THEIRS}, "spec": {"permissions": ["x"]}}
    for path in ("/v1/agent-roles/watch", "/v1/resources/watch", "/v1/events/watch"):
        async with (
            httpx.AsyncClient(base_url=place.url, timeout=WITHIN) as http,
            http.stream("GET", path, headers=place.mine) as stream,
            asyncio.timeout(WITHIN),
        ):
            lines = stream.aiter_lines()
            async for line in lines:
                if ("bookmark" in line and line.startswith("data")) or line.startswith(": changes from here on"):
                    break
            await http.post("/v1/agent-roles", json=theirs, headers=place.admin)
            await http.post("/v1/agent-roles", json=mark, headers=place.admin)
            said = ""
            async for line in lines:
                said += line
                if line.startswith("data: "):
                    break
            assert MARK not in said
            assert '"mine"' in said
            for role in (theirs, mark):
                name, space = role["metadata"]["name"], role["metadata"]["namespace"]
                await http.delete(f"/v1/agent-roles/{name}?namespace={space}", headers=place.admin)
