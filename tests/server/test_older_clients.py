"""A client of the earlier API, unmodified, sees what happens: events of tasks, phases, traces, workers.

It reads streams as that client did: every `data:` line is an event, and what is not one of its members is ignored.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import click
import httpx2 as httpx
import pytest

from foliot.cli.commands.server import up
from foliot.cli.commands.worker import worker
from foliot.errors import Gone
from foliot.resources.validate import validate_document
from foliot.runtime.local import resources
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.server.errors import BadParameter
from foliot.server.streams.event_watch import EventWatch, Position, check_position, position_of
from foliot.settings.settings import Settings, load_settings
from foliot.store.base import Filter, Put
from foliot.store.queue.claims import claim
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import register

SOON = 60.0
OLD = "orloj.dev/v1"
EVENT = {"id", "timestamp", "source", "type", "kind", "name", "namespace", "action", "message", "data"}
TRACE = {
    *("timestamp", "step_id", "attempt", "step", "branch_id", "type", "agent", "tool", "tool_request_id"),
    *("tool_attempt", "error_code", "error_reason", "retryable", "message", "latency_ms", "tokens", "input_tokens"),
    *("output_tokens", "token_usage_source", "tool_calls", "memory_writes", "worker"),
}
DECLARED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ModelEndpoint", "brain", {"provider": "mock", "default_model": "m"}),
    ("ModelEndpoint", "broken", {"provider": "scripted", "default_model": "m", "script": [{"fail": {"kind": "auth"}}]}),
    *(("Agent", name, {"model_ref": "brain", "prompt": "Work."}) for name in ("ask", "left", "right", "sum")),
    ("Agent", "clumsy", {"model_ref": "broken", "prompt": "Fail."}),
    (
        "AgentSystem",
        "crew",
        {
            "agents": ["ask", "left", "right", "sum"],
            "graph": {
                "ask": {"edges": [{"to": "left"}, {"to": "right"}]},
                "left": {"next": "sum"},
                "right": {"next": "sum"},
            },
        },
    ),
)


def put(kind: str, name: str, spec: dict[str, Any]) -> Put:
    metadata = {"name": name, "namespace": "default"}
    made, problems = validate_document(
        {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}
    )
    assert made is not None, problems
    return Put(made)


class Office:
    """A server and its worker, on a store of their own."""

    def __init__(self, runtime: Runtime, http: httpx.AsyncClient, services: Any) -> None:
        self.runtime, self.http, self.services = runtime, http, services

    async def submit(self, name: str, **target: str) -> dict[str, Any]:
        body = {"apiVersion": OLD, "kind": "Task", "metadata": {"name": name}, "spec": target}
        answer = await self.http.post("/v1/tasks", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def task(self, name: str) -> dict[str, Any]:
        return (await self.http.get(f"/v1/tasks/{name}")).json()

    async def work(self, name: str = "w1") -> None:
        offer = Offer(name, self.runtime.inside.runs.worker, capacity=2)
        async with asyncio.timeout(SOON):
            await self.runtime.inside.tasking.worker(offer, grace=0, once=True).run()

    async def events(self, after: str | None = None, **wanted: Any) -> Events:
        start = await check_position(self.services, after, work=True)
        watch = EventWatch(self.services, Filter(), start, **wanted)
        stream = Events(watch.frames())
        await stream.begin()
        return stream


class Events:
    """A stream of events, read one after the other."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self._frames = frames
        self._ready: list[dict[str, Any]] = []
        self.places: list[str] = []

    async def begin(self) -> None:
        """Reads what comes ahead of the first event: no line of it is data."""
        first = (await anext(self._frames)).decode()
        assert "data:" not in first
        self.places.append(first.split("id: ")[1].strip())

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(SOON):
            while not self._ready:
                for frame in (await anext(self._frames)).decode().split("\n\n"):
                    lines = dict(line.split(": ", 1) for line in frame.splitlines())
                    if "data" in lines:
                        data = json.loads(lines["data"])
                        assert (lines["event"], lines["id"]) == ("event", str(data["id"]))
                        self._ready.append(data)
        event = self._ready.pop(0)
        self.places.append(str(event["id"]))
        return event

    async def types(self, count: int) -> list[str]:
        return [(await self.next())["type"] for _ in range(count)]

    async def close(self) -> str:
        await self._frames.aclose()
        return self.places[-1]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def offices(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[list[Office]]:
    """Two processes, as far as the store can tell."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        settings = load_settings({"home": str(settings.home), "store": url}, {})
    async with AsyncExitStack() as stack:
        made: list[Office] = []
        for _ in range(2):
            runtime = await stack.enter_async_context(Runtime(settings=settings))
            app = create_app(runtime, settings=settings, auth=Anonymous())
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://localhost"))
            made.append(Office(runtime, http, app.state.services))
        await made[0].runtime.inside.resources.write([put(*each) for each in DECLARED])
        yield made


@pytest.fixture
def office(offices: list[Office]) -> Office:
    return offices[0]


# --- events ------------------------------------------------------------------------------------------------------


async def test_a_task_is_created_claimed_and_ended(office: Office) -> None:
    stream = await office.events()
    await office.submit("first", agent="ask")
    created = await stream.next()
    assert created.keys() == EVENT
    assert (created["type"], created["source"], created["action"]) == ("resource.created", "apiserver", "created")
    assert (created["kind"], created["name"], created["namespace"]) == ("Task", "first", "default")

    await office.work()
    claimed, running, ended = [await stream.next() for _ in range(3)]
    assert [each["type"] for each in (claimed, running, ended)] == ["task.claimed", "task.running", "task.succeeded"]
    assert {each["source"] for each in (claimed, running, ended)} == {"task-controller"}
    assert (claimed["data"]["worker"], claimed["message"]) == ("w1", "claimed by w1")
    assert created["timestamp"] <= claimed["timestamp"] <= ended["timestamp"]
    ids = [int(place) for place in stream.places]
    assert ids == sorted(set(ids))
    assert max(ids) < 2**64
    await stream.close()


async def test_a_task_that_was_done_between_two_looks_is_told_whole(office: Office) -> None:
    begun = await check_position(office.services, None, work=True)
    await office.submit("quick", system="crew")
    await office.work()
    await office.submit("wrong", agent="clumsy")
    await office.work()
    stream = await office.events(str(begun.id))
    found = [await stream.next() for _ in range(8)]
    told = {name: [each["type"] for each in found if each["name"] == name] for name in ("quick", "wrong")}
    begins = ["resource.created", "task.claimed", "task.running"]
    assert told == {"quick": [*begins, "task.succeeded"], "wrong": [*begins, "task.deadletter"]}
    assert next(each["message"] for each in found if each["type"] == "task.deadletter")
    await stream.close()


async def test_what_had_happened_before_is_not_told_to_a_stream_from_now_on(office: Office) -> None:
    await office.submit("old", agent="ask")
    await office.work()
    made = await office.submit("waits", agent="ask")
    now = datetime.fromisoformat(made["metadata"]["createdAt"]).timestamp() + 0.001
    stream = await office.events(since=now)
    await office.submit("new", agent="ask")
    assert (await stream.next())["name"] == "new"
    await office.work()
    found = [await stream.next() for _ in range(6)]
    assert {each["name"] for each in found} == {"waits", "new"}
    for name in ("waits", "new"):
        types = [each["type"] for each in found if each["name"] == name]
        assert types == ["task.claimed", "task.running", "task.succeeded"]
    await stream.close()


async def test_a_stream_goes_on_in_another_process_also_in_the_middle_of_a_task(offices: list[Office]) -> None:
    here, there = offices
    begun = await check_position(here.services, None, work=True)
    await here.submit("t", agent="ask")
    await here.work()
    whole = ["resource.created", "task.claimed", "task.running", "task.succeeded"]
    place = str(begun.id)
    for count in range(len(whole)):  # it breaks off after every single event
        stream = await (here, there)[count % 2].events(place)
        assert await stream.types(1) == whole[count : count + 1]
        place = await stream.close()
    await there.submit("last", agent="ask")
    stream = await here.events(place)
    assert (await stream.next())["name"] == "last"
    await stream.close()


async def test_resources_and_tasks_come_in_one_stream_and_are_chosen_from(office: Office) -> None:
    stream = await office.events()
    ended = await office.events(type="Task.Succeeded")
    controller = await office.events(source="task-controller")
    role = put("AgentRole", "reader", {"permissions": ["x"]})
    await office.runtime.inside.resources.write([role])
    event = await stream.next()
    assert (event["kind"], event["type"], event["data"]["resource"]["status"]) == (
        *("AgentRole", "resource.created"),
        {"phase": "Ready"},
    )
    await office.submit("t", agent="ask")
    await office.work()
    assert (await stream.types(4))[-1] == "task.succeeded"
    assert await ended.types(1) == ["task.succeeded"]
    assert await controller.types(3) == ["task.claimed", "task.running", "task.succeeded"]
    await office.runtime.inside.tasking.tasks.archive("default", "t", by="me")
    assert await stream.types(1) == ["resource.deleted"]
    for each in (stream, ended, controller):
        await each.close()


async def test_a_task_that_is_declared_is_told_once(office: Office) -> None:
    stream = await office.events()
    manifest = "kind: Task\nmetadata: {name: both}\nspec: {agent: ask}\n"
    applied = await office.http.post("/v1/apply?run=true", content=manifest)
    assert applied.status_code == 200, applied.text
    await office.work()
    found = [await stream.next() for _ in range(4)]
    assert [each["type"] for each in found] == [
        *("resource.created", "task.claimed", "task.running", "task.succeeded"),
    ]
    await stream.close()


async def test_an_id_is_a_place_and_a_revision_is_one_too(office: Office) -> None:
    place = Position(7, 5, 3)
    assert position_of(str(place.id)) == place
    assert position_of("7") == Position(7)
    for wrong in ("x", "-1", "1.2", "9" * 30):
        with pytest.raises(BadParameter):
            position_of(wrong)
    with pytest.raises(Gone):
        await check_position(office.services, str(Position(0, 99).id), work=True)
    with pytest.raises(Gone):
        await check_position(office.services, "99", work=True)
    revision = await office.services.resources.revision()
    assert (await check_position(office.services, str(revision), work=False)).id == revision


# --- phases, traces, workers -------------------------------------------------------------------------------------


async def test_every_agent_and_its_worker_are_seen_also_after_the_end(office: Office) -> None:
    await office.submit("crewed", system="crew")
    await office.work("w1")
    status = (await office.task("crewed"))["status"]
    assert (status["phase"], status["assignedWorker"], "claimedBy" in status) == ("Succeeded", "w1", False)

    assert all(event.keys() <= TRACE for event in status["trace"])
    states: dict[str, str] = {}
    for event in status["trace"]:  # as that client draws the graph of a task
        if event["type"] in ("agent_start", "agent_end", "agent_error"):
            states[event["agent"]] = event["type"]
            assert event["worker"] == "w1"
    assert states == dict.fromkeys(("ask", "left", "right", "sum"), "agent_end")
    assert [event["type"] for event in (status["trace"][0], status["trace"][-1])] == ["task_start", "task_summary"]
    assert [event["step_id"] for event in status["trace"]] == [
        f"a001.s{number:04}" for number in range(1, len(status["trace"]) + 1)
    ]
    ends = [event for event in status["trace"] if event["type"] == "agent_end"]
    assert all(event["tokens"] == event["input_tokens"] + event["output_tokens"] for event in ends)

    types = [entry["type"] for entry in status["history"]]
    assert (types[0], types.count("claim"), types.count("running"), types[-1]) == ("accepted", 4, 1, "succeeded")
    assert {entry["worker"] for entry in status["history"] if entry["type"] != "accepted"} == {"w1"}
    assert {
        message["worker"] for message in status["messages"] if message["phase"] == "succeeded" and "run" in message
    } == {"w1"}
    listed = (await office.http.get("/v1/tasks")).json()["items"][0]["status"]
    assert (listed["assignedWorker"], "trace" in listed) == ("w1", False)
    (join,) = status["join_states"]
    assert (join["node"], join["activated"], len(join["sources"])) == ("sum", True, 2)
    told = (await office.http.get("/v1/tasks/crewed/messages")).json()["messages"]
    assert {message["worker"] for message in told if "run" in message} == {"w1"}


async def test_an_agent_that_failed_is_seen_as_failed(office: Office) -> None:
    await office.submit("wrong", agent="clumsy")
    await office.work("w2")
    status = (await office.task("wrong"))["status"]
    end = next(event for event in status["trace"] if event["type"] == "agent_error")
    assert (end["agent"], end["worker"], bool(end["message"])) == ("clumsy", "w2", True)
    assert any(event["type"] == "model_error" for event in status["trace"])
    assert status["history"][-1]["worker"] == "w2"


async def test_a_task_at_work_shows_who_has_it(offices: list[Office]) -> None:
    here, there = offices
    await here.submit("t", agent="ask")
    offer = Offer("w3", here.runtime.inside.runs.worker, capacity=1)
    database = here.runtime.inside.tasking.database
    now = time.time()
    await register(database, offer, now=now, is_gone=lambda _: False)
    taken = await claim(database, offer, want=1, now=now, until=now + 30)
    assert len(taken.leases) == 1
    for status in (
        (await there.task("t"))["status"],
        (await there.http.get("/v1/tasks")).json()["items"][0]["status"],
    ):
        assert (status["phase"], status["claimedBy"], status["assignedWorker"]) == ("Running", "w3", "w3")
        assert status["leaseUntil"] > status["startedAt"]
    worker = (await there.http.get("/v1/workers/w3")).json()["status"]
    assert (worker["phase"], worker["currentTasks"]) == ("Ready", 1)


async def test_a_worker_that_takes_nothing_more_is_not_ready(office: Office) -> None:
    await office.work("gone")
    status = (await office.http.get("/v1/workers/gone")).json()["status"]
    assert (status["phase"], status["state"], status["lastError"]) == ("NotReady", "stopped", "worker stopped")


@pytest.mark.parametrize("command", [up, worker])
def test_a_worker_that_names_no_region_is_in_the_default_one(command: click.Command) -> None:
    assert command.make_context(command.name, []).params["region"] == "default"


# --- deleting and cancelling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True])
async def test_a_task_that_was_deleted_is_gone_and_its_name_is_free(office: Office, declared: bool) -> None:
    task = {"apiVersion": OLD, "kind": "Task", "metadata": {"name": "d"}, "spec": {"agent": "ask"}}
    stream = await office.events()
    if declared:
        applied = await office.http.post("/v1/apply?run=true", json=task)
        assert applied.status_code == 200, applied.text
    else:
        await office.submit("d", agent="ask")
    await office.work()
    assert (await office.task("d"))["status"]["phase"] == "Succeeded"
    (run,) = await office.runtime.inside.tasking.tasks.runs("default", "d")
    assert (await stream.types(4))[-1] == "task.succeeded"

    assert (await office.http.delete("/v1/tasks/d")).status_code == 204

    assert await stream.types(1) == ["resource.deleted"]
    assert (await office.http.get("/v1/tasks/d")).status_code == 404
    assert (await office.http.delete("/v1/tasks/d")).status_code == 404
    for query in ("", "?archived=true"):
        assert (await office.http.get(f"/v1/tasks{query}")).json()["items"] == []
    assert (await office.http.get(f"/v1/runs/{run['run_id']}")).status_code == 200  # kept for those who look back
    again = await office.submit("d", agent="ask")
    assert again["status"]["phase"] == "Pending"
    await office.work("w2")
    assert (await office.task("d"))["status"]["phase"] == "Succeeded"
    assert await stream.types(4) == ["resource.created", "task.claimed", "task.running", "task.succeeded"]
    assert (await office.http.delete("/v1/tasks/d")).status_code == 204
    await office.submit("d", agent="left")  # another spec
    await stream.close()


async def test_a_live_task_is_cancelled_and_then_gone(offices: list[Office], monkeypatch: pytest.MonkeyPatch) -> None:
    office, other = offices
    await office.submit("idle", agent="ask")
    assert (await office.http.delete("/v1/tasks/idle")).status_code == 204
    assert (await office.http.get("/v1/tasks/idle")).status_code == 404

    monkeypatch.setattr(resources, "ENDING_WAIT", 0.0)
    await office.submit("held", agent="ask")
    monkeypatch.setattr(office.runtime.inside.tasking.tasks, "_wake", None)  # as if a worker held its run
    assert (await office.http.delete("/v1/tasks/held")).status_code == 204
    body = {"kind": "Task", "metadata": {"name": "held"}, "spec": {"agent": "ask"}}
    refused = await office.http.post("/v1/tasks", json=body)
    assert (refused.status_code, "being deleted" in refused.text) == (409, True)
    assert (await office.http.delete("/v1/tasks/held")).status_code == 204

    monkeypatch.setattr(resources, "ENDING_WAIT", SOON)
    waiting = asyncio.create_task(office.http.delete("/v1/tasks/held"))
    await other.runtime.inside.tasking.tasks._end_idle_runs("default", "held")
    assert (await waiting).status_code == 204
    assert (await office.http.get("/v1/tasks/held")).status_code == 404
    assert await office.services.database.read("task_endings", before="9", after="", count=9) == []


async def test_a_task_that_is_cancelled_twice_stays_as_it_ended(office: Office) -> None:
    await office.submit("c", agent="ask")
    path, status = "/v1/tasks/c/status", {"phase": "Failed", "lastError": "enough"}
    first = await office.http.put(path, json=status, headers={"If-Match": "*"})
    again = await office.http.put(path, json={**status, "lastError": "more"}, headers={"If-Match": "*"})
    assert (first.status_code, again.status_code) == (200, 200), again.text
    assert again.json()["metadata"]["resourceVersion"] == first.json()["metadata"]["resourceVersion"]
    await office.submit("done", agent="ask")
    await office.work()
    late = await office.http.put("/v1/tasks/done/status", json=status, headers={"If-Match": "*"})
    assert late.status_code == 409


# --- what did not happen, and what goes on by itself ---------------------------------------------------------------


async def fails_then_answers(office: Office, name: str, failures: int) -> None:
    """Declares an agent whose model fails so often, in a way that passes."""
    script = [{"fail": "garbage", "times": failures, "say": "at last"}]
    endpoint = put("ModelEndpoint", f"{name}-model", {"provider": "scripted", "default_model": "m", "script": script})
    agent = put("Agent", name, {"model_ref": f"{name}-model", "prompt": "Work."})
    await office.runtime.inside.resources.write([endpoint, agent])


async def claimed(office: Office, name: str, identity: str = "") -> None:
    """Has a worker of this name take what is due, and do nothing with it."""
    offer = Offer(name, identity or office.runtime.inside.runs.worker, capacity=1)
    database, now = office.runtime.inside.tasking.database, time.time()
    await register(database, offer, now=now, is_gone=lambda _: False)
    taken = await claim(database, offer, want=1, now=now, until=now + 30)
    assert len(taken.leases) == 1


async def test_no_worker_has_claimed_a_task_that_failed_at_its_acceptance(office: Office) -> None:
    stream = await office.events(name="Early")
    await office.submit("early", system="nowhere")
    found = [await stream.next() for _ in range(2)]
    assert [each["type"] for each in found] == ["resource.created", "task.failed"]
    await stream.close()


async def test_a_task_that_is_requeued_is_claimed_when_a_worker_takes_it(office: Office) -> None:
    await office.submit("again", agent="clumsy")
    await office.work("before")
    stream = await office.events(name="again", since=time.time())
    answer = await office.http.post("/v1/tasks/again/requeue", json={})
    assert answer.status_code < 300, answer.text
    status = (await office.task("again"))["status"]
    assert (status["phase"], status["attempts"], "assignedWorker" in status) == ("Pending", 1, False)
    assert await stream.types(1) == ["task.retry_scheduled"]
    await claimed(office, "after")
    event = await stream.next()
    assert (event["type"], event["data"]["worker"], event["data"]["attempt"]) == ("task.claimed", "after", 2)
    assert await stream.types(1) == ["task.running"]
    await stream.close()


async def test_a_task_that_is_requeued_and_cancelled_was_claimed_by_nobody(office: Office) -> None:
    await office.submit("again", agent="clumsy")
    await office.work("before")
    begun = await office.events(name="again", since=time.time())
    place = await begun.close()
    assert (await office.http.post("/v1/tasks/again/requeue", json={})).status_code < 300
    await office.runtime.inside.tasking.tasks.cancel("default", "again", by="me", reason="enough")
    stream = await office.events(place, name="again")
    types = [(await stream.next())["type"]]
    while types[-1] != "task.cancelled":
        types += await stream.types(1)
    assert {"task.claimed", "task.running"}.isdisjoint(types)
    await stream.close()


async def test_a_takeover_is_told(offices: list[Office]) -> None:
    here, _ = offices
    stream = await here.events(name="t")
    await here.submit("t", agent="ask")
    await claimed(here, "w1", "one")
    assert await stream.types(3) == ["resource.created", "task.claimed", "task.running"]
    database, later = here.runtime.inside.tasking.database, time.time() + 60
    offer = Offer("w2", "two", capacity=1)
    await register(database, offer, now=later, is_gone=lambda _: False)
    assert len((await claim(database, offer, want=1, now=later, until=later + 30)).leases) == 1
    event = await stream.next()
    assert (event["type"], event["message"]) == ("task.claimed", "claimed by w2, after w1")
    await stream.close()


async def test_a_pause_before_the_model_is_asked_again_waits_for_nobody(office: Office) -> None:
    await fails_then_answers(office, "shaky", 9)
    stream = await office.events(name="t")
    await office.submit("t", agent="shaky")
    await office.work("w1")
    listed = (await office.http.get("/v1/tasks")).json()["items"][0]["status"]
    shown = (await office.task("t"))["status"]
    for status in (listed, shown):
        assert (status["phase"], status["assignedWorker"]) == ("Running", "w1")
        assert status["nextAttemptAt"] > status["updatedAt"]
        assert "claimedBy" not in status
    assert shown["lastError"]
    assert (shown["messages"][0]["phase"], bool(shown["messages"][0]["next_attempt_at"])) == ("retrypending", True)
    assert [entry["type"] for entry in shown["history"]][-1] == "retry_scheduled"
    types = [(await stream.next()) for _ in range(4)]
    assert [each["type"] for each in types] == [
        *("resource.created", "task.claimed", "task.running", "task.retry_scheduled"),
    ]
    assert types[1]["data"]["worker"] == "w1"
    await stream.close()


async def test_the_trace_is_a_log(office: Office) -> None:
    script: list[dict[str, Any]] = [{"call": {"pay": {}}}, {"say": "paid"}]
    await office.runtime.inside.resources.write(
        [
            put("ModelEndpoint", "payer", {"provider": "scripted", "default_model": "m", "script": script}),
            put("Tool", "pay", {"type": "http", "endpoint": "http://127.0.0.1:9/pay"}),
            put("ToolPermission", "ask", {"tool_ref": "pay", "operation_rules": [{"verdict": "approval_required"}]}),
            put("Agent", "clerk", {"model_ref": "payer", "prompt": "Pay.", "tools": ["pay"]}),
        ]
    )
    await office.submit("t", agent="clerk")
    await office.work()
    before = (await office.task("t"))["status"]
    assert (before["phase"], before["trace"][-1]["type"]) == ("WaitingApproval", "tool_approval_pending")
    (approval,) = (await office.http.get("/v1/tool-approvals")).json()["items"]
    await office.http.post(f"/v1/tool-approvals/{approval['metadata']['name']}/deny", json={})
    await office.work()
    after = (await office.task("t"))["status"]
    assert after["phase"] == "Succeeded"
    assert after["trace"][: len(before["trace"])] == before["trace"]
    assert [each["type"] for each in after["trace"]].count("tool_call") == 1


async def test_a_requeue_changes_no_word_of_the_trace(office: Office) -> None:
    await office.submit("again", agent="clumsy")
    await office.work()
    before = (await office.task("again"))["status"]["trace"]
    assert (await office.http.post("/v1/tasks/again/requeue", json={})).status_code < 300
    assert (await office.task("again"))["status"]["trace"][: len(before)] == before
    await office.work()
    assert (await office.task("again"))["status"]["trace"][: len(before)] == before


async def test_what_was_applied_is_shown_as_its_author_wrote_it(office: Office) -> None:
    for name, more in (("ap", {"annotations": {"team": "red"}}), ("bare", {})):
        metadata = {"name": name, "namespace": "default", **more}
        document = {"apiVersion": OLD, "kind": "Agent", "metadata": metadata, "spec": {"model_ref": "brain"}}
        answer = await office.http.post("/v1/apply", json=document)
        assert answer.status_code == 200, answer.text
        shown = (await office.http.get(f"/v1/agents/{name}")).json()
        volatile = ("resourceVersion", "generation", "createdAt")
        kept = {member: value for member, value in shown["metadata"].items() if member not in volatile}
        assert {**shown, "metadata": kept, "status": None} == {**document, "status": None}


async def test_events_are_chosen_by_name_and_namespace_in_any_case(office: Office) -> None:
    stream = await office.events(name="MINE", namespace="Default")
    elsewhere = await office.events(namespace="other", name="mine")
    await office.submit("other", agent="ask")
    await office.submit("Mine", agent="ask")
    assert (await stream.next())["name"] == "Mine"
    space = put("AgentRole", "mine", {"permissions": ["x"]})
    space.document["metadata"]["namespace"] = "other"
    await office.runtime.inside.resources.write([space])
    assert (await elsewhere.next())["kind"] == "AgentRole"
    for each in (stream, elsewhere):
        await each.close()


async def test_tokens_and_results_are_in_lists_and_messages_are_found_by_their_trace(office: Office) -> None:
    await office.submit("crewed", system="crew")
    await office.work()
    shown = (await office.task("crewed"))["status"]
    listed = (await office.http.get("/v1/tasks")).json()["items"][0]["status"]
    for name in ("result", "tokens_used_total", "tokens_estimated_total"):
        assert listed["output"][name]
    assert int(shown["output"]["tokens_estimated_total"]) > 0
    assert int(shown["output"]["agent.1.estimated_tokens"]) > 0
    found = (await office.http.get("/v1/tasks/crewed/messages?trace_id=default/crewed/a001")).json()
    assert found["total"] == found["filtered_from"] > 0
    (join,) = shown["join_states"]
    assert join["activated_by"] in {source["message_id"] for source in join["sources"]}
    assert all(source["timestamp"] for source in join["sources"])


async def test_a_task_at_work_says_when_its_worker_was_last_heard_of(office: Office) -> None:
    await office.submit("t", agent="ask")
    await claimed(office, "w1")
    listed = (await office.http.get("/v1/tasks")).json()["items"][0]["status"]
    for status in (listed, (await office.task("t"))["status"]):
        assert status["startedAt"][:16] <= status["lastHeartbeat"][:16] < status["leaseUntil"]
