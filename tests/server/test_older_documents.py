"""Documents of `orloj.dev/v1` come back as they were written: what a client of that version calls a diff finds none.

Such a client reads a resource back, takes out the status and three members of the metadata, and compares the rest.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.engine.definition.references import list_all
from foliot.resources.digest import definition_digest
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings, load_settings
from foliot.store.base import Document, Filter, Key
from tests.server.test_compatibility import TABLE
from tests.taking_missing import TAKES_MISSING

OLD = "orloj.dev/v1"
RETRY = {"max_attempts": 1, "backoff": "0s"}
MESSAGES = {**RETRY, "max_backoff": "24h", "jitter": "full"}
SIGNED = {"profile": "generic", "secret_ref": "s", "signature_header": "X-Signature", "signature_prefix": "sha256="}

# What such a client sends: every default of its own filled in, and an empty object for each part that is not used.
WHOLE: dict[str, dict[str, Any]] = {
    "model-endpoints": {
        "provider": "openai",
        "base_url": "https://api.openai.com/v1",
        "default_model": "gpt-4o",
        "auth": {},
    },
    "agents": {
        "model_ref": "m",
        "prompt": "",
        "memory": {},
        "execution": {
            "profile": "dynamic",
            "duplicate_tool_call_policy": "short_circuit",
            "on_contract_violation": "non_retryable_error",
            "tool_use_behavior": "run_llm_again",
        },
        "limits": {"max_steps": 10, "timeout": "60s"},
    },
    "agent-systems": {"agents": ["a", "b"], "graph": {"a": {"next": "b", "join": {}}}},
    "tools": {
        "type": "http",
        "endpoint": "http://127.0.0.1:9/x",
        "operation_classes": ["read"],
        "risk_level": "low",
        "runtime": {
            "timeout": "30s",
            "isolation_mode": "none",
            "retry": {**RETRY, "max_backoff": "30s", "jitter": "none"},
        },
        "auth": {},
    },
    "memories": {"type": "kv", "auth": {}},
    "agent-policies": {"max_tokens_per_run": 100, "apply_mode": "scoped", "target_systems": ["sys"]},
    "agent-roles": {"permissions": ["tool:x:invoke"]},
    "tool-permissions": {"tool_ref": "t", "action": "invoke", "match_mode": "all", "apply_mode": "global"},
    "tasks": {
        "system": "sys",
        "mode": "template",
        "input": {"topic": "x"},
        "priority": "normal",
        "retry": RETRY,
        "message_retry": MESSAGES,
        "requirements": {},
    },
    "task-schedules": {
        "task_ref": "tmpl",
        "schedule": "0 9 * * 1",
        "time_zone": "UTC",
        "starting_deadline_seconds": 300,
        "concurrency_policy": "forbid",
        "successful_history_limit": 10,
        "failed_history_limit": 3,
    },
    "task-webhooks": {
        "task_ref": "tmpl",
        "auth": {**SIGNED, "timestamp_header": "X-Timestamp", "max_skew_seconds": 300},
        "idempotency": {"event_id_header": "X-Event-Id", "dedupe_window_seconds": 86400},
        "payload": {"mode": "raw", "input_key": "webhook_payload"},
    },
    "workers": {"region": "default", "capabilities": {"gpu": False}, "max_concurrent_tasks": 1},
    "mcp-servers": {
        "transport": "http",
        "endpoint": "http://127.0.0.1:9/mcp",
        "auth": {},
        "tool_filter": {},
        "reconnect": {"max_attempts": 3, "backoff": "2s"},
    },
}
# And what somebody writes by hand, who leaves all of that out.
SPARSE = {plural: row.spec for plural, row in TABLE.items() if plural not in ("secrets", "tool-approvals")}


def document(plural: str, spec: dict[str, Any], name: str = "one", **metadata: Any) -> Document:
    kind = TABLE[plural].kind
    return {
        "apiVersion": OLD,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": copy.deepcopy(spec),
        "status": {"phase": "Pending"},
    }


def comparable(answer: Document) -> Document:
    """What such a client compares."""
    kept = {name: value for name, value in answer.items() if name != "status"}
    volatile = ("resourceVersion", "generation", "createdAt")
    return {**kept, "metadata": {name: value for name, value in kept["metadata"].items() if name not in volatile}}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    store = {} if request.param == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    return load_settings({"home": str(tmp_path), **store}, {})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as opened:
        yield opened


@pytest.fixture
async def http(runtime: Runtime, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(runtime, settings=settings, auth=Anonymous())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", event_hooks=TAKES_MISSING, timeout=110
    ) as client:
        yield client


async def posted(http: httpx.AsyncClient, plural: str, sent: Document) -> Document:
    answer = await http.post(f"/v1/{plural}", json=sent)
    assert answer.is_success, answer.text
    return answer.json()


async def read(http: httpx.AsyncClient, plural: str, name: str = "one") -> Document:
    answer = await http.get(f"/v1/{plural}/{name}")
    assert answer.is_success, answer.text
    return answer.json()


async def test_a_document_comes_back_as_it_was_written_wherever_it_is_shown(http: httpx.AsyncClient) -> None:
    for specs in (WHOLE, SPARSE):
        for plural, spec in specs.items():
            sent = document(plural, spec, labels={"team": "docs"})
            wanted = comparable(sent)
            made = await posted(http, plural, sent)
            assert comparable(made) == wanted
            found = await read(http, plural)
            assert comparable(found) == wanted
            listed = (await http.get(f"/v1/{plural}", params={"labelSelector": "team=docs"})).json()["items"]
            assert [comparable(each) for each in listed] == [wanted]
            again = await posted(http, plural, sent)
            assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"], "nothing was changed"


async def test_what_acts_goes_by_the_normal_form_and_keeps_its_digest(
    http: httpx.AsyncClient, runtime: Runtime
) -> None:
    sent = document("agents", {"modelRef": "m", "prompt": "p", "limits": {"timeout": "60s"}})
    await posted(http, "agents", sent)

    stored = await runtime.inside.resources.get(Key("Agent", "default", "one"))
    normal, _ = validate_document({**sent, "apiVersion": "foliot.dev/v1", "status": {}})

    assert normal is not None
    assert (stored["apiVersion"], stored["spec"]) == ("foliot.dev/v1", normal["spec"])
    assert stored["spec"]["limits"] == {"max_steps": 10, "timeout": "1m"}
    assert definition_digest(stored) == definition_digest(normal)
    assert comparable(await read(http, "agents")) == comparable(sent)


async def test_words_stay_with_a_change_of_labels_and_go_with_one_of_the_spec(http: httpx.AsyncClient) -> None:
    sent = document("agents", SPARSE["agents"])
    await posted(http, "agents", sent)

    await http.patch("/v1/agents/one", json={"metadata": {"labels": {"a": "b"}}})
    relabelled = await read(http, "agents")
    assert (relabelled["apiVersion"], relabelled["spec"]) == (OLD, sent["spec"])
    await http.patch("/v1/agents/one", json={"spec": {"prompt": "other"}})
    changed = await read(http, "agents")
    assert changed["apiVersion"] == OLD
    assert changed["spec"]["prompt"] == "other"
    assert changed["spec"]["limits"] == {"max_steps": 10}, "in normal form: nobody wrote all of it"

    await posted(http, "agents", {**sent, "apiVersion": "foliot.dev/v1"})
    today = await read(http, "agents")
    assert today["apiVersion"] == "foliot.dev/v1"
    assert today["metadata"]["uid"]
    assert today["spec"]["limits"] == {"max_steps": 10}


@pytest.mark.parametrize("way", ["post", "put", "patch", "apply"])
async def test_nobody_can_say_how_something_was_written(http: httpx.AsyncClient, way: str) -> None:
    lie = {"apiVersion": OLD, "spec": {"model_ref": "m", "prompt": "harmless"}}
    honest = {"kind": "Agent", "metadata": {"name": "one", "writtenAs": lie}, "spec": {"model_ref": "m", "prompt": "p"}}
    if way != "post":
        await posted(http, "agents", document("agents", {"model_ref": "m", "prompt": "p"}))
    match way:
        case "post":
            await posted(http, "agents", honest)
        case "put":
            assert (await http.put("/v1/agents/one", json=honest, headers={"If-Match": "*"})).is_success
        case "patch":
            assert (await http.patch("/v1/agents/one", json={"metadata": {"writtenAs": lie}})).is_success
        case _:
            assert (await http.post("/v1/apply?forceConflicts=true", json=honest)).is_success

    shown = await read(http, "agents")
    assert shown["spec"]["prompt"] == "p"
    assert "writtenAs" not in shown["metadata"]


async def test_a_secret_keeps_its_values_sealed_and_only_its_version(http: httpx.AsyncClient, runtime: Runtime) -> None:
    sent = document("secrets", {"stringData": {"value": "hush-hush"}})
    made = await posted(http, "secrets", sent)

    assert (made["apiVersion"], made["spec"]) == (OLD, {"data": {"value": "***"}})
    rows = await runtime.inside.tasking.database.read("resource_list", after="", before="\U0010ffff", count=100)
    assert "hush-hush" not in json.dumps([dict(row) for row in rows])


async def test_a_bundle_is_applied_and_shown_as_it_was_written(http: httpx.AsyncClient, runtime: Runtime) -> None:
    text = "apiVersion: orloj.dev/v1\nkind: Agent\nmetadata: {name: one}\nspec: {modelRef: m, prompt: p, limits: {}}\n"

    async def outcome(body: str, **params: str) -> Document:
        answer = await http.post("/v1/apply", params=params, content=body)
        assert answer.is_success, answer.text
        return answer.json()["outcomes"][0]

    made = await outcome(text)
    assert made["action"] == "created"
    assert (made["resource"]["apiVersion"], made["resource"]["spec"]) == (
        OLD,
        {"modelRef": "m", "prompt": "p", "limits": {}},
    )
    assert (await outcome(text))["action"] == "unchanged"
    assert (await outcome(text, dryRun="true"))["action"] == "unchanged"
    today = text.replace(OLD, "foliot.dev/v1")
    assert (await outcome(today, dryRun="true"))["action"] == "updated", "it would be shown otherwise"
    assert (await outcome(today))["resource"]["apiVersion"] == "foliot.dev/v1"
    assert (await outcome(today))["action"] == "unchanged"
    (stored,) = await list_all(runtime.inside.resources, Filter("Agent"))
    assert stored["metadata"]["generation"] == 1, "nothing of what it says was changed"


async def test_beside_what_others_own_the_whole_spec_is_shown(http: httpx.AsyncClient) -> None:
    await http.post("/v1/agents?fieldManager=ops", json=document("agents", {"model_ref": "m", "description": "theirs"}))
    text = "apiVersion: orloj.dev/v1\nkind: Agent\nmetadata: {name: one}\nspec: {model_ref: m, prompt: p}\n"
    applied = await http.post("/v1/apply", content=text)
    assert applied.is_success, applied.text

    shown = await read(http, "agents")
    assert (shown["apiVersion"], shown["spec"]["description"], shown["spec"]["prompt"]) == (OLD, "theirs", "p")


async def test_work_is_shown_as_it_was_asked_for(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await posted(http, "agents", document("agents", {"model_ref": "m", "prompt": "p"}, name="a"))
    await posted(http, "model-endpoints", document("model-endpoints", {"provider": "mock", "default_model": "m"}, "m"))
    await posted(http, "agent-systems", document("agent-systems", {"agents": ["a"]}, "sys"))
    spec = {**WHOLE["tasks"], "mode": "run", "priority": "urgent"}
    for name, sent in (("one", document("tasks", spec)), ("two", document("tasks", {"system": "sys"}, "two"))):
        made = await posted(http, "tasks", sent)
        assert comparable(made) == comparable(sent)
        assert comparable(await read(http, "tasks", name)) == comparable(sent)
        assert (await posted(http, "tasks", sent))["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    listed = {each["metadata"]["name"]: each for each in (await http.get("/v1/tasks")).json()["items"]}
    assert comparable(listed["one"]) == comparable(document("tasks", spec))
    info = await runtime.inside.tasking.tasks.get("default", "one")
    assert (info.priority, info.spec["priority"]) == (30, "critical")
    submitted = await http.post(
        "/v1/tasks/submit",
        json={"target_kind": "agent", "target": "a", "message": "go", "name": "three", "written": {"spec": {}}},
    )
    assert submitted.is_success, submitted.text
    assert submitted.json()["spec"]["agent"] == "a", "a form cannot say how it was written"
