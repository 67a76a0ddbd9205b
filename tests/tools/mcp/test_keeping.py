"""Servers that are asked again and again: at their intervals, never twice at once, and their Tools gone with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from foliot.catalog.mcp import McpKeeper, Synced, tools_in
from foliot.errors import FoliotError
from foliot.store.base import Delete, Key, Put
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.process import server_spec
from tests.tools.mcp.conftest import document

Heard = list[tuple[str, Synced | FoliotError]]


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def keeper(store: Any, connections: Any, heard: Heard, clock: Clock | None = None, **options: Any) -> McpKeeper:
    return McpKeeper(
        store,
        connections,
        clock=clock or Clock(),
        synced=lambda server, outcome: heard.append((server["metadata"]["name"], outcome)),
        **options,
    )


async def declare(store: Any, name: str = "sample", **spec: Any) -> dict[str, Any]:
    (written,) = await store.write([Put(document(name, "stdio", **spec))])
    return written.document


async def names(store: Any) -> list[str]:
    return sorted(each["metadata"]["name"] for each in await tools_in(store, "default"))


async def test_a_server_is_asked_when_it_is_declared_and_then_at_its_interval(store, connections):
    heard: Heard = []
    clock = Clock()
    keeping = keeper(store, connections, heard, clock)
    await declare(store)

    await keeping.once()
    assert "sample--add" in await names(store)
    await keeping.once()
    assert len(heard) == 1, "it is not due"
    clock.ahead = 290
    await keeping.once()
    assert len(heard) == 1
    clock.ahead = 301
    await keeping.once()
    assert [name for name, _ in heard] == ["sample", "sample"]


@pytest.mark.parametrize(("interval", "asked"), [("1h", 1), ("30s", 2), ("0s", 0)])
async def test_a_server_can_have_an_interval_of_its_own(store, connections, interval, asked):
    heard: Heard = []
    clock = Clock()
    keeping = keeper(store, connections, heard, clock)
    await declare(store, sync_interval=interval)
    await keeping.once()
    clock.ahead = 60
    await keeping.once()
    assert len(heard) == asked


async def test_a_change_of_the_declaration_is_due_at_once(store, connections):
    heard: Heard = []
    keeping = keeper(store, connections, heard)
    await declare(store)
    await keeping.once()
    await declare(store, tool_filter={"include": ["add"]})
    await keeping.once()
    assert await names(store) == ["sample--add"]


async def test_two_processes_on_one_store_share_the_work(store, connections):
    heard: Heard = []
    await declare(store)
    await keeper(store, connections, heard).once()
    async with McpConnections() as other:
        await keeper(store, other, heard).once()
    assert len(heard) == 1


async def test_what_a_server_changes_is_noticed_and_quarantined(store, connections):
    heard: Heard = []
    clock = Clock()
    keeping = keeper(store, connections, heard, clock)
    server = await declare(store)
    await connections.call(server_spec(server), "learn", {"name": "trick", "description": "first"})
    await keeping.once()
    await connections.call(server_spec(server), "learn", {"name": "trick", "description": "second"})
    clock.ahead = 400
    await keeping.once()
    outcome = heard[-1][1]
    assert isinstance(outcome, Synced)
    assert list(outcome.quarantined) == ["sample--trick"]


async def test_tools_of_a_deleted_server_are_deleted_and_no_others(store, connections):
    heard: Heard = []
    keeping = keeper(store, connections, heard)
    await declare(store)
    await keeping.once()
    own = {"kind": "Tool", "metadata": {"name": "mine"}, "spec": {"type": "function", "function": "m:f"}}
    from foliot.resources.validate import validate_document

    made, problems = validate_document(own)
    assert made is not None, problems
    await store.write([Put(made), Delete(Key("McpServer", "default", "sample"))])
    assert len(await names(store)) > 1

    await keeping.once()

    assert await names(store) == ["mine"]
    assert await keeping.collect() == []


async def test_a_server_that_fails_says_so_and_does_not_hold_up_the_others(store, connections):
    heard: Heard = []
    await declare(store)
    (bad,) = await store.write([Put(document("bad", endpoint="http://127.0.0.1:9/mcp"))])
    await keeper(store, connections, heard).once()
    outcomes = dict(heard)
    assert isinstance(outcomes["sample"], Synced)
    assert isinstance(outcomes["bad"], FoliotError)
    status = (await store.get(Key("McpServer", "default", "bad")))["status"]
    assert status["phase"] == "Error"
    assert bad.document["metadata"]["name"] == "bad"


class Slow:
    """Connections to a server that takes its time, and counts how many ask it at once."""

    def __init__(self, connections: McpConnections) -> None:
        self._connections = connections
        self.go, self.asked = asyncio.Event(), asyncio.Event()
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connections, name)

    async def tools(self, server: Any, *, refresh: bool = False) -> Any:
        self.calls += 1
        self.asked.set()
        await self.go.wait()
        return await self._connections.tools(server, refresh=refresh)


async def test_it_never_overlaps_itself(store, connections):
    heard: Heard = []
    slow = Slow(connections)
    await declare(store)
    turns = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        turns.release()
        await asyncio.sleep(0)

    keeping = keeper(store, slow, heard, sleep=sleep)
    task = asyncio.create_task(keeping.run())
    try:
        async with asyncio.timeout(60):
            await slow.asked.wait()
            for _ in range(5):
                await turns.acquire()
            assert slow.calls == 1
            slow.go.set()
            while not heard:
                await asyncio.sleep(0.01)
        assert slow.calls == 1
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_ending_it_stops_what_is_under_way(store, connections):
    heard: Heard = []
    slow = Slow(connections)
    await declare(store)
    task = asyncio.create_task(keeper(store, slow, heard).run())
    async with asyncio.timeout(60):
        await slow.asked.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert heard == []


async def test_a_worker_keeps_servers_and_tools_in_step(store, tmp_path):
    """A process of its own; the store is the one in `tmp_path/home`."""
    await declare(store)
    environ = {**os.environ, "FOLIOT_HOME": str(tmp_path / "home"), "FOLIOT_MCP_COMMANDS": sys.executable}
    for name in ("FOLIOT_STORE", "FOLIOT_CONFIG"):
        environ.pop(name, None)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "foliot.cli", "worker", "--grace", "0s", env=environ, cwd=tmp_path, stderr=PIPE
    )
    try:
        async with asyncio.timeout(50):
            assert worker.stderr is not None
            await worker.stderr.readuntil(b"Ctrl-C stops it.\n")  # it can be told to stop in order from then on
            while "sample--add" not in await names(store):
                await asyncio.sleep(0.1)
            worker.terminate()
            _, said = await worker.communicate()
        assert worker.returncode == 0, said.decode()
        assert b"has stopped" in said
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()
