"""Stories of real tasks on real stores: what is shown at each moment of their lives."""

from __future__ import annotations

import random
from typing import Any

import pytest

from foliot.errors import InvalidInput, NotFound
from foliot.kernel.backoff import RetryPolicy
from foliot.models.base import ModelOverloaded, ModelRequestError
from foliot.store.base import Database
from foliot.store.queue.limits import Limit, set_limit
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import register
from foliot.work.tasks.base import Command, Requirements
from foliot.work.views.document import task_document
from foliot.work.views.reader import Stories
from foliot.work.views.story import nodes_of
from tests.work.task_kit import Kit

SYSTEMS: dict[str, dict[str, Any]] = {
    "line": {"agents": ["a", "b", "c"]},
    "fan": {
        "agents": ["lead", "left", "right", "end"],
        "graph": {
            "lead": {"edges": [{"to": "left"}, {"to": "right"}]},
            "left": {"edges": [{"to": "end"}]},
            "right": {"edges": [{"to": "end"}]},
            "end": {"join": {"mode": "wait_for_all", "on_failure": "deadletter"}},
        },
    },
}


@pytest.fixture
def kit(opened_store: Database) -> Kit:
    return Kit(opened_store, SYSTEMS)


@pytest.fixture
def stories(kit: Kit) -> Stories:
    return Stories(kit.tasks, kit.runs, kit.db, clock=kit.clock)


async def accept(kit: Kit, target: str = "line", **fields: Any) -> str:
    command = Command("system", target, message="go", **fields)
    return (await kit.tasks.accept(command)).task.name


async def do_one(kit: Kit) -> None:
    (lease,) = await kit.claim(1)
    await kit.performer.perform(lease)
    kit.now += 1


async def test_the_document_of_a_new_task_is_pending_with_one_queued_message(kit: Kit, stories: Stories) -> None:
    name = await accept(kit, name="job", labels={"team": "docs"}, lane="slow", by="ann")

    document = task_document(await stories.of("default", name))

    assert (document["apiVersion"], document["kind"]) == ("foliot.dev/v1", "Task")
    assert document["metadata"]["labels"] == {"team": "docs"}
    assert document["spec"].items() >= {"system": "line", "mode": "run", "priority": "normal", "lane": "slow"}.items()
    assert document["status"]["asked"] == {"message": "go", "by": "ann"}
    status = document["status"]
    assert status["phase"] == "Pending"
    assert [(m["from_agent"], m["to_agent"], m["phase"]) for m in status["messages"]] == [("system", "a", "queued")]
    assert status["history"] == [{"timestamp": "1970-01-01T00:16:40.000Z", "type": "accepted", "message": "by ann"}]
    assert "startedAt" not in status


async def test_a_running_task_shows_who_has_it_and_until_when(kit: Kit, stories: Stories) -> None:
    name = await accept(kit)
    await kit.claim(1)

    status = task_document(await stories.of("default", name))["status"]

    assert (status["phase"], status["claimedBy"]) == ("Running", "w")
    assert status["leaseUntil"] == "1970-01-01T00:17:10.000Z"
    assert status["messages"][0]["phase"] == "running"
    assert status["messages"][0]["worker"] == "w"


async def test_a_succeeded_task_has_its_outputs_by_key(kit: Kit, stories: Stories) -> None:
    name = await accept(kit)
    await kit.work()

    document = task_document(await stories.of("default", name))

    status, output = document["status"], document["status"]["output"]
    assert status["phase"] == "Succeeded"
    assert status["completedAt"]
    assert output["result"] == output["last_output"] == "c(b(a(go)))"
    assert (output["system"], output["last_agent"], output["agents_executed"]) == ("line", "c", "3")
    assert output["execution_order"] == "a -> b -> c"
    assert output["tokens_used_total"] == "45"
    assert (output["agent.2.name"], output["agent.2.tokens_used"], output["agent.2.steps"]) == ("b", "15", "1")
    assert [message["phase"] for message in status["messages"]] == ["succeeded"] * 3
    assert [entry["type"] for entry in status["history"]][-1] == "succeeded"


async def test_a_join_shows_who_came_and_who_is_missing(kit: Kit, stories: Stories) -> None:
    name = await accept(kit, "fan")
    await do_one(kit)
    await do_one(kit)

    story = await stories.of("default", name)

    (join,) = task_document(story)["status"]["join_states"]
    (came,), (missing,) = [each["from_agent"] for each in join["sources"]], join["missing"]
    assert (join["node"], join["quorum_required"], {came, missing}) == ("end", 2, {"left", "right"})
    states = {node.name: node.state for node in nodes_of(story, kit.now)}
    assert states == {"lead": "succeeded", came: "succeeded", missing: "queued", "end": "idle"}
    causes = (await stories.why("default", name)).causes
    assert any(cause.kind == "join" and f"waits for {missing}" in cause.text for cause in causes)


async def test_a_join_stays_visible_after_it_has_started_its_agent(kit: Kit, stories: Stories) -> None:
    name = await accept(kit, "fan")
    await kit.work()

    (join,) = task_document(await stories.of("default", name))["status"]["join_states"]

    assert (join["node"], join["activated"], join["expected"], join["missing"]) == ("end", True, 2, [])
    assert {each["from_agent"] for each in join["sources"]} == {"left", "right"}
    assert all(each["payload"] and each["message_id"] for each in join["sources"])
    assert join["activated_at"]


async def test_a_retry_is_pending_with_the_error_and_the_time(kit: Kit, stories: Stories) -> None:
    kit.answer = lambda agent, told: ModelOverloaded("too many of us")
    name = await accept(kit, retry=RetryPolicy(3, 20.0, jitter="none"))
    await do_one(kit)

    story = await stories.of("default", name)

    (message,) = task_document(story)["status"]["messages"]
    assert message["phase"] == "retrypending"
    assert "too many of us" in message["last_error"]
    assert message["next_attempt_at"] == "1970-01-01T00:17:00.000Z"
    told = await stories.why("default", name)
    assert told.causes[0].kind == "backoff"
    assert told.causes[0].text == "a is tried again in 19.0s: attempt 1 of 3 broke down"
    assert "too many of us" in told.causes[1].text


async def test_a_dead_letter_is_explained_and_its_requeue_is_in_the_history(kit: Kit, stories: Stories) -> None:
    kit.answer = lambda agent, told: ModelRequestError("no such thing") if agent == "b" else f"{agent}!"
    name = await accept(kit, name="job")
    await kit.work()

    told = await stories.why("default", name)
    assert told.phase == "dead_lettered"
    assert any("no such thing" in cause.text for cause in told.causes)
    assert "foliot task retry job" in [hint.command for hint in told.next]

    kit.answer = lambda agent, told: f"{agent}({told})"
    await kit.tasks.requeue("default", name, by="ann")
    await kit.work()
    status = task_document(await stories.of("default", name))["status"]
    assert (status["phase"], status["attempts"]) == ("Succeeded", 2)
    assert [message["phase"] for message in status["messages"]] == [
        "succeeded",
        "deadletter",
        "succeeded",
        "succeeded",
    ]
    assert "requeued" in [entry["type"] for entry in status["history"]]
    assert status["output"]["result"] == "c(b(a!))"


@pytest.mark.parametrize("seed", range(6))
async def test_batches_by_cursor_are_the_whole_story_in_pieces(kit: Kit, stories: Stories, seed: int) -> None:
    """However the looks fall between what happens, everything is told once, and in the order of each journal."""
    chance = random.Random(seed)
    name = await accept(kit, chance.choice(["line", "fan"]))
    cursor: str | None = None
    pieces: list[Any] = []
    for _ in range(60):
        if chance.random() < 0.5:
            batch = await stories.happenings("default", name, cursor=cursor)
            pieces += batch.events
            cursor = batch.cursor
        elif leases := await kit.claim(1):
            await kit.performer.perform(leases[0])
            kit.now += 1
    batch = await stories.happenings("default", name, cursor=cursor)
    pieces += batch.events

    whole = (await stories.happenings("default", name)).events
    assert (await kit.tasks.get("default", name)).phase == "succeeded"
    assert len(pieces) == len(whole)
    for run in {getattr(each, "run_id", "") for each in whole}:
        mine = [each for each in pieces if getattr(each, "run_id", "") == run]
        assert [each.seq for each in mine] == list(range(1, len(mine) + 1))
        assert mine == [each for each in whole if getattr(each, "run_id", "") == run]
    assert (await stories.happenings("default", name, cursor=batch.cursor)).events == []


async def test_why_looks_at_the_workers_and_limits_of_the_store(kit: Kit, stories: Stories) -> None:
    picky = await accept(kit, requirements=Requirements(region="eu"))
    plain = await accept(kit)

    assert [cause.kind for cause in (await stories.why("default", picky)).causes] == ["no_worker"]
    await register(kit.db, Offer("near", "h.b/1/2", region="us"), now=kit.now, is_gone=lambda worker: False)
    assert (await stories.why("default", picky)).causes[0].kind == "placement"
    assert (await stories.why("default", plain)).causes[0].kind == "due"
    await set_limit(kit.db, Limit("agent", "default/a", 0))
    assert (await stories.why("default", plain)).causes[0].kind == "limit"


async def test_what_is_not_there_and_cursors_of_others_are_refused(kit: Kit, stories: Stories) -> None:
    for look in (stories.of, stories.why):
        with pytest.raises(NotFound):
            await look("default", "nobody")
    name = await accept(kit)
    with pytest.raises(InvalidInput):
        await stories.happenings("default", name, cursor="odd")
