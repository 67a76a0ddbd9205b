"""A worker whose database goes silent: others take its runs over, it survives, heals, and can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from foliot import Runtime, tool
from foliot.kernel.run.codec import type_of
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Put, round_trip
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from foliot.work.worker.worker import Worker
from simulators.proxy import Proxy

LEASE = 6.0
ENDS = 120.0
SCRIPT = {"turns": [{"call": {"look": {}}}, {"say": "seen"}], "loop": True}


class Eyes:
    """A tool that may be repeated; it says when it was begun, and ends when it is allowed to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

        @tool(effect="read")
        async def look() -> str:
            self.begun.set()
            await self.go.wait()
            return "something"

        self.look = look


@asynccontextmanager
async def crew(url: str, name: str, eyes: Eyes) -> AsyncGenerator[tuple[Runtime, Worker, asyncio.Task[None]]]:
    async with Runtime(settings=load_settings({"store": url}), tools=[eyes.look], lease_seconds=LEASE) as runtime:
        worker = runtime.inside.tasking.worker(
            Offer(name, f"{runtime.inside.runs.worker}/{name}", capacity=4), grace=1.0
        )
        working = asyncio.create_task(worker.run())
        yield runtime, worker, working
        worker.drain()
        worker.drain()
        await asyncio.wait_for(working, ENDS)


async def declared(runtime: Runtime) -> None:
    endpoint = {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}
    clerk = {"model_ref": "script", "prompt": "", "tools": ["look"]}
    for kind, name, spec in (("ModelEndpoint", "script", endpoint), ("Agent", "clerk", clerk)):
        document, _ = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None
        await runtime.inside.resources.write([Put(document)])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(ENDS):
        while not await holds():
            await asyncio.sleep(0.05)


async def test_silence_under_a_run_costs_its_worker_the_run_and_nothing_else(postgres_url: str) -> None:
    near, far = Eyes(), Eyes()
    far.go.set()
    with Proxy(postgres_url) as proxy:
        async with crew(proxy.url, "near", near) as (cut_off, _, working):
            await declared(cut_off)
            await cut_off.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
            await asyncio.wait_for(near.begun.wait(), ENDS)
            proxy.silence()
            await proxy.swallowed()
            async with crew(postgres_url, "far", far) as (direct, _, _):

                async def ended() -> bool:
                    return (await direct.inside.tasking.tasks.get("default", "t1")).phase == "succeeded"

                await until(ended)
                assert await round_trip(cut_off.inside.tasking.database) is None, "its health tells the truth"
                assert not working.done(), "the worker survives"
                (run,) = await direct.inside.runs.journal.list()
                seen = [type_of(event) for _, event in await direct.inside.runs.facts(run.id)]
                assert seen.count("run.succeeded") == seen.count("tool.finished") == 1
                assert seen.count("run.claimed") == 2
            # It heals by itself, and goes on with what is new.
            near.go.set()
            near.begun.clear()
            proxy.pass_through()

            async def healed() -> bool:
                return await round_trip(cut_off.inside.tasking.database) is not None

            await until(healed)
            await cut_off.inside.tasking.tasks.accept(Command("agent", "clerk", name="t2", message="go"))
            await asyncio.wait_for(near.begun.wait(), ENDS)


async def test_a_worker_can_be_stopped_in_silence(postgres_url: str) -> None:
    eyes = Eyes()
    with Proxy(postgres_url) as proxy:
        async with asyncio.timeout(ENDS), crew(proxy.url, "near", eyes) as (runtime, worker, working):
            await declared(runtime)
            await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
            await eyes.begun.wait()
            proxy.silence()
            await proxy.swallowed()
            worker.drain()
            await working


@pytest.mark.parametrize("looking", [False, True], ids=["idle", "while it looks"])
async def test_an_idle_worker_ends_in_a_third_of_its_lease_although_the_database_is_silent(
    looking: bool, postgres_url: str
) -> None:
    lease = 18.0
    eyes = Eyes()
    with Proxy(postgres_url) as proxy:
        runtime = Runtime(settings=load_settings({"store": proxy.url}), tools=[eyes.look], lease_seconds=lease)
        async with asyncio.timeout(ENDS):
            await runtime.__aenter__()
            await declared(runtime)
            worker = runtime.inside.tasking.worker(Offer("near", f"{runtime.inside.runs.worker}/near", capacity=4))
            working = asyncio.create_task(worker.run())

            async def known() -> bool:
                return bool(await runtime.inside.tasking.database.read("worker_list"))

            await until(known)
            proxy.silence()
            if looking:
                worker._look_again()
                await proxy.swallowed()
            now = asyncio.get_running_loop().time
            began = now()
            worker.drain()
            await working
            await runtime.__aexit__(None, None, None)
            # Its bounds add up to a third of the lease. The rest is for a busy machine.
            assert now() - began < lease * 0.75
