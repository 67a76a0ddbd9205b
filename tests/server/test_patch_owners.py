"""A patch owns what it named and what it changed: the next apply hears of it."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest

from foliot.resources.field_owners import leaves, pointer
from foliot.runtime.runtime import Runtime
from foliot.store.base import Document, Key

SECRET = "{kind: Secret, metadata: {name: one}, spec: {stringData: {a: hunter2}}}"
AGENT = "{kind: Agent, metadata: {name: one}, spec: {model_ref: brain, limits: {max_steps: 7}}}"


async def applied(http: httpx.AsyncClient, text: str, **query: str) -> httpx.Response:
    return await http.post("/v1/apply", content=text, params=query)


async def patched(http: httpx.AsyncClient, path: str, body: Document, **query: str) -> Document:
    answer = await http.patch(path, json=body, params={"fieldManager": "bot", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def owned(http: httpx.AsyncClient, path: str) -> dict[str, list[str]]:
    shown = (await http.get(path, params={"managedFields": "true"})).json()
    return {each["manager"]: each["fields"] for each in shown["metadata"]["managedFields"]}


@pytest.mark.parametrize(
    "named", [{"stringData": {"b": "sesame"}}, {"string_data": {"b": "sesame"}}, {"data": {"b": "c2VzYW1l"}}]
)
async def test_a_secret_value_is_owned_in_whatever_form_it_came(
    http: httpx.AsyncClient, runtime: Runtime, named: Document
) -> None:
    await applied(http, SECRET)
    await patched(http, "/v1/secrets/one", {"spec": named})

    assert await owned(http, "/v1/secrets/one") == {"foliot": ["/spec/data/a"], "bot": ["/spec/data/b"]}
    assert (await applied(http, SECRET)).status_code == 200
    assert await runtime.inside.resources.reveal(Key("Secret", "default", "one")) == {"a": b"hunter2", "b": b"sesame"}


async def test_a_secret_value_that_was_rotated_is_not_overwritten(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await applied(http, SECRET)
    await patched(http, "/v1/secrets/one", {"spec": {"stringData": {"a": "rotated"}}})

    refused = await applied(http, SECRET)

    assert (refused.status_code, refused.json()["code"]) == (409, "field_conflict")
    assert "rotated" not in refused.text
    assert await runtime.inside.resources.reveal(Key("Secret", "default", "one")) == {"a": b"rotated"}


PATCHES: dict[str, tuple[str, str, Document]] = {
    "texts of a secret": ("secrets", SECRET, {"spec": {"stringData": {"a": "x", "c": "y"}}}),
    "another spelling": ("agents", AGENT, {"spec": {"modelRef": "other", "limits": {"maxSteps": 9}}}),
    "a part of a list": ("agents", AGENT, {"spec": {"tools": ["look", "send@^1"]}}),
    "a label": ("agents", AGENT, {"metadata": {"labels": {"team": "", "tier": "x"}}}),
    "a node of a graph": (
        "agent-systems",
        "{kind: AgentSystem, metadata: {name: one}, spec: {agents: [a, b], graph: {a: {next: b}}}}",
        {"spec": {"graph": {"a": {"next": None, "edges": [{"to": "b"}]}, "b": {}}}},
    ),
    "a header and a timeout": (
        "tools",
        "{kind: Tool, metadata: {name: one}, spec: {type: http, endpoint: 'https://a.example', http: {query: {q: x}}}}",
        {"spec": {"http": {"headers": {"X-A": "1"}}, "runtime": {"timeout": "90s"}}},
    ),
}


@pytest.mark.parametrize("what", PATCHES)
async def test_every_field_that_a_patch_gave_another_value_is_its_own(http: httpx.AsyncClient, what: str) -> None:
    path, manifest, patch = PATCHES[what]
    assert (await applied(http, manifest)).status_code == 200
    before = (await http.get(f"/v1/{path}/one")).json()

    after = await patched(http, f"/v1/{path}/one", patch)

    changed = {
        pointer(field)
        for field, value in leaves(after).items()
        if json.dumps(value) != json.dumps(leaves(before).get(field))
    }
    assert changed, "the patch changes something"
    mine = set((await owned(http, f"/v1/{path}/one"))["bot"])
    assert changed <= mine


async def test_a_field_is_owned_by_a_patch_that_names_it_at_the_value_it_has(http: httpx.AsyncClient) -> None:
    await applied(http, AGENT)
    before = (await http.get("/v1/agents/one")).json()
    named = {"spec": {"limits": {"max_steps": 7}}}

    foretold = await patched(http, "/v1/agents/one", named, dryRun="true")
    assert (await http.get("/v1/agents/one")).json() == before
    after = await patched(http, "/v1/agents/one", named)
    again = await patched(http, "/v1/agents/one", named)

    assert foretold["spec"] == after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"], "who owns it has changed"
    assert again == after
    assert (await owned(http, "/v1/agents/one"))["bot"] == ["/spec/limits/max_steps"]
    await applied(http, "{kind: Agent, metadata: {name: one}, spec: {model_ref: brain}}")
    assert (await http.get("/v1/agents/one")).json()["spec"]["limits"]["max_steps"] == 7


async def test_a_secret_value_is_owned_by_a_patch_that_says_it_again(http: httpx.AsyncClient) -> None:
    await applied(http, SECRET)

    await patched(http, "/v1/secrets/one", {"spec": {"stringData": {"a": "hunter2"}}})

    assert await owned(http, "/v1/secrets/one") == {"foliot": ["/spec/data/a"], "bot": ["/spec/data/a"]}


async def test_a_patch_that_names_nothing_is_no_change(http: httpx.AsyncClient) -> None:
    await applied(http, AGENT)
    before = (await http.get("/v1/agents/one", params={"managedFields": "true"})).json()

    for nothing in ({}, {"spec": {}}, {"metadata": {"labels": {"team": None}}}):
        await patched(http, "/v1/agents/one", nothing)

    assert (await http.get("/v1/agents/one", params={"managedFields": "true"})).json() == before


async def test_what_a_patch_takes_away_falls_back_and_belongs_to_nobody(http: httpx.AsyncClient) -> None:
    await applied(http, AGENT)

    await patched(http, "/v1/agents/one", {"spec": {"limits": {"max_steps": None}, "description": "x"}})

    assert await owned(http, "/v1/agents/one") == {"foliot": ["/spec/model_ref"], "bot": ["/spec/description"]}
    assert (await applied(http, AGENT)).status_code == 200
