"""A default that follows from another field follows it however that is changed, and the rules that go by it hold."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.local.resources import LocalResources
from foliot.runtime.runtime import Runtime
from foliot.store.base import DeclaredBy, Document

READS = {"type": "function", "function": "foliot.testing:x", "effect": "read"}


def tool(spec: dict[str, Any], name: str = "pay", **metadata: Any) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "Tool",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": spec,
    }


async def change(http: httpx.AsyncClient, how: str, changes: dict[str, Any]) -> Document:
    """Changes the tool as somebody would who says nothing but these fields."""
    read = (await http.get("/v1/tools/pay")).json()
    match how:
        case "patch":
            answer = await http.patch("/v1/tools/pay", json={"spec": changes})
        case "put":
            read["spec"].update(changes)
            answer = await http.put("/v1/tools/pay", json=read)
        case "if-match":
            read["spec"].update(changes)
            version = read["metadata"].pop("resourceVersion")
            answer = await http.put("/v1/tools/pay", json=read, headers={"If-Match": version})
        case "post":
            read["spec"].update(changes)
            answer = await http.post("/v1/tools", json=read)
        case _:
            answer = await http.post("/v1/apply", json=tool({**READS, **changes}), params={"forceConflicts": "true"})
    assert answer.status_code == 200, answer.text
    return (await http.get("/v1/tools/pay")).json()["spec"]


WAYS = ["patch", "put", "if-match", "post", "apply"]


@pytest.fixture(params=["post", "apply"])
async def declared(request: pytest.FixtureRequest, http: httpx.AsyncClient) -> None:
    path = "/v1/tools" if request.param == "post" else "/v1/apply"
    assert (await http.post(path, json=tool(READS))).status_code in (200, 201)


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("how", WAYS)
async def test_the_class_of_a_tool_follows_its_effect(http: httpx.AsyncClient, how: str) -> None:
    changed = await change(http, how, {"effect": "once"})
    assert (changed["effect"], changed["operation_classes"]) == ("once", ["write"])
    back = await change(http, how, {"effect": "read"})
    assert (back["effect"], back["operation_classes"]) == ("read", ["read"])


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("how", WAYS)
async def test_what_contains_a_tool_follows_its_risk(http: httpx.AsyncClient, how: str) -> None:
    changed = await change(http, how, {"risk_level": "critical"})
    assert (changed["runtime"]["isolation_mode"], changed["operation_classes"]) == ("sandboxed", ["write"])


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("how", ["patch", "put", "post"])
async def test_a_class_that_was_said_stays(http: httpx.AsyncClient, how: str) -> None:
    await http.patch("/v1/tools/pay", json={"spec": {"operation_classes": ["read"]}})
    changed = await change(http, how, {"effect": "once"})
    assert changed["operation_classes"] == ["read"]
    unsaid = await http.patch("/v1/tools/pay", json={"spec": {"operation_classes": None}})
    assert unsaid.json()["spec"]["operation_classes"] == ["write"]
    assert (await change(http, how, {"effect": "read"}))["operation_classes"] == ["read"]


async def test_what_is_said_in_a_whole_document_of_ones_own_is_said(http: httpx.AsyncClient) -> None:
    """It names no version, and so nobody sends back what they have read."""
    await http.post("/v1/tools", json=tool(READS))
    await http.post("/v1/tools", json=tool({**READS, "effect": "once", "operation_classes": ["read"]}))
    assert (await http.get("/v1/tools/pay")).json()["spec"]["operation_classes"] == ["read"]
    assert (await change(http, "patch", {"effect": "idempotent"}))["operation_classes"] == ["read"]


async def test_a_total_time_that_is_said_another_way_is_said(http: httpx.AsyncClient) -> None:
    await http.post("/v1/tools", json=tool({**READS, "runtime": {"timeouts": {"total": "7s"}}}))
    assert (await change(http, "patch", {"effect": "once"}))["runtime"]["timeout"] == "7s"


async def test_defaults_that_were_sent_back_belong_to_nobody(http: httpx.AsyncClient) -> None:
    """A label that is put on what was read makes none of its defaults somebody's."""
    await http.post("/v1/apply", json=tool(READS))
    read = (await http.get("/v1/tools/pay")).json()
    read["metadata"]["labels"] = {"team": "x"}
    assert (await http.put("/v1/tools/pay", json=read)).status_code == 200
    shown = (await http.get("/v1/tools/pay", params={"managedFields": "true"})).json()
    fields = {each["manager"]: each["fields"] for each in shown["metadata"]["managedFields"]}
    assert fields == {
        "foliot": ["/spec/effect", "/spec/function", "/spec/type"],
        "foliot-put": ["/metadata/labels/team"],
    }
    assert (await http.post("/v1/apply", json=tool({**READS, "risk_level": "high"}))).status_code == 200


async def test_an_edit_of_what_was_read_gives_the_same(http: httpx.AsyncClient, runtime: Runtime) -> None:
    """As `foliot edit` on a store does it: the whole document comes back, with its defaults."""
    await http.post("/v1/tools", json=tool(READS))
    client = LocalResources(runtime.inside.resources, by=DeclaredBy("me", operator=True))
    read = await client.get("Tool", "pay")
    edited = {**read, "spec": {**read["spec"], "effect": "once", "risk_level": "critical"}}
    spec = (await client.replace(edited)).document["spec"]
    assert (spec["operation_classes"], spec["runtime"]["isolation_mode"]) == (["write"], "sandboxed")
    assert (await change(http, "patch", {"effect": "read", "risk_level": "low"}))["operation_classes"] == ["read"]
