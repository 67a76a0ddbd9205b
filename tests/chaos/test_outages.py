"""A real store goes away in the middle of a call that must not be repeated, and comes back: nobody is asked, nothing is
done twice, and the run ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.dev.postgres import Postgres
from foliot.kernel.run.codec import type_of
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command

# Long enough for a server that starts slowly on a busy machine; the outage is what is tried here, not the lease.
LEASE_SECONDS = 240.0
SCRIPT = {"turns": [{"call": {"pay": {}}}, {"say": "paid once"}]}


class Till:
    """A tool that pays when it is allowed to, and says when it was begun."""

    def __init__(self, says: str = "paid") -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.payments = 0

        @tool(effect="once")
        async def pay() -> str:
            self.begun.set()
            await self.go.wait()
            self.payments += 1
            return says

        self.pay = pay


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def types(runtime: Runtime, run_id: str) -> list[str]:
    return [type_of(event) for _, event in await runtime.inside.runs.facts(run_id)]


def nothing_in_doubt(seen: list[str]) -> None:
    assert seen.count("tool.started") == seen.count("tool.finished") == 1
    assert "run.waiting" not in seen
    assert seen[-1] == "run.succeeded"
    assert seen.count("run.claimed") == 1, "the same attempt went on"


async def test_postgres_is_killed_in_the_middle_of_a_call(
    postgres_service: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foliot.engine.driver.appends")
    till = Till()
    agent = Agent("clerk", model=ScriptedModel(SCRIPT), tools=[till.pay])
    async with Runtime(postgres_service.url, lease_seconds=LEASE_SECONDS) as runtime:
        running = asyncio.create_task(runtime.run(agent, "go", run_id="r1"))
        await asyncio.wait_for(till.begun.wait(), 60)
        await asyncio.to_thread(postgres_service.kill)
        till.go.set()  # it takes effect while its result cannot be stored
        await soon(lambda: "an append is tried again" in caplog.text)
        await asyncio.to_thread(postgres_service.start)
        result = await asyncio.wait_for(running, 120)
        assert result.output == "paid once"
        nothing_in_doubt(await types(runtime, "r1"))
    assert till.payments == 1


async def test_postgres_is_stopped_under_the_tasks_of_a_worker(
    postgres_service: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foliot.engine.driver.appends")
    till = Till()
    settings = load_settings({"store": postgres_service.url})
    async with Runtime(settings=settings, tools=[till.pay], lease_seconds=LEASE_SECONDS) as runtime:
        resources = runtime.inside._open().resources
        assert resources is not None
        endpoint = {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}
        clerk = {"model_ref": "script", "prompt": "", "tools": ["pay"]}
        for kind, name, spec in (("ModelEndpoint", "script", endpoint), ("Agent", "clerk", clerk)):
            document, _ = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
            assert document is not None
            await resources.write([Put(document)])
        await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
        worker = runtime.inside.tasking.worker(Offer("w1", runtime.inside.runs.worker, capacity=4))
        working = asyncio.create_task(worker.run())
        await asyncio.wait_for(till.begun.wait(), 60)
        await asyncio.to_thread(postgres_service.stop)
        till.go.set()
        await soon(lambda: "an append is tried again" in caplog.text)
        await asyncio.to_thread(postgres_service.start)
        await soon(lambda: worker.current == 0)
        worker.drain()
        await asyncio.wait_for(working, 60)
        assert (await runtime.inside.tasking.tasks.get("default", "t1")).phase == "succeeded"
        (run,) = await runtime.inside.runs.journal.list()
        nothing_in_doubt(await types(runtime, run.id))
    assert till.payments == 1


async def test_a_disk_that_is_full_for_a_while_costs_only_that_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite is told that it may not grow, while a result that needs room is on its way."""
    caplog.set_level(logging.INFO, "foliot.engine.driver.appends")
    till = Till(says=Random(1).randbytes(30_000).hex())  # which cannot be packed into little
    agent = Agent("clerk", model=ScriptedModel(SCRIPT), tools=[till.pay])
    async with Runtime(tmp_path / "foliot.db", lease_seconds=LEASE_SECONDS) as runtime:
        running = asyncio.create_task(runtime.run(agent, "go", run_id="r1"))
        await asyncio.wait_for(till.begun.wait(), 60)
        await allow_pages(runtime, 1)  # no more than there are
        till.go.set()
        await soon(lambda: "is full" in caplog.text)
        await allow_pages(runtime, 1_000_000)
        result = await asyncio.wait_for(running, 60)
        assert result.output == "paid once"
        nothing_in_doubt(await types(runtime, "r1"))
    assert till.payments == 1


async def allow_pages(runtime: Runtime, pages: int) -> None:
    connection = runtime.inside._open().database._writer._executor.connection  # type: ignore[attr-defined,union-attr]  # SQLite's
    async with asyncio.timeout(60):
        while True:
            try:
                connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
            except (apsw.ThreadingViolationError, apsw.BusyError):
                await asyncio.sleep(0.005)  # the writer is at it
            else:
                return
