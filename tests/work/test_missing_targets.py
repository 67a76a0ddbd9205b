"""A task whose system or agent is not there is accepted and fails with that reason, by whatever way it comes.

Clients of the older API count on it: what a task is for is looked at when it is begun, not when it is posted. Once the
target is there, the task is begun when it is retried, or asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.errors import NotFound
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings, load_settings
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from tests.taking_missing import TAKES_MISSING

TEAM = """
kind: AgentSystem
metadata: {name: desk}
spec: {agents: [greeter]}
---
kind: Agent
metadata: {name: greeter}
spec: {model_ref: talker}
---
kind: ModelEndpoint
metadata: {name: talker}
spec: {provider: scripted, default_model: scripted, script: [{say: "Hello."}]}
"""
TASK = "kind: Task\nmetadata: {name: t1}\nspec: {system: desk, input: {topic: clocks}}\n"
MISSING = "there is no AgentSystem/desk in namespace 'default'"
WAYS = ("post", "apply", "declared", "submit", "python")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    store = {} if request.param == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    return load_settings({"home": str(tmp_path), **store}, {})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as opened:
        yield opened


@pytest.fixture
async def http(runtime: Runtime, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(runtime, settings=settings, auth=Anonymous()))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", event_hooks=TAKES_MISSING, timeout=110
    ) as client:
        yield client


async def ask(http: httpx.AsyncClient, runtime: Runtime, way: str) -> None:
    """Ask for the same work by one of the ways there are."""
    form = {"target_kind": "system", "target": "desk", "input": {"topic": "clocks"}, "name": "t1"}
    match way:
        case "post":
            answer = await http.post("/v1/tasks", content=TASK)
        case "apply":
            answer = await http.post("/v1/apply?run=true", content=TASK)
        case "declared":
            await http.post("/v1/apply", content=TASK)
            answer = await http.post("/v1/tasks/declared", content=TASK)
        case "submit":
            answer = await http.post("/v1/tasks/submit", json=form)
        case _:
            await runtime.tasks.submit(Command("system", "desk", input={"topic": "clocks"}, name="t1"))
            return
    assert answer.is_success, answer.text


async def status(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/v1/tasks/t1")
    assert answer.is_success, answer.text
    return answer.json()["status"]


async def work(runtime: Runtime) -> None:
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)


@pytest.mark.parametrize("way", WAYS)
async def test_it_is_accepted_and_fails_and_is_done_once_the_system_is_there(
    http: httpx.AsyncClient, runtime: Runtime, way: str
) -> None:
    await ask(http, runtime, way)
    failed = await status(http)
    assert (failed["phase"], MISSING in failed["lastError"]) == ("Failed", True)
    assert [each["type"] for each in failed["history"]] == ["accepted", "failed"]
    why = (await http.get("/v1/tasks/t1/why")).json()
    assert MISSING in why["causes"][0]["text"]
    await ask(http, runtime, way)
    assert (await status(http))["phase"] == "Failed", "asked for again, and still not there"

    assert (await http.post("/v1/apply", content=TEAM)).is_success
    await work(runtime)
    assert (await status(http))["phase"] == "Failed", "what has failed does not begin by itself"
    await ask(http, runtime, way)
    await work(runtime)

    done = await status(http)
    assert (done["phase"], done["output"]["result"]) == ("Succeeded", "Hello.")
    await ask(http, runtime, way)
    await work(runtime)
    assert len(await runtime.inside.tasking.tasks.runs("default", "t1")) == 1, "and is done once"


async def test_it_is_begun_by_a_retry(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await ask(http, runtime, "post")
    with pytest.raises(NotFound, match="AgentSystem/desk"):
        await runtime.inside.tasking.tasks.requeue("default", "t1")
    assert (await http.post("/v1/apply", content=TEAM)).is_success

    assert (await http.post("/v1/tasks/t1/requeue")).is_success
    await work(runtime)
    assert (await status(http))["phase"] == "Succeeded"


@pytest.mark.parametrize("order", ["task first", "task last"])
async def test_a_bundle_may_be_in_any_order(http: httpx.AsyncClient, runtime: Runtime, order: str) -> None:
    parts = (TASK, TEAM) if order == "task first" else (TEAM, TASK)

    answer = await http.post("/v1/apply?run=true", content="---\n".join(parts))
    assert answer.is_success, answer.text
    await work(runtime)
    assert (await status(http))["phase"] == "Succeeded"


async def test_an_agent_of_the_system_that_is_not_there_is_a_reason_too(http: httpx.AsyncClient) -> None:
    system, *_ = TEAM.split("---")
    assert (await http.post("/v1/apply", content=system)).is_success
    answer = await http.post("/v1/tasks", content=TASK)

    assert answer.status_code == 201, answer.text
    assert "agent 'greeter' of system 'desk' is not there" in (await status(http))["lastError"]


async def test_two_who_ask_at_once_begin_it_once(http: httpx.AsyncClient, runtime: Runtime) -> None:
    await ask(http, runtime, "post")
    assert (await http.post("/v1/apply", content=TEAM)).is_success

    answers = await asyncio.gather(*(http.post("/v1/tasks", content=TASK) for _ in range(4)))
    await work(runtime)

    assert sorted(each.status_code for each in answers) == [200, 200, 200, 201]
    assert len(await runtime.inside.tasking.tasks.runs("default", "t1")) == 1
