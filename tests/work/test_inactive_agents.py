"""An agent that is declared with `active: false` takes no new work, by whichever way; what it has begun goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Command, InUse, Runtime
from foliot.errors import InactiveAgent
from foliot.runtime.session_posts import RuntimePosts
from foliot.settings.settings import load_settings
from foliot.store.queue.placement import Offer
from foliot.store.triggers import slots_of
from foliot.work.triggers.scheduler import Scheduler
from tests.sessions.kit import quiet

NAMED = "agent default/clerk is inactive"


def document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def model(name: str, script: list[Any]) -> dict[str, Any]:
    return document("ModelEndpoint", name, provider="scripted", default_model="s", script=script)


@pytest.fixture
async def runtime(store_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    settings = load_settings({"store": store_url, "home": str(tmp_path)}, {"FOLIOT_SECRET_KEY": "00" * 32})
    async with Runtime(settings=settings) as runtime:
        await runtime.resources.apply(
            [
                model("m", [{"say": "Done."}] * 9),
                model("asking", [{"call": {"agent:clerk": {"input": "hello"}}}, {"say": "{last_result}"}]),
                document("Agent", "clerk", model_ref="m"),
                document("Agent", "boss", model_ref="asking", tools=["agent:clerk"]),
                document("AgentSystem", "office", agents=["boss", "clerk"]),
                document("Task", "errand", agent="clerk", mode="template"),
                document("TaskSchedule", "hourly", task_ref="errand", schedule="0 * * * *", missed="last"),
            ]
        )
        yield runtime


async def set_active(runtime: Runtime, *, active: bool) -> None:
    await runtime.resources.apply([document("Agent", "clerk", model_ref="m", active=active)])


async def test_it_is_refused_by_name(runtime: Runtime) -> None:
    session = await runtime.sessions.create("clerk")
    await set_active(runtime, active=False)

    with pytest.raises(InactiveAgent, match=NAMED):
        await runtime.run("clerk", "hi")
    for target in (Command("agent", "clerk", message="hi"), Command("system", "office", message="hi")):
        with pytest.raises(InactiveAgent, match=NAMED):
            await runtime.tasks.submit(target)
    for begin in (runtime.sessions.create, runtime.sessions.resolve, runtime.sessions.rotate):
        with pytest.raises(InactiveAgent, match=NAMED):
            await begin("clerk", channel="other")
    with pytest.raises(InactiveAgent, match=NAMED):
        await runtime.sessions.say(session.id, "hi")
    assert (await runtime.sessions.get(session.id)).arrivals == 0


async def test_the_delegation_of_another_agent_is_refused_by_name(runtime: Runtime) -> None:
    await set_active(runtime, active=False)

    result = await runtime.run("boss", "hi")

    assert NAMED in result.output


async def test_a_schedule_says_so_in_its_slot(runtime: Runtime) -> None:
    await set_active(runtime, active=False)
    inside = runtime.inside
    posts = RuntimePosts(inside.sessions, inside.database, clock=inside.clock)
    scheduler = Scheduler(inside.database, inside.resources, inside.tasking.tasks, clock=inside.clock, posts=posts)

    await scheduler.tick(inside.clock() + 3600)

    uid = (await runtime.schedules.get("hourly"))["metadata"]["uid"]
    slot = (await slots_of(inside.database, uid))[0]
    assert (slot.state, slot.reason) == ("skipped", f"task_create_error: {NAMED}")


async def test_what_was_accepted_before_is_done_and_it_can_be_active_again(runtime: Runtime) -> None:
    accepted = await runtime.tasks.submit(Command("agent", "clerk", message="hi"))
    await set_active(runtime, active=False)

    worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker), once=True)
    await asyncio.wait_for(worker.run(), 60)

    assert (await runtime.tasks.get(accepted.task.name)).phase == "succeeded"
    await set_active(runtime, active=True)
    assert (await runtime.run("clerk", "hi")).output == "Done."


async def test_an_agent_with_open_sessions_is_not_deleted(runtime: Runtime) -> None:
    session = await runtime.sessions.create("clerk")
    await runtime.sessions.say(session.id, "hi")
    await quiet(runtime, session.id)

    with pytest.raises(InUse, match=f"Agent clerk is used by open sessions: {session.id}"):
        await runtime.resources.delete("Agent", "clerk")
    await runtime.resources.delete("Agent", "clerk", force=True)

    await set_active(runtime, active=True)
    await runtime.sessions.archive(session.id)
    await runtime.resources.delete("Agent", "clerk")
