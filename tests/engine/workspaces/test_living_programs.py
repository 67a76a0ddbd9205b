"""Interpreters, jobs and MCP servers of real fences on the folder of a run: nothing is restored under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.workspaces.workspaces import RunWorkspaces, place_of
from foliot.sandbox.process import ProcessSandbox
from foliot.store.journal.base import Journal
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.base import Invocation
from foliot.tools.builtin.jobs import JobTool
from foliot.tools.builtin.python import PythonTool
from foliot.tools.builtin.run_processes import RunProcesses
from foliot.tools.builtin.shell import Bash
from foliot.tools.fences import Fences
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.results import parts_of
from tests.engine.workspaces.kit import Played, created, writes
from tests.tools.mcp.conftest import fenced_connections, spec_of

pytestmark = pytest.mark.fence

WRITING = """
import threading, time
begun = threading.Event()
def write():
    n = 0
    while True:
        n += 1
        open('/workspace/log', 'w').write(str(n))
        begun.set()
threading.Thread(target=write, daemon=True).start()
begun.wait()
"""


class Tools:
    """`bash`, `python` and `job` of one run, in real fences, each call in a task of its own as a driver makes them."""

    def __init__(self, run: Played) -> None:
        self.run = run
        self.sandbox = ProcessSandbox()
        fences = Fences(lambda _: self.sandbox, workspaces=run.workspaces)
        self.processes = RunProcesses(fences)
        self.python = PythonTool(self.processes.interpreters)
        self.bash = Bash(fences, self.processes.jobs)
        self.job = JobTool(self.processes.jobs, None)

    async def call(self, tool: Any, **arguments: Any) -> Any:
        return await self.begin(tool, **arguments)

    def begin(self, tool: Any, **arguments: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self._call(tool, arguments))

    async def _call(self, tool: Any, arguments: dict[str, Any]) -> Any:
        by, files = self.run.begin()
        call = Invocation(
            tool=tool.definition.name,
            arguments=arguments,
            caller=by.caller,
            run_id=by.run_id,
            call_id=by.call_id,
            idempotency_key=by.call_id,
        )
        result = await tool.invoke(call)
        self.run.at = files.kept or self.run.at
        return result

    async def cut_off(self, begun: str) -> None:
        """A command that leaves half a file and is cancelled."""
        folder = self.run.workspaces._known["default/r1"].files  # pyright: ignore[reportPrivateUsage]
        task = self.begin(self.bash, command=f"echo half > {begun}; sleep 600")
        async with asyncio.timeout(60):
            while not (folder / begun).exists():
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    async def close(self) -> None:
        await self.processes.close()
        await self.sandbox.close()


@pytest.fixture
async def journal() -> Journal:
    made = MemoryJournal()
    await created(made)
    return made


@pytest.fixture
async def tools(journal: Journal, tmp_path: Path) -> AsyncIterator[Tools]:
    folders = RunWorkspaces(journal, tmp_path / "here")
    made = Tools(Played(folders))
    yield made
    await made.close()
    await folders.close()


async def test_the_interpreter_of_a_worker_that_lost_the_run_never_writes_into_the_folder_of_the_next(
    tools: Tools, journal: Journal, tmp_path: Path
) -> None:
    await tools.call(tools.python, code=WRITING)
    folder = place_of(tmp_path / "here", "default", "r1") / "files"
    written_to = folder.stat().st_ino
    other = Played(RunWorkspaces(journal, tmp_path / "here"))
    other.at, other.epoch = tools.run.at, 3

    seen = await other.seen()

    assert folder.stat().st_ino != written_to
    assert seen == await other.seen()


async def test_a_writing_interpreter_is_ended_before_a_call_that_was_cut_off_is_undone(tools: Tools) -> None:
    await tools.call(tools.python, code=WRITING)
    await tools.cut_off("half")

    assert "half" not in await tools.call(tools.bash, command="ls")
    assert "The interpreter was restarted" in await tools.call(tools.python, code="1")


async def test_a_job_goes_on_beside_a_call_that_was_cut_off_and_its_result_is_kept(tools: Tools) -> None:
    started = await tools.call(
        tools.bash, command="while [ ! -e go ]; do sleep 0.05; done; echo done > result", background=True
    )
    id = started.split()[1].rstrip(".")
    await tools.cut_off("half")
    await tools.call(tools.bash, command="touch go")

    assert "exit:0" in await tools.call(tools.job, action="wait", id=id)
    assert (await tools.run.seen())["result"] == (0o644, b"done\n")


class Server:
    """An MCP server that sees the workspace of one run."""

    def __init__(self, run: Played, connections: McpConnections) -> None:
        self.run = run
        self._connections = connections

    async def ran(self, code: str) -> str:
        """What code printed that the server ran, in a call of its own."""
        return await asyncio.create_task(self._ran(code))

    async def _ran(self, code: str) -> str:
        by, files = self.run.begin()
        server = spec_of("hostile", sandbox={"workspace": "read_write"})
        result = await self._connections.call(server, "run", {"code": code}, timeout=60, owner=by)
        self.run.at = files.kept or self.run.at
        return parts_of(result)[0].text  # type: ignore[union-attr]


@pytest.fixture
async def server(journal: Journal, tmp_path: Path) -> AsyncIterator[Server]:
    folders = RunWorkspaces(journal, tmp_path / "here")
    async with fenced_connections(workspaces=folders) as connections:
        yield Server(Played(folders), connections)
    await folders.close()


LIST = "import os; print(sorted(os.listdir('.')))"


async def test_a_run_that_comes_back_finds_the_files_of_its_journal_and_its_server_too(
    server: Server, journal: Journal, tmp_path: Path
) -> None:
    run = server.run
    await server.ran("open('made', 'w').write('1')")
    assert await run.workspaces.sweep(idle_for=-1) == 0
    other = Played(RunWorkspaces(journal, tmp_path / "there"))
    other.at, other.epoch = run.at, 3
    await other.call(writes({"b": "new"}))
    run.at, run.epoch = other.at, 5

    assert await server.ran(LIST) == "['b', 'made']\n"
    assert sorted(await run.seen()) == ["b", "made"]


async def test_what_a_call_left_that_was_cut_off_is_undone_also_while_a_server_lives(server: Server) -> None:
    run = server.run
    await server.ran("open('made', 'w').write('1')")

    async def careless() -> None:
        by, _ = run.begin()
        folder = await run.workspaces.folder(by)
        assert folder is not None
        writes({"half": "1"})(folder)

    await asyncio.create_task(careless())

    assert await server.ran(LIST) == "['made']\n"
    assert sorted(await run.seen()) == ["made"]
