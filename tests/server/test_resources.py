from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from foliot.store.base import Document


def endpoint(name: str = "local", **spec: Any) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name},
        "spec": {"provider": "mock", "default_model": "m", **spec},
    }


PATH = "/v1/model-endpoints"


async def make(http: httpx.AsyncClient, name: str = "local", **query: str) -> Document:
    answer = await http.post(PATH, json=endpoint(name), params=query)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_resource_is_created_read_and_deleted(http: httpx.AsyncClient) -> None:
    made = await http.post(PATH, json=endpoint())
    assert made.status_code == 201
    assert made.headers["etag"] == f'"{made.json()["metadata"]["resourceVersion"]}"'

    found = await http.get(f"{PATH}/local")
    assert found.json()["spec"]["provider"] == "mock"
    assert found.headers["content-type"] == "application/json"

    assert (await http.delete(f"{PATH}/local")).status_code == 204
    missing = await http.get(f"{PATH}/local")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (await http.delete(f"{PATH}/local")).status_code == 404


async def test_posting_again_replaces_and_says_so(http: httpx.AsyncClient) -> None:
    first = await make(http)
    again = await http.post(PATH, json=endpoint(default_model="other"))

    assert again.status_code == 200
    assert again.json()["metadata"]["generation"] == 2
    assert again.json()["metadata"]["uid"] == first["metadata"]["uid"]


async def test_a_manifest_in_yaml_of_the_older_version_is_taken(http: httpx.AsyncClient) -> None:
    text = "apiVersion: orloj.dev/v1\nkind: ModelEndpoint\nmetadata: {name: local}\nspec: {provider: mock}\n"

    answer = await http.post(PATH, content=text)

    assert answer.status_code == 201, answer.text


async def test_what_the_path_says_need_not_be_said_in_the_body(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        PATH, json={"metadata": {"name": "x"}, "spec": {"provider": "mock"}}, params={"namespace": "team-a"}
    )

    assert answer.status_code == 201, answer.text
    assert (answer.json()["kind"], answer.json()["metadata"]["namespace"]) == ("ModelEndpoint", "team-a")


async def test_every_problem_of_a_manifest_is_told_with_its_place(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, content='{"metadata": {"name": "x"},\n "spec": {"provder": "mock", "timeout": []}}')

    told = answer.json()
    assert (answer.status_code, told["code"]) == (422, "invalid_manifest")
    assert any("provder" in each["field"] for each in told["errors"])


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"\xff\xfe", 400),
        (b'{"metadata":' * 500, 400),
        (b'{"kind": "Agent", "metadata": {"name": "x"}, "spec": {"model_ref": "m", "prompt": "p"}}', 400),
        (b"[]", 400),
        (b'{"kind": 3}', 422),
        (b"\x00", 400),
    ],
)
async def test_a_body_that_is_no_such_resource_is_refused_in_words(
    http: httpx.AsyncClient, content: bytes, status: int
) -> None:
    answer = await http.post(PATH, content=content)

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_update_must_name_the_version_it_is_about(http: httpx.AsyncClient) -> None:
    made = await make(http)
    version = made["metadata"]["resourceVersion"]
    body = endpoint(default_model="next")

    assert (await http.put(f"{PATH}/local", json=body)).status_code == 428
    stale = await http.put(f"{PATH}/local", json=body, headers={"If-Match": '"99999"'})
    assert (stale.status_code, stale.json()["code"]) == (409, "conflict")
    good = await http.put(f"{PATH}/local", json=body, headers={"If-Match": f'W/"{version}"'})
    assert good.status_code == 200
    assert good.json()["spec"]["default_model"] == "next"
    any_version = await http.put(f"{PATH}/local", json=endpoint(default_model="any"), headers={"If-Match": "*"})
    assert any_version.status_code == 200
    assert (await http.put(f"{PATH}/nobody", json=endpoint("nobody"), headers={"If-Match": "*"})).status_code == 404


async def test_a_read_is_repeated_only_when_something_changed(http: httpx.AsyncClient) -> None:
    made = await http.post(PATH, json=endpoint())

    same = await http.get(f"{PATH}/local", headers={"If-None-Match": made.headers["etag"]})

    assert (same.status_code, same.content) == (304, b"")
    assert (await http.post(PATH, json=endpoint(), headers={"If-None-Match": "*"})).status_code == 409


async def test_a_patch_changes_what_it_names(http: httpx.AsyncClient) -> None:
    await http.post(PATH, json=endpoint(base_url="http://127.0.0.1:1"))

    answer = await http.patch(f"{PATH}/local", json={"spec": {"default_model": "new", "base_url": None}})

    assert answer.status_code == 200, answer.text
    assert answer.json()["spec"]["default_model"] == "new"
    assert not answer.json()["spec"].get("base_url")
    moved = await http.patch(f"{PATH}/local", json={"metadata": {"name": "other"}})
    assert moved.status_code == 400


async def test_a_status_is_written_apart_from_what_was_declared(http: httpx.AsyncClient) -> None:
    made = await make(http)
    status = {"metadata": made["metadata"], "status": {"phase": "Ready"}}

    answer = await http.put(f"{PATH}/local/status", json=status)

    assert answer.status_code == 200, answer.text
    assert answer.json()["status"]["phase"] == "Ready"
    assert answer.json()["metadata"]["generation"] == 1
    assert (await http.put(f"{PATH}/local/status", json={"phase": "Ready"})).status_code == 428
    assert (await http.put("/v1/tool-approvals/x/status", json={}, headers={"If-Match": "*"})).status_code == 404


async def test_a_status_in_a_new_resource_is_not_believed(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json={**endpoint(), "status": {"phase": "Broken"}})

    assert answer.json()["status"] == {"phase": "Ready"}


async def test_a_dry_run_checks_everything_and_writes_nothing(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=endpoint(), params={"dryRun": "All"})
    assert answer.status_code == 201

    assert (await http.get(f"{PATH}/local")).status_code == 404
    assert (await http.post(PATH, json={"metadata": {"name": "x"}}, params={"dryRun": "All"})).status_code == 422
    assert (await http.post(PATH, json=endpoint(), params={"dryRun": "maybe"})).status_code == 400


async def test_lists_are_selected_first_and_cut_into_pages_afterwards(http: httpx.AsyncClient) -> None:
    for number in range(7):
        document = endpoint(f"e{number}")
        document["metadata"]["labels"] = {"odd": str(bool(number % 2)).lower()}
        await http.post(PATH, json=document)
    names: list[str] = []
    query: dict[str, Any] = {"limit": 2, "labelSelector": "odd=false"}
    for _ in range(5):
        page = (await http.get(PATH, params=query)).json()
        names += [item["metadata"]["name"] for item in page["items"]]
        if "continue" not in page:
            break
        assert len(page["items"]) == 2
        query["after"] = page["continue"]

    assert names == ["e0", "e2", "e4", "e6"]
    assert (await http.get(PATH, params={"fieldSelector": "metadata.name=e3"})).json()["items"][0]["kind"]
    for path in (PATH, f"{PATH}/watch", "/v1/resources", "/v1/resources/watch", "/v1/tasks", "/v1/tasks/watch"):
        told = await http.get(path, params={"fieldSelector": "status.phse!=Ready"})
        assert (told.status_code, told.json()["hint"]) == (400, "did you mean status.phase?"), path
    for bad in ({"labelSelector": "a=("}, {"after": "WyJ4Il0"}, {"limit": "many"}, {"fieldSelector": "nothing=1"}):
        answer = await http.get(PATH, params=bad)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


async def test_secret_values_are_never_told(http: httpx.AsyncClient) -> None:
    secret = {"metadata": {"name": "key"}, "spec": {"stringData": {"token": "hunter2hunter2"}}}

    answers = [
        await http.post("/v1/secrets", json=secret),
        await http.get("/v1/secrets/key"),
        await http.get("/v1/secrets"),
        await http.put("/v1/secrets/key", json={**secret, "spec": {"nonsense": "hunter2hunter2"}}),
    ]

    assert [answer.status_code for answer in answers] == [201, 200, 200, 422]
    assert "hunter2" not in "".join(answer.text for answer in answers)


async def test_a_dry_run_does_not_tell_a_secret_either(http: httpx.AsyncClient) -> None:
    secret = {"metadata": {"name": "key"}, "spec": {"data": {"token": "aHVudGVyMmh1bnRlcjI="}}}

    planned = await http.post("/v1/secrets", json=secret, params={"dryRun": "true"})
    await http.post("/v1/secrets", json=secret)
    patched = await http.patch("/v1/secrets/key", json={"spec": secret["spec"]}, params={"dryRun": "true"})
    empty = await http.post("/v1/secrets", json={"metadata": {"name": "none"}}, params={"dryRun": "true"})

    assert [planned.status_code, patched.status_code, empty.status_code] == [201, 200, 201]
    assert "aHVudGVy" not in planned.text + patched.text


@pytest.mark.parametrize("plural", ["memories", "agent-roles", "tool-permissions", "secrets", "workers"])
async def test_what_needs_no_spec_can_do_without(http: httpx.AsyncClient, plural: str) -> None:
    made = await http.post(f"/v1/{plural}", json={"metadata": {"name": "bare"}})
    bundle = {"kind": made.json()["kind"], "metadata": {"name": "bare-too"}}

    assert made.status_code == 201, made.text
    assert (await http.post("/v1/apply", json=bundle)).status_code == 200


async def test_a_system_without_anything_is_refused_in_words(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/agent-systems", json={"metadata": {"name": "bare"}})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_manifest")


async def test_an_unknown_kind_is_not_there(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/dragons")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "agents" in answer.json()["hint"]


async def test_each_write_is_in_the_audit_log(http: httpx.AsyncClient, runtime: Any) -> None:
    await http.post(PATH, json=endpoint(), headers={"X-Request-ID": "r-1"})
    await http.delete(f"{PATH}/local")

    from foliot.store.audit.log import AuditFilter, SqlAuditLog

    records = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(moment="act"))
    told = [(each.body["outcome"], each.body["resource"]["name"], each.body["caller"]["user"]) for each in records]
    assert told == [("deleted", "local", "anonymous"), ("created", "local", "anonymous")]
    assert records[1].body["request"] == "r-1"


async def test_a_bundle_is_applied_as_a_whole(http: httpx.AsyncClient) -> None:
    text = """
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: local}
spec: {provider: mock}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: helper}
spec: {model_ref: local, prompt: help}
"""
    planned = await http.post("/v1/apply", content=text, params={"dryRun": "true"})
    done = await http.post("/v1/apply", content=text)
    again = await http.post("/v1/apply", content=text)

    assert [each["action"] for each in planned.json()["outcomes"]] == ["created", "created"]
    assert [each["action"] for each in done.json()["outcomes"]] == ["created", "created"]
    assert [each["action"] for each in again.json()["outcomes"]] == ["unchanged", "unchanged"]
    broken = await http.post("/v1/apply", content=text + "---\nkind: Agent\nmetadata: {name: x}\nspec: {nope: 1}\n")
    assert broken.status_code == 422
    assert (await http.post("/v1/apply", content=text, params={"prune": ""})).status_code == 400
