"""Streams whose server is killed and started again: every change comes, and comes once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from foliot import Client, Runtime
from foliot.dev.service import free_port
from foliot.settings.settings import load_settings
from foliot.store.base import Filter, Put
from foliot.work.tasks.base import Command
from foliot.work.views.events import TaskHappening


def role(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "AgentRole",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"permissions": []},
    }


TEAM: list[dict[str, Any]] = [
    {
        "apiVersion": "foliot.dev/v1",
        "kind": "ModelEndpoint",
        "metadata": {"name": "brain", "namespace": "default"},
        "spec": {"provider": "scripted", "default_model": "scripted", "script": [{"say": "done"}]},
    },
    {
        "apiVersion": "foliot.dev/v1",
        "kind": "Agent",
        "metadata": {"name": "writer", "namespace": "default"},
        "spec": {"model_ref": "brain", "prompt": "Write."},
    },
]


class Far:
    """`foliot server` in a process of its own, always at the same address."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process: Process | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "foliot.cli", "server", "--port", str(self.port), "--home", str(self.home)),
            env=environment,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(60):
            while line := await self._process.stderr.readline():
                if re.search(rb"http://", line):
                    return
        raise AssertionError("the server did not start")

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            await process.communicate()


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    server = Far(tmp_path / "home")
    await server.start()
    yield server
    await server.kill()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Runtime]:
    """The same store, opened by another process than the server's."""
    async with Runtime(settings=load_settings({"home": str(tmp_path / "home")}, {})) as runtime:
        yield runtime


async def test_a_watch_goes_on_behind_its_last_change_when_the_server_is_killed_and_started_again(far, store):
    came: list[str] = []
    enough = asyncio.Event()

    async with Client(far.url, home=far.home) as client:
        revision = (await client.resources.list(Filter("AgentRole"))).revision

        async def read() -> None:
            async with aclosing(client.resources.watch(Filter("AgentRole"), after=revision)) as changes:
                async for change in changes:
                    came.append(change.document["metadata"]["name"])
                    enough.set()
                    if len(came) == 60:
                        return

        reading = asyncio.create_task(read())
        async with asyncio.timeout(100):
            for round in range(3):
                for number in range(10):
                    await store.inside.resources.write([Put(role(f"r{round}-{number}"))])
                enough.clear()
                if not came:
                    await enough.wait()  # it is on, and somewhere in the middle
                await far.kill()
                for number in range(10, 20):
                    await store.inside.resources.write([Put(role(f"r{round}-{number}"))])
                await far.start()
            await reading

    assert came == [f"r{round}-{number}" for round in range(3) for number in range(20)]


async def test_the_happenings_of_a_task_come_each_once_when_the_server_is_killed_in_between(far, store):
    async with Client(far.url, home=far.home) as client:
        await client.resources.apply(TEAM)
        accepted = await client.tasks.submit(Command("agent", "writer", message="go"))
        task = accepted.task
        seen: list[tuple[str, int]] = []
        begun = asyncio.Event()

        async def read() -> None:
            async with aclosing(client.tasks.follow(task.name, namespace=task.namespace)) as batches:
                async for batch in batches:
                    seen.extend(
                        ("", each.seq) if isinstance(each, TaskHappening) else (each.run_id, each.seq)
                        for each in batch.events
                    )
                    begun.set()

        reading = asyncio.create_task(read())
        async with asyncio.timeout(100):
            await begun.wait()
            await far.kill()
            await _work(store, task.name)
            await far.start()
            await reading
        whole = await client.tasks.events(task.name, namespace=task.namespace)

    assert (await store.inside.tasking.tasks.get("default", task.name)).phase == "succeeded"
    assert sorted(seen) == sorted(
        ("", each.seq) if isinstance(each, TaskHappening) else (each.run_id, each.seq) for each in whole.events
    )
    assert len(seen) == len(set(seen))


async def _work(store: Runtime, name: str) -> None:
    """Do the runs of the task in this process."""
    from foliot.store.queue.placement import Offer

    worker = store.inside.tasking.worker(Offer("here", store.inside.runs.worker, capacity=2), once=True)
    await worker.run()
    assert (await store.inside.tasking.tasks.get("default", name)).phase == "succeeded"
