"""Real requests with real answers, each held against the description: what invented requests seldom reach."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest

from foliot.resources.kinds import KINDS
from foliot.resources.names import STEERING
from foliot.server.app import described
from tests.server.contract_kit import MANIFESTS, Site, furnish, serving

WRONG: tuple[Any, ...] = (None, True, -1, 1e300, "", "x\u0000", "a" * 300, [], [[]], {}, {"": {}}, "../..", "5 bananas")


@cache
def description() -> dict[str, Any]:
    return described()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site")) as site:
        furnish(site)
        yield site


@pytest.fixture
def http(site: Site) -> Iterator[httpx.Client]:
    with site.client() as client:
        yield client


def told(operation: dict[str, Any], answer: httpx.Response) -> dict[str, Any]:
    """What the description says of this answer. A reference is followed."""
    responses = operation["responses"]
    assert str(answer.status_code) in responses, (answer.status_code, answer.text)
    response = responses[str(answer.status_code)]
    if "$ref" in response:
        response = description()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return response


def holds(operation: dict[str, Any], answer: httpx.Response) -> None:
    response = told(operation, answer)
    for name, header in response.get("headers", {}).items():
        assert name.lower() in answer.headers or not header.get("required"), name
    if not response.get("content"):
        assert answer.content == b""
        return
    media = answer.headers["content-type"].partition(";")[0]
    assert media in response["content"], (media, answer.text)
    if media.endswith("json"):
        check(response["content"][media]["schema"], answer.json())


def check(schema: dict[str, Any], value: Any) -> None:
    jsonschema_rs.validate({**schema, "components": description()["components"]}, value)


def send(http: httpx.Client, method: str, path: str, concrete: str = "", **request: Any) -> httpx.Response:
    answer = http.request(method, concrete or path, **request)
    holds(description()["paths"][path][method.lower()], answer)
    return answer


def done(http: httpx.Client, method: str, path: str, concrete: str = "", **request: Any) -> Any:
    answer = send(http, method, path, concrete, **request)
    assert answer.is_success, (method, path, answer.text)
    return answer.json() if answer.content and "json" in answer.headers["content-type"] else None


def name_of(kind: str) -> str:
    """One of this kind that contract_kit.py has made."""
    documents = [each for each in MANIFESTS.split("---") if f"\nkind: {kind}\n" in each]
    return documents[-1].partition("{name: ")[2].replace(",", "}").partition("}")[0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.name != "ToolApproval"], ids=lambda k: k.name)
def test_what_is_done_to_a_resource_of_each_kind(http: httpx.Client, kind: Any) -> None:
    path, name = f"/v1/{kind.plural}", name_of(kind.name)
    named, one = f"{path}/{{name}}", f"{path}/{name}"

    document = done(http, "GET", named, one)
    done(http, "GET", path, params={"limit": 1})
    if kind.name not in ("Task", "Worker"):  # where the version of what lives is no version of a resource
        version, answer = document["metadata"]["resourceVersion"], None
        for _ in range(20):  # Foliot may write its status between two reads: then it has another version, and is sent
            answer = send(http, "GET", named, one, headers={"If-None-Match": version})
            if answer.status_code == 304:
                break
            assert answer.json()["metadata"]["resourceVersion"] != version
            version = answer.json()["metadata"]["resourceVersion"]
        assert answer is not None
        assert answer.status_code == 304
    spec = {"stringData": {"value": "another-of-them"}} if kind.name == "Secret" else document["spec"]
    body = {"metadata": {"name": name, "labels": {"seen": "yes"}}, "spec": spec}
    done(http, "POST", path, json=body)
    done(http, "POST", path, json=body, params={"dryRun": "All"})
    done(http, "PUT", named, one, json=body, headers={"If-Match": "*"})
    done(http, "PATCH", named, one, json={"metadata": {"labels": {"seen": "twice"}}})
    assert send(http, "PUT", named, one, json=body).status_code == 428
    assert send(http, "PUT", named, one, json=body, headers={"If-Match": '"1"'}).status_code == 409
    assert send(http, "DELETE", named, one, headers={"If-Match": '"1"'}).status_code == 412
    if f"{named}/status" in description()["paths"]:
        done(http, "GET", f"{named}/status", f"{one}/status")
        put = send(http, "PUT", f"{named}/status", f"{one}/status", json={"phase": "Ready"}, headers={"If-Match": "*"})
        assert put.status_code == (404 if kind.name in STEERING and kind.name != "Task" else 200), put.text
    copy = {**body, "metadata": {"name": "copy"}}
    if kind.name == "Channel":  # no two of them share a key
        copy["spec"] = {**spec, "auth": {"secretRef": "a-key-of-its-own"}}
    assert send(http, "POST", path, json=copy, params={"allowMissing": "true"}).status_code == 201
    done(http, "DELETE", named, f"{path}/copy")


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.name != "ToolApproval"], ids=lambda k: k.name)
def test_a_spec_with_something_wrong_in_it_is_refused_in_words(http: httpx.Client, kind: Any) -> None:
    path = f"/v1/{kind.plural}"
    good = http.get(f"{path}/{name_of(kind.name)}").json()["spec"]
    if kind.name == "Secret":
        good = {"stringData": {"value": "x"}, "data": {"k": "eA=="}}

    for number, member in enumerate(good):
        for shift in range(4):
            spec = deepcopy(good)
            spec[member] = WRONG[(number * 3 + shift) % len(WRONG)]
            body = {"metadata": {"name": "wrong"}, "spec": spec}
            answer = send(http, "POST", path, json=body, params={"dryRun": "true"})
            assert answer.status_code in (200, 201, 400, 404, 409, 422), answer.text
            if answer.status_code == 422:
                # What only the acceptance of a task knows is said in one sentence, without a place in the document.
                said = answer.json()
                assert said.get("errors") or (kind.name == "Task" and said["detail"]), (spec, answer.text)


def test_what_there_is_to_know_of_tasks_and_runs(http: httpx.Client, site: Site) -> None:
    for look in ("", "/status", "/messages", "/metrics", "/logs", "/runs", "/trace", "/why"):
        done(http, "GET", f"/v1/tasks/{{name}}{look}", f"/v1/tasks/round{look}")
    for look in ("/story", "/records", "/changes"):
        done(http, "GET", f"/v1/tasks/{{name}}{look}", f"/v1/tasks/round{look}")
    done(http, "GET", "/v1/tasks/{name}", "/v1/tasks/ound?alike=true")
    done(http, "GET", "/v1/tasks/{name}", "/v1/tasks/round?outline=true")
    for look in ("", "/journal", "/trace", "/results", "/state", "/replay", "/why"):
        done(http, "GET", f"/v1/runs/{{run_id}}{look}", f"/v1/runs/{site.runs[0]}{look}")
    done(http, "GET", "/v1/runs/{run_id}", f"/v1/runs/{site.runs[0][:-1]}?alike=true")
    for path in (
        "/v1/tasks",
        "/v1/runs",
        "/v1/questions",
        "/v1/interrupted-runs",
        "/v1/unknown-calls",
        "/v1/budget-usage",
        "/v1/policies/defaults",
        "/v1/limits",
        "/v1/run-classes",
        "/v1/all-tools",
        "/v1/agents/defaults",
        "/",
    ):
        done(http, "GET", path)
    done(http, "GET", "/v1/agents/{name}/logs", "/v1/agents/greeter/logs")
    done(http, "GET", "/v1/memories/{name}/entries", "/v1/memories/notes/entries")


def test_what_is_done_with_tasks_runs_and_approvals(http: httpx.Client, site: Site) -> None:
    body = {"metadata": {"name": "again"}, "spec": {"agent": "payer", "input": {"topic": "x"}}}
    assert send(http, "POST", "/v1/tasks", json=body).status_code == 201
    assert send(http, "POST", "/v1/tasks", json=body).status_code == 200
    other = {**body, "spec": {**body["spec"], "agent": "closer"}}
    assert send(http, "POST", "/v1/tasks", json=other).status_code == 409
    ended = partial(done, http, "POST", "/v1/tasks/{name}/cancel", "/v1/tasks/again/cancel", json={"reason": "enough"})
    ended()
    http.get("/v1/tasks/again/events")  # until it has
    done(http, "POST", "/v1/tasks/{name}/retry", "/v1/tasks/again/retry")
    ended()
    http.get("/v1/tasks/again/events")
    done(http, "POST", "/v1/tasks/{name}/archive", "/v1/tasks/again/archive")
    first, second, third, fourth = site.approvals
    done(http, "GET", "/v1/tool-approvals/{name}", f"/v1/tool-approvals/{first}")
    done(http, "POST", "/v1/tool-approvals/{name}/approve", f"/v1/tool-approvals/{first}/approve", json={"reason": "x"})
    done(http, "POST", "/v1/tool-approvals/{name}/deny", f"/v1/tool-approvals/{second}/deny")
    edit = {"arguments": {"amount": 1}}
    done(http, "POST", "/v1/tool-approvals/{name}/edit", f"/v1/tool-approvals/{third}/edit", json=edit)
    done(http, "POST", "/v1/tool-approvals/{name}/approve", f"/v1/tool-approvals/{fourth}/approve", json={})
    granted = done(http, "POST", "/v1/tool-approvals/grants", json={"tool": "pay", "seconds": 60})
    revoke = f"/v1/tool-approvals/{granted['metadata']['name']}/revoke"
    done(http, "POST", "/v1/tool-approvals/{name}/revoke", revoke)
    again = send(http, "POST", "/v1/tool-approvals/{name}/deny", f"/v1/tool-approvals/{first}/deny")
    assert again.status_code == 409


def test_what_is_agreed_to_about_tools_of_mcp_servers(http: httpx.Client) -> None:
    offered, accept = "/v1/mcp-servers/{name}/tools", "/v1/mcp-servers/{name}/accept"
    at = "/v1/mcp-servers"
    program = Path(__file__).parents[1] / "tools" / "mcp" / "servers" / "sample.py"
    spec = {"transport": "stdio", "command": sys.executable, "args": [str(program), "stdio"]}
    done(http, "POST", "/v1/mcp-servers", json={"metadata": {"name": "sample"}, "spec": spec})

    found = done(http, "GET", offered, f"{at}/sample/tools")["tools"]

    one = {"tool": found[0]["name"], "digest": found[0]["digest"], "risk_level": "critical"}
    accepted = done(http, "POST", accept, f"{at}/sample/accept", json=one)
    assert http.get(f"/v1/tools/{accepted['tool']}").json()["spec"]["risk_level"] == "critical"
    for wrong, status in (
        ({**one, "digest": "0" * 64}, 409),
        ({**one, "tool": "nothing"}, 404),
        ({**one, "digest": ""}, 422),
        ({**one, "risk_level": "none"}, 422),
        ({"tool": one["tool"]}, 422),
    ):
        assert send(http, "POST", accept, f"{at}/sample/accept", json=wrong).status_code == status, wrong
    assert send(http, "POST", accept, f"{at}/nobody/accept", json=one).status_code == 404
    assert send(http, "GET", offered, f"{at}/nobody/tools").status_code == 404
    assert send(http, "GET", offered, f"{at}/things/tools").status_code == 409, "which nobody answers"
    assert send(http, "POST", accept, f"{at}/things/accept", json=one).status_code == 409


def test_what_is_asked_of_the_server_itself(http: httpx.Client) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/metrics", "/v1/health", "/v1/version", "/v1/auth/me"):
        done(http, "GET", path)
    for path in ("/v1/namespaces", "/v1/capabilities", "/v1/workers", "/v1/resources"):
        done(http, "GET", path)
    # Another test may have put other values there, and own them.
    forced = {"forceConflicts": "true", "allowMissing": "true"}
    applied = done(http, "POST", "/v1/apply", content=MANIFESTS, params={"dryRun": "true", **forced})
    assert len(applied["outcomes"]) == MANIFESTS.count("\nkind: ")
    done(http, "POST", "/v1/apply", content=MANIFESTS, params=forced)


def test_agents_are_talked_to_as_models(http: httpx.Client) -> None:
    done(http, "GET", "/v1/models")
    done(http, "GET", "/v1/models/{model}", "/v1/models/greeter")
    said = {"model": "greeter", "messages": [{"role": "user", "content": "hi"}]}
    done(http, "POST", "/v1/chat/completions", json=said)
    answer = done(http, "POST", "/v1/responses", json={"model": "greeter", "input": "hi"})
    done(http, "GET", "/v1/responses/{response_id}", f"/v1/responses/{answer['id']}")
    assert send(http, "GET", "/v1/models/{model}", "/v1/models/nobody").status_code == 404


# --- streams -----------------------------------------------------------------------------------------------------


def events(http: httpx.Client, path: str, *, until: str) -> Iterator[dict[str, str]]:
    """The events of a stream, up to one of this name."""
    event: dict[str, str] = {}
    with http.stream("GET", path) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            if line and not line.startswith(":"):
                field, _, value = line.partition(": ")
                event[field] = value
            elif not line and event:
                if "data" in event:
                    yield event
                if event.get("event") == until:
                    return
                event = {}


STREAMS = {
    **{f"/v1/{kind.plural}/watch": (f"/v1/{kind.plural}/watch", "bookmark") for kind in KINDS.values()},
    "/v1/resources/watch": ("/v1/resources/watch", "bookmark"),
    "/v1/events/watch": ("/v1/events/watch?since=0&kind=Agent&name=greeter", "event"),
    "/v1/tasks/{name}/events": ("/v1/tasks/round/events", "end"),
    "/v1/runs/{run_id}/events": ("/v1/runs/{run}/events", "end"),
    "/v1/tasks/{name}/watch": ("/v1/tasks/round/watch", "end"),
}


@pytest.mark.parametrize("path", STREAMS)
def test_each_event_of_a_stream_has_the_shape_that_is_told(http: httpx.Client, site: Site, path: str) -> None:
    concrete, until = STREAMS[path]
    schema = description()["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    shapes = {each["properties"]["event"]["const"]: each["properties"]["data"] for each in schema["oneOf"]}

    found = list(events(http, concrete.replace("{run}", site.runs[0]), until=until))

    assert found[-1]["event"] == until
    for event in found:
        check(shapes[event["event"]]["contentSchema"], json.loads(event["data"]))
