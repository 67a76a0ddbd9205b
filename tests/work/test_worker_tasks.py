"""Workers at tasks of a real runtime: from the accepted command to the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, ScriptedModel, tool
from foliot.engine.telemetry.standing import look
from foliot.errors import Conflict
from foliot.kernel.run.events import ToolUnknown
from foliot.runtime.runtime import Runtime
from foliot.store.journal.base import TASK_LABEL
from foliot.store.queue.claims import claim
from foliot.store.queue.limits import THRESHOLD, list_classes
from foliot.store.queue.placement import Offer
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command, Requirements

SAYS = [{"say": "hello there"}]
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(params=DATABASES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = f"{tmp_path}/foliot.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield opened


async def accept(runtime: Runtime, agent: Agent, count: int = 1, **fields: Any) -> list[str]:
    await runtime.run(agent, "so that this runtime knows it")
    tasks = runtime.inside.tasking.tasks
    return [
        (await tasks.accept(Command("agent", agent.name, message=f"m{n}", **fields))).task.name for n in range(count)
    ]


def offer(runtime: Runtime, **fields: Any) -> Offer:
    return Offer(**{"name": "w1", "identity": runtime.inside.runs.worker, "capacity": 8, **fields})


async def work(runtime: Runtime, **fields: Any) -> None:
    """Until there is nothing left for such a worker."""
    await asyncio.wait_for(runtime.inside.tasking.worker(offer(runtime, **fields), once=True).run(), 60)


async def phases(runtime: Runtime, names: list[str]) -> list[str]:
    return [(await runtime.inside.tasking.tasks.get("default", name)).phase for name in names]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_worker_does_the_tasks_that_were_accepted(runtime: Runtime) -> None:
    names = await accept(runtime, Agent("clerk", model=ScriptedModel(SAYS)), 5)
    await work(runtime)
    assert await phases(runtime, names) == ["succeeded"] * 5


async def test_a_task_that_needs_another_worker_is_left_to_it(runtime: Runtime) -> None:
    clerk = Agent("clerk", model=ScriptedModel(SAYS))
    (special,) = await accept(runtime, clerk, requirements=Requirements(region="EU", labels={"disk": "ssd"}))
    (plain,) = await accept(runtime, clerk)
    await work(runtime)
    assert await phases(runtime, [special, plain]) == ["queued", "succeeded"]
    await work(runtime, region="eu", labels={"disk": "ssd", "zone": "a"})
    assert await phases(runtime, [special]) == ["succeeded"]


async def test_of_an_agent_with_a_limit_no_more_are_given_out(runtime: Runtime) -> None:
    shy = Agent("shy", model=ScriptedModel(SAYS), max_concurrency=1)
    names = await accept(runtime, shy, 3)
    database, now = runtime.inside.tasking.database, 4e9
    found = await claim(database, offer(runtime), want=8, now=now, until=now + 30)
    assert len(found.leases) == 1
    assert found.refused == {"limit": 1}
    for lease in found.leases:
        await runtime.inside.runs.journal.append(lease, [], phase="pending", due=0.0)
    await work(runtime)
    assert await phases(runtime, names) == ["succeeded"] * 3


async def test_an_agent_that_keeps_failing_is_given_no_more_runs(runtime: Runtime) -> None:
    broken = Agent("broken", model=ScriptedModel([{"fail": "auth"}]))
    with pytest.raises(Exception, match="on purpose"):
        await runtime.run(broken, "so that this runtime knows it")
    tasks = runtime.inside.tasking.tasks
    names = [(await tasks.accept(Command("agent", "broken", message=f"m{n}"))).task.name for n in range(THRESHOLD + 2)]
    await work(runtime, capacity=1)
    assert (await phases(runtime, names)).count("queued") == 2
    (known,) = await list_classes(runtime.inside.tasking.database)
    assert (known.agent, known.failures) == ("broken", THRESHOLD)


async def test_a_run_that_is_handed_back_in_the_middle_is_finished_by_the_next_worker(runtime: Runtime) -> None:
    begun: list[str] = []
    may_end, began = asyncio.Event(), time.time()

    @tool(effect="idempotent", timeout=None)
    async def think(about: str) -> str:
        """Think about something."""
        begun.append(about)
        if len(begun) > 1:
            await may_end.wait()
        return "thought"

    script = [{"call": {"think": {"about": "life"}}}, {"say": "42"}]
    (name,) = await accept(runtime, Agent("sage", model=ScriptedModel(script), tools=[think]))
    first = runtime.inside.tasking.worker(offer(runtime), grace=0.0)
    running = asyncio.create_task(first.run())
    await until(lambda: len(begun) == 2)
    first.drain()
    await asyncio.wait_for(running, 60)
    assert await phases(runtime, [name]) == ["running"]
    (queued,) = (await look(runtime.inside.tasking.database, None, now=time.time())).queue
    assert queued.oldest_due is not None
    assert queued.oldest_due >= began  # due since it was handed back, not since 1970

    may_end.set()
    await work(runtime, name="w2")
    assert await phases(runtime, [name]) == ["succeeded"]
    assert len(begun) == 3  # cut off, and done again under the same key


async def test_a_call_that_a_drained_worker_leaves_behind_is_not_told_as_its_death(runtime: Runtime) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool(effect="once", timeout=None)
    async def pay(amount: int) -> str:
        """Pay."""
        begun.set()
        await may_end.wait()
        return "paid"

    script = [{"call": {"pay": {"amount": 5}}}, {"say": "paid"}]
    agent = Agent("payer", model=ScriptedModel(script), tools=[pay])
    may_end.set()
    await accept(runtime, agent)
    begun.clear()
    may_end.clear()
    first = runtime.inside.tasking.worker(offer(runtime), grace=0.0)
    running = asyncio.create_task(first.run())
    await asyncio.wait_for(begun.wait(), 60)
    first.drain()
    await asyncio.wait_for(running, 60)

    await work(runtime, name="w2")
    (info,) = [each for each in await runtime.inside.runs.journal.list() if TASK_LABEL in each.labels]
    (lost,) = [event for _, event in await runtime.inside.runs.facts(info.id) if isinstance(event, ToolUnknown)]
    assert lost.reason == "cancelled"
    assert lost.message.startswith("pay was under way when the process that made the call let the run go")


async def test_a_requeued_task_holds_the_call_that_may_have_acted(runtime: Runtime) -> None:
    paid: list[int] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool(effect="once", timeout=None)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        begun.set()
        await may_end.wait()
        return "paid"

    script = [{"call": {"pay": {"amount": 5}}}, {"say": "paid"}]
    may_end.set()
    (name,) = await accept(runtime, Agent("payer", model=ScriptedModel(script), tools=[pay]))
    begun.clear()
    may_end.clear()
    tasks = runtime.inside.tasking.tasks
    first = asyncio.create_task(runtime.inside.tasking.worker(offer(runtime)).run())
    await asyncio.wait_for(begun.wait(), 60)
    await tasks.cancel("default", name)
    async with asyncio.timeout(60):
        while await phases(runtime, [name]) != ["cancelled"]:
            await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert "may have taken effect" in str(await runtime.inside.tasking.stories.why("default", name))

    for _ in range(2):  # of the second attempt, which was cancelled while it asked, too
        await tasks.requeue("default", name)
        await work(runtime, name="w2")
        assert await phases(runtime, [name]) == ["waiting"]
        assert len(paid) == 2, "once by each of the two runs"
        await tasks.cancel("default", name)
        await work(runtime, name="w2")
        assert await phases(runtime, [name]) == ["cancelled"]


async def test_a_task_whose_runs_were_forgotten_is_not_tried_again(runtime: Runtime) -> None:
    @tool(effect="once")
    async def pay() -> str:
        """Pay, and break."""
        raise RuntimeError("the bank is closed")

    script = [{"call": "pay"}, {"say": "paid"}]
    (name,) = await accept(runtime, Agent("payer", model=ScriptedModel(script), tools=[pay]))
    await work(runtime)
    assert await runtime.inside.runs.journal.purge(ended_before=time.time() + 60) > 0

    with pytest.raises(Conflict, match="forgotten"):
        await runtime.inside.tasking.tasks.requeue("default", name)
    assert (await phases(runtime, [name]))[0] in ENDED
