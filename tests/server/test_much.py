"""A server whose store has too much to look through goes on, and says so to whoever asked."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.store import queries
from tests.store.test_readers import ENDLESS, Clock

LISTS = {
    "/v1/runs": "run_keys_everywhere",
    "/v1/runs?agent=clerk&namespace=default": "run_keys_of_agent",
    "/v1/runs?phase=failed&namespace=default": "run_keys_in_phases",
    "/v1/tasks": "task_keys_everywhere",
    "/v1/tasks?phase=waiting&namespace=default": "task_keys_in_phases",
    "/v1/tasks?phase=failed&namespace=default": "task_keys_in_phases",
    "/v1/tasks?target=desk&namespace=default": "task_keys_of_target",
    "/v1/tasks?labelSelector=team%3Da&namespace=default": "task_keys_of_label",
    "/v1/audit?namespace=default": "audit_find",
    "/v1/audit?tool=http&namespace=default": "audit_find_tool",
}


@pytest.mark.parametrize(("path", "query"), LISTS.items())
async def test_a_list_that_does_not_end_stops_nobody_else(
    path: str, query: str, runtime: Runtime, http: httpx.AsyncClient
) -> None:
    clock, inside = Clock(), runtime.inside.database
    store: Any = inside
    store._texts = {**queries.load(), query: ENDLESS}
    store._threads._clock = clock

    asked = asyncio.ensure_future(http.get(path))
    assert (await http.get("/healthz")).status_code == 200
    other = "/v1/sessions" if path.startswith("/v1/tasks") else "/v1/tasks?namespace=default&phase=cancelled"
    assert (await http.get(other)).status_code == 200
    assert not asked.done()
    await clock.pass_deadlines()

    answer = await asked
    assert answer.status_code == 503
    assert answer.json()["code"] == "read_too_long"
    assert query in answer.json()["detail"]
    assert "namespace" in answer.json()["hint"]
