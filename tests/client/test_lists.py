"""Lists are what was asked for: every filter arrives over HTTP, and none ends before its end without saying so."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from foliot import AuditFilter, Client
from foliot.engine.approval import questions
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.runtime.local import work
from foliot.server.http import names
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Filter, Requirement
from foliot.store.journal.base import Entry, NewRun, RunInfo
from foliot.store.queue import queue

LONG_AGO = 1.7e9


def entry(n: int) -> dict[str, Any]:
    metering = {"attempts": 1, "seconds": 0.0, "bytes_in": 0, "bytes_out": 0}
    named = {name: f"{name}{n}" for name in ("namespace", "agent", "tool", "run_id", "call_id")}
    words = {"moment": "finished", "outcome": "ok"} if n == 1 else {"moment": "refused", "outcome": "denied"}
    return {**named, **words, "at": LONG_AGO + 100.0 * n, "metering": metering}


# One value for each field of the filter, by which the first of two records is found and the second is not.
FIRST_ALONE: dict[str, Any] = {**entry(1), "until": LONG_AGO + 150.0}


@pytest.mark.parametrize("field", fields(AuditFilter), ids=lambda field: field.name)
async def test_every_field_of_a_filter_of_records_narrows_the_list_and_the_totals(both, field) -> None:
    await SqlAuditLog(both.runtime.inside.database).append([entry(1), entry(2)])
    is_since = field.name == "since"
    wanted = AuditFilter(**{field.name: LONG_AGO + 150.0 if is_since else FIRST_ALONE[field.name]})

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


# --- lists that are longer than a page -------------------------------------------------------------------------------

PAGE = 3
MORE = 3 * PAGE + 1
ASKER: list[dict[str, Any]] = [
    {"kind": "Agent", "metadata": {"name": "asker"}, "spec": {"model_ref": "m", "tools": ["ask_user"]}},
    {
        "kind": "ModelEndpoint",
        "metadata": {"name": "m"},
        "spec": {
            "provider": "scripted",
            "default_model": "m",
            "script": [{"call": {"ask_user": {"question": "Which colour?"}}}, {"say": "It is {last_result}."}],
        },
    },
]


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of three: a list of ten shows what becomes of one of ten thousand."""
    monkeypatch.setattr(names, "MOST", PAGE)
    for module, name in ((questions, "AT_ONCE"), (work, "PAGE"), (queue, "PAGE")):
        monkeypatch.setattr(module, name, PAGE)


async def left(both, run_id: str, **waiting: Any) -> None:
    """Makes a run that its process left behind, or that waits."""
    journal = both.runtime.inside.runs.journal
    run = NewRun(run_id, "default", "asker", "sha256:0", 100.0)
    lease = await journal.create(run, [Entry(1, 100.0, "run.created", b"{}")], worker="gone", lease_until=1.0)
    if waiting:
        await journal.append(lease, [], phase="waiting", summary={"waiting": {"until": None, **waiting}})


async def test_an_interrupted_run_is_listed_however_many_newer_ones_wait(both, short_pages) -> None:
    await left(both, "old")
    for n in range(MORE):
        await left(both, f"waits{n}", reason="input")
    for n in range(MORE):
        await left(both, f"new{n}")

    assert [info.id for info in await both.client.runs.interrupted()] == ["old", *(f"new{n}" for n in range(MORE))]
    assert await both.client.runs.interrupted(namespace="team") == []


async def test_all_open_questions_are_listed_and_those_of_one_run_alone(both, short_pages) -> None:
    await both.client.resources.apply(ASKER)
    ids = [f"r{n:02}" for n in range(MORE)]
    for run_id in ids:
        await both.runtime.run("asker", "go", run_id=run_id, check=False)

    found = await both.client.questions.list()
    (alone,) = await both.client.questions.list(run="r00")

    assert [each.run_id for each in found] == ids
    assert alone == found[0]
    assert alone == questions.questions_of((await both.runtime.inside.runs.load("r00"))[1])[0]
    assert await both.client.questions.list(namespace="team", run="r00") == []
    with pytest.raises(NotFound):
        await both.client.questions.list(run="none")


async def test_a_text_that_begins_several_ids_is_answered_with_the_oldest_of_them_too(both) -> None:
    for run_id in ("pair-1", "pair-2", *(f"other{n}" for n in range(5))):
        await left(both, run_id)

    with pytest.raises(Conflict, match=r"(?s)pair-1.*pair-2"):
        await both.client.runs.find("pair")


async def test_as_many_runs_tasks_and_records_come_as_were_asked_for(both, monkeypatch) -> None:
    monkeypatch.setattr(names, "MOST", PAGE)
    for n in range(MORE):
        await left(both, f"r{n}", reason="input")
    await SqlAuditLog(both.runtime.inside.database).append([entry(n) for n in range(1, MORE + 1)])

    def ids(found: list[RunInfo]) -> list[str]:
        return [info.id for info in found]

    assert ids(await both.client.runs.list(limit=500)) == [f"r{n}" for n in reversed(range(MORE))]
    assert ids(await both.client.runs.list(limit=PAGE + 1)) == [f"r{n}" for n in reversed(range(MORE))][: PAGE + 1]
    older = [f"r{n}" for n in reversed(range(3))]
    assert ids(await both.client.runs.list(before="r3")) == older
    assert ids(await both.client.runs.list(before="r3", limit=2)) == older[:2]
    with pytest.raises(NotFound):
        await both.client.runs.list(before="r999")
    newest = [record.seq for record in await both.client.audit.list(limit=500)]
    assert len(newest) >= MORE
    assert [record.seq for record in await both.client.audit.list(limit=5, before=newest[1])] == newest[2:7]


@pytest.mark.parametrize("path", ["/v1/interrupted-runs", "/v1/questions", "/v1/tasks"])
@pytest.mark.parametrize("cursor", ["none", "bnVsbA", "cnVuOjk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk"])
async def test_a_cursor_of_another_list_or_of_nobody_is_refused(site, path: str, cursor: str) -> None:
    async with Client(site.url, token=await site.token()) as client:
        with pytest.raises(InvalidInput):
            await client.runs._page(path, cursor=cursor)


async def test_how_a_run_stands_and_why_are_told_of_one_reading_of_its_journal(both, monkeypatch) -> None:
    await both.client.resources.apply(ASKER)
    await both.runtime.run("asker", "go", run_id="r", check=False)
    journal, reads = both.runtime.inside.runs.journal, list[str]()
    read = journal.read

    async def counted(run_id: str, **options: Any) -> Any:
        reads.append(run_id)
        return await read(run_id, **options)

    monkeypatch.setattr(journal, "read", counted)
    for verb in (both.client.runs.get, both.client.runs.why, both.client.runs.wait):
        reads.clear()
        await verb("r")
        assert reads == ["r"], verb.__name__
