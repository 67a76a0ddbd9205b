"""Who wrote what: the record is there exactly when the write is."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import apsw
import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.settings.settings import Settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import Key, Put

PATH = "/v1/model-endpoints"


def endpoint(name: str, model: str = "m") -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name},
        "spec": {"provider": "mock", "default_model": model},
    }


async def acts(runtime: Runtime) -> list[tuple[str, str, str]]:
    """What was done to what by which request, oldest first."""
    found = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(moment="act"), limit=500)
    return [
        (each.body["outcome"], f"{each.body['resource']['kind']}/{each.body['resource']['name']}", each.body["request"])
        for each in reversed(found)
    ]


async def test_each_way_to_write_leaves_one_record(http: httpx.AsyncClient, runtime: Runtime) -> None:
    def by(request: str) -> dict[str, str]:
        return {"X-Request-ID": request, "If-Match": "*"}

    await http.post(PATH, json=endpoint("a"), headers={"X-Request-ID": "r1"})
    await http.put(f"{PATH}/a", json=endpoint("a", "n"), headers=by("r2"))
    await http.patch(f"{PATH}/a", json={"spec": {"default_model": "o"}}, headers=by("r3"))
    await http.put(f"{PATH}/a/status", json={"phase": "Ready"}, headers=by("r4"))
    items = {"kind": "List", "items": [endpoint("a", "p"), endpoint("b")]}
    await http.post("/v1/apply?forceConflicts=true", json=items, headers=by("r5"))
    await http.delete(f"{PATH}/a", headers=by("r6"))

    a, b = "ModelEndpoint/a", "ModelEndpoint/b"
    assert await acts(runtime) == [
        ("created", a, "r1"),
        ("updated", a, "r2"),
        ("updated", a, "r3"),
        ("status_written", a, "r4"),
        ("updated", a, "r5"),
        ("created", b, "r5"),
        ("deleted", a, "r6"),
    ]
    assert (await SqlAuditLog(runtime.inside.tasking.database).verify()).broken is None


async def test_what_changes_nothing_or_is_refused_leaves_none(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await http.post(PATH, json=endpoint("a"), headers={"X-Request-ID": "first"})

    await http.post(PATH, json=endpoint("a"))
    await http.post(PATH, json=endpoint("b"), params={"dryRun": "true"})
    assert (await http.put(f"{PATH}/a", json=endpoint("a", "x"), headers={"If-Match": '"99"'})).status_code == 409
    assert (await http.delete(f"{PATH}/nobody")).status_code == 404
    bundle = {"kind": "List", "items": [endpoint("c"), {"kind": "Agent", "metadata": {"name": "d"}, "spec": {}}]}
    assert (await http.post("/v1/apply", json=bundle)).status_code == 422

    assert [act[2] for act in await acts(runtime)] == ["first"]


async def test_nothing_is_written_that_cannot_be_recorded(
    http: httpx.AsyncClient, runtime: Runtime, settings: Settings
) -> None:
    await runtime.inside.resources.write([Put(endpoint("a"))])
    with closing(apsw.Connection(str(settings.home / "foliot.db"))) as file:
        file.execute("DELETE FROM audit_head")

    refused = [
        await http.post(PATH, json=endpoint("b")),
        await http.patch(f"{PATH}/a", json={"spec": {"default_model": "other"}}),
        await http.delete(f"{PATH}/a"),
        await http.post("/v1/apply", json=endpoint("c")),
    ]

    assert [answer.status_code for answer in refused] == [503] * 4
    assert all("cannot be recorded" in answer.json()["detail"] for answer in refused)
    listed = (await http.get(PATH)).json()["items"]
    assert [(item["metadata"]["name"], item["spec"]["default_model"]) for item in listed] == [("a", "m")]


async def test_work_that_no_resource_declares_is_recorded_when_it_is_ended(
    http: httpx.AsyncClient, runtime: Runtime
) -> None:
    await http.post(PATH, json=endpoint("m"))
    agent = {"metadata": {"name": "g"}, "spec": {"model_ref": "m", "prompt": "p"}}
    assert (await http.post("/v1/agents", json=agent)).status_code == 201
    task = {"metadata": {"name": "t"}, "spec": {"agent": "g", "input": {"topic": "hi"}}}
    assert (await http.post("/v1/tasks", json=task)).status_code == 201

    assert (await http.delete("/v1/tasks/t")).status_code == 204

    assert ("deleted", "Task/t") in [act[:2] for act in await acts(runtime)]
    with pytest.raises(Exception, match="no Task/t"):
        await runtime.inside.resources.get(Key("Task", "default", "t"))
