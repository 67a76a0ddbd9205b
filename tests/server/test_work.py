"""Tasks, runs, approvals and webhooks over HTTP, with a worker that really does them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot import Agent, ScriptedModel
from foliot.runtime.runtime import Runtime
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import Settings
from foliot.store.queue.placement import Offer
from foliot.tools.function import tool
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import read_webhook

MANIFEST = """
kind: ModelEndpoint
metadata: {name: desk-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {pay: {amount: 5}}}
    - {say: "Paid: {last_result}."}
---
kind: ModelEndpoint
metadata: {name: talker}
spec: {provider: scripted, default_model: scripted, script: [{say: "Hello there."}]}
---
kind: ToolPermission
metadata: {name: pay}
spec:
  tool_ref: pay
  operation_rules: [{verdict: approval_required}]
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: desk-model, tools: [pay]}
---
kind: Agent
metadata: {name: greeter}
spec: {model_ref: talker}
"""


@tool
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"{amount} euros"


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings, tools=[pay]) as runtime:
        yield runtime


@pytest.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        HttpServer(app, Listen("127.0.0.1", 0)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=110) as client,
    ):
        applied = await client.post("/v1/apply", content=MANIFEST)
        assert applied.status_code == 200, applied.text
        yield client


@pytest.fixture
async def worker(runtime: Runtime, http: httpx.AsyncClient) -> AsyncIterator[None]:
    worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=4), grace=0)
    task = asyncio.create_task(worker.run())
    yield
    worker.drain()
    await task


def task(name: str, agent: str = "greeter", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {"agent": agent, "input": {"topic": "hi"}}}


async def ended(http: httpx.AsyncClient, name: str, streaming: Callable[..., Any]) -> list[Any]:
    """Every event of a task up to its end."""
    events: list[Any] = []
    async with streaming(http, f"/v1/tasks/{name}/events") as stream:
        while (event := await stream.next()).name != "end":
            events.append(event)
    events.append(event)
    return events


@pytest.mark.usefixtures("worker")
async def test_a_task_is_accepted_done_and_told(http: httpx.AsyncClient, streaming: Any) -> None:
    made = await http.post("/v1/tasks", json=task("t1", labels={"app": "x"}))
    assert made.status_code == 201, made.text
    assert made.json()["metadata"]["name"] == "t1"
    again = await http.post("/v1/tasks", json=task("t1", labels={"app": "x"}))
    assert again.status_code == 200
    other = await http.post("/v1/tasks", json=task("t1", "desk"))
    assert (other.status_code, other.json()["code"]) == (409, "conflict")

    events = await ended(http, "t1", streaming)

    assert events[-1].data["phase"] == "succeeded"
    found = (await http.get("/v1/tasks/t1")).json()
    assert found["status"]["phase"] == "Succeeded"
    assert "Hello there." in json.dumps(found["status"]["output"])
    logs = (await http.get("/v1/tasks/t1/logs")).json()
    assert logs["name"] == "t1"
    assert logs["logs"]
    messages = (await http.get("/v1/tasks/t1/messages")).json()
    assert (messages["total"], messages["lifecycle_counts"]["succeeded"]) == (1, 1)
    metrics = (await http.get("/v1/tasks/t1/metrics")).json()
    assert metrics["totals"]["messages"] == metrics["totals"]["latency_sample_size"] == 1
    assert (await http.get("/v1/tasks/t1/messages?phase=nonsense")).status_code == 400
    (run,) = (await http.get("/v1/tasks/t1/runs")).json()["runs"]
    trace = (await http.get(f"/v1/runs/{run['run_id']}/trace")).json()
    assert trace["phase"] == "succeeded"
    assert (await http.get("/v1/tasks/t1/trace")).json()["runs"][0]["trace"]["steps"]
    assert (await http.get("/v1/tasks/t1/why")).status_code == 200
    assert (await http.get("/v1/runs")).json()["items"][0]["metadata"]["name"] == run["run_id"]
    (known,) = (await http.get("/v1/workers")).json()["items"]
    assert (known["metadata"]["name"], known["status"]["phase"]) == ("w", "Ready")


@pytest.mark.usefixtures("worker")
async def test_the_events_of_tasks_and_runs_go_on_behind_any_of_them(http: httpx.AsyncClient, streaming: Any) -> None:
    await http.post("/v1/tasks", json=task("t1"))
    events = await ended(http, "t1", streaming)
    (run,) = (await http.get("/v1/tasks/t1/runs")).json()["runs"]

    for position in range(len(events) - 1):
        async with streaming(http, "/v1/tasks/t1/events", after=events[position].id) as again:
            assert [await again.next() for _ in events[position + 1 :]] == events[position + 1 :]
    path = f"/v1/runs/{run['run_id']}/events"
    async with streaming(http, path) as stream:
        told = [await stream.next()]
        while told[-1].name != "end":
            told.append(await stream.next())
    assert [int(each.id) for each in told[:-1]] == list(range(1, len(told)))
    async with streaming(http, path, after=told[1].id) as again:
        assert (await again.next()) == told[2]
    journal = (await http.get(f"/v1/runs/{run['run_id']}/journal?after=1")).json()["events"]
    assert [each["seq"] for each in journal] == list(range(2, len(told)))


async def test_answers_are_seen_while_they_are_written(
    http: httpx.AsyncClient, runtime: Runtime, streaming: Any
) -> None:
    await http.post("/v1/tasks", json=task("t1"))
    (run,) = (await http.get("/v1/tasks/t1/runs")).json()["runs"]
    runtime.inside.tasking.performer.stream = True
    async with streaming(http, f"/v1/runs/{run['run_id']}/events") as stream:
        first = await stream.next()
        worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker), grace=0)
        working = asyncio.create_task(worker.run())
        events = [first]
        while events[-1].name != "end":
            events.append(await stream.next())
        worker.drain()
        await working

    text = "".join(each.data["delta"].get("text", "") for each in events if each.name == "delta")
    assert text == "Hello there."
    assert all(each.id is None for each in events if each.name == "delta")
    numbers = [int(each.id) for each in events if each.name == "event"]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.usefixtures("worker")
async def test_a_watch_of_tasks_tells_how_they_stand(http: httpx.AsyncClient, streaming: Any) -> None:
    async with streaming(http, "/v1/tasks/watch", namespace="default") as stream:
        await http.post("/v1/tasks", json=task("t1"))
        phases: list[str] = []
        while "Succeeded" not in phases:
            event = await stream.next()
            if event.name == "bookmark":
                continue
            assert event.data["resource"]["metadata"]["name"] == "t1"
            phases.append(event.data["resource"]["status"]["phase"])

    assert phases[-1] == "Succeeded"


async def test_a_new_task_is_answered_as_it_is_read_afterwards(http: httpx.AsyncClient) -> None:
    system = {"agents": ["greeter", "desk"], "graph": {"greeter": {"edges": [{"to": "desk"}]}}}
    declared = {"kind": "AgentSystem", "metadata": {"name": "pair"}, "spec": system}
    assert (await http.post("/v1/agent-systems", json=declared)).status_code == 201
    one = task("one", labels={"team": "a"})
    two = {"metadata": {"name": "two"}, "spec": {"system": "pair", "input": {"topic": "hi"}, "timeout": "1h"}}

    for asked in (one, two):
        accepted = await http.post("/v1/tasks", json=asked)

        assert accepted.status_code == 201, accepted.text
        assert accepted.json() == (await http.get(f"/v1/tasks/{asked['metadata']['name']}")).json()


async def test_a_key_makes_one_task_and_belongs_to_its_name(http: httpx.AsyncClient) -> None:
    first = await http.post("/v1/tasks", json=task("a"), headers={"Idempotency-Key": "k"})
    again = await http.post("/v1/tasks", json=task("a"), headers={"Idempotency-Key": "k"})

    assert (first.status_code, again.status_code) == (201, 200)
    other = await http.post("/v1/tasks", json=task("b"), headers={"Idempotency-Key": "k"})
    assert (other.status_code, (await http.get("/v1/tasks/b")).status_code) == (409, 404), other.text
    changed = await http.post("/v1/tasks", json=task("a", "desk"), headers={"Idempotency-Key": "k"})
    assert changed.status_code == 409


async def test_tasks_are_listed_with_templates_behind_them_page_by_page(http: httpx.AsyncClient) -> None:
    template = {"metadata": {"name": "form"}, "spec": {"agent": "greeter", "mode": "template"}}
    assert (await http.post("/v1/tasks", json=template)).status_code == 201
    for number in range(5):
        space = "default" if number % 2 else "team"
        await http.post("/v1/apply?namespace=team", content=MANIFEST)
        answer = await http.post(
            "/v1/tasks", json=task(f"t{number}", labels={"n": str(number)}), params={"namespace": space}
        )
        assert answer.status_code == 201, answer.text
    names: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    for _ in range(6):
        page = (await http.get("/v1/tasks", params=query)).json()
        names += [item["metadata"]["name"] for item in page["items"]]
        if "continue" not in page:
            break
        query["after"] = page["continue"]

    assert names == ["t4", "t3", "t2", "t1", "t0", "form"]
    chosen = (await http.get("/v1/tasks", params={"labelSelector": "n in (1,3)"})).json()["items"]
    assert [item["metadata"]["name"] for item in chosen] == ["t3", "t1"]
    queued = (await http.get("/v1/tasks", params={"phase": "queued", "namespace": "team"})).json()["items"]
    assert len(queued) == 3
    assert (await http.get("/v1/namespaces")).json()["namespaces"] == ["default", "team"]
    for bad in ({"phase": "nonsense"}, {"after": "%%%"}):
        assert (await http.get("/v1/tasks", params=bad)).status_code == 400


async def test_a_task_is_cancelled_requeued_and_deleted(http: httpx.AsyncClient) -> None:
    await http.post("/v1/tasks", json=task("t1"))

    cancelled = await http.post("/v1/tasks/t1/cancel", json={"reason": "enough"})
    assert (cancelled.status_code, cancelled.json()["status"]["phase"]) == (200, "Cancelled")
    assert (await http.post("/v1/tasks/t1/cancel")).status_code == 409
    again = await http.post("/v1/tasks/t1/requeue")
    assert again.status_code in (200, 409), again.text
    assert (await http.post("/v1/tasks/t1/cancel", content=b"{nonsense")).status_code == 400
    assert (await http.post("/v1/tasks/t1/cancel", json={"reaso": "x"})).status_code == 422
    assert (await http.delete("/v1/tasks/t1")).status_code == 204
    assert (await http.post("/v1/tasks/nobody/cancel")).status_code == 404
    missing = await http.post("/v1/tasks", json=task("t2", "no-such-agent"))
    assert (missing.status_code, missing.json()["status"]["phase"]) == (201, "Failed")


@pytest.mark.usefixtures("worker")
async def test_a_call_waits_until_somebody_approves_it(http: httpx.AsyncClient, streaming: Any) -> None:
    await http.post("/v1/tasks", json=task("t1", "desk"))
    async with streaming(http, "/v1/tool-approvals/watch") as stream:
        while (event := await stream.next()).name != "resource":
            pass
    approval = event.data["resource"]["metadata"]["name"]

    decided = await http.post(f"/v1/tool-approvals/{approval}/approve", json={"reason": "fine", "decided_by": "eve"})

    assert decided.status_code == 200, decided.text
    assert decided.json()["status"]["decided_by"] == "anonymous"
    twice = await http.post(f"/v1/tool-approvals/{approval}/deny")
    assert twice.status_code == 409
    assert (await ended(http, "t1", streaming))[-1].data["phase"] == "succeeded"
    assert "5 euros" in (await http.get("/v1/tasks/t1")).text


async def test_a_signed_delivery_makes_a_task_without_a_token(http: httpx.AsyncClient, streaming: Any) -> None:
    bundle = """
kind: Secret
metadata: {name: hook}
spec: {stringData: {value: correct-horse-battery}}
---
kind: Task
metadata: {name: form}
spec: {agent: greeter, mode: template}
---
kind: TaskWebhook
metadata: {name: push}
spec: {task_ref: form, auth: {profile: generic, secret_ref: hook}}
"""
    assert (await http.post("/v1/apply", content=bundle)).status_code == 200
    async with streaming(http, "/v1/task-webhooks/watch") as stream:
        while True:
            document = (await stream.next()).data.get("resource") or {}
            if address := (document.get("status") or {}).get("endpointPath"):
                break
    body = b'{"n": 1}'
    signed = sign(read_webhook(document).scheme, b"correct-horse-battery", body, now=time.time(), event_id="e1")
    made = await http.post(address, content=body, headers=signed)
    again = await http.post(address, content=body, headers=signed)
    forged = await http.post(address, content=b'{"n": 2}', headers=signed)

    assert made.status_code == 202, made.text
    assert again.json()["task"] == made.json()["task"]
    assert forged.status_code == 401
    assert len((await http.get("/v1/tasks?phase=queued")).json()["items"]) == 1


async def test_what_is_said_to_a_run_that_is_not_there_is_not_heard(http: httpx.AsyncClient) -> None:
    for verb, body in (("cancel", {}), ("input", {"message": "x"}), ("answer", {"text": "x"})):
        assert (await http.post(f"/v1/runs/nobody/{verb}", json=body)).status_code == 404
    assert (await http.get("/v1/runs/nobody/events")).status_code == 404
    assert (await http.get("/v1/runs?phase=nonsense")).status_code == 400


# --- execution policy --------------------------------------------------------------------------------------------


async def test_a_task_is_posted_with_an_execution_policy_in_both_ways(http: httpx.AsyncClient) -> None:
    policy = {"security": "deny", "network_enabled": False, "resources": {"cpu": 500}}
    order = {"target_kind": "agent", "target": "greeter", "message": "Hi", "execution_policy": policy}
    submitted = await http.post("/v1/tasks/submit", json={**order, "name": "one"})
    spec = {"agent": "greeter", "input": {"topic": "Hi"}, "executionPolicy": {**policy, "security": "DENY"}}
    declared = await http.post("/v1/tasks", json={"kind": "Task", "metadata": {"name": "two"}, "spec": spec})
    for answer in (submitted, declared):
        assert answer.status_code == 201, answer.text
        assert answer.json()["spec"]["execution_policy"] == policy


@pytest.mark.parametrize("policy", [{}, {"security": ""}, {"resources": {}}, {"retry": {}}])
async def test_an_empty_execution_policy_is_none_in_both_ways(http: httpx.AsyncClient, policy: Any) -> None:
    order = {"target_kind": "agent", "target": "greeter", "message": "Hi", "execution_policy": policy}
    submitted = await http.post("/v1/tasks/submit", json={**order, "name": "one"})
    spec = {"agent": "greeter", "input": {"topic": "Hi"}, "execution_policy": policy}
    declared = await http.post("/v1/tasks", json={"kind": "Task", "metadata": {"name": "two"}, "spec": spec})
    for answer in (submitted, declared):
        assert answer.status_code == 201, answer.text
        assert "execution_policy" not in answer.json()["spec"]


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"security": "open"}, "invalid policy: invalid security: open"),
        ({"retry": {"max_attempts": 21}}, "invalid policy: invalid retry.max_attempts: 21"),
        ({"resources": {"memory": True}}, "invalid policy: invalid resources: memory must be a number, got true"),
        ({"networkEnabled": False}, "networkEnabled"),
        ({"network_enabled": "no"}, "execution_policy.network_enabled"),
    ],
)
async def test_a_wrong_execution_policy_is_refused_and_nothing_is_accepted(
    http: httpx.AsyncClient, policy: Any, told: str
) -> None:
    order = {"target_kind": "agent", "target": "greeter", "message": "Hi", "execution_policy": policy}
    answer = await http.post("/v1/tasks/submit", json=order)
    assert answer.status_code in (400, 422)
    assert told in answer.text
    assert (await http.get("/v1/tasks")).json()["items"] == []


@pytest.mark.parametrize(
    "after", ["none", "0", "-1", "4611686018427387905", "cnVuOg", "dGFzazoz", "cnVuOi0x", "x" * 400]
)
async def test_a_cursor_that_is_none_of_runs_is_refused(after: str, http: httpx.AsyncClient) -> None:
    refused = await http.get("/v1/runs", params={"after": after})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")


async def test_pages_of_runs_go_on_where_the_last_run_of_a_page_was_purged(
    runtime: Runtime, http: httpx.AsyncClient
) -> None:
    clerk = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "done"}}))
    for number in range(4):
        await runtime.inside.run(clerk, "hello", run_id=f"r{number}")
    page = (await http.get("/v1/runs", params={"limit": 2})).json()
    assert [each["metadata"]["name"] for each in page["items"]] == ["r3", "r2"]
    by_id = (await http.get("/v1/runs", params={"after": "r2"})).json()
    await runtime.inside.runs.journal.forget("r2")

    rest = (await http.get("/v1/runs", params={"continue": page["continue"]})).json()

    assert [each["metadata"]["name"] for each in rest["items"]] == ["r1", "r0"]
    assert by_id == rest, "an id is taken while its run exists"
    assert (await http.get("/v1/runs", params={"after": "r2"})).status_code == 400
