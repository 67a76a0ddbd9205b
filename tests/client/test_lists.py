"""Lists are what was asked for: every filter arrives over HTTP, and none ends before its end without saying so."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from foliot import AuditFilter
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Filter, Requirement


def entry(n: int) -> dict[str, Any]:
    metering = {"attempts": 1, "seconds": 0.0, "bytes_in": 0, "bytes_out": 0}
    named = {name: f"{name}{n}" for name in ("namespace", "agent", "tool", "run_id", "call_id", "outcome")}
    return {**named, "at": 100.0 * n, "moment": "finished" if n == 1 else "refused", "metering": metering}


# One value for each field of the filter, by which the first of two records is found and the second is not.
FIRST_ALONE: dict[str, Any] = {**entry(1), "until": 150.0}


@pytest.mark.parametrize("field", fields(AuditFilter), ids=lambda field: field.name)
async def test_every_field_of_a_filter_of_records_narrows_the_list_and_the_totals(both, field) -> None:
    await SqlAuditLog(both.runtime.inside.database).append([entry(1), entry(2)])
    is_since = field.name == "since"
    wanted = AuditFilter(**{field.name: 150.0 if is_since else FIRST_ALONE[field.name]})

    found = await both.client.audit.list(wanted)
    totals = await both.client.audit.totals(wanted, by="agent")

    alone = "agent2" if is_since else "agent1"
    assert [record.body["agent"] for record in found] == [alone]
    assert [total.name for total in totals] == [alone]
    assert len(await both.client.audit.list(AuditFilter(until=math.inf))) >= 2


# One value for each field of the filter, by which one of the resources of the test below is left out.
SELECTED: dict[str, Any] = {
    "kind": "AgentRole",
    "namespace": "default",
    "labels": (Requirement("app", "=", ("x",)),),
    "fields": (Requirement("metadata.name", "=", ("a",)),),
}


@pytest.mark.parametrize("field", fields(Filter), ids=lambda field: field.name)
async def test_every_field_of_a_filter_of_resources_narrows_the_list(both, field) -> None:
    def role(name: str, namespace: str, app: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace, "labels": {"app": app}}
        return {"kind": "AgentRole", "metadata": metadata, "spec": {"permissions": []}}

    await both.client.resources.apply([role("a", "default", "x"), role("b", "team", "y")])
    policy = {"kind": "Budget", "metadata": {"name": "c"}, "spec": {"window": "day", "limit": {"tokens": 5}}}
    await both.client.resources.apply([policy])
    kind = {} if field.name == "kind" else {"kind": "AgentRole"}

    found = await both.client.resources.list(Filter(**{**kind, field.name: SELECTED[field.name]}))

    names = [document["metadata"]["name"] for document in found.items]
    assert names == (["a", "b"] if field.name == "kind" else ["a"])
