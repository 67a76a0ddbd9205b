"""`foliot server` and `foliot worker` as processes of their own, to be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

import httpx2 as httpx

from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.open import open_database

STARTED_WITHIN = 60.0


class Processes:
    """Starts them on one store. `kill` is a SIGKILL: nothing is put in order. `headers` are those of an admin."""

    def __init__(self, home: Path, **settings: str) -> None:
        self._home = home
        self._started: list[Process] = []
        self._settings = settings
        self._first = asyncio.Lock()
        self.headers: dict[str, str] = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self._environ = {**kept, **{f"FOLIOT_{name.upper()}": value for name, value in settings.items()}}

    async def server(self) -> tuple[Process, str]:
        """A server, and its address."""
        async with self._first:
            self.headers = self.headers or await self._make_token()
        process = await self._start("server", "--port", "0")
        assert process.stderr is not None
        async with asyncio.timeout(STARTED_WITHIN):
            said = b""
            while line := await process.stderr.readline():
                said += line
                if b"Ctrl-C" in line and (address := re.search(rb"http://[\d.]+:\d+", said)):
                    return process, address[0].decode()
        raise AssertionError(said.decode())

    async def _make_token(self) -> dict[str, str]:
        database = await open_database(load_settings({"home": str(self._home), **self._settings}, {}).store)
        _, token = await SqlTokens(database).create("root", namespaces=["*"], roles=["admin"], now=time.time())
        await database.close()
        return {"Authorization": f"Bearer {token}"}

    async def worker(self) -> Process:
        """A worker that has said that it is there."""
        process = await self._start("worker")
        assert process.stderr is not None
        async with asyncio.timeout(STARTED_WITHIN):
            said = await process.stderr.readline()
        assert said, "the worker did not start"
        return process

    async def _start(self, *words: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "foliot.cli", "--home", str(self._home), *words),
            env=self._environ,
            cwd=self._home,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        self._started.append(process)
        return process

    async def kill(self, process: Process) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()

    async def close(self) -> None:
        for process in self._started:
            await self.kill(process)


def scripted(name: str, *turns: Any, **options: Any) -> dict[str, Any]:
    """An endpoint that plays these turns."""
    script = {"turns": list(turns), **options}
    return {"metadata": {"name": name}, "spec": {"provider": "scripted", "default_model": "m", "script": script}}


async def declare(
    http: httpx.AsyncClient, agent: str, *turns: Any, tools: tuple[str, ...] = (), **options: Any
) -> None:
    """An agent whose model plays these turns."""
    endpoint = await http.post("/v1/model-endpoints", json=scripted(agent, *turns, **options))
    assert endpoint.status_code == 201, endpoint.text
    spec = {"model_ref": agent, "prompt": "Work.", "tools": list(tools), "limits": {"max_steps": 50}}
    made = await http.post("/v1/agents", json={"metadata": {"name": agent}, "spec": spec})
    assert made.status_code == 201, made.text


async def begin(http: httpx.AsyncClient, name: str, agent: str) -> str:
    """Have the agent do something; the id of its run."""
    task = {"metadata": {"name": name}, "spec": {"agent": agent, "input": {"topic": "go"}}}
    accepted = await http.post("/v1/tasks", json=task)
    assert accepted.status_code == 201, accepted.text
    (run,) = (await http.get(f"/v1/tasks/{name}/runs")).json()["runs"]
    return run["run_id"]
