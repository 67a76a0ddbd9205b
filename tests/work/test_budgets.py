"""Tasks whose runs wait for a budget: the worker lets them go, and takes them up when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, ScriptedModel
from foliot.engine.budgets.wakeups import wake_paused
from foliot.models.routing.pricing import Pricing
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.store.base import Put
from foliot.store.ledger.budgets import SqlBudgetLedger
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(params=DATABASES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = f"{tmp_path}/foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield opened


class Priced(ScriptedModel):
    pricing = Pricing(input=0, output=10)


async def declare(runtime: Runtime, **spec: Any) -> None:
    document, problems = validate_document({"kind": "Budget", "metadata": {"name": "team"}, "spec": spec})
    assert document is not None, problems
    resources = runtime.inside._open().resources  # pyright: ignore[reportPrivateUsage]
    assert resources is not None
    await resources.write([Put(document)])


async def work(runtime: Runtime) -> None:
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)


async def test_a_task_without_room_waits_and_goes_on_when_the_limit_is_raised(runtime: Runtime) -> None:
    clerk = Agent("clerk", model=Priced([{"say": "hello"}]), model_settings={"max_output_tokens": 1000})
    await declare(runtime, limit={"amount": "0.001"}, scope={"user": "*"})
    await runtime.run(clerk, "so that this runtime knows it")
    tasks = runtime.inside.tasking.tasks
    name = (await tasks.accept(Command("agent", "clerk", message="go", user="ann"))).task.name

    await work(runtime)
    task = await tasks.get("default", name)
    assert task.phase == "waiting"
    assert (task.summary["waiting"]["reason"], task.summary["waiting"]["budget"]) == ("budget", "team")

    await work(runtime)  # nothing has changed, and nobody takes it up
    assert (await tasks.get("default", name)).phase == "waiting"

    await declare(runtime, limit={"amount": "5"}, scope={"user": "*"})
    assert await wake_paused(runtime.inside.runs.journal, "default", clock=lambda: 0.0) == 1
    await work(runtime)
    assert (await tasks.get("default", name)).phase == "succeeded"
    database = runtime.inside._open().database  # pyright: ignore[reportPrivateUsage]
    assert database is not None
    (account,) = await SqlBudgetLedger(database).list("default")
    assert account.account.payer == "user=ann"
    assert account.balance.reserved.micros == 0


async def paused_tasks(runtime: Runtime, count: int) -> list[str]:
    """Tasks whose runs wait for a budget, with this process sure of how it was declared."""
    clerk = Agent("clerk", model=Priced([{"say": "hello"}] * count), model_settings={"max_output_tokens": 1000})
    await declare(runtime, limit={"amount": "0.001"}, scope={"user": "*"})
    await runtime.run(clerk, "so that this runtime knows it")
    tasks = runtime.inside.tasking.tasks
    asked = [Command("agent", "clerk", message=f"go {each}", user="ann") for each in range(count)]
    names = [(await tasks.accept(command)).task.name for command in asked]
    await work(runtime)
    assert {(await tasks.get("default", name)).phase for name in names} == {"waiting"}
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.budgets is not None
    await parts.budgets.declared.of("default", anew=True)
    return names


async def phases(runtime: Runtime, names: list[str]) -> set[str]:
    return {(await runtime.inside.tasking.tasks.get("default", name)).phase for name in names}


async def test_a_raised_budget_lets_all_of_its_runs_go_on_whatever_was_read_a_moment_ago(runtime: Runtime) -> None:
    names = await paused_tasks(runtime, 8)

    await declare(runtime, limit={"amount": "5"}, scope={"user": "*"})
    await wake_paused(runtime.inside.runs.journal, "default", clock=lambda: 0.0)
    await work(runtime)

    assert await phases(runtime, names) == {"succeeded"}


async def test_a_run_that_parked_while_its_budget_was_raised_is_swept_up(runtime: Runtime) -> None:
    names = await paused_tasks(runtime, 2)
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.budgets is not None
    assert parts.budgets.sweep is not None
    assert await parts.budgets.sweep.look() == []  # nothing has changed

    await declare(runtime, limit={"amount": "5"}, scope={"user": "*"})  # and nobody wakes them
    assert len(await parts.budgets.sweep.look()) == 2
    await work(runtime)

    assert await phases(runtime, names) == {"succeeded"}


async def test_a_change_that_makes_no_room_is_told_once(runtime: Runtime) -> None:
    names = await paused_tasks(runtime, 1)
    parts = runtime.inside._open()  # pyright: ignore[reportPrivateUsage]
    assert parts.budgets is not None
    assert parts.budgets.sweep is not None

    await declare(runtime, limit={"amount": "0.002"}, scope={"user": "*"})
    assert len(await parts.budgets.sweep.look()) == 1
    await work(runtime)
    assert await phases(runtime, names) == {"waiting"}

    assert await parts.budgets.sweep.look() == []
