"""Runs that a server or a `foliot run` left behind go on by themselves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2 as httpx
import pytest

from foliot.catalog.apply import apply_documents
from foliot.common.cancellation import stop_tasks
from foliot.models.scripted.model import ScriptedModel
from foliot.resources.reader import parse_text
from foliot.resources.validate import validate_document
from foliot.runtime.agent import Agent
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.runtime import Runtime
from foliot.server.runs.takeover import MOST_CLAIMS, TakingUp
from foliot.settings.settings import Settings
from foliot.store.base import Put
from foliot.testing.served import local_headers
from foliot.tools.function import tool
from foliot.work.tasks.base import Command

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: desk-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {pay: {amount: 5}}}
    - {say: "Looking.", call: {look: {}}}
    - {say: "Paid, and {last_result}."}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "left_tools:pay", effect: once}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: look}
spec: {type: function, function: "left_tools:look", effect: read}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: desk}
spec: {model_ref: desk-model, tools: [look, pay]}
"""
TOOLS = """\
import asyncio
from pathlib import Path


async def pay(amount: int) -> str:
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return "paid"


async def look() -> str:
    for _ in range(6000):
        if not Path("look.hold").exists():
            return "all is well"
        Path("look.held").touch()
        await asyncio.sleep(0.01)
    return "held for too long"
"""


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[tuple[asyncio.subprocess.Process, str]]]]:
    """Starts `foliot up`, and gives the process and its address."""
    (tmp_path / "desk.yaml").write_text(MANIFEST)
    (tmp_path / "left_tools.py").write_text(TOOLS)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
    started: list[asyncio.subprocess.Process] = []

    async def start() -> tuple[asyncio.subprocess.Process, str]:
        words = ("-m", "foliot.cli", "--home", str(tmp_path / "home"), "up", "--port", "0")
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stderr=asyncio.subprocess.PIPE, cwd=tmp_path, env=environ
        )
        started.append(process)
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while line := (await process.stderr.readline()).decode():
                if found := re.search(r"http://[\d.]+:\d+", line):
                    return process, found[0]
        raise AssertionError("foliot up did not start")

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_run_for_an_openai_client_ends_after_its_server_was_killed_and_nothing_is_done_twice(
    start: Callable[[], Awaitable[tuple[asyncio.subprocess.Process, str]]], tmp_path: Path
) -> None:
    (tmp_path / "look.hold").touch()
    home = tmp_path / "home"
    process, url = await start()
    async with httpx.AsyncClient(base_url=url, headers=await local_headers(url, home), timeout=110) as http:
        applied = await http.post("/v1/apply", content=MANIFEST)
        assert applied.status_code == 200, applied.text
        order = {"model": "desk", "messages": [{"role": "user", "content": "go"}]}
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=order))
        async with asyncio.timeout(60):
            while not (tmp_path / "look.held").exists():
                assert not asking.done(), asking
                await asyncio.sleep(0.01)
        process.kill()
        await process.wait()
        with pytest.raises(httpx.TransportError):
            await asking
    (tmp_path / "look.hold").unlink()

    _, url = await start()
    known = await local_headers(url, home)
    async with httpx.AsyncClient(base_url=url, headers=known, timeout=110) as http, asyncio.timeout(60):
        (run,) = (await http.get("/v1/runs")).json()["items"]
        async with http.stream("GET", f"/v1/runs/{run['metadata']['name']}/events") as events:
            lines = [line async for line in events.aiter_lines() if line.startswith("data: ")]

    assert json.loads(lines[-1].removeprefix("data: "))["phase"] == "succeeded"
    assert (tmp_path / "ledger.txt").read_text() == "5\n"


# --- what is taken up, and when ------------------------------------------------------------------------------------


class Desk:
    """An agent whose tool holds still, on a runtime; `left` is a run of it that somebody began and let go."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.begun = asyncio.Event()
        self.free = asyncio.Event()

        @tool(effect="read")
        async def look() -> str:
            """Looks."""
            self.begun.set()
            await self.free.wait()
            return "well"

        self.agent = Agent("desk", model=ScriptedModel([{"call": {"look": {}}}, {"say": "Done."}]), tools=[look])

    async def left(self, run_id: str) -> None:
        driving = asyncio.create_task(self.runtime.run(self.agent, "go", run_id=run_id))
        async with asyncio.timeout(60):
            await self.begun.wait()
        await stop_tasks(driving)
        assert (await self.runtime.inside.runs.journal.get(run_id)).phase == "pending"
        self.free.set()


@pytest.fixture
async def drives(runtime: Runtime) -> BackgroundRuns:
    return runtime.inside.background


async def test_what_is_there_at_the_start_is_taken_up_at_once_and_later_ones_at_the_second_look(
    runtime: Runtime, drives: BackgroundRuns
) -> None:
    desk, taking = Desk(runtime), TakingUp(runtime, drives)
    await desk.left("r1")
    assert await taking.look() == ["r1"]
    assert (await runtime.inside.attend("r1")).output == "Done."

    desk = Desk(runtime)
    await desk.left("r2")
    assert await taking.look() == []
    assert await taking.look() == ["r2"]
    assert (await runtime.inside.attend("r2")).output == "Done."
    assert await taking.look() == []


async def test_a_run_that_needs_what_is_not_here_stays_as_it_is_and_rests(
    runtime: Runtime, settings: Settings, drives: BackgroundRuns, caplog: pytest.LogCaptureFixture
) -> None:
    await Desk(runtime).left("r1")
    now = 1_000_000_000_000.0
    async with Runtime(settings=settings) as other:  # knows nothing of the agent's model and tool
        taking = TakingUp(other, drives, clock=lambda: now)
        with caplog.at_level(logging.WARNING):
            assert await taking.look() == ["r1"]
            await drives.close(within=20)
        assert "run r1 stays as it is" in caplog.text
        assert await taking.look() == []  # rests
        now += 31
        assert await taking.look() == ["r1"]
        await drives.close(within=20)
        assert (await other.inside.runs.journal.get("r1")).phase == "pending"


async def test_a_run_that_is_taken_up_again_and_again_without_getting_anywhere_is_left_to_people(
    runtime: Runtime, drives: BackgroundRuns
) -> None:
    desk = Desk(runtime)
    for _ in range(MOST_CLAIMS):
        desk.begun.clear()
        desk.free.clear()
        await desk.left("r1")

    assert await TakingUp(runtime, drives).look() == []


async def test_a_run_that_somebody_drives_is_left_to_them(runtime: Runtime, drives: BackgroundRuns) -> None:
    desk = Desk(runtime)
    driving = asyncio.create_task(runtime.run(desk.agent, "go", run_id="r1"))
    async with asyncio.timeout(60):
        await desk.begun.wait()

    assert await TakingUp(runtime, drives).look() == []

    desk.free.set()
    assert (await driving).output == "Done."


async def test_the_runs_of_tasks_are_left_to_workers(runtime: Runtime, drives: BackgroundRuns) -> None:
    manifest = MANIFEST.replace(", tools: [look, pay]", "")
    bundle = parse_text(manifest, "desk.yaml", namespace=None)
    await apply_documents(runtime.inside.resources, [item.document for item in bundle.items])
    await runtime.inside.tasking.tasks.accept(Command("agent", "desk", message="go"))

    assert await TakingUp(runtime, drives).look() == []

    (info,) = await runtime.inside.runs.journal.list()
    assert info.phase == "pending"


@pytest.mark.parametrize("stays", [True, False], ids=["somebody stays", "nobody stays"])
@pytest.mark.parametrize("sort", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def test_a_run_that_a_budget_pauses_goes_on_when_the_budget_is_raised(
    sort: str, stays: bool, request: pytest.FixtureRequest, tmp_path: Path, drives: BackgroundRuns
) -> None:
    url = str(tmp_path / "paused.db") if sort == "sqlite" else request.getfixturevalue("postgres_url")

    async def limit(runtime: Runtime, tokens: int) -> None:
        spec = {"window": "total", "limit": {"tokens": tokens}, "on_exceeded": "pause"}
        document, _ = validate_document({"kind": "Budget", "metadata": {"name": "purse"}, "spec": spec})
        assert document is not None
        await runtime.inside.resources.write([Put(document)])  # and nobody signals: what waits is found

    async with asyncio.timeout(60), Runtime(url) as runtime:
        await limit(runtime, 1)
        agent = Agent("clerk", model=ScriptedModel([{"say": "done"}]))
        result = await runtime.run(agent, "go")
        assert result.phase == "waiting"
        assert result.waiting is not None
        assert result.waiting.reason == "budget"
        assert "'purse' has no room" in result.waiting.message, "the caller is told at once"
        staying = asyncio.create_task(runtime.inside.attend(result.run_id)) if stays else None
        await limit(runtime, 1_000_000)
        if staying is not None:
            assert (await staying).phase == "succeeded"
        else:
            taking = TakingUp(runtime, drives, clock=runtime.inside.clock)
            assert await taking.look() == [result.run_id]
            while (await runtime.inside.runs.journal.get(result.run_id)).phase != "succeeded":
                await asyncio.sleep(0.01)
