"""What clients written for the earlier API send and expect, request by request, with a plain HTTP client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest

from foliot.resources.names import STEERING
from tests.server.contract_kit import Site, furnish, serving

OLD = "orloj.dev/v1"


class Row(NamedTuple):
    """A kind in the table of paths: what of it can be declared, and what there is beside reading it."""

    kind: str
    spec: dict[str, Any]
    put: bool = True
    status: bool = True
    phase: str = "Ready"


TABLE = {
    "agents": Row("Agent", {"model_ref": "talker", "prompt": "p"}),
    "agent-systems": Row("AgentSystem", {"agents": ["greeter"]}),
    "model-endpoints": Row("ModelEndpoint", {"provider": "mock", "default_model": "m"}),
    "tools": Row("Tool", {"endpoint": "http://127.0.0.1:9/x"}),
    "secrets": Row("Secret", {"stringData": {"k": "v-of-a-secret"}}, status=False),
    "memories": Row("Memory", {"type": "kv"}),
    "skills": Row("Skill", {"description": "d"}),
    "agent-policies": Row("AgentPolicy", {"max_tokens_per_run": 5000, "apply_mode": "global"}),
    "agent-roles": Row("AgentRole", {"permissions": ["tool:lookup:invoke"]}, status=False),
    "tool-permissions": Row("ToolPermission", {"tool_ref": "lookup"}, status=False),
    "tool-approvals": Row(
        "ToolApproval", {"tool": "lookup", "standing": True}, put=False, status=False, phase="Pending"
    ),
    "tasks": Row("Task", {"agent": "greeter", "mode": "template"}, phase="Pending"),
    "task-schedules": Row("TaskSchedule", {"task_ref": "form", "schedule": "0 9 * * 1"}, phase="Pending"),
    "task-webhooks": Row("TaskWebhook", {"task_ref": "form", "auth": {"secret_ref": "hook"}}),
    "workers": Row("Worker", {"region": "south"}, phase="NotReady"),
    "mcp-servers": Row(
        "McpServer", {"transport": "http", "endpoint": "http://127.0.0.1:9/mcp"}, status=False, phase="Pending"
    ),
}
COUNTS = {"queued", "running", "retrypending", "succeeded", "deadletter"}
BLOCK = COUNTS | {"in_flight", "retry_count", "deadletters", "latency_ms_avg", "latency_ms_p95", "latency_sample_size"}
MESSAGE = {
    *("timestamp", "message_id", "idempotency_key", "task_id", "attempt", "system", "from_agent", "to_agent"),
    *("branch_id", "parent_branch_id", "type", "content", "trace_id", "parent_id", "phase", "attempts"),
    *("max_attempts", "last_error", "worker", "processed_at"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site")) as site:
        furnish(site)
        yield site


@pytest.fixture
def http(site: Site) -> Iterator[httpx.Client]:
    with site.client() as client:
        yield client


def manifest(plural: str, name: str, **metadata: Any) -> dict[str, Any]:
    row = TABLE[plural]
    return {"apiVersion": OLD, "kind": row.kind, "metadata": {"name": name, **metadata}, "spec": row.spec}


@pytest.mark.parametrize("plural", TABLE)
def test_every_kind_has_its_phase_wherever_it_is_shown(http: httpx.Client, plural: str) -> None:
    path, row = f"/v1/{plural}", TABLE[plural]
    made = http.post(path, json=manifest(plural, "phased")).json()
    begins = "Pending" if plural == "task-webhooks" else row.phase  # its address is given when it is first looked at
    assert made["status"]["phase"] == begins
    assert http.get(f"{path}/phased").json()["status"]["phase"] == row.phase
    listed = {each["metadata"]["name"]: each["status"]["phase"] for each in http.get(path).json()["items"]}
    assert (listed["phased"], "" in listed.values()) == (row.phase, False)
    chosen = http.get(path, params={"fieldSelector": f"metadata.name=phased,status.phase={row.phase}"}).json()
    assert [each["metadata"]["name"] for each in chosen["items"]] == ["phased"]
    with http.stream("GET", f"{path}/watch", params={"name": "phased"}) as stream:
        told = next(json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
    assert told["resource"]["status"]["phase"] in (begins, row.phase)
    assert http.delete(f"{path}/phased").status_code in (200, 204)


# --- paths and verbs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plural", TABLE)
def test_a_kind_is_listed_made_read_replaced_and_deleted(http: httpx.Client, plural: str) -> None:
    path, row = f"/v1/{plural}", TABLE[plural]

    listed = http.get(path)
    assert (listed.status_code, type(listed.json()["items"])) == (200, list)
    made = http.post(path, json=manifest(plural, "compat"))
    assert made.status_code == 201, made.text
    metadata = made.json()["metadata"]
    assert (metadata["name"], metadata["namespace"], metadata["generation"]) == ("compat", "default", 1)
    assert metadata["resourceVersion"].isdigit()
    assert metadata["createdAt"].endswith("Z")
    again = http.post(path, json=manifest(plural, "compat"))
    assert again.status_code == 200
    found = http.get(f"{path}/compat")
    assert found.status_code == 200
    assert found.json()["kind"] == row.kind

    replaced = http.put(f"{path}/compat", json=found.json())
    assert replaced.status_code == (200 if row.put else 405), replaced.text
    if not row.put:
        assert replaced.headers["allow"] == "DELETE, GET"
    status = http.get(f"{path}/compat/status")
    assert status.status_code == (200 if row.status else 404)

    deleted = http.delete(f"{path}/compat")
    if plural == "mcp-servers":
        assert (deleted.status_code, deleted.json()) == (200, {"deleted": "compat"})
    else:
        assert (deleted.status_code, deleted.content) == (204, b"")
    assert http.get(f"{path}/compat").status_code == 404
    assert http.delete(f"{path}/compat").status_code == 404


@pytest.mark.parametrize("plural", [plural for plural, row in TABLE.items() if row.status and plural != "tasks"])
def test_a_status_is_put_at_a_version_and_leaves_the_spec(http: httpx.Client, plural: str) -> None:
    path = f"/v1/{plural}"
    made = http.post(path, json=manifest(plural, "with-status")).json()

    body = {"metadata": made["metadata"], "status": {"phase": "Ready", "lastError": ""}}
    put = http.put(f"{path}/with-status/status", json=body)

    if made["kind"] in STEERING:  # what it decides is not for callers to say
        assert put.status_code == 404, put.text
        assert http.get(f"{path}/with-status/status").status_code == 200
        assert http.delete(f"{path}/with-status").status_code == 204
        return
    assert put.status_code == 200, put.text
    assert put.json()["status"]["phase"] == "Ready"
    assert put.json()["status"]["observedGeneration"] == 1
    assert put.json()["spec"] == made["spec"]
    assert http.put(f"{path}/with-status/status", json=body).status_code == 409
    assert http.delete(f"{path}/with-status").status_code == 204


@pytest.mark.parametrize("plural", ["agents", "tasks"])
def test_a_status_of_something_else_is_refused(http: httpx.Client, plural: str) -> None:
    made = http.post(f"/v1/{plural}", json=manifest(plural, "placed")).json()

    for other in ({"namespace": "elsewhere"}, {"name": "another"}):
        body = {"metadata": {**made["metadata"], **other}, "status": {"phase": "Ready"}}
        assert http.put(f"/v1/{plural}/placed/status", json=body).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/agents", "GET, POST"),
        ("POST", "/v1/agents/x", "DELETE, GET, PATCH, PUT"),
        ("PUT", "/v1/agents", "GET, POST"),
        ("DELETE", "/v1/tasks/x/status", "GET, PUT"),
        ("POST", "/v1/capabilities", "GET"),
        ("GET", "/v1/tool-approvals/x/approve", "POST"),
        ("PATCH", "/v1/tool-approvals/x", "DELETE, GET"),
        ("GET", "/v1/webhook-deliveries/x", "POST"),
    ],
)
def test_a_verb_that_there_is_not_is_405_and_says_which_there_are(
    http: httpx.Client, method: str, path: str, allow: str
) -> None:
    answer = http.request(method, path)

    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["code"] == "method_not_allowed"


def test_a_path_that_leads_nowhere_is_a_problem_and_no_page(http: httpx.Client) -> None:
    for path in ("/v1/dragons", "/v1/dragons/x", "/v1/agents/x/y/z", "/nothing"):
        answer = http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


# --- codes -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_400_and_what_breaks_a_rule_says_which(http: httpx.Client) -> None:
    unreadable = http.post("/v1/agents", content=b"{nonsense")
    assert (unreadable.status_code, unreadable.json()["code"]) == (400, "invalid_manifest")
    other = http.post("/v1/agents", json=manifest("tools", "x"))
    assert other.status_code == 400
    assert "unsupported kind" in other.json()["detail"]
    broken = http.post("/v1/agents", json={"metadata": {"name": "x"}, "spec": {"model": "m"}})
    assert broken.status_code == 422
    assert {each["field"] for each in broken.json()["errors"]} >= {"spec.model"}


def test_an_update_needs_a_version_and_both_that_are_given_must_agree(http: httpx.Client) -> None:
    made = http.post("/v1/tools", json=manifest("tools", "versioned")).json()
    version = made["metadata"]["resourceVersion"]
    bare, path = manifest("tools", "versioned"), "/v1/tools/versioned"

    missing = http.put(path, json=bare)
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition_required")
    assert "resourceVersion precondition required for update" in missing.json()["detail"]
    assert http.put(path, json=made, headers={"If-Match": '"1"'}).status_code == 409
    for tag in (version, f'"{version}"', f'W/"{version}"', "*"):
        assert http.put(path, json=bare, headers={"If-Match": tag}).status_code == 200
    assert http.put("/v1/tools/nobody", json=manifest("tools", "nobody"), headers={"If-Match": "*"}).status_code == 404
    assert http.post("/v1/tools", json=manifest("tools", "new", resourceVersion="7")).status_code == 409
    assert http.post("/v1/tools", json=manifest("tools", "new", resourceVersion="0")).status_code == 201


# --- parameters --------------------------------------------------------------------------------------------------


@pytest.fixture
def roles(http: httpx.Client) -> None:
    """Six roles in a namespace of their own, one of them in another as well."""
    for number in range(6):
        labels = {"odd": "yes" if number % 2 else "no"}
        body = manifest("agent-roles", f"r{number}", labels=labels)
        assert http.post("/v1/agent-roles?namespace=pages", json=body).status_code in (200, 201)
    http.post("/v1/agent-roles?namespace=others", json=manifest("agent-roles", "r3"))


def names(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [item["metadata"]["name"] for item in answer.json()["items"]]


@pytest.mark.usefixtures("roles")
def test_pages_go_on_behind_a_name_or_behind_what_the_answer_gave(http: httpx.Client) -> None:
    path = "/v1/agent-roles?namespace=pages"

    first = http.get(f"{path}&limit=2")
    assert names(first) == ["r0", "r1"]
    by_name = http.get(f"{path}&limit=2&after=r1")
    for parameter in ("after", "continue"):
        by_cursor = http.get(path, params={"limit": 2, "namespace": "pages", parameter: first.json()["continue"]})
        assert names(by_cursor) == names(by_name) == ["r2", "r3"]
    assert names(http.get(f"{path}&after=r3")) == ["r4", "r5"]
    assert names(http.get(f"{path}&after=r9")) == []
    assert "continue" not in http.get(f"{path}&after=r3").json()
    assert names(http.get("/v1/agent-roles?after=r4"))[0] == "r5"
    twice = http.get("/v1/agent-roles?after=r3")
    assert (twice.status_code, "several namespaces" in twice.json()["detail"]) == (400, True)
    assert names(http.get("/v1/agent-roles?after=pages/r3"))[:2] == ["r4", "r5"]
    assert http.get(f"{path}&continue=r1").status_code == 400


@pytest.mark.usefixtures("roles")
def test_limits_are_clamped_and_selectors_come_before_them(http: httpx.Client) -> None:
    path = "/v1/agent-roles?namespace=pages"

    for limit in ("0", "-5", "1000", "100000"):
        assert len(names(http.get(f"{path}&limit={limit}"))) == 6
    assert http.get(f"{path}&limit=many").status_code == 400
    for selector in ("labelSelector", "labels"):
        page = http.get(f"{path}&limit=2&{selector}=odd%3Dyes")
        assert names(page) == ["r1", "r3"]
        assert names(http.get(f"{path}&{selector}=odd%3Dyes&after={page.json()['continue']}")) == ["r5"]
    assert http.get(f"{path}&labelSelector=%3D").status_code == 400


@pytest.mark.usefixtures("roles")
def test_a_namespace_selects_filters_and_is_inherited(http: httpx.Client) -> None:
    assert http.get("/v1/agent-roles/r0").status_code == 404
    assert http.get("/v1/agent-roles/r0?namespace=pages").status_code == 200
    everywhere = {item["metadata"]["namespace"] for item in http.get("/v1/agent-roles").json()["items"]}
    assert {"default", "others", "pages"} <= everywhere
    assert http.get("/v1/agent-roles/r0?namespace=pages").json()["metadata"]["namespace"] == "pages"
    other = http.post("/v1/agent-roles?namespace=pages", json=manifest("agent-roles", "x", namespace="others"))
    assert (other.status_code, "does not match request namespace" in other.json()["detail"]) == (400, True)
    spaces = http.get("/v1/namespaces").json()["namespaces"]
    assert spaces == sorted(spaces)
    assert {"default", "others", "pages"} <= set(spaces)


# --- work --------------------------------------------------------------------------------------------------------


def test_messages_of_a_task_have_the_members_that_clients_read(http: httpx.Client) -> None:
    path = "/v1/tasks/round/messages"

    told = http.get(path).json()
    assert told.keys() == {"name", "namespace", "total", "filtered_from", "lifecycle_counts", "messages"}
    assert (told["name"], told["namespace"], told["total"], told["filtered_from"]) == ("round", "default", 2, 2)
    assert told["lifecycle_counts"].keys() == COUNTS
    assert all(message.keys() >= MESSAGE for message in told["messages"])
    assert [message["to_agent"] for message in told["messages"]] == ["greeter", "closer"]
    assert told["messages"][1]["from_agent"] == "greeter"
    assert told["messages"][0]["system"] == "desk"

    for query, count in (
        ("to_agent=closer", 1),
        ("from_agent=greeter", 1),
        ("phase=succeeded", 2),
        ("phase=Succeeded", 2),
        ("lifecycle=queued,running", 0),
        ("branch_id=nowhere", 0),
        ("trace_id=nothing", 0),
        ("limit=1", 1),
    ):
        assert http.get(f"{path}?{query}").json()["total"] == count, query
    queued = http.get(f"{path}?phase=queued").json()
    assert queued["lifecycle_counts"]["succeeded"] == 2
    assert http.get(f"{path}?phase=nonsense").status_code == 400


def test_metrics_of_a_task_have_the_members_that_clients_read(http: httpx.Client) -> None:
    told = http.get("/v1/tasks/round/metrics").json()

    assert told.keys() == {"name", "namespace", "generated_at", "totals", "per_agent", "per_edge", "filters"}
    assert told["totals"].keys() == BLOCK | {"messages"}
    assert told["totals"]["messages"] == told["totals"]["latency_sample_size"] == 2
    assert all(each.keys() == BLOCK | {"agent", "inbound", "outbound"} for each in told["per_agent"])
    assert all(each.keys() == BLOCK | {"from_agent", "to_agent", "messages"} for each in told["per_edge"])
    assert told["filters"] == {"phase_filtered": False}
    assert http.get("/v1/tasks/round/metrics?phase=queued").json()["filters"] == {"phase_filtered": True}


def test_logs_are_lines_under_a_name(http: httpx.Client) -> None:
    for path, name in (("/v1/tasks/greet/logs", "greet"), ("/v1/agents/greeter/logs", "greeter")):
        told = http.get(path).json()
        assert told["name"] == name
        assert any("Hello there." in line for line in told["logs"])
    assert http.get("/v1/agents/lookup/logs").status_code == 404
    assert http.get("/v1/agents/closer/logs?namespace=nowhere").status_code == 404


def test_a_task_that_was_read_can_be_posted_again(http: httpx.Client) -> None:
    found = http.get("/v1/tasks/greet").json()
    assert found["status"]["phase"] == "Succeeded"
    assert found["status"]["output"]["result"] == "Hello there."
    assert {"startedAt", "completedAt", "attempts", "history", "messages", "join_states"} <= found["status"].keys()

    retried = http.post("/v1/tasks", json={"metadata": {"name": "greet-retry"}, "spec": found["spec"]})

    assert retried.status_code == 201, retried.text
    assert http.get("/v1/tasks/greet-retry").json()["spec"] == found["spec"]
    assert http.get("/v1/tasks/greet-retry/events").status_code == 200


def test_a_task_needs_no_input(http: httpx.Client) -> None:
    body = {"apiVersion": OLD, "kind": "Task", "metadata": {"name": "wordless"}, "spec": {"agent": "greeter"}}
    made = http.post("/v1/tasks", json=body)
    assert made.status_code == 201, made.text
    (first, *_) = http.get("/v1/tasks/wordless/messages").json()["messages"]
    assert first["content"] == "Begin."
    assert http.post("/v1/tasks", json=body).status_code in (200, 201), "asked for again it is the same"


def test_a_task_is_ended_by_its_status_as_there_was_no_other_way(http: httpx.Client) -> None:
    body = {"metadata": {"name": "doomed"}, "spec": {"agent": "payer", "input": {"topic": "x"}}}
    assert http.post("/v1/tasks", json=body).status_code == 201
    path = "/v1/tasks/doomed/status"

    assert http.put(path, json={"status": {"phase": "Failed"}}).status_code == 428
    assert http.put(path, json={"status": {"phase": "Running"}}, headers={"If-Match": "*"}).status_code == 409
    assert http.put(path, json={"status": {"phase": "Failed"}}, headers={"If-Match": '"0"'}).status_code == 409
    ended = http.put(path, json={"phase": "Failed", "lastError": "enough"}, headers={"If-Match": "*"})

    assert ended.status_code == 200, ended.text
    http.get("/v1/tasks/doomed/events")  # until it has ended
    assert http.get("/v1/tasks/doomed").json()["status"]["phase"] in ("Cancelled", "Failed")
    pinned = http.put("/v1/tasks/doomed", json=body, headers={"If-Match": "*"})
    assert (pinned.status_code, pinned.json()["code"]) == (409, "conflict")


def test_tasks_are_paged_by_offset_and_by_name_too(http: httpx.Client) -> None:
    every = names(http.get("/v1/tasks?limit=1000"))

    assert names(http.get("/v1/tasks?limit=2&offset=1")) == every[1:3]
    assert names(http.get(f"/v1/tasks?limit=2&after={every[1]}")) == every[2:4]
    assert names(http.get(f"/v1/tasks?after={every[-1]}")) == []
    assert http.get("/v1/tasks?after=no-such-task").status_code == 400
    assert names(http.get(f"/v1/tasks?offset={len(every)}")) == []
    assert http.get("/v1/tasks?offset=-1").status_code == 400


def test_an_approval_is_decided_with_the_body_of_older_clients(http: httpx.Client, site: Site) -> None:
    approved, denied = site.approvals[:2]

    yes = http.post(f"/v1/tool-approvals/{approved}/approve", json={"decided_by": "eve", "reason": "fine"})
    no = http.post(f"/v1/tool-approvals/{denied}/deny", json={})

    assert (yes.status_code, yes.json()["status"]["phase"], yes.json()["status"]["decided_by"]) == (
        200,
        "Approved",
        "root",
    )
    assert (no.status_code, no.json()["status"]["phase"]) == (200, "Denied")
    assert http.post(f"/v1/tool-approvals/{approved}/deny").status_code == 409
    assert http.post("/v1/tool-approvals/nobody/approve").status_code == 404


def test_entries_of_a_memory_are_a_counted_list(http: httpx.Client) -> None:
    for query in ("", "?q=x", "?prefix=a&limit=5"):
        assert http.get(f"/v1/memories/notes/entries{query}").json() == {"entries": [], "count": 0}
    assert http.get("/v1/memories/nobody/entries").status_code == 404


def test_workers_are_those_that_live_and_those_that_are_declared(http: httpx.Client) -> None:
    found = {item["metadata"]["name"]: item for item in http.get("/v1/workers").json()["items"]}

    assert found["w"]["status"]["phase"] == "Ready"
    assert found["w"]["spec"]["max_concurrent_tasks"] == 4
    assert "planned" in found
    assert http.get("/v1/workers/w").json()["status"].keys() >= {"phase", "lastHeartbeat", "currentTasks"}


# --- about the server --------------------------------------------------------------------------------------------


def test_health_and_capabilities_are_as_clients_ask_for_them(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/metrics").status_code in (200, 404)
    told = http.get("/v1/capabilities").json()
    assert told["generated_at"].endswith("Z")
    assert all(each.keys() == {"id", "enabled", "description", "source"} for each in told["capabilities"])
    enabled = {each["id"]: each["enabled"] for each in told["capabilities"]}
    wanted = {"core.api.crud", "core.runtime.sequential", "core.runtime.message_driven"}
    assert all(enabled[name] for name in wanted | {"core.governance.agent_roles", "core.self_host"})
    assert "core.ui.baseline" in enabled


def test_the_id_of_a_request_is_echoed_or_made(http: httpx.Client) -> None:
    assert http.get("/healthz", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert len(http.get("/healthz").headers["x-request-id"]) == 16


# --- watching ----------------------------------------------------------------------------------------------------


def frames(http: httpx.Client, path: str, count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    event = ""
    with http.stream("GET", path) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                event = value
            elif field == "data":
                found.append((event, json.loads(value)))
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("plural", ["agents", "tasks", "task-schedules", "task-webhooks"])
def test_a_watch_begins_with_what_there_is(http: httpx.Client, plural: str) -> None:
    (event, data), *_ = frames(http, f"/v1/{plural}/watch", 1)

    assert (event, data["type"]) == ("resource", "added")
    assert data["resource"]["kind"] == TABLE[plural].kind


def test_a_watch_of_one_name_and_from_a_version_on(http: httpx.Client) -> None:
    (_, data), *_ = frames(http, "/v1/agents/watch?name=closer&namespace=default", 1)
    assert data["resource"]["metadata"]["name"] == "closer"

    version = http.get("/v1/agents").json()["metadata"]["resourceVersion"]
    http.post("/v1/agent-roles", json=manifest("agent-roles", "watched"))
    found = frames(http, f"/v1/agent-roles/watch?resourceVersion={version}&name=watched", 2)
    assert [data["resource"]["metadata"]["name"] for event, data in found if event == "resource"] == ["watched"]


def test_events_tell_what_happened_behind_an_id(http: httpx.Client) -> None:
    http.post("/v1/agent-roles", json=manifest("agent-roles", "told"))
    http.delete("/v1/agent-roles/told")

    found = frames(http, "/v1/events/watch?since=0&kind=AgentRole&name=told&source=ApiServer&namespace=default", 2)

    happened = [data for event, data in found if event == "event"]
    assert [data["type"] for data in happened] == ["resource.created", "resource.deleted"]
    assert happened[0].keys() == {
        *("id", "timestamp", "source", "type", "kind", "name", "namespace", "action", "message", "data")
    }
    assert (happened[0]["kind"], happened[0]["name"], happened[0]["action"]) == ("AgentRole", "told", "created")
    behind = frames(http, f"/v1/events/watch?since={happened[0]['id']}&name=told&type=resource.deleted", 1)
    assert [data["type"] for _, data in behind] == ["resource.deleted"]
    assert http.get("/v1/events/watch?since=soon").status_code == 400
    assert http.get("/v1/events/watch?kind=dragons").status_code == 400
