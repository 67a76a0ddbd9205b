"""What was repaired is used at once, what is archived ends by itself, and what is in use is not deleted by accident."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.budgets.wakeups import models_changed
from foliot.errors import NotFound
from foliot.resources.validate import validate_document
from foliot.runtime.local.resources import LocalResources
from foliot.runtime.outcomes import InUse
from foliot.runtime.runtime import Runtime
from foliot.store.journal.base import Lease
from foliot.store.queue.limits import class_failed, list_classes
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from foliot.work.tasks.settlement import TaskSettlement

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(params=DATABASES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = f"{tmp_path}/foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield opened


@pytest.fixture
def client(runtime: Runtime) -> LocalResources:
    return runtime.resources


def document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert made is not None, problems
    return made


def endpoint(*script: Any) -> dict[str, Any]:
    return document("ModelEndpoint", "main", provider="scripted", default_model="m", script=list(script))


CLERK = document("Agent", "clerk", model_ref="main", prompt="be brief")
BROKEN = {"fail": "overloaded"}


async def work(runtime: Runtime) -> None:
    offer = Offer("w1", runtime.inside.runs.worker, capacity=8)
    await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True).run(), 60)


async def test_a_run_that_waits_for_a_broken_endpoint_goes_on_as_soon_as_it_is_repaired(
    runtime: Runtime, client: LocalResources
) -> None:
    await client.apply([endpoint(*[BROKEN] * 20), CLERK])
    task = (await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", message="go"))).task
    await work(runtime)
    paused = await runtime.inside.tasking.tasks.get("default", task.name)
    assert (paused.phase, paused.summary["waiting"]["reason"]) == ("running", "model_retry")
    assert paused.next_attempt_at is not None

    await client.apply([endpoint({"say": "well again"})])
    await work(runtime)

    assert (await runtime.inside.tasking.tasks.get("default", task.name)).phase == "succeeded"


async def test_an_endpoint_that_was_repaired_a_moment_ago_fails_nobody(
    runtime: Runtime, client: LocalResources
) -> None:
    await client.apply([endpoint({"fail": "auth"}), CLERK])
    assert (await runtime.run("clerk", "go", check=False)).phase == "failed"

    await client.apply([endpoint({"say": "well again"})])

    assert (await runtime.run("clerk", "go")).output == "well again"


async def test_classes_that_a_broken_endpoint_opened_are_closed_by_its_repair(runtime: Runtime) -> None:
    database = runtime.inside.tasking.database
    await database.write(class_failed, "execclass_x", 1.0, namespace="default", agent="clerk")
    await models_changed(database, "default", clock=lambda: 2.0)
    assert await list_classes(database) == []


async def test_archiving_a_running_task_is_one_call(runtime: Runtime, client: LocalResources) -> None:
    await client.apply([endpoint({"say": "x"}), CLERK])
    tasks = runtime.inside.tasking.tasks
    task = (await tasks.accept(Command("agent", "clerk", message="go"))).task
    (run,) = await tasks.runs("default", task.name)
    lease = await runtime.inside.runs.journal.claim(run["run_id"], worker="elsewhere", now=0.0, until=1e12)

    archived = await tasks.archive("default", task.name)

    assert archived.archived_at is not None
    assert (await tasks.list(namespace="default"))[0] == []
    await runtime.inside.runs.journal.append(lease, [], phase="pending", due=0.0)
    await work(runtime)
    assert (await tasks.get("default", task.name)).phase == "cancelled"


@pytest.mark.parametrize(("kind", "name"), [("Agent", "clerk"), ("ModelEndpoint", "main")])
async def test_what_an_open_task_uses_is_deleted_only_by_force(
    runtime: Runtime, client: LocalResources, kind: str, name: str
) -> None:
    await client.apply([endpoint({"say": "x"}), CLERK])
    task = (await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", message="go"))).task
    with pytest.raises(InUse) as refused:
        await client.delete(kind, name, namespace="default")
    assert task.name in refused.value.message
    assert "force" in (refused.value.hint or "")

    await client.delete(kind, name, namespace="default", force=True)


async def test_what_no_open_task_uses_is_deleted(runtime: Runtime, client: LocalResources) -> None:
    await client.apply([endpoint({"say": "x"}), CLERK])
    await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", message="go"))
    await work(runtime)
    await client.delete("Agent", "clerk", namespace="default")


@pytest.mark.parametrize("fault", [NotFound("its task is gone"), KeyError("a mistake")], ids=["told", "unexpected"])
async def test_a_run_whose_task_cannot_be_asked_is_given_back_and_not_held_until_the_lease_ends(
    runtime: Runtime, client: LocalResources, fault: Exception
) -> None:
    await client.apply([endpoint({"say": "done"}), CLERK])
    tasks = runtime.inside.tasking.tasks
    task = (await tasks.accept(Command("agent", "clerk", message="go"))).task
    (run,) = await runtime.inside.tasking.database.read("task_runs", namespace="default", name=task.name)

    async def broken(lease: Lease) -> TaskSettlement:
        raise fault

    with pytest.raises(type(fault)):
        await runtime.inside.runs.take(run["run_id"], settlement=broken)

    left = await runtime.inside.runs.journal.get(run["run_id"])
    assert (left.phase, left.lease_until) == ("pending", None)
    await work(runtime)  # a worker need not wait for the lease to end
    assert (await tasks.get("default", task.name)).phase == "succeeded"
