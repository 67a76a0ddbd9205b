"""Streams that break anywhere, servers that are killed, others that take over: every event comes, and comes once."""

from __future__ import annotations

import asyncio
import json
import random
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.common.cancellation import stop_tasks
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from tests.server.foliot_processes import Processes

PATIENCE = 60.0
STEPS = 8
ENDED = {"Succeeded", "Failed", "DeadLetter", "Cancelled"}


class Servers:
    """Two at a time, on one store. A client takes whichever answers."""

    def __init__(self, processes: Processes, chance: random.Random) -> None:
        self._processes = processes
        self._chance = chance
        self._running: list[tuple[Process, str]] = []

    async def start(self, count: int) -> None:
        self._running += await asyncio.gather(*(self._processes.server() for _ in range(count)))

    async def replace_one(self) -> None:
        """Kill one, let it be missed, and start another."""
        process, _ = self._running.pop(self._chance.randrange(len(self._running)))
        await self._processes.kill(process)
        await self.start(1)

    @property
    def headers(self) -> dict[str, str]:
        return self._processes.headers

    @property
    def url(self) -> str:
        return self._chance.choice(self._running)[1]


class Follower:
    """Reads a stream, breaks it off at random, is cut off by dying servers, and goes on behind the last id."""

    def __init__(self, servers: Servers, path: str, chance: random.Random, *, after: str | None = None) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.ended = asyncio.Event()
        self.connections = 0
        self._servers = servers
        self._chance = chance
        self._after = after
        self._came = asyncio.Condition()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while not self.ended.is_set():
            try:
                await self._connect()
            except httpx.TransportError:
                await asyncio.sleep(0.05)  # it is dead, or not there yet

    async def _connect(self) -> None:
        headers = self._servers.headers | ({} if self._after is None else {"Last-Event-ID": self._after})
        enough = self._chance.choice([1, 2, 3, 8, 20])
        async with (
            httpx.AsyncClient(timeout=110) as http,
            http.stream("GET", self._servers.url + self.path, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            self.connections += 1
            name, cursor = "", None
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    cursor = value
                elif field == "data":
                    await self._take(name, cursor, json.loads(value))
                    name, cursor, enough = "", None, enough - 1
                    if not enough or self.ended.is_set():
                        return

    async def _take(self, name: str, cursor: str | None, data: dict[str, Any]) -> None:
        self._after = cursor if cursor is not None else self._after
        async with self._came:
            if name in ("event", "resource"):
                self.events.append(data)
                self.ids.append(cursor or "")
            if name == "end":
                self.ended.set()
            self._came.notify_all()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE), self._came:
            await self._came.wait_for(lambda: self._task.done() or condition(self.events))
        if self._task.done():
            await self._task

    async def close(self) -> None:
        self.ended.set()
        await stop_tasks(self._task)


class LogReader:
    """The log of a task, page by page, each from another server."""

    def __init__(self, servers: Servers, name: str) -> None:
        self.lines: list[str] = []
        self._servers = servers
        self._name = name
        self._cursor: str | None = None

    async def read(self) -> None:
        query = {} if self._cursor is None else {"cursor": self._cursor}
        async with httpx.AsyncClient(timeout=60, headers=self._servers.headers) as http:
            answer = (await http.get(f"{self._servers.url}/v1/tasks/{self._name}/logs", params=query)).json()
        self.lines += answer["logs"]
        self._cursor = answer["cursor"]


class Desk:
    """The writer and worker: this process, on the same store. A step of the run goes on when it is told to."""

    def __init__(self, runtime: Runtime, gate: asyncio.Semaphore) -> None:
        self.runtime = runtime
        self.gate = gate
        self.written = 0

    async def prepare(self) -> str:
        turns = [{"say": f"step {number}", "call": {"tick": {}}} for number in range(STEPS)]
        script = {"turns": [*turns, {"say": "done"}]}
        await self.runtime.inside.resources.write(
            [
                Put(
                    _document(
                        "ModelEndpoint", "brain", {"provider": "scripted", "default_model": "m", "script": script}
                    )
                ),
                Put(_document("Agent", "clerk", {"model_ref": "brain", "prompt": "Work.", "tools": ["tick"]})),
                Put(_document("Agent", "quick", {"model_ref": "brief", "prompt": "Work."})),
                Put(_document("ModelEndpoint", "brief", {"provider": "mock", "default_model": "m"})),
            ]
        )
        tasks = self.runtime.inside.tasking.tasks
        await tasks.accept(Command("agent", "clerk", name="long", message="go", max_turns=STEPS + 5))
        (row,) = await tasks.runs("default", "long")
        return row["run_id"]

    async def write(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            spec = {"provider": "mock", "default_model": f"m{self.written}"}
            await self.runtime.inside.resources.write([Put(_document("ModelEndpoint", f"e{self.written % 5}", spec))])

    async def submit(self, name: str) -> None:
        await self.runtime.inside.tasking.tasks.accept(Command("agent", "quick", name=name, message="go"))


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    given = {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}
    document, _ = validate_document(given)
    assert document is not None
    return document


@asynccontextmanager
async def desk_on(home: Path, store: dict[str, str]) -> AsyncIterator[Desk]:
    gate = asyncio.Semaphore(0)

    async def tick() -> str:
        """Wait until there is time for another step."""
        await gate.acquire()
        return "tock"

    async with Runtime(settings=load_settings({"home": str(home), **store}, {}), tools=[tick]) as runtime:
        yield Desk(runtime, gate)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    return {} if request.param == "sqlite" else {"store": request.getfixturevalue("postgres_url")}


async def test_every_stream_goes_on_without_gap_or_repeat_whatever_breaks(
    tmp_path: Path, store: dict[str, str]
) -> None:
    chance = random.Random(20260)
    processes = Processes(tmp_path, **store)
    servers = Servers(processes, chance)
    followers: list[Follower] = []
    try:
        async with desk_on(tmp_path, store) as desk:
            run_id = await desk.prepare()
            await servers.start(2)
            revision = await desk.runtime.inside.resources.revision()
            watch = Follower(servers, "/v1/model-endpoints/watch", chance, after=str(revision))
            events = Follower(servers, "/v1/tasks/long/events", chance)
            run = Follower(servers, f"/v1/runs/{run_id}/events", chance)
            tasks = Follower(servers, "/v1/tasks/watch", chance)
            followers += [watch, events, run, tasks]
            log = LogReader(servers, "long")
            await events.until(bool)
            await tasks.until(bool)
            worker = desk.runtime.inside.tasking.worker(
                Offer("desk", desk.runtime.inside.runs.worker, capacity=4), grace=0
            )
            working = asyncio.create_task(worker.run())

            for number in range(STEPS):
                desk.gate.release()
                await desk.write(chance.randrange(1, 6))
                await log.read()
                if number == STEPS // 2:
                    replacing = asyncio.create_task(servers.replace_one())
                    await desk.write(5)
                    await desk.submit("another")
                    await replacing
                # Somewhere in the middle, and not all at the end.
                await run.until(lambda seen, number=number: _steps(seen) > number)

            last = desk.written
            await watch.until(
                lambda seen: seen[-1]["resource"]["spec"]["default_model"] == f"m{last}" if seen else False
            )
            async with asyncio.timeout(PATIENCE):
                await events.ended.wait()
                await run.ended.wait()
            await tasks.until(lambda seen: len(over := _phases(seen)) == 2 and set(over.values()) <= ENDED)
            assert set(_phases(tasks.events).values()) == {"Succeeded"}
            await log.read()
            worker.drain()
            await working
            await _compare(desk, servers, revision, watch, events, run, log)
            _check_tasks(tasks)
            assert sum(each.connections for each in followers) > len(followers), "they were broken off"
    finally:
        for each in followers:
            await each.close()
        await processes.close()


def _steps(seen: list[dict[str, Any]]) -> int:
    return sum(each["type"] == "model.responded" for each in seen)


def _phases(seen: list[dict[str, Any]]) -> dict[str, str]:
    return {each["resource"]["metadata"]["name"]: each["resource"].get("status", {}).get("phase", "") for each in seen}


async def _compare(
    desk: Desk, servers: Servers, revision: int, watch: Follower, events: Follower, run: Follower, log: LogReader
) -> None:
    newest = await desk.runtime.inside.resources.revision()
    assert [int(each) for each in watch.ids] == list(range(revision + 1, newest + 1))
    models = [each["resource"]["spec"]["default_model"] for each in watch.events]
    assert models == [f"m{number}" for number in range(1, desk.written + 1)]

    assert [int(each) for each in run.ids] == list(range(1, len(run.ids) + 1))
    async with httpx.AsyncClient(base_url=servers.url, headers=servers.headers, timeout=110) as http:
        journal = (await http.get(run.path.replace("/events", "/journal"), params={"limit": 1000})).json()["events"]
        whole = (await http.get("/v1/tasks/long/logs")).json()["logs"]
        told = (await http.get("/v1/tasks/long/events")).text
    assert run.events == journal
    assert sorted(log.lines) == sorted(whole)
    fresh = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")][:-1]
    key = [(each.get("run", ""), each["seq"]) for each in events.events]
    assert len(key) == len(set(key))
    assert sorted(key) == sorted((each.get("run", ""), each["seq"]) for each in fresh)


def _check_tasks(tasks: Follower) -> None:
    """The numbers grow, no state is told twice, and nothing that is known comes as new."""
    places = [tuple(map(int, each.split("."))) for each in tasks.ids if each]
    assert places == sorted(set(places))
    known: dict[str, Any] = {}
    for each in tasks.events:
        name = each["resource"]["metadata"]["name"]
        assert known.get(name) != each["resource"], "told twice"
        assert (each["type"] == "added") == (name not in known)
        known[name] = each["resource"]
