"""What is asked of tasks, runs and approvals is recorded in the transaction in which it is done, or is not done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import apsw
import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.errors import NotFound
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import Settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.tools.function import tool

MANIFEST = """
kind: ModelEndpoint
metadata: {name: desk-model}
spec:
  provider: scripted
  default_model: scripted
  script: [{call: {pay: {amount: 5}}}, {say: "Paid: {last_result}."}]
---
kind: ModelEndpoint
metadata: {name: asking-model}
spec:
  provider: scripted
  default_model: scripted
  script: [{call: {ask_user: {question: "Which colour?"}}}, {say: "It is {last_result}."}]
---
kind: ToolPermission
metadata: {name: pay}
spec: {tool_ref: pay, operation_rules: [{verdict: approval_required}]}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: desk-model, tools: [pay]}
---
kind: Agent
metadata: {name: asker}
spec: {model_ref: asking-model, tools: [ask_user]}
"""
TASK: dict[str, Any] = {"kind": "Task", "metadata": {"name": "t"}, "spec": {"agent": "desk", "input": {"topic": "x"}}}


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
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await app.state.services.drives.close()  # the runs that were begun here


@pytest.fixture
async def desk(http: httpx.AsyncClient, runtime: Runtime) -> str:
    """The name of an approval that a run waits for; another run, `asks`, waits for an answer."""
    assert (await http.post("/v1/apply", content=MANIFEST)).status_code == 200
    await runtime.run("desk", "pay", run_id="pays")
    await runtime.run("asker", "ask", run_id="asks")
    return (await http.get("/v1/tool-approvals")).json()["items"][0]["metadata"]["name"]


def lose_head(settings: Settings) -> None:
    with closing(apsw.Connection(str(settings.home / "foliot.db"))) as file:
        file.execute("DELETE FROM audit_head")


async def told(runtime: Runtime, request: str) -> list[tuple[str, str]]:
    found = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(moment="act"), limit=500)
    return [
        (each.body["outcome"], f"{each.body['resource']['kind']}/{each.body['resource']['name']}")
        for each in found
        if each.body["request"] == request
    ]


ACTS: dict[str, tuple[str, dict[str, Any], tuple[str, str]]] = {
    "accept": ("/v1/tasks", TASK, ("task_accepted", "Task/t")),
    "apply": ("/v1/apply?run=true", TASK, ("task_accepted", "Task/t")),
    "declared": ("/v1/tasks/declared", TASK, ("task_accepted", "Task/t")),
    "submit": (
        "/v1/tasks/submit",
        {"target_kind": "agent", "target": "desk", "name": "t", "message": "x"},
        ("task_accepted", "Task/t"),
    ),
    "run": (
        "/v1/runs",
        {"agent": "desk", "input": "x", "run_id": "r2", "namespace": "default"},
        ("run_started", "Run/r2"),
    ),
    "cancel": ("/v1/runs/pays/cancel", {}, ("run_cancelled", "Run/pays")),
    "say": ("/v1/runs/pays/say", {"message": "x"}, ("run_told", "Run/pays")),
    "answer": ("/v1/runs/asks/answer", {"text": "red"}, ("run_answered", "Run/asks")),
    "approve": ("/v1/tool-approvals/{approval}/approve", {}, ("decided", "ToolApproval/{approval}")),
    "deny": ("/v1/tool-approvals/{approval}/deny", {}, ("decided", "ToolApproval/{approval}")),
    "chat": (
        "/v1/responses",
        {"model": "asker", "input": "x", "background": True},
        ("started", "Agent/asker"),
    ),
}


@pytest.mark.parametrize("act", ACTS)
async def test_each_act_leaves_one_record_with_its_request(
    act: str, desk: str, http: httpx.AsyncClient, runtime: Runtime
) -> None:
    path, body, expected = ACTS[act]
    if act == "declared":
        assert (await http.post("/v1/apply", json=TASK)).status_code == 200
    answer = await http.post(path.format(approval=desk), json=body, headers={"X-Request-ID": "the-one"})

    assert answer.status_code < 300, answer.text
    verb, what = expected
    found = [each for each in await told(runtime, "the-one") if each[0] not in ("created", "status_written")]
    assert found == [(verb, what.format(approval=desk))]
    assert (await SqlAuditLog(runtime.inside.tasking.database).verify()).broken is None


@pytest.mark.parametrize("act", [act for act in ACTS if act not in ("apply", "declared")])
async def test_what_cannot_be_recorded_is_not_done(
    act: str, desk: str, http: httpx.AsyncClient, runtime: Runtime, settings: Settings
) -> None:
    path, body, _ = ACTS[act]
    before = [len(await runtime.inside.runs.facts(id)) for id in ("pays", "asks")]
    lose_head(settings)

    answer = await http.post(path.format(approval=desk), json=body)

    assert answer.status_code == 503, answer.text
    assert "cannot be recorded" in answer.text
    assert [len(await runtime.inside.runs.facts(id)) for id in ("pays", "asks")] == before
    assert await runtime.inside.runs.journal.signals(["pays", "asks"]) == []
    assert {info.id for info in await runtime.inside.runs.journal.list()} == {"pays", "asks"}
    assert (await http.get(f"/v1/tool-approvals/{desk}")).json()["status"]["phase"] == "Pending"
    assert (await http.get("/v1/tasks/t")).status_code == 404


async def test_of_a_task_that_cannot_be_recorded_the_others_hear(
    desk: str, http: httpx.AsyncClient, runtime: Runtime, settings: Settings
) -> None:
    assert (await http.post("/v1/apply", json=TASK)).status_code == 200
    lose_head(settings)

    (taken,) = (await http.post("/v1/tasks/declared", json=TASK)).json()

    assert "cannot be recorded" in str(taken)
    with pytest.raises(NotFound):
        await runtime.inside.tasking.tasks.get("default", "t")


@pytest.mark.parametrize("verb", ["cancel", "archive"])
async def test_what_is_asked_of_a_task_is_recorded_once_with_its_uid(
    verb: str, desk: str, http: httpx.AsyncClient, runtime: Runtime
) -> None:
    made = (await http.post("/v1/tasks", json=TASK)).json()
    assert (await http.post("/v1/tasks", json=TASK)).status_code == 200, "accepted before"
    assert (await http.post(f"/v1/tasks/t/{verb}", json={})).status_code == 200

    again = (await http.post(f"/v1/tasks/t/{verb}", json={})).status_code
    assert again == (409 if verb == "cancel" else 200)

    found = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(moment="act"), limit=500)
    about = [each.body for each in reversed(found) if each.body["resource"]["kind"] == "Task"]
    done = "task_cancelled" if verb == "cancel" else "task_archived"
    assert [each["outcome"] for each in about] == ["task_accepted", done]
    assert {each["resource"]["uid"] for each in about} == {made["metadata"]["uid"]}
