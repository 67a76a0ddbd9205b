"""A task whose sub-agent waits for a person waits, and says for what; one that does anything else is at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.approval.questions import OpenQuestion
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command, TaskInfo
from foliot.work.views.document import shown_phase, status_outline

SCRIPT = [
    {"match": {"agent": "cashier"}, "turns": [{"call": {"ask_user": {"question": "Which shop?"}}}, {"say": "paid"}]},
    {"match": {"agent": "slow"}, "turns": [{"after": "2s", "say": "built"}]},
    {"match": {"agent": "boss"}, "turns": [{"call": {"agent:cashier": {"input": "pay"}}}, {"say": "{last_result}"}]},
    {
        "match": {"agent": "busy"},
        "turns": [{"call": [{"agent:cashier": {"input": "pay"}}, {"agent:slow": {"input": "build"}}]}, {"say": "done"}],
    },
]


def agent(name: str, *tools: str) -> tuple[str, str, dict[str, Any]]:
    return "Agent", name, {"prompt": "Do it.", "model_ref": "brain", "tools": [*tools]}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = f"{tmp_path}/foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    kinds = [
        ("ModelEndpoint", "brain", {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}),
        *(agent("cashier", "ask_user"), agent("slow"), agent("boss", "agent:cashier")),
        agent("busy", "agent:cashier", "agent:slow"),
    ]
    async with Runtime(url) as opened:
        for kind, name, spec in kinds:
            document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
            assert document is not None, problems
            await opened.resources.apply([document])
        worker = asyncio.create_task(
            opened.inside.tasking.worker(Offer("w", opened.inside.runs.worker, capacity=8)).run()
        )
        yield opened
        worker.cancel()
        await asyncio.wait([worker])


async def until(runtime: Runtime, name: str, fits: Callable[[TaskInfo], bool]) -> TaskInfo:
    async with asyncio.timeout(60):
        while not fits(info := await runtime.tasks.get(name)):
            await asyncio.sleep(0.05)
    return info


async def asked(runtime: Runtime) -> OpenQuestion:
    async with asyncio.timeout(60):
        while not (found := await runtime.inside.questions.open("default")):
            await asyncio.sleep(0.05)
    return found[0]


async def submit(runtime: Runtime, agent: str) -> str:
    return (await runtime.tasks.submit(Command("agent", agent, message="go"))).task.name


async def test_a_task_waits_when_its_sub_agent_waits_for_a_person(runtime: Runtime) -> None:
    name = await submit(runtime, "boss")
    question = await asked(runtime)
    info = await until(runtime, name, lambda info: info.phase == "waiting")
    assert shown_phase(info) == "Waiting"
    assert status_outline(info)["waiting"]["reason"] == "input"
    assert [each.name for each in (await runtime.tasks.list(phases=("waiting",)))[0]] == [name]
    assert (await runtime.tasks.list(phases=("running",)))[0] == []
    told = await runtime.tasks.why(name)
    assert told.headline == "It waits, and nothing of it goes on meanwhile."
    (cause, *_) = told.causes
    assert (cause.kind, cause.run_id) == ("waiting", question.run_id)
    assert "Which shop?" in str(told.causes)
    assert f"foliot answer {question.run_id}" in str(told.next)
    await runtime.inside.answer_question(question.run_id, question.call_id, "the corner", by="ann")
    assert (await until(runtime, name, lambda info: info.ended_at is not None)).phase == "succeeded"


async def test_a_task_is_at_work_while_another_sub_agent_of_it_is(runtime: Runtime) -> None:
    name = await submit(runtime, "busy")
    await asked(runtime)
    assert (await runtime.tasks.get(name)).phase == "running"
    assert "at work" in (await runtime.tasks.why(name)).headline
    await until(runtime, name, lambda info: info.phase == "waiting")
